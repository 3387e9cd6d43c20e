"""A communicator over plain sockets, for ranks that neither MPI nor torchrun started: workers of a Dask cluster.

Mail goes as between virtual ranks (`comm/threads.py`), to boxes by (group, source, destination, tag); here each rank
has its own, and a thread for every other rank that fills them.  Nothing but Python is needed, and a rank that dies is
known at once by its closed connection.
"""

from __future__ import annotations

import hmac
import pickle
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from secrets import token_bytes
from time import monotonic
from typing import Any, NoReturn

from mxpeak.comm.base import Communicator
from mxpeak.comm.threads import Post, Threads
from mxpeak.errors import MxpeakError

#: All ranks have to be there by then, unless the caller has more patience.
MEETING_S = 60.0
#: Who calls says who it is at once; meanwhile no other is let in.
HELLO_S = 2.0
#: The door is looked at so often: not every system wakes who waits at a door that is shut.
LOOK_S = 1.0
#: A caller's first words: its rank, and a challenge.
CALL = struct.Struct("!I32s")
#: What the rank at the door answers: the caller's challenge as only those answer it who know the secret, and its own.
ANSWER = struct.Struct("!32s32s")
#: Before a message: how many pieces it has; before each piece: its bytes.
COUNT = struct.Struct("!Q")


class LostRankError(MxpeakError):
    """A rank has gone while another waits for its message."""


class Mail(Post):
    """One rank's boxes, and its connections to the others."""

    def __init__(self, rank: int, lines: dict[int, socket.socket]):
        super().__init__()
        self.members: dict[tuple[Any, ...], Sequence[int]] = {(): range(len(lines) + 1)}
        self._rank, self._lines, self._lost = rank, lines, set[int]()
        for other, line in lines.items():
            threading.Thread(target=self._fill, args=(other, line), daemon=True).start()

    def put(self, address: tuple[Any, ...], message: Any) -> None:
        """To our own box, or to the rank whose it is."""
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
        """What all of a group say, in their order: everybody writes to everybody."""
        for dest in range(size):
            self.put((group, rank, dest, tag), obj)
        return [self.take((group, source, rank, tag)) for source in range(size)]

    def has(self, address: tuple[Any, ...]) -> bool:
        """Whether it has come; raises where it never will."""
        if super().has(address):
            return True
        if self._source(address) in self._lost and not super().has(address):
            self._gone(self._source(address))
        return False

    def close(self) -> None:
        """Hang up: the others lose this rank."""
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
        """Put what comes from a rank into its boxes, until the connection ends."""
        try:
            with suppress(OSError, EOFError):
                while True:
                    address, message = _received(line)
                    super().put(address, message)
        finally:  # also where memory runs out, or a message cannot be read
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            self._lose(other)

    def _lose(self, other: int) -> None:
        with self._lock:
            self._lost.add(other)
            for came in self._waiting.values():
                came.notify()

    def _gone(self, rank: int) -> NoReturn:
        raise LostRankError(f"rank {rank} has gone")


class Sockets(Threads):
    """One rank's view of a group of processes that are connected by sockets."""

    name = "sockets"
    _post: Mail

    def abort(self, code: int) -> None:
        """Hang up: the process is not ours to end."""
        self._post.close()

    def _part(self, group: tuple[Any, ...], members: Sequence[int]) -> Communicator:
        mine = self._post.members[self._group]
        self._post.members[group] = [mine[member] for member in members]
        return Sockets(self._post, group, members.index(self.rank), len(members), self.transport)


def listening(host: str) -> socket.socket:
    """Where the other ranks find this one: its address is `getsockname()`."""
    family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, 0), family=family, backlog=1024)


def meet(
    door: socket.socket, rank: int, addresses: Sequence[tuple[str, int]], secret: bytes, *, patience: float = MEETING_S
) -> Sockets:
    """Connect the ranks that listen at these addresses, each with all lower ones.  Collective."""
    until, lines = monotonic() + patience, {}
    try:
        for other in range(rank):
            lines[other] = line = socket.create_connection(addresses[other], until - monotonic())
            _introduce(line, rank, secret, until)
        while len(lines) < len(addresses) - 1:
            line = _accepted(door, until)
            caller = _named(line, secret)
            if caller is not None:
                lines[caller] = line
    except (OSError, EOFError) as error:
        for line in lines.values():
            line.close()
        there = sorted({rank, *lines})
        raise LostRankError(f"of {len(addresses)} ranks only {there} have met rank {rank}: {error}") from None
    for line in lines.values():
        line.settimeout(None)
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Sockets(Mail(rank, lines), (), rank, len(addresses))


def _accepted(door: socket.socket, until: float) -> socket.socket:
    """The next that calls; OSError where the door is shut, or nobody comes in time."""
    while True:
        door.settimeout(min(LOOK_S, max(0.01, until - monotonic())))
        try:
            return door.accept()[0]
        except TimeoutError:
            if monotonic() > until:
                raise


def _introduce(line: socket.socket, rank: int, secret: bytes, until: float) -> None:
    """Call as this rank; OSError where who answers does not know the secret, which itself is never sent."""
    challenge = token_bytes(32)
    line.sendall(CALL.pack(rank, challenge))
    line.settimeout(max(0.01, until - monotonic()))
    proof, theirs = ANSWER.unpack(_bytes(line, ANSWER.size))
    if not hmac.compare_digest(proof, _proof(secret, b"door", rank, challenge)):
        raise ConnectionRefusedError("who answers does not know the secret of these ranks")
    line.sendall(_proof(secret, b"caller", rank, theirs))


def _named(line: socket.socket, secret: bytes) -> int | None:
    """The rank that calls; None for a stranger, of whom nothing more is read."""
    with suppress(OSError, EOFError):
        line.settimeout(HELLO_S)
        rank, theirs = CALL.unpack(_bytes(line, CALL.size))
        challenge = token_bytes(32)
        line.sendall(ANSWER.pack(_proof(secret, b"door", rank, theirs), challenge))
        if hmac.compare_digest(_bytes(line, 32), _proof(secret, b"caller", rank, challenge)):
            return int(rank)
    line.close()
    return None


def _proof(secret: bytes, side: bytes, rank: int, challenge: bytes) -> bytes:
    """HMAC-SHA256(secret, side, rank, challenge): what one side says cannot be sent back as the other's."""
    return hmac.digest(secret, side + rank.to_bytes(4, "big") + challenge, "sha256")


def _send(line: socket.socket, message: Any) -> None:
    """A pickle, and the memory of its arrays as it lies."""
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


def _bytes(line: socket.socket, size: int) -> bytearray:
    memory = bytearray(size)
    rest = memoryview(memory)
    while rest:
        got = line.recv_into(rest)
        if not got:
            raise EOFError
        rest = rest[got:]
    return memory
