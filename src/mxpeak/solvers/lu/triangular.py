"""Triangular solves with a block-cyclic L or U, which may be stored in a lower precision than the fp64 vectors.

The solve computes one block after the other, x_k = T_kk^-1 (b_k - Σ T_kj x_j), where the sum runs over the blocks j
that are already known. One reduction along a process row adds the contributions of its columns. Then x_k is broadcast
along its process column, and every rank of this column adds its own T_ik x_k to its part of the sums. For T^T, the
roles of process rows and columns are exchanged. Several right-hand sides, one per column, are solved together by
products of matrices, with the same number of messages.

Hosts compute the product of a block row with the known x just before they solve for its block of x. They read memory
along rows twice as fast as along blocks of columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import Any, Protocol

from mxpeak.distributed.dense import DistMatrix
from mxpeak.kernels.contract import Kernels, Matrix, Vector
from mxpeak.kernels.contract.lu import BlockSolver
from mxpeak.layout.lu_schedule import LuStep, lu_steps


class Diagonal(Protocol):
    """A solver for the diagonal blocks of a triangle."""

    def __call__(self, step: LuStep, T: Matrix, x: Vector, *, transposed: bool) -> None:
        """Overwrite x with T^-1 x, or T^-T x if `transposed`, where T is the diagonal block of a step."""


def solve_augmented(A: DistMatrix, kernels: Kernels) -> Any:
    """Return x = U^-1 b̂ for [U | b̂], where b̂ is the last column of A: the back substitution of HPL.

    The result contains the entries of x for this rank's own columns, the same on every rank of a process column. A is
    not changed. The solve takes N² flops. Collective over the grid.
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
    r"""The factors [L\U] on a grid; the first solve prepares the diagonal blocks for all later solves."""

    def __init__(self, A: DistMatrix, kernels: Kernels):
        self._A, self._kernels = A, kernels
        self._ready: dict[tuple[str, int], BlockSolver] = {}

    def solve(self, r: Vector) -> Any:
        """Return U^-1 L^-1 r over the columns, for r over the rows (the same along every process row).

        Each right-hand side takes 2·N² flops in fp64. Collective over the grid.
        """
        A, kernels = self._A, self._kernels
        s, x = _begun(A, r, kernels)
        _solve(A, s, x, kernels, self._diagonal("lower"), lower=True)
        s[...] = 0.0
        _solve(A, s, x, kernels, self._diagonal("upper"), lower=False)
        return x

    def solve_transposed(self, c: Vector) -> Any:
        """Return L^-T U^-T c over the rows, for c over the columns (the same along every process column)."""
        A, kernels = self._A, self._kernels
        s, x = _begun(A, c, kernels, transposed=True)
        _solve(A, s, x, kernels, self._diagonal("upper"), lower=False, transposed=True)
        s[...] = 0.0
        _solve(A, s, x, kernels, self._diagonal("lower"), lower=True, transposed=True)
        return x

    def _diagonal(self, part: str) -> Diagonal:
        def solve(step: LuStep, T: Matrix, x: Vector, *, transposed: bool) -> None:
            key = part, step.k
            if key not in self._ready:
                self._ready[key] = self._kernels.block_solver(T, part)
            self._ready[key](x, transposed=transposed)

        return solve


class FactoredSymmetric(ABC):
    """The factors L S L^T of a `SymmetricElimination` on a grid.

    signs   the diagonal of S for this rank's columns, or None if S is the identity
    """

    def __init__(self, A: DistMatrix, kernels: Kernels, signs: Vector | None = None):
        self._A, self._kernels, self._signs = A, kernels, signs

    def solve(self, r: Vector) -> Any:
        """Return L^-T S L^-1 r over the rows, for r over the rows (the same along every process row).

        Each right-hand side takes 2·N² flops in fp64. Collective over the grid.
        """
        A, kernels = self._A, self._kernels
        s, y = _begun(A, r, kernels)
        _solve(A, s, y, kernels, self._solve_diagonal, lower=True)
        if self._signs is not None:
            y *= self._signs if y.ndim == 1 else self._signs[:, None]
        s, x = _begun(A, y, kernels, transposed=True)
        _solve(A, s, x, kernels, self._solve_diagonal, lower=True, transposed=True)
        return x

    @abstractmethod
    def _solve_diagonal(self, step: LuStep, T: Matrix, x: Vector, *, transposed: bool) -> None:
        """Overwrite x with L_kk^-1 x, or L_kk^-T x if `transposed`, for the stored diagonal block T."""


class FactoredCholesky(FactoredSymmetric):
    """The factor L of `cholesky.factorize`; the first solve prepares the diagonal blocks for later solves."""

    def __init__(self, A: DistMatrix, kernels: Kernels):
        super().__init__(A, kernels)
        self._ready: dict[int, BlockSolver] = {}

    def _solve_diagonal(self, step: LuStep, T: Matrix, x: Vector, *, transposed: bool) -> None:
        """Solve with the upper triangle of T, which is L_kk^T."""
        if step.k not in self._ready:
            self._ready[step.k] = self._kernels.block_solver(T, "upper")
        self._ready[step.k](x, transposed=not transposed)


