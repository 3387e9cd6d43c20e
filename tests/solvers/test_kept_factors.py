"""Test P A = L U entry by entry for every variant of a factorization that keeps L."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mxpeak.comm.grid import make_grid
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.distributed.dense import dist_matrix
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.layout.grid import ProcessGrid
from mxpeak.layout.row_moves import RowOrder
from mxpeak.precision import PRECISIONS
from mxpeak.solvers.lu.pivoted_lu import PivotedLuOptions, factorize
from mxpeak.spans import Spans

VARIANTS = {
    "plain": PivotedLuOptions(lookahead=0),
    "look-ahead": PivotedLuOptions(),
    "split": PivotedLuOptions(split=0.5),
}


class ByRows(HostKernels):
    """Kernels that require C stored by rows in products with rounded operands, like the processor's own products."""

    def subtract_product(self, C: Any, A: Any, B: Any) -> None:
        assert C.strides[1] == C.itemsize or C.shape[1] <= 1
        super().subtract_product(C, A, B)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (2, 3)])
@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16", "fp16"])
def test_the_kept_factors_are_those_of_the_permuted_matrix(
    shape: tuple[int, int], variant: str, precision: str
) -> None:
    n, nb = 67, 6
    A = np.random.default_rng(7).standard_normal((n, n))
    stored = "fp64" if precision == "fp64" else "fp32"
    options = replace(VARIANTS[variant], operands=precision)

    def body(comm: Any) -> tuple[Any, list[int], list[int]]:
        grid = make_grid(ProcessGrid(*shape), comm)
        assert grid is not None
        made = HostKernels if precision == stored else ByRows
        kernels, order = made(1, poison=True), RowOrder(n)
        M = dist_matrix(grid, n, n, nb, kernels, stored)
        i, j = ([part.to_global(at) for at in range(part.local_size)] for part in (M.rows, M.cols))
        M.local[:] = A[np.ix_(i, j)]
        assert factorize(M, options, kernels, Spans(), order=order) == 0
        LU = np.zeros((n, n))
        LU[np.ix_(i, j)] = M.local
        return LU, order.rows, order.inverse

    parts, orders, inverses = zip(*run_ranks(shape[0] * shape[1], body))
    LU = sum(parts)
    assert all(order == orders[0] for order in orders)
    assert [orders[0][at] for at in inverses[0]] == list(range(n))
    L, upper = np.tril(LU, -1) + np.eye(n), np.triu(LU)
    assert np.abs(L).max() == 1.0
    error, size = np.abs(A[orders[0]] - L @ upper), np.abs(L) @ np.abs(upper)
    plain = 2 * n * PRECISIONS[stored].u * size
    rounded = 0.0 if precision == stored else 2.01 * PRECISIONS[precision].u * size  # of both operands
    assert (error <= plain + rounded).all()
    assert (error <= plain).all() == (precision == stored)
