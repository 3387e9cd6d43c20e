"""Run virtual ranks as threads of one process, to test whole algorithms without MPI; never use them for timing.

Messages are copied when they are sent, and delivered in order per (source, destination, tag).
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from mxpeak.async_buffer import fulfilled
from mxpeak.comm.base import ARRAYS, Buffer, Communicator, DeviceTransport, Request, Transport, arrival
from mxpeak.comm.transports.solo import Done

#: Seconds without a message or a new collective, after which a test fails instead of blocking: if all ranks wait, and
#: if some rank still computes. The first use of a kernel compiles it, which takes minutes on a busy machine.
PATIENCE_S, PATIENCE_WITH_A_BUSY_RANK_S = 60.0, 1800.0


@dataclass
class _Meeting:
    """A collective operation in progress: the objects of the ranks that have arrived, and the number still missing."""

    complete: threading.Condition
    objects: list[Any]
    missing: int


class Post:
    """The mailboxes of all virtual ranks, and the objects that they exchange in collective operations."""

    def __init__(self, ranks: int) -> None:
        self._running = ranks  # ranks whose function has not returned
        self._blocked = 0  # ranks that wait for a message, or for other ranks
        self._events = 0  # messages, and arrivals at collective operations
        self._lock = threading.Lock()
        self._boxes: dict[tuple[Any, ...], deque[Any]] = defaultdict(deque)
        self._waiting: dict[tuple[Any, ...], threading.Condition] = {}
        self._meetings: dict[tuple[Any, ...], _Meeting] = {}
        self.failed = False

    def put(self, address: tuple[Any, ...], message: Any) -> None:
        """Deliver a message, and wake only the rank that waits for it; waking all ranks would take too long."""
        with self._lock:
            self._events += 1
            self._boxes[address].append(message)
            if address in self._waiting:
                self._waiting[address].notify()

    def has(self, address: tuple[Any, ...]) -> bool:
        """Return whether a message has arrived in the mailbox `address`."""
        with self._lock:
            return address in self._boxes

    def take(self, address: tuple[Any, ...]) -> Any:
        """Wait for a message in the mailbox `address`, remove the oldest message, and return it."""
        with self._lock:
            if address not in self._boxes:
                self._wait(address)
            box = self._boxes[address]
            message = box.popleft()
            if not box:
                del self._boxes[address]
            return message

    def _wait(self, address: tuple[Any, ...]) -> None:
        came = self._waiting[address] = threading.Condition(self._lock)
        if not self._waited(came, lambda: address in self._boxes or self.failed):
            raise RuntimeError(f"no message arrived at {address}")
        del self._waiting[address]
        if address not in self._boxes:
            raise RuntimeError("another rank failed")

    def _waited(self, came: threading.Condition, ready: Callable[[], bool]) -> bool:
        """Wait until `ready`, and return True; return False if nothing happens for too long."""
        self._blocked += 1
        events, quiet_s = self._events, 0.0
        try:
            while not came.wait_for(ready, PATIENCE_S):
                quiet_s = quiet_s + PATIENCE_S if self._events == events else 0.0
                events = self._events
                all_wait = self._blocked >= self._running
                if quiet_s >= (PATIENCE_S if all_wait else PATIENCE_WITH_A_BUSY_RANK_S):
                    return False
            return True
        finally:
            self._blocked -= 1

    def meet(self, group: tuple[Any, ...], tag: tuple[str, int], rank: int, size: int, obj: Any) -> list[Any]:
        """Contribute `obj`, wait for all ranks of a group, and return the objects of all ranks in rank order."""
        address = group, tag
        with self._lock:
            if address not in self._meetings:
                self._meetings[address] = _Meeting(threading.Condition(self._lock), [None] * size, size)
            meeting = self._meetings[address]
            self._events += 1
            meeting.objects[rank] = obj
            meeting.missing -= 1
            if not meeting.missing:
                del self._meetings[address]
                meeting.complete.notify_all()
            elif not self._waited(meeting.complete, lambda: not meeting.missing or self.failed):
                raise RuntimeError(f"not all ranks reached {address}")
            if meeting.missing:
                raise RuntimeError("another rank failed")
            return list(meeting.objects)

    def leave(self) -> None:
        """Record that the function of a rank has returned."""
        with self._lock:
            self._running -= 1

    def fail(self) -> None:
        """Record that a rank has failed, and wake all waiting ranks, so that they raise an error."""
        with self._lock:
            self.failed = True
            for came in self._waiting.values():
                came.notify()
            for meeting in self._meetings.values():
                meeting.complete.notify_all()


class _Receive:
    """A receive that is complete after its message has been copied from the mailbox to the buffer."""

    def __init__(self, post: Post, address: tuple[Any, ...], buffer: Buffer):
        self._post, self._address, self._buffer, self._done = post, address, buffer, False

    def test(self) -> bool:
        """Copy the message to its buffer if it has arrived, and return whether the receive is complete."""
        if not self._done and self._post.has(self._address):
            self.wait()
        return self._done

    def wait(self) -> None:
        """Wait for the message and copy it to its buffer."""
        if not self._done:
            _flat(self._buffer)[:] = self._post.take(self._address)
            self._done = True


def _flat(buffer: Buffer) -> Any:
    """Return a one-dimensional view of a buffer's memory; fail for a non-contiguous buffer, as MPI does."""
    array = np.asarray(buffer)
    flat = array.reshape(-1, order="A")
    assert np.shares_memory(flat, array) or array.size == 0, "a communication buffer must be contiguous"
    return flat


