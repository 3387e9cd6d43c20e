"""Test which rank of a node computes on which cores."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxpeak.configs.grid import squarest
from mxpeak.errors import UsageError
from mxpeak.layout.cores import core_masks, oversubscribed, short_list, taking_turns


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


def test_ranks_that_share_cores_make_panels_on_several_of_them():
    """In the squarest grid no process column is on a single core, and the loads of cores differ by at most one rank."""
    for count in range(2, 9):
        for P in range(2, 7):
            for Q in range(P, 9):
                if count >= P * Q or squarest(P * Q) != (P, Q):
                    continue
                masks = core_masks(range(count), P * Q)
                assert all(len({masks[rank][0] for rank in range(q, P * Q, Q)}) > 1 for q in range(Q)), (count, P, Q)
                loads = [sum(mask == [core] for mask in masks) for core in range(count)]
                assert max(loads) - min(loads) <= 1
    assert core_masks([0, 1], 4) == [[0], [1], [1], [0]]


@pytest.mark.parametrize(("cores", "text"), [([], "empty"), ([1, 2, 2, 3], "these cores twice: 2;")])
def test_impossible_lists_of_cores_say_what_is_wrong(cores, text):
    with pytest.raises(UsageError, match=text):
        core_masks(cores, 2)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 9))
def test_ranks_of_a_process_row_share_the_cores_of_the_row(p, q, each):
    """rocHPL, §III-B: T = 1 + (C - pq)/p; ranks of a process column factor together and share no core."""
    masks = core_masks(range(p * q * each), p * q)
    rows = [rank // q for rank in range(p * q)]
    shares = taking_turns(masks, rows)
    assert {len(cores) for cores in shares} == {1 + (p * q * each - p * q) // p}
    assert [cores[:each] for cores in shares] == masks
    for column in range(q):
        together = [core for rank, cores in enumerate(shares) if rank % q == column for core in cores]
        assert len(set(together)) == len(together) == p + (p * q * each - p * q)
    roots = {cores[0] for cores in shares}
    assert all(not roots & set(cores[1:]) for cores in shares)


def test_frontiers_ranks_factor_panels_with_15_cores_of_4_by_2_and_29_of_2_by_4():
    """64 cores, 8 ranks: the paper's node and its example."""
    masks = core_masks(range(64), 8)
    assert [len(cores) for cores in taking_turns(masks, [rank // 2 for rank in range(8)])] == [15] * 8
    assert [len(cores) for cores in taking_turns(masks, [rank // 4 for rank in range(8)])] == [29] * 8


def test_core_ranges_are_short():
    assert short_list([10, 0, 1, 2, 3, 8, 11]) == "0-3,8,10-11"
    assert short_list([]) == ""
