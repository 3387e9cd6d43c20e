"""HPL's six broadcasts and the MPI library's own, as communication algorithms over point-to-point messages.

Ranks are numbered from the root: r = (rank - root) mod size, so the root is r = 0. The "modified" forms first send a
separate message to r = 1, because that process column factors the next panel and must not forward messages.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from mxpeak.comm.base import Buffer, Communicator, Request, Steps, all_of, passing_on, together
from mxpeak.configs.lu import BCASTS

TAG = 7002  # a multiple of FAMILY
#: Tag of a message that precedes the broadcast between the same ranks and must not be confused with it.
AHEAD = 7005
#: Maximum number of pieces of a forwarded message, and minimum bytes per piece.
PIECES, PIECE_BYTES = 4, 2**18
#: Some libraries start messages in posting order, and start messages that are posted together in one operation. If the
#: receives of all pieces were posted together, they would complete together, and the first one would wait for a piece
#: that is sent only after it is complete.
IN_ORDER = ("torch",)


def cut(buffer: Buffer, count: int) -> list[Buffer]:
    """Divide a one-dimensional buffer into `count` consecutive views of nearly equal size."""
    ends = [buffer.shape[0] * i // count for i in range(count + 1)]
    return [buffer[begin:end] for begin, end in pairwise(ends)]


def chain(comm: Communicator, buffer: Buffer, root: int, order: list[int], tag: int = TAG) -> Steps:
    """Forward the buffer along `order`, whose ranks are counted from the root; other ranks do nothing.

    The buffer is forwarded in pieces so that hops overlap. The receives of all pieces are posted first, so that a
    piece can arrive before the previous piece is tested.
    """
    r = (comm.rank - root) % comm.size
    if r not in order:
        return
    at = order.index(r)
    hops = len(order) - 1
    max_pieces = 1 if hops == 1 or comm.name in IN_ORDER else PIECES
    pieces = cut(buffer, max(1, min(max_pieces, buffer.nbytes // PIECE_BYTES)))
    coming = [comm.irecv(piece, (order[at - 1] + root) % comm.size, tag) for piece in pieces] if at > 0 else []
    going: list[Request] = []
    for i, piece in enumerate(pieces):
        yield from coming[i : i + 1]
        if at < hops:
            going.append(comm.isend(piece, (order[at + 1] + root) % comm.size, tag))
    yield from all_of(going)


def one_ring(comm: Communicator, buffer: Buffer, root: int) -> Steps:
    """Broadcast the buffer along one ring, 0 → 1 → 2 → … → Q-1."""
    yield from chain(comm, buffer, root, list(range(comm.size)))


def one_ring_modified(comm: Communicator, buffer: Buffer, root: int, tag: int = TAG) -> Steps:
    """Send the buffer from 0 to 1, then broadcast it along the ring 0 → 2 → 3 → … → Q-1."""
    yield from chain(comm, buffer, root, [0, 1] if comm.size > 1 else [0], tag)
    yield from chain(comm, buffer, root, [0, *range(2, comm.size)], tag)


def two_ring(comm: Communicator, buffer: Buffer, root: int) -> Steps:
    """Broadcast the buffer over two concurrent half rings, 0 → 1 → … → Q/2-1 and 0 → Q/2 → … → Q-1."""
    middle = (comm.size + 1) // 2
    yield from _both(comm, buffer, root, [0, *range(1, middle)], [0, *range(middle, comm.size)])


def two_ring_modified(comm: Communicator, buffer: Buffer, root: int) -> Steps:
    """Send the buffer from 0 to 1, then broadcast it over two half rings of the ranks 2 … Q-1."""
    yield from chain(comm, buffer, root, [0, 1] if comm.size > 1 else [0])
    middle = 2 + (comm.size - 2 + 1) // 2 if comm.size > 2 else comm.size
    yield from _both(comm, buffer, root, [0, *range(2, middle)], [0, *range(middle, comm.size)])


def _both(comm: Communicator, buffer: Buffer, root: int, first: list[int], second: list[int]) -> Steps:
    """Broadcast the buffer over two concurrent chains of ranks, `first` and `second`, which both start at the root."""
    if comm.rank != root:
        yield from chain(comm, buffer, root, first)
        yield from chain(comm, buffer, root, second)
        return
    yield from together(chain(comm, buffer, root, first), chain(comm, buffer, root, second))


def long(comm: Communicator, buffer: Buffer, root: int) -> Steps:
    """Broadcast the buffer by spread and roll, which is bandwidth-optimal.

    The root scatters Q pieces, then all ranks forward pieces around the ring.
    """
    yield from _spread_and_roll(comm, buffer, root, list(range(comm.size)))


def long_modified(comm: Communicator, buffer: Buffer, root: int) -> Steps:
    """Send the whole buffer from 0 to 1, then broadcast it by spread and roll among all ranks except 1."""
    yield from chain(comm, buffer, root, [0, 1] if comm.size > 1 else [0])
    yield from _spread_and_roll(comm, buffer, root, [r for r in range(comm.size) if r != 1])


def _spread_and_roll(comm: Communicator, buffer: Buffer, root: int, order: list[int]) -> Steps:
    """Broadcast the buffer among the ranks of `order` by spread and roll.

    The root sends piece i to order[i], then len(order)-1 rolls to the right complete all buffers. The next receive is
    always posted in advance, because a long message starts only after its receive is posted.
    """
    r = (comm.rank - root) % comm.size
    ranks = [(number + root) % comm.size for number in order]
    size = len(ranks)
    if r not in order or size == 1:
        return
    me, piece = order.index(r), cut(buffer, size)
    left, right = ranks[(me - 1) % size], ranks[(me + 1) % size]
    # The root has every piece already, so nothing is sent to it.
    if me == 0:
        spread = [comm.isend(piece[i], ranks[i], TAG) for i in range(1, size)]
        yield from all_of(spread + [comm.isend(piece[-roll % size], right, TAG + 1) for roll in range(size - 1)])
        return
    coming, going = [comm.irecv(piece[me], root, TAG)], list[Request]()
    for roll in range(size - 1):
        coming.append(comm.irecv(piece[(me - 1 - roll) % size], left, TAG + 1))
        yield coming[roll]
        if me + 1 < size:
            going.append(comm.isend(piece[(me - roll) % size], right, TAG + 1))
    yield from all_of([coming[-1], *going])


def library(comm: Communicator, buffer: Buffer, root: int) -> Steps:
    """Broadcast the buffer with the message passing library, and wait until the broadcast is complete."""
    comm.ibcast(buffer, root).wait()
    yield from ()


def library_nonblocking(comm: Communicator, buffer: Buffer, root: int) -> Steps:
    """Broadcast the buffer with the message passing library, without waiting."""
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
    """Register a broadcast algorithm for `broadcast` and the option --bcast; raise ValueError if the name is taken."""
    if name in BROADCASTS:
        raise ValueError(f"the broadcast {name} is already registered; use another name")
    BROADCASTS[name] = algorithm
    BCASTS.append(name)


def broadcast(name: str, comm: Communicator, buffer: Buffer, root: int) -> Steps:
    """Broadcast a one-dimensional contiguous buffer from `root` with the algorithm `name`. Collective over comm."""

    def algorithm(bare: Communicator, memory: list[Buffer]) -> Steps:
        return BROADCASTS[name](bare, memory[0], root)

    if comm.size > 1:
        yield from passing_on(comm, [buffer], [0] if comm.rank == root else [], algorithm)
