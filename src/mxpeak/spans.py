"""Timed spans: the one way in which anything is timed or watched.

A solver opens `with spans("update", flops=...)`; the totals become the phase table of the result, and observers
(progress, forecast, guard, power) see each finished step.  A span costs about a microsecond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol


@dataclass(slots=True)
class Phase:
    """Totals of one kind of work on one rank."""

    time_s: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One finished step of a long computation: what is done, of how much, and when (seconds since its start)."""

    label: str
    index: int
    count: int
    done_flops: float
    total_flops: float
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Event:
    """One span by itself, for a timeline: begin and end by the clock, on one of several lanes."""

    name: str
    begin: float
    end: float
    lane: str = "compute"


class Observer(Protocol):
    """Somebody who watches a run: called on rank 0 only, never inside a kernel."""

    def start(self, label: str, total_flops: float) -> None:
        """A computation of `total_flops` flops called `label` begins."""

    def step(self, step: Step) -> None:
        """One more step is done."""

    def finish(self, label: str, elapsed_s: float) -> None:
        """The computation ended."""


@dataclass(slots=True)
class Spans:
    """Phase totals of one rank, and the observers that look on; single events too, where `events` is a list."""

    observers: Sequence[Observer] = ()
    clock: Callable[[], float] = perf_counter
    phases: dict[str, Phase] = field(default_factory=dict)
    events: list[Event] | None = None
    _label: str = ""
    _total_flops: float = 0.0
    _started: float = 0.0

    @contextmanager
    def __call__(self, name: str, *, flops: float = 0.0, bytes: float = 0.0) -> Iterator[None]:
        """Time the body of a `with` statement as one call of phase `name`."""
        begin = self.clock()
        try:
            yield
        finally:
            self.add(name, self.clock() - begin, flops=flops, bytes=bytes)

    def add(self, name: str, time_s: float, *, flops: float = 0.0, bytes: float = 0.0) -> None:
        """Book `time_s` seconds, measured elsewhere, as one call of phase `name`."""
        phase = self.phases.get(name)
        if phase is None:
            phase = self.phases[name] = Phase()
        phase.time_s += time_s
        phase.flops += flops
        phase.bytes += bytes
        phase.calls += 1
        if self.events is not None:
            end = self.clock()
            self.events.append(Event(name, end - time_s, end))

    def travelled(self, name: str, begin: float) -> None:
        """Note what has been under way since `begin`, by the clock, beside what was computed meanwhile."""
        if self.events is not None:
            self.events.append(Event(name, begin, self.clock(), "halo"))

    def time_of(self, name: str) -> float:
        """The seconds of a phase; 0 if it did not occur."""
        return self.phases[name].time_s if name in self.phases else 0.0

    @property
    def active_s(self) -> float:
        """Seconds since `start`."""
        return self.clock() - self._started

    def start(self, label: str, total_flops: float) -> None:
        """Begin a computation of `total_flops`: forget the phases of the one before, tell the observers."""
        self.phases.clear()
        self._label, self._total_flops, self._started = label, total_flops, self.clock()
        for observer in self.observers:
            observer.start(label, total_flops)

    def step(self, index: int, count: int, done_flops: float) -> None:
        """Tell the observers that step `index` of `count` is done."""
        if self.observers:
            step = Step(self._label, index, count, done_flops, self._total_flops, self.active_s)
            for observer in self.observers:
                observer.step(step)

    def finish(self) -> None:
        """Tell the observers that the computation ended."""
        elapsed_s = self.active_s
        for observer in self.observers:
            observer.finish(self._label, elapsed_s)
