"""HPL's six broadcasts, and the MPI library's own, as communication algorithms over point-to-point messages.

Ranks are numbered from the root: r = (rank - root) mod size, so the root is r = 0.  The "modified" forms serve r = 1
first and alone, for it is the process column that factors the next panel and must not also forward.
"""

from __future__ import annotations

from collections.abc import Callable

from mxpeak.comm.base import Buffer, Communicator, Request, Steps, all_of, passing_on
from mxpeak.configs.lu import BCASTS

TAG = 7002  # a multiple of FAMILY


def chain(comm: Communicator, buffer: Buffer, root: int, order: list[int], tag: int = TAG) -> Steps:
    """Pass the buffer along `order` (numbers counted from the root), each to the next; others do nothing."""
    r = (comm.rank - root) % comm.size
    if r not in order:
        return
    at = order.index(r)
    if at > 0:
        yield comm.irecv(buffer, (order[at - 1] + root) % comm.size, tag)
    if at + 1 < len(order):
        yield comm.isend(buffer, (order[at + 1] + root) % comm.size, tag)


def one_ring(comm: Communicator, buffer: Buffer, root: int) -> Steps:
    """0 → 1 → 2 → … → Q-1."""
    yield from chain(comm, buffer, root, list(range(comm.size)))


def one_ring_modified(comm: Communicator, buffer: Buffer, root: int) -> Steps:
    """0 → 1, then 0 → 2 → 3 → … → Q-1."""
    yield from chain(comm, buffer, root, [0, 1] if comm.size > 1 else [0])
    yield from chain(comm, buffer, root, [0, *range(2, comm.size)])


def two_ring(comm: Communicator, buffer: Buffer, root: int) -> Steps:
    """0 → 1 → … → Q/2-1, and 0 → Q/2 → … → Q-1: two half rings at once."""
    middle = (comm.size + 1) // 2
    yield from _both(comm, buffer, root, [0, *range(1, middle)], [0, *range(middle, comm.size)])


def two_ring_modified(comm: Communicator, buffer: Buffer, root: int) -> Steps:
    """0 → 1, then two half rings over 2 … Q-1."""
    yield from chain(comm, buffer, root, [0, 1] if comm.size > 1 else [0])
    middle = 2 + (comm.size - 2 + 1) // 2 if comm.size > 2 else comm.size
    yield from _both(comm, buffer, root, [0, *range(2, middle)], [0, *range(middle, comm.size)])


def _both(comm: Communicator, buffer: Buffer, root: int, first: list[int], second: list[int]) -> Steps:
    """Two chains that leave the root together; every other rank stands in one of them."""
    if comm.rank != root:
        yield from chain(comm, buffer, root, first)
        yield from chain(comm, buffer, root, second)
        return
    yield from all_of(comm.isend(buffer, (ring[1] + root) % comm.size, TAG) for ring in (first, second) if ring[1:])


def long(comm: Communicator, buffer: Buffer, root: int) -> Steps:
    """Spread and roll: the root scatters Q pieces, then all pass pieces round the ring (bandwidth-optimal)."""
    yield from _spread_and_roll(comm, buffer, root, list(range(comm.size)))


def long_modified(comm: Communicator, buffer: Buffer, root: int) -> Steps:
    """0 → 1 whole, then spread and roll among all but 1."""
    yield from chain(comm, buffer, root, [0, 1] if comm.size > 1 else [0])
    yield from _spread_and_roll(comm, buffer, root, [r for r in range(comm.size) if r != 1])


def _spread_and_roll(comm: Communicator, buffer: Buffer, root: int, order: list[int]) -> Steps:
    """Piece i goes from the root to order[i]; then len(order)-1 rolls to the right complete everybody's buffer."""
    r = (comm.rank - root) % comm.size
    ranks = [(number + root) % comm.size for number in order]
    size = len(ranks)
    if r not in order or size == 1:
        return
    me = order.index(r)
    count = buffer.shape[0]
    cuts = [count * i // size for i in range(size + 1)]
    piece = [buffer[cuts[i] : cuts[i + 1]] for i in range(size)]

    if me == 0:
        yield from all_of(comm.isend(piece[i], ranks[i], TAG) for i in range(1, size))
    else:
        yield comm.irecv(piece[me], root, TAG)
    left, right = ranks[(me - 1) % size], ranks[(me + 1) % size]
    for roll in range(size - 1):
        send: list[Request] = []
        # The root has every piece already: nothing is sent to it, and it receives nothing.
        if (me + 1) % size != 0:
            send = [comm.isend(piece[(me - roll) % size], right, TAG + 1)]
        if me != 0:
            yield comm.irecv(piece[(me - 1 - roll) % size], left, TAG + 1)
        yield from all_of(send)


def library(comm: Communicator, buffer: Buffer, root: int) -> Steps:
    """The message passing library's own broadcast, waited for on the spot."""
    comm.ibcast(buffer, root).wait()
    yield from ()


def library_nonblocking(comm: Communicator, buffer: Buffer, root: int) -> Steps:
    """The message passing library's own broadcast, in the background."""
    yield comm.ibcast(buffer, root)


BROADCASTS: dict[str, Callable[[Communicator, Buffer, int], Steps]] = {
    "1ring": one_ring,
    "1ringM": one_ring_modified,
    "2ring": two_ring,
    "2ringM": two_ring_modified,
    "long": long,
    "longM": long_modified,
    "lib": library,
    "ilib": library_nonblocking,
}


def register(name: str, algorithm: Callable[[Communicator, Buffer, int], Steps]) -> None:
    """Make a broadcast known by this name: to `broadcast`, and to --bcast."""
    if name in BROADCASTS:
        raise ValueError(f"the broadcast {name} is registered already")
    BROADCASTS[name] = algorithm
    BCASTS.append(name)


def broadcast(name: str, comm: Communicator, buffer: Buffer, root: int) -> Steps:
    """Broadcast `name` of a one-dimensional contiguous buffer; nothing where there is nobody else.  Collective."""

    def algorithm(bare: Communicator, memory: list[Buffer]) -> Steps:
        return BROADCASTS[name](bare, memory[0], root)

    if comm.size > 1:
        yield from passing_on(comm, [buffer], [0] if comm.rank == root else [], algorithm)
