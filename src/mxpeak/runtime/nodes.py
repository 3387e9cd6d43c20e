"""Which ranks share a node, or a folder: found by groups and reductions, so that no rank holds a list of all ranks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Generic, TypeVar

from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalar, split_by_label

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Nodes(Generic[T]):
    """This rank among those of its node, and what is known of all nodes.

    rank    its number among the ranks of its node
    here    how many those are
    count   how many nodes there are
    most    how many ranks the fullest of them has
    told    what the ranks of this node have told each other, by their numbers
    """

    rank: int
    here: int
    count: int
    most: int
    told: list[T]


def node_name() -> str:
    """The name of this rank's node."""
    return os.uname().nodename


def nodes_of(comm: Communicator, mine: T) -> Nodes[T]:
    """Who shares this node, by its name, and what they say.  Collective over comm."""
    here = split_by_label(comm, node_name())
    told = here.bcast_object(here.gather_objects(mine))
    rank, size = here.rank, here.size
    here.free()
    count = allreduce_scalar(comm, float(rank == 0), "sum")
    most = allreduce_scalar(comm, float(size), "max")
    return Nodes(rank, size, int(count), int(most), told)


def blocks_a_node(comm: Communicator, name: str, size: int, ranks: int) -> int:
    """How many blocks of `size` consecutive ranks, of the first `ranks`, the fullest node has; 0: one lies on several.

    `name` is this rank's node.  Collective over comm.
    """
    used = comm.rank < ranks
    block = comm.split(comm.rank // size if used else None, comm.rank)
    together = block is None or block.bcast_object(name) == name
    if block is not None:
        block.free()
    if not comm.agree(together):
        return 0
    here = split_by_label(comm, name)
    count = allreduce_scalar(here, float(used and comm.rank % size == 0), "sum")
    here.free()
    most = allreduce_scalar(comm, count, "max")
    return int(most)
