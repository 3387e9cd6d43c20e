"""Recommend an action for each node with a finding, and write a Slurm script that drains nodes.

replace    the node computes wrong results, or its memory had new uncorrected errors: the hardware is faulty
drain      a rank of the node or its links are slow, or its links transfer wrong data
monitor    the scan cannot decide whether a rank is slow, or a rank was throttled or had new corrected memory errors
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from mxpeak.report.scan_text import measure_title

#: Severities, the most severe last.
SEVERITIES = ("monitor", "drain", "replace")
#: Maximum number of characters of a reason in Slurm's node list.
MAX_REASON = 120

Body = Mapping[str, Any]


def actions(
    ranks: Sequence[Body],
    slow: Sequence[Body],
    wrong: Sequence[Body],
    undecided: Sequence[Body],
    link_hosts: Sequence[str] = (),
) -> list[Body]:
    """Return host, severity and reasons of each node with a finding, the most severe first.

    `link_hosts` contains the hosts that explain slow and wrong links.
    """
    reasons_of: dict[str, dict[str, list[str]]] = {host: {"drain": ["slow or wrong links"]} for host in link_hosts}

    def add(rank: int, severity: str, reason: str) -> None:
        reasons = reasons_of.setdefault(ranks[rank]["host"], {}).setdefault(severity, [])
        if reason not in reasons:
            reasons.append(reason)

    for each in wrong:
        add(each["rank"], "replace", f"wrong results of {measure_title(each['result'])}")
    for each in slow:
        add(each["rank"], "drain", f"{measure_title(each['measure'])} at {100 * each['share']:.0f} %")
    for each in undecided:
        for rank in each["ranks"] if each["reason"] == "scatter" else ():
            add(rank, "monitor", f"{measure_title(each['measure'])} varies")
    for rank, record in enumerate(ranks):
        if record.get("ecc_uncorrected_new"):
            add(rank, "replace", "uncorrected memory errors")
        if record.get("ecc_corrected_new"):
            add(rank, "monitor", "corrected memory errors")
        if any("thermal" in reason for reason in record.get("throttle_reasons") or ()) or record.get("throttle_events"):
            add(rank, "monitor", "throttled")
    listed = [_action(host, by_severity) for host, by_severity in reasons_of.items()]
    return sorted(listed, key=lambda action: (-SEVERITIES.index(action["severity"]), action["host"]))


def _action(host: str, by_severity: Mapping[str, Sequence[str]]) -> Body:
    severity = max(by_severity, key=SEVERITIES.index)
    ordered = sorted(by_severity, key=SEVERITIES.index, reverse=True)
    return {"host": host, "severity": severity, "reasons": [reason for name in ordered for reason in by_severity[name]]}


def drain_script(listed: Sequence[Body]) -> str:
    """Return a shell script that drains the nodes to drain or to replace, with the nodes to monitor as comments."""
    lines = [
        "#!/bin/sh",
        "# Written by mxpeak scan, which never runs this script. Check the list, then run it as a Slurm administrator.",
        "set -eu",
    ]
    for action in listed:
        reason = f"mxpeak scan, {action['severity']}: {'; '.join(action['reasons'])}"[:MAX_REASON]
        node = action["host"].partition(".")[0]
        command = f"scontrol update {shlex.quote(f'NodeName={node}')} State=DRAIN {shlex.quote(f'Reason={reason}')}"
        lines.append(f"# monitor {node}: {reason}" if action["severity"] == "monitor" else command)
    if not listed:
        lines.append("# The scan found no node to drain or to replace.")
    return "\n".join(line.replace("\n", " ") for line in lines) + "\n"
