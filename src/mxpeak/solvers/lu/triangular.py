"""Triangular solves with a block-cyclic L or U, which may be stored in a lower precision than the FP64 vectors.

Block by block:  x_k = T_kk^-1 (b_k - Σ T_kj x_j)  over the blocks j that are known already.  The sum over the columns
of one process row is one reduction along it, then x_k goes along its process column, and every rank there adds its own
T_ik x_k to its part of the sums.  With T^T the roles of process rows and columns are exchanged.  Of several right-hand
sides, a column each, the blocks are solved together: products of matrices, in as many messages.

Hosts sum up a block row's products before its turn, along whole rows of T: memory is read along them twice as fast as
down blocks of columns.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from mxpeak.distributed.dense import DistMatrix
from mxpeak.kernels.contract import Kernels, Matrix, Vector
from mxpeak.kernels.contract.lu import BlockSolver
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.lu_schedule import LuStep, lu_steps


class Diagonal(Protocol):
    """What solves with the diagonal blocks of a triangle."""

    def __call__(self, step: LuStep, T: Matrix, x: Vector, *, transposed: bool) -> None:
        """x = T^-1 x (T^-T x) in place, T the block of a step."""


def solve_augmented(A: DistMatrix, kernels: Kernels) -> Any:
    """x = U^-1 b̂ for [U | b̂], b̂ the last column of A: how HPL ends.

    Returns x's entries of this rank's own columns, the same on every rank of a process column.  A is not changed; N²
    flops.  Collective over the grid.
    """
    N, xp = A.rows.n, kernels.xp
    s, x = xp.zeros(A.rows.local_size), xp.zeros(A.cols.local_start(N))
    if A.grid.q == A.cols.owner(N):
        kernels.add_scaled(s, -1.0, A.local[:, A.cols.to_local(N)])

    def solve(step: LuStep, T: Matrix, x: Vector, *, transposed: bool) -> None:
        kernels.solve_upper(T, x)

    _solve(A, s, x, kernels, solve, lower=False)
    return x


class Factored:
    """[L\\U] on a grid, its diagonal blocks made ready by the first solve for those that follow."""

    def __init__(self, A: DistMatrix, kernels: Kernels):
        self._A, self._kernels = A, kernels
        self._ready: dict[tuple[str, int], BlockSolver] = {}

    def solve(self, r: Vector) -> Any:
        """U^-1 L^-1 r for r over the rows (the same along every process row); the result over the columns.

        2·N² flops in fp64 for each right-hand side.  Collective over the grid.
        """
        A, kernels = self._A, self._kernels
        s, x = self._zeros(A.rows, r), self._zeros(A.cols, r)
        if A.grid.q == 0:
            kernels.add_scaled(s, -1.0, r)
        _solve(A, s, x, kernels, self._diagonal("lower"), lower=True)
        s[...] = 0.0
        _solve(A, s, x, kernels, self._diagonal("upper"), lower=False)
        return x

    def solve_transposed(self, c: Vector) -> Any:
        """L^-T U^-T c for c over the columns (the same along every process column); over the rows."""
        A, kernels = self._A, self._kernels
        s, x = self._zeros(A.cols, c), self._zeros(A.rows, c)
        if A.grid.p == 0:
            kernels.add_scaled(s, -1.0, c)
        _solve(A, s, x, kernels, self._diagonal("upper"), lower=False, transposed=True)
        s[...] = 0.0
        _solve(A, s, x, kernels, self._diagonal("lower"), lower=True, transposed=True)
        return x

    def _zeros(self, along: BlockCyclic, like: Vector) -> Vector:
        """As many vectors of zeros as there are right-hand sides."""
        return self._kernels.xp.zeros((along.local_size, *like.shape[1:]))

    def _diagonal(self, part: str) -> Diagonal:
        def solve(step: LuStep, T: Matrix, x: Vector, *, transposed: bool) -> None:
            key = part, step.k
            if key not in self._ready:
                self._ready[key] = self._kernels.block_solver(T, part)
            self._ready[key](x, transposed=transposed)

        return solve


def _solve(
    A: DistMatrix, s: Vector, x: Vector, kernels: Kernels, solve: Diagonal, *, lower: bool, transposed: bool = False
) -> None:
    """x = T^-1 (x - Σ s), T the unit lower or the upper triangle of A, or its transpose; s is used up.

    s lies over T's rows, in parts that add up along the process rows; x over its columns.  Of T_ik x_k the rows of the
    next block come first: its reduction can begin.  A round is as many steps as there are process columns, each of
    which has one x_k in it; with what lies beyond the round all of them multiply at its end, at the same time and while
    the next x_k is made elsewhere.  Were it done at once, each would wait in the next reduction for the one before it.
    """
    if not transposed and not kernels.background:
        _solve_by_rows(A, s, x, kernels, solve, lower=lower)
        return
    grid = A.grid
    over, under, along, across = A.rows, A.cols, grid.row, grid.column
    me = grid.p, grid.q
    if transposed:
        over, under, along, across, me = under, over, across, along, me[::-1]
    steps = lu_steps(A.rows.n, A.nb, grid.P, grid.Q)
    if lower == transposed:
        steps.reverse()

    def add_product(rows: slice, columns: slice) -> None:
        T = A.local[columns, rows] if transposed else A.local[rows, columns]
        kernels.add_matvec(s[rows], T, x[columns], transposed=transposed)

    owed: slice | None = None  # this rank's columns of a round, as long as they are multiplied with single blocks alone
    for number, (step, following) in enumerate(zip(steps, [*steps[1:], None])):
        owner = (step.q, step.p) if transposed else (step.p, step.q)
        mine, own = over.local_range(step.j0, step.j1), under.local_range(step.j0, step.j1)
        if me[0] == owner[0]:
            along.allreduce(s[mine], "sum")
        arriving = None
        if me[1] == owner[1]:
            if me == owner:
                kernels.add_scaled(x[own], -1.0, s[mine])
                T = A.local[own, mine] if transposed else A.local[mine, own]
                solve(step, T, x[own], transposed=transposed)
            arriving = across.ibcast(x[own], owner[0])
        if owed is not None and number % along.size == 0:
            beyond = (0, step.j0) if lower == transposed else (step.j1, A.rows.n)
            add_product(over.local_range(*beyond), owed)
            owed = None
        if arriving is not None:
            arriving.wait()
            owed = own
        if owed is not None and following is not None:
            add_product(over.local_range(following.j0, following.j1), owed)


def _solve_by_rows(A: DistMatrix, s: Vector, x: Vector, kernels: Kernels, solve: Diagonal, *, lower: bool) -> None:
    """x_k = T_kk^-1 (x_k - s_k - Σ T_kj x_j): a process row goes from one of its block rows to its next.

    That one is multiplied with all that is known by then, while the other process rows do the same with theirs; what
    these make known before its turn is added block by block.
    """
    grid, N = A.grid, A.rows.n
    steps = lu_steps(N, A.nb, grid.P, grid.Q)
    if not lower:
        steps.reverse()
    ahead = deque(step for step in steps if step.p == grid.p)  # this process row's
    for step in steps:
        own, sending = A.cols.local_range(step.j0, step.j1), None
        if step.p == grid.p:
            mine = A.rows.local_range(step.j0, step.j1)
            grid.row.allreduce(s[mine], "sum")
            if step.q == grid.q:
                kernels.add_scaled(x[own], -1.0, s[mine])
                solve(step, A.local[mine, own], x[own], transposed=False)
            ahead.popleft()
        if step.q == grid.q:
            sending = grid.column.ibcast(x[own], step.p)
            if step.p != grid.p:
                sending.wait()
        if ahead:
            k, known = A.rows.local_range(ahead[0].j0, ahead[0].j1), own
            if step.p == grid.p:
                known = A.cols.local_range(0, step.j1) if lower else A.cols.local_range(step.j0, N)
            if known.start < known.stop:
                kernels.add_matvec(s[k], A.local[k, known], x[known])
        if sending is not None:
            sending.wait()
