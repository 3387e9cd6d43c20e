"""Define a virtual rank: a thread with its own device, streams and log."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from tests.support.queues.log import HOST, Log

_here = threading.local()


class Rank:
    """The state of a thread that acts as a rank: the streams and the current stream of each device, and a log."""

    def __init__(self, number: int):
        self.number, self.log = number, Log(number)
        self.current: dict[int, Stream] = {}
        self.streams = 0
        self.panel = 0  # the step whose panel factorization started last
        self.names: dict[int, list[str]] = {}
        self._idle: list[str] = []
        self._messages = 0

    def stream(self, device: int = 0) -> Stream:
        """Return a device's current stream."""
        if device not in self.current:
            self.current[device] = Stream(self, device, "main")
        return self.current[device]

    def message(self) -> str:
        """Return an actor for a message in flight, until `over` ends it."""
        if self._idle:
            return self._idle.pop()
        self._messages += 1
        return f"message {self._messages}"

    def over(self, actor: str, *, looked: bool = False) -> None:
        """Record that the host knows that a message is complete."""
        self.log.join(HOST, actor, looked=looked)
        self._idle.append(actor)


class Stream:
    """A queue of a device, whose operations run in order."""

    def __init__(self, rank: Rank, device: int, name: str):
        self.rank, self.device, self.name = rank, device, f"{name} {device}"
        rank.names.setdefault(device, []).append(self.name)

    def wait_stream(self, other: Stream) -> None:
        """Order later work of this stream after the present work of `other`."""
        self.rank.log.join(self.name, other.name)

    def wait_event(self, event: Event) -> None:
        """Order later work of this stream after the event."""
        self.rank.log.wait(self.name, event.number)

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event after the present work of this stream."""
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Make the host wait for it."""
        self.rank.log.join(HOST, self.name)


class Event:
    """An event in a stream."""

    def __init__(self, enable_timing: bool = False):
        self.number, self.at, self.queries = 0, 0.0, 0

    def record(self, stream: Stream | None = None) -> None:
        """Record the event after the present work of a stream."""
        rank = here()
        self.number = rank.log.mark((stream or rank.stream()).name)
        self.at = perf_counter()

    def synchronize(self) -> None:
        """Make the host wait for it."""
        here().log.wait(HOST, self.number)

    def wait(self, stream: Stream | None = None) -> None:
        """Make a stream wait for it."""
        (stream or here().stream()).wait_event(self)

    def query(self) -> bool:
        """Return False at the first call, then True, and record that the host knows it."""
        self.queries += 1
        if self.queries > 1:
            here().log.wait(HOST, self.number, looked=True)
        return self.queries > 1

    def elapsed_time(self, end: Event) -> float:
        """Return milliseconds by the host's clock, which no test uses."""
        return (end.at - self.at) * 1e3


@contextmanager
def stream(queue: Stream | None) -> Iterator[None]:
    """Make this stream the current one of its device."""
    if queue is None:
        yield
        return
    rank = here()
    before = rank.stream(queue.device)
    rank.current[queue.device] = queue
    try:
        yield
    finally:
        rank.current[queue.device] = before


def new_stream(device: Any = None, priority: int = 0) -> Stream:
    """Create a stream of a device."""
    rank = here()
    rank.streams += 1
    return Stream(rank, index_of(device), f"stream {rank.streams} of")


def current_stream(device: Any = None) -> Stream:
    """Return a device's current stream."""
    return here().stream(index_of(device))


def synchronize(device: Any = None) -> None:
    """Make the host wait for all streams of a device."""
    rank = here()
    for name in rank.names.get(index_of(device), []):
        rank.log.join(HOST, name)


def index_of(device: Any) -> int:
    """Return the number of a device."""
    return getattr(device, "index", device) or 0


def here() -> Rank:
    """Return the rank of this thread."""
    rank: Rank = _here.rank
    return rank


@contextmanager
def playing(rank: Rank) -> Iterator[None]:
    """Make this thread act as a rank."""
    _here.rank = rank
    try:
        yield
    finally:
        del _here.rank
