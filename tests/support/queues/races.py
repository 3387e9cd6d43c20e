"""Find two operations that use the same entries, one of which writes, without an event that orders them.

Each actor has a vector clock: it counts the actor's own operations and those of other actors that are known to be
complete. An operation is ordered after another one if its actor's clock has counted the other one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tests.support.queues.log import HOST, Free, Log, Mark, Op, Region, Step, Wait

Clock = dict[str, int]
#: Select waits to remove, which shows whether they are needed.
Without = Callable[[Wait], bool]


@dataclass(frozen=True)
class Race:
    """Two operations that no event orders; `second` may be the end of a memory's life."""

    first: Op
    second: Op | Free

    def __str__(self) -> str:
        return f"{_said(self.first)}\n  and  {_said(self.second)}"


def _said(what: Op | Free) -> str:
    where = " < ".join(what.place[:4])
    if isinstance(what, Free):
        return f"the end of the memory at {where}"
    return f"{what.name} on {what.actor}, phase {what.phase or '-'}, at {where}"


class _Shadow:
    """The last operation of each actor that read, and that wrote, each entry of a memory."""

    def __init__(self, size: int, itemsize: int):
        self.itemsize = itemsize
        self.count = -(-size // itemsize)
        self.writes: dict[str, Any] = {}
        self.reads: dict[str, Any] = {}

    def of(self, kind: dict[str, Any], actor: str) -> Any:
        if actor not in kind:
            kind[actor] = np.zeros(self.count, np.int32)
        return kind[actor]

    def part(self, numbers: Any, region: Region) -> Any:
        """Return the entries of a region."""
        if region.itemsize == self.itemsize:
            strides = [stride * numbers.itemsize for stride in region.strides]
            begin = region.first * numbers.itemsize
            view = np.ndarray(region.shape, numbers.dtype, numbers, begin, strides)  # as_strided takes ten times longer
            return view if region.rows is None else view[list(region.rows)]
        # a view with another type: from its first to its last byte
        begin = region.first * region.itemsize
        end = begin + region.itemsize * (1 + sum((n - 1) * s for n, s in zip(region.shape, region.strides)))
        return numbers[begin // self.itemsize : -(-end // self.itemsize)]

    def set(self, numbers: Any, region: Region, value: int) -> None:
        if region.itemsize == self.itemsize and region.rows is not None:
            whole = Region(region.memory, region.first, region.shape, region.strides, region.itemsize, region.writes)
            self.part(numbers, whole)[list(region.rows)] = value
        else:
            self.part(numbers, region)[...] = value


class Detector:
    """Read one rank's log in order, and find races."""

    def __init__(self, log: Log, without: Without | None = None):
        self.log, self.without = log, without
        self.clocks: dict[str, Clock] = {}
        self.host_clocks: dict[str, tuple[Clock, int]] = {}  # what an actor's last operation knew of the host
        self.events: dict[int, Clock] = {}
        self.shadows: dict[int, _Shadow] = {}
        self.ops: dict[tuple[str, int], Op] = {}
        self.races: dict[tuple[Any, ...], Race] = {}

    def clock(self, actor: str) -> Clock:
        return self.clocks.setdefault(actor, {actor: 0})

    def run(self, limit: int | None = None) -> list[Race]:
        for record in self.log.records:
            if limit is not None and len(self.races) >= limit:
                break
            if isinstance(record, Op):
                self.operation(record)
            elif isinstance(record, Mark):
                clock = self.clock(record.actor)
                self.events[record.event] = {**clock} if record.actor == HOST else _joined(clock, self.clock(HOST))
            elif isinstance(record, Wait):
                if self.without is None or not self.without(record):
                    self.wait(record)
            elif isinstance(record, Free):
                self.end(record)
            else:
                self.begin(record)
        return list(self.races.values())

    def wait(self, wait: Wait) -> None:
        """Order later work of an actor after the event."""
        self.clocks[wait.actor] = _joined(self.clock(wait.actor), self.events[wait.event])

    def begin(self, step: Step) -> None:
        """Start a step."""

    def operation(self, op: Op) -> None:
        clock = self.clock(op.actor)
        if op.actor != HOST:  # work that the host starts comes after all work that the host knows to be complete
            host = self.clock(HOST)
            known, number = self.host_clocks.get(op.actor, (None, 0))
            if known is not host or number != host[HOST]:  # a wait replaces the clock, an operation increments it
                clock = self.clocks[op.actor] = _joined(clock, host)
                self.host_clocks[op.actor] = host, host[HOST]
        clock[op.actor] = number = clock.get(op.actor, 0) + 1
        self.ops[op.actor, number] = op
        touched = [(region, self.shadow(region.memory)) for region in op.regions if prod(region.shape)]
        for region, shadow in touched:
            self.touch(op, region, shadow, clock)
        for region, shadow in touched:
            shadow.set(shadow.of(shadow.writes if region.writes else shadow.reads, op.actor), region, number)

    def shadow(self, memory: int) -> _Shadow:
        if memory not in self.shadows:
            self.shadows[memory] = _Shadow(*self.log.memories[memory][:2])
        return self.shadows[memory]

    def touch(self, op: Op, region: Region, shadow: _Shadow, clock: Clock) -> None:
        for kind in (shadow.writes, shadow.reads) if region.writes else (shadow.writes,):
            for actor, numbers in kind.items():
                if actor != op.actor:
                    latest = int(shadow.part(numbers, region).max())
                    if latest > clock.get(actor, 0):
                        self.report(self.ops[actor, latest], op)

    def end(self, free: Free) -> None:
        """Return a memory to its stream, whose next operation may write to it."""
        shadow = self.shadows.pop(free.memory, None)
        if shadow is None:
            return
        stream = self.log.memories[free.memory][2]
        clock = _joined(self.clock(stream), self.clock(HOST))
        for kind in (shadow.writes, shadow.reads):
            for actor, numbers in kind.items():
                latest = int(numbers.max(initial=0))
                if actor != stream and latest > clock.get(actor, 0):
                    self.report(self.ops[actor, latest], free)

    def report(self, first: Op, second: Op | Free) -> None:
        """Report each pair of places once."""
        self.races.setdefault((first.name, first.place[:3], type(second), second.place[:3]), Race(first, second))


def _joined(clock: Clock, other: Clock) -> Clock:
    both = dict(clock)
    for actor, number in other.items():
        if both.get(actor, 0) < number:
            both[actor] = number
    return both


def races(log: Log, without: Without | None = None, limit: int | None = None) -> list[Race]:
    """Return at most `limit` races, each pair of places once, after removing the waits that `without` selects."""
    return Detector(log, without).run(limit)
