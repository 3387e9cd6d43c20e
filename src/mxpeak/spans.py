"""Measure and observe all computations by timed spans.

A solver opens `with spans("update", flops=...)`. The totals of all spans become the phase table of the result, and the
totals after each step become its table of steps. Observers such as the progress line receive each finished step. A
span costs about one microsecond, and a step about two.

On a device, work runs in the background. A span is then delimited by two events in the device's queue, and its
duration is read later. Phases that overlap are each counted in full. The phase `device` is the time in which at least
one span of the phases in `on_device` runs, as the "GPU active" time in fig. 7 of the rocHPL paper.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from time import perf_counter
from typing import Any, Protocol


@dataclass(slots=True)
class Phase:
    """Totals of one phase on one rank: seconds, flops, bytes and calls."""

    time_s: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """A finished step of a computation: its index, the completed flops, and the time since the start.

    phases    totals of each phase so far; later steps change these objects
    """

    label: str
    index: int
    count: int
    done_flops: float
    total_flops: float
    elapsed_s: float
    phases: Mapping[str, Phase] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepRow:
    """A row in the table of steps: seconds and completed flops since the start, and seconds per phase."""

    index: int
    elapsed_s: float
    done_flops: float
    phases: Mapping[str, float]

    @classmethod
    def of(cls, index: int, elapsed_s: float, done_flops: float, phases: Mapping[str, Phase]) -> StepRow:
        """Return a row with the current time of each phase."""
        return cls(index, elapsed_s, done_flops, {name: phase.time_s for name, phase in phases.items()})


class StepRows:
    """The rows in the table of steps of one computation, at most `MAX_ROWS`.

    When the table is full, every second row is dropped, and from then on, half as many steps are recorded. A row
    contains totals, so each row includes the time of the dropped rows before it.
    """

    def __init__(self) -> None:
        self.kept: list[StepRow] = []
        self._stride, self._count = 1, 0

    def add(self, step: Step, phases: Mapping[str, Phase]) -> None:
        """Add the row of every stride-th finished step; if the table is full, drop every second row."""
        if self._count % self._stride == 0:
            self.kept.append(StepRow.of(step.index, step.elapsed_s, step.done_flops, phases))
        self._count += 1
        if len(self.kept) >= MAX_ROWS:
            del self.kept[1::2]
            self._stride *= 2


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """A span in a timeline: name, start, end and lane. Times are in seconds of the clock."""

    name: str
    begin: float
    end: float
    lane: str = "compute"


@dataclass(frozen=True, slots=True)
class LongSpan:
    """A span that is long enough to have an energy: phase, phase around it (or empty), start and end on the clock."""

    name: str
    outer: str
    begin: float
    end: float


class Stopwatch(Protocol):
    """A clock for work that may run in the background.

    lag    number of steps whose work may still be running when the next step begins
    """

    lag: int

    def mark(self) -> Any:
        """Record a point in the order of the work, and return it as a mark."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Wait for the later of two marks, and return the seconds between the marks."""


class HostClock:
    """The clock for work that is complete when its call returns; a mark is a time in seconds."""

    lag = 0

    def mark(self) -> float:
        """Return the current time in seconds."""
        return perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        """Return the seconds between two times."""
        return end - begin


HOST = HostClock()
#: The name of the phase that measures the time in which the device computes.
DEVICE = "device"
#: Maximum number of spans whose marks have not been read.
MAX_WAITING = 4096
#: Maximum number of rows per computation, default maximum number of events in a timeline, and maximum number of long
#: spans.
MAX_ROWS, MAX_EVENTS, MAX_LONG_SPANS = 200, 500_000, 100_000


class Observer(Protocol):
    """An observer of the computations in a run. Only rank 0 calls its methods, and never inside a kernel."""

    def start(self, label: str, total_flops: float) -> None:
        """Observe the start of the computation `label` with `total_flops` flops."""

    def step(self, step: Step) -> None:
        """Observe a finished step."""

    def finish(self, label: str, elapsed_s: float) -> None:
        """Observe the end of the computation `label` after `elapsed_s` seconds."""


class Span:
    """A context manager that times the body of a `with` statement as one call of a phase."""

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
        spans._end(name, self._around, self._begin, end)


