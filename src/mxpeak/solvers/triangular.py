"""Back substitution: U x = b̂ with U distributed block-cyclically and b̂ in the last column of [U | b̂]."""

from __future__ import annotations

from typing import Any

from mxpeak.dist.matrix import DistMatrix
from mxpeak.kernels.contract import Kernels
from mxpeak.layout.schedule import lu_steps


def solve_upper(A: DistMatrix, kernels: Kernels) -> Any:
    """x = U^-1 b̂; returns x's entries of this rank's own columns, the same on every rank of a process column.

    Block by block from the last: x_k = U_kk^-1 (b̂_k - Σ_{j>k} U_kj x_j).  The sum over the columns j of one process
    row is one reduction along it, then x_k goes along its process column.  The right-looking form lets every rank
    subtract its own U_ik x_k as soon as x_k is known.  Collective over the grid; A is not changed; N² flops.
    """
    grid, N = A.grid, A.rows.n
    last = A.cols.owner(N)  # the process column that holds b̂
    x = kernels.zeros(A.cols.local_start(N))
    # s = Σ U x - b̂, in parts: each rank holds what its own columns contribute, and b̂ counts as a column of x = -1.
    s = kernels.zeros(A.rows.local_size)
    if grid.q == last:
        kernels.subtract(s, A.local[:, A.cols.to_local(N)])
    for step in reversed(lu_steps(N, A.nb, grid.P, grid.Q)):
        rows, cols = A.rows.local_range(step.j0, step.j1), A.cols.local_range(step.j0, step.j1)
        if grid.p == step.p:
            grid.row.allreduce(s[rows], "sum")
        if grid.q != step.q:
            continue
        x_k = x[cols]
        if grid.p == step.p:
            kernels.subtract(x_k, s[rows])
            kernels.solve_upper(A.local[rows, cols], x_k)
        grid.column.ibcast(x_k, step.p).wait()
        above = slice(0, A.rows.local_start(step.j0))
        kernels.add_matvec(s[above], A.local[above, cols], x_k)
    return x
