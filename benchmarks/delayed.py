"""A network with a latency that is chosen: a message comes that long after it was sent, on ranks that share a clock."""

from __future__ import annotations

import time
from copy import copy
from typing import Any

import numpy as np

from mxpeak.comm.base import WAITED_FOR, Request, Transport
from mxpeak.comm.exchange import TAG as OF_PIVOTS

#: Tags of the stamps that say when a message was sent, and of the messages of a broadcast.
STAMPS, BROADCAST = 20_000, 19_000
#: Bytes of the longest message that is there without its receiver's doing.
SHORT = 4096
#: How long a rank that waits sleeps between two looks.
LOOK_S = 2e-5


class Network:
    """What all groups of a program have in common.

    shown_s    how long this rank has had nothing to do but to wait until messages that were here were old enough
    """

    def __init__(self) -> None:
        self.delay_s = self.shown_s = 0.0
        self._looked_s, self._wait = 0.0, None  # type: float, object

    def look(self, due_s: float) -> bool:
        """Whether a message that is here is old enough.  The time since the last look in the same wait counts, once."""
        now, wait = time.perf_counter(), WAITED_FOR[-1] if WAITED_FOR else None
        if wait is not None and wait is self._wait:
            self.shown_s += max(0.0, min(now, due_s) - self._looked_s)
        self._looked_s, self._wait = now, wait
        return now >= due_s


class Sent:
    """A message that was sent, and its stamp."""

    def __init__(self, *requests: Request):
        self._requests = requests

    def test(self) -> bool:
        """Whether all of it is taken."""
        return all([request.test() for request in self._requests])

    def wait(self) -> None:
        """Look until it is."""
        while not self.test():
            time.sleep(LOOK_S)


class Late:
    """A receive that is complete once its message is here and old enough.

    A short message is as old as its stamp.  A long one is copied by the rank that receives it, when that rank looks for
    it, so its age counts from then: the latency comes on top of the transfer.
    """

    def __init__(self, message: Request, stamp: Request, sent_s: Any, network: Network, *, short: bool):
        self._message, self._stamp, self._sent_s, self._network = message, stamp, sent_s, network
        self._delay_s, self._short = network.delay_s, short
        self._due_s: float | None = None

    def test(self) -> bool:
        """Whether it is, by the sender's clock and ours, which are one."""
        if self._due_s is None:
            if not all([self._message.test(), self._stamp.test()]):
                return False
            self._due_s = self._delay_s + (self._sent_s[0] if self._short else time.perf_counter())
        return self._network.look(self._due_s)

    def wait(self) -> None:
        """Look until it is, asleep between the looks."""
        WAITED_FOR.append(self)
        while not self.test():
            time.sleep(LOOK_S)
        WAITED_FOR.pop()


class Delayed:
    """A communicator whose messages and broadcasts come late; reductions and FACT's exchange of pivots do not."""

    def __init__(self, comm: Any, network: Network):
        self._comm, self.network = comm, network
        self.rank: int = comm.rank
        self.size: int = comm.size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def with_transport(self, transport: Transport) -> Delayed:
        """This group with another transport."""
        other = copy(self)
        other._comm = self._comm.with_transport(transport)
        return other

    def split(self, color: int | None, key: int) -> Delayed | None:
        """A group on the same network."""
        part = self._comm.split(color, key)
        return None if part is None else Delayed(part, self.network)

    def isend(self, buffer: Any, dest: int, tag: int = 0) -> Request:
        """Send, and say when."""
        if OF_PIVOTS <= tag < OF_PIVOTS + 3:
            pivots: Request = self._comm.isend(buffer, dest, tag)
            return pivots
        stamp = np.full(1, time.perf_counter())
        return Sent(self._comm.isend(stamp, dest, STAMPS + tag), self._comm.isend(buffer, dest, tag))

    def irecv(self, buffer: Any, source: int, tag: int = 0) -> Request:
        """Receive, no sooner than the latency after it was sent."""
        if OF_PIVOTS <= tag < OF_PIVOTS + 3:
            pivots: Request = self._comm.irecv(buffer, source, tag)
            return pivots
        sent_s = np.zeros(1)
        stamp = self._comm.irecv(sent_s, source, STAMPS + tag)
        short = memoryview(buffer).nbytes <= SHORT
        return Late(self._comm.irecv(buffer, source, tag), stamp, sent_s, self.network, short=short)

    def ibcast(self, buffer: Any, root: int) -> Request:
        """The root sends to everybody."""
        if self.rank != root:
            return self.irecv(buffer, root, BROADCAST)
        return Sent(*(self.isend(buffer, rank, BROADCAST) for rank in range(self.size) if rank != root))
