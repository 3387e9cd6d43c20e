"""Record the order of a rank's work: operations, events between queues, and their memory.

Actors are the host, the streams of a device, and messages under way.  An actor's operations come one after the other;
those of two actors are ordered only by an event: marked by the one, waited for by the other.  Whatever the host begins
comes after all that the host has waited for.
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
    """Entries of a memory that an operation reads or writes; where they begin and how far apart they are, in entries.

    `rows`: only these of the first dimension (None: all).
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
    """What an actor does: a kernel, a copy, a message, or the host with memory that a device also uses.

    kind      kernel, gemm, trsm, factor, up and down (between host and device), send, receive, collective, host, fact
              and its end, factored (what the host begins between the two it begins during FACT), meet (the host with
              others)
    message   what a send and its receive have in common; of what ranks do together, it ends with how many they are
    sizes     of a product, m, n and k; of a solve, jb, jb and n; of a factorization, m, jb and jb;
              of a message, how many numbers it has
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
    """An event: all that an actor has begun so far."""

    event: int
    actor: str


@dataclass(frozen=True, slots=True)
class Wait:
    """What an actor does from here on comes after an event.

    `number`: whether the host waits for a number it reads; `looked`: it has not waited but looked, and found it past.
    """

    actor: str
    event: int
    place: tuple[str, ...]
    phase: str
    number: bool = False
    looked: bool = False


@dataclass(frozen=True, slots=True)
class Free:
    """Memory given back to the stream that it was made on, which may use it again at once."""

    memory: int
    place: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a computation has been begun."""

    index: int


Record = Op | Mark | Wait | Free | Step


@dataclass(slots=True)
class Log:
    """What one rank has begun, in the order in which its host did.

    memories    by number: bytes, bytes of an entry, the stream that made it
    paused      operations and ends of memories are not written down; events are, since what comes later may wait for
                them
    """

    rank: int
    records: list[Record] = field(default_factory=list)
    memories: dict[int, tuple[int, int, str]] = field(default_factory=dict)
    phase: str = ""
    paused: bool = False
    _events: int = 0

    def allocate(self, size: int, itemsize: int, stream: str) -> int:
        """The number of a new memory."""
        self.memories[len(self.memories)] = size, itemsize, stream
        return len(self.memories) - 1

    def op(self, actor: str, name: str, kind: str, regions: tuple[Region, ...], **more: Any) -> None:
        """An actor does something."""
        if self.paused:
            return
        self.records.append(Op(actor, name, kind, regions, place(), self.phase, **more))

    def mark(self, actor: str) -> int:
        """An event of an actor."""
        self._events += 1
        self.records.append(Mark(self._events, actor))
        return self._events

    def wait(self, actor: str, event: int, *, number: bool = False, looked: bool = False) -> None:
        """An actor's later work comes after an event."""
        self.records.append(Wait(actor, event, place(), self.phase, number, looked))

    def join(self, waiting: str, done: str, *, number: bool = False, looked: bool = False) -> None:
        """What `waiting` does from here on comes after all that `done` has begun."""
        self.wait(waiting, self.mark(done), number=number, looked=looked)

    def free(self, memory: int) -> None:
        """Nobody holds a memory any more."""
        if self.paused:
            return
        self.records.append(Free(memory, place()))

    @property
    def ops(self) -> Iterator[Op]:
        """The operations alone."""
        return (record for record in self.records if isinstance(record, Op))


@cache
def _within(filename: str) -> str | None:
    """A file's path in the package; None for others."""
    path = Path(filename)
    return str(path.relative_to(PRODUCT)) if path.is_relative_to(PRODUCT) else None


def place() -> tuple[str, ...]:
    """The package's lines that are being executed, the innermost first."""
    lines, frame = [], sys._getframe(1)
    while frame is not None:
        name = _within(frame.f_code.co_filename)
        if name is not None:
            lines.append(f"{name}:{frame.f_lineno}")
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(lines)
