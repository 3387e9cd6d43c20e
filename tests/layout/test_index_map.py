"""IndexMap against counting, and against the block-cyclic distribution that they stand for."""

from __future__ import annotations

from itertools import product

import pytest

from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.index_map import IndexMap, block_cyclic, consecutive


def check_against_counting(places: IndexMap, end: int) -> None:
    """`before` counts what `to_global` lists, in front of every global index, also those off the matrix."""
    listed = [places.to_global(il) for il in range(places.size)]
    assert listed == sorted(set(listed)), "local order is global order"
    for ig in range(-3, end + 4):
        assert places.before(ig) == sum(place < ig for place in listed), (places, ig)


@pytest.mark.parametrize("P", [1, 2, 3, 5])
def test_dealt_places_are_the_block_cyclic_ones(P: int) -> None:
    for n, nb, p in product(range(14), range(1, 6), range(P)):
        part = BlockCyclic(n, nb, p, P)
        places = block_cyclic(part)
        assert places.size == part.local_size
        assert [places.to_global(il) for il in range(places.size)] == [
            ig for ig in range(n) if part.owner(ig) == p
        ]  # fmt: skip
        assert all(places.to_global(il) == part.to_global(il) for il in range(places.size))
        assert all(places.before(ig) == part.local_start(ig) for ig in range(n + 1))
        check_against_counting(places, n)


@pytest.mark.parametrize("first", [0, 1, 7])
def test_consecutive_places_follow_one_another(first: int) -> None:
    for size in range(9):
        places = consecutive(size, first)
        assert [places.to_global(il) for il in range(size)] == list(range(first, first + size))
        check_against_counting(places, first + size)


def test_consecutive_places_begin_at_the_top_unless_told() -> None:
    assert consecutive(5) == consecutive(5, 0)


def test_places_of_any_form_are_counted() -> None:
    for size, first, nb, gap in product(range(8), (0, 2), range(1, 4), range(4)):
        places = IndexMap(size, first, nb, nb + gap)
        check_against_counting(places, first + (size + 1) * (nb + gap))
