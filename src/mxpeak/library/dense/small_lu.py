"""One system of moderate order on the host by compiled elimination, checked in the same call.

What is checked is that of `direct`: the sums of A's rows and columns, the backward error, and a solution for random
numbers beside b.  Compiled, all of it takes 10 us at n = 50, where NumPy's solver takes 18.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from math import inf
from typing import Any, NamedTuple

import numpy as np

from mxpeak.library.dense.factoring import probe
from mxpeak.library.dense.lapack_solver import LETTERS, Direct, Routines, routines
from mxpeak.library.dense.refinement import SAMPLED, plain_lu
from mxpeak.library.policy import small_lu_is_faster
from mxpeak.library.types import Array
from mxpeak.runtime.calls import compile_once
from mxpeak.solvers.scaling import balanced

#: From so many bytes of [A B] on BLAS takes the products: about what second-level caches hold.  Beside NumPy with two
#: threads, without and with BLAS: fp64 at n = 300 2.0 and 1.5, at 400 1.6 and 1.9, at 700 1.2 and 1.9; complex128 at
#: 256 1.35 and 1.5, at 400 0.96 and 1.2; fp32 at 1000 1.9 and 3.6.
BY_BLAS_FROM = 1 << 20


def suits_elimination(A: Array, B: Array) -> bool:
    """Return whether the elimination can solve A X = B and is faster than LAPACK."""
    n = len(A)
    return small_lu_is_faster(n, B.size // n, A.dtype) and A.flags.aligned and B.flags.aligned


@cache
def kernel_for(dtype: np.dtype[Any]) -> Callable[..., Any]:
    """The compiled solver of a type; compiled or read from disk when first wanted."""
    from mxpeak.kernels.host.dense.small_lu import solver

    compile_once(f"mxpeak.solve, first use on {dtype} systems", ("elimination", dtype), lambda: solver(dtype))
    compiled: Callable[..., Any] = solver(dtype)
    return compiled


class Plan(NamedTuple):
    """What is the same for all systems of an order, a number of sides and a type: one look-up, where each takes 0.2 us.

    gemm      the address of BLAS's product of matrices, 0 where the elimination takes its own
    of        LAPACK's routines of the type
    shape     of [A B s] as it is worked on
    room      entries of the memory for that, and of the sizes
    s, t      random numbers, for a probe and for each side
    enough    how large a backward error passes
    told      how many facts the solver tells
    """

    solve: Callable[..., Any]
    gemm: int
    of: Routines
    shape: tuple[int, int]
    room: tuple[int, int]
    s: Array
    t: Array
    enough: float
    told: int


def _gemm(dtype: np.dtype[Any]) -> int:
    """The address of BLAS's product of matrices of this type."""
    from mxpeak.kernels.host.engine.blas import address

    return address(f"{LETTERS[dtype][0]}gemm")


@lru_cache(maxsize=256)
def plan(n: int, k: int, dtype: np.dtype[Any]) -> Plan:
    """That of a kind of systems."""
    from mxpeak.kernels.host.dense.small_lu import DIAGNOSTICS, facts_of, padded, work_size

    s, t = (probe(count).astype(dtype) for count in (n, k if k > SAMPLED else 1))
    memory = work_size(n, k + 1, SAMPLED), facts_of(n, k)
    enough = plain_lu(n, k, is_complex=dtype.kind == "c")
    rows, columns = padded(n, k + 1)
    gemm = _gemm(dtype) if rows * columns * dtype.itemsize >= BY_BLAS_FROM else 0
    return Plan(kernel_for(dtype), gemm, routines(dtype), (rows, columns), memory, s, t, enough, DIAGNOSTICS)


def solve_by_elimination(A: Array, B: Array) -> Direct | None:
    """`solve_directly` where `suits_elimination`."""
    dtype, n, k = A.dtype, len(A), B.size // len(A)
    solve, gemm, of, shape, room, s, t, bound, facts_told = plan(n, k, dtype)
    by_columns = not A.flags.c_contiguous and A.flags.f_contiguous
    R, C = A.T if by_columns else np.ascontiguousarray(A), np.ascontiguousarray(B.reshape(n, k))
    X, space = np.empty((n, k), dtype), np.empty(room[0], dtype)
    pivots, facts = np.empty(n, np.int32), np.empty(room[1])
    unit = n * of.u
    solve(by_columns, SAMPLED, bound * unit, gemm, R, C, s, t, X, space, pivots, facts)
    place, *of_R, A_max, eta, x_max, b_least, b_most, z_max, mended = facts[:facts_told].tolist()
    across, down = (of_R[0], of_R[1]), (of_R[2], of_R[3])
    rows, columns = (down, across) if by_columns else (across, down)
    if place < 0.0 or not balanced(rows, columns):
        return None
    x = X if B.ndim == 2 else X.reshape(n)
    history = (eta / unit,) if mended < 0.0 else (eta / unit, mended / unit)
    suits = x_max < inf and b_least > of.low and b_most < 1.0 / of.low
    enough, grown = suits and history[-1] <= bound, rows[1] * z_max * of.u

    def LU() -> Array:
        return space[int(place) :][: shape[0] * shape[1]].reshape(shape)[:n, :n]

    return Direct(of, x, history, enough, grown, LU, pivots, False, rows[1], columns[1], A_max)
