"""Create fake /sys trees of known nodes with cores, NUMA nodes, GPUs and network adapters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.machine import put

SUBNET = "fe80:0000:0000:0000:0000:0000:0000:0001"
STATE = "4: ACTIVE"


@dataclass
class Gpu:
    """A GPU: its PCI address, the bridge above it, its NUMA node and the cores near it."""

    bus: str
    bridge: str
    node: int
    cores: str


@dataclass
class Port:
    """A network adapter: its name, the bridge above it, its NUMA node, and the properties of its port."""

    name: str
    bridge: str
    node: int
    rate: str = "400 Gb/sec (4X NDR)"
    layer: str = "InfiniBand"
    state: str = STATE
    gid: str = SUBNET


@dataclass
class Node:
    """A node in a fake file system."""

    root: Path
    cores: int
    gpus: list[Gpu]
    ports: list[Port] = field(default_factory=list)

    @property
    def buses(self) -> list[str]:
        return [gpu.bus for gpu in self.gpus]


def node(root: Path, cores: int, vendor: str, gpus: Sequence[Gpu], ports: Sequence[Port], kind: str) -> Node:
    """Write the tree: devices are below their bridges, and the folders of classes contain links, as in Linux."""
    files = {}
    for gpu in gpus:
        folder = f"sys/devices/{gpu.bridge}/{gpu.bus}"
        files |= {f"{folder}/vendor": vendor, f"{folder}/class": "0x030200\n", f"{folder}/numa_node": f"{gpu.node}\n"}
        files[f"{folder}/local_cpulist"] = gpu.cores + "\n"
    for k, port in enumerate(ports):
        folder = f"sys/devices/{port.bridge}/0000:0{k:x}:00.0"
        files[f"{folder}/numa_node"] = f"{port.node}\n"
        of_port = f"{folder}/{kind}/{port.name}/ports/1"
        files |= {f"{of_port}/rate": port.rate, f"{of_port}/state": port.state, f"{of_port}/link_layer": port.layer}
        files[f"{of_port}/gids/0"] = port.gid
    for k in range(len(gpus)):
        files[f"dev/nvidia{k}" if vendor == "0x10de" else f"dev/dri/renderD{128 + k}"] = ""
    put(root, files)
    for gpu in gpus:
        link(root / f"sys/bus/pci/devices/{gpu.bus}", root / f"sys/devices/{gpu.bridge}/{gpu.bus}")
    for k, port in enumerate(ports):
        device = root / f"sys/devices/{port.bridge}/0000:0{k:x}:00.0"
        link(device / kind / port.name / "device", device)
        link(root / f"sys/class/{kind}/{port.name}", device / kind / port.name)
    return Node(root, cores, list(gpus), list(ports))


def link(name: Path, target: Path) -> None:
    name.parent.mkdir(parents=True, exist_ok=True)
    name.symlink_to(target)


def frontier(root: Path) -> Node:
    """8 GCDs and 4 Slingshot adapters: GCDs 0 and 1 are near cores 48-63, 2 and 3 near 16-31, and so on."""
    numa = {"c1": 3, "c6": 3, "c9": 1, "ce": 1, "d1": 0, "d6": 0, "d9": 2, "de": 2}
    gpus = [Gpu(f"0000:{bus}:00.0", f"pci0000:{bus}", at, f"{16 * at}-{16 * at + 15}") for bus, at in numa.items()]
    ports = [Port(f"cxi{k}", f"pci0000:f{k}", at) for k, at in enumerate((3, 1, 0, 2))]
    put(root, {f"sys/class/net/hsn{k}/mtu": "9000" for k in range(4)})
    return node(root, 64, "0x1002", gpus, ports, "cxi")


def h100(root: Path) -> Node:
    """8 H100 with an adapter behind the same PCIe switch, and two slower adapters for storage and management."""
    gpus, ports = [], []
    for k in range(8):
        socket = k // 4
        bridge = f"pci0000:{0x10 + 16 * k:02x}/0000:{0x10 + 16 * k:02x}:01.0"
        gpus.append(Gpu(f"0000:{0x1B + 16 * k:02x}:00.0", bridge, socket, f"{56 * socket}-{56 * socket + 55}"))
        ports.append(Port(f"mlx5_{(k + 3) % 8 + 4}", bridge, socket))  # the numbers are not those of the GPUs
    ports.append(Port("mlx5_0", "pci0000:e0", 0, rate="100 Gb/sec (2X HDR)", layer="Ethernet"))
    ports.append(Port("mlx5_1", "pci0000:f0", 1, state="1: DOWN"))
    return node(root, 112, "0x10de", gpus, ports, "infiniband")


def mi300a(root: Path) -> Node:
    """4 APUs with 24 cores and a Slingshot adapter each."""
    gpus = [Gpu(f"000{k}:01:00.0", f"pci000{k}:00", k, f"{24 * k}-{24 * k + 23}") for k in range(4)]
    ports = [Port(f"cxi{k}", f"pci000{k}:80", k) for k in range(4)]
    put(root, {f"sys/class/net/hsn{k}/mtu": "9000" for k in range(4)})
    return node(root, 96, "0x1002", gpus, ports, "cxi")


def grace_hopper(root: Path) -> Node:
    """4 GH200 superchips with 72 cores and an InfiniBand adapter each; their GPUs have PCI domains of their own."""
    gpus = [Gpu(f"000{k}9:01:00.0"[-12:], f"pci000{k}:00", k, f"{72 * k}-{72 * k + 71}") for k in range(4)]
    ports = [Port(f"mlx5_{k}", f"pci001{k}:00", k) for k in range(4)]
    return node(root, 288, "0x10de", gpus, ports, "infiniband")


NODES = {"frontier": frontier, "h100": h100, "mi300a": mi300a, "grace_hopper": grace_hopper}
