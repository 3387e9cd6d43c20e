"""What a run would do: told by a benchmark's dry_run, shown by the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mxpeak.options import Setting


@dataclass(frozen=True, slots=True)
class DryRun:
    """What a run would do, nothing run.

    text      sizes, grid and memory, for people
    fits      whether all of it fits into memory
    settings  the settings, with what was left open as the run would have it
    flops     what is counted in its timed part, where the time follows from that; else None
    time_s    the seconds that its timed part is given, where it is told them; else None
    """

    text: str
    fits: bool = True
    settings: Mapping[str, Setting] = field(default_factory=dict)
    flops: float | None = None
    time_s: float | None = None


def as_found(settings: Mapping[str, Setting], **found: Any) -> dict[str, Setting]:
    """Settings with what was left open as it was found."""
    new = {name: Setting(value, "auto") for name, value in found.items() if name in settings}
    return {**settings, **{name: one for name, one in new.items() if settings[name].value in (None, "auto")}}