class Threads(Communicator):
    """A communicator of virtual ranks, as one of these ranks uses it."""

    name = "threads"

    def __init__(self, post: Post, group: tuple[Any, ...], rank: int, size: int, transport: Transport = ARRAYS):
        self._post, self._group, self.rank, self.size = post, group, rank, size
        self.transport = transport
        self._count = count(1)  # number of collectives, shared with this group's other transports

    def direct(self, transport: DeviceTransport) -> Communicator | None:
        """Return None, because NumPy copies the messages and cannot read device memory."""
        return None

    def isend(self, buffer: Buffer, dest: int, tag: int = 0) -> Request:
        """Copy the buffer to the mailbox of rank `dest`, and return a complete request."""
        self._post.put((self._group, self.rank, dest, tag), _flat(fulfilled(self.transport.outgoing(buffer))).copy())
        return Done()

    def irecv(self, buffer: Buffer, source: int, tag: int = 0) -> Request:
        """Return a receive that completes when the message from rank `source` arrives."""
        return self._receive(buffer, (self._group, source, self.rank, tag))

    def _receive(self, buffer: Buffer, address: tuple[Any, ...]) -> Request:
        memory, land = self.transport.incoming(buffer)
        return arrival(_Receive(self._post, address, fulfilled(memory)), land)

    def ibcast(self, buffer: Buffer, root: int) -> Request:
        """Copy the buffer from the root to the mailboxes of all other ranks, and return a request."""
        tag = self._next("bcast")
        if self.rank != root:
            return self._receive(buffer, (self._group, root, self.rank, tag))
        message = _flat(fulfilled(self.transport.outgoing(buffer))).copy()
        for dest in range(self.size):
            if dest != root:
                self._post.put((self._group, root, dest, tag), message)
        return Done()

    def allreduce(self, buffer: Buffer, op: str) -> None:
        """Reduce the buffers of all ranks in place, on every rank in the same rank order."""
        combine = _reducer(op)
        memory, land = self.transport.numbers(buffer)
        flat = _flat(memory)
        parts = self._exchange(flat.copy())
        flat[:] = parts[0]
        for part in parts[1:]:
            combine(flat, part)
        if land is not None:
            land()

    def barrier(self) -> None:
        """Wait until all ranks have called `barrier`."""
        self._exchange(None)

    def bcast_object(self, obj: Any, root: int = 0) -> Any:
        """Return the object of rank `root` on all ranks, without a copy."""
        return self._exchange(obj)[root]

    def gather_objects(self, obj: Any, root: int = 0) -> list[Any] | None:
        """Return the objects of all ranks on rank `root`, and None on the other ranks."""
        parts = self._exchange(obj)
        return parts if self.rank == root else None

    def split(self, color: int | None, key: int) -> Communicator | None:
        """Return the group of the ranks with the same color, ordered by (key, rank), or None if color is None."""
        parts = self._exchange((color, key, self.rank))
        number = next(self._count)
        if color is None:
            return None
        members = [rank for c, _, rank in sorted((c, k, r) for c, k, r in parts if c == color)]
        return self._part((*self._group, number, color), members)

    def _part(self, group: tuple[Any, ...], members: Sequence[int]) -> Communicator:
        return Threads(self._post, group, members.index(self.rank), len(members), self.transport)

    def free(self) -> None:
        """Do nothing, because the group has no resources."""

    def agree(self, ok: bool) -> bool:
        """Return whether `ok` is true on all ranks, by exchanging it."""
        return all(self._exchange(ok))

    def abort(self, code: int) -> None:
        """End the process, and thereby all virtual ranks, with exit code `code`."""
        os._exit(code)

    def _next(self, kind: str) -> tuple[str, int]:
        return kind, next(self._count)

    def _exchange(self, obj: Any) -> list[Any]:
        return self._post.meet(self._group, self._next("exchange"), self.rank, self.size, obj)


def _reducer(op: str) -> Callable[[Any, Any], Any]:
    """Return the function that reduces two arrays into the first one; `op` is sum or max.

    The maximum is NaN if either entry is NaN.
    """
    if op == "sum":
        return lambda into, other: np.add(into, other, out=into)
    if op == "max":
        return lambda into, other: np.maximum(into, other, out=into)
    raise ValueError(f"unknown reduction {op!r}; use sum or max")


def _core_here() -> int | None:
    """Return the core on which this thread runs, or None if the system does not bind threads."""
    ask = getattr(ctypes.CDLL(None), "sched_getcpu", None) if hasattr(os, "sched_setaffinity") else None
    core = -1 if ask is None else int(ask())
    return core if core >= 0 else None


def run_ranks(size: int, body: Callable[[Communicator], Any]) -> list[Any]:
    """Run `body(comm)` on `size` virtual ranks and return their results, or raise the first error.

    All ranks are bound to the caller's core. Small problems spend most of their time in Python, which runs one thread
    at a time. On two cores, each switch would wake the other core, which takes about as long as the computation of a
    rank.
    """
    post, core = Post(size), _core_here() if size > 1 else None
    results: list[Any] = [None] * size
    errors: list[tuple[int, BaseException]] = []

    def main(rank: int) -> None:
        try:
            if core is not None:
                with suppress(OSError):  # binding is not permitted, or the core is offline
                    os.sched_setaffinity(0, {core})  # affects this thread only
            results[rank] = body(Threads(post, (), rank, size))
        except BaseException as error:
            errors.append((rank, error))
            post.fail()
        finally:
            post.leave()

    threads = [threading.Thread(target=main, args=(rank,), name=f"rank {rank}") for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0][1]
    return results