class FactoredBlockLDL(FactoredSymmetric):
    """The factors of `block_ldl.factorize`."""

    def _solve_diagonal(self, step: LuStep, T: Matrix, x: Vector, *, transposed: bool) -> None:
        """Multiply by T, which is L_kk^-1."""
        y = self._kernels.xp.zeros_like(x)
        self._kernels.add_matvec(y, T, x, transposed=transposed)
        x[...] = y


def _begun(A: DistMatrix, b: Vector, kernels: Kernels, *, transposed: bool = False) -> tuple[Vector, Vector]:
    """Return the sums s and the solution x at the start of a solve with right-hand side b, for `_solve`.

    One rank of each process row subtracts b from its part of s, or one of each process column if `transposed`.
    """
    over, under, first = (A.cols, A.rows, A.grid.p) if transposed else (A.rows, A.cols, A.grid.q)
    s, x = (kernels.xp.zeros((along.local_size, *b.shape[1:])) for along in (over, under))
    if first == 0:
        kernels.add_scaled(s, -1.0, b)
    return s, x


def _solve(
    A: DistMatrix, s: Vector, x: Vector, kernels: Kernels, solve: Diagonal, *, lower: bool, transposed: bool = False
) -> None:
    """Compute x = T^-1 (x - Σ s) for the unit lower or the upper triangle T of A, or its transpose; s is overwritten.

    s is over the rows of T, in parts that add up along the process rows; x is over its columns. The rows of T_ik x_k
    in the next block are computed first, so that the reduction of this block can begin. A round has as many steps as
    there are process columns, and each process column has one x_k per round. At the end of a round, all process
    columns multiply the rows beyond the round at the same time, while the next x_k is computed. Without rounds, each
    process column would wait for the previous one in the next reduction.
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

    owed: slice | None = None  # this rank's columns of a round that are not yet multiplied by all other rows
    for number, (step, following) in enumerate(zip(steps, [*steps[1:], None])):
        owner = (step.q, step.p) if transposed else (step.p, step.q)
        block_rows, block_columns = over.local_range(step.j0, step.j1), under.local_range(step.j0, step.j1)
        if me[0] == owner[0]:
            along.allreduce(s[block_rows], "sum")
        arriving = None
        if me[1] == owner[1]:
            if me == owner:
                kernels.add_scaled(x[block_columns], -1.0, s[block_rows])
                T = A.local[block_columns, block_rows] if transposed else A.local[block_rows, block_columns]
                solve(step, T, x[block_columns], transposed=transposed)
            arriving = across.ibcast(x[block_columns], owner[0])
        if owed is not None and number % along.size == 0:
            beyond = (0, step.j0) if lower == transposed else (step.j1, A.rows.n)
            add_product(over.local_range(*beyond), owed)
            owed = None
        if arriving is not None:
            arriving.wait()
            owed = block_columns
        if owed is not None and following is not None:
            add_product(over.local_range(following.j0, following.j1), owed)


def _solve_by_rows(A: DistMatrix, s: Vector, x: Vector, kernels: Kernels, solve: Diagonal, *, lower: bool) -> None:
    """Compute x_k = T_kk^-1 (x_k - s_k - Σ T_kj x_j); each process row prepares its next block row in advance.

    A process row multiplies its next block row by all known blocks of x, at the same time as the other process rows.
    Blocks of x that become known later are added individually.
    """
    grid, N = A.grid, A.rows.n
    steps = lu_steps(N, A.nb, grid.P, grid.Q)
    if not lower:
        steps.reverse()
    ahead = deque(step for step in steps if step.p == grid.p)  # the steps of this process row
    for step in steps:
        block_columns, sending = A.cols.local_range(step.j0, step.j1), None
        if step.p == grid.p:
            block_rows = A.rows.local_range(step.j0, step.j1)
            grid.row.allreduce(s[block_rows], "sum")
            if step.q == grid.q:
                kernels.add_scaled(x[block_columns], -1.0, s[block_rows])
                solve(step, A.local[block_rows, block_columns], x[block_columns], transposed=False)
            ahead.popleft()
        if step.q == grid.q:
            sending = grid.column.ibcast(x[block_columns], step.p)
            if step.p != grid.p:
                sending.wait()
        if ahead:
            k, solved_columns = A.rows.local_range(ahead[0].j0, ahead[0].j1), block_columns
            if step.p == grid.p:
                solved_columns = A.cols.local_range(0, step.j1) if lower else A.cols.local_range(step.j0, N)
            if solved_columns.start < solved_columns.stop:
                kernels.add_matvec(s[k], A.local[k, solved_columns], x[solved_columns])
        if sending is not None:
            sending.wait()
