"""Describe the hidden work of a played timeline: steps as in rocHPL's figure 7, and a trace for Perfetto."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.support.queues.timeline import Bar, Played

Spans = list[tuple[float, float]]


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step: in total, with the device active, and with each other lane active; they overlap."""

    step: int
    total: float
    device: float
    others: dict[str, float]

    @property
    def hides(self) -> bool:
        """Whether the other lanes are hidden: the step takes at most 1.1 times the active time of its device."""
        return self.total <= 1.1 * self.device


def steps_of(played: Played) -> list[StepTimes]:
    """Return the steps of one rank; each lasts from the end of one update to the end of the next."""
    lanes = {bar.lane for bar in played.bars}
    spans = {lane: union(bar for bar in played.bars if bar.lane == lane) for lane in lanes}
    steps = []
    for k, (begin, end) in enumerate(zip(played.steps, played.steps[1:])):
        inside = {lane: length(clipped(one, begin, end)) for lane, one in spans.items()}
        steps.append(StepTimes(k, end - begin, inside.pop("device", 0.0), inside))
    return steps


def hidden(played: Played, which: Callable[[Bar], bool], behind: Callable[[Bar], bool]) -> float:
    """Return the share of some operations' time that other operations overlap, or 1 without such operations."""
    shown = union(bar for bar in played.bars if which(bar))
    cover = union(bar for bar in played.bars if behind(bar))
    total = length(shown)
    return sum(length(clipped(cover, *one)) for one in shown) / total if total else 1.0


def mean_of(ranks: Sequence[Played], skip: int = 1) -> StepTimes:
    """Return the mean step of all ranks without the first steps."""
    steps = [step for one in ranks for step in steps_of(one)[skip:]]
    lanes = {lane for step in steps for lane in step.others}

    def mean(values: Iterable[float]) -> float:
        return sum(values) / len(steps)

    others = {lane: mean(step.others.get(lane, 0.0) for step in steps) for lane in sorted(lanes)}
    return StepTimes(0, mean(step.total for step in steps), mean(step.device for step in steps), others)


@dataclass(frozen=True)
class Whole:
    """A run, estimated from some of its steps: its seconds, the last position with all else hidden, and its time."""

    total: float
    until: int
    until_s: float


def whole(steps: Sequence[StepTimes], count: int) -> Whole:
    """Integrate with trapezoids between the played steps; extend the first and the last one to both ends of the run."""
    ends = [steps[0].step * steps[0].total]
    for one, other in pairwise(steps):
        ends.append(ends[-1] + (other.step - one.step) * (one.total + other.total) / 2)
    last = next((k for k, step in enumerate(steps) if not step.hides), len(steps)) - 1
    total = ends[-1] + (count - steps[-1].step) * steps[-1].total
    return Whole(total, steps[last].step, ends[last])


def table(steps: Sequence[StepTimes]) -> str:
    """Return the table of rocHPL's figure 7 as text, in milliseconds."""
    lines = [f"{'step':>5}{'total':>10}{'device':>10}{'MPI':>10}{'FACT':>10}{'transfer':>10}"]
    for one in steps:
        rest = "".join(f"{1e3 * one.others.get(lane, 0.0):10.2f}" for lane in ("MPI", "FACT", "transfer"))
        lines.append(f"{one.step:5}{1e3 * one.total:10.2f}{1e3 * one.device:10.2f}{rest}")
    return "\n".join(lines) + "\n"


def perfetto(ranks: Sequence[Played]) -> str:
    """Return the timeline for ui.perfetto.dev: one process per rank; one thread per stream, message and host."""
    events = [
        {"name": bar.op.phase or bar.op.name, "cat": bar.lane, "ph": "X", "pid": rank, "tid": bar.op.actor,
         "ts": bar.begin * 1e6, "dur": (bar.end - bar.begin) * 1e6, "args": {"step": bar.step, "does": bar.op.name}}
        for rank, one in enumerate(ranks) for bar in one.bars
    ]  # fmt: skip
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events})


# --- spans of time


def union(bars: Iterable[Bar]) -> Spans:
    """Return the times in which at least one of the bars runs."""
    joined: Spans = []
    for begin, end in sorted((bar.begin, bar.end) for bar in bars):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((begin, end))
    return joined


def clipped(spans: Spans, begin: float, end: float) -> Spans:
    """Return the parts of spans between two times."""
    return [(max(begin, b), min(end, e)) for b, e in spans if b < end and begin < e]


def length(spans: Spans) -> float:
    """Return the total length of spans."""
    return sum(end - begin for begin, end in spans)
