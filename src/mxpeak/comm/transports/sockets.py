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
#: Seconds for a caller's whole handshake, and the maximum number of concurrent handshakes. A further caller ends the
#: oldest handshake.
HELLO_S, CALLERS = 10.0, 128
#: Interval at which the listening socket is checked, because not every system reports its closure to a waiting thread.
LOOK_S = 1.0
#: The first message of a connecting rank (the caller): its rank and a challenge.
CALL = struct.Struct("!I32s")
#: The answer to a caller: an HMAC of its challenge with the secret, and another challenge.
ANSWER = struct.Struct("!32s32s")
#: Bytes of the caller's last message, an HMAC of the second challenge with the secret.
PROOF = 32
#: Format of the number of pieces of a message, and of the number of bytes of a piece.
COUNT = struct.Struct("!Q")


class LostRankError(MxpeakError):
    """The error that a rank raises if the rank that it communicates with has ended or did not connect."""


class Mail(Post):
    """The mailboxes of one rank, and its connections to the other ranks."""

    def __init__(self, rank: int, lines: dict[int, socket.socket]):
        super().__init__(1)
        self.members: dict[tuple[Any, ...], Sequence[int]] = {(): range(len(lines) + 1)}
        self._rank, self._lines, self._lost = rank, lines, set[int]()
        self._is_closed = False
        for other, line in lines.items():
            threading.Thread(target=self._fill, args=(other, line), daemon=True).start()

    def put(self, address: tuple[Any, ...], message: Any) -> None:
        """Deliver a message to a mailbox of this rank or of another rank.

        Raises LostRankError if the other rank has ended.
        """
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
        """Return whether a message has arrived; raise LostRankError if its sender has ended."""
        if super().has(address):
            return True
        if self._source(address) in self._lost and not super().has(address):
            self._gone(self._source(address))
        return False

    def arrives_within(self, address: tuple[Any, ...], limit_s: float) -> bool:
        """Wait for a message until the limit, and return whether it has arrived.

        Raises LostRankError if its sender has ended.
        """
        with self._lock:
            return address in self._boxes or self._arrives(address, max(0.0, limit_s))

    def close(self) -> None:
        """Close all connections, so that the other ranks detect the end of this rank."""
        self._is_closed = True
        for line in self._lines.values():
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()

    def _wait(self, address: tuple[Any, ...]) -> None:
        self._arrives(address, None)

    def _arrives(self, address: tuple[Any, ...], limit_s: float | None) -> bool:
        source = self._source(address)
        came = self._waiting[address] = threading.Condition(self._lock)
        came.wait_for(lambda: address in self._boxes or source in self._lost, limit_s)
        del self._waiting[address]
        if address not in self._boxes and source in self._lost:
            self._gone(source)
        return address in self._boxes

    def _source(self, address: tuple[Any, ...]) -> int:
        group, source, _, _ = address
        return int(self.members[group][source])

    def _fill(self, other: int, line: socket.socket) -> None:
        """Deliver the messages that rank `other` sends, until its connection ends."""
        try:
            with suppress(OSError, EOFError):
                while True:
                    address, message = _received(line)
                    super().put(address, message)
        finally:  # runs even if memory is exhausted or a message cannot be read
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            self._lose(other)

    def _lose(self, other: int) -> None:
        with self._lock:
            self._lost.add(other)
            for came in self._waiting.values():
                came.notify()

    def _gone(self, rank: int) -> NoReturn:
        if self._is_closed:
            raise LostRankError(f"rank {self._rank} has closed its connections after an error or an interruption")
        raise LostRankError(f"rank {rank} has ended")


class Sockets(Threads):
    """A communicator of processes that are connected by sockets."""

    name = "sockets"
    _post: Mail

    def agree_within(self, ok: bool, limit_s: float) -> bool | None:
        """Return whether `ok` is true on all ranks, or None if not all of them call this method within the limit.

        After the limit, close the connections, so that the other ranks do not wait for this rank.
        """
        tag, until = self._next("exchange"), monotonic() + limit_s
        for dest in range(self.size):
            self._post.put((self._group, self.rank, dest, tag), ok)
        answers = [(self._group, source, self.rank, tag) for source in range(self.size)]
        if not all(self._post.arrives_within(answer, until - monotonic()) for answer in answers):
            self._post.close()
            return None
        return all([self._post.take(answer) for answer in answers])

    def abort(self, code: int) -> None:
        """Close the connections without ending the process, because the process belongs to the cluster."""
        self._post.close()

    def _part(self, group: tuple[Any, ...], members: Sequence[int]) -> Communicator:
        members_here = self._post.members[self._group]
        self._post.members[group] = [members_here[member] for member in members]
        return Sockets(self._post, group, members.index(self.rank), len(members), self.transport)


