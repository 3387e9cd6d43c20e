"""Test nodes and groups of nodes as units of a scan, their schedule, and the decision about groups."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import pytest

from mxpeak.errors import UsageError
from mxpeak.verbs.scan.config import ScanConfig
from mxpeak.verbs.scan.decide import RankRates, decide
from mxpeak.verbs.scan.units import AGREES, DIFFERS, agreement, check_group_sizes, schedule


@pytest.mark.parametrize(("nodes", "size"), [(4, 2), (5, 2), (8, 4), (9, 4), (16, 2), (30, 8)])
def test_groups_change_their_partners(nodes: int, size: int) -> None:
    plan = schedule(nodes, size, 7)
    assert plan == schedule(nodes, size, 7)
    for groups in plan:
        members = [node for group in groups for node in group]
        assert len(members) == len(set(members)) == nodes - nodes % size
        assert all(len(group) == size for group in groups)
    worked = Counter(node for groups in plan for group in groups for node in group)
    assert max(worked.values()) - min(worked[node] for node in range(nodes)) <= 1
    met = Counter(pair for groups in plan for group in groups for pair in combinations(group, 2))
    assert max(met.values()) < 7, "no pair works together in all rounds"


def test_group_sizes_that_cannot_identify_a_node() -> None:
    check_group_sizes((2, 4), 8, 1)
    with pytest.raises(UsageError, match=r"--group 4 needs at least 8 nodes.*but 7 take part"):
        check_group_sizes((2, 4), 7, 5)


def test_one_round_must_include_all_nodes() -> None:
    check_group_sizes((2,), 5, 2)
    with pytest.raises(UsageError, match=r"--group 2 leaves 1 of 5 nodes out.*--rounds 1"):
        check_group_sizes((2,), 5, 1)


@pytest.mark.parametrize(("nodes", "size"), [(4, 2), (6, 2), (8, 4), (16, 4)])
@pytest.mark.parametrize("slow", [0, 3])
def test_only_the_slow_node_is_named(nodes: int, size: int, slow: int) -> None:
    plan = schedule(nodes, size, 7)
    best = [
        max(
            (0.6 if slow in group else 1.0) * (1 + 1e-3 * (node % 3))
            for groups in plan
            for group in groups
            if node in group
        )
        for node in range(nodes)
    ]
    verdict = decide([RankRates(node, "k", {"LU": [rate]}, {}) for node, rate in enumerate(best)], 0.05)
    assert [finding.rank for finding in verdict.slow] == [slow]


def test_a_node_that_spoils_its_groups_differs() -> None:
    plan = schedule(6, 2, 5)
    bits = [["" for _ in plan] for _ in range(6)]
    for t, groups in enumerate(plan):
        for group in groups:
            for node in group:
                bits[node][t] = "bad" if 2 in group else "good"
    assert agreement(bits) == [AGREES, AGREES, DIFFERS, AGREES, AGREES, AGREES]


def test_without_a_majority_the_results_are_undecided() -> None:
    own = agreement([["a", "b"], ["a", "b"], ["b", "a"], ["b", "a"]])
    verdict = decide([RankRates(k, "k", {}, {"LU": [bits]}) for k, bits in enumerate(["a", "a", "b", "b"])], 0.05)
    assert set(own) == {"a,b"}
    assert [item.reason for item in verdict.undecided] == ["no majority"]


def test_a_node_of_one_rank_is_a_rank() -> None:
    assert ScanConfig().unit == "rank"
