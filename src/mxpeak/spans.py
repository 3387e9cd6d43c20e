"""Timed spans: the one way in which anything is timed or watched.

A solver opens `with spans("update", flops=...)`; the totals become the phase table of the result, those after each
step its table of steps, and observers such as the progress line see each finished step.  A span costs about a
microsecond, a step two.

On a device work goes on in the background: a span is then from mark to mark in the order of the work, its length is
looked up when somebody asks, and what runs at the same time as something else is counted in both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol


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
class Row:
    """Where a computation stood after a step: when, flops done, and the seconds of each phase by then."""

    index: int
    elapsed_s: float
    done_flops: float
    phases: Mapping[str, float]


class Rows:
    """Rows of one computation, of which at most `MOST_ROWS` are kept: every one, every second, every fourth, ...

    A row holds totals, so what is left out goes to the next one that is kept.
    """

    def __init__(self) -> None:
        self.kept: list[Row] = []
        self._stride, self._count = 1, 0

    def add(self, step: Step, phases: Mapping[str, Phase]) -> None:
        """A step is done."""
        if self._count % self._stride == 0:
            self.kept.append(_row(step.index, step.elapsed_s, step.done_flops, phases))
        self._count += 1
        if len(self.kept) >= MOST_ROWS:
            del self.kept[1::2]
            self._stride *= 2

    def end(self, index: int, elapsed_s: float, done_flops: float, phases: Mapping[str, Phase]) -> None:
        """The computation ended, with whatever came after its last step."""
        self.kept.append(_row(index, elapsed_s, done_flops, phases))


def _row(index: int, elapsed_s: float, done_flops: float, phases: Mapping[str, Phase]) -> Row:
    return Row(index, elapsed_s, done_flops, {name: phase.time_s for name, phase in phases.items()})


@dataclass(frozen=True, slots=True)
class Event:
    """One span by itself, for a timeline: begin and end by the clock, on one of several lanes."""

    name: str
    begin: float
    end: float
    lane: str = "compute"


class Stopwatch(Protocol):
    """A clock of work that may go on in the background.

    lag    how many steps of a computation may have been begun before the first of them has to have ended
    """

    lag: int

    def mark(self) -> Any:
        """Now, in the order of the work."""

    def seconds(self, begin: Any, end: Any) -> float:
        """The time between two marks; waits for the later one."""


class HostClock:
    """The clock of work that is done once it has been asked for."""

    lag = 0

    def mark(self) -> float:
        """Now."""
        return perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        """Their difference."""
        return end - begin


HOST = HostClock()
#: Marks that may wait for somebody to ask before they are looked up.
MOST_WAITING = 4096
#: Rows of a computation that are kept, and events of a timeline unless `record` is told otherwise.
MOST_ROWS, MOST_EVENTS = 200, 500_000


class Observer(Protocol):
    """Somebody who watches a run: called on rank 0 only, never inside a kernel."""

    def start(self, label: str, total_flops: float) -> None:
        """A computation of `total_flops` flops called `label` begins."""

    def step(self, step: Step) -> None:
        """One more step is done."""

    def finish(self, label: str, elapsed_s: float) -> None:
        """The computation ended."""


class Span:
    """The body of a `with` statement, timed as one call of a phase."""

    __slots__ = ("_around", "_begin", "_bytes", "_flops", "_name", "_spans")

    def __init__(self, spans: Spans, name: str, flops: float, bytes: float):
        self._spans, self._name, self._flops, self._bytes = spans, name, flops, bytes

    def __enter__(self) -> None:
        spans = self._spans
        self._around, spans.place = spans.place, self._name
        spans.beats += 1
        self._begin = spans.stopwatch.mark()

    def __exit__(self, *error: object) -> None:
        spans, name = self._spans, self._name
        end = spans.stopwatch.mark()
        spans.beats += 1
        spans.place = self._around
        spans._count(name, self._flops, self._bytes)
        spans._end(name, self._begin, end)


@dataclass(slots=True)
class Spans:
    """Phase totals of one rank, and the observers that look on; single events too, where `events` is a list.

    look          called at each step, on every rank; it may raise to end the computation
    running       whether a computation has begun and not ended
    computations  how many computations have begun
    beats         how often something has begun or ended: a thread may see by it whether the rank gets on
    place         the innermost span that is open; empty between spans
    longest_s     the longest time between two steps of the computation
    """

    observers: Sequence[Observer] = ()
    stopwatch: Stopwatch = HOST
    events: list[Event] | None = None
    look: Callable[[Step], None] | None = None
    running: bool = False
    computations: int = 0
    beats: int = 0
    place: str = ""
    longest_s: float = 0.0
    clock: Callable[[], float] = perf_counter
    _phases: dict[str, Phase] = field(default_factory=dict)
    _waiting: deque[tuple[str, Any, Any]] = field(default_factory=deque)
    _ended: int = 0
    _begun: list[tuple[Any, int, int, int, float]] = field(default_factory=list)
    _rows: Rows = field(default_factory=Rows)
    _last: tuple[int, float] = (0, 0.0)
    _stepped_s: float = 0.0
    _most_events: int = MOST_EVENTS
    _label: str = ""
    _total_flops: float = 0.0
    _started: float = 0.0
    _start: Any = 0.0

    def __call__(self, name: str, *, flops: float = 0.0, bytes: float = 0.0) -> Span:
        """Time the body of a `with` statement as one call of phase `name`."""
        return Span(self, name, flops, bytes)

    def add(self, name: str, time_s: float, *, flops: float = 0.0, bytes: float = 0.0, scattered: bool = False) -> None:
        """Book `time_s` seconds, measured elsewhere, as one call of phase `name`.

        They ended now, unless they were `scattered` over a longer time: no timeline can show those.
        """
        self._count(name, flops, bytes).time_s += time_s
        if not scattered and self.events is not None:
            end = self.clock()
            self._note(name, end - time_s, end)

    def _count(self, name: str, flops: float, bytes: float) -> Phase:
        """One more call of a phase."""
        phase = self._phases.get(name)
        if phase is None:
            phase = self._phases[name] = Phase()
        phase.flops += flops
        phase.bytes += bytes
        phase.calls += 1
        return phase

    def _end(self, name: str, begin: Any, end: Any) -> None:
        """A span has ended: book it, at once or when its marks are past."""
        if not self.stopwatch.lag:
            self._book(name, begin, end)
            return
        self._waiting.append((name, begin, end))
        self._ended += 1
        for _ in range(2 if len(self._waiting) > MOST_WAITING else 0):  # past long since: nobody waits
            self._book(*self._waiting.popleft())

    def _book(self, name: str, begin: Any, end: Any) -> None:
        """The time between two marks belongs to a phase."""
        time_s = self.stopwatch.seconds(begin, end)
        self._phases[name].time_s += time_s
        if self.events is not None:
            at = self._started + self.stopwatch.seconds(self._start, begin)
            self._note(name, at, at + time_s)

    def _note(self, name: str, begin: float, end: float, lane: str = "compute") -> None:
        """Keep an event, if there is room for it."""
        if self.events is not None and len(self.events) < self._most_events:
            self.events.append(Event(name, begin, end, lane))

    def _look_up(self, waiting: int = 0) -> None:
        """Book the marks that wait, all or the oldest, until so many are left."""
        while len(self._waiting) > waiting:
            self._book(*self._waiting.popleft())

    @property
    def phases(self) -> dict[str, Phase]:
        """The totals of each phase so far."""
        self._look_up()
        return self._phases

    @property
    def label(self) -> str:
        """What is being computed."""
        return self._label

    @property
    def index(self) -> int:
        """The last step that is done."""
        return self._last[0]

    @property
    def total_flops(self) -> float:
        """How much is to be done."""
        return self._total_flops

    @property
    def known_phases(self) -> dict[str, Phase]:
        """The totals of each phase, without waiting for work that still goes on."""
        return self._phases

    @property
    def rows(self) -> list[Row]:
        """Where the computation stood after its steps, and at its end."""
        return self._rows.kept

    @property
    def started(self) -> float:
        """When the computation, or `record`, began: by the clock."""
        return self._started

    def record(self, most: int = MOST_EVENTS) -> float:
        """Begin to keep single events, the first so many of them; returns the time by the clock."""
        self.events, self._most_events = [], most
        self._started, self._start = self.clock(), self.stopwatch.mark()
        return self._started

    def recorded(self) -> list[Event]:
        """The events since `record`, of which no more are kept."""
        self._look_up()
        events, self.events = self.events or [], None
        return events

    def travelled(self, name: str, begin: float) -> None:
        """Note what has been under way since `begin`, by the clock, beside what was computed meanwhile."""
        if self.events is not None:
            self._note(name, begin, self.clock(), "halo")

    def time_of(self, name: str) -> float:
        """The seconds of a phase; 0 if it did not occur."""
        phase = self.phases.get(name)
        return phase.time_s if phase else 0.0

    @property
    def active_s(self) -> float:
        """Seconds since `start`."""
        return self.clock() - self._started

    def start(self, label: str, total_flops: float) -> None:
        """Begin a computation of `total_flops`: forget the phases of the one before, tell the observers."""
        self._waiting.clear()
        self._begun.clear()
        self._phases.clear()
        self._ended, self._last, self._rows = 0, (0, 0.0), Rows()
        self.running, self.longest_s, self._stepped_s = True, 0.0, 0.0
        self.computations += 1
        self.beats += 1
        self._label, self._total_flops, self._started = label, total_flops, self.clock()
        self._start = self.stopwatch.mark()
        for observer in self.observers:
            observer.start(label, total_flops)

    def expect(self, total_flops: float) -> None:
        """The computation turns out to be of so many flops."""
        self._total_flops = total_flops

    def step(self, index: int, count: int, done_flops: float) -> None:
        """Step `index` of `count` has been begun: tell the observers of those that are done, and keep their times.

        It waits for the one `lag` steps before, so that what they see is done, and the work does not pile up.
        """
        self._begun.append((self.stopwatch.mark(), self._ended, index, count, done_flops))
        self._tell(self.stopwatch.lag)

    def _tell(self, lag: int) -> None:
        while len(self._begun) > lag:
            mark, ended, index, count, done_flops = self._begun.pop(0)
            self.stopwatch.seconds(mark, mark)  # waits for it
            self._look_up(self._ended - ended)
            step = Step(self._label, index, count, done_flops, self._total_flops, self.active_s)
            self._last = index, done_flops
            self.longest_s = max(self.longest_s, step.elapsed_s - self._stepped_s)
            self._stepped_s = step.elapsed_s
            self.beats += 1
            self._rows.add(step, self._phases)
            for observer in self.observers:
                observer.step(step)
            if self.look is not None:
                self.look(step)

    def finish(self) -> None:
        """Wait for what has been begun, and tell the observers that the computation ended."""
        self._tell(0)
        end = self.stopwatch.mark()
        self.stopwatch.seconds(end, end)
        elapsed_s = self.active_s
        self.running = False
        self._look_up()
        self._rows.end(self._last[0], elapsed_s, self._last[1], self._phases)
        for observer in self.observers:
            observer.finish(self._label, elapsed_s)
