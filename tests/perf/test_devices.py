"""Where GPUs, cores and adapters lie, from invented /sys trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from mxpeak.perf.devices import bus_address, core_nodes, cross_socket, gpu_location, map_lines, nics, rank_location
from tests.support.machine import machine, put


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """Two sockets of four cores (0-3 and 4-7, siblings 8-11 and 12-15), a GPU and an adapter on each."""
    files = {}
    for socket, (gpu, adapter) in enumerate([("0000:1b:00.0", "mlx5_0"), ("0001:c3:00.0", "mlx5_1")]):
        first = 4 * socket
        files[f"sys/bus/pci/devices/{gpu}/numa_node"] = f"{socket}\n"
        files[f"sys/bus/pci/devices/{gpu}/local_cpulist"] = f"{first}-{first + 3},{first + 8}-{first + 11}\n"
        files[f"sys/class/infiniband/{adapter}/device/numa_node"] = f"{socket}\n"
    files["sys/class/cxi/cxi0/device/numa_node"] = "-1\n"
    return put(machine(tmp_path), files)


@pytest.mark.parametrize("said", ["0000:1b:00.0", "00000000:1B:00.0", "1b:00", "0:1B:00.0"])
def test_a_pci_address_is_read_however_a_library_writes_it(said: str) -> None:
    assert bus_address(said) == "0000:1b:00.0"


def test_a_gpu_is_found_with_its_numa_node_and_the_cores_beside_it(node: Path) -> None:
    location = gpu_location("00000001:C3:00.0", node)
    assert (location.node, location.cores) == (1, [4, 5, 6, 7, 12, 13, 14, 15])


def test_adapters_are_found_by_name_with_their_nodes(node: Path) -> None:
    assert nics(node) == {"mlx5_0": 0, "mlx5_1": 1, "cxi0": None}


def test_a_machine_that_tells_nothing_has_locations_of_none(tmp_path: Path) -> None:
    location = gpu_location("0000:1b:00.0", tmp_path)
    assert (location.node, location.cores) == (None, [])
    assert nics(tmp_path) == {}
    assert core_nodes([0, 1], tmp_path) == []
    rank = rank_location(0, "here", [0, 1], "H200", "0000:1b:00.0", tmp_path)
    assert cross_socket(rank) is None
    assert map_lines([rank])[1].split() == ["0", "here", "0-1", "H200", "0000:1b:00.0", "-", "-"]


def test_the_map_has_a_line_a_rank(node: Path) -> None:
    ranks = [
        rank_location(0, "n1", [0, 1, 2, 3], "NVIDIA H200", "0000:1b:00.0", node),
        rank_location(1, "n1", [4, 5, 7], "NVIDIA H200", "0001:c3:00.0", node),
    ]
    assert map_lines(ranks) == [
        "rank  host  cores  GPU          at            NUMA  adapters",
        "0     n1    0-3    NVIDIA H200  0000:1b:00.0  0     mlx5_0",
        "1     n1    4-5,7  NVIDIA H200  0001:c3:00.0  1     mlx5_1",
    ]


def test_cores_that_all_lie_on_another_node_than_the_gpu_are_warned_of(node: Path) -> None:
    text = cross_socket(rank_location(1, "n1", [0, 1], "H200", "0001:c3:00.0", node))
    assert text is not None
    assert "rank 1 on n1 has cores 0-1 of NUMA node 0, but its GPU 0001:c3:00.0 hangs on node 1" in text
    assert text.endswith("bind it to cores of node 1 (4-7,12-15)")


@pytest.mark.parametrize("cores", [[4, 5], [0, 4], list(range(8))])
def test_a_rank_with_a_core_beside_its_gpu_is_not_warned(node: Path, cores: list[int]) -> None:
    assert cross_socket(rank_location(1, "n1", cores, "H200", "0001:c3:00.0", node)) is None
