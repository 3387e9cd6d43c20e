from __future__ import annotations

import numpy as np
import pytest

from mxpeak.distributed.stencil import coarse_points
from mxpeak.kernels.contract.sparse import Order
from mxpeak.layout.stencil import Box


def shuffled(rows: int, seed: int) -> Order:
    """Rows in any order, each a group of its own."""
    new_to_old = np.random.default_rng(seed).permutation(rows).astype(np.int32)
    return Order(new_to_old, np.argsort(new_to_old).astype(np.int32), np.arange(rows + 1), "shuffled")


@pytest.mark.parametrize("shape", [(2, 2, 2), (4, 2, 6), (8, 6, 4)])
def test_coarse_points_are_every_second_point_in_both_orders(shape: tuple[int, int, int]) -> None:
    box = Box(*shape)
    half = box.coarser()
    order, coarse = shuffled(box.rows, 1), shuffled(half.rows, 2)
    points = coarse_points(order, coarse, box)
    for row, fine in enumerate(points):
        at, under = order.new_to_old[fine], coarse.new_to_old[row]
        found = np.unravel_index(at, shape[::-1])
        assert found == tuple(2 * c for c in np.unravel_index(under, half.shape[::-1])), row
    assert len(points) == half.rows
