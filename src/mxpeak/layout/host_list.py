"""Format host names in Slurm's syntax: node[003,007-009]."""

from __future__ import annotations

import re
from collections.abc import Iterable


def host_list(names: Iterable[str]) -> str:
    """Return a list that contains each host name once, in Slurm's syntax, without the domain after the first dot.

    >>> host_list(["node009", "node003", "node007", "node008.cluster", "login"])
    'login,node[003,007-009]'
    """
    by_prefix: dict[str, list[str]] = {}
    alone: list[str] = []
    for name in {name.partition(".")[0] for name in names}:
        match = re.fullmatch(r"(.*?)(\d+)", name)
        if match is None:
            alone.append(name)
        else:
            by_prefix.setdefault(match[1], []).append(match[2])
    return ",".join(sorted([*alone, *(_bracketed(prefix, numbers) for prefix, numbers in by_prefix.items())]))


def _bracketed(prefix: str, numbers: list[str]) -> str:
    """Return the names with one prefix in Slurm's syntax; a new range begins where the zero padding changes."""
    runs: list[list[str]] = []
    for text in sorted(numbers, key=lambda text: (int(text), len(text))):
        if runs and text == str(int(runs[-1][-1]) + 1).zfill(len(runs[-1][0])):
            runs[-1].append(text)
        else:
            runs.append([text])
    parts = [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return prefix + (parts[0] if len(numbers) == 1 else f"[{','.join(parts)}]")
