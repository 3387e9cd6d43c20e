"""What checks of iterative solves find: matrices whose bits have changed, and residuals that do not belong to x.

The matrices, of all levels, and b are added up, bit by bit, once they are made, and again at the end of every solve: a
flipped bit changes the sum of its array, whatever it did to the solve.
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

#: How many faults are told of a run.
MOST_TOLD = 8


@dataclass(frozen=True, slots=True)
class SolveFault:
    """Numbers that no step had changed, or that a step had made wrong.

    solve        what was solved, and for which time
    step         the steps of that solve that were done when it was found
    part         residual, directions, or matrix
    array        of a matrix: its level and which of its arrays, or b
    rank         the rank whose array it was, or whose rows differ most; None where that is not known
    difference   what was found, and the `limit` of what rounding may do
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
        """For the result; a difference that is not a number is none."""
        found = asdict(self)
        return {name: None if value != value or value in (INF, -INF) else value for name, value in found.items()}


INF = float("inf")


class SolveChecks:
    """The checks of all solves of a run; faults are known on rank 0."""

    def __init__(self, spans: Spans):
        self.spans = spans
        self.checks, self.found, self.seconds = 0, 0, 0.0
        self.faults: list[SolveFault] = []
        self._label, self._number = "", 1
        self._known: list[tuple[str, Any, int]] = []

    def begin(self, label: str) -> None:
        """Solves that are called so begin."""
        self._label, self._number = label, 1

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Time a check."""
        begin = perf_counter()
        with self.spans("abft"):
            yield
        self.seconds += perf_counter() - begin

    def know(self, made: StencilProblem) -> None:
        """Add up the bits of these matrices and of b: from now on they may not change."""
        seen = dict[int, tuple[str, Any]]()
        for k, hierarchy in enumerate(made.hierarchies):
            levels = made.levels(k)
            stored = [(f"level {depth}", level.A.A) for depth, level in enumerate(levels)]
            stored.append(("the finest level in fp64", hierarchy.outer.A))
            for name, array in (pair for known, one in stored for pair in arrays_of(one, known)):
                seen.setdefault(id(array), (name, array))
        seen[id(made.b)] = ("b", made.b)
        self._known = [(name, array, bits_of(array)) for name, array in seen.values()]

    def forget(self) -> None:
        """Let go of the matrices: others are about to be made, and both may not fit into memory."""
        self._known = []

    def end(self, comm: Communicator, step: int) -> None:
        """A solve has ended: are the matrices what they were?  Collective over comm."""
        with self.timed():
            self.checks += 1
            changed = []
            for k, (name, array, before) in enumerate(self._known):
                if (now := bits_of(array)) != before:
                    changed.append(name)
                    self._known[k] = name, array, now  # once is enough
            for rank, names in enumerate(comm.gather_objects(changed) or []):
                for name in names:
                    self._note(SolveFault(self.solve, step, "matrix", name, rank))
            self._number += 1

    def judge(
        self, comm: Communicator, step: int, part: str, difference: float, limit: float, mine: float | None = None
    ) -> bool:
        """Whether a difference, the same on all ranks, is one of rounding; if not, note it.  Collective over comm.

        mine: this rank's share of it, where ranks have one
        """
        if difference <= limit < INF:
            return True
        shares = comm.gather_objects(mine)
        if shares is not None:
            rank = None if mine is None else max(range(len(shares)), key=lambda k: _badness(shares[k]))
            self._note(SolveFault(self.solve, step, part, None, rank, difference, limit))
        return False

    @property
    def solve(self) -> str:
        """What is being solved."""
        return f"{self._label}, solve {self._number}"

    def _note(self, fault: SolveFault) -> None:
        self.found += 1
        if len(self.faults) < MOST_TOLD:
            self.faults.append(fault)


def arrays_of(stored: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every array of a stored matrix, however its backend keeps them, with its name."""
    if is_dataclass(stored):
        for one in fields(stored):
            yield from arrays_of(getattr(stored, one.name), f"{name}, {one.name}")
    elif isinstance(stored, tuple | list | dict):
        for part in stored.values() if isinstance(stored, dict) else stored:
            yield from arrays_of(part, name)
    elif getattr(stored, "shape", ()):
        yield name, stored


def bits_of(array: Any) -> int:
    """The sum of an array's bits, as numbers of 64 bits, and of those bytes at its end that are fewer."""
    numbers = 8 // array.itemsize
    flat = array.reshape(-1)
    whole = len(flat) - len(flat) % numbers
    tail: list[int] = flat[whole:].view("uint8").tolist()
    return int(flat[:whole].view("int64").sum()) + sum(tail)


def _badness(share: float) -> float:
    return INF if share != share else share