@dataclass(slots=True)
class Spans:
    """Times the phases of one rank, and notifies observers. If `events` is a list, individual spans are recorded in it.

    look          function that is called at each step, on every rank; it may raise an error to end the computation
    running       whether a computation has begun and not ended
    computations  number of computations that have begun
    beats         number of starts and ends so far, with which a thread can check whether the rank makes progress
    place         name of the innermost open span; empty between spans
    longest_s     longest time in seconds between two steps of the computation
    label         name of the computation
    total_flops   flops of the complete computation
    started       time at which the computation or `record` began, on the clock
    on_device     names of the phases that the device executes; empty if there is no device
    known_phases  totals of each phase, without the work that is still running
    long_s        length in seconds from which spans are appended to `long_spans`, which only its reader clears
    """

    observers: Sequence[Observer] = ()
    stopwatch: Stopwatch = HOST
    events: list[SpanEvent] | None = None
    look: Callable[[Step], None] | None = None
    running: bool = False
    computations: int = 0
    beats: int = 0
    place: str = ""
    longest_s: float = 0.0
    label: str = ""
    total_flops: float = 0.0
    started: float = 0.0
    clock: Callable[[], float] = perf_counter
    on_device: frozenset[str] = frozenset()
    known_phases: dict[str, Phase] = field(default_factory=dict)
    long_s: float = inf
    long_spans: list[LongSpan] = field(default_factory=list)
    _waiting: deque[tuple[str, str, Any, Any]] = field(default_factory=deque)
    _ended: int = 0
    _begun: list[tuple[Any, int, int, int, float]] = field(default_factory=list)
    _rows: StepRows = field(default_factory=StepRows)
    _last: tuple[int, float] = (0, 0.0)
    _before_s: float = 0.0
    _stepped_s: float = 0.0
    _max_events: int = MAX_EVENTS
    _start: Any = 0.0
    _busy: list[tuple[float, float]] = field(default_factory=list)
    _busy_until: float = 0.0

    def __call__(self, name: str, *, flops: float = 0.0, bytes: float = 0.0) -> Span:
        """Return a context manager that times its body as one call of phase `name`."""
        return Span(self, name, flops, bytes)

    def add(self, name: str, time_s: float, *, flops: float = 0.0, bytes: float = 0.0, scattered: bool = False) -> None:
        """Add `time_s` seconds that were measured elsewhere, as one call of phase `name`.

        The interval ends now. If the time is `scattered` over a longer period, it is not recorded in the timeline.
        """
        self._count(name, flops, bytes).time_s += time_s
        if not scattered and self.events is not None:
            end = self.clock()
            self._note(name, end - time_s, end)

    def between(self, name: str, begin: Any, end: Any) -> None:
        """Add the time between two marks of the stopwatch as one call of phase `name`."""
        self._count(name, 0.0, 0.0)
        self._end(name, "", begin, end)

    def _count(self, name: str, flops: float, bytes: float) -> Phase:
        """Add one call with its flops and bytes to a phase, and return the phase."""
        phase = self.known_phases.get(name)
        if phase is None:
            phase = self.known_phases[name] = Phase()
        phase.flops += flops
        phase.bytes += bytes
        phase.calls += 1
        return phase

    def _end(self, name: str, outer: str, begin: Any, end: Any) -> None:
        """Add the time of a span to its phase, or store its marks if the work may still be running."""
        if not self.stopwatch.lag:
            self._book(name, outer, begin, end)
            return
        self._waiting.append((name, outer, begin, end))
        self._ended += 1
        for _ in range(2 if len(self._waiting) > MAX_WAITING else 0):  # spans so old that reading them does not wait
            self._book(*self._waiting.popleft())

    def _book(self, name: str, outer: str, begin: Any, end: Any) -> None:
        """Add the time between two marks to a phase, and record the span if events are recorded or if it is long."""
        time_s = self.stopwatch.seconds(begin, end)
        self.known_phases[name].time_s += time_s
        long = time_s >= self.long_s and self.computations > 0 and len(self.long_spans) < MAX_LONG_SPANS
        if self.events is None and name not in self.on_device and not long:
            return
        at = self.stopwatch.seconds(self._start, begin)
        self._note(name, self.started + at, self.started + at + time_s)
        if long:
            self.long_spans.append(LongSpan(name, outer, self.started + at, self.started + at + time_s))
        if name in self.on_device:
            self._busy.append((at, at + time_s))

    def _add_busy(self) -> None:
        """Add the union of the spans on the device since the last call to the phase `device`."""
        for begin, end in sorted(self._busy):
            if end > self._busy_until:
                self._count(DEVICE, 0.0, 0.0).time_s += end - max(begin, self._busy_until)
                self._busy_until = end
        self._busy.clear()

    def _note(self, name: str, begin: float, end: float, lane: str = "compute") -> None:
        """Append an event to the timeline, unless the maximum number of events is reached."""
        if self.events is not None and len(self.events) < self._max_events:
            self.events.append(SpanEvent(name, begin, end, lane))

    def _look_up(self, waiting: int = 0) -> None:
        """Read the marks of the oldest spans and add their times, until `waiting` spans remain."""
        while len(self._waiting) > waiting:
            self._book(*self._waiting.popleft())
        self._add_busy()

    @property
    def phases(self) -> dict[str, Phase]:
        """Return the totals of each phase so far, after waiting for running work."""
        self._look_up()
        return self.known_phases

    @property
    def times(self) -> dict[str, float]:
        """Return the seconds of each phase so far, after waiting for running work."""
        return {name: phase.time_s for name, phase in self.phases.items()}

    @property
    def index(self) -> int:
        """Return the index of the last finished step."""
        return self._last[0]

    @property
    def rows(self) -> list[StepRow]:
        """Return the rows in the table of steps; after the end, the last row is that of the complete computation."""
        return self._rows.kept

    def record(self, max_events: int = MAX_EVENTS) -> float:
        """Start to record spans as events, at most `max_events`, and return the current time of the clock."""
        self.events, self._max_events = [], max_events
        self.started, self._start = self.clock(), self.stopwatch.mark()
        return self.started

    def recorded(self) -> list[SpanEvent]:
        """Return the events since `record`, and stop the recording."""
        self._look_up()
        events, self.events = self.events or [], None
        return events

    def travelled(self, name: str, begin: float) -> None:
        """Record a transfer in the timeline that overlapped with other work, from the time `begin` until now."""
        if self.events is not None:
            self._note(name, begin, self.clock(), "halo")

    def time_of(self, name: str) -> float:
        """Return the seconds of a phase, or 0 if the phase did not occur."""
        phase = self.phases.get(name)
        return phase.time_s if phase else 0.0

    @property
    def active_s(self) -> float:
        """Return the seconds since the start of the computation."""
        return self.clock() - self.started

    def start(self, label: str, total_flops: float, before_s: float = 0.0) -> None:
        """Start the computation `label` with `total_flops` flops: clear phases and rows, and notify observers.

        `before_s` is the time of a resumed computation before its checkpoint. Steps include this time.
        """
        self._waiting.clear()
        self._begun.clear()
        self.known_phases.clear()
        self._busy.clear()
        self._busy_until = 0.0
        self._ended, self._last, self._rows = 0, (0, 0.0), StepRows()
        self.running, self.longest_s, self._before_s, self._stepped_s = True, 0.0, before_s, before_s
        self.computations += 1
        self.beats += 1
        self.label, self.total_flops, self.started = label, total_flops, self.clock()
        self._start = self.stopwatch.mark()
        for observer in self.observers:
            observer.start(label, total_flops)

    def expect(self, total_flops: float) -> None:
        """Change the total number of flops of the computation."""
        self.total_flops = total_flops

    def step(self, index: int, count: int, done_flops: float) -> None:
        """Record the end of step `index` of `count`, and notify the observers of steps whose work has finished.

        The call waits for the step that is `lag` steps back. Observers therefore see finished work, and the work does
        not accumulate.
        """
        self._begun.append((self.stopwatch.mark(), self._ended, index, count, done_flops))
        self._notify(self.stopwatch.lag)

    def _notify(self, lag: int) -> None:
        while len(self._begun) > lag:
            mark, ended, index, count, done_flops = self._begun.pop(0)
            self.stopwatch.seconds(mark, mark)  # wait until the device has reached the mark
            self._look_up(self._ended - ended)
            elapsed_s = self._before_s + self.active_s
            step = Step(self.label, index, count, done_flops, self.total_flops, elapsed_s, self.known_phases)
            self._last = index, done_flops
            self.longest_s = max(self.longest_s, step.elapsed_s - self._stepped_s)
            self._stepped_s = step.elapsed_s
            self.beats += 1
            self._rows.add(step, self.known_phases)
            for observer in self.observers:
                observer.step(step)
            if self.look is not None:
                self.look(step)

    def finish(self) -> None:
        """Wait for all work, add the last row, and notify the observers that the computation has ended."""
        self._notify(0)
        end = self.stopwatch.mark()
        self.stopwatch.seconds(end, end)
        elapsed_s = self._before_s + self.active_s
        self.running = False
        self._look_up()
        row = StepRow.of(self._last[0], elapsed_s, self._last[1], self.known_phases)
        self.rows.append(row)  # includes the work after the last step
        for observer in self.observers:
            observer.finish(self.label, elapsed_s)
