"""Simulate a network with a chosen latency, for ranks that share a clock: it delays each message by the latency."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from copy import copy
from typing import Any, NamedTuple

import numpy as np

from mxpeak.comm.base import WAITED_FOR, Request, Transport
from mxpeak.comm.exchange import TAG as OF_PIVOTS

#: Tags of the time stamps of messages, and of the messages of a broadcast.
STAMPS, BROADCAST = 20_000, 19_000
#: Bytes of the longest message that arrives without action by its receiver.
SHORT = 4096
#: Seconds that a waiting rank sleeps between two tests.
LOOK_S = 2e-5


class Wait(NamedTuple):
    """An interval in which a rank only waited, and the message that ended it.

    source   the sender's rank in the complete program
    sent_s   the time at which the message was sent
    here_s   the time at which it arrived
    due_s    the time from which it may be received
    """

    begin_s: float
    end_s: float
    source: int
    sent_s: float
    here_s: float
    due_s: float

    @property
    def shown_s(self) -> float:
        """Return how long the rank waited after the message had arrived."""
        return max(0.0, self.due_s - max(self.begin_s, self.here_s))


def lost(waits: list[list[Wait]], ends_s: list[float]) -> float:
    """Return how much earlier all ranks would have ended without the latency.

    The waits are replayed. Without the latency, a wait ends when the rank has begun to wait and the message has been
    sent and copied. Both times are earlier by the delay that their rank had accumulated until then.
    """
    # for each rank: pairs of a time and the accumulated delay from this time on
    late: list[list[tuple[float, float]]] = [[(0.0, 0.0)] for _ in waits]
    by_end = sorted(((rank, wait) for rank, own in enumerate(waits) for wait in own), key=lambda each: each[1].end_s)
    for rank, wait in by_end:
        of_sender = late[wait.source]
        sender_s = of_sender[bisect_right(of_sender, (wait.sent_s, math.inf)) - 1][1]
        copied_s = max(wait.begin_s, wait.here_s) - max(wait.begin_s, wait.sent_s)
        sooner_s = max(wait.begin_s - late[rank][-1][1], wait.sent_s - sender_s) + copied_s
        late[rank].append((wait.end_s, max(wait.begin_s, wait.due_s) - sooner_s))
    return max(ends_s) - max(end_s - own[-1][1] for end_s, own in zip(ends_s, late))


class Network:
    """The latency that all groups of a program share, and this rank's waits in order."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.waits: list[Wait] = []
        self._came: list[tuple[int, float, float, float]] = []
        self._begin_s, self._wait = 0.0, None  # type: float, object

    def look(self) -> None:
        """Record that this rank tests for a message, and when it began to wait."""
        wait = WAITED_FOR[-1] if WAITED_FOR else None
        if wait is not self._wait:
            self._begin_s, self._wait = time.perf_counter(), wait

    def came(self, *message: Any) -> None:
        """Record a message that may now be received: its source, and the times `sent_s`, `here_s` and `due_s`."""
        if self._wait is None:
            self._came.append(message)
            return
        now = time.perf_counter()
        self.waits.append(Wait(self._begin_s, now, *message))
        self._begin_s = now

    def step(self) -> None:
        """End a step: messages that arrived while this rank was busy count as waits that end now."""
        now = time.perf_counter()
        self.waits += [Wait(now, now, *message) for message in self._came]
        self._came = []


class Sent:
    """A message that was sent, and its time stamp."""

    def __init__(self, *requests: Request):
        self._requests = requests

    def test(self) -> bool:
        """Return whether the message and its stamp have been sent."""
        return all([request.test() for request in self._requests])

    def wait(self) -> None:
        """Test until the message and its stamp have been sent."""
        while not self.test():
            time.sleep(LOOK_S)


class Late:
    """A receive that is complete after its message has arrived and the latency has passed.

    The latency of a short message begins with its time stamp. A long message is copied by the receiving rank when this
    rank tests for it. Its latency begins after the copy, so it is added to the transfer time.
    """

    def __init__(self, message: Request, stamp: Request, sent_s: Any, source: int, network: Network, *, short: bool):
        self._message, self._stamp, self._sent_s, self._source = message, stamp, sent_s, source
        self._network, self._delay_s, self._short = network, network.delay_s, short
        self._here_s: float | None = None
        self._done = False

    def test(self) -> bool:
        """Return whether the receive is complete. The sender and the receiver have the same clock."""
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
        """Test until the receive is complete, and sleep between the tests."""
        WAITED_FOR.append(self)
        while not self.test():
            time.sleep(LOOK_S)
        WAITED_FOR.pop()


class Delayed:
    """A communicator that delays messages and broadcasts, but not reductions or FACT's exchange of pivots."""

    def __init__(self, comm: Any, network: Network, ranks: list[int] | None = None):
        self._comm, self.network = comm, network
        self._ranks = list(range(comm.size)) if ranks is None else ranks  # in the complete program
        self.rank: int = comm.rank
        self.size: int = comm.size

    def repeated(self, *messages: Any) -> None:
        """Return None, because persistent messages would not be delayed."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def with_transport(self, transport: Transport) -> Delayed:
        """Return this group with another transport."""
        other = copy(self)
        other._comm = self._comm.with_transport(transport)
        return other

    def split(self, color: int | None, key: int) -> Delayed | None:
        """Return a group on the same network."""
        part = self._comm.split(color, key)
        if part is None:
            return None
        ranks = np.zeros(part.size)
        ranks[part.rank] = self._ranks[self.rank]
        part.allreduce(ranks, "sum")
        return Delayed(part, self.network, [int(rank) for rank in ranks])

    def isend(self, buffer: Any, dest: int, tag: int = 0) -> Request:
        """Send a message with a time stamp."""
        if OF_PIVOTS <= tag < OF_PIVOTS + 3:
            pivots: Request = self._comm.isend(buffer, dest, tag)
            return pivots
        stamp = np.full(1, time.perf_counter())
        return Sent(self._comm.isend(stamp, dest, STAMPS + tag), self._comm.isend(buffer, dest, tag))

    def irecv(self, buffer: Any, source: int, tag: int = 0) -> Request:
        """Receive a message, at the earliest when the latency has passed."""
        if OF_PIVOTS <= tag < OF_PIVOTS + 3:
            pivots: Request = self._comm.irecv(buffer, source, tag)
            return pivots
        sent_s = np.zeros(1)
        stamp = self._comm.irecv(sent_s, source, STAMPS + tag)
        short = memoryview(buffer).nbytes <= SHORT
        message = self._comm.irecv(buffer, source, tag)
        return Late(message, stamp, sent_s, self._ranks[source], self.network, short=short)

    def ibcast(self, buffer: Any, root: int) -> Request:
        """Broadcast by individual messages from the root."""
        if self.rank != root:
            return self.irecv(buffer, root, BROADCAST)
        return Sent(*(self.isend(buffer, rank, BROADCAST) for rank in range(self.size) if rank != root))
