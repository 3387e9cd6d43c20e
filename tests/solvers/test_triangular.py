"""Test solves with a distributed L and U on thread ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mxpeak.comm.grid import make_grid
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.distributed.dense import DistMatrix, dist_matrix
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.layout.grid import ProcessGrid
from mxpeak.solvers.lu.triangular import Factored

N, NB = 50, 4


def whole() -> Any:
    """Return L and U of a matrix near the identity, stored in one array."""
    return np.eye(N) + np.random.default_rng(3).uniform(-0.02, 0.02, (N, N))


def part(A: DistMatrix, LU: Any) -> None:
    """This rank's entries of [L\\U]."""
    rows = [A.rows.to_global(i) for i in range(A.rows.local_size)]
    cols = [A.cols.to_global(j) for j in range(A.cols.local_size)]
    A.local[:] = LU[np.ix_(rows, cols)]


@pytest.mark.parametrize(("P", "Q"), [(1, 1), (2, 1), (1, 2), (2, 3), (3, 2), (1, 5)])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("sides", [(), (3,), (6,)])
def test_every_grid_solves_as_one_process_does(P: int, Q: int, transposed: bool, sides: tuple[int, ...]) -> None:
    """Solve for one vector, a few, which are multiplied individually, and more, which are multiplied together."""
    LU, b = whole(), np.random.default_rng(4).uniform(-1.0, 1.0, (N, *sides))
    M = (np.tril(LU, -1) + np.eye(N)) @ np.triu(LU)

    def body(comm: Any) -> dict[int, Any]:
        kernels = HostKernels(1, poison=True)
        grid = make_grid(ProcessGrid(P, Q), comm)
        assert grid is not None
        A = dist_matrix(grid, N, N, NB, kernels)
        part(A, LU)
        over, under = (A.cols, A.rows) if transposed else (A.rows, A.cols)
        mine = b[[over.to_global(i) for i in range(over.local_size)]]
        factors = Factored(A, kernels)
        x = factors.solve_transposed(mine) if transposed else factors.solve(mine)
        return {under.to_global(i): value.tolist() for i, value in enumerate(x)}

    values: dict[int, Any] = {}
    for of_rank in run_ranks(P * Q, body):
        for i, value in of_rank.items():
            assert values.setdefault(i, value) == value, "all ranks of a line have the same numbers"
    x = np.array([values[i] for i in range(N)])
    expected = np.linalg.solve(M.T if transposed else M, b)
    assert np.abs(x - expected).max() <= 1e-12 * np.abs(expected).max()


class Noting(HostKernels):
    """Kernels that record after how many reductions a rank multiplies more than a block row."""

    reductions = 0

    def __init__(self) -> None:
        super().__init__(1)
        self.large: list[int] = []

    def add_matvec(self, y: Any, A: Any, x: Any, *, transposed: bool = False) -> None:
        if len(y) > NB:
            self.large.append(self.reductions)
        super().add_matvec(y, A, x, transposed=transposed)


def test_all_process_columns_multiply_what_lies_beyond_a_round_between_the_same_reductions() -> None:
    P, Q = 3, 2

    def body(comm: Any) -> tuple[int, list[int]]:
        kernels = Noting()
        grid = make_grid(ProcessGrid(P, Q), comm)
        assert grid is not None
        A = dist_matrix(grid, N, N, NB, kernels)
        part(A, whole())
        reduce = grid.column.allreduce

        def counted(buffer: Any, op: str) -> None:
            kernels.reductions += 1
            reduce(buffer, op)

        grid.column.allreduce = counted  # type: ignore[method-assign]
        Factored(A, kernels).solve_transposed(np.ones(A.cols.local_size))
        return grid.q, kernels.large

    found = run_ranks(P * Q, body)
    for q in range(Q):
        first, *others = (large for column, large in found if column == q)
        assert first
        assert all(other == first for other in others)


@pytest.mark.parametrize(("P", "Q"), [(1, 3), (3, 1), (2, 2)])
def test_a_block_row_is_multiplied_with_all_that_is_known_when_the_one_before_it_is_solved(P: int, Q: int) -> None:
    """Its long rows are multiplied at once, and then single blocks, when other process rows solve in between."""

    class Shapes(HostKernels):
        def __init__(self) -> None:
            super().__init__(1)
            self.shapes: list[tuple[int, int]] = []

        def add_matvec(self, y: Any, A: Any, x: Any, *, transposed: bool = False) -> None:
            self.shapes.append(A.shape)
            super().add_matvec(y, A, x, transposed=transposed)

    def body(comm: Any) -> tuple[int, list[tuple[int, int]]]:
        kernels = Shapes()
        grid = make_grid(ProcessGrid(P, Q), comm)
        assert grid is not None
        A = dist_matrix(grid, N, N, NB, kernels)
        part(A, whole())
        Factored(A, kernels).solve(np.ones(A.rows.local_size))
        return A.cols.local_size, kernels.shapes

    for columns, shapes in run_ranks(P * Q, body):
        long = [known for _, known in shapes if known > NB]
        assert all(rows <= NB for rows, _ in shapes)
        assert max(long) >= columns - (P + 1) * NB
        if Q == 1:  # otherwise the other process rows' blocks may be in other columns
            assert len(shapes) - len(long) >= (P - 1) * (len(long) - P)
