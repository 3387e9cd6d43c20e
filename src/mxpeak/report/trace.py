"""Write spans for Chrome's trace viewer (chrome://tracing, ui.perfetto.dev), with one process per rank."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

#: The lanes of a rank in the trace viewer, from top to bottom.
LANES = ("compute", "halo")
#: Seconds between the timelines of two cases.
GAP_S = 1e-3


def chrome_trace(cases: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]) -> str:
    """Return the events of all ranks as JSON for the trace viewer, with times in microseconds and cases in sequence."""
    ranks = sorted({event["rank"] for _, events in cases for event in events})
    lanes = [lane for lane in LANES if any(event["lane"] == lane for _, events in cases for event in events)]
    events_json = [_meta("process_name", rank, 0, f"rank {rank}") for rank in ranks]
    events_json += [_meta("thread_name", rank, LANES.index(lane), lane) for rank in ranks for lane in lanes]
    begin_s = 0.0
    for title, events in cases:
        events_json.append({"name": title, "ph": "i", "s": "g", "pid": 0, "tid": 0, "ts": 1e6 * begin_s})
        events_json += [_span(event, begin_s) for event in events]
        begin_s += max((event["begin_s"] + event["time_s"] for event in events), default=0.0) + GAP_S
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events_json}) + "\n"


def _span(event: Mapping[str, Any], begin_s: float) -> dict[str, Any]:
    place = {"name": event["name"], "ph": "X", "pid": event["rank"], "tid": LANES.index(event["lane"])}
    return {**place, "ts": 1e6 * (begin_s + event["begin_s"]), "dur": 1e6 * event["time_s"]}


def _meta(kind: str, rank: int, lane: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": rank, "tid": lane, "args": {"name": name}}
