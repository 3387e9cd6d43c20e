"""Every host kernel gives what the reference kernel gives, within its error bound, on ragged and prime sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mxpeak.comm.exchange import allreduce_by
from mxpeak.comm.threads import run_ranks
from mxpeak.kernels.contract import Kernels
from mxpeak.kernels.contract.lu import Panel
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.kernels.reference.kernels import ReferenceKernels
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.entries import Entries
from mxpeak.layout.panel_plan import panel_plan
from mxpeak.layout.row_moves import local_moves, row_moves
from tests.support.roundoff import U

FACTS = ("left", "crout", "right")


def fill(kernels: Kernels, values: Any) -> Any:
    """A matrix of the backend with the given values, cut out of a larger one so that ld > rows."""
    rows, columns = values.shape
    A = kernels.matrix(rows, columns + 5)[:, 2 : columns + 2]
    A[:] = values
    return A


def column_major(kernels: Kernels, values: Any) -> Any:
    """A panel of the backend with the given values, cut out of a taller one so that ld > rows."""
    rows, columns = values.shape
    A = kernels.panel(kernels.vector(kernels.panel_size(rows + 5, columns)), rows + 5, columns)[2 : rows + 2]
    A[:] = values
    return A


def square(kernels: Kernels, jb: int) -> Any:
    """An uninitialised jb×jb block of a panel."""
    return kernels.panel(kernels.vector(kernels.panel_size(jb, jb)), jb, jb)


@pytest.mark.parametrize("P", [1, 2, 3])
@pytest.mark.parametrize(("n", "nb"), [(1, 1), (7, 3), (61, 8), (30, 64)])
def test_generated_matrix_is_the_reference_bit_for_bit(
    host: HostKernels, reference: Any, n: int, nb: int, P: int
) -> None:
    for p in range(P):
        for Q, q in ((1, 0), (2, 1)):
            rows, cols = BlockCyclic(n, nb, p, P), BlockCyclic(n + 1, nb, q, Q)
            ours, oracle = (k.matrix(rows.local_size, cols.local_size) for k in (host, reference))
            for kernels, A in ((host, ours), (reference, oracle)):
                kernels.generate(A, rows, cols, Entries("lcg", n, seed=100, scale=-1.0, shift=0.5), kernels.zeros(0))
            assert np.array_equal(ours, oracle)


@pytest.mark.parametrize("pfact", FACTS)
@pytest.mark.parametrize("rfact", FACTS)
@pytest.mark.parametrize(("m", "jb", "nbmin", "ndiv"), [(1, 1, 1, 2), (13, 5, 2, 2), (61, 16, 4, 3), (200, 37, 8, 2)])
def test_panel_is_the_reference_panel(
    host: HostKernels, reference: Any, rng: Any, m: int, jb: int, nbmin: int, ndiv: int, pfact: str, rfact: str
) -> None:
    values = rng.random((m, jb)) - 0.5
    plan = panel_plan(jb, nbmin, ndiv, rfact)
    found = []
    for kernels in (host, reference):
        A, L1, pivots = column_major(kernels, values), square(kernels, jb), kernels.vector(jb + 1)
        kernels.factor_panel(Panel(A, L1, pivots, BlockCyclic(m, jb, 0, 1), 0, jb, plan, pfact), None)
        assert pivots[jb] == 0
        found.append((A[jb:].copy(), L1.copy(), list(pivots)))
    (L21, L1, pivots), (L21_ref, L1_ref, pivots_ref) = found
    assert pivots == pivots_ref
    # |L| <= 1 and |U| <= growth; two eliminations in different orders differ by jb·u·growth²: 100 covers the constant.
    bound = 100 * jb * U * max(1.0, np.abs(L1_ref).max()) ** 2
    assert np.abs(L1 - L1_ref).max() <= bound
    assert L21.size == 0 or np.abs(L21 - L21_ref).max() <= bound


@pytest.mark.parametrize("make", [lambda: HostKernels(1), lambda: HostKernels(2), ReferenceKernels])
@pytest.mark.parametrize("P", [2, 3, 5])
@pytest.mark.parametrize("fact", FACTS)
def test_panel_over_a_process_column_has_the_pivots_of_one_process(
    make: Callable[[], Kernels], P: int, fact: str
) -> None:
    n, nb, jb = 97, 8, 8
    matrix = np.random.default_rng(7).random((n, jb)) - 0.5

    def factor(comm: Any) -> tuple[list[int], Any]:
        kernels, rows = make(), BlockCyclic(n, nb, comm.rank, P)
        mine = [rows.to_global(il) for il in range(rows.local_size)]
        A, L1, pivots = column_major(kernels, matrix[mine]), square(kernels, jb), kernels.vector(jb + 1)
        theirs = kernels.candidate(jb)

        def exchange(candidate: Any) -> None:
            allreduce_by(comm, candidate, theirs, kernels.better_candidate)

        panel = Panel(A, L1, pivots, rows, 0, jb if comm.rank == 0 else 0, panel_plan(jb, 4, 2, fact), fact)
        kernels.factor_panel(panel, exchange)
        return list(pivots), L1

    alone = ReferenceKernels()
    A, L1, pivots = column_major(alone, matrix), square(alone, jb), alone.vector(jb + 1)
    alone.factor_panel(
        Panel(A, L1, pivots, BlockCyclic(n, nb, 0, 1), 0, jb, panel_plan(jb, jb, 2, "right"), "right"), None
    )
    for found, L1_found in run_ranks(P, factor):
        assert found == list(pivots)
        assert np.abs(L1_found - L1).max() <= 100 * jb * U


def test_a_column_of_zeros_is_named(host: HostKernels, reference: Any) -> None:
    for kernels in (host, reference):
        values = np.ones((9, 3)) * [1.0, 2.0, 0.5]  # columns 1 and 2 vanish once column 0 is eliminated
        A, L1, pivots = column_major(kernels, values), square(kernels, 3), kernels.vector(4)
        panel = Panel(A, L1, pivots, BlockCyclic(9, 3, 0, 1), 0, 3, panel_plan(3, 2, 2, "right"), "right")
        kernels.factor_panel(panel, None)
        assert pivots[3] == 2


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_reaches_the_factors(host: HostKernels, rng: Any, value: float) -> None:
    values = rng.random((40, 6)) - 0.5
    values[11, 2] = value
    A, L1, pivots = column_major(host, values), square(host, 6), host.vector(7)
    host.factor_panel(Panel(A, L1, pivots, BlockCyclic(40, 6, 0, 1), 0, 6, panel_plan(6, 2, 2, "right"), "right"), None)
    assert not (np.isfinite(A[6:]).all() and np.isfinite(L1).all())


def test_a_failed_exchange_is_raised_and_not_swallowed(host: HostKernels, rng: Any) -> None:
    def exchange(candidate: Any) -> None:
        raise ConnectionError("the other rank is gone")

    A, L1, pivots = column_major(host, rng.random((40, 4))), square(host, 4), host.vector(5)
    panel = Panel(A, L1, pivots, BlockCyclic(80, 4, 0, 2), 0, 4, panel_plan(4, 2, 2, "right"), "right")
    with pytest.raises(ConnectionError, match="is gone"):
        host.factor_panel(panel, exchange)


@pytest.mark.parametrize("columns", [0, 1, 7])
def test_row_moves_do_what_the_reference_does(host: HostKernels, reference: Any, rng: Any, columns: int) -> None:
    n, j0, jb = 53, 6, 11
    pivots = [int(rng.integers(j0 + i, n)) for i in range(jb)]
    moves = local_moves(row_moves(j0, pivots), j0, BlockCyclic(n, jb, 0, 1))
    values = rng.random((n, columns))
    expected = values.copy()
    for i, pivot in enumerate(pivots):
        expected[[j0 + i, pivot]] = expected[[pivot, j0 + i]]
    for kernels in (host, reference):
        lists = [kernels.indices(part) for part in (moves.my_sources, moves.my_targets, moves.out_rows[0])]
        A = fill(kernels, values)
        kernels.permute_rows(A, j0, *lists)
        assert np.array_equal(A, expected)
        out = kernels.shaped(kernels.vector(jb * columns), jb, columns)
        kernels.gather_rows(fill(kernels, values), lists[0], out)
        assert np.array_equal(out, values[moves.my_sources])
        kernels.scatter_rows(out, lists[0], A)
        assert np.array_equal(A[moves.my_sources], out)
        target = fill(kernels, np.zeros((n, columns)))
        kernels.copy(fill(kernels, values), target)
        assert np.array_equal(target, values)


@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 2), (1, 1, 1), (31, 17, 5), (5, 97, 13)])
def test_products_and_solves_are_within_their_bounds(
    host: HostKernels, reference: Any, rng: Any, m: int, n: int, k: int
) -> None:
    A, B, C = rng.random((m, k)) - 0.5, rng.random((k, n)) - 0.5, rng.random((m, n)) - 0.5
    L, T = np.tril(rng.random((k, k)) - 0.5, -1), np.triu(rng.random((k, k)) + 1.0)
    x, y = rng.random(k), rng.random(m)
    found = []
    for kernels in (host, reference):
        C_, B_, x_, y_ = fill(kernels, C), fill(kernels, B), x.copy(), y.copy()
        kernels.subtract_product(C_, column_major(kernels, A), fill(kernels, B))
        kernels.solve_unit_lower(column_major(kernels, L), B_)
        kernels.solve_upper(fill(kernels, T), x_)
        kernels.add_matvec(y_, fill(kernels, A), x)
        found.append((C_, B_, x_, y_))
    # Entries are below 2 in size; each result is a sum of at most k+1 products, in two orders: 2·(k+1)·u·(k+1).
    # The triangular solves amplify by at most (1 + 1/2)^k for L, and less for T, whose diagonal dominates a row.
    product, solve = 2 * (k + 1) ** 2 * U, 2 * (k + 1) ** 2 * U * 1.5**k
    for ours, oracle, bound in zip(*found, (product, solve, solve, product)):
        assert ours.size == 0 or np.abs(ours - oracle).max() <= bound


def test_sums_and_maxima_of_absolute_values(host: HostKernels, reference: Any, rng: Any) -> None:
    values = rng.random((67, 13)) - 0.5
    for kernels in (host, reference):
        by_row, by_column = kernels.vector(67), kernels.vector(13)
        kernels.abs_sums(fill(kernels, values), by_row, by_column)
        assert np.allclose(by_row, np.abs(values).sum(axis=1), rtol=13 * U, atol=0)
        assert np.allclose(by_column, np.abs(values).sum(axis=0), rtol=67 * U, atol=0)
        assert kernels.max_abs(by_row) == by_row.max()
        assert kernels.max_abs(kernels.zeros(0)) == 0.0
        by_row[3] = np.nan
        assert np.isnan(kernels.max_abs(by_row))
