"""Explain a change in a rate by phases, and name the rank that determines the time of each phase.

With the mean time t_i over the ranks of phase i, the total time T and the flops w, both runs do the same work if the
times of the second run are multiplied by w(A) / w(B). The rate then changes from w(A) / T(A) to w(A) / T(B), and

    T(B) - T(A) = sum_i t_i(B) - t_i(A)

over phases that do not contain each other. The phase `other` is the time outside of all phases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mxpeak.records import three_digits
from mxpeak.report.columns import table
from mxpeak.report.summaries import Lines, lines_of

Body = Mapping[str, Any]
#: Number of phases that the text shows individually.
MAX_SHOWN = 5
#: Name of the time outside of all phases.
OTHER = "other"


@dataclass(frozen=True, slots=True)
class PhaseChange:
    """The change in the time of one phase, for the work of the first run.

    before, after   mean time over the ranks, in seconds
    change          after - before, divided by the total time of the first run
    waits           whether the ranks wait for each other in this phase
    rank, host      rank of the second run with the largest time; if `waits`, the one with the smallest time, because
                    the other ranks wait for it; None for one rank, and in results of older versions
    rank_s          time of this rank
    """

    name: str
    before: float
    after: float
    change: float
    waits: bool
    rank: int | None
    host: str | None
    rank_s: float | None


def phase_changes(before: Body, after: Body) -> list[PhaseChange]:
    """Return the changes of all phases, the largest first, or an empty list if a result has no time by phase."""
    if any("resumed" in (body.get("result") or {}) for body in (before, after)):
        return []  # the phases before the checkpoint are unknown
    lines = lines_of(str(after.get("benchmark")))
    (work, total), (other_work, other_total) = (_work(before), _work(after))
    if not work or not other_work:
        return []
    first, second = _times(before, total, lines), _times(after, other_total, lines)
    if first is None or second is None:
        return []
    scale = work / other_work
    changes = []
    for name in dict.fromkeys([*first, *second]):
        this, that = first.get(name, 0.0), scale * second.get(name, 0.0)
        waits = name in lines.waits
        rank, host, rank_s = _owner(after, name, waits=waits)
        rank_s = None if rank_s is None else scale * rank_s
        changes.append(PhaseChange(name, this, that, (that - this) / total, waits, rank, host, rank_s))
    return sorted(changes, key=lambda change: -abs(change.change))


def _work(body: Body) -> tuple[float, float]:
    """Return the flops and the total time in seconds of the timed solves; zeros if they are unknown."""
    figures = body.get("result") or {}
    rate, time_s = figures.get("raw_rate_flops", figures.get("rate_flops")), figures.get("time_s")
    if not isinstance(rate, int | float) or not isinstance(time_s, int | float) or time_s <= 0:
        return 0.0, 0.0
    return float(rate) * float(time_s), float(time_s)


def _times(body: Body, total: float, lines: Lines) -> dict[str, float] | None:
    """Return the mean time of each phase that contains no other phase, in seconds; None if there are no phases."""
    phases = body.get("phases") or {}
    times = {
        name: float(phase["time_s"])
        for name, phase in phases.items()
        if name not in lines.undrawn and name != OTHER and isinstance(phase.get("time_s"), int | float)
    }
    return {**times, OTHER: max(0.0, total - sum(times.values()))} if any(times.values()) else None


def _owner(body: Body, name: str, *, waits: bool) -> tuple[int | None, str | None, float | None]:
    """Return the rank that determines the time of a phase, its host and its time in seconds."""
    phase = (body.get("phases") or {}).get(name) or {}
    rank, time_s = (phase.get(f"{'min' if waits else 'max'}_{key}") for key in ("rank", "s"))
    launch = body.get("launch") or {}
    if not isinstance(rank, int) or not isinstance(time_s, int | float) or launch.get("ranks", 1) == 1:
        return None, None, None
    hosts = {each.get("rank"): each.get("host") for each in launch.get("binding") or () if isinstance(each, Mapping)}
    return rank, hosts.get(rank), float(time_s)


def phase_text(name: str, changes: Sequence[PhaseChange]) -> str:
    """Return the table of the phases with the largest changes, and the sum of the others, for the case `name`."""
    ranked = any(change.rank is not None for change in changes)
    rows = [["phase", "before s", "after s", "change", *(["rank in B"] if ranked else [])]]
    shown, others = changes[:MAX_SHOWN], changes[MAX_SHOWN:]
    for change in shown:
        owner = [_owner_text(change)] if ranked else []
        rows.append([change.name, *_cells(change.before, change.after, change.change), *owner])
    if others:
        sums = (sum(getattr(change, key) for change in others) for key in ("before", "after", "change"))
        rows.append([f"{len(others)} more", *_cells(*sums)] + [""] * ranked)
    return f"  {name} by phase, for the same work; change in % of the total time:\n{table(rows)}"


def _cells(before: float, after: float, change: float) -> list[str]:
    return [three_digits(before), three_digits(after), f"{100 * change:+.1f} %"]


def _owner_text(change: PhaseChange) -> str:
    """Return the rank that determines the time of a phase as text, such as `rank 3 on node07: 12.0 s`."""
    if change.rank is None:
        return ""
    host = f" on {change.host}" if change.host else ""
    return f"{'shortest wait: ' * change.waits}rank {change.rank}{host}: {three_digits(change.rank_s)} s"
