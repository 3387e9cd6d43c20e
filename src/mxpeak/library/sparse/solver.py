"""A solver for a sparse matrix that changes: later matrices can use the preconditioner of an earlier one."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from scipy import sparse

from mxpeak.distributed.csr import Csr
from mxpeak.distributed.rank_group import SERIAL
from mxpeak.errors import Outcome, UsageError
from mxpeak.library.frameworks import is_traced
from mxpeak.library.gradients import is_differentiated
from mxpeak.library.inputs import device_for, device_of, is_tensor, requires_gradient
from mxpeak.library.sparse import inputs
from mxpeak.library.sparse.gradients import gmres_differentiably
from mxpeak.library.sparse.info import GmresInfo
from mxpeak.library.sparse.results import solved
from mxpeak.library.sparse.solving import driver_for, gmres, kernels_for, preconditioner_of
from mxpeak.runtime.calls import TURN
from mxpeak.solvers.gmres_driver import GmresDriver, GmresOptions

#: The next update discards the preconditioner if a solve takes more than GROWTH times the iterations of the first solve
#: with this preconditioner, and at least MIN_GROWTH iterations more.
GROWTH, MIN_GROWTH = 2.0, 5


class SparseSolver:
    """GMRES with a preconditioner of the current matrix, or of an earlier one."""

    OPTIONS = (
        "rtol",
        "atol",
        "restart",
        "maxiter",
        "M",
        "callback",
        "precision",
        "preconditioner",
        "storage",
        "smoother",
        "threads",
    )

    def __init__(self, A: Any, *, device: str = "auto", M: Any = None, preconditioner: Any = "auto", **options: Any):
        self._options = inputs.checked_options(
            GmresOptions(preconditioner=preconditioner_of(M, preconditioner), **options)
        )
        named = preconditioner if isinstance(preconditioner, str) else "auto"
        self._again = partial(gmres, preconditioner=named, device=device, **options | {"callback": None})
        self._device = device
        self._source: Any = None  # the matrix in torch's graph, if it is differentiated
        self._updates = 0
        self._driver: GmresDriver | None = None  # for the current matrix, maybe with an earlier preconditioner
        self._first = 0  # iterations of the first solve with this preconditioner
        self._lagged = self._refresh = False
        self._A, self._device_of_A = self._read(A)
        self._keep_source(A)

    def _read(self, A: Any) -> tuple[Csr, Any]:
        """Return the validated matrix and its device."""
        if is_traced(getattr(A, "data", None)):
            raise UsageError(
                "A is a sparse matrix of JAX without numbers, as in jax.jit or jax.grad, but Solver needs numbers; use "
                "mxpeak.gmres(A, b), or create the Solver outside the transformation"
            )
        return inputs.matrix(A.detach() if is_tensor(A) else A), device_for(self._device, device_of(A) or "cpu")

    def _keep_source(self, A: Any) -> None:
        """Keep a matrix that torch differentiates, and the entries of other matrices, for gradients."""
        self._source, self._updates = A if requires_gradient(A) else None, self._updates + 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the matrix."""
        return tuple(self._A.shape)

    @property
    def state(self) -> str:
        """Return a text with the state of the preconditioner."""
        if self._driver is None:
            return "no preconditioner"
        return f"preconditioner {self._driver.plan.choice.name}" + " of an earlier matrix" * self._uses_earlier

    @property
    def _uses_earlier(self) -> bool:
        """Return whether the preconditioner depends on an earlier matrix; sweeps use only the current A."""
        plan = None if self._driver is None else self._driver.plan
        return self._lagged and plan is not None and bool(plan.factors or plan.levels or plan.choice.user)

    def update(self, A: Any) -> None:
        """Replace the matrix. The preconditioner is kept unless the last solve needed too many iterations."""
        before, (new, device) = self._A, self._read(A)
        if new.shape != before.shape or new.dtype != before.dtype:
            raise UsageError(
                f"the new A has shape {new.shape} and dtype {new.dtype}, but the earlier one has shape {before.shape} "
                f"and dtype {before.dtype}; use a new Solver"
            )
        self._A, self._device_of_A = new, device
        self._keep_source(A)
        if self._driver is None or self._refresh:
            self.close()
            return
        with TURN, self._kernels.computing():
            self._lagged = self._driver.update(self._A)
        if not self._lagged:
            self.close()

    def solve(self, b: Any, transposed: bool | str) -> tuple[Any, GmresInfo]:
        """Solve with the kept preconditioner, or with a new one if GMRES does not converge."""
        if transposed not in (False, "N"):
            raise UsageError(f"transposed={transposed!r} needs a dense matrix; use a Solver for A.T")
        result = self._solve(b)
        if self._lagged and result[1].outcome is not Outcome.SOLVED:
            self.close()
            result = self._solve(b)
        iterations = result[1].iterations
        self._first = self._first or max(iterations, 1)
        self._refresh = self._lagged and iterations > max(GROWTH * self._first, self._first + MIN_GROWTH)
        return result

    def _solve(self, b: Any) -> tuple[Any, GmresInfo]:
        n = self._A.shape[0]
        right_side = inputs.vectors(b, "b", n)
        if self._driver is None:
            self._kernels = kernels_for(self._device_of_A, self._A, self._options)
        with TURN, self._kernels.computing():
            B = inputs.on_kernels(right_side, self._kernels)
            X0 = inputs.start(None, right_side, self._kernels)
            x, info = solved(self._kernels, self._set_up, right_side, (B, X0), self._options, SERIAL, self._A.nnz)
        return x, replace(info, lagged=self._uses_earlier)

    def _set_up(self) -> GmresDriver:
        """Return the GMRES solver of the current matrix, and create it on first use."""
        if self._driver is None:
            self._driver = driver_for(self._kernels, self._A, self._options, SERIAL)()
            self._first, self._lagged = 0, False
        return self._driver

    def differentiates(self, b: Any) -> bool:
        """Return whether torch or JAX differentiates a solve with the current matrix and b."""
        return self._source is not None or is_differentiated(b)

    def solve_differentiably(
        self, b: Any, transposed: bool | str, lock: AbstractContextManager[Any]
    ) -> tuple[Any, GmresInfo]:
        """Solve as a differentiable operation. The solver is used under the lock; `gmres` computes the gradients."""
        updates = self._updates

        def first(b: Any) -> tuple[Any, GmresInfo] | None:
            with lock:
                return self.solve(b, transposed) if self._updates == updates else None

        A = sparse.csr_array((self._A.data, self._A.indices, self._A.indptr), shape=self._A.shape)
        return gmres_differentiably(A if self._source is None else self._source, b, self._again, {}, first)

    def close(self) -> None:
        """Free the preconditioner; the next solve computes it again."""
        self._driver, self._first = None, 0
        self._lagged = self._refresh = False

    def __getstate__(self) -> dict[str, Any]:
        """Return the matrix and the options for pickling, without the preconditioner."""
        return self.__dict__ | {
            "_driver": None,
            "_source": None,
            "_kernels": None,
            "_first": 0,
            "_lagged": False,
            "_refresh": False,
        }
