"""A solver for one distributed matrix after another, which keeps the factors of the current matrix."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from mxpeak.comm.collectives import validate_on_all
from mxpeak.errors import UsageError
from mxpeak.library.dense.distributed import DistributedMatrix
from mxpeak.library.dense.distributed_cholesky import factored_by_structure
from mxpeak.library.dense.distributed_solving import DistributedFactors
from mxpeak.library.dense.info import SolveInfo
from mxpeak.library.dense.symmetric import structure_of


class DistributedSolver:
    """Factors of the current matrix over ranks. They are computed at the first solve after each update."""

    OPTIONS = ("assume_a", "lower", "precision")

    def __init__(
        self, A: Any, *, assume_a: str = "gen", lower: bool = False, precision: str = "auto", device: str = "auto"
    ):
        self._structure = validate_on_all(A.comm, partial(structure_of, assume_a, lower=lower))
        self._precision, self._device = precision, device
        self._A: DistributedMatrix = A
        self._factors: DistributedFactors | None = None

    @property
    def state(self) -> str:
        """Return a text with the state of the factors."""
        return "not factored" if self._factors is None else f"factors in {self._factors.precision}"

    @property
    def shape(self) -> tuple[int, int]:
        """Return the shape of the matrix."""
        return self._A.shape

    def update(self, A: Any) -> None:
        """Replace the matrix; the next solve factors it. Collective."""
        before = self._A

        def check() -> None:
            if not isinstance(A, DistributedMatrix):
                raise UsageError("the earlier A is a DistributedMatrix, but the new one is not; use a new Solver")
            if (A.shape, A.dtype, A.comm) != (before.shape, before.dtype, before.comm):
                raise UsageError(
                    f"the new A is {A} of {A.dtype}, but the earlier one is {before} of {before.dtype}, or their "
                    "communicators differ; use a new Solver"
                )

        validate_on_all(before.comm, check)
        self.close()
        self._A = A

    def solve(self, b: Any, transposed: bool | str) -> tuple[Any, SolveInfo]:
        """Solve with the current matrix. Collective."""
        if self._factors is None:
            self._factors = factored_by_structure(self._A, self._structure, self._precision, self._device, b)
        return self._factors.solve_quietly(b, transposed=transposed)

    def differentiates(self, b: Any) -> bool:
        """Return False, because distributed systems have no gradients."""
        return False

    def solve_differentiably(
        self, b: Any, transposed: bool | str, lock: AbstractContextManager[Any]
    ) -> tuple[Any, SolveInfo]:
        """Raise an error; `Solver` never calls this method."""
        raise NotImplementedError

    def close(self) -> None:
        """Free the factors; the next solve computes them again."""
        self._factors = None

    def __getstate__(self) -> dict[str, Any]:
        """Raise an error, because a communicator cannot be pickled."""
        raise UsageError("a Solver for a DistributedMatrix cannot be pickled; create it on the ranks that use it")
