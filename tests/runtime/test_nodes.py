"""Test that groups and reductions find the ranks of a node or folder, on simulated nodes."""

from __future__ import annotations

from typing import Any

import pytest

from mxpeak.comm.transports.solo import Solo
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.runtime import nodes
from mxpeak.runtime.nodes import blocks_a_node, nodes_of

#: Five ranks on three nodes, assigned cyclically.
NAMES = ["a", "b", "c", "a", "b"]


def test_facts_of_nodes_are_the_same_everywhere() -> None:
    def body(comm: Any) -> Any:
        def split(color: int | None, key: int, real: Any = comm.split) -> Any:
            return real(ord(NAMES[comm.rank]), key)  # as if the host had this name

        comm.split = split
        found = nodes_of(comm, comm.rank)
        return found.rank, found.size, found.count, found.max_ranks, found.values

    first, *_, last = run_ranks(5, body)
    assert first == (0, 2, 3, 2, [0, 3])
    assert last == (1, 2, 3, 2, [1, 4])


@pytest.mark.parametrize(
    ("names", "size", "ranks", "limit"),
    [
        ("aabb", 2, 4, 1), ("aaaa", 2, 4, 2), ("abab", 2, 4, 0), ("aabbc", 2, 4, 1), ("aaabb", 2, 2, 1),
        ("aaabb", 2, 4, 0), ("aabbbb", 2, 6, 2), ("abcde", 1, 5, 1), ("aaab", 4, 4, 0),
    ],
)  # fmt: skip
def test_blocks_of_ranks_are_counted_by_node_and_found_where_they_lie_on_several(
    names: str, size: int, ranks: int, limit: int
) -> None:
    found = run_ranks(len(names), lambda comm: blocks_a_node(comm, names[comm.rank], size, ranks))
    assert found == [limit] * len(names)


def test_one_rank_is_alone() -> None:
    assert nodes_of(Solo(), "x") == nodes.Nodes(0, 1, 1, 1, ["x"])
