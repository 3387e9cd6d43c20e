"""A timeline of spans as Chrome's trace viewer reads it (chrome://tracing, ui.perfetto.dev): a process a rank."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

#: The lanes of a rank, from above.
LANES = ("compute", "halo")


def chrome_trace(events: Sequence[Mapping[str, Any]]) -> str:
    """The events of all ranks as JSON; times in microseconds."""
    ranks = sorted({event["rank"] for event in events})
    named = [_meta("process_name", rank, 0, f"rank {rank}") for rank in ranks]
    named += [_meta("thread_name", rank, k, lane) for rank in ranks for k, lane in enumerate(LANES)]
    spans = [
        {
            "name": event["name"],
            "ph": "X",
            "pid": event["rank"],
            "tid": LANES.index(event["lane"]),
            "ts": 1e6 * event["begin_s"],
            "dur": 1e6 * event["time_s"],
        }
        for event in events
    ]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": [*named, *spans]}) + "\n"


def _meta(what: str, rank: int, lane: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": rank, "tid": lane, "args": {"name": name}}
