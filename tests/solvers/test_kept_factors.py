"""L kept below U, and P noted: P A = L U, entry by entry, however the factorization goes about it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mxpeak.comm.grid import make_grid
from mxpeak.comm.threads import run_ranks
from mxpeak.distributed.matrix import dist_matrix
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.layout.grid import ProcessGrid
from mxpeak.layout.row_moves import RowOrder
from mxpeak.solvers.pivoted_lu import PivotedLuOptions, factorize
from mxpeak.spans import Spans
from tests.support.roundoff import U

VARIANTS = {
    "plain": PivotedLuOptions(lookahead=0),
    "look-ahead": PivotedLuOptions(),
    "split": PivotedLuOptions(split=0.5),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (2, 3)])
@pytest.mark.parametrize(("precision", "u"), [("fp64", U), ("fp32", 2.0**-24)])
def test_the_kept_factors_are_those_of_the_permuted_matrix(
    shape: tuple[int, int], variant: str, precision: str, u: float
) -> None:
    n, nb = 67, 6
    A = np.random.default_rng(7).standard_normal((n, n))

    def body(comm: Any) -> tuple[Any, list[int], list[int]]:
        grid = make_grid(ProcessGrid(*shape), comm)
        assert grid is not None
        kernels, order = HostKernels(1, poison=True), RowOrder(n)
        M = dist_matrix(grid, n, n, nb, kernels, precision)
        i, j = ([part.to_global(at) for at in range(part.local_size)] for part in (M.rows, M.cols))
        M.local[:] = A[np.ix_(i, j)]
        assert factorize(M, VARIANTS[variant], kernels, Spans(), order=order) == 0
        LU = np.zeros((n, n))
        LU[np.ix_(i, j)] = M.local
        return LU, order.rows, order.inverse

    parts, orders, inverses = zip(*run_ranks(shape[0] * shape[1], body))
    LU = sum(parts)
    assert all(order == orders[0] for order in orders)
    assert [orders[0][at] for at in inverses[0]] == list(range(n))
    L, upper = np.tril(LU, -1) + np.eye(n), np.triu(LU)
    assert np.abs(L).max() == 1.0
    assert (np.abs(A[orders[0]] - L @ upper) <= 2 * n * u * (np.abs(L) @ np.abs(upper))).all()
