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
    """What a thread that plays a rank has: streams by device, the current one of each, and a log."""

    def __init__(self, number: int):
        self.number, self.log = number, Log(number)
        self.current: dict[int, Stream] = {}
        self.streams = 0
        self.panel = 0  # the step whose panel was last begun to be factored
        self.names: dict[int, list[str]] = {}
        self._idle: list[str] = []
        self._messages = 0

    def stream(self, device: int = 0) -> Stream:
        """A device's current stream."""
        if device not in self.current:
            self.current[device] = Stream(self, device, "main")
        return self.current[device]

    def message(self) -> str:
        """An actor for a message under way, until it is `over`."""
        if self._idle:
            return self._idle.pop()
        self._messages += 1
        return f"message {self._messages}"

    def over(self, actor: str, *, looked: bool = False) -> None:
        """The host knows that a message has ended."""
        self.log.join(HOST, actor, looked=looked)
        self._idle.append(actor)


class Stream:
    """A queue of a device: what is begun in it is done in order."""

    def __init__(self, rank: Rank, device: int, name: str):
        self.rank, self.device, self.name = rank, device, f"{name} {device}"
        rank.names.setdefault(device, []).append(self.name)

    def wait_stream(self, other: Stream) -> None:
        """All that comes later in it comes after what `other` has by now."""
        self.rank.log.join(self.name, other.name)

    def wait_event(self, event: Event) -> None:
        """All that comes later in it comes after the event."""
        self.rank.log.wait(self.name, event.number)

    def record_event(self, event: Event | None = None) -> Event:
        """Mark what it has by now."""
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """The host waits for it."""
        self.rank.log.join(HOST, self.name)


class Event:
    """A mark in a stream."""

    def __init__(self, enable_timing: bool = False):
        self.number, self.at, self.queries = 0, 0.0, 0

    def record(self, stream: Stream | None = None) -> None:
        """Now, in the order of a stream."""
        rank = here()
        self.number = rank.log.mark((stream or rank.stream()).name)
        self.at = perf_counter()

    def synchronize(self) -> None:
        """The host waits for it."""
        here().log.wait(HOST, self.number)

    def wait(self, stream: Stream | None = None) -> None:
        """A stream waits for it."""
        (stream or here().stream()).wait_event(self)

    def query(self) -> bool:
        """Whether it is past, which the host then knows; not when it is asked for the first time."""
        self.queries += 1
        if self.queries > 1:
            here().log.wait(HOST, self.number, looked=True)
        return self.queries > 1

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds by the host's clock, which decide nothing."""
        return (end.at - self.at) * 1e3


@contextmanager
def stream(queue: Stream | None) -> Iterator[None]:
    """What is begun inside is begun in this stream."""
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
    """A further stream of a device."""
    rank = here()
    rank.streams += 1
    return Stream(rank, index_of(device), f"stream {rank.streams} of")


def current_stream(device: Any = None) -> Stream:
    """A device's current stream."""
    return here().stream(index_of(device))


def synchronize(device: Any = None) -> None:
    """The host waits for all that a device has."""
    rank = here()
    for name in rank.names.get(index_of(device), []):
        rank.log.join(HOST, name)


def index_of(device: Any) -> int:
    """The number of a device."""
    return getattr(device, "index", device) or 0


def here() -> Rank:
    """The rank that this thread plays."""
    rank: Rank = _here.rank
    return rank


@contextmanager
def playing(rank: Rank) -> Iterator[None]:
    """This thread plays a rank."""
    _here.rank = rank
    try:
        yield
    finally:
        del _here.rank
