"""A thread that notices when a rank no longer gets on: nothing begins or ends for many times a step's longest time.

Steps of an LU become shorter, so the longest so far is what the next one is expected to take at most.  Time counts
from look to look of the thread itself: a process that was stopped as a whole, or a laptop that slept, has not stalled.

Before and after a computation, where nothing says how long anything may take, only a wait for one and the same message
is a stall.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

from mxpeak.records import three_digits
from mxpeak.spans import Spans

#: Seconds between two looks, at most; looks in the least time that is a stall; and how much longer the first step may
#: take, for nobody knows what to expect of it.
LOOK_S, LOOKS, FIRST = 1.0, 10, 10
#: Seconds that a rank may wait for one message before or after a computation, at least: another may generate a matrix
#: meanwhile, or compile kernels.
OUTSIDE_S = 600.0


class Watchdog:
    """Looks at this rank's spans, and tells `stalled` once that nothing has begun or ended in them for too long.

    factor     how many times the longest step so far is too long
    least_s    what is never too long
    waiting    what the rank waits for, as far as its messages say
    message    the message that it waits for
    """

    def __init__(
        self,
        factor: float,
        least_s: float,
        stalled: Callable[[str], None],
        waiting: Callable[[], str],
        clock: Callable[[], float] = monotonic,
        message: Callable[[], object | None] = lambda: None,
    ):
        self._factor, self._least_s, self._stalled, self._waiting = factor, least_s, stalled, waiting
        self._message, self._awaited = message, message()
        self._clock, self._looked = clock, clock()
        self.look_s = min(LOOK_S, least_s / LOOKS)
        self._spans: Spans | None = None
        self._beats, self._idle_s = -1, 0.0
        self._end = threading.Event()

    def follow(self, spans: Spans) -> None:
        """Look at these spans from now on."""
        self._spans, self._beats, self._idle_s = spans, -1, 0.0

    def start(self) -> None:
        """Begin to look."""
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        """Look no longer."""
        self._end.set()

    def _run(self) -> None:
        while not self._end.wait(self.look_s):
            if (said := self.look()) is not None:
                self._stalled(said)
                return

    def look(self) -> str | None:
        """What to say of a stall; None while there is none."""
        now, spans = self._clock(), self._spans
        passed_s, self._looked = min(now - self._looked, 2 * self.look_s), now
        if spans is None or not spans.running:
            return self._look_at_messages(passed_s)
        if spans.beats != self._beats:
            self._beats, self._idle_s = spans.beats, 0.0
            return None
        self._idle_s += passed_s
        limit_s = self._limit(spans)
        return None if self._idle_s <= limit_s else self._said(spans, limit_s)

    def _look_at_messages(self, passed_s: float) -> str | None:
        before, self._awaited, self._beats = self._awaited, self._message(), -1
        if before is None or self._awaited is not before:
            self._idle_s = 0.0
            return None
        self._idle_s += passed_s
        if self._idle_s <= max(OUTSIDE_S, FIRST * self._least_s):
            return None
        waited = f"this rank has waited for {three_digits(self._idle_s)} s for {self._waiting()}"
        return f"before or after the computation: {waited}"

    def _limit(self, spans: Spans) -> float:
        if not spans.longest_s:
            return FIRST * self._least_s
        return max(self._least_s, self._factor * spans.longest_s)

    def _said(self, spans: Spans, limit_s: float) -> str:
        where = f"in {spans.place}" if spans.place else "between its phases"
        waits = self._waiting()
        longest = f"its longest step took {three_digits(spans.longest_s)} s" if spans.longest_s else "in the first step"
        return (
            f"{spans.label}: nothing has happened for {three_digits(limit_s)} s ({longest}); after step {spans.index}, "
            f"{where}, {f'this rank waits for {waits}' if waits else 'this rank waits for no message'}"
        )
