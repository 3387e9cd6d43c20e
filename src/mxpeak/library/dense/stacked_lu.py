"""Solve a stack of small systems on the host with the compiled LU of one system per vector lane, and check each system.

The checks are those of `stack`: row and column sums of A, the backward error, and the solution for a random right-hand
side.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np

from mxpeak.kernels.arrays import probe_vector
from mxpeak.library.policy import stacked_lu_is_faster
from mxpeak.library.types import Array, roundoff
from mxpeak.runtime.calls import compile_once
from mxpeak.solvers.accuracy import plain_lu
from mxpeak.solvers.condition import PROBED
from mxpeak.solvers.scaling import balanced, safe_minimum

#: Number of entries of all [A B] from which several threads are faster. Starting the threads takes about 0.2 ms.
PARALLEL_FROM = 1_000_000


def suits_stacked_lu(A: Array, B: Array) -> bool:
    """Return whether the stacked LU can solve the stack A X = B faster than NumPy."""
    systems = int(np.prod(np.broadcast_shapes(A.shape[:-2], B.shape[:-2])))
    n, k = B.shape[-2:]
    return stacked_lu_is_faster(systems, n, k, A.dtype) and A.flags.aligned and B.flags.aligned


@cache
def kernel_for(dtype: np.dtype[Any]) -> Callable[..., Any]:
    """Return the compiled solver for a type. On first use, compile it or load it from the disk cache."""
    from mxpeak.kernels.host.dense.stacked_lu import solver

    what = f"mxpeak.solve, first use on stacks of {dtype} systems"
    compile_once(what, ("stacks", dtype), lambda: solver(dtype))
    compiled: Callable[..., Any] = solver(dtype)
    return compiled


def solve_by_stacked_lu(A: Array, B: Array) -> tuple[Array, Array, Array]:
    """Solve A X = B for stacks A (..., n, n) and B (..., n, k) of one type, whose leading dimensions broadcast.

    Returns X, the backward errors eta (...), and a mask of the systems that are solved accurately.
    """
    from mxpeak.kernels.host.dense.stacked_lu import DIAGNOSTICS, lanes_of, work_size
    from mxpeak.kernels.host.engine.blas import own_threads

    (n, k), dtype, u = B.shape[-2:], A.dtype, roundoff(A.dtype)
    shape = np.broadcast_shapes(A.shape[:-2], B.shape[:-2])
    A, B = (np.broadcast_to(V, (*shape, *V.shape[-2:])).reshape(-1, *V.shape[-2:]) for V in (A, B))
    solve, lanes, s = kernel_for(dtype), lanes_of(dtype), probe_vector(n).astype(dtype)
    X, facts = np.empty(B.shape, dtype), np.empty((DIAGNOSTICS, len(B)))

    def solve_part(part: slice) -> None:
        space, places = np.empty(work_size(n, k, lanes), dtype), np.empty(n * lanes, np.int32)
        solve(A[part], B[part], s, X[part], facts[:, part], space, places)

    threads = own_threads() if len(B) * n * (n + k) >= PARALLEL_FROM else 1
    height = -(-len(B) // (threads * lanes)) * lanes
    parts = [slice(first, first + height) for first in range(0, len(B), height)]
    if len(parts) == 1:
        solve_part(parts[0])
    else:
        with ThreadPoolExecutor(len(parts)) as pool:
            list(pool.map(solve_part, parts))
    row_min, A_inf, column_min, A_one, error, z_inf, b_min, b_max = facts
    with np.errstate(all="ignore"):
        eta, low = error / (n * u), safe_minimum(np, dtype)
        good = (
            (eta <= plain_lu(n, k, is_complex=False))
            & (A_inf * z_inf * u <= PROBED)
            & (b_min > low)
            & (b_max < 1.0 / low)
        )
        good &= balanced((row_min, A_inf), (column_min, A_one))
    return X.reshape(*shape, n, k), eta.reshape(shape), good.reshape(shape)
