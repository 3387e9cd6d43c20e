"""Differentiable solves of sparse systems for torch and JAX, with respect to b and to the stored entries of A.

db = A^-H dx,  da_ij = -db_i x_j     for the stored entries (i, j)
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from mxpeak.library.gradients import DifferentiableSystem, is_differentiated, operands, solution
from mxpeak.library.inputs import as_array, device_of, is_tensor
from mxpeak.library.outcomes import NotSolvedWarning
from mxpeak.library.sparse.frameworks import is_sparse, on_host, pattern_of_jax

#: Returns x and the diagnostics for b, or None.
Solver = Callable[[Any], tuple[Any, Any] | None]


class SparseSystem(DifferentiableSystem):
    """A sparse system whose `numbers` are the stored entries of A at `rows` and `columns`.

    `gmres` is `mxpeak.gmres` with all arguments except A, b and those in `first`, which are used only for the first
    solve, because they refer to A and not to its transpose. `solver` solves the first system instead if its result is
    not None.
    """

    def __init__(self, gmres: partial[Any], pattern: Any, n: int, first: dict[str, Any], solver: Solver | None):
        self._gmres, self._first, self._n, self._solver = gmres, first, n, solver
        self._rows, self._columns = pattern

    def solve(self, numbers: Any, b: Any, form: str) -> Any:
        """Return x; warn if a solve other than the first does not converge, because its diagnostics are lost."""
        if self._solver and self.info is None and form == "N" and (result := self._solver(b)):
            x, self.info = result
            return x
        values = as_array(numbers) if is_tensor(numbers) else np.asarray(numbers)
        A = sparse.coo_array((values, (self._rows, self._columns)), shape=(self._n, self._n)).tocsr()
        A = A if form == "N" else A.T.conj() if form == "H" else A.T
        options = dict(self._first) if form == "N" else {}
        if self._gmres.keywords["device"] == "auto":
            options["device"] = device_of(b)
        x, info = self._gmres(A, b, **options)
        if self.info is None and form == "N":
            self.info = info
        elif not info.converged:
            warnings.warn(f"a gradient of gmres is inaccurate: {info.outcome}", NotSolvedWarning, stacklevel=2)
        return x

    def solve_batch(self, numbers: Any, b: Any, form: str) -> Any:
        """Return x for each matrix or right-hand side of a batch."""
        lead = np.broadcast_shapes(numbers.shape[:-1], b.shape[: numbers.ndim - 1])
        numbers = np.broadcast_to(numbers, (*lead, numbers.shape[-1]))
        b = np.broadcast_to(b, (*lead, *b.shape[len(lead) :]))
        X = np.empty_like(b)
        for index in np.ndindex(*lead):
            X[index] = self.solve(numbers[index], b[index], form)
        return X

    def gradient(self, y: Any, x: Any) -> Any:
        """Return -y_i x_j for the stored entries, summed over the right-hand sides."""
        products = y[self._rows] * x[self._columns]
        return -(products if products.ndim == 1 else products.sum(-1))


def gmres_differentiably(
    A: Any, b: Any, gmres: partial[Any], first: dict[str, Any], solver: Solver | None = None
) -> tuple[Any, Any]:
    """Solve A x = b as a differentiable operation, and return x and the diagnostics.

    The diagnostics, a `GmresInfo`, are None in `jax.jit` and `jax.vmap`, because JAX computes x later.
    """
    numbers, pattern = _entries(A)
    xp, (numbers, b) = operands(numbers, b)
    wide = "complex128" if "complex" in str(b.dtype) else "float64"
    if is_tensor(b):
        numbers, b = numbers.to(getattr(xp, wide)), b.to(getattr(xp, wide))
    else:
        dtype = sys.modules["jax"].dtypes.canonicalize_dtype(wide)
        numbers, b = numbers.astype(dtype), b.astype(dtype)
    system = SparseSystem(gmres, pattern, A.shape[0], first, solver)
    return solution(numbers, b, system), system.info


def differentiates(A: Any, *others: Any) -> bool:
    """Return whether torch or JAX differentiates a computation with the sparse matrix A and other operands."""
    return is_sparse(A) and is_differentiated(A, getattr(A, "data", None), *others)


def _entries(A: Any) -> tuple[Any, Any]:
    """Return the stored entries of a sparse matrix as a differentiable vector, and their rows and columns."""
    if is_tensor(A):
        A = A.coalesce() if str(A.layout) == "torch.sparse_coo" else A
        pattern = on_host(A.detach()).tocoo()
        return A.values(), (pattern.row.astype(np.int64), pattern.col.astype(np.int64))
    if hasattr(A, "indices") and hasattr(A, "n_batch"):  # JAX
        pattern, inside = pattern_of_jax(A)
        return A.data[inside], pattern
    pattern = on_host(A).tocoo()
    return pattern.data, (pattern.row.astype(np.int64), pattern.col.astype(np.int64))
