"""Test powers of two that scale rows and columns."""

from __future__ import annotations

from math import inf, ldexp, nan

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mxpeak.kernels.arrays import xp
from mxpeak.solvers.scaling import LEAST, RANGE, SPREAD, balanced, powers, spread


@given(st.lists(st.floats(min_value=0.0, allow_infinity=False), min_size=1, max_size=9))
def test_powers_of_two_bring_numbers_below_1_and_at_least_to_a_half(values: list[float]) -> None:
    for x, p in zip(values, powers(np.array(values), xp)):
        assert np.frexp(p)[0] == 0.5
        if x >= LEAST:
            assert 0.5 <= x * p < 1.0
        else:
            assert p == (1 / LEAST if x else 1.0)


def test_powers_of_fp32_numbers_are_fp64s() -> None:
    found = powers(np.array([2.0**-149, 3.0, 0.0], np.float32), xp)
    assert found.dtype == np.float64
    assert found.tolist() == [2.0**148, 0.25, 1.0]


def test_a_spread_is_counted_in_powers_of_two_between_numbers_other_than_zero() -> None:
    for values, found in (([], 0), ([0.0, 0.0], 0), ([3.0], 0), ([0.0, 1.0, 8.0], 3), ([ldexp(1.0, -1074), 1.5], 1074)):
        assert spread(np.array(values), xp) == found


def test_sums_are_balanced_within_a_range_and_a_spread() -> None:
    for sums, scales in (
        ([1.0, SPREAD, 2.0], True),
        ([1.0, 2 * SPREAD, 2.0], False),
        ([RANGE / 2, RANGE / 4, RANGE / 8], True),
        ([RANGE, RANGE, RANGE], False),
        ([1 / RANGE, 1 / RANGE, 1 / RANGE], False),
        ([2 / RANGE, 2 / RANGE, 4 / RANGE], True),
        ([1.0, 0.0, 1.0], False),
        ([1.0, nan, 1.0], False),
        ([1.0, inf, 1.0], False),
    ):
        ends = np.min(sums), np.max(sums)
        assert balanced(ends, (1.0, 1.0)) == scales, sums
        assert balanced((1.0, 1.0), ends) == scales, sums
