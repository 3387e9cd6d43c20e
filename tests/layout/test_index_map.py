"""Compare IndexMap with counting, and with the block-cyclic distribution."""

from __future__ import annotations

from itertools import product

import numpy as np

from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.index_map import IndexMap, block_cyclic, consecutive


def check_against_counting(index_map: IndexMap, end: int) -> None:
    """Compare `before` with a count of the indices in `to_global`, for indices inside and outside of the matrix."""
    listed = [index_map.to_global(il) for il in range(index_map.size)]
    assert listed == sorted(set(listed)), "local order is global order"
    assert index_map.to_global(np.arange(index_map.size)).tolist() == listed, "of an array of local indices each"
    for ig in range(-3, end + 4):
        assert index_map.before(ig) == sum(other < ig for other in listed), (index_map, ig)


def test_block_cyclic_maps_are_those_of_the_distribution() -> None:
    for P, n, nb in product((1, 2, 3, 5), range(14), range(1, 6)):
        for p in range(P):
            part = BlockCyclic(n, nb, p, P)
            index_map = block_cyclic(part)
            assert index_map.size == part.local_size
            listed = [index_map.to_global(il) for il in range(index_map.size)]
            assert listed == [ig for ig in range(n) if part.owner(ig) == p]
            assert listed == [part.to_global(il) for il in range(index_map.size)]
            assert all(index_map.before(ig) == part.local_start(ig) for ig in range(n + 1))
            check_against_counting(index_map, n)


def test_consecutive_indices_follow_one_another() -> None:
    for size, first in product(range(9), (0, 1, 7)):
        index_map = consecutive(size, first)
        assert [index_map.to_global(il) for il in range(size)] == list(range(first, first + size))
        check_against_counting(index_map, first + size)
    assert consecutive(5) == consecutive(5, 0)


def test_indices_of_any_form_are_counted() -> None:
    for size, first, nb, gap in product(range(8), (0, 2), range(1, 4), range(4)):
        check_against_counting(IndexMap(size, first, nb, nb + gap), first + (size + 1) * (nb + gap))
