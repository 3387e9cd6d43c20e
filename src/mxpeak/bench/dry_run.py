"""The description of a run that a benchmark returns for --dry-run and the command line prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mxpeak.options import AnyRun, Run


@dataclass(frozen=True, slots=True)
class DryRun:
    """The properties of a run that was not executed.

    text     sizes, grid and memory as text for the user
    fits     whether all cases fit into memory
    run      the run with the values that it would choose; None if they equal those of the request
    flops    counted flops of the timed part, if its time follows from them
    time_s   duration of the timed part in seconds, if it runs for a given time
    """

    text: str
    fits: bool = True
    run: Run[Any] | None = None
    flops: float | None = None
    time_s: float | None = None


def with_open_values(run: AnyRun, **values: Any) -> AnyRun:
    """Return the run with these values for all settings that the user did not specify."""
    unset = {k: v for k, v in values.items() if k in run.origins and getattr(run.config, k) in (None, "auto")}
    return run.with_values(unset, "auto")
