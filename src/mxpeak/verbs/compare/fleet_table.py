"""Show the comparison of two scans as a table and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from mxpeak.layout.host_list import host_list
from mxpeak.records import SCANNED_BYTES, bytes_rate_text, rate_text
from mxpeak.report.columns import table
from mxpeak.report.scan_text import measure_title
from mxpeak.verbs.compare.fleet import VERDICTS, FleetChange, MeasureChange

#: Largest number of nodes in the table.
MAX_SHOWN = 16


def fleet_body(
    fleet: FleetChange, different: Mapping[str, Any], names: Sequence[str], tolerance: float
) -> dict[str, Any]:
    """Return the comparison as a dictionary for JSON. Of each node, `before` to `spread` are of its `measure`."""
    nodes = []
    for node in fleet.nodes:
        measures = {name: asdict(change) for name, change in node.measures.items()}
        shown = {"host": node.host, "model": node.model, "measure": node.measure, **measures[node.measure]}
        nodes.append({**shown, "verdict": node.verdict, "measures": measures})
    return {
        "schema": "mxpeak.compare/1",
        "before": names[0],
        "after": names[1],
        "tolerance": tolerance,
        "nodes": nodes,
        "missing": list(fleet.missing),
        "new": list(fleet.new),
        "fleet": {name: asdict(change) for name, change in fleet.fleet.items()},
        "changes": [],
        "differences": dict(different),
        "regressed": any(node.regressed for node in fleet.nodes),
    }


def fleet_text(fleet: FleetChange, different: Mapping[str, Sequence[str]]) -> str:
    """Return the comparison as text: the median node, the nodes that changed, and the number of nodes by verdict."""
    head = ["node", "measure", "before", "after", "change", "noise", "spread", ""]
    rows = [head, *(_row("median node", name, change, change.verdict) for name, change in fleet.fleet.items())]
    changed = [node for node in fleet.nodes if node.verdict != "same"]
    rows += [_row(node.host, node.measure, node.decisive, node.verdict) for node in changed[:MAX_SHOWN]]
    lines = [f"  and {len(changed) - MAX_SHOWN} more nodes; --json FILE lists all of them\n"] * (
        len(changed) > MAX_SHOWN
    )
    counts = Counter(node.verdict for node in fleet.nodes)
    lines.append(
        f"  of {len(fleet.nodes)} nodes: {', '.join(f'{counts[v]} {_loud(v)}' for v in VERDICTS if counts[v])}\n"
    )
    for verdict in ("failed", "slower"):
        if hosts := [node.host for node in fleet.nodes if node.verdict == verdict]:
            why = " (wrong results only in B)" if verdict == "failed" else ""
            lines.append(f"  {_loud(verdict)}{why}: {host_list(hosts)}\n")
    lines += [f"  missing in B: {host_list(fleet.missing)}\n"] * bool(fleet.missing)
    lines += [f"  new in B: {host_list(fleet.new)}\n"] * bool(fleet.new)
    if counts["ambiguous"]:
        lines.append(
            "  AMBIGUOUS: the change exceeds the tolerance, but not the noise or the spread; use more --rounds\n"
        )
    lines += [f"  differs in {name}: {'; '.join(texts)}\n" for name, texts in different.items()]
    return table(rows) + "".join(lines)


def _row(node: str, measure: str, change: MeasureChange, verdict: str) -> list[str]:
    rate = bytes_rate_text if measure in SCANNED_BYTES else rate_text
    percents = [_percent(change.noise), _percent(change.spread)]
    figures = [rate(change.before), rate(change.after), f"{100 * change.change:+.1f} %"]
    return [node, measure_title(measure), *figures, *percents, _loud(verdict)]


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{100 * share:.1f} %"


def _loud(verdict: str) -> str:
    return verdict.upper() if verdict in ("failed", "slower", "ambiguous") else verdict
