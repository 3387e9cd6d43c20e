"""Choose the network adapter nearest to each GPU of a node, and the variables with which libraries select it.

All readers have a parameter `root`, the root of the file system. Only the adapters of the fabric that connects the
nodes count: those of Slingshot, or the fastest active InfiniBand adapters of one subnet. Ethernet adapters and those
of several fabrics may not reach each other, so the libraries choose among them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mxpeak.layout.cores import short_list
from mxpeak.perf.devices import CRAY_POLICY, gpu_location
from mxpeak.perf.host import number_in, text_in

#: PCI vendors and classes of GPUs: display and 3D controllers, and processing accelerators.
GPU_VENDORS = {"0x10de": "nvidia", "0x1002": "amd"}
GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
#: Variables that show a process only some GPUs of its node.
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
#: Variables that select an adapter. If one of them is set, mxpeak sets no others.
SELECTED = (CRAY_POLICY, "MPICH_OFI_NIC_MAPPING", "UCX_NET_DEVICES")


@dataclass(frozen=True, slots=True)
class Adapter:
    """A network adapter: its number on the fabric, its name, its NUMA node, and its path from the PCI root."""

    number: int
    name: str
    node: int | None
    path: tuple[str, ...]


def fabric_adapters(root: str | Path = "/") -> list[Adapter]:
    """Return the adapters that connect the nodes, in the order of their names; empty if there is more than one fabric.

    These are the adapters of Slingshot. Without any, they are the active InfiniBand adapters with the highest rate.
    """
    slingshot = _devices(Path(root) / "sys/class/cxi")
    if slingshot:
        return [_adapter(number, device) for number, device in enumerate(slingshot)]
    active = []
    for device in _devices(Path(root) / "sys/class/infiniband"):
        port = device / "ports/1"
        rate = re.match(r"[\d.]+", text_in(port / "rate") or "")
        if "ACTIVE" in (text_in(port / "state") or "") and rate:
            subnet = (text_in(port / "gids/0") or "")[:19]
            active.append((float(rate[0]), text_in(port / "link_layer"), subnet, device))
    fastest = [each for each in active if each[0] == max(rate for rate, *_ in active)]
    if {layer for _, layer, *_ in fastest} != {"InfiniBand"} or len({subnet for *_, subnet, _ in fastest}) > 1:
        return []
    return [_adapter(number, device) for number, (*_, device) in enumerate(fastest)]


def gpus_in(root: str | Path = "/", environ: Mapping[str, str] | None = None) -> list[str]:
    """Return the PCI addresses of the GPUs of the node in ascending order, as CUDA and HIP number them.

    The list is empty if this process may not use all GPUs, because its numbers then differ from those of the node.
    """
    gpus: list[tuple[str, str]] = []
    for device in _devices(Path(root) / "sys/bus/pci/devices"):
        vendor = GPU_VENDORS.get(text_in(device / "vendor") or "")
        if vendor and (text_in(device / "class") or "").startswith(GPU_CLASSES):
            gpus.append((device.name, vendor))
    everything = ",".join(map(str, range(len(gpus))))
    hidden = any((environ or {}).get(name, everything) != everything for name in VISIBLE)
    files = {
        "nvidia": len(_matching(Path(root) / "dev", r"nvidia\d+")),
        "amd": len(_matching(Path(root) / "dev/dri", r"renderD\d+")),
    }
    usable = all(files[vendor] >= sum(of == vendor for _, of in gpus) for _, vendor in gpus)
    return sorted(bus for bus, _ in gpus) if usable and not hidden else []


def adapter_of_each(buses: Sequence[str], root: str | Path = "/") -> list[Adapter]:
    """Return the nearest adapter of each GPU; empty if no GPU has a choice, or if the system reports no locations.

    The nearest adapters share the most bridges with the GPU, or its NUMA node. GPUs with the same nearest adapters use
    them alternately.
    """
    adapters = fabric_adapters(root)
    if len(adapters) < 2:
        return []
    users: dict[tuple[Adapter, ...], int] = {}
    chosen = []
    for bus in buses:
        near = _nearest(bus, adapters, root)
        users[near] = users.get(near, -1) + 1
        chosen.append(near[users[near] % len(near)] if near else None)
    return [adapter for adapter in chosen if adapter] if None not in chosen else []


def own_gpu(local_rank: int, cores: Sequence[int], buses: Sequence[str], root: str | Path = "/") -> tuple[int, bool]:
    """Return the number of the GPU of a rank, and whether the launcher has bound the rank to cores near some GPUs.

    A bound rank uses a GPU near its cores, and an unbound rank r uses GPU r, as in `layout.cores.devices_near`.
    """
    mine = set(cores)
    near = [number for number, bus in enumerate(buses) if mine & set(gpu_location(bus, root).cores)]
    candidates = near or list(range(len(buses)))
    return candidates[local_rank % len(candidates)], len(candidates) < len(buses)


def adapter_variables(
    local_rank: int, local_ranks: int | None, cores: Sequence[int], environ: Mapping[str, str], root: str | Path = "/"
) -> dict[str, str]:
    """Return the variables with which MPI, NCCL and RCCL use the adapter nearest to the GPU of a rank.

    `local_ranks` is the number of ranks of the node, or None if it is unknown. The result is empty if there is no
    choice, or if the user has chosen. MPI reads the variables when it starts, before ranks can exchange any facts.
    """
    buses = gpus_in(root, environ)
    chosen = adapter_of_each(buses, root) if buses else []
    if not chosen:
        return {}
    number, bound = own_gpu(local_rank, cores, buses, root)
    variables = {}
    if not any(name in environ for name in SELECTED):
        if not chosen[0].name.startswith("cxi"):
            variables["UCX_NET_DEVICES"] = f"{chosen[number].name}:1"
        elif bound:
            variables[CRAY_POLICY] = "NUMA"
        elif local_ranks is not None:
            variables |= cray_mapping([chosen[rank % len(chosen)] for rank in range(local_ranks)])
    return variables | {name: value for name, value in _collectives(chosen[0], root).items() if name not in environ}


def cray_mapping(adapters: Sequence[Adapter]) -> dict[str, str]:
    """Return the variables with which Cray's MPI assigns these adapters to the ranks of a node."""
    ranks: dict[int, list[int]] = {}
    for rank, adapter in enumerate(adapters):
        ranks.setdefault(adapter.number, []).append(rank)
    mapping = "; ".join(f"{number}:{short_list(of)}" for number, of in sorted(ranks.items()))
    return {CRAY_POLICY: "USER", "MPICH_OFI_NIC_MAPPING": mapping}


