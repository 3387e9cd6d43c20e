"""Test the cores, the GPU and the adapter of each rank on invented nodes, and the variables that select adapters."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from mxpeak.comm.transports.solo import DryRunCommunicator
from mxpeak.configs.run import PlaceConfig
from mxpeak.layout.cores import devices_near, split_masks
from mxpeak.perf.devices import gpu_location
from mxpeak.perf.nearest_adapter import adapter_of_each, adapter_variables, fabric_adapters, gpus_in, own_gpu
from mxpeak.runtime import facts, launch, launcher, placement
from tests.support.nodes import NODES, Gpu, Node, Port, frontier, h100
from tests.support.nodes import node as node_tree

#: The adapter of each GPU in the order of the GPUs, from the paths and NUMA nodes of the invented trees.
ADAPTERS = {
    "frontier": ["cxi0", "cxi0", "cxi1", "cxi1", "cxi2", "cxi2", "cxi3", "cxi3"],
    "h100": [f"mlx5_{k}" for k in (7, 8, 9, 10, 11, 4, 5, 6)],
    "mi300a": ["cxi0", "cxi1", "cxi2", "cxi3"],
    "grace_hopper": ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"],
}
#: The first core of each rank with one rank per GPU, if no launcher binds ranks.
FIRST = {
    "frontier": [48, 56, 16, 24, 0, 8, 32, 40],
    "h100": [0, 14, 28, 42, 56, 70, 84, 98],
    "mi300a": [0, 24, 48, 72],
    "grace_hopper": [0, 72, 144, 216],
}
MAPPINGS = {"frontier": "0:0-1; 1:2-3; 2:4-5; 3:6-7", "mi300a": "0:0; 1:1; 2:2; 3:3"}


@pytest.fixture(params=NODES)
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Node]:
    return request.param, NODES[request.param](tmp_path)


def test_each_gpu_has_the_adapter_with_the_shortest_path(machine: tuple[str, Node]) -> None:
    name, node = machine
    assert gpus_in(node.root) == node.buses
    assert [adapter.name for adapter in adapter_of_each(node.buses, node.root)] == ADAPTERS[name]


def test_each_rank_has_its_share_of_the_cores_nearest_its_gpu(machine: tuple[str, Node]) -> None:
    name, node = machine
    ranks = len(node.gpus)
    whole = [list(range(node.cores))] * ranks
    near = [gpu_location(bus, node.root).cores for bus in node.buses]
    devices = devices_near(whole, near)
    assert devices == list(range(ranks))
    masks = split_masks(whole, [near[device] for device in devices], [None] * ranks)
    assert [mask[0] for mask in masks] == FIRST[name]
    assert all(set(mask) <= set(near[device]) for mask, device in zip(masks, devices))
    assert sorted(chain(*masks)) == whole[0]
    bound = [list(range(k * node.cores // ranks, (k + 1) * node.cores // ranks)) for k in range(ranks)]
    for rank, device in enumerate(devices_near(bound, near)):
        assert set(bound[rank]) & set(near[device])
        own, is_bound = own_gpu(rank, bound[rank], node.buses, node.root)
        assert is_bound
        assert near[own] == near[device], "the adapter is near the GPU that the rank uses"


def test_the_variables_lead_each_rank_to_its_adapter(machine: tuple[str, Node]) -> None:
    name, node = machine
    ranks = len(node.gpus)
    for rank in range(ranks):
        variables = adapter_variables(rank, ranks, range(node.cores), {}, node.root)
        if name in MAPPINGS:
            assert variables["MPICH_OFI_NIC_POLICY"] == "USER"
            assert variables["MPICH_OFI_NIC_MAPPING"] == MAPPINGS[name]
            assert variables["NCCL_SOCKET_IFNAME"] == "hsn"
        else:
            assert variables["UCX_NET_DEVICES"] == f"{ADAPTERS[name][rank]}:1"
    fabric = "=" + ",".join(f"mlx5_{k}" for k in range(4, 12))
    assert variables.get("NCCL_IB_HCA") == (fabric if name == "h100" else None), "storage adapters are left out"


def test_a_bound_rank_lets_crays_mpi_decide_by_its_cores(tmp_path: Path) -> None:
    """The other ranks' cores are unknown before MPI starts, so no mapping of the node can be written."""
    node = frontier(tmp_path)
    assert adapter_variables(0, 8, range(8), {}, node.root)["MPICH_OFI_NIC_POLICY"] == "NUMA"
    assert own_gpu(0, range(8), node.buses, node.root) == (4, True)
    assert "MPICH_OFI_NIC_POLICY" not in adapter_variables(0, None, range(64), {}, node.root)


