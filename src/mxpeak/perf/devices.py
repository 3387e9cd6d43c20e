"""Where GPUs, cores and network adapters lie: each rank's line of the map rank → GPU → NUMA node → adapter.

Like all facts they are read under a `root`; what a system does not tell is None.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mxpeak.layout.cores import core_ranges
from mxpeak.perf.host import core_list, host_facts

#: Classes of network adapters that carry messages between nodes: InfiniBand and RoCE, Slingshot.
ADAPTERS = ("infiniband", "cxi")


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """The NUMA node that a GPU hangs on, and the cores beside it; None and none where the system does not say."""

    node: int | None
    cores: list[int]


@dataclass(frozen=True, slots=True)
class RankPlace:
    """One rank's line of the map; `core_nodes` are the NUMA nodes of its cores."""

    rank: int
    host: str
    cores: list[int]
    core_nodes: list[int]
    gpu: str
    bus_id: str
    gpu_place: GpuPlace
    adapters: list[str]


def bus_address(pci_bus_id: str) -> str:
    """A PCI address as the kernel writes it: 00000000:1B:00.0, 1b:00 and 0000:1b:00.0 are the same device."""
    match = re.fullmatch(r"(?:([0-9a-f]+):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", pci_bus_id.strip().lower())
    if match is None:
        return pci_bus_id
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function or 0}"


def gpu_place(pci_bus_id: str, root: str | Path = "/") -> GpuPlace:
    """Where the GPU at this PCI address lies."""
    device = Path(root) / "sys/bus/pci/devices" / bus_address(pci_bus_id)
    return GpuPlace(_node(device), core_list(_read(device / "local_cpulist")))


def nics(root: str | Path = "/") -> dict[str, int | None]:
    """The network adapters by name, each with its NUMA node."""
    folders = [Path(root) / "sys/class" / kind for kind in ADAPTERS]
    found = [adapter for folder in folders if folder.is_dir() for adapter in sorted(folder.iterdir())]
    return {adapter.name: _node(adapter / "device") for adapter in found}


def core_nodes(cores: Sequence[int], root: str | Path = "/") -> list[int]:
    """The NUMA nodes that these cores belong to."""
    nodes = host_facts(root, affinity=cores)["numa_nodes"] or []
    return [node["node"] for node in nodes if set(node["cores"]) & set(cores)]


def rank_place(rank: int, host: str, cores: list[int], gpu: str, bus_id: str, root: str | Path = "/") -> RankPlace:
    """The line of this rank, computed on its own host."""
    place = gpu_place(bus_id, root)
    beside = [name for name, node in nics(root).items() if node is not None and node == place.node]
    return RankPlace(rank, host, cores, core_nodes(cores, root), gpu, bus_address(bus_id), place, beside)


def map_lines(ranks: Sequence[RankPlace]) -> list[str]:
    """The map as a table, one line a rank below its heading."""
    rows = [("rank", "host", "cores", "GPU", "at", "NUMA", "adapters")]
    for r in ranks:
        node = "-" if r.gpu_place.node is None else str(r.gpu_place.node)
        rows.append((str(r.rank), r.host, core_ranges(r.cores), r.gpu, r.bus_id, node, ",".join(r.adapters) or "-"))
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def cross_socket(place: RankPlace) -> str | None:
    """What to say where all of a rank's cores lie on other NUMA nodes than its GPU; None where one does not."""
    node = place.gpu_place.node
    if node is None or not place.core_nodes or node in place.core_nodes:
        return None
    mine = " and ".join(map(str, place.core_nodes))
    beside = f" ({core_ranges(place.gpu_place.cores)})" if place.gpu_place.cores else ""
    return (
        f"rank {place.rank} on {place.host} has cores {core_ranges(place.cores)} of NUMA node {mine}, but its GPU "
        f"{place.bus_id} hangs on node {node}: every message crosses between them; bind it to cores of node {node}"
        f"{beside}"
    )


def _node(device: Path) -> int | None:
    """The NUMA node of a device; the kernel writes -1 where it does not know."""
    text = _read(device / "numa_node")
    return int(text) if text.isdecimal() else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
