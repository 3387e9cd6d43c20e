"""Detect ranks that make no progress: no span starts or ends for many times the longest step.

Steps of an LU become shorter, so the longest step so far is an upper limit for the next one. The watchdog thread
counts only the time between its own checks. It therefore reports no stall if the process is stopped or the computer
sleeps.

During set-up, checks, writing and exit, there is no step that limits the time. In these phases, the watchdog reports a
wait for the same message if it takes FIRST times the minimum time. If the process of a rank on the same node is
stopped, /proc shows it. The watchdog then reports the rank after the minimum time, in all phases.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import monotonic

from mxpeak.records import three_digits
from mxpeak.spans import Spans

#: Maximum seconds between two checks, number of checks within the minimum time, and the factor for the first step,
#: whose duration is unknown.
LOOK_S, LOOKS, FIRST = 1.0, 10, 10
#: Minimum seconds of a wait for one message that counts as a stall outside the computations, if all ranks are on one
#: node. Other ranks may generate a matrix or compile kernels during this time, and a stopped rank is visible on
#: its node.
OUTSIDE_S = 600.0
#: Phases in which no computation runs. In the last one, the ranks have their exit code, and MPI ends.
SET_UP, CHECKS, WRITING, EXIT = "set-up", "checks", "writing", "exit"


class Watchdog:
    """Watches the spans of this rank in a thread, and calls `stalled` once if no span starts or ends for too long.

    factor     multiple of the longest step that counts as a stall
    least_s    duration in seconds up to which nothing counts as a stall
    waiting    function that returns a description of the message that the rank waits for
    message    function that returns the message that the rank waits for
    stopped    function that returns the ranks of this node whose processes are stopped
    on_node    whether all ranks are on this node

    `results` is added to the description of a stall. It describes the complete results, or is empty.
    """

    def __init__(
        self,
        factor: float,
        least_s: float,
        stalled: Callable[[str], None],
        waiting: Callable[[], str],
        clock: Callable[[], float] = monotonic,
        message: Callable[[], object | None] = lambda: None,
        stopped: Callable[[], Sequence[str]] = lambda: (),
        on_node: bool = True,
    ):
        self._factor, self._least_s, self._stalled, self._waiting = factor, least_s, stalled, waiting
        self._message, self._awaited = message, message()
        self._stopped, self._on_node = stopped, on_node
        self._still: dict[str, float] = {}  # seconds since the process of each rank was stopped
        self.phase, self.results = SET_UP, ""
        self._clock, self._looked = clock, clock()
        self.look_s = min(LOOK_S, least_s / LOOKS)
        self._spans: Spans | None = None
        self._beats, self._idle_s = -1, 0.0
        self._end = threading.Event()

    def follow(self, spans: Spans) -> None:
        """Watch these spans instead of the previous ones."""
        self._spans, self._beats, self._idle_s = spans, -1, 0.0
        self.phase = SET_UP

    def start(self) -> None:
        """Start the watchdog thread."""
        self._end = threading.Event()
        threading.Thread(target=self._run, args=(self._end,), name="watchdog", daemon=True).start()

    def watch_exit(self) -> None:
        """Start the watchdog thread again, for the exit of the ranks after `stop`."""
        self._spans, self.phase = None, EXIT
        self.start()

    def stop(self) -> None:
        """Stop the watchdog thread."""
        self._end.set()

    def _run(self, end: threading.Event) -> None:
        while not end.wait(self.look_s):
            if (stall := self.look()) is not None:
                self._stalled(f"{stall}; {self.results}" if self.results else stall)
                return

    def look(self) -> str | None:
        """Check for a stall, and return its description, or None if there is no stall."""
        now, spans = self._clock(), self._spans
        if spans is not None and spans.computations and self.phase == SET_UP:
            self.phase = CHECKS  # a computation may be too short to be seen
        passed_s, self._looked = min(now - self._looked, 2 * self.look_s), now
        if (stall := self._look_at_ranks(passed_s)) is not None:
            return stall
        if spans is None or not spans.running:
            return self._look_at_messages(passed_s)
        if spans.beats != self._beats:
            self._beats, self._idle_s = spans.beats, 0.0
            return None
        self._idle_s += passed_s
        limit_s = self._limit(spans)
        return None if self._idle_s <= limit_s else self._said(spans, limit_s)

    def _look_at_ranks(self, passed_s: float) -> str | None:
        self._still = {rank: self._still.get(rank, 0.0) + passed_s for rank in self._stopped()}
        rank, still_s = max(self._still.items(), key=lambda item: item[1], default=("", 0.0))
        if still_s <= self._least_s:
            return None
        running = self._spans is not None and self._spans.running
        where = f"{self._spans.label}, after step {self._spans.index}" if running and self._spans else self.phase
        return f"{where}: {rank} has been stopped for {three_digits(still_s)} s; {self._waits()}"

    def _waits(self) -> str:
        waits = self._waiting()
        return f"this rank waits for {waits}" if waits else "this rank waits for no message"

    def _look_at_messages(self, passed_s: float) -> str | None:
        before, self._awaited, self._beats = self._awaited, self._message(), -1
        if before is None or self._awaited is not before:
            self._idle_s = 0.0
            return None
        self._idle_s += passed_s
        if self._idle_s <= max(OUTSIDE_S if self._on_node else 0.0, FIRST * self._least_s):
            return None
        return f"{self.phase}: this rank has waited for {three_digits(self._idle_s)} s for {self._waiting()}"

    def _limit(self, spans: Spans) -> float:
        if not spans.longest_s:
            return FIRST * self._least_s
        return max(self._least_s, self._factor * spans.longest_s)

    def _said(self, spans: Spans, limit_s: float) -> str:
        where = f"in {spans.place}" if spans.place else "between its phases"
        longest = f"the longest step took {three_digits(spans.longest_s)} s" if spans.longest_s else "in the first step"
        return (
            f"{spans.label}: no progress for {three_digits(limit_s)} s ({longest}); after step {spans.index}, "
            f"{where}, {self._waits()}"
        )
