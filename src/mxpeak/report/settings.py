"""Show the settings and the machine of a run on a page, with default values collapsed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mxpeak.bench.registry import BENCHMARKS
from mxpeak.options import as_text, internal_names
from mxpeak.records import size_text
from mxpeak.report.markup import Body, folded, part, table, text
from mxpeak.report.text import blas_text

#: Sections whose content is usually equal in all results of a run.
FACTS = ("machine", "software", "launch", "run")


def settings(result: Body) -> str:
    """Return an HTML table of the changed settings with their origins, and a collapsed table of the defaults.

    The tables do not contain internal settings.
    """
    benchmark = BENCHMARKS.get(str(result.get("benchmark")))
    hidden = set() if benchmark is None else internal_names(benchmark.config)
    unused = part(result, "problem").get("not_used") or ()
    rows = []
    for name, setting in part(result, "config").items():
        value, origin = (
            (setting.get("value"), setting.get("origin")) if isinstance(setting, Mapping) else (setting, None)
        )
        if name not in hidden:
            rows.append((name, _typed(value) + " (not used)" * (name in unused), origin))
    changed = [row for row in rows if row[2] != "default"]
    unchanged = [row[:2] for row in rows if row[2] == "default"]
    title = "1 setting at its default" if len(unchanged) == 1 else f"{len(unchanged)} settings at their defaults"
    rest = folded(title, table(("setting", "value"), unchanged, wide=1))
    return table(("setting", "value", "from"), changed, wide=1) + rest


def _typed(value: Any) -> str:
    if isinstance(value, list):
        return ",".join("x".join(map(str, each)) if isinstance(each, list) else str(each) for each in value)
    return "–" if value is None else as_text(value)


def shared_facts(results: Sequence[Body]) -> dict[str, Body]:
    """Return the facts that are equal in all results, by section."""
    return {name: _shared(*(part(result, name) for result in results)) for name in FACTS}


def _shared(first: Body, *others: Body) -> Body:
    return {key: value for key, value in first.items() if all(other.get(key, ...) == value for other in others)}


def facts(result: Body, shared: Mapping[str, Body]) -> str:
    """Return collapsed HTML with the facts of a result that the results on the page do not share.

    The facts describe machine, software, launch and run.
    """
    own = {name: {key: value for key, value in part(result, name).items() if key not in shared[name]} for name in FACTS}
    return _folded(own, "Machine, software and launch of this result")


def common_facts(results: Sequence[Body]) -> str:
    """Return collapsed HTML with the facts about machine, software, launch and run that all results share."""
    return _folded(shared_facts(results), "Machine, software and launch")


def _folded(sections: Mapping[str, Body], title: str) -> str:
    rows = {name: [_readable(key, value) for key, value in body.items()] for name, body in sections.items() if body}
    parts = [f"<h3>{text(name)}</h3>{table(('', ''), facts, wide=1)}" for name, facts in rows.items()]
    return folded(title, "".join(parts))


def _readable(key: str, value: Any) -> tuple[str, Any]:
    """Return the name and the value of a fact for display, with sizes in GiB or MiB, and the BLAS as one text."""
    if key == "blas" and isinstance(value, Mapping):
        threads = value.get("threads")
        calls = "" if threads is None else f"{threads} threads per call"
        calls = "1 thread per call, because mxpeak's own threads call it" if threads == 1 else calls
        return key, "; ".join(filter(None, (blas_text(value), calls)))
    if key.endswith("_bytes") and isinstance(value, int | float):
        return key.removesuffix("_bytes"), size_text(value)
    return key, value