def listening(host: str) -> socket.socket:
    """Return a socket that listens on a free port of `host`; the other ranks need its `getsockname()`."""
    family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, 0), family=family, backlog=1024)


def meet(
    listener: socket.socket,
    rank: int,
    addresses: Sequence[tuple[str, int]],
    secret: bytes,
    *,
    patience: float = MEETING_S,
) -> Sockets:
    """Return a communicator of the ranks that listen at these addresses. Collective.

    Each rank connects to all lower ranks, and accepts connections from all higher ranks at the socket `listener`.
    Raises LostRankError if a rank does not connect within `patience` seconds.
    """
    until, lines = monotonic() + patience, dict[int, socket.socket]()
    try:
        for other in range(rank):
            lines[other] = line = socket.create_connection(addresses[other], _remaining_s(until))
            _introduce(line, rank, secret, until)
        _answer(listener, lines, range(rank + 1, len(addresses)), secret, until)
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
    """Return the time until a deadline in seconds, but at least 0.01 s, so that one attempt is possible."""
    return max(0.01, until - monotonic())


def _introduce(line: socket.socket, rank: int, secret: bytes, until: float) -> None:
    """Authenticate to the peer of a connection as this rank, without sending the secret.

    Raises OSError if the peer does not have the secret. The peer may answer late while it waits for other ranks, but
    its complete answer must then arrive within HELLO_S.
    """
    challenge = token_bytes(32)
    line.sendall(CALL.pack(rank, challenge))
    line.settimeout(_remaining_s(until))
    line.recv(1, socket.MSG_PEEK)
    proof, theirs = ANSWER.unpack(_bytes(line, ANSWER.size, min(until, monotonic() + HELLO_S)))
    if not hmac.compare_digest(proof, _proof(secret, b"listener", rank, challenge)):
        raise ConnectionRefusedError("the process that answered does not have the secret of these ranks")
    line.sendall(_proof(secret, b"caller", rank, theirs))


@dataclass(slots=True, eq=False)
class _Caller:
    """A connection during its handshake: the bytes received so far, the deadline, and the rank that it claims to be."""

    line: socket.socket
    until: float
    heard: bytearray = field(default_factory=bytearray)
    rank: int | None = None
    challenge: bytes = b""


def _answer(
    listener: socket.socket, lines: dict[int, socket.socket], ranks: range, secret: bytes, until: float
) -> None:
    """Accept connections of these ranks, and add their sockets to `lines`; refuse all other callers.

    All handshakes run concurrently. Raises OSError if the listening socket is closed, or a rank does not call in time.
    """
    callers: list[_Caller] = []
    with selectors.DefaultSelector() as events:

        def dismiss(caller: _Caller, *, keep: bool = False) -> None:
            events.unregister(caller.line)
            callers.remove(caller)
            if not keep:
                caller.line.close()

        listener.setblocking(False)
        events.register(listener, selectors.EVENT_READ)
        try:
            while any(rank not in lines for rank in ranks):
                if monotonic() > until or listener.fileno() < 0:
                    raise TimeoutError("timed out" if listener.fileno() >= 0 else "the connection was closed")
                deadline = min([until, *(caller.until for caller in callers)])
                for event, _ in events.select(min(LOOK_S, _remaining_s(deadline))):
                    if event.fileobj is listener:
                        for line in _accepted(listener):
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


def _accepted(listener: socket.socket) -> Iterator[socket.socket]:
    """Yield the sockets of all waiting callers; raise OSError if the listening socket is closed."""
    while True:
        try:
            line = listener.accept()[0]
        except (BlockingIOError, ConnectionAbortedError):
            return
        line.setblocking(False)
        yield line


def _heard(caller: _Caller, secret: bytes) -> bool | None:
    """Continue a handshake with the bytes that have arrived from a caller.

    Return whether the caller has proven that it has the secret, or None if the proof is incomplete.
    """
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
            answer = ANSWER.pack(_proof(secret, b"listener", caller.rank, theirs), caller.challenge)
            return None if caller.line.send(answer) == len(answer) else False
    except BlockingIOError:
        return None
    except OSError:
        return False
    return hmac.compare_digest(bytes(caller.heard), _proof(secret, b"caller", caller.rank, caller.challenge))


def _proof(secret: bytes, side: bytes, rank: int, challenge: bytes) -> bytes:
    """Return the proof that a process has the secret: the HMAC-SHA256 of side, rank and challenge.

    `side` prevents a peer from returning the proof that it has received.
    """
    return hmac.digest(secret, side + rank.to_bytes(4, "big") + challenge, "sha256")


def _send(line: socket.socket, message: Any) -> None:
    """Send a message as a pickle, followed by the memory of its arrays, which is not copied."""
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
    """Receive and return exactly `size` bytes; raise TimeoutError after the deadline `until`, EOFError at the end."""
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
