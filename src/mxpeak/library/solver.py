"""`Solver`: solve systems with one matrix after another, dense or sparse, and reuse factors and preconditioners."""

from __future__ import annotations

from threading import RLock
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mxpeak.errors import UsageError
from mxpeak.library.dense.distributed import DistributedMatrix
from mxpeak.library.dense.distributed_solver import DistributedSolver
from mxpeak.library.dense.info import SolveInfo
from mxpeak.library.dense.solver import DenseSolver
from mxpeak.library.frameworks import is_sparse
from mxpeak.library.inputs import is_tensor
from mxpeak.library.outcomes import warned

if TYPE_CHECKING:
    from mxpeak.library.sparse.info import GmresInfo
    from mxpeak.library.sparse.solver import SparseSolver


class Solver:
    """Solve A x = b for a matrix A that changes slowly, as in Newton's method and in time steps.

    The factors of a dense matrix, or the preconditioner of a sparse one, are computed at the first solve. After
    `update`, they precondition the solves with the new matrix. They are computed again only if the new matrix is too
    different, or if the additional steps would take longer. Each x is as accurate as the x that `solve` or `gmres`
    returns. Several threads may call a solver; the calls run one after another.

    Parameters
    ----------
    A : array_like, tensor, sparse matrix, sparse tensor or DistributedMatrix
        Square matrix. Do not change A between `update` and the next solve, because the solver refers to A. All ranks of
        a DistributedMatrix must call all methods. After an update, they factor the new matrix.
    device : str, default "auto"
        Use "auto" to solve on the device of a tensor (the CPU for other arrays), or specify a device such as "cpu",
        "cuda" or "cuda:0".
    **options
        For a dense or distributed matrix, the arguments `assume_a`, `lower` and `precision` of `solve`. For a sparse
        matrix, the arguments `rtol`, `atol`, `restart`, `maxiter`, `M`, `callback`, `precision`, `preconditioner`,
        `storage`, `smoother` and `threads` of `gmres`.

    Raises
    ------
    UsageError
        An argument is invalid, for example because A is not square.

    Examples
    --------
    >>> import mxpeak as mx, numpy as np
    >>> A, b = np.eye(3) + 0.1, np.ones(3)
    >>> with mx.Solver(A) as solver:
    ...     x, info = solver.solve(b)
    ...     solver.update(A + 0.01 * np.eye(3))
    ...     x, info = solver.solve(b)
    >>> info.solved
    True
    """

    def __init__(self, A: Any, *, device: str = "auto", **options: Any):
        kind: type[DenseSolver] | type[SparseSolver] | type[DistributedSolver] = DenseSolver
        self._lock, title = RLock(), "dense"
        if isinstance(A, DistributedMatrix):
            kind, title = DistributedSolver, "distributed"
        elif is_sparse(A) or (is_tensor(A) and str(A.layout) != "torch.strided"):
            from mxpeak.library.sparse.solver import SparseSolver  # loads the compiler

            kind, title = SparseSolver, "sparse"
        if unknown := [name for name in options if name not in kind.OPTIONS]:
            raise UsageError(
                f"{unknown[0]} is not an option of a Solver for a {title} matrix; use one of {', '.join(kind.OPTIONS)}"
            )
        self._solver = kind(A, device=device, **options)

    def solve(self, b: Any, *, transposed: bool | str = False) -> tuple[Any, SolveInfo | GmresInfo]:
        """Solve A x = b with the current matrix.

        Parameters
        ----------
        b : array_like or tensor
            Right-hand side of shape (n,), or k right-hand sides as an array of shape (n, k).
        transposed : bool or {"N", "T", "H"}, default False
            Use True or "T" to solve A^T x = b, or "H" to solve A^H x = b. A must be dense.

        Returns
        -------
        x : ndarray or tensor
            Solution, as from `solve` or `gmres`. With torch and JAX, x is differentiable with respect to b and to the
            matrix that the solver has at the time of the call.
        info : SolveInfo or GmresInfo
            Diagnostics of the solve. `info.lagged` is True if factors or the preconditioner of an earlier matrix were
            used. In `jax.jit` and `jax.vmap`, info is None.

        Raises
        ------
        UsageError
            An argument is invalid.
        SingularMatrixError, NotPositiveDefiniteError
            The matrix cannot be factored.

        Warns
        -----
        IllConditionedWarning
            The solution x may have no correct digits, for example because A is singular to working precision.
        NotSolvedWarning
            The solution x is not finite or not accurate.
        """
        if self._solver.differentiates(b):
            x, info = self._solver.solve_differentiably(b, transposed, self._lock)
            return (x, info) if info is None else warned(x, info)
        with self._lock:
            result = self._solver.solve(b, transposed)
        return warned(*result)

    def update(self, A: Any) -> None:
        """Replace the matrix by another one of the same shape and type.

        Parameters
        ----------
        A : array_like, tensor, sparse matrix, sparse tensor or DistributedMatrix
            New matrix. You can change the entries of the previous array in place and pass it again.

        Raises
        ------
        UsageError
            The matrix is invalid, or its shape or type differs.
        """
        with self._lock:
            self._solver.update(A)

    def close(self) -> None:
        """Free the factors or the preconditioner. A later solve computes them again."""
        with self._lock:
            self._solver.close()

    def __enter__(self) -> Solver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return the solver without its lock for pickling."""
        with self._lock:
            return {"_solver": self._solver}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=RLock())

    def __repr__(self) -> str:
        n = self._solver.shape[0]
        return f"Solver({n}x{n}, {self._solver.state})"
