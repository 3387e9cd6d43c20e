"""Test the locations of GPUs, cores and adapters in invented /sys trees."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from mxpeak.layout.cores import core_masks, devices_near, masks_near, split_masks
from mxpeak.perf.devices import (
    CRAY_POLICY,
    adapter_advice,
    bus_address,
    core_nodes,
    cross_socket,
    gpu_location,
    map_lines,
    nics,
    rank_location,
)
from tests.support.machine import machine, put


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """Write two sockets with four cores each (0-3 and 4-7, siblings 8-11 and 12-15), a GPU and an adapter."""
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


def test_a_gpu_is_found_with_its_numa_node_and_near_cores(node: Path) -> None:
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
    assert "rank 1 on n1 has cores 0-1 of NUMA node 0, but its GPU 0001:c3:00.0 is attached to node 1" in text
    assert text.endswith("bind it to cores of node 1 (4-7,12-15)")


@pytest.mark.parametrize("cores", [[4, 5], [0, 4], list(range(8))])
def test_a_rank_with_a_core_near_its_gpu_gets_no_warning(node: Path, cores: list[int]) -> None:
    assert cross_socket(rank_location(1, "n1", cores, "H200", "0001:c3:00.0", node)) is None


# --- cores near GPUs

#: Frontier's node: the NUMA node of each GCD; GCDs are not in the order of the cores.
GCDS = {"c1": 3, "c6": 3, "c9": 1, "ce": 1, "d1": 0, "d6": 0, "d9": 2, "de": 2}


@pytest.fixture
def frontier(tmp_path: Path) -> Path:
    """Write a node of 64 cores in four NUMA nodes, with siblings from 64, and two GCDs and an adapter per NUMA node."""
    files = {}
    for bus, node in GCDS.items():
        first = 16 * node
        files[f"sys/bus/pci/devices/0000:{bus}:00.0/numa_node"] = f"{node}\n"
        cores = f"{first}-{first + 15},{first + 64}-{first + 79}\n"
        files[f"sys/bus/pci/devices/0000:{bus}:00.0/local_cpulist"] = cores
    files |= {f"sys/class/cxi/cxi{k}/device/numa_node": f"{k}\n" for k in range(4)}
    return put(machine(tmp_path, sockets=1, cores=64), files)


def near(root: Path, ranks: int) -> list[list[int]]:
    """Return the cores near each rank's GCD."""
    return [gpu_location(f"0000:{bus}:00.0", root).cores for bus in list(GCDS)[:ranks]]


def test_each_rank_gets_its_share_of_the_cores_near_its_gpu(frontier: Path) -> None:
    masks = masks_near(range(64), near(frontier, 8))
    assert masks is not None
    assert [mask[0] for mask in masks] == [48, 56, 16, 24, 0, 8, 32, 40]
    assert all(len(mask) == 8 for mask in masks)
    assert sorted(chain(*masks)) == list(range(64))
    for (bus, node), mask in zip(GCDS.items(), masks):
        one = rank_location(0, "n1", mask, "MI250X", f"0000:{bus}:00.0", frontier)
        assert (one.gpu_location.node, one.adapters) == (node, [f"cxi{node}"])
        assert set(mask) <= set(one.gpu_location.cores)


def test_cores_that_the_system_keeps_for_itself_are_left_out(frontier: Path) -> None:
    """Frontier gives jobs 56 cores: the first of every eight cores is reserved for the system."""
    allowed = [core for core in range(64) if core % 8]
    masks = masks_near(allowed, near(frontier, 8))
    assert masks is not None
    assert [mask[0] for mask in masks] == [49, 57, 17, 25, 1, 9, 33, 41]
    assert all(len(mask) == 7 for mask in masks)


@pytest.mark.parametrize(
    ("cores", "beside"),
    [
        (range(8), [[], []]),  # the system does not report it
        (range(8), [[0, 1, 2, 3], []]),
        (range(8), [[0, 1, 2, 3], [3, 4, 5, 6]]),  # no NUMA nodes
        (range(4), [[0, 1, 2, 3], [4, 5, 6, 7]]),  # none of these may be used
        (range(4), [[0], [0]]),
    ],
)
def test_where_nearness_decides_nothing_cores_are_cut_into_parts(cores: range, beside: list[list[int]]) -> None:
    assert masks_near(cores, beside) is None
    assert len(core_masks(cores, len(beside))) == 2


