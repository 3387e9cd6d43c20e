"""Find the GPU, the NUMA nodes and the nearest network adapters of each rank.

All readers have a parameter `root`, the root of the file system. Unknown values are None.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mxpeak.layout.cores import short_list
from mxpeak.perf.host import core_list, host_facts, number_in, text_in

#: Classes of network adapters that connect nodes: InfiniBand and RoCE, Slingshot.
ADAPTERS = ("infiniband", "cxi")
#: The variable with which Cray's MPI selects an adapter, and the variables that restrict UCX and NCCL to some
#: adapters.
CRAY_POLICY = "MPICH_OFI_NIC_POLICY"
ADAPTER_LISTS = ("UCX_NET_DEVICES", "NCCL_IB_HCA")


@dataclass(frozen=True, slots=True)
class GpuLocation:
    """The NUMA node of a GPU, and the cores near the GPU.

    If the system does not report the node or the cores, `node` is None or `cores` is empty.
    """

    node: int | None
    cores: list[int]


@dataclass(frozen=True, slots=True)
class RankLocation:
    """The host, cores, GPU and nearest adapters of one rank; `core_nodes` contains the NUMA nodes of its cores."""

    rank: int
    host: str
    cores: list[int]
    core_nodes: list[int]
    gpu: str
    bus_id: str
    gpu_location: GpuLocation
    adapters: list[str]


def bus_address(pci_bus_id: str) -> str:
    """Return a PCI address in the kernel's form: 00000000:1B:00.0 and 1b:00 give 0000:1b:00.0."""
    match = re.fullmatch(r"(?:([0-9a-f]+):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", pci_bus_id.strip().lower())
    if match is None:
        return pci_bus_id
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function or 0}"


def gpu_location(pci_bus_id: str, root: str | Path = "/") -> GpuLocation:
    """Return the NUMA node and the nearest cores of the GPU with this PCI address."""
    device = Path(root) / "sys/bus/pci/devices" / bus_address(pci_bus_id)
    return GpuLocation(_node(device), core_list(text_in(device / "local_cpulist") or ""))


def nics(root: str | Path = "/") -> dict[str, int | None]:
    """Return the NUMA node of each network adapter, by name."""
    folders = [Path(root) / "sys/class" / kind for kind in ADAPTERS]
    adapters = [adapter for folder in folders if folder.is_dir() for adapter in sorted(folder.iterdir())]
    return {adapter.name: _node(adapter / "device") for adapter in adapters}


def core_nodes(cores: Sequence[int], root: str | Path = "/") -> list[int]:
    """Return the NUMA nodes that contain at least one of these cores."""
    nodes = host_facts(root, affinity=cores)["numa_nodes"] or []
    return [node["node"] for node in nodes if set(node["cores"]) & set(cores)]


def rank_location(
    rank: int, host: str, cores: list[int], gpu: str, bus_id: str, root: str | Path = "/"
) -> RankLocation:
    """Read the NUMA nodes of this rank's cores and GPU from /sys, and return them with the nearest adapters."""
    location = gpu_location(bus_id, root)
    near = [name for name, node in nics(root).items() if node is not None and node == location.node]
    return RankLocation(rank, host, cores, core_nodes(cores, root), gpu, bus_address(bus_id), location, near)


def map_lines(ranks: Sequence[RankLocation]) -> list[str]:
    """Return the lines of a table with host, cores, GPU, NUMA node and adapters, with a row per rank."""
    rows = [("rank", "host", "cores", "GPU", "at", "NUMA", "adapters")]
    for r in ranks:
        node = "-" if r.gpu_location.node is None else str(r.gpu_location.node)
        rows.append((str(r.rank), r.host, short_list(r.cores), r.gpu, r.bus_id, node, ",".join(r.adapters) or "-"))
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def cross_socket(rank: RankLocation) -> str | None:
    """Return a warning if no core of a rank is on the NUMA node of its GPU, otherwise None."""
    node = rank.gpu_location.node
    if node is None or not rank.core_nodes or node in rank.core_nodes:
        return None
    nodes = " and ".join(map(str, rank.core_nodes))
    near = f" ({short_list(rank.gpu_location.cores)})" if rank.gpu_location.cores else ""
    return (
        f"rank {rank.rank} on {rank.host} has cores {short_list(rank.cores)} of NUMA node {nodes}, but its GPU "
        f"{rank.bus_id} is attached to node {node}, so every message crosses nodes; bind it to cores of node {node}"
        f"{near}"
    )


def adapter_advice(ranks: Sequence[RankLocation], environ: Mapping[str, str] = os.environ) -> str | None:
    """Return advice to set or unset a variable, so that ranks use the adapters nearest to their GPUs, or None.

    Cray's MPI assigns adapters to blocks of ranks unless a variable is set. UCX and NCCL select the nearest adapters
    unless a variable restricts them.
    """
    if any(name.startswith("cxi") for rank in ranks for name in rank.adapters) and CRAY_POLICY not in environ:
        return f"note: set {CRAY_POLICY}=GPU for all ranks, so that each sends through the adapter nearest its GPU"
    set_ones = [name for name in ADAPTER_LISTS if name in environ]
    if set_ones and len({name for rank in ranks for name in rank.adapters}) > 1:
        return f"note: unset {' and '.join(set_ones)}, so that each rank sends through the adapter nearest its GPU"
    return None


def _node(device: Path) -> int | None:
    """Return the NUMA node of a device, or None if the kernel reports -1 or no node."""
    return number_in(device / "numa_node")
