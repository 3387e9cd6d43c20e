"""What checks of an LU find: rows whose sums are wrong, and whether they could be mended."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mxpeak.kernels.contract import Vector


@dataclass(frozen=True, slots=True)
class Fault:
    """Rows whose sums were wrong, on one process row.

    step      the steps that were done when it was found; it happened since the check before
    process   of the grid, as far as known: p, and q or None
    rows      how many, and `row`, the first of them
    column    what the two differences say, or None
    part      `matrix`, or `checksum`: only the sum was hit, and nothing is wrong with the matrix
    """

    step: int
    process: tuple[int, int | None]
    rows: int
    row: int
    column: int | None
    part: str
    corrected: bool

    def as_json(self) -> dict[str, Any]:
        """For the result."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Checked:
    """What the checks of one factorization found.

    found, corrected    how many faults, and how many of them were mended
    faults              some of them: of each rank the first few, and those first that could not be mended
    seconds, after_s    what checks took of the factorization; and of the time after the clock
    """

    checks: int
    found: int
    corrected: int
    faults: list[Fault]
    seconds: float
    after_s: float

    @property
    def passed(self) -> bool:
        """Whether nothing is left wrong."""
        return self.corrected == self.found


@dataclass(frozen=True, slots=True)
class Differing:
    """Sums over a rank's rows, what they may differ by, and the local rows where they differ by more.

    rows    those whose entries are wrong
    sums    those of which only a sum was hit
    """

    want: list[Vector]
    found: list[Vector]
    limit: Vector
    rows: list[int]
    sums: list[int]
