"""Exchange data in a process column: the reduction of the pivot, and the row swaps' scatterv and allgatherv.

Several row swaps may run concurrently, and ranks continue them in different orders, so each row swap has its own
family of tags.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mxpeak.comm.base import Buffer, Communicator, Request, Steps, all_of, passing_on

TAG = 7101  # a multiple of FAMILY


def allreduce_by(comm: Communicator, own: Buffer, theirs: Buffer, combine: Callable[[Buffer, Buffer], None]) -> None:
    """Reduce `own` in place over all ranks by combine(own, theirs), in log2 P exchanges of the whole buffer.

    The exchange is a butterfly over the largest power of two. The remaining ranks send their buffers before the
    exchange and receive the result after it. `theirs` is workspace. The result of `combine` must not depend on the
    order of its arguments. Collective over comm; blocking.
    """
    rank, size = comm.rank, comm.size
    full = 1 << (size.bit_length() - 1)
    if rank >= full:
        comm.isend(own, rank - full, TAG).wait()
        comm.irecv(own, rank - full, TAG + 1).wait()
        return
    if rank + full < size:
        comm.irecv(theirs, rank + full, TAG).wait()
        combine(own, theirs)
    distance = 1
    while distance < full:
        receive = comm.irecv(theirs, rank ^ distance, TAG + 2)
        send = comm.isend(own, rank ^ distance, TAG + 2)
        receive.wait()
        send.wait()
        combine(own, theirs)
        distance *= 2
    if rank + full < size:
        comm.isend(own, rank + full, TAG + 1).wait()


def scatter(comm: Communicator, pieces: Sequence[Buffer], own: Buffer, root: int, tag: int) -> Steps:
    """Scatter the root's pieces: send piece i to rank i, which receives it into `own`.

    The root's own piece and empty pieces are not sent.
    """
    if comm.rank == root:
        going = [i for i, piece in enumerate(pieces) if i != root and piece.shape[0]]
        sent = [pieces[i] for i in going]
        return passing_on(
            comm,
            sent,
            range(len(sent)),
            lambda bare, memory: all_of([bare.isend(piece, i, tag) for i, piece in zip(going, memory)]),
        )
    coming = [own] if own.shape[0] else []
    return passing_on(comm, coming, [], lambda bare, memory: all_of([bare.irecv(piece, root, tag) for piece in memory]))


def gather_everywhere_ring(comm: Communicator, pieces: Sequence[Buffer], tag: int) -> Steps:
    """Gather all pieces on all ranks by P-1 rolls to the right around the ring, starting with piece i on rank i.

    For any P, every rank sends and receives each byte about once. This is the second half of HPL's "long" swap, spread
    and roll.
    """
    return passing_on(comm, pieces, [comm.rank], lambda bare, memory: _ring(bare, memory, tag))


def _ring(comm: Communicator, pieces: Sequence[Buffer], tag: int) -> Steps:
    rank, size = comm.rank, comm.size
    left, right = (rank - 1) % size, (rank + 1) % size
    for roll in range(size - 1):
        out, into = pieces[(rank - roll) % size], pieces[(rank - 1 - roll) % size]
        under_way: list[Request] = []
        if into.shape[0]:
            under_way.append(comm.irecv(into, left, tag + 1))
        if out.shape[0]:
            under_way.append(comm.isend(out, right, tag + 1))
        yield from all_of(under_way)


def gather_everywhere_binary(comm: Communicator, pieces: Sequence[Buffer], tag: int) -> Steps:
    """Gather all pieces on all ranks by binary exchange: in log2 P rounds, partners exchange all their pieces.

    Ranks beyond the largest power of two send their pieces before the exchange and receive the result after it. The
    algorithm sends few messages, which suits narrow swaps. This is HPL's "binary-exchange".
    """
    return passing_on(comm, pieces, [comm.rank], lambda bare, memory: _binary(bare, memory, tag))


def _binary(comm: Communicator, pieces: Sequence[Buffer], tag: int) -> Steps:
    rank, size = comm.rank, comm.size
    full = 1 << (size.bit_length() - 1)
    has = [{r, r + full} if r + full < size else {r} for r in range(full)]
    if rank >= full:
        yield from all_of(_send(comm, pieces, {rank}, rank - full, tag))
        yield from all_of(_receive(comm, pieces, set(range(size)) - {rank}, rank - full, tag))
        return
    if rank + full < size:
        yield from all_of(_receive(comm, pieces, {rank + full}, rank + full, tag))
    distance = 1
    while distance < full:
        partner = rank ^ distance
        receives = _receive(comm, pieces, has[partner], partner, tag)
        yield from all_of(receives + _send(comm, pieces, has[rank], partner, tag))
        has = [has[r] | has[r ^ distance] for r in range(full)]
        distance *= 2
    if rank + full < size:
        yield from all_of(_send(comm, pieces, set(range(size)) - {rank + full}, rank + full, tag))


def _send(comm: Communicator, pieces: Sequence[Buffer], which: set[int], dest: int, tag: int) -> list[Request]:
    return [comm.isend(pieces[i], dest, tag + 2) for i in sorted(which) if pieces[i].shape[0]]


def _receive(comm: Communicator, pieces: Sequence[Buffer], which: set[int], source: int, tag: int) -> list[Request]:
    return [comm.irecv(pieces[i], source, tag + 2) for i in sorted(which) if pieces[i].shape[0]]
