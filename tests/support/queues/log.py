"""Record the order of a rank's work: operations, events between queues, and their memory.

Actors are the host, the streams of a device, and messages in flight. The operations of one actor run in order.
Operations of two actors are ordered only by an event that one actor records and the other waits for. Each operation
that the host starts comes after everything that the host has waited for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import mxpeak

PRODUCT = Path(mxpeak.__file__).parent
HOST = "host"


@dataclass(frozen=True, slots=True)
class Region:
    """Entries of a memory that an operation reads or writes, with their offset and strides in entries.

    `rows` selects indices of the first dimension (None: all).
    """

    memory: int
    first: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    writes: bool
    rows: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Op:
    """An operation of an actor: a kernel, a copy, a message, or host code on memory that a device also uses.

    kind      kernel, gemm, trsm, factor, up and down (between host and device), send, receive, collective, host, fact
              and its end, factored (the host starts the work between the two during FACT), meet (the host with other
              ranks)
    message   the key that a send and its receive share; the key of a collective operation ends with the rank count
    sizes     m, n and k of a product; jb, jb and n of a solve; m, jb and jb of a factorization;
              the length of a message
    """

    actor: str
    name: str
    kind: str
    regions: tuple[Region, ...]
    place: tuple[str, ...]
    phase: str
    flops: float = 0.0
    bytes: int = 0
    message: Any = None
    precision: str = ""
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Mark:
    """An event: all operations that an actor has started so far."""

    event: int
    actor: str


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait: later operations of an actor run after an event.

    `number`: the host waits because it reads a number. `looked`: the host polled instead, and the event had occurred.
    """

    actor: str
    event: int
    place: tuple[str, ...]
    phase: str
    number: bool = False
    looked: bool = False


@dataclass(frozen=True, slots=True)
class Free:
    """Memory returned to the stream that allocated it, which may use it again immediately."""

    memory: int
    place: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """The start of a step of a computation."""

    index: int


Record = Op | Mark | Wait | Free | Step


@dataclass(slots=True)
class Log:
    """The operations of one rank, in the order in which its host started them.

    memories    by number: bytes, bytes per entry, the stream that allocated it
    paused      do not record operations and ends of memories, but record events, because later operations may wait for
                them
    """

    rank: int
    records: list[Record] = field(default_factory=list)
    memories: dict[int, tuple[int, int, str]] = field(default_factory=dict)
    phase: str = ""
    paused: bool = False
    _events: int = 0

    def allocate(self, size: int, itemsize: int, stream: str) -> int:
        """Record a new memory, and return its number."""
        self.memories[len(self.memories)] = size, itemsize, stream
        return len(self.memories) - 1

    def op(self, actor: str, name: str, kind: str, regions: tuple[Region, ...], **more: Any) -> None:
        """Record an operation of an actor."""
        if self.paused:
            return
        self.records.append(Op(actor, name, kind, regions, place(), self.phase, **more))

    def mark(self, actor: str) -> int:
        """Record an event of an actor."""
        self._events += 1
        self.records.append(Mark(self._events, actor))
        return self._events

    def wait(self, actor: str, event: int, *, number: bool = False, looked: bool = False) -> None:
        """Record that later work of an actor runs after an event."""
        self.records.append(Wait(actor, event, place(), self.phase, number, looked))

    def join(self, waiting: str, done: str, *, number: bool = False, looked: bool = False) -> None:
        """Record that later work of `waiting` runs after all work that `done` has started."""
        self.wait(waiting, self.mark(done), number=number, looked=looked)

    def free(self, memory: int) -> None:
        """Record that a memory has no more references."""
        if self.paused:
            return
        self.records.append(Free(memory, place()))

    @property
    def ops(self) -> Iterator[Op]:
        """Return the operations alone."""
        return (record for record in self.records if isinstance(record, Op))


@cache
def _within(filename: str) -> str | None:
    """Return a file's path in the package; None for other files."""
    path = Path(filename)
    return str(path.relative_to(PRODUCT)) if path.is_relative_to(PRODUCT) else None


def place() -> tuple[str, ...]:
    """Return the lines of the package on the call stack, the innermost first."""
    lines, frame = [], sys._getframe(1)
    while frame is not None:
        name = _within(frame.f_code.co_filename)
        if name is not None:
            lines.append(f"{name}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(lines)
