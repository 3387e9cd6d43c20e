"""Which ranks share a node, or a folder: found by groups and reductions, so that no rank holds a list of all ranks."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar
from zlib import crc32

from mxpeak.comm.base import Communicator, meet_asleep
from mxpeak.errors import MxpeakError

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
    here = alike(comm, node_name())
    told = here.bcast_object(here.gather_objects(mine))
    rank, size = here.rank, here.size
    here.free()
    (count,) = combined(comm, [float(rank == 0)], "sum")
    (most,) = combined(comm, [float(size)], "max")
    return Nodes(rank, size, int(count), int(most), told)


def leads(comm: Communicator, text: str) -> bool:
    """Whether this is the first of the ranks that say the same text.  Collective over comm."""
    group = alike(comm, text)
    first = group.rank == 0
    group.free()
    return first


def alike(comm: Communicator, text: str) -> Communicator:
    """The ranks that say the same text: those with its checksum, told apart once more where two texts have one."""
    likely = comm.split(crc32(text.encode()) >> 1, comm.rank)
    assert likely is not None
    if likely.agree(likely.bcast_object(text) == text):
        return likely
    texts = sorted(set(likely.bcast_object(likely.gather_objects(text))))
    group = likely.split(texts.index(text), likely.rank)
    likely.free()
    assert group is not None
    return group


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
    here = alike(comm, name)
    (count,) = combined(here, [float(used and comm.rank % size == 0)], "sum")
    here.free()
    (most,) = combined(comm, [count], "max")
    return int(most)


def by_root(comm: Communicator, action: Callable[[], T]) -> T:
    """What `action` gives on rank 0, told to everybody; its error becomes everybody's.  Collective over comm.

    However long it takes: the others sleep.
    """
    answer: T | MxpeakError | None = None
    bug: Exception | None = None
    if comm.rank == 0:
        try:
            answer = action()
        except MxpeakError as error:
            answer = error
        except Exception as error:  # the others must not wait for the answer
            bug, answer = error, MxpeakError(f"rank 0: {type(error).__name__}: {error}")
    meet_asleep(comm)
    answer = comm.bcast_object(answer)
    if bug is not None:
        raise bug
    if isinstance(answer, MxpeakError):
        raise answer
    return answer


def raise_first(comm: Communicator, mistake: MxpeakError | None) -> None:
    """Raise the mistake of the first rank that made one, on all ranks, under its number.  Collective over comm."""
    if comm.agree(mistake is None):
        return
    for rank, wrong in enumerate(comm.bcast_object(comm.gather_objects(mistake))):
        if wrong is not None:
            raise wrong if comm.size == 1 else type(wrong)(f"rank {rank}: {wrong}")


def combined(comm: Communicator, values: list[float], op: str) -> list[float]:
    """Numbers, each combined over all ranks: sum or max.  Collective over comm."""
    buffer = array("d", values)
    comm.allreduce(buffer, op)
    return list(buffer)
