"""What a run was told, and on what it ran: what differs from the default in sight, all the rest folded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mxpeak.options import as_text
from mxpeak.records import size_text
from mxpeak.report.markup import Body, folded, part, table, text

#: Sections that are the same for all results of a run, but for a few of their values.
FACTS = ("machine", "software", "launch", "run")


def settings(result: Body) -> str:
    """The settings that somebody or something set, each with its origin; those left as they were are folded."""
    unused = part(result, "problem").get("not_used") or ()
    rows = [(name, *_setting(value, used=name not in unused)) for name, value in part(result, "config").items()]
    changed = [row for row in rows if row[2] != "default"]
    left = [row[:2] for row in rows if row[2] == "default"]
    title = "1 setting at its default" if len(left) == 1 else f"{len(left)} settings at their defaults"
    rest = folded(title, table(("setting", "value"), left, wide=1))
    return table(("setting", "value", "from"), changed, wide=1) + rest


def _setting(value: Any, *, used: bool = True) -> tuple[str, Any]:
    """Return a setting's value as it would be typed, marked if it had no effect, and its origin."""
    mark = "" if used else " (not used)"
    if not isinstance(value, Mapping):
        return _typed(value) + mark, None
    return _typed(value.get("value")) + mark, value.get("origin")


def _typed(value: Any) -> str:
    if isinstance(value, list):
        return ",".join("x".join(map(str, one)) if isinstance(one, list) else str(one) for one in value)
    return "–" if value is None else as_text(value)


def alike(results: Sequence[Body]) -> dict[str, Body]:
    """Return the facts by section that all results have alike; found once, because a page may have hundreds."""
    shared: dict[str, Body] = {}
    for name in FACTS:
        first, others = part(results[0], name), [part(one, name) for one in results[1:]]
        shared[name] = {
            key: value for key, value in first.items() if all(other.get(key, ...) == value for other in others)
        }
    return shared


def facts(result: Body, shared: Mapping[str, Body]) -> str:
    """What this result says of machine, software and launch that the others of its page do not say alike."""
    own = {name: {key: value for key, value in part(result, name).items() if key not in shared[name]} for name in FACTS}
    return _folded(own, "Machine, software and launch of this result")


def common_facts(results: Sequence[Body]) -> str:
    """What all results say alike of machine, software and launch."""
    return _folded(alike(results), "Machine, software and launch")


def _folded(sections: Mapping[str, Body], title: str) -> str:
    rows = {name: [_people(key, value) for key, value in body.items()] for name, body in sections.items() if body}
    parts = [f"<h3>{text(name)}</h3>{table(('', ''), facts, wide=1)}" for name, facts in rows.items()]
    return folded(title, "".join(parts))


def _people(key: str, value: Any) -> tuple[str, Any]:
    """A fact with units that people read: a size in bytes as GiB or MiB, and the threads of BLAS with their meaning."""
    if key == "blas" and isinstance(value, Mapping):
        named = " ".join(str(value[name]) for name in ("library", "version", "architecture") if value.get(name))
        threads = value.get("threads")
        calls = "" if threads is None else f"{threads} threads per call"
        calls = "1 thread per call, because mxpeak's own threads call it" if threads == 1 else calls
        return key, "; ".join(filter(None, (named, calls)))
    if key.endswith("_bytes") and isinstance(value, int | float):
        return key.removesuffix("_bytes"), size_text(value)
    return key, value