def test_the_variable_that_leads_to_the_nearest_adapter_is_named_in_one_sentence(frontier: Path) -> None:
    cray = [rank_location(0, "n1", [48], "MI250X", "0000:c1:00.0", frontier)]
    assert adapter_advice(cray, {}) == (
        "note: set MPICH_OFI_NIC_POLICY=GPU for all ranks, so that each sends through the adapter nearest its GPU"
    )
    assert adapter_advice(cray, {CRAY_POLICY: "NUMA"}) is None
    ranks = [replace(cray[0], rank=k, adapters=[f"mlx5_{k}"]) for k in range(2)]
    assert adapter_advice(ranks, {}) is None
    assert "unset UCX_NET_DEVICES" in str(adapter_advice(ranks, {"UCX_NET_DEVICES": "mlx5_0:1"}))


# --- devices near cores

PARTS = core_masks(range(64), 8)


def beside(root: Path) -> list[list[int]]:
    """Return the cores near each GCD by its number."""
    return near(root, 8)


def test_ranks_that_srun_has_bound_get_frontiers_gcds_of_their_numa_nodes(frontier: Path) -> None:
    """GCDs 4 and 5 are at NUMA node 0, 2 and 3 at 1, 6 and 7 at 2, 0 and 1 at 3."""
    assert devices_near(PARTS, beside(frontier)) == [4, 5, 2, 3, 6, 7, 0, 1]
    backwards = devices_near(PARTS[::-1], beside(frontier))
    assert [device // 2 for device in backwards] == [0, 0, 3, 3, 1, 1, 2, 2]
    assert sorted(backwards) == list(range(8)), "no two ranks on a device"


def test_unbound_ranks_use_gpus_in_order_and_the_cores_near_them(frontier: Path) -> None:
    whole = [list(range(64))] * 8
    devices = devices_near(whole, beside(frontier))
    assert devices == list(range(8))
    masks = split_masks(whole, [beside(frontier)[device] for device in devices], [None] * 8)
    assert [mask[0] for mask in masks] == [48, 56, 16, 24, 0, 8, 32, 40]


def test_ranks_bound_to_numa_nodes_share_the_node_s_cores_and_take_its_gcds(frontier: Path) -> None:
    bound = [list(range(16 * (rank // 2), 16 * (rank // 2) + 16)) for rank in range(8)]
    devices = devices_near(bound, beside(frontier))
    assert devices == [4, 5, 2, 3, 6, 7, 0, 1]
    masks = split_masks(bound, [beside(frontier)[device] for device in devices], [0, 0, 1, 1, 2, 2, 3, 3])
    assert masks == PARTS, "no rank computes on another's cores"


@pytest.mark.parametrize("ranks", [1, 3, 8, 11, 16])
@pytest.mark.parametrize("step", [1, 3, 5])
def test_no_device_has_two_ranks_more_than_another(frontier: Path, ranks: int, step: int) -> None:
    masks = [PARTS[step * rank % 8] for rank in range(ranks)]
    counts = [devices_near(masks, beside(frontier)).count(device) for device in range(8)]
    assert max(counts) - min(counts) <= 1
    assert sum(counts) == ranks
    assert devices_near(masks, beside(frontier)) == devices_near(masks, beside(frontier))


@pytest.mark.parametrize(
    ("masks", "cores", "devices"),
    [
        (PARTS, [[]] * 8, list(range(8))),  # the system does not report it
        (PARTS, [[]] * 3, [0, 1, 2, 0, 1, 2, 0, 1]),
        ([[0], [0], [9]], [[9], [0], [0]], [1, 2, 0]),
        ([[0], [0], [0]], [[9], [0], [0]], [0, 1, 2]),  # one rank must use a far one
        ([[0, 9], [0]], [[0], [9]], [1, 0]),  # the first rank takes the far core, because the second has no choice
        ([[5]], [[9], [5]], [1]),
        ([[0], [1]], [[0, 1]], [0, 0]),  # one device for two
    ],
)
def test_as_many_ranks_as_possible_are_near_their_device(
    masks: list[list[int]], cores: list[list[int]], devices: list[int]
) -> None:
    assert devices_near(masks, cores) == devices


def test_ranks_with_cores_of_their_own_keep_them() -> None:
    bound = [[1], [0, 2], [3], [3]]
    assert split_masks(bound, [[]] * 4, [None] * 4) == [[1], [0, 2], [3], [3]]
    assert split_masks([[0, 1, 2, 3]] * 2, [[]] * 2, [0, 0]) == [[0, 1, 3], [2, 3, 1]], "one row, in turn"
    assert split_masks([[0, 1], [0, 1], [4, 5]], [[]] * 3, [0, 0, 0]) == [[0], [1], [4, 5]], "bound, so not in turn"
