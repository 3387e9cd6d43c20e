"""Collect the time of each step by phase, and all spans of a run, from all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalars
from mxpeak.kernels.contract import Kernels
from mxpeak.records import Caution
from mxpeak.spans import MAX_EVENTS, Spans, StepRow

#: Decimal places of seconds, which is the resolution of spans.
DIGITS = 7


def step_table(kernels: Kernels, comm: Communicator, spans: Spans) -> dict[str, Any]:
    """Return the mean and largest time of each phase over the ranks for each step of the last computation. Collective.

    The table contains one list per column and is complete on rank 0. All ranks count the same steps. The last row
    contains the work after the last step.
    """
    rows = [StepRow(0, 0.0, 0.0, {}), *spans.rows]
    ranks = comm.gather_objects(list(rows[-1].phases))
    names = comm.bcast_object(list(dict.fromkeys(name for seconds in ranks or [] for name in seconds)))
    seconds = [
        after.phases.get(name, 0.0) - before.phases.get(name, 0.0) for name in names for before, after in pairwise(rows)
    ]
    mean = [time_s / comm.size for time_s in allreduce_scalars(comm, seconds, "sum", kernels.xp)] if seconds else []
    longest = allreduce_scalars(comm, seconds, "max", kernels.xp) if seconds else []
    return {**columns(rows[1:], names, mean, longest), "ranks": comm.size}


def columns(rows: Sequence[StepRow], names: Sequence[str], mean: list[float], longest: list[float]) -> dict[str, Any]:
    """Convert step rows to lists by column; `mean` and `longest` contain the times in seconds, phase by phase."""
    count = len(rows)
    return {
        "index": [row.index for row in rows],
        "elapsed_s": [round(row.elapsed_s, DIGITS) for row in rows],
        "done_flops": [row.done_flops for row in rows],
        "phases": {
            name: {
                "time_s": [round(time_s, DIGITS) for time_s in mean[k * count : (k + 1) * count]],
                "max_s": [round(time_s, DIGITS) for time_s in longest[k * count : (k + 1) * count]],
            }
            for k, name in enumerate(names)
        },
    }


def events_per_rank(comm: Communicator) -> int:
    """Return the maximum number of spans per rank that a timeline stores."""
    return max(1, MAX_EVENTS // comm.size)


def timeline(comm: Communicator, spans: Spans) -> list[dict[str, Any]]:
    """Return the recorded spans of all ranks on rank 0, in seconds from the start of the computation. Collective."""
    begin = spans.started
    here = [(e.name, e.lane, e.begin - begin, e.end - e.begin) for e in spans.recorded()]
    return [
        {"name": name, "rank": rank, "lane": lane, "begin_s": begin_s, "time_s": time_s}
        for rank, events in enumerate(comm.gather_objects(here) or [])
        for name, lane, begin_s, time_s in events
    ]


def cut_off(comm: Communicator, events: list[dict[str, Any]]) -> list[Caution]:
    """Return a warning if a timeline could not store all spans, otherwise an empty list."""
    limit = events_per_rank(comm)
    counts = [0] * comm.size
    for event in events:
        counts[event["rank"]] += 1
    if max(counts) < limit:
        return []
    text = f"--trace stores at most {MAX_EVENTS} spans, {limit} per rank, so the timeline ends before the run"
    return [Caution("trace", text, "trace a smaller run")]
