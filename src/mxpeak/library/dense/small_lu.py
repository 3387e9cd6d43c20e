"""Solve one system of moderate order on the host with the compiled small LU, and check the result in the same call.

The check is the same as in `lapack_solver`: row and column sums of A, the backward error, and the solution for a random
right-hand side in addition to b. The compiled code takes 10 µs at n = 50; NumPy's solver takes 18 µs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from math import inf
from typing import Any, NamedTuple

import numpy as np

from mxpeak.kernels.arrays import probe_vector
from mxpeak.library.dense.lapack_solver import LETTERS, DirectSolution, Routines, routines
from mxpeak.library.policy import small_lu_is_faster
from mxpeak.library.types import Array
from mxpeak.runtime.calls import compile_once
from mxpeak.solvers.accuracy import SAMPLED, plain_lu
from mxpeak.solvers.scaling import balanced

#: BLAS computes the products if [A B] has at least this many bytes, about the size of a second-level cache. Speed
#: relative to NumPy, with two threads:
#:
#:                   fp64                      complex128       fp32
#:     n             300     400     700       256     400      1000
#:     without BLAS  2.0     1.6     1.2       1.35    0.96     1.9
#:     with BLAS     1.5     1.9     1.9       1.5     1.2      3.6
BY_BLAS_FROM = 1 << 20


def suits_small_lu(A: Array, B: Array) -> bool:
    """Return whether the small LU can solve A X = B faster than LAPACK."""
    n = len(A)
    return small_lu_is_faster(n, B.size // n, A.dtype) and A.flags.aligned and B.flags.aligned


@cache
def kernel_for(dtype: np.dtype[Any]) -> Callable[..., Any]:
    """Return the compiled small-LU solver for a type. On first use, compile it or load it from the disk cache."""
    from mxpeak.kernels.host.dense.small_lu import solver

    compile_once(f"mxpeak.solve, first use on {dtype} systems", ("elimination", dtype), lambda: solver(dtype))
    compiled: Callable[..., Any] = solver(dtype)
    return compiled


class SmallLuPlan(NamedTuple):
    """Constants for all systems of one order, type and number of right-hand sides, cached together.

    gemm      address of BLAS's matrix product; 0 if the small LU computes the products itself
    of        LAPACK's routines for the type
    shape     shape of the work array for [A B s]
    memory    numbers of entries of that work array and of the work array for absolute values
    s, t      the random right-hand side of the probe, and random weights of the right-hand sides
    enough    largest backward error that needs no correction
    facts     number of facts that the solver returns
    """

    solve: Callable[..., Any]
    gemm: int
    of: Routines
    shape: tuple[int, int]
    memory: tuple[int, int]
    s: Array
    t: Array
    enough: float
    facts: int


@lru_cache(maxsize=256)
def plan_small_lu(n: int, k: int, dtype: np.dtype[Any]) -> SmallLuPlan:
    """Return the constants of the small LU for systems of order n with k right-hand sides, cached."""
    from mxpeak.kernels.host.dense.small_lu import DIAGNOSTICS, facts_of, padded, work_size
    from mxpeak.kernels.host.engine.blas import address

    s, t = (probe_vector(count).astype(dtype) for count in (n, k if k > SAMPLED else 1))
    memory = work_size(n, k + 1, SAMPLED), facts_of(n, k)
    enough = plain_lu(n, k, is_complex=dtype.kind == "c")
    rows, columns = padded(n, k + 1)
    gemm = address(f"{LETTERS[dtype][0]}gemm") if rows * columns * dtype.itemsize >= BY_BLAS_FROM else 0
    return SmallLuPlan(kernel_for(dtype), gemm, routines(dtype), (rows, columns), memory, s, t, enough, DIAGNOSTICS)


def solve_by_small_lu(A: Array, B: Array) -> DirectSolution | None:
    """Solve A X = B with the small LU and check the result, as `solve_by_lapack` does with LAPACK.

    Returns None if A needs scaling or a pivot is zero.
    """
    dtype, n, k = A.dtype, len(A), B.size // len(A)
    solve, gemm, of, shape, memory, s, t, bound, fact_count = plan_small_lu(n, k, dtype)
    by_columns = not A.flags.c_contiguous and A.flags.f_contiguous
    R, C = A.T if by_columns else np.ascontiguousarray(A), np.ascontiguousarray(B.reshape(n, k))
    X, space = np.empty((n, k), dtype), np.empty(memory[0], dtype)
    pivots, facts = np.empty(n, np.int32), np.empty(memory[1])
    unit = n * of.u
    solve((by_columns, SAMPLED, bound * unit, gemm), R, C, s, t, X, space, pivots, facts)
    place, *of_R, A_max, eta, x_max, b_min, b_max, z_max, corrected = facts[:fact_count].tolist()
    across, down = (of_R[0], of_R[1]), (of_R[2], of_R[3])
    rows, columns = (down, across) if by_columns else (across, down)
    if place < 0.0 or not balanced(rows, columns):
        return None
    x = X if B.ndim == 2 else X.reshape(n)
    history = (eta / unit,) if corrected < 0.0 else (eta / unit, corrected / unit)
    in_range = x_max < inf and b_min > of.low and b_max < 1.0 / of.low
    enough, probe = in_range and history[-1] <= bound, rows[1] * z_max * of.u

    def LU() -> Array:
        return space[int(place) :][: shape[0] * shape[1]].reshape(shape)[:n, :n]

    return DirectSolution(of, x, history, enough, probe, LU, pivots, False, (rows[1], columns[1], A_max))
