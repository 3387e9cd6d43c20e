"""Create a fake /proc and /sys of a machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

MEMINFO = "MemTotal:       1048576 kB\nMemFree:         200000 kB\nMemAvailable:    524288 kB\n"


def put(root: Path, files: Mapping[str, str]) -> Path:
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return root


def machine(root: Path, sockets: int = 2, cores: int = 4, threads: int = 2) -> Path:
    """Create two sockets of four cores in two L3 groups each; the second thread of each core is numbered last."""
    total = sockets * cores
    cpu = "sys/devices/system/cpu/cpu{}/"
    files = {
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: Invented 9000\nflags\t\t: fpu sse2 avx2\n\nprocessor\t: 1\n",
        "proc/sys/kernel/osrelease": "6.1.0-invented\n",
        "proc/meminfo": MEMINFO,
    }
    for logical in range(total * threads):
        core = logical % total
        siblings = ",".join(str(core + t * total) for t in range(threads))
        base = cpu.format(logical)
        first = core - core % 2
        files |= {
            base + "topology/thread_siblings_list": siblings,
            base + "topology/physical_package_id": str(core // cores),
            base + "cache/index0/level": "1",
            base + "cache/index0/type": "Data",
            base + "cache/index1/level": "1",
            base + "cache/index1/type": "Instruction",
            base + "cache/index2/level": "2",
            base + "cache/index2/type": "Unified",
            base + "cache/index2/size": "512K",
            base + "cache/index3/level": "3",
            base + "cache/index3/type": "Unified",
            base + "cache/index3/size": "32M",
            base + "cache/index3/shared_cpu_list": f"{first}-{first + 1},{first + total}-{first + 1 + total}",
        }
    for node in range(sockets):
        cpus = f"{node * cores}-{node * cores + cores - 1}"
        files[f"sys/devices/system/node/node{node}/cpulist"] = cpus
    files["sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"] = "performance\n"
    files["sys/devices/system/cpu/cpufreq/ignored"] = "not a core"
    return put(root, files)
