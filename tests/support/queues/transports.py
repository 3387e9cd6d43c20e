"""Send messages between virtual GPUs: MPI with device memory, MPI through host memory, and NCCL.

The numbers are transferred immediately. The log records when a real transport might read and write them.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from os import sched_yield
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist

from mxpeak.comm import broadcast
from mxpeak.comm.base import Buffer, Communicator, DeviceTransport, Request, arrival
from mxpeak.comm.deferred import Posts
from mxpeak.comm.transports import gloo, torchdist
from mxpeak.comm.transports import nccl as nccl_messages
from mxpeak.comm.transports.solo import Done
from mxpeak.comm.transports.threads import Threads
from tests.support.queues.log import HOST, Region
from tests.support.queues.rank import here
from tests.support.queues.tensors import DeviceTensor, region

#: The number of polls that report a message as incomplete, so that both code paths of waiting run.
LATE = 2


def _numbers(buffer: Any) -> Any:
    """Return the numbers of a message in their order in memory."""
    elem = buffer.elem if isinstance(buffer, DeviceTensor) else buffer
    if isinstance(elem, torch.Tensor):
        return (elem.view(-1) if elem.is_contiguous() else elem.t().view(-1)).numpy()
    return np.asarray(elem).reshape(-1, order="A")


def _numbers_in(part: Region, size: int) -> tuple[int]:
    """Return the number of numbers in a message, which may be sent as bytes."""
    return (size // here().log.memories[part.memory][1],)


# --- MPI


class _Message:
    """A message that MPI may read or write from its start until the host knows that it is complete."""

    def __init__(self, buffer: Any, kind: str, keys: list[Any], box: Any, receive: bool):
        self._rank, self._buffer, self._box, self._receive, self._done = here(), buffer, box, receive, False
        self._asked = 0
        self._actor = None
        if isinstance(buffer, np.ndarray) and any(key[0][-1] == broadcast.AHEAD for key in keys):
            self._actor = self._rank.message()
            for key in keys:
                self._rank.log.op(
                    self._actor, f"MPI {kind}", kind, (), bytes=buffer.nbytes, message=key, sizes=(buffer.size,)
                )
        if isinstance(buffer, DeviceTensor):
            self._actor = self._rank.message()
            size, part = buffer.numel() * buffer.element_size(), region(buffer, receive)
            for key in keys:
                self._rank.log.op(
                    self._actor, f"MPI {kind}", kind, (part,), bytes=size, message=key, sizes=_numbers_in(part, size)
                )

    def test(self) -> bool:
        self._asked += 1
        if not self._done and self._asked > LATE and (not self._receive or self._box.has()):
            self._end(looked=True)
        return self._done

    def wait(self) -> None:
        if not self._done:
            self._end()

    def _end(self, *, looked: bool = False) -> None:
        if self._receive:
            while not self._box.has():
                posts().drive()
                self._box.pause()
            _numbers(self._buffer)[:] = self._box.take()
        self._done = True
        if self._actor is not None:
            self._rank.over(self._actor, looked=looked)


class _Box:
    def __init__(self, post: Any, address: tuple[Any, ...]):
        self._post, self._address = post, address

    def has(self) -> bool:
        return bool(self._post.has(self._address))

    def pause(self) -> None:
        if self._post.failed:
            raise RuntimeError("another rank failed")
        sched_yield()

    def take(self) -> Any:
        return self._post.take(self._address)


def posts() -> Posts:
    """Return the posted messages of this rank."""
    rank = here()
    if not hasattr(rank, "posts"):
        rank.posts = Posts()  # type: ignore[attr-defined]
    return rank.posts  # type: ignore[attr-defined,no-any-return]


class Mpi(Threads):
    """Ranks whose MPI reads and writes device memory."""

    name = "mpi"
    takes_devices = True

    @classmethod
    def of(cls, comm: Threads) -> Mpi:
        made = cls(comm._post, comm._group, comm.rank, comm.size, comm.transport)
        made.sent, made.received, made.reduced = defaultdict(count), defaultdict(count), count()
        return made

    sent: dict[Any, Iterator[int]]
    received: dict[Any, Iterator[int]]
    reduced: Iterator[int]

    def direct(self, transport: DeviceTransport) -> Communicator | None:
        return self.with_transport(transport) if self.takes_devices else None

    def isend(self, buffer: Buffer, dest: int, tag: int = 0) -> Request:
        address = (self._group, self.rank, dest, tag)
        return posts().post(self.transport.outgoing(buffer), lambda memory: self._sent(memory, [address]), address)

    def _sent(self, memory: Any, addresses: list[Any]) -> Request:
        if not addresses:
            return Done()
        keys = [(address, next(self.sent[address])) for address in addresses]
        request = _Message(memory, "send", keys, None, False)
        for address in addresses:
            self._post.put(address, _numbers(memory).copy())
        return request

    def _receive(self, buffer: Buffer, address: tuple[Any, ...]) -> Request:
        memory, land = self.transport.incoming(buffer)
        key = (address, next(self.received[address]))
        box = _Box(self._post, address)
        return arrival(posts().post(memory, lambda given: _Message(given, "receive", [key], box, True), address), land)

    def ibcast(self, buffer: Buffer, root: int) -> Request:
        tag = self._next("bcast")
        if self.rank != root:
            return self._receive(buffer, (self._group, root, self.rank, tag))
        others = [(self._group, root, dest, tag) for dest in range(self.size) if dest != root]
        return posts().post(self.transport.outgoing(buffer), lambda memory: self._sent(memory, others), tag)

    def allreduce(self, buffer: Buffer, op: str) -> None:
        posts().flush()
        together = (self._group, "allreduce", next(self.reduced), self.size)
        here().log.op(HOST, "MPI allreduce", "meet", (), message=together)
        super().allreduce(buffer, op)

    def _exchange(self, obj: Any) -> list[Any]:
        posts().flush()
        return super()._exchange(obj)

    def split(self, color: int | None, key: int) -> Communicator | None:
        part = super().split(color, key)
        return None if part is None else type(self).of(part)  # type: ignore[arg-type]


class Staged(Mpi):
    """Ranks whose MPI reads host memory only."""

    takes_devices = False


# --- NCCL


class _Work:
    """A batch of NCCL operations in its own stream."""

    def __init__(self, nccl: Nccl, land: Any):
        self._nccl, self._land, self._rank = nccl, land, here()
        self._event = self._rank.log.mark(nccl.actor)
        self._asked = 0

    def is_completed(self) -> bool:
        """Return whether all messages have arrived, and record that the host knows it."""
        self._asked += 1
        if self._asked <= LATE or not self._land(False):
            return False
        self._rank.log.wait(HOST, self._event, looked=True)
        return True

    def wait(self) -> None:
        """Make the current stream wait."""
        self._land(True)
        self._rank.log.wait(self._rank.stream().name, self._event)


class Nccl:
    """An NCCL communicator with its own stream; each batch starts after the present work of the current stream."""

    boxes: Any = None  # the post of all ranks

    def __init__(self, store: Any, rank: int, size: int):
        if rank == 0:
            store.set("name", f"{id(store)}-{threading.get_ident()}")
        self.name = store.get("name").decode()
        self.rank, self.size, self._count = rank, size, count()
        here().streams += 1
        self.actor = f"nccl {here().streams} of 0"
        here().names.setdefault(0, []).append(self.actor)
        self._batch: list[Any] = []
        self._numbers: dict[Any, Iterator[int]] = defaultdict(count)

    def _after_current(self) -> None:
        log = here().log
        log.join(self.actor, here().stream().name)

    def _start_coalescing(self) -> None:
        self._batch = []

    def _put(self, kind: str, message: Any, other: int) -> None:
        self._after_current()
        pair = (self.rank, other) if kind == "send" else (other, self.rank)
        key = (self.name, *pair, next(self._numbers[kind, other]))
        size, part = message.numel() * message.element_size(), region(message, kind == "receive")
        here().log.op(self.actor, f"NCCL {kind}", kind, (part,), bytes=size, message=key, sizes=_numbers_in(part, size))
        if kind == "send":
            self.boxes.put(key, _numbers(message).copy())
        else:
            self._batch.append((key, message))

    def send(self, tensors: list[Any], dest: int, tag: int) -> None:
        self._put("send", tensors[0], dest)

    def recv(self, tensors: list[Any], source: int, tag: int) -> None:
        self._put("receive", tensors[0], source)

    def _end_coalescing(self) -> _Work:
        return _Work(self, self._landing(self._batch))

    def _landing(self, batch: list[Any]) -> Any:
        def land(wait: bool) -> bool:
            if not wait and not all(self.boxes.has(key) for key, _ in batch):
                return False
            while batch:
                key, message = batch.pop(0)
                _numbers(message)[:] = self.boxes.take(key)
            return True

        return land

    def broadcast(self, message: Any, root: int) -> _Work:
        self._after_current()
        number = next(self._count)
        size, part = message.numel() * message.element_size(), region(message, self.rank != root)
        here().log.op(
            self.actor,
            "NCCL broadcast",
            "send" if self.rank == root else "receive",
            (part,),
            bytes=size,
            message=(self.name, "broadcast", number),
            sizes=_numbers_in(part, size),
        )
        if self.rank == root:
            for dest in range(self.size):
                if dest != root:
                    self.boxes.put((self.name, "broadcast", number, dest), _numbers(message).copy())
            return _Work(self, self._landing([]))
        return _Work(self, self._landing([((self.name, "broadcast", number, self.rank), message)]))

    def allreduce(self, x: Any, op: Any = dist.ReduceOp.SUM) -> _Work:
        self._after_current()
        number = next(self._count)
        size, together = x.numel() * x.element_size(), (self.name, "allreduce", number, self.size)
        here().log.op(self.actor, "NCCL allreduce", "collective", (region(x, True),), bytes=size, message=together)
        for dest in range(self.size):
            self.boxes.put((self.name, "reduce", number, self.rank, dest), _numbers(x).copy())

        def land(wait: bool) -> bool:
            keys = [(self.name, "reduce", number, source, self.rank) for source in range(self.size)]
            if land.done:  # type: ignore[attr-defined]
                return True
            if not wait and not all(self.boxes.has(key) for key in keys):
                return False
            parts = [self.boxes.take(key) for key in keys]
            combine = np.maximum if op == dist.ReduceOp.MAX else np.add
            _numbers(x)[:] = parts[0]
            for part in parts[1:]:
                combine(_numbers(x), part, out=_numbers(x))
            land.done = True  # type: ignore[attr-defined]
            return True

        land.done = False  # type: ignore[attr-defined]
        return _Work(self, land)


class _OfThisRank:
    """Channels of the calling rank with messages that have not started."""

    @property
    def _mine(self) -> dict[Any, None]:
        rank = here()
        if not hasattr(rank, "waiting"):
            rank.waiting = {}  # type: ignore[attr-defined]
        return rank.waiting  # type: ignore[attr-defined,no-any-return]

    def setdefault(self, channel: Any) -> None:
        self._mine.setdefault(channel)

    def __bool__(self) -> bool:
        return bool(self._mine)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._mine)

    def __delitem__(self, channel: Any) -> None:
        del self._mine[channel]


@contextmanager
def nccl() -> Iterator[Any]:
    """Use torch.distributed with NCCL between virtual GPUs; return the transport."""
    store = dist.HashStore()

    def transport(comm: Threads) -> Communicator:
        Nccl.boxes = comm._post
        group = gloo.Group(dist.PrefixStore("world", store), comm.rank, comm.size)
        return torchdist.TorchDist(group, lambda code: None)

    with (
        patch.object(nccl_messages, "connected", Nccl),
        patch.object(nccl_messages, "_waiting", _OfThisRank()),
        patch.object(gloo, "quiet_stdout", nullcontext),
        patch.object(dist, "is_nccl_available", lambda: True),
    ):
        yield transport


@contextmanager
def mpi() -> Iterator[Any]:
    """Use MPI that reads device memory."""
    yield Mpi.of


@contextmanager
def staged() -> Iterator[Any]:
    """Use MPI that reads host memory only."""
    yield Staged.of


TRANSPORTS = {"mpi": mpi, "nccl": nccl, "staged": staged}
