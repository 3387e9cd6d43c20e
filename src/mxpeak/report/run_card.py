"""Show machine, date, command and versions of the runs on a page. The command repeats a run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from mxpeak.records import size_text
from mxpeak.report.command import launched
from mxpeak.report.markup import Body, part, text
from mxpeak.report.scoreboard import short_name
from mxpeak.report.settings import common_facts
from mxpeak.report.text import blas_text

#: Maximum number of expanded runs; more runs are collapsed.
MAX_RUNS = 6
#: Packages whose versions are shown.
VERSIONS = ("mxpeak", "python", "numpy", "scipy", "numba", "torch", "mpi4py")


def card(results: Sequence[Body], names: Sequence[str]) -> str:
    """Return HTML with the facts that all runs share, the facts of each run, and the collapsed facts of all results."""
    if not results:
        return ""
    runs: dict[tuple[str, ...], list[Body]] = {}
    for result, name in zip(results, names):
        argv, host = part(result, "run").get("argv") or (), str(part(result, "machine").get("hostname"))
        runs.setdefault((name, " ".join(map(str, argv)), host), []).append(result)
    rows = [_rows(group) for group in runs.values()]
    common = {name: value for name, value in rows[0].items() if all(other[name] == value for other in rows)}
    own = [{name: value for name, value in row.items() if name not in common} for row in rows]
    shown = [_list({"run": text(key[0]), **facts}) for key, facts in zip(runs, own) if facts]
    more = f"<details><summary>{len(shown) - MAX_RUNS} more runs</summary>{''.join(shown[MAX_RUNS:])}</details>"
    inside = [_list(common), *shown[:MAX_RUNS], more if len(shown) > MAX_RUNS else ""]
    filled = "".join(filter(None, inside))
    return (f'<div class="card">{filled}</div>' if filled else "") + common_facts(results)


def _rows(group: Sequence[Body]) -> dict[str, str]:
    """Return the facts of one run by name. Except for the ranks, they are the facts of its first result."""
    first = group[0]
    return {
        "machine": _machine(first),
        "date": _date(first),
        "command": _command(first),
        "ranks": "; ".join(filter(None, dict.fromkeys(map(_ranks, group)))),
        "versions": _versions(first),
    }


def _list(rows: Mapping[str, str]) -> str:
    lines = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in rows.items() if value)
    return f"<dl>{lines}</dl>" if lines else ""


def _machine(result: Body) -> str:
    machine = part(result, "machine")
    model, cores, memory = (machine.get(k) for k in ("cpu_model", "logical_cores_allowed", "memory_total_bytes"))
    nodes = machine.get("nodes") or 1
    facts = [
        f"{nodes} nodes of" if nodes > 1 else "",
        short_name(str(model)) if model else "",
        f"{cores} cores" if cores else "",
        size_text(memory) if isinstance(memory, int | float) else "",
        str(machine.get("hostname") or ""),
    ]
    return text(" · ".join(filter(None, facts)).replace("nodes of · ", "nodes of "))


def _date(result: Body) -> str:
    begun = part(result, "run").get("start")
    try:
        when = datetime.fromisoformat(str(begun)).astimezone(UTC)
    except ValueError:
        return text(begun) if begun else ""
    return f'<time datetime="{text(begun)}">{when:%Y-%m-%d %H:%M:%S} UTC</time>'


def _command(result: Body) -> str:
    """Return HTML with the command that repeats the run, and a button that copies it."""
    argv = part(result, "run").get("argv")
    if not isinstance(argv, list):
        return ""
    typed = text(shlex.join([*launched(result), *map(str, argv)]))
    return f'<code class="command">{typed}</code> <button type="button" data-copies hidden>copy</button>'


def _ranks(result: Body) -> str:
    launch = part(result, "launch")
    ranks, bound = launch.get("ranks"), launch.get("binding") or []
    if not ranks:
        return ""
    threads = sorted({int(rank.get("threads") or 1) for rank in bound})
    each = f" with {' or '.join(map(str, threads))} thread{'s' * (threads != [1])}" if threads else ""
    by = f", by {launch['launcher']}" if launch.get("launcher") not in (None, "shell") else ""
    return text(f"{ranks} rank{'s' * (ranks != 1)}{each}{' each' * bool(each and ranks > 1)}{by}")


def _versions(result: Body) -> str:
    software = part(result, "software")
    versions = [f"{name} {software[name]}" for name in VERSIONS if software.get(name)]
    blas = software.get("blas")
    return text(", ".join([*versions, *([blas_text(blas)] if isinstance(blas, dict) and blas.get("library") else [])]))
