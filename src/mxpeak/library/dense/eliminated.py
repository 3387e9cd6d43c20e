"""One small system on the host by compiled elimination, checked in the same call.

What is checked is that of `direct`: the sums of A's rows and columns, the backward error, and a solution for random
numbers beside b.  Compiled, all of it takes 10 us at n = 50, where NumPy's solver takes 18.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from math import inf
from typing import Any, NamedTuple

import numpy as np

from mxpeak.library.dense.choices import wide_vectors
from mxpeak.library.dense.direct import Direct, Routines, routines
from mxpeak.library.dense.factoring import probe
from mxpeak.library.dense.refinement import SAMPLED, plain_lu
from mxpeak.library.dense.types import Array
from mxpeak.runtime.calls import compile_once
from mxpeak.solvers.scaling import balanced

#: From this order on it is worth importing a compiler for, 0.6 s.
FROM = 32
#: Beyond so many columns, A's counted twice, BLAS with two threads is as quick; with one side of real numbers that is
#: later.  Measured beside NumPy: 1.3 at n = 600 with one, 0.9 with 8, 0.94 at 500 with 500; of complex128 1.0 at 300
#: and 0.9 at 400 with one, of complex64 1.4 at 400 with one.
MOST = {np.dtype("f8"): 1100, np.dtype("f4"): 1100, np.dtype("c16"): 700, np.dtype("c8"): 900}
MOST_ONE = 1280
#: The same of fp64 where BLAS has one thread, too, and vectors are of 32 bytes.  Measured beside NumPy on a Zen 3, in
#: CPU time: 0.99 at n = 600 with 8 and 1.03 with 64, 0.91 and 0.94 at 700, where LAPACK with its check comes to 0.74,
#: 0.93, 0.79 and 0.91.
MOST_ALONE = 1500


def suits_elimination(A: Array, B: Array) -> bool:
    """Whether elimination on one core is quicker than LAPACK."""
    n, sides = len(A), B.size // len(A)
    most = MOST_ONE if sides == 1 and A.dtype.kind == "f" else MOST.get(A.dtype, 0)
    if n < FROM or (2 * n + sides > most and not (2 * n + sides <= MOST_ALONE and _alike(A.dtype))):
        return False
    return A.flags.aligned and B.flags.aligned


def _alike(dtype: np.dtype[Any]) -> bool:
    """Whether BLAS has no more to work with than the elimination: one core, and vectors of 32 bytes."""
    from mxpeak.kernels.host.blas import blas_facts

    return dtype == np.float64 and not wide_vectors() and blas_facts()["threads"] == 1


@cache
def kernel_for(dtype: np.dtype[Any]) -> Callable[..., Any]:
    """The compiled solver of a type; compiled or read from disk when first wanted."""
    from mxpeak.kernels.host.elimination import solver

    compile_once(f"mxpeak.solve, first use on small {dtype} systems", ("elimination", dtype), lambda: solver(dtype))
    compiled: Callable[..., Any] = solver(dtype)
    return compiled


class Plan(NamedTuple):
    """What is the same for all systems of an order, a number of sides and a type: one look-up, where each takes 0.2 us.

    of        LAPACK's routines of the type
    shape     of [A B s] as it is worked on
    room      entries of the memory for that, and of the sizes
    s, t      random numbers, for a probe and for each side
    enough    how large a backward error passes
    told      how many facts the solver tells
    """

    solve: Callable[..., Any]
    of: Routines
    shape: tuple[int, int]
    room: tuple[int, int]
    s: Array
    t: Array
    enough: float
    told: int


@lru_cache(maxsize=256)
def plan(n: int, k: int, dtype: np.dtype[Any]) -> Plan:
    """That of a kind of systems."""
    from mxpeak.kernels.host.elimination import TOLD, facts_of, padded, room

    s, t = (probe(count).astype(dtype) for count in (n, k if k > SAMPLED else 1))
    memory = room(n, k + 1, SAMPLED), facts_of(n, k)
    enough = plain_lu(n, k, is_complex=dtype.kind == "c")
    return Plan(kernel_for(dtype), routines(dtype), padded(n, k + 1), memory, s, t, enough, TOLD)


def solve_by_elimination(A: Array, B: Array) -> Direct | None:
    """`solve_directly` where `suits_elimination`."""
    dtype, n, k = A.dtype, len(A), B.size // len(A)
    solve, of, shape, room, s, t, bound, facts_told = plan(n, k, dtype)
    by_columns = not A.flags.c_contiguous and A.flags.f_contiguous
    R, C = A.T if by_columns else np.ascontiguousarray(A), np.ascontiguousarray(B.reshape(n, k))
    X, space = np.empty((n, k), dtype), np.empty(room[0], dtype)
    pivots, facts = np.empty(n, np.int32), np.empty(room[1])
    unit = n * of.u
    solve(by_columns, SAMPLED, bound * unit, R, C, s, t, X, space, pivots, facts)
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
