"""A communicator over plain sockets for ranks without MPI or torchrun, such as the workers of a Dask cluster.

Messages are delivered to mailboxes by (group, source, destination, tag), as in `threads.py`. Each rank has its own
mailboxes and one thread per peer that fills them. Only Python is needed. If a rank dies, its peers detect the closed
connection immediately.
"""

from __future__ import annotations

import hmac
import pickle
import selectors
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from secrets import token_bytes
from time import monotonic
from typing import Any, NoReturn

from mxpeak.comm.base import Communicator
from mxpeak.comm.transports.threads import Post, Threads
from mxpeak.errors import MxpeakError

#: Seconds within which all ranks must connect, unless the caller sets another limit.
MEETING_S = 60.0
#: Seconds for a caller's whole handshake, and the maximum number of concurrent handshakes; one more ends the oldest.
HELLO_S, CALLERS = 10.0, 128
#: Interval at which the listening socket is checked, because not every system reports its closure to a waiting thread.
LOOK_S = 1.0
#: A caller's first message: its rank and a challenge.
CALL = struct.Struct("!I32s")
#: The answer to a caller: a response to its challenge that requires the secret, and another challenge.
ANSWER = struct.Struct("!32s32s")
#: Bytes of the caller's own response, its last message.
PROOF = 32
#: Number of pieces before a message, and number of bytes before each piece.
COUNT = struct.Struct("!Q")


class LostRankError(MxpeakError):
    """An error caused by a rank that has ended while another rank waits for its message."""


class Mail(Post):
    """The mailboxes of one rank, and its connections to the other ranks."""

    def __init__(self, rank: int, lines: dict[int, socket.socket]):
        super().__init__()
        self.members: dict[tuple[Any, ...], Sequence[int]] = {(): range(len(lines) + 1)}
        self._rank, self._lines, self._lost = rank, lines, set[int]()
        for other, line in lines.items():
            threading.Thread(target=self._fill, args=(other, line), daemon=True).start()

    def put(self, address: tuple[Any, ...], message: Any) -> None:
        """Deliver a message to a mailbox of this rank, or send it to another rank."""
        group, _, dest, _ = address
        world = self.members[group][dest]
        if world == self._rank:
            super().put(address, message)
            return
        try:
            _send(self._lines[world], (address, message))
        except OSError:
            self._gone(world)

    def meet(self, group: tuple[Any, ...], tag: tuple[str, int], rank: int, size: int, obj: Any) -> list[Any]:
        """Send an object to all ranks of a group, and return the objects of all ranks in rank order."""
        for dest in range(size):
            self.put((group, rank, dest, tag), obj)
        return [self.take((group, source, rank, tag)) for source in range(size)]

    def has(self, address: tuple[Any, ...]) -> bool:
        """Return whether the message has arrived; raise an error if its sender has ended."""
        if super().has(address):
            return True
        if self._source(address) in self._lost and not super().has(address):
            self._gone(self._source(address))
        return False

    def close(self) -> None:
        """Close all connections, so that the other ranks detect the end of this rank."""
        for line in self._lines.values():
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()

    def _wait(self, address: tuple[Any, ...]) -> None:
        source = self._source(address)
        came = self._waiting[address] = threading.Condition(self._lock)
        came.wait_for(lambda: address in self._boxes or source in self._lost)
        del self._waiting[address]
        if address not in self._boxes:
            self._gone(source)

    def _source(self, address: tuple[Any, ...]) -> int:
        group, source, _, _ = address
        return int(self.members[group][source])

    def _fill(self, other: int, line: socket.socket) -> None:
        """Deliver the messages of a peer until its connection ends."""
        try:
            with suppress(OSError, EOFError):
                while True:
                    address, message = _received(line)
                    super().put(address, message)
        finally:  # runs also if memory is exhausted or a message cannot be read
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            self._lose(other)

    def _lose(self, other: int) -> None:
        with self._lock:
            self._lost.add(other)
            for came in self._waiting.values():
                came.notify()

    def _gone(self, rank: int) -> NoReturn:
        raise LostRankError(f"rank {rank} has ended")


class Sockets(Threads):
    """One rank's view of a group of processes that are connected by sockets."""

    name = "sockets"
    _post: Mail

    def abort(self, code: int) -> None:
        """Close the connections; the process belongs to the cluster and must not end."""
        self._post.close()

    def _part(self, group: tuple[Any, ...], members: Sequence[int]) -> Communicator:
        members_here = self._post.members[self._group]
        self._post.members[group] = [members_here[member] for member in members]
        return Sockets(self._post, group, members.index(self.rank), len(members), self.transport)


def listening(host: str) -> socket.socket:
    """Return a listening socket for the other ranks; its address is `getsockname()`."""
    family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, 0), family=family, backlog=1024)


def meet(
    door: socket.socket, rank: int, addresses: Sequence[tuple[str, int]], secret: bytes, *, patience: float = MEETING_S
) -> Sockets:
    """Connect the ranks that listen at these addresses; each rank connects to all lower ranks. Collective."""
    until, lines = monotonic() + patience, dict[int, socket.socket]()
    try:
        for other in range(rank):
            lines[other] = line = socket.create_connection(addresses[other], _remaining_s(until))
            _introduce(line, rank, secret, until)
        _answer(door, lines, range(rank + 1, len(addresses)), secret, until)
    except (OSError, EOFError) as error:
        for line in lines.values():
            line.close()
        there = sorted({rank, *lines})
        raise LostRankError(f"only {there} of {len(addresses)} ranks have connected to rank {rank}: {error}") from None
    for line in lines.values():
        line.settimeout(None)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Sockets(Mail(rank, lines), (), rank, len(addresses))


def _remaining_s(until: float) -> float:
    """Return the time until the deadline in seconds, but at least the time for one attempt."""
    return max(0.01, until - monotonic())


