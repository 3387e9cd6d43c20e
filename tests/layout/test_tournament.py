"""Test that each pair of units meets exactly once, and that no unit is in two pairs of a round."""

from __future__ import annotations

from itertools import combinations

import pytest

from mxpeak.layout.tournament import opponent, round_count


@pytest.mark.parametrize("units", [*range(1, 14), 64, 101])
def test_each_pair_meets_once(units: int) -> None:
    met = []
    for k in range(round_count(units)):
        pairs = {unit: opponent(units, k, unit) for unit in range(units)}
        pausing = [unit for unit, other in pairs.items() if other is None]
        assert len(pausing) == units % 2
        assert all(pairs[other] == unit for unit, other in pairs.items() if other is not None)
        met += [(unit, other) for unit, other in pairs.items() if other is not None and unit < other]
    assert sorted(met) == list(combinations(range(units), 2))


def test_round_counts() -> None:
    assert [round_count(units) for units in (1, 2, 3, 4, 5, 8)] == [0, 1, 3, 3, 5, 7]
