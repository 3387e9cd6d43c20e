"""Test which node grids fit the nodes, and the errors for those that do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxpeak.errors import UsageError
from mxpeak.layout.grid import ProcessGrid
from mxpeak.layout.nodes import check_node_grid, fitting_node_grids


def by_node(*counts: int) -> list[str]:
    """Return the host of each rank, with these numbers of consecutive ranks on the hosts."""
    return [f"node{i}" for i, count in enumerate(counts) for _ in range(count)]


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.sampled_from(["row", "column"]))
def test_a_node_grid_fits_where_every_node_has_one_or_several_whole(p, q, rows, columns, order):
    grid = ProcessGrid(p * rows, q * columns, order, (p, q))
    blocks = rows * columns
    for hosts in (by_node(*[p * q] * blocks), ["alone"] * grid.size, by_node(p * q, *[2 * p * q] * blocks)):
        check_node_grid(grid, hosts)
    assert f"--node-grid {p}x{q}" in fitting_node_grids(grid, p * q)


def test_idle_ranks_are_on_any_node():
    check_node_grid(ProcessGrid(2, 2, "row", (1, 2)), by_node(2, 2, 1))


def test_a_node_grid_on_several_nodes_is_refused_with_those_that_fit():
    with pytest.raises(UsageError) as refused:
        check_node_grid(ProcessGrid(4, 6, "row", (2, 2)), by_node(6, 6, 6, 6))
    assert str(refused.value) == (
        "--node-grid 2x2 needs 2*2 = 4 consecutive ranks on one node, but ranks 4 to 7 are on 2 nodes: "
        "node0 has 4-5, node1 has 6-7; each node has 6 ranks, so use --node-grid 2x3 or --node-grid 1x6, "
        "or start 4 ranks per node"
    )


@pytest.mark.parametrize("hosts", [["a", "b"] * 4, by_node(3, 5), list("aabbaabb")], ids=["cyclic", "ragged", "twice"])
def test_without_a_fitting_node_grid_the_error_says_how_to_start_the_ranks(hosts):
    with pytest.raises(UsageError, match="ranks 0 to 3 are on") as refused:
        check_node_grid(ProcessGrid(2, 4, "row", (2, 2)), hosts)
    assert str(refused.value).endswith(
        "start 4 ranks per node, numbered node by node (mpiexec -ppn 4, or srun --ntasks-per-node=4 "
        "--distribution=block), or remove --node-grid"
    )


def test_of_many_nodes_the_first_are_named():
    with pytest.raises(UsageError, match=r"are on 8 nodes: node0 has 0, .* node3 has 3, \.\.\.; each node has 1 rank"):
        check_node_grid(ProcessGrid(2, 4, "row", (2, 4)), by_node(*[1] * 8))
