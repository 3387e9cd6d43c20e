"""The phases of a run over its ranks, and what a reader of its result is cautioned about."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping
from typing import Any

from mxpeak.comm.base import Communicator
from mxpeak.records import Caution, bytes_rate_text, size_text
from mxpeak.spans import Spans

#: From which share of the limit on a rate needs an explanation.
ABOVE = 1.02


def peak_rss(comm: Communicator) -> int:
    """The most memory that the processes of a group have had, in bytes; whole on rank 0.  Collective over comm."""
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss
    return sum(comm.gather_objects(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit) or [])


def phase_table(comm: Communicator, spans: Spans) -> dict[str, dict[str, Any]]:
    """Mean, largest and smallest time of each phase over the ranks; sums of flops, bytes, calls.  Whole on rank 0."""
    everybody = comm.gather_objects({name: (p.time_s, p.flops, p.bytes, p.calls) for name, p in spans.phases.items()})
    table: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(name for phases in everybody or [] for name in phases):
        parts = [phases.get(name, (0.0, 0.0, 0.0, 0)) for phases in everybody or []]
        times, flops, moved, calls = zip(*parts)
        table[name] = {
            "time_s": sum(times) / len(times),
            "max_s": max(times),
            "min_s": min(times),
            "flops": sum(flops),
            "bytes": sum(moved),
            "calls": sum(calls),
        }
    return table


#: A phase that did not occur.
NO_PHASE: dict[str, Any] = {"time_s": 0.0, "max_s": 0.0, "min_s": 0.0, "flops": 0.0, "bytes": 0.0, "calls": 0}


def with_share(phase: dict[str, Any], limit: float | None) -> dict[str, Any]:
    """A phase, and where it moves bytes its share of the rate that they can be read at."""
    if not limit or not phase["time_s"] or not phase["bytes"]:
        return phase
    return {**phase, "share_of_limit": phase["bytes"] / phase["time_s"] / limit}


def badness(scaled: float) -> float:
    """The residual as something to be compared: what is not a number is worse than any that is."""
    return scaled if scaled == scaled else sys.float_info.max


def depth_caution(depth: int) -> Caution:
    """What to know of a look-ahead deeper than one step."""
    text = f"look-ahead depth {depth} was asked for and ran as 1"
    return Caution("depth", text, "a deeper look-ahead gains nothing here; use --depth 1")


def above_caution(rate_bytes: float, limit: float | None, touched: float, machine: Mapping[str, Any]) -> list[Caution]:
    """What to know of a rate of bytes above its limit, which was taken on `touched` bytes."""
    if limit is None or rate_bytes <= ABOVE * limit:
        return []
    cache = machine.get("l3_bytes") or machine.get("l2_bytes") or 0
    ratio = f"the rate is above the limit ({bytes_rate_text(rate_bytes)} of {bytes_rate_text(limit)})"
    if touched <= cache * machine["nodes"]:
        text = f"{ratio}: {size_text(touched)} stay in the caches, or are too few to be timed"
        return [Caution("cached", text, "use a larger problem to measure memory")]
    return [Caution("drift", f"{ratio}: the machine's speed changed", "run again when nothing else runs")]


def drift_caution(rate: float, limit: float) -> Caution:
    """What to know of a rate above its limit."""
    text = f"the rate is above the limit ({rate / 1e9:.1f} of {limit / 1e9:.1f} GFLOP/s): the machine's speed changed"
    return Caution("drift", text, "run again when nothing else runs, or with --repeat 3")