def _introduce(line: socket.socket, rank: int, secret: bytes, until: float) -> None:
    """Authenticate to a peer as this rank, without sending the secret.

    Raise OSError if the peer does not have the secret. The peer may answer late while it waits for its chunks, but its
    whole answer must then arrive within HELLO_S.
    """
    challenge = token_bytes(32)
    line.sendall(CALL.pack(rank, challenge))
    line.settimeout(_remaining_s(until))
    line.recv(1, socket.MSG_PEEK)
    proof, theirs = ANSWER.unpack(_bytes(line, ANSWER.size, min(until, monotonic() + HELLO_S)))
    if not hmac.compare_digest(proof, _proof(secret, b"door", rank, challenge)):
        raise ConnectionRefusedError("the process that answered does not have the secret of these ranks")
    line.sendall(_proof(secret, b"caller", rank, theirs))


@dataclass(slots=True, eq=False)
class _Caller:
    """A connection during its handshake: the bytes received so far, and the deadline."""

    line: socket.socket
    until: float
    heard: bytearray = field(default_factory=bytearray)
    rank: int | None = None
    challenge: bytes = b""


def _answer(door: socket.socket, lines: dict[int, socket.socket], ranks: range, secret: bytes, until: float) -> None:
    """Accept the calling ranks and add their connections to `lines`; refuse other callers, which delay no rank.

    All handshakes run concurrently. Raises OSError if the listening socket is closed, or a rank does not call in time.
    """
    callers: list[_Caller] = []
    with selectors.DefaultSelector() as events:

        def dismiss(caller: _Caller, *, keep: bool = False) -> None:
            events.unregister(caller.line)
            callers.remove(caller)
            if not keep:
                caller.line.close()

        door.setblocking(False)
        events.register(door, selectors.EVENT_READ)
        try:
            while any(rank not in lines for rank in ranks):
                if monotonic() > until or door.fileno() < 0:
                    raise TimeoutError("timed out" if door.fileno() >= 0 else "the connection was closed")
                deadline = min([until, *(caller.until for caller in callers)])
                for event, _ in events.select(min(LOOK_S, _remaining_s(deadline))):
                    if event.fileobj is door:
                        for line in _accepted(door):
                            if len(callers) == CALLERS:
                                dismiss(callers[0])
                            callers.append(_Caller(line, monotonic() + HELLO_S))
                            events.register(line, selectors.EVENT_READ, callers[-1])
                        continue
                    caller = event.data
                    proven = _heard(caller, secret) if caller in callers else None
                    if proven is not None:
                        welcome = proven and caller.rank in ranks and caller.rank not in lines
                        dismiss(caller, keep=welcome)
                        if welcome:
                            lines[caller.rank] = caller.line
                for caller in [caller for caller in callers if caller.until < monotonic()]:
                    dismiss(caller)
        finally:
            for caller in callers:
                caller.line.close()


def _accepted(door: socket.socket) -> Iterator[socket.socket]:
    """Accept the waiting callers; raise OSError if the listening socket is closed."""
    while True:
        try:
            line = door.accept()[0]
        except (BlockingIOError, ConnectionAbortedError):
            return
        line.setblocking(False)
        yield line


def _heard(caller: _Caller, secret: bytes) -> bool | None:
    """Read from a caller; return whether it has proven that it has the secret, or None if the proof is incomplete."""
    need = CALL.size if caller.rank is None else PROOF
    try:
        piece = caller.line.recv(need - len(caller.heard))
        if not piece:
            return False
        caller.heard += piece
        if len(caller.heard) < need:
            return None
        if caller.rank is None:
            caller.rank, theirs = CALL.unpack(caller.heard)
            caller.challenge = token_bytes(32)
            caller.heard.clear()
            answer = ANSWER.pack(_proof(secret, b"door", caller.rank, theirs), caller.challenge)
            return None if caller.line.send(answer) == len(answer) else False
    except BlockingIOError:
        return None
    except OSError:
        return False
    return hmac.compare_digest(bytes(caller.heard), _proof(secret, b"caller", caller.rank, caller.challenge))


def _proof(secret: bytes, side: bytes, rank: int, challenge: bytes) -> bytes:
    """Return HMAC-SHA256(secret, side, rank, challenge).

    `side` prevents a peer from returning the proof that it has received.
    """
    return hmac.digest(secret, side + rank.to_bytes(4, "big") + challenge, "sha256")


def _send(line: socket.socket, message: Any) -> None:
    """Send a message as a pickle, followed by the memory of its arrays without a copy."""
    arrays: list[pickle.PickleBuffer] = []
    pieces: list[Any] = [pickle.dumps(message, protocol=5, buffer_callback=arrays.append)]
    pieces += [array.raw() for array in arrays]
    line.sendall(COUNT.pack(len(pieces)) + b"".join(COUNT.pack(len(piece)) for piece in pieces))
    for piece in pieces:
        line.sendall(piece)


def _received(line: socket.socket) -> Any:
    (count,) = COUNT.unpack(_bytes(line, COUNT.size))
    sizes = [COUNT.unpack(_bytes(line, COUNT.size))[0] for _ in range(count)]
    first, *arrays = [_bytes(line, size) for size in sizes]
    return pickle.loads(first, buffers=arrays)


def _bytes(line: socket.socket, size: int, until: float | None = None) -> bytearray:
    """Receive a fixed number of bytes; `until` is the deadline."""
    memory = bytearray(size)
    rest = memoryview(memory)
    while rest:
        if until is not None:
            if monotonic() > until:
                raise TimeoutError("timed out")
            line.settimeout(_remaining_s(until))
        got = line.recv_into(rest)
        if not got:
            raise EOFError
        rest = rest[got:]
    return memory
