"""Cores of one node: who owns which, and which are used in turn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxpeak.errors import UsageError
from mxpeak.layout.cores import core_masks, core_ranges, oversubscribed, render_core_map, root_cores
from mxpeak.layout.grid import ProcessGrid

FRONTIER = [list(range(8 * ccd, 8 * ccd + 8)) for ccd in range(8)]
ORDERS = st.sampled_from(["row", "column"])


def test_a_frontier_node_with_2x4_ranks_gives_29_threads_a_rank_as_in_the_paper():
    masks = core_masks(range(64), (2, 4), root_cores(FRONTIER, 8), share=True)
    assert [mask[0] for mask in masks] == [0, 8, 16, 24, 32, 40, 48, 56]
    assert {len(mask) for mask in masks} == {1 + (64 - 8) // 2} == {29}
    at_work = set(masks[0]) | set(masks[4])  # ranks (0, 0) and (1, 0): one panel
    assert len(at_work) == 2 + (64 - 8)


@given(st.integers(1, 6), st.integers(1, 6), ORDERS, st.integers(0, 40))
def test_sharing_gives_each_rank_its_root_alone_and_each_process_row_its_group(P, Q, order, extra):
    cores = list(range(100, 100 + P * Q + extra))
    masks = core_masks(cores, (P, Q), None, order, share=True)
    grid = ProcessGrid(P, Q, order)
    roots = [mask[0] for mask in masks]
    groups = [{tuple(masks[r][1:]) for r in grid.row_ranks(p)} for p in range(P)]
    assert len(set(roots)) == P * Q
    assert all(len(group) == 1 for group in groups)  # the ranks of a row share one group
    pool = [core for group in groups for core in next(iter(group))]
    assert sorted(pool + roots) == cores  # groups of different rows do not overlap, and no core is left out
    assert {len(next(iter(group))) for group in groups} <= {extra // P, -(-extra // P)}


@given(st.integers(1, 9), st.integers(0, 40))
def test_with_one_process_column_sharing_is_a_plain_partition(P, extra):
    cores = range(P + extra)
    assert core_masks(cores, (P, 1), None, share=True) == core_masks(cores, (P, 1), None, share=False)


@given(st.integers(1, 9), st.integers(0, 40))
def test_with_one_process_row_every_rank_uses_the_whole_pool(Q, extra):
    masks = core_masks(range(Q + extra), (1, Q), None, share=True)
    assert {len(mask) for mask in masks} == {1 + extra}
    assert len({tuple(mask[1:]) for mask in masks}) == 1


@given(st.integers(1, 4), st.integers(1, 4), ORDERS, st.integers(0, 40))
def test_without_sharing_the_cores_are_cut_into_contiguous_nearly_equal_parts(P, Q, order, extra):
    cores = list(range(3, 3 + P * Q + extra))
    masks = core_masks(cores, (P, Q), None, order, share=False)
    assert [core for mask in masks for core in mask] == cores
    assert max(map(len, masks)) - min(map(len, masks)) <= 1


@pytest.mark.parametrize("share", [True, False])
def test_more_ranks_than_cores_are_dealt_round_robin_and_flagged(share):
    assert core_masks([4, 5, 6], (1, 5), None, share=share) == [[4], [5], [6], [4], [5]]
    assert oversubscribed([4, 5, 6], 5)
    assert not oversubscribed([4, 5, 6], 3)


def test_a_process_row_gets_the_pool_cores_near_its_roots_in_column_order_too():
    roots = root_cores(FRONTIER[:4], 4)
    masks = core_masks(range(32), (2, 2), roots, "column", share=True)  # row 0: ranks 0 and 2, on CCDs 0 and 2
    assert set(masks[0]) | set(masks[2]) == set(FRONTIER[0]) | set(FRONTIER[2])
    assert set(masks[1]) | set(masks[3]) == set(FRONTIER[1]) | set(FRONTIER[3])


def test_roots_come_one_a_domain_where_there_are_as_many_domains_as_ranks():
    assert root_cores(FRONTIER, 8) == [0, 8, 16, 24, 32, 40, 48, 56]


def test_few_ranks_are_spread_over_far_domains():
    assert root_cores(FRONTIER, 2) == [0, 32]
    assert root_cores(FRONTIER, 4) == [0, 16, 32, 48]
    assert root_cores(FRONTIER, 1) == [0]


def test_many_ranks_are_spread_within_domains():
    assert root_cores([[0, 1, 2, 3], [4, 5, 6, 7]], 4) == [0, 2, 4, 6]
    assert root_cores([[0, 1, 2, 3], [4, 5, 6, 7]], 3) == [0, 2, 4]


def test_small_and_empty_domains_take_no_more_roots_than_they_have_cores():
    assert root_cores([[9], [], [0, 1, 2, 3, 4, 5]], 4) == [9, 0, 2, 4]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.data())
def test_roots_are_distinct_cores_of_the_domains(sizes, data):
    starts = [sum(sizes[:d]) for d in range(len(sizes))]
    domains = [list(range(start, start + size)) for start, size in zip(starts, sizes)]
    ranks = data.draw(st.integers(0, sum(sizes)))
    roots = root_cores(domains, ranks)
    assert len(roots) == len(set(roots)) == ranks
    assert set(roots) <= set(range(sum(sizes)))
    counts = [len(set(domain) & set(roots)) for domain in domains]
    free = [count for count, size in zip(counts, sizes) if count < size]
    assert not free or max(counts) - min(free) <= 1


def test_more_roots_than_cores_are_refused_with_the_number_that_fits():
    with pytest.raises(UsageError, match="5 ranks need 5 root cores, but the 2 domains hold 4 cores; start at most 4"):
        root_cores([[0, 1], [2, 3]], 5)


@pytest.mark.parametrize(
    ("cores", "roots", "text"),
    [
        ([], None, "empty"),
        ([1, 2, 2, 3], None, "listed twice: 2;"),
        ([0, 1, 2, 3], [0, 1, 2], r"1\*2 = 2 ranks, but 3 root cores"),
        ([0, 1, 2, 3], [1, 1], "same root core"),
        ([0, 1, 2, 3], [0, 7], "root cores 7 are not among the cores 0-3"),
    ],
)
def test_impossible_requests_say_what_is_wrong(cores, roots, text):
    with pytest.raises(UsageError, match=text):
        core_masks(cores, (1, 2), roots, share=True)


def test_the_map_shows_place_root_threads_and_shared_cores():
    text = render_core_map(core_masks(range(6), (1, 2), [0, 3], share=True), (1, 2), first_rank=8)
    assert text.splitlines() == [
        "rank    8 at (0, 0)  root core   0    5 threads  on cores 0-2,4-5",
        "rank    9 at (0, 1)  root core   3    5 threads  on cores 1-5",
        "shared in turn by the ranks of a process row: cores 1-2,4-5",
    ]


def test_the_map_marks_oversubscribed_ranks():
    lines = render_core_map(core_masks([0, 1], (1, 3), None, share=False), (1, 3)).splitlines()
    assert [line.endswith("1 thread  on cores 0  (oversubscribed)") for line in lines] == [True, False, True]


def test_core_ranges_are_short():
    assert core_ranges([10, 0, 1, 2, 3, 8, 11]) == "0-3,8,10-11"
    assert core_ranges([]) == ""
