"""Test cuts, halos, products and sweeps of a matrix whose rows are distributed over virtual ranks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from mxpeak.comm.base import Communicator
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.distributed.halo import Exchange, localized
from mxpeak.distributed.rows import cuts, distribute
from mxpeak.distributed.stencil import Form, make_general
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.kernels.reference.sparse import ReferenceSparse
from mxpeak.spans import Spans
from tests.support.own_matrices import random_matrix, tridiagonal
from tests.support.roundoff import U

Array = np.ndarray[Any, np.dtype[Any]]


@settings(max_examples=50, deadline=None)
@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=40), data=st.data())
def test_every_rank_has_rows_and_nearly_its_share_of_the_entries(lengths: list[int], data: st.DataObject) -> None:
    ranks = data.draw(st.integers(1, len(lengths)))
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    starts = cuts(indptr, ranks)
    assert (starts[0], starts[-1], len(starts)) == (0, len(lengths), ranks + 1)
    assert all(begin < end for begin, end in pairwise(starts))
    if ranks * max(lengths) <= len(lengths):  # rows are so short that no cut moves to the next row
        shares = np.diff(indptr[starts])
        assert np.all(abs(shares - sum(lengths) / ranks) <= max(lengths))


def product(comm: Communicator, kernels: Any, A: Any, x: Array) -> tuple[int, Array]:
    """Return the first row of this rank and its part of A x, computed by the kernels with a halo and a row order."""
    block = distribute(comm, A if comm.rank == 0 else None)
    rows, partners = localized(kernels, comm, block)
    order = kernels.order(rows, "greedy")
    stored = kernels.store(rows, order, "fp64", "fp64", "sell")
    halo = Exchange(kernels, comm, partners, order, "fp64")
    whole, y = kernels.halo_vector(stored), np.empty(block.n)
    own, received = whole[: block.n], whole[block.n : block.n + stored.halo]
    own[:] = x[block.first : block.first + block.n][order.new_to_old]
    if (travel := halo.begin(own, received)) is not None:
        travel.wait()
    kernels.matvec(y, stored, whole)
    found = np.empty(block.n)
    found[order.new_to_old] = y
    return block.first, found


def gathered(parts: list[tuple[int, Array]]) -> Array:
    assert [first for first, _ in parts] == sorted(first for first, _ in parts)
    return np.concatenate([part for _, part in parts])


KERNELS = {"host": lambda: HostKernels(1).sparse, "reference": ReferenceSparse}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("density", [0.02, 0.1, 0.6])
def test_products_over_ranks_are_scipys_whatever_the_pattern(name: str, ranks: int, density: float) -> None:
    """Products of integers are exact, so a missing or doubled entry would show; other products agree up to rounding."""
    n = 37
    for seed in range(2):
        for whole_numbers in (True, False):
            A = random_matrix(n, density, seed, whole_numbers=whole_numbers)
            x = np.arange(1.0, n + 1.0) if whole_numbers else np.random.default_rng(seed).standard_normal(n)
            y = gathered(run_ranks(ranks, lambda comm, A=A, x=x: product(comm, KERNELS[name](), A, x)))
            if whole_numbers:
                assert np.array_equal(y, A @ x)
            else:  # two sums of n products, in two orders
                assert np.all(abs(y - A @ x) <= 2 * n * U * (abs(A) @ abs(x)))


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ranks_may_need_rows_of_those_that_need_none_of_theirs(ranks: int) -> None:
    n = 15
    first_column, last_row = sp.lil_array((n, n)), sp.lil_array((n, n))
    first_column[:, 0], last_row[n - 1, :] = 3.0, 5.0
    for one in (first_column, last_row, tridiagonal(n, 0.0, 1.0, 0.0), tridiagonal(n, 0.0, 0.0, 2.0), 0 * first_column):
        A = sp.csr_array(one + 7.0 * sp.eye_array(n))
        y = gathered(run_ranks(ranks, lambda comm, A=A: product(comm, KERNELS["host"](), A, np.arange(n) + 1.0)))
        assert np.array_equal(y, A @ (np.arange(n) + 1.0))


def test_a_rank_without_neighbours_has_no_halo_and_others_are_asked_once_for_each_row() -> None:
    def body(comm: Communicator) -> list[tuple[int, list[int], int, int]]:
        block = distribute(comm, A if comm.rank == 0 else None)
        _, partners = localized(KERNELS["host"](), comm, block)
        return [(one.rank, one.rows.tolist(), one.offset, one.received) for one in partners]

    pair = np.ones((2, 2))
    A = sp.lil_array(sp.block_diag([pair, pair, sp.eye_array(2)]))
    A[4, 2] = A[5, 3] = 1.0
    A = sp.csr_array(A)
    assert run_ranks(3, body) == [[], [(2, [0, 1], 0, 0)], [(1, [], 0, 2)]]


@pytest.mark.parametrize("storage", ["rows", "sell", "packed"])
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_sweeps_go_row_by_row_also_while_the_halo_travels_and_the_pattern_is_not_symmetric(
    ranks: int, storage: str
) -> None:
    """A sweep uses the old x of other ranks, and the natural order of the rank's own rows."""
    A, n = random_matrix(60, 0.05, 3), 60
    x, b = np.arange(n) % 7.0, A.sum(axis=1)

    def body(comm: Communicator) -> tuple[int, Array]:
        kernels, block = KERNELS["host"](), distribute(comm, A if comm.rank == 0 else None)
        kind = "natural" if storage == "rows" else "levels"
        problem = make_general(kernels, comm, block, [Form(("fp64",), "fp64", storage)], kind, Spans())
        order = kernels.order(localized(kernels, comm, block)[0], kind)
        matrix, swept = problem.hierarchies[0].outer, np.empty(block.n)
        whole = matrix.halo_vector()
        matrix.own(whole)[:] = x[block.first : block.first + block.n][order.new_to_old]
        matrix.relax(problem.b, whole)
        swept[order.new_to_old] = matrix.own(whole)
        return block.first, swept

    parts = run_ranks(ranks, body)
    for first, swept in parts:
        y = x.copy()
        for i in range(first, first + swept.size):
            y[i] += (b[i] - A[[i]] @ y)[0] / A[i, i]
        assert swept == pytest.approx(y[first : first + swept.size], abs=n * U * 7)  # |x| <= 7, rows are dominated
