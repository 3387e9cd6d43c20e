"""The results of checks of an LU: rows with wrong sums, and whether they were corrected."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mxpeak.kernels.contract import Vector


@dataclass(frozen=True, slots=True)
class Fault:
    """Rows with wrong sums on one process row.

    step       the number of steps before the check that detected the fault, which occurred after the previous check
    process    position of the rank in the grid, if known: p, and q or None
    rows, row  the number of rows, and the first of these rows
    column     the column according to the two differences, or None
    part       `matrix`, or `checksum` if only the sum is wrong and not the matrix
    """

    step: int
    process: tuple[int, int | None]
    rows: int
    row: int
    column: int | None
    part: str
    corrected: bool

    def as_json(self) -> dict[str, Any]:
        """Return the fault as a dictionary for the JSON result."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of the checks of one factorization.

    found, corrected    the number of faults, and the number of corrected faults
    faults              the first faults of each rank, uncorrected faults first
    seconds, after_s    the time of the checks within the factorization, and of the check after it
    """

    checks: int
    found: int
    corrected: int
    faults: list[Fault]
    seconds: float
    after_s: float

    @property
    def passed(self) -> bool:
        """Return whether all faults were corrected."""
        return self.corrected == self.found


@dataclass(frozen=True, slots=True)
class Differing:
    """The sums over a rank's rows, the limits for the effect of rounding, and the local rows above their limits.

    rows    rows with wrong entries
    sums    rows in which only a sum is wrong
    """

    want: list[Vector]
    found: list[Vector]
    limit: Vector
    rows: list[int]
    sums: list[int]