def test_ranks_of_an_h100_node_that_a_launcher_has_bound_use_an_adapter_of_their_socket(tmp_path: Path) -> None:
    node = h100(tmp_path)
    chosen = [
        adapter_variables(rank, 8, range(14 * rank, 14 * rank + 14), {}, node.root)["UCX_NET_DEVICES"]
        for rank in range(8)
    ]
    assert chosen == [f"{name}:1" for name in ADAPTERS["h100"]]


@pytest.mark.parametrize(
    "environ", [{"UCX_NET_DEVICES": "all"}, {"MPICH_OFI_NIC_POLICY": "GPU"}, {"MPICH_OFI_NIC_MAPPING": "0:0"}]
)
def test_what_the_user_has_set_stays(machine: tuple[str, Node], environ: dict[str, str]) -> None:
    variables = adapter_variables(0, 4, range(8), environ, machine[1].root)
    assert not {"UCX_NET_DEVICES", "MPICH_OFI_NIC_POLICY", "MPICH_OFI_NIC_MAPPING"} & set(variables)
    everything = {**environ, "NCCL_IB_HCA": "", "NCCL_SOCKET_IFNAME": ""}
    assert not adapter_variables(0, 4, range(8), everything, machine[1].root)


def test_a_rank_that_sees_only_some_gpus_chooses_no_adapter(tmp_path: Path) -> None:
    node = h100(tmp_path)
    assert not adapter_variables(0, 8, range(112), {"CUDA_VISIBLE_DEVICES": "3"}, node.root)
    assert adapter_variables(0, 8, range(112), {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, node.root)
    (node.root / "dev/nvidia7").unlink()  # a container with seven of the GPUs
    assert not adapter_variables(0, 8, range(112), {}, node.root)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, ["mlx5_0", "mlx5_1"]),
        ({"layer": "Ethernet"}, []),
        ({"gid": "fe80:0000:0000:0001:0000:0000:0000:0001"}, []),  # another subnet, which the first may not reach
        ({"rate": "200 Gb/sec (4X HDR)"}, ["mlx5_0"]),
        ({"state": "2: INIT"}, ["mlx5_0"]),
        ({"rate": ""}, ["mlx5_0"]),
    ],
)
def test_adapters_that_may_not_reach_each_other_are_left_to_the_library(
    tmp_path: Path, changes: dict[str, str], names: list[str]
) -> None:
    ports: list[Any] = [Port("mlx5_0", "pci0000:00", 0), Port("mlx5_1", "pci0000:80", 1, **changes)]
    gpus = [Gpu("0000:1b:00.0", "pci0000:00", 0, "0-3"), Gpu("0000:9b:00.0", "pci0000:80", 1, "4-7")]
    tree = node_tree(tmp_path, 8, "0x10de", gpus, ports, "infiniband")
    assert [adapter.name for adapter in fabric_adapters(tree.root)] == names
    variables = adapter_variables(1, 2, range(8), {}, tree.root)
    assert variables == ({"UCX_NET_DEVICES": "mlx5_1:1"} if len(names) == 2 else {})


