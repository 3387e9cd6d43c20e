"""Cores of one node: which rank computes on which."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxpeak.errors import UsageError
from mxpeak.layout.cores import core_masks, oversubscribed, short_list


@given(st.integers(1, 16), st.integers(0, 40))
def test_cores_are_cut_into_contiguous_nearly_equal_parts(ranks, extra):
    cores = list(range(3, 3 + ranks + extra))
    masks = core_masks(cores, ranks)
    assert len(masks) == ranks
    assert [core for mask in masks for core in mask] == cores
    assert max(map(len, masks)) - min(map(len, masks)) <= 1


def test_more_ranks_than_cores_take_them_in_turn_and_are_flagged():
    assert core_masks([4, 5, 6], 5) == [[4], [5], [6], [4], [5]]
    assert oversubscribed([4, 5, 6], 5)
    assert not oversubscribed([4, 5, 6], 3)


@pytest.mark.parametrize(("cores", "text"), [([], "empty"), ([1, 2, 2, 3], "listed twice: 2;")])
def test_impossible_lists_of_cores_say_what_is_wrong(cores, text):
    with pytest.raises(UsageError, match=text):
        core_masks(cores, 2)


def test_core_ranges_are_short():
    assert short_list([10, 0, 1, 2, 3, 8, 11]) == "0-3,8,10-11"
    assert short_list([]) == ""
