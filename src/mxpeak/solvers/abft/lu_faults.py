"""The results of checks of an LU: rows with wrong sums, and whether they were corrected."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mxpeak.kernels.contract import Vector


@dataclass(frozen=True, slots=True)
class Fault:
    """Rows with wrong sums on one process row.

    step       the number of completed steps when a check detected the fault, which occurred after the previous check
    process    the position (p, q) of the rank in the grid; q is None if it is unknown
    rows, row  the number of wrong rows, and the global index of the first one
    column     the global column of the wrong entry; None if it is unknown
    part       `matrix`, or `checksum` if only the sum is wrong
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
class FaultSummary:
    """The result of the checks of one factorization.

    detected, corrected    the number of faults, and the number of corrected faults
    faults                 the first faults of each rank, uncorrected faults first
    seconds, after_s       the time of the checks within the factorization, and of the check after it
    """

    checks: int
    detected: int
    corrected: int
    faults: list[Fault]
    seconds: float
    after_s: float

    @property
    def passed(self) -> bool:
        """Return whether all faults were corrected."""
        return self.corrected == self.detected


@dataclass(frozen=True, slots=True)
class Differing:
    """The expected and actual row sums of a rank, their rounding limits, and the local rows above these limits.

    rows    rows with wrong entries
    sums    rows in which only a sum is wrong
    """

    expected: list[Vector]
    actual: list[Vector]
    limit: Vector
    rows: list[int]
    sums: list[int]
