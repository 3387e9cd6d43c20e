"""A solver for one dense matrix after another: factors of an earlier matrix precondition the refinement."""

from __future__ import annotations

from typing import Any

from mxpeak.errors import UsageError
from mxpeak.kernels.contract import DenseKernels
from mxpeak.library.dense.distributed import DistributedMatrix
from mxpeak.library.dense.factors import LUFactors
from mxpeak.library.dense.info import SolveInfo
from mxpeak.library.dense.inputs import form_of, matrix
from mxpeak.library.dense.solving import factor_by_structure, kernels_for
from mxpeak.library.dense.symmetric import Structure, structure_of
from mxpeak.library.inputs import Input
from mxpeak.library.policy import check_precision, max_lagged_steps
from mxpeak.library.types import working_type

#: Steps of refinement that new factors in fp32 need.
STEPS_OF_NEW = 2


class DenseSolver:
    """Factors of the current matrix, or of an earlier one."""

    OPTIONS = ("assume_a", "lower", "precision")

    def __init__(
        self, A: Any, *, assume_a: str = "gen", lower: bool = False, precision: str = "auto", device: str = "auto"
    ):
        check_precision(precision)
        self._structure: Structure | str = structure_of(assume_a, lower=lower)
        self._precision, self._device = precision, device
        self._factors: LUFactors | None = None  # of the current matrix, or of an earlier one
        self._lagged: LUFactors | None = None  # factors of an earlier matrix, with the residuals of the current one
        self._steps = 0  # of all solves since the last update
        self._A, self._kernels = self._read(A)

    def _read(self, A: Any) -> tuple[Input, DenseKernels]:
        """Return the validated matrix, and the kernels that factor it."""
        if isinstance(A, DistributedMatrix):
            raise UsageError("A is a DistributedMatrix, which Solver does not support; use mxpeak.lu_factor(A)")
        of_A = matrix(A)
        return of_A, kernels_for(self._device, of_A)

    @property
    def state(self) -> str:
        """Return a text with the state of the factors."""
        if self._factors is None:
            return "not factored"
        return f"factors in {self._factors.precision}" + " of an earlier matrix" * (self._lagged is not None)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the matrix."""
        return self._A.shape

    def update(self, A: Any) -> None:
        """Replace the matrix. The next solve decides whether the factors are computed again."""
        before, (new, kernels) = self._A, self._read(A)
        same = kernels.device == self._kernels.device and new.shape == before.shape
        if not same or working_type(new.dtype) != working_type(before.dtype):
            raise UsageError(
                f"the new A has shape {new.shape} and dtype {new.dtype} on {new.device}, but the earlier one has shape "
                f"{before.shape} and dtype {before.dtype} on {before.device}; use a new Solver"
            )
        lagged = self._factors.lagged(new) if self._factors is not None and new.shape[0] else None
        if lagged is None:
            self.close()
        self._A, self._kernels, self._lagged, self._steps = new, kernels, lagged, 0

    def solve(self, b: Any, transposed: bool | str) -> tuple[Any, SolveInfo]:
        """Solve with factors of an earlier matrix if this takes less time than new factors, otherwise with new ones."""
        form, most = form_of(transposed), max_lagged_steps(self._A.shape[0])
        close = self._lagged and self._lagged.expected_steps <= most // 2 + STEPS_OF_NEW
        if self._lagged and close and (found := self._lagged.solve_if_close(b, form)):
            self._steps += max(1, found[1].iterations) * found[1].rhs
            if self._steps > most + STEPS_OF_NEW:  # all solves since the last update took as long as new factors
                self.close()
            return found
        if self._lagged or self._factors is None:
            self.close()  # frees the memory of the old factors first
            self._factors = factor_by_structure(self._kernels, self._A, self._precision, self._structure)
        return self._factors.solve_quietly(b, form)

    def close(self) -> None:
        """Free the factors; the next solve computes them again."""
        self._factors = self._lagged = None
