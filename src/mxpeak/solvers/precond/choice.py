"""The selected preconditioner and the reason for its selection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mxpeak.distributed.rank_group import RankGroup
from mxpeak.distributed.rows import Array
from mxpeak.layout.stencil import Box

#: Preconditioners that divide by the diagonal.
DIVIDING = ("stencil", "amg", "gs", "sgs", "jacobi")
#: Preconditioners that sweep over the rows of the matrix.
SWEEPING = ("gs", "sgs", "stencil", "amg")
#: Preconditioners whose sweeps include the halo rows if there are several ranks.
OVERLAPPING = ("sgs", "amg")
#: Preconditioners whose application takes longer than storing its result.
STORED = ("lu", "amg")


@dataclass(frozen=True, slots=True)
class Choice:
    """A preconditioner by name, and the reason for it; `box` and `stencil` describe the matrix of the benchmarks.

    automatic   `auto` selected this preconditioner and may replace it
    rows        the permutation of the rows that gives a full diagonal, or None for the original rows of A
    entries     an estimate of the number of entries of the factors, or None for the estimate for a narrow graph
    """

    name: str
    reason: str
    user: Callable[[Any], Any] | None = None
    box: Box | None = None
    stencil: tuple[float, ...] = ()
    rows: Array | None = None
    entries: float | None = None
    automatic: bool = False


def default_sweep(group: RankGroup) -> str:
    """Return the sweep of `auto`: several ranks use the natural order, because a backward sweep then saves steps."""
    return "gs" if group.is_serial else "sgs"
