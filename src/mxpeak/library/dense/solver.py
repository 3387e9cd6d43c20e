"""A solver for one dense matrix after another: factors of an earlier matrix precondition the refinement."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from mxpeak.errors import UsageError
from mxpeak.kernels.contract import DenseKernels
from mxpeak.library.dense.distributed import DistributedMatrix
from mxpeak.library.dense.factors import LUFactors
from mxpeak.library.dense.gradients import DenseSystem, solve_differentiably
from mxpeak.library.dense.info import SolveInfo
from mxpeak.library.dense.inputs import form_of, matrix
from mxpeak.library.dense.solving import factor_by_structure, kernels_for, solve
from mxpeak.library.dense.symmetric import SymmetricKind, structure_of
from mxpeak.library.frameworks import is_traced
from mxpeak.library.gradients import ADJOINT, is_differentiated
from mxpeak.library.inputs import Input, as_array, conjugate, is_tensor
from mxpeak.library.outcomes import warned
from mxpeak.library.policy import check_precision, max_lagged_steps
from mxpeak.library.types import working_type

#: Steps of refinement that new factors in fp32 need.
STEPS_OF_NEW = 2


class DenseSolver:
    """Factors of the current matrix, or of an earlier one.

    torch and JAX may request gradients after an update. The solver then returns to the matrix of the solve, and uses
    its factors as a preconditioner.
    """

    OPTIONS = ("assume_a", "lower", "precision")

    def __init__(
        self, A: Any, *, assume_a: str = "gen", lower: bool = False, precision: str = "auto", device: str = "auto"
    ):
        check_precision(precision)
        self._structure: SymmetricKind | str = structure_of(assume_a, lower=lower)
        self._precision, self._device = precision, device
        self._source: Any = None  # the matrix in the graph of torch or JAX, if it is differentiated
        #: Solves a stack of systems, of which the solver keeps no factors.
        self.solve_stack = partial(solve, precision=precision, device=device, assume_a=assume_a, lower=lower)
        self._factors: LUFactors | None = None  # of the current matrix, or of an earlier one
        self._lagged: LUFactors | None = None  # factors of an earlier matrix, with the residuals of the current one
        self._steps = 0  # the steps of all solves since the last update
        self._A: Input | None = None  # the matrix of the factors, or of the residuals if they are lagged
        self._user: Any = None  # the matrix of the user: an `Input`, or a placeholder of JAX
        self._kernels: DenseKernels | None = None
        self.update(A)

    @property
    def state(self) -> str:
        """Return a text with the state of the factors."""
        if self._factors is None:
            return "not factored"
        return f"factors in {self._factors.precision}" + " of an earlier matrix" * (self._lagged is not None)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the matrix."""
        return tuple(self._user.shape)

    def update(self, A: Any) -> None:
        """Replace the matrix. The next solve decides whether the factors are computed again."""
        if isinstance(A, DistributedMatrix):
            raise UsageError("the new A is a DistributedMatrix, but the earlier one is not; use a new Solver")
        if is_traced(A):  # JAX has no numbers yet
            matrix(np.broadcast_to(0.0, A.shape))
            user = A
        else:
            user = matrix(A.detach() if is_tensor(A) else A)
            self._use(user)
        self._user, self._source = user, A if is_differentiated(A) else None

    def _use(self, new: Input) -> None:
        """Use this matrix for the next solves."""
        kernels, before = kernels_for(self._device, new, structure=self._structure), self._A
        if before is not None and self._kernels is not None:
            same = kernels.device == self._kernels.device and new.shape == before.shape
            if not same or working_type(new.dtype) != working_type(before.dtype):
                raise UsageError(
                    f"the new A has shape {new.shape} and dtype {new.dtype} on {new.device}, but the earlier one has "
                    f"shape {before.shape} and dtype {before.dtype} on {before.device}; use a new Solver"
                )
        lagged = self._factors.lagged(new) if self._factors is not None and new.shape[0] else None
        if lagged is None:
            self.close()
        self._A, self._kernels, self._lagged, self._steps = new, kernels, lagged, 0

    def solve(self, b: Any, transposed: bool | str) -> tuple[Any, SolveInfo]:
        """Solve with the current matrix of the user."""
        return self.solve_with(self._user, b, form_of(transposed))

    def solve_with(self, A: Input, b: Any, form: str) -> tuple[Any, SolveInfo]:
        """Solve with the current matrix, or with another one, for example that of an earlier solve."""
        if A is not self._user and _equal(self._user, A):
            A = self._user
        if self._A is not A and not _equal(self._A, A):
            self._use(A)
        return self._solve(b, form)

    def _solve(self, b: Any, form: str) -> tuple[Any, SolveInfo]:
        """Solve with factors of an earlier matrix if this takes less time than new factors, otherwise with new ones."""
        assert self._A is not None
        assert self._kernels is not None
        limit = max_lagged_steps(self._A.shape[0])
        close = self._lagged and self._lagged.expected_steps <= limit // 2 + STEPS_OF_NEW
        if self._lagged and close and (result := self._lagged.solve_if_close(b, form)):
            self._steps += max(1, result[1].iterations) * result[1].rhs
            if self._steps > limit + STEPS_OF_NEW:  # all solves since the last update took as long as new factors
                self.close()
            return result
        if self._lagged or self._factors is None:
            self.close()  # frees the memory of the old factors first
            self._factors = factor_by_structure(self._kernels, self._A, self._precision, self._structure)
        return self._factors.solve_quietly(b, form)

    def differentiates(self, b: Any) -> bool:
        """Return whether torch or JAX differentiates a solve with the current matrix and b."""
        return self._source is not None or is_differentiated(b)

    def solve_differentiably(
        self, b: Any, transposed: bool | str, lock: AbstractContextManager[Any]
    ) -> tuple[Any, SolveInfo]:
        """Solve as a differentiable operation; each solve, also for gradients, takes the lock."""
        form = form_of(transposed)
        A = self._user.result(self._user.array) if self._source is None else self._source
        system = SolverSystem(self, self._user.dtype, form, lock)
        return solve_differentiably(A, b, form, system, self._structure)

    def close(self) -> None:
        """Free the factors; the next solve computes them again."""
        self._factors = self._lagged = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for pickling, without the graph of a gradient."""
        return self.__dict__ | {"_source": None}


class SolverSystem(DenseSystem):
    """A system with the matrix that a solver had at the time of the solve.

    The numbers are those of A, A^T or A^H, as `outer` specifies, and the solver keeps the factors of A.
    """

    def __init__(self, solver: DenseSolver, dtype: Any, outer: str, lock: AbstractContextManager[Any]):
        super().__init__(solver.solve_stack, None)
        self._solver, self._dtype, self._outer, self._lock = solver, np.dtype(dtype), outer, lock

    def solve(self, numbers: Any, b: Any, form: str) -> Any:
        """Return x, with factors of the matrix or of a later one."""
        conj, inner = False, form
        if self._outer == "T":
            conj, inner = form == "H", "T" if form == "N" else "N"
        elif self._outer == "H":
            inner = ADJOINT[form]
        with self._lock:
            x, info = self._solver.solve_with(self._matrix(numbers), conjugate(b) if conj else b, inner)
        if self.info is None and form == "N":
            self.info = info
        else:
            warned(x, info)
        x = conjugate(x) if conj else x
        return x if x.dtype == b.dtype else x.to(b.dtype) if is_tensor(x) else x.astype(b.dtype)

    def solve_batch(self, numbers: Any, b: Any, form: str) -> Any:
        """Return x for all matrices. The solver keeps factors if there is only one."""
        if numbers.size != numbers.shape[-1] ** 2:
            return super().solve_batch(numbers, b, form)
        rows = np.moveaxis(b, -2, 0)
        X = self.solve(numbers.reshape(numbers.shape[-2:]), rows.reshape(len(rows), -1), form)
        return np.moveaxis(X.reshape(rows.shape), 0, -2)

    def _matrix(self, numbers: Any) -> Input:
        """Return A in the type of the solver's matrix, which torch and JAX may have widened to that of b."""
        A = numbers if self._outer == "N" else numbers.swapaxes(-1, -2)
        A = A.conj() if self._outer == "H" else A
        A = A if self._dtype.kind == "c" else A.real
        name = working_type(self._dtype).name
        if str(A.dtype).removeprefix("torch.") != name:
            A = A.to(getattr(sys.modules["torch"], name)) if is_tensor(A) else A.astype(name)
        return matrix(A)


def _equal(A: Any, B: Any) -> bool:
    """Return whether two matrices have the same entries."""
    if not (isinstance(A, Input) and isinstance(B, Input) and A.shape == B.shape and A.device == B.device):
        return False
    if A.is_tensor and B.is_tensor:
        return A.dtype == B.dtype and bool((A.array == B.array).all())
    return np.array_equal(as_array(A.array), as_array(B.array))
