"""Test that process grids are bijections of ranks and coordinates, for every order and node grid."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxpeak.configs.grid import squarest
from mxpeak.errors import UsageError
from mxpeak.layout.grid import ProcessGrid, best_node_grid, nearest_node_grids, node_grids

SIZES = [(P, Q) for P in range(1, 9) for Q in range(1, 9)]


def tilings(P, Q):
    return [None, *((p, q) for p in range(1, P + 1) if P % p == 0 for q in range(1, Q + 1) if Q % q == 0)]


@pytest.mark.parametrize("order", ["row", "column"])
def test_coords_and_rank_are_inverse_for_every_small_grid_order_and_node_grid(order):
    for P, Q in SIZES:
        for node_grid in tilings(P, Q):
            grid = ProcessGrid(P, Q, order, node_grid)
            coords = [grid.coords(rank) for rank in range(P * Q)]
            assert sorted(coords) == [(p, q) for p in range(P) for q in range(Q)]
            assert [grid.rank(p, q) for p, q in coords] == list(range(P * Q))


@pytest.mark.parametrize("order", ["row", "column"])
def test_consecutive_ranks_of_a_node_fill_one_block_of_the_grid(order):
    for P, Q in SIZES:
        for p, q in filter(None, tilings(P, Q)):
            grid = ProcessGrid(P, Q, order, (p, q))
            for first in range(0, P * Q, p * q):
                coords = [grid.coords(rank) for rank in range(first, first + p * q)]
                top, left = min(coords)
                assert top % p == 0
                assert left % q == 0
                assert sorted(coords) == [(top + i, left + j) for i in range(p) for j in range(q)]


def test_row_and_column_order_are_those_of_hpl():
    row, column = ProcessGrid(2, 3), ProcessGrid(2, 3, "column")
    assert [row.coords(r) for r in range(6)] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert [column.coords(r) for r in range(6)] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]


@pytest.mark.parametrize("order", ["row", "column"])
def test_a_node_grid_of_the_whole_grid_or_of_one_rank_changes_nothing(order):
    for P, Q in SIZES:
        plain = ProcessGrid(P, Q, order)
        for node_grid in [(P, Q), (1, 1)]:
            other = ProcessGrid(P, Q, order, node_grid)
            assert [other.coords(r) for r in range(P * Q)] == [plain.coords(r) for r in range(P * Q)]


@given(st.integers(1, 12), st.integers(1, 12), st.sampled_from(["row", "column"]), st.data())
def test_every_rank_has_one_position(P, Q, order, data):
    grid = ProcessGrid(P, Q, order, data.draw(st.sampled_from(tilings(P, Q))))
    assert sorted(grid.rank(p, q) for p in range(P) for q in range(Q)) == list(range(grid.size))
    assert all(grid.rank(*grid.coords(rank)) == rank for rank in range(grid.size))


def test_a_node_grid_that_does_not_tile_is_refused_with_the_nearest_that_do():
    with pytest.raises(
        UsageError, match=r"3x4 does not divide the process grid 4x8: 4 / 3 leaves a remainder of 1, 8 / 4 leaves"
    ) as e:
        ProcessGrid(4, 8, node_grid=(3, 4))
    assert "--node-grid 2x4 or 4x4" in str(e.value)
    assert nearest_node_grids(4, 8, 3, 4)[0] == (2, 4)


def test_node_grids_with_as_many_ranks_a_node_are_suggested_first():
    assert nearest_node_grids(4, 4, 8, 1)[:2] == [(4, 2), (2, 4)]


def test_node_grids_of_so_many_ranks_are_all_that_tile():
    for (P, Q), ranks in product(SIZES, range(1, 17)):
        assert node_grids(P, Q, ranks) == [grid for grid in tilings(P, Q)[1:] if grid[0] * grid[1] == ranks]


def test_the_best_node_grid_sends_the_fewest_bytes():
    """Equation 4 of Lu et al. (2022): a node sends 2N²(p/P + q/Q) bytes."""
    for (P, Q), ranks, panels in product(SIZES, range(1, 17), (False, True)):
        best = best_node_grid(P, Q, ranks, shares_cores=False, panels=panels)
        parts = node_grids(P, Q, ranks)
        if not parts or ranks >= P * Q:
            assert best is None
            continue
        least = min(Fraction(p, P) + Fraction(q, Q) for p, q in parts)
        equal = [(p, q) for p, q in parts if Fraction(p, P) + Fraction(q, Q) == least]
        assert best == (max(equal) if panels else min(equal))
        assert best_node_grid(P, Q, ranks, shares_cores=True, panels=panels) == min(parts)


@pytest.mark.parametrize(("P", "Q"), [(0, 4), (4, 0), (-1, 1)])
def test_an_empty_grid_is_refused(P, Q):
    with pytest.raises(UsageError, match="P and Q must be at least 1"):
        ProcessGrid(P, Q)


def test_an_unknown_order_and_a_node_grid_of_nothing_are_refused():
    with pytest.raises(UsageError, match="use row or column"):
        ProcessGrid(1, 1, "diagonal")
    with pytest.raises(UsageError, match="0 is less than 1"):
        ProcessGrid(2, 2, node_grid=(0, 1))


def test_coordinates_outside_the_grid_are_an_index_error():
    grid = ProcessGrid(2, 3)
    for rank in (-1, 6):
        with pytest.raises(IndexError):
            grid.coords(rank)
    for p, q in [(2, 0), (0, 3), (-1, 0)]:
        with pytest.raises(IndexError):
            grid.rank(p, q)


def test_the_map_shows_each_rank_at_its_coordinates_and_rules_between_nodes():
    assert ProcessGrid(4, 4, "row", (2, 2)).render().splitlines() == [
        "process grid 4x4, row order, node grid 2x2",
        "   0    1 |  4    5",
        "   2    3 |  6    7",
        "  --   --   --   --",
        "   8    9 | 12   13",
        "  10   11 | 14   15",
    ]


def test_the_map_has_no_rules_without_a_node_grid():
    assert ProcessGrid(2, 2).render().splitlines()[1:] == ["  0   1", "  2   3"]


def test_a_large_map_is_cut_and_says_so():
    lines = ProcessGrid(40, 20).render().splitlines()
    assert len(lines) == 34
    assert lines[-1] == "  (only 32 of 40 process rows and 16 of 20 columns are shown)"


def test_squarest_has_the_right_product_and_no_squarer_pair_exists():
    for ranks in range(1, 200):
        P, Q = squarest(ranks)
        assert ranks == P * Q
        assert not any(ranks % p == 0 for p in range(P + 1, Q) if p * p <= ranks)
