"""Find the ranks of each node by groups and reductions, so that no rank needs a list of all ranks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Generic, TypeVar

from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalar, split_by_label

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Nodes(Generic[T]):
    """This rank's position in its node, and facts about all nodes.

    rank        number of this rank among the ranks of its node
    size        number of ranks of this node
    count       number of nodes
    max_ranks   number of ranks of the fullest node
    values      values that the ranks of this node exchanged, by rank
    """

    rank: int
    size: int
    count: int
    max_ranks: int
    values: list[T]


def node_name() -> str:
    """Return the name of the node on which this rank runs: MXPEAK_NODE, or the host name.

    Containers with equal host names on several hosts need the variable.
    """
    return os.environ.get("MXPEAK_NODE") or os.uname().nodename


def nodes_of(comm: Communicator, value: T) -> Nodes[T]:
    """Group the ranks by node name and exchange a value within each node. Collective over comm."""
    group = split_by_label(comm, node_name())
    values = group.bcast_object(group.gather_objects(value))
    rank, size = group.rank, group.size
    group.free()
    count = allreduce_scalar(comm, float(rank == 0), "sum")
    max_ranks = allreduce_scalar(comm, float(size), "max")
    return Nodes(rank, size, int(count), int(max_ranks), values)


def blocks_a_node(comm: Communicator, name: str, size: int, ranks: int) -> int:
    """Return the largest number of blocks of `size` consecutive ranks on one node, or 0 if a block spans nodes.

    `name` is the name of this rank's node. Only the first `ranks` ranks count. Collective over comm.
    """
    used = comm.rank < ranks
    block = comm.split(comm.rank // size if used else None, comm.rank)
    together = block is None or block.bcast_object(name) == name
    if block is not None:
        block.free()
    if not comm.agree(together):
        return 0
    group = split_by_label(comm, name)
    count = allreduce_scalar(group, float(used and comm.rank % size == 0), "sum")
    group.free()
    max_ranks = allreduce_scalar(comm, count, "max")
    return int(max_ranks)