def test_a_system_without_gpus_or_adapters_has_no_policy(tmp_path: Path) -> None:
    assert fabric_adapters(tmp_path) == []
    assert gpus_in(tmp_path) == []
    assert adapter_of_each(["0000:1b:00.0"], tmp_path) == []
    assert adapter_variables(0, 1, range(4), {}, tmp_path) == {}


def test_the_map_of_a_dry_run_contains_the_adapter(machine: tuple[str, Node], monkeypatch: pytest.MonkeyPatch) -> None:
    name, node = machine
    monkeypatch.setattr(placement, "one_core_each", lambda **_: list(range(node.cores)))
    monkeypatch.setattr(placement, "gpu_buses", lambda device: node.buses)
    config, ranks = PlaceConfig(kernels="torch", device="cuda"), len(node.gpus)
    head, *lines = placement.map_of_a_node(config, DryRunCommunicator(ranks), None, node.root)[0]
    assert head.split() == ["rank", "GPU", "cores", "adapter"]
    for rank, line in enumerate(lines):
        words = line.split()
        assert words[:3] == [str(rank), str(rank), f"({node.buses[rank]})"]
        assert words[3].startswith(f"{FIRST[name][rank]}-")
        assert words[4] == ADAPTERS[name][rank]


def test_the_result_contains_the_adapter_and_the_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = h100(tmp_path)
    monkeypatch.setattr(facts, "ADAPTER_VARIABLES", {"UCX_NET_DEVICES": "mlx5_9:1"})
    found = facts.adapter_facts({"device_bus": node.buses[2]}, node.root)
    assert found == {"adapter": "mlx5_9", "adapter_variables": {"UCX_NET_DEVICES": "mlx5_9:1"}}
    assert facts.adapter_facts({}, node.root) == {}
    assert facts.adapter_facts({"device_bus": "0000:77:00.0"}, node.root) == {}


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, None),
        ({"PMI_RANK": "9", "PMI_SIZE": "16"}, None),
        ({"PMI_RANK": "9", "PMI_SIZE": "16", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "8"}, (1, 8)),
        ({"OMPI_COMM_WORLD_RANK": "9", "OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, (1, None)),
        ({"SLURM_PROCID": "9", "SLURM_STEP_NUM_TASKS": "16", "SLURM_LOCALID": "1"}, (1, None)),
        (
            {
                "SLURM_PROCID": "9", "SLURM_STEP_NUM_TASKS": "16", "SLURM_LOCALID": "1",
                "SLURM_STEP_TASKS_PER_NODE": "8(x2)", "PMI_RANK": "9", "PMI_SIZE": "16",
            },
            (1, 8),
        ),
        # the variables of a batch script, under another launcher
        ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "PMI_RANK": "9", "PMI_SIZE": "16"}, None),
        (
            {
                "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "5", "SLURM_LOCALID": "1",
                "SLURM_STEP_TASKS_PER_NODE": "3,2",
            },
            (1, None),
        ),
        ({"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}, (1, 8)),
    ],
)  # fmt: skip
def test_the_place_of_a_rank_on_its_node_is_known_before_mpi_starts(environ: dict[str, str], place: Any) -> None:
    assert launcher.local_place(environ) == place


def test_adapters_are_selected_only_for_ranks_on_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = frontier(tmp_path)
    set_ones: dict[str, str] = {}
    monkeypatch.setattr(launch, "ADAPTER_VARIABLES", set_ones)
    monkeypatch.setattr(launch, "local_place", lambda: (1, 8))
    monkeypatch.setattr(launch, "allowed_cores", lambda: list(range(64)))
    monkeypatch.setattr(os, "environ", {})
    launch.select_adapters("cpu", node.root)
    assert os.environ == {}
    launch.select_adapters("auto", node.root)
    assert os.environ == set_ones == {
        "MPICH_OFI_NIC_POLICY": "USER", "MPICH_OFI_NIC_MAPPING": MAPPINGS["frontier"], "NCCL_SOCKET_IFNAME": "hsn",
    }  # fmt: skip
