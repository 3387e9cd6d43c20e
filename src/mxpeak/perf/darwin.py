"""Read facts about a host with macOS, which has neither /proc nor /sys, from the programs sysctl and vm_stat."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

NAMES = (
    "machdep.cpu.brand_string",
    "hw.packages",
    "hw.physicalcpu",
    "hw.perflevel0.physicalcpu",
    "hw.perflevel1.physicalcpu",
    "hw.perflevel0.l2cachesize",
    "hw.l2cachesize",
    "hw.l3cachesize",
)
#: Speed of Apple's efficiency cores over that of its performance cores: a lower clock and half the vector units.
EFFICIENCY_CORE = 0.35


def applies(root: Path) -> bool:
    """Return whether this host runs macOS, and `root` is not the folder of a simulated host in a test."""
    return sys.platform == "darwin" and root == Path("/")


def host_facts() -> dict[str, Any]:
    """Return the processor, its sockets, cores and caches."""
    values = _sysctl()
    return {
        "cpu_model": values.get("machdep.cpu.brand_string"),
        "sockets": _number(values, "hw.packages"),
        "physical_cores": _number(values, "hw.physicalcpu"),
        "l2_bytes": _number(values, "hw.perflevel0.l2cachesize") or _number(values, "hw.l2cachesize"),
        "l3_bytes": _number(values, "hw.l3cachesize"),
    }


def speeds(cores: list[int]) -> dict[int, float]:
    """Return the relative speed of each core. macOS neither numbers nor binds cores, so only their counts matter."""
    values = _sysctl()
    fast = _number(values, "hw.perflevel0.physicalcpu") or _number(values, "hw.physicalcpu") or len(cores)
    slow = _number(values, "hw.perflevel1.physicalcpu") or 0
    physical = cores[: fast + slow] if slow else cores[:fast]
    return {core: 1.0 if at < fast else EFFICIENCY_CORE for at, core in enumerate(physical)}


def available_memory_bytes() -> int | None:
    """Return the bytes of free, speculative and inactive pages."""
    text = _output("vm_stat")
    page = re.search(r"page size of (\d+) bytes", text)
    pages = re.findall(r"^Pages (?:free|inactive|speculative):\s+(\d+)\.", text, re.MULTILINE)
    return int(page[1]) * sum(map(int, pages)) if page and pages else None


@cache
def _sysctl() -> dict[str, str]:
    """Return the known values by name; sysctl omits names that the processor does not have."""
    lines = (line.partition(": ") for line in _output("sysctl", *NAMES).splitlines())
    return {name: value.strip() for name, _, value in lines}


def _number(values: dict[str, str], name: str) -> int | None:
    return int(values[name]) if values.get(name, "").isdecimal() and int(values[name]) else None


def _output(*command: str) -> str:
    """Return the output of a program of the system, or "" if it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""
