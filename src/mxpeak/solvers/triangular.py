"""Triangular solves with a block-cyclic L or U, which may be stored in a lower precision than the FP64 vectors.

Block by block:  x_k = T_kk^-1 (b_k - Σ T_kj x_j)  over the blocks j that are known already.  The sum over the columns
of one process row is one reduction along it, then x_k goes along its process column, and every rank there adds its own
T_ik x_k to its part of the sums.  With T^T the roles of process rows and columns change places.
"""

from __future__ import annotations

from typing import Any

from mxpeak.dist.matrix import DistMatrix
from mxpeak.kernels.contract import Kernels, Vector
from mxpeak.layout.schedule import lu_steps


def solve_augmented(A: DistMatrix, kernels: Kernels) -> Any:
    """x = U^-1 b̂ for [U | b̂], b̂ the last column of A: how HPL ends.

    Returns x's entries of this rank's own columns, the same on every rank of a process column.  A is not changed; N²
    flops.  Collective over the grid.
    """
    N = A.rows.n
    s, x = kernels.zeros(A.rows.local_size), kernels.zeros(A.cols.local_start(N))
    if A.grid.q == A.cols.owner(N):
        kernels.add_scaled(s, -1.0, A.local[:, A.cols.to_local(N)])
    _solve(A, s, x, kernels, lower=False)
    return x


def solve_factored(A: DistMatrix, r: Vector, kernels: Kernels) -> Any:
    """U^-1 L^-1 r for A = [L\\U] and r over the rows (the same along every process row); the result over the columns.

    2·N² flops in fp64.  Collective over the grid.
    """
    s, x = kernels.zeros(A.rows.local_size), kernels.zeros(A.cols.local_size)
    if A.grid.q == 0:
        kernels.add_scaled(s, -1.0, r)
    _solve(A, s, x, kernels, lower=True)
    _solve(A, kernels.zeros(A.rows.local_size), x, kernels, lower=False)
    return x


def solve_factored_transposed(A: DistMatrix, c: Vector, kernels: Kernels) -> Any:
    """L^-T U^-T c for A = [L\\U] and c over the columns (the same along every process column); over the rows."""
    s, x = kernels.zeros(A.cols.local_size), kernels.zeros(A.rows.local_size)
    if A.grid.p == 0:
        kernels.add_scaled(s, -1.0, c)
    _solve(A, s, x, kernels, lower=False, transposed=True)
    _solve(A, kernels.zeros(A.cols.local_size), x, kernels, lower=True, transposed=True)
    return x


def _solve(A: DistMatrix, s: Vector, x: Vector, kernels: Kernels, *, lower: bool, transposed: bool = False) -> None:
    """x = T^-1 (x - Σ s), T the unit lower or the upper triangle of A, or its transpose; s is used up.

    s lies over T's rows, in parts that add up along the process rows; x over its columns.
    """
    grid = A.grid
    over, under, along, across = A.rows, A.cols, grid.row, grid.column
    me = grid.p, grid.q
    if transposed:
        over, under, along, across, me = under, over, across, along, me[::-1]
    solve = kernels.solve_lower if lower else kernels.solve_upper
    forward = lower != transposed
    steps = lu_steps(A.rows.n, A.nb, grid.P, grid.Q)
    for step in steps if forward else reversed(steps):
        place = (step.q, step.p) if transposed else (step.p, step.q)
        mine, own = over.local_range(step.j0, step.j1), under.local_range(step.j0, step.j1)
        if me[0] == place[0]:
            along.allreduce(s[mine], "sum")
        if me[1] != place[1]:
            continue
        x_k = x[own]
        if me == place:
            kernels.add_scaled(x_k, -1.0, s[mine])
            solve(A.local[own, mine] if transposed else A.local[mine, own], x_k, transposed=transposed)
        across.ibcast(x_k, place[0]).wait()
        rest = (
            slice(over.local_start(step.j1), over.local_start(A.rows.n))
            if forward
            else slice(0, over.local_start(step.j0))
        )
        T = A.local[own, rest] if transposed else A.local[rest, own]
        kernels.add_matvec(s[rest], T, x_k, transposed=transposed)
