"""A network with a latency that is chosen: a message comes that long after it was sent, on ranks that share a clock."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from copy import copy
from typing import Any, NamedTuple

import numpy as np

from mxpeak.comm.base import WAITED_FOR, Request, Transport
from mxpeak.comm.exchange import TAG as OF_PIVOTS

#: Tags of the stamps that say when a message was sent, and of the messages of a broadcast.
STAMPS, BROADCAST = 20_000, 19_000
#: Bytes of the longest message that is there without its receiver's doing.
SHORT = 4096
#: How long a rank that waits sleeps between two looks.
LOOK_S = 2e-5


class Wait(NamedTuple):
    """From when to when a rank had nothing to do but to wait, and the message that ended it.

    source   who sent it, by the whole program's ranks; sent_s, here_s, due_s: when, when it was here, and old enough
    """

    begin_s: float
    end_s: float
    source: int
    sent_s: float
    here_s: float
    due_s: float

    @property
    def shown_s(self) -> float:
        """How long the message was here and too young."""
        return max(0.0, self.due_s - max(self.begin_s, self.here_s))


def lost(waits: list[list[Wait]], ends_s: list[float]) -> float:
    """How much sooner all ranks would have ended if messages came at once: their waits, replayed without the latency.

    A wait then ends when the rank is there and the message sent, and copied, where that was waited for.  Each may be
    as much sooner as its rank was late by then.
    """
    late: list[list[tuple[float, float]]] = [[(0.0, 0.0)] for _ in waits]  # since when each rank is how late
    by_end = sorted(((rank, wait) for rank, own in enumerate(waits) for wait in own), key=lambda each: each[1].end_s)
    for rank, wait in by_end:
        of_sender = late[wait.source]
        sender_s = of_sender[bisect_right(of_sender, (wait.sent_s, math.inf)) - 1][1]
        copied_s = max(wait.begin_s, wait.here_s) - max(wait.begin_s, wait.sent_s)
        sooner_s = max(wait.begin_s - late[rank][-1][1], wait.sent_s - sender_s) + copied_s
        late[rank].append((wait.end_s, max(wait.begin_s, wait.due_s) - sooner_s))
    return max(ends_s) - max(end_s - own[-1][1] for end_s, own in zip(ends_s, late))


class Network:
    """What all groups of a program have in common: the latency, and this rank's waits, in their order."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.waits: list[Wait] = []
        self._came: list[tuple[int, float, float, float]] = []
        self._begin_s, self._wait = 0.0, None  # type: float, object

    def look(self) -> None:
        """A rank looks for a message, perhaps while it waits."""
        wait = WAITED_FOR[-1] if WAITED_FOR else None
        if wait is not self._wait:
            self._begin_s, self._wait = time.perf_counter(), wait

    def came(self, *message: Any) -> None:
        """A message is here and old enough: from where, when it was sent, here, and so old."""
        if self._wait is None:
            self._came.append(message)
            return
        now = time.perf_counter()
        self.waits.append(Wait(self._begin_s, now, *message))
        self._begin_s = now

    def step(self) -> None:
        """What has come while this rank had other things to do is needed from now on, at the end of a step."""
        now = time.perf_counter()
        self.waits += [Wait(now, now, *message) for message in self._came]
        self._came = []


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

    def __init__(self, message: Request, stamp: Request, sent_s: Any, source: int, network: Network, *, short: bool):
        self._message, self._stamp, self._sent_s, self._source = message, stamp, sent_s, source
        self._network, self._delay_s, self._short = network, network.delay_s, short
        self._here_s: float | None = None
        self._done = False

    def test(self) -> bool:
        """Whether it is, by the sender's clock and ours, which are one."""
        self._network.look()
        if self._here_s is None:
            if not all([self._message.test(), self._stamp.test()]):
                return False
            self._here_s = float(self._sent_s[0]) if self._short else time.perf_counter()
        due_s = self._here_s + self._delay_s
        if not self._done and time.perf_counter() >= due_s:
            self._done = True
            self._network.came(self._source, float(self._sent_s[0]), self._here_s, due_s)
        return self._done

    def wait(self) -> None:
        """Look until it is, asleep between the looks."""
        WAITED_FOR.append(self)
        while not self.test():
            time.sleep(LOOK_S)
        WAITED_FOR.pop()


class Delayed:
    """A communicator whose messages and broadcasts come late; reductions and FACT's exchange of pivots do not."""

    def __init__(self, comm: Any, network: Network, ranks: list[int] | None = None):
        self._comm, self.network = comm, network
        self._ranks = list(range(comm.size)) if ranks is None else ranks  # in the whole program
        self.rank: int = comm.rank
        self.size: int = comm.size

    def repeated(self, *messages: Any) -> None:
        """Each message by itself, or none would be late."""

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
        if part is None:
            return None
        ranks = np.zeros(part.size)
        ranks[part.rank] = self._ranks[self.rank]
        part.allreduce(ranks, "sum")
        return Delayed(part, self.network, [int(rank) for rank in ranks])

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
        message = self._comm.irecv(buffer, source, tag)
        return Late(message, stamp, sent_s, self._ranks[source], self.network, short=short)

    def ibcast(self, buffer: Any, root: int) -> Request:
        """The root sends to everybody."""
        if self.rank != root:
            return self.irecv(buffer, root, BROADCAST)
        return Sent(*(self.isend(buffer, rank, BROADCAST) for rank in range(self.size) if rank != root))
