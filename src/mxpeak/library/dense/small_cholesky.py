"""Solve one positive definite system of moderate order with the compiled Cholesky factorization, and check the result.

The check is the same as in `lapack_solver.solve_by_cholesky`, in the same compiled call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from math import inf
from typing import Any, NamedTuple

import numpy as np

from mxpeak.kernels.arrays import probe_vector
from mxpeak.kernels.contract.dense import Triangle
from mxpeak.library.dense.lapack_solver import CholeskySolution, Routines, routines
from mxpeak.library.policy import small_cholesky_is_faster
from mxpeak.library.types import Array
from mxpeak.runtime.calls import compile_once
from mxpeak.solvers.accuracy import SAMPLED, plain_lu
from mxpeak.solvers.scaling import balanced


def suits_small_cholesky(A: Array, B: Array) -> bool:
    """Return whether the small Cholesky factorization can solve A X = B faster than LAPACK."""
    n = len(A)
    k = B.size // n
    return k <= SAMPLED and small_cholesky_is_faster(n) and A.flags.aligned and B.flags.aligned


@cache
def kernel_for(dtype: np.dtype[Any]) -> Callable[..., Any]:
    """Return the compiled solver for a type. On first use, compile it or load it from the disk cache."""
    from mxpeak.kernels.host.dense.small_cholesky import solver

    what = f"mxpeak.solve, first use on positive definite {dtype} systems"
    compile_once(what, ("cholesky", dtype), lambda: solver(dtype))
    compiled: Callable[..., Any] = solver(dtype)
    return compiled


class SmallCholeskyPlan(NamedTuple):
    """Constants for all systems of one order, type and number of right-hand sides, cached together.

    of        LAPACK's routines for the type
    shape     shape of the work array for [A B s]
    memory    numbers of entries of the work array and of the array of facts
    s         random right-hand side of the probe
    bound     largest backward error that needs no correction
    facts     number of facts that the solver returns
    """

    solve: Callable[..., Any]
    of: Routines
    shape: tuple[int, int]
    memory: tuple[int, int]
    s: Array
    bound: float
    facts: int


@lru_cache(maxsize=256)
def plan_small_cholesky(n: int, k: int, dtype: np.dtype[Any]) -> SmallCholeskyPlan:
    """Return the constants of the small Cholesky factorization for systems of order n with k right-hand sides."""
    from mxpeak.kernels.host.dense.small_cholesky import DIAGNOSTICS, facts_of, work_size
    from mxpeak.kernels.host.dense.small_lu import padded

    memory = work_size(n, k + 1), facts_of(n, k)
    bound = plain_lu(n, k, is_complex=dtype.kind == "c")
    shape, s = padded(n, k + 1), probe_vector(n).astype(dtype)
    return SmallCholeskyPlan(kernel_for(dtype), routines(dtype), shape, memory, s, bound, DIAGNOSTICS)


def solve_by_small_cholesky(A: Triangle, B: Array) -> CholeskySolution | None:
    """Solve A X = B and check the result, as `solve_by_cholesky` does with LAPACK.

    Returns None if A needs scaling or a leading minor is not positive.
    """
    dtype, n, k = A.dtype, len(A), B.size // len(A)
    solve, of, shape, memory, s, bound, fact_count = plan_small_cholesky(n, k, dtype)
    by_columns = not A.array.flags.c_contiguous and A.array.flags.f_contiguous
    T = A.array.T if by_columns else np.ascontiguousarray(A.array)
    X, space, facts = np.empty((n, k), dtype), np.empty(memory[0], dtype), np.empty(memory[1])
    unit = n * of.u
    lower = A.lower != by_columns
    solve((lower, by_columns, bound * unit), T, np.ascontiguousarray(B.reshape(n, k)), s, X, space, facts)
    place, low, A_inf, _, _, _, eta, x_max, b_min, b_max, z_max, corrected = facts[:fact_count].tolist()
    if place < 0.0 or not balanced((low, A_inf), (low, A_inf)):
        return None
    history = (eta / unit,) if corrected < 0.0 else (eta / unit, corrected / unit)
    in_range = x_max < inf and b_min > of.low and b_max < 1.0 / of.low
    x, enough = X if B.ndim == 2 else X.reshape(n), in_range and history[-1] <= bound

    def C() -> Array:
        R = space[int(place) :][: shape[0] * shape[1]].reshape(shape)[:n, :n]
        return np.asfortranarray(R.T)

    probe, W = A_inf * z_max * of.u, A.array
    return CholeskySolution(of, x, history, enough, probe, C, lower=True, norm=A_inf, W=W, of_conjugate=True)
