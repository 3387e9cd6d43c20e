"""The results of checks of iterative solves: changed bits of matrices, and residuals that contradict x.

The bits of the matrices of all levels and of b are summed after their generation, and again at the end of every solve.
A flipped bit changes the sum of its array, even if it has no effect on the solve.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, is_dataclass
from time import perf_counter
from typing import Any

from mxpeak.comm.base import Communicator
from mxpeak.distributed.stencil import StencilProblem
from mxpeak.spans import Spans

#: Largest number of faults in the result of a run.
MAX_LISTED = 8


@dataclass(frozen=True, slots=True)
class SolveFault:
    """A change of stored numbers, or a wrong result of a step.

    solve        the name and number of the solve
    step         the number of steps of that solve before the detection
    part         residual, directions, or matrix
    array        for part `matrix`, the level and name of the changed array, or b; otherwise None
    rank         the rank that owns the array, or whose rows differ most; None if unknown
    difference   the difference, and `limit`, the largest effect of rounding
    """

    solve: str
    step: int
    part: str
    array: str | None = None
    rank: int | None = None
    difference: float | None = None
    limit: float | None = None
    corrected: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return the fault as a dictionary for the JSON result, with None for numbers that are not finite."""
        facts = asdict(self)
        return {name: None if value != value or value in (INF, -INF) else value for name, value in facts.items()}


INF = float("inf")


class SolveChecks:
    """Checks all solves of a run; rank 0 records all faults."""

    def __init__(self, spans: Spans):
        self.spans = spans
        self.checks, self.detected, self.seconds = 0, 0, 0.0
        self.faults: list[SolveFault] = []
        self._label, self._number = "", 1
        self._bit_sums: list[tuple[str, Any, int]] = []

    def begin(self, label: str) -> None:
        """Set the name under which the following solves are recorded."""
        self._label, self._number = label, 1

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Add the time of the enclosed check to the time of all checks."""
        begin = perf_counter()
        with self.spans("abft"):
            yield
        self.seconds += perf_counter() - begin

    def record_matrices(self, problem: StencilProblem) -> None:
        """Record the sums of the bits of the matrices and of b, which must not change afterwards."""
        seen = dict[int, tuple[str, Any]]()
        for k, hierarchy in enumerate(problem.hierarchies):
            levels = problem.levels(k)
            stored = [(f"level {depth}", level.A.A) for depth, level in enumerate(levels)]
            stored.append(("the finest level in fp64", hierarchy.outer.A))
            for name, array in (pair for prefix, matrix in stored for pair in arrays_of(matrix, prefix)):
                seen.setdefault(id(array), (name, array))
        seen[id(problem.b)] = ("b", problem.b)
        self._bit_sums = [(name, array, bits_of(array)) for name, array in seen.values()]

    def release_matrices(self) -> None:
        """Release the matrices before other matrices are generated, because both may not fit in memory."""
        self._bit_sums = []

    def end(self, comm: Communicator, step: int) -> None:
        """Check that the matrices are unchanged at the end of a solve. Collective over comm."""
        with self.timed():
            self.checks += 1
            changed = []
            for k, (name, array, before) in enumerate(self._bit_sums):
                if (now := bits_of(array)) != before:
                    changed.append(name)
                    self._bit_sums[k] = name, array, now  # report the change once
            for rank, names in enumerate(comm.gather_objects(changed) or []):
                for name in names:
                    self._note(SolveFault(self.solve, step, "matrix", name, rank))
            self._number += 1

    def judge(
        self, comm: Communicator, step: int, part: str, difference: float, limit: float, share: float | None = None
    ) -> bool:
        """Return whether a difference, equal on all ranks, is within its limit; otherwise, record a fault. Collective.

        share   this rank's part of the difference, which determines the rank that differs most; None if unknown
        """
        if difference <= limit < INF:
            return True
        shares = comm.gather_objects(share)
        if shares is not None:
            rank = None if share is None else max(range(len(shares)), key=lambda k: _sortable(shares[k]))
            self._note(SolveFault(self.solve, step, part, None, rank, difference, limit))
        return False

    @property
    def solve(self) -> str:
        """Return the name and number of the current solve."""
        return f"{self._label}, solve {self._number}"

    def _note(self, fault: SolveFault) -> None:
        self.detected += 1
        if len(self.faults) < MAX_LISTED:
            self.faults.append(fault)


def arrays_of(stored: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield each array of a stored matrix once, with its name; the matrix may have the format of any backend."""
    seen = set[int]()
    for part, array in _arrays(stored, name):
        if id(array) not in seen:
            seen.add(id(array))
            yield part, array


def _arrays(stored: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the arrays in the fields, elements or dictionary values of a stored matrix, each with its name."""
    parts = [field.name for field in fields(stored)] if is_dataclass(stored) else getattr(stored, "_fields", None)
    if parts is not None:
        for part in parts:
            yield from _arrays(getattr(stored, part), f"{name}, {part}")
    elif isinstance(stored, tuple | list | dict):
        for element in stored.values() if isinstance(stored, dict) else stored:
            yield from _arrays(element, name)
    elif getattr(stored, "shape", ()):
        yield name, stored


def bits_of(array: Any) -> int:
    """Return the sum of an array's 64-bit words and of the remaining bytes at its end."""
    numbers = 8 // array.itemsize
    flat = array.reshape(-1)
    whole = len(flat) - len(flat) % numbers
    tail: list[int] = flat[whole:].view("uint8").tolist()
    return int(flat[:whole].view("int64").sum()) + sum(tail)


def _sortable(share: float) -> float:
    return INF if share != share else share