def _collectives(adapter: Adapter, root: str | Path) -> dict[str, str]:
    """Return the variables that restrict NCCL and RCCL to the fabric. Both find the nearest of its adapters."""
    if adapter.name.startswith("cxi"):
        interfaces = _matching(Path(root) / "sys/class/net", r"hsn\d+")
        return {"NCCL_SOCKET_IFNAME": "hsn"} if interfaces else {}
    fabric = [each.name for each in fabric_adapters(root)]
    others = {device.name for device in _devices(Path(root) / "sys/class/infiniband")} - set(fabric)
    return {"NCCL_IB_HCA": "=" + ",".join(fabric)} if others else {}


def _nearest(bus: str, adapters: Sequence[Adapter], root: str | Path) -> tuple[Adapter, ...]:
    """Return the adapters that share the most bridges with a GPU; without any, those on the NUMA node of the GPU."""
    device = Path(root) / "sys/bus/pci/devices" / bus
    path, node = _pci_path(device), number_in(device / "numa_node")
    shared = [_shared(path, adapter.path) for adapter in adapters]
    if max(shared) > 0:
        return tuple(adapter for adapter, bridges in zip(adapters, shared) if bridges == max(shared))
    return tuple(adapter for adapter in adapters if node is not None and adapter.node == node)


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the number of bridges that two devices have in common."""
    return next((k for k, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def _adapter(number: int, device: Path) -> Adapter:
    return Adapter(number, device.name, number_in(device / "device/numa_node"), _pci_path(device / "device"))


def _pci_path(device: Path) -> tuple[str, ...]:
    """Return the bridges from the PCI root to a device, or an empty tuple if the system does not report them."""
    parts = device.resolve().parts
    first = next((k for k, part in enumerate(parts) if re.fullmatch(r"pci[0-9a-f]{4}:[0-9a-f]{2}", part)), None)
    return () if first is None else parts[first:-1]


def _devices(folder: Path) -> list[Path]:
    """Return the entries of a folder of devices, in the order of the numbers in their names."""
    entries = list(folder.iterdir()) if folder.is_dir() else []
    return sorted(entries, key=lambda path: [int(part) if part.isdecimal() else part for part in _parts(path.name)])


def _parts(name: str) -> list[str]:
    return re.split(r"(\d+)", name)


def _matching(folder: Path, pattern: str) -> list[Path]:
    return [path for path in _devices(folder) if re.fullmatch(pattern, path.name)]
