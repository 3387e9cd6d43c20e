"""One small real system on the host by compiled elimination, checked in the same call.

What is checked is that of `direct`: the sums of A's rows and columns, the backward error, and a solution for random
numbers beside b.  Compiled, all of it takes 10 us at n = 50, where NumPy's solver takes 18.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from math import inf
from typing import Any

import numpy as np

from mxpeak.library.dense.direct import Direct, enough_of, routines
from mxpeak.library.dense.factoring import probe
from mxpeak.library.dense.refinement import SAMPLED
from mxpeak.library.dense.types import Array
from mxpeak.runtime.calls import compile_once
from mxpeak.solvers.scaling import balanced

#: From this order on it is worth importing a compiler for, 0.6 s; beyond so many columns, A's counted twice, BLAS with
#: two threads is as quick (measured beside NumPy: 1.25 at n = 500 with one, 0.9 at 600 with 8, 0.94 at 500 with 500).
FROM, MOST = 32, 1100


def suits_elimination(A: Array, B: Array) -> bool:
    """Whether elimination on one core is quicker than LAPACK."""
    n = len(A)
    if n < FROM or 2 * n + B.size // n > MOST or A.dtype.kind != "f":
        return False
    return A.flags.aligned and B.flags.aligned


@cache
def kernel_for(dtype: np.dtype[Any]) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any], int]:
    """The compiled solver, and what says how much memory it works on; compiled or read from disk when first wanted."""
    from mxpeak.kernels.host.elimination import FACTS, padded, room, solver

    compile_once(f"mxpeak.solve, first use on small {dtype} systems", ("elimination", dtype), lambda: solver(dtype))
    return solver(dtype), padded, room, FACTS


@lru_cache(maxsize=64)
def _probe(n: int, dtype: np.dtype[Any]) -> Array:
    return probe(n).astype(dtype)


def solve_by_elimination(A: Array, B: Array) -> Direct | None:
    """`solve_directly` where `suits_elimination`."""
    dtype, n, k = A.dtype, len(A), B.size // len(A)
    solve, padded, room, size = kernel_for(dtype)
    by_columns = not A.flags.c_contiguous and A.flags.f_contiguous
    R = A.T if by_columns else np.ascontiguousarray(A)
    C = B if B.ndim == 2 else B.reshape(n, 1)
    m, columns = padded(n, k + 1)
    X, space = np.empty((n, k), dtype), np.empty(room(n, k + 1), dtype)
    pivots, facts = np.empty(n, np.int32), np.empty(size)
    s = _probe(n, dtype)
    bound = enough_of(n, k)
    of = routines(dtype)
    unit = n * of.u
    t = _probe(k, dtype) if k > SAMPLED else s
    solve(by_columns, SAMPLED, bound * unit, R, C, s, t, X, space, pivots, facts)
    place, *of_R, A_max, eta, x_max, b_least, b_most, z_max, mended = facts.tolist()
    across, down = (of_R[0], of_R[1]), (of_R[2], of_R[3])
    rows, columns_ = (down, across) if by_columns else (across, down)
    if place < 0.0 or not balanced(rows, columns_):
        return None
    W = space[int(place) :][: m * columns].reshape(m, columns)
    x = X if B.ndim == 2 else X.reshape(n)
    history = (eta / unit,) if mended < 0.0 else (eta / unit, mended / unit)
    suits = x_max < inf and b_least > of.low and b_most < 1.0 / of.low
    enough, grown = suits and history[-1] <= bound, rows[1] * z_max * of.u
    return Direct(of, x, history, enough, grown, W[:n, :n], pivots, False, rows[1], columns_[1], A_max)
