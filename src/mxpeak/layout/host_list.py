"""Format and parse host names in Slurm's syntax: node[003,007-009]."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mxpeak.errors import UsageError

#: The largest number of hosts in one range.
MAX_HOSTS = 100_000


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


def hosts_of(text: str) -> list[str]:
    """Return the host names of a list in Slurm's syntax.

    >>> hosts_of("login,node[003,007-009]")
    ['login', 'node003', 'node007', 'node008', 'node009']
    """
    names: list[str] = []
    parts = re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text)
    for part in parts:
        match = re.fullmatch(r"([\w.-]*)(?:\[([\d,-]+)\])?([\w.-]*)", part)
        if match is None or ",".join(parts) != text.strip(","):
            raise UsageError(f"{text!r} is not a list of hosts; use names such as node1,node2 or node[003,007-009]")
        prefix, numbers, suffix = match.groups()
        middles = [""] if numbers is None else [number for run in numbers.split(",") for number in _numbers(run, text)]
        names += [f"{prefix}{middle}{suffix}" for middle in middles]
    return names


def _numbers(run: str, text: str) -> list[str]:
    """Return the numbers of a range such as 007-009, each with the zero padding of the first."""
    first, dash, last = run.partition("-")
    last = last if dash else first
    if not (first.isdecimal() and last.isdecimal()) or not 0 <= int(last) - int(first) < MAX_HOSTS:
        raise UsageError(f"{run!r} in {text!r} is not a range of hosts; use an increasing range such as 007-009")
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
