"""Write the events of a run as JSON lines. Each line is flushed immediately, so the file is complete if a run is
killed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from mxpeak.spans import Step

SCHEMA = "mxpeak.events/1"
#: Minimum number of seconds between two recorded steps of a computation.
STEP_S = 1.0


class EventLog:
    """Writes the events of a run to a new file. The first error is stored in `error` and ends the output."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time):
        self.path = path
        self.error: OSError | None = None
        self._clock = clock
        self._file: TextIO | None = None
        self._told = (0.0, 0.0)
        try:
            self._file = path.open("x", encoding="utf-8", newline="\n")
        except OSError as error:
            self.error = error

    def write(self, event: str, **about: Any) -> None:
        """Write an event with its details and the current Unix time."""
        if self._file is None:
            return
        try:
            line = json.dumps({"event": event, "time_unix": self._clock(), **_finite(about)}, default=str)
            self._file.write(line + "\n")
            self._file.flush()
        except OSError as error:
            self.error = error
            self.close()

    def close(self) -> None:
        """Close the event file."""
        if self._file is not None:
            with suppress(OSError):  # `write` has reported the error
                self._file.close()
            self._file = None

    def start(self, label: str, total_flops: float) -> None:
        """Record that a computation has started."""
        self._told = (0.0, 0.0)
        self.write("phase started", phase=label, total_flops=total_flops)

    def step(self, step: Step) -> None:
        """Record a step if at least STEP_S seconds have passed since the last recorded step."""
        elapsed_s, done_flops = self._told
        if step.elapsed_s - elapsed_s < STEP_S:
            return
        self._told = (step.elapsed_s, step.done_flops)
        self.write(
            "step",
            phase=step.label,
            index=step.index,
            count=step.count,
            elapsed_s=step.elapsed_s,
            done_flops=step.done_flops,
            total_flops=step.total_flops,
            rate_flops=(step.done_flops - done_flops) / (step.elapsed_s - elapsed_s),
        )

    def finish(self, label: str, elapsed_s: float) -> None:
        """Record that a computation has ended."""
        self.write("phase finished", phase=label, elapsed_s=elapsed_s)


def _finite(value: Any) -> Any:
    """Replace NaN and infinity by None in nested lists and dictionaries, because JSON does not support them."""
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
