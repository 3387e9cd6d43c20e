"""Test that ranks that factor panels for their GPUs share the cores of their process row (rocHPL, §III-B)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mxpeak.bench.harness import panel_row
from mxpeak.bench.hpl.config import HplConfig
from mxpeak.bench.hpl_mxp.config import HplMxpConfig
from mxpeak.comm.transports.solo import DryRunCommunicator
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.configs.run import PlaceConfig
from mxpeak.runtime import placement
from tests.support.machine import put

GPU: dict[str, Any] = {"kernels": "torch", "device": "cuda"}


def cores_of(config: PlaceConfig, monkeypatch: pytest.MonkeyPatch, threads: int | None = None) -> list[tuple[Any, int]]:
    """Return the cores and threads of 8 ranks on a node of 64 cores."""
    monkeypatch.setattr(placement, "one_core_each", lambda **_: list(range(64)))
    monkeypatch.setattr(placement, "bind", lambda cores: list(range(64)))

    def body(comm: Any) -> tuple[Any, int]:
        found = placement.bind_to_cores(comm, threads, row=panel_row(config, comm))
        return found.cores, found.threads

    return run_ranks(8, body)


@pytest.mark.parametrize(("grid", "each"), [((4, 2), 15), ((2, 4), 29), ((8, 1), 8)])
def test_fact_gets_the_cores_of_the_ranks_that_wait(
    grid: tuple[int, int], each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = cores_of(HplConfig(grid=(grid,), **GPU), monkeypatch)
    assert [(len(cores), threads) for cores, threads in found] == [(each, each)] * 8
    assert [cores[0] for cores, _ in found] == list(range(0, 64, 8))


def test_a_number_of_threads_set_by_the_user_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {threads for _, threads in cores_of(HplConfig(grid=((4, 2),), **GPU), monkeypatch, 4)} == {4}


@pytest.mark.parametrize(
    "config",
    [
        HplConfig(grid=((1, 8),), **GPU),  # the device's library factors panels
        HplConfig(grid=((4, 2), (2, 4)), **GPU),  # with two grids, a rank has two rows
        HplConfig(grid=((4, 2),), kernels="host", device="cpu"),  # all cores compute all the time
        HplMxpConfig(grid=((4, 2),), **GPU),
    ],
)
def test_elsewhere_each_rank_keeps_to_its_own_share(config: PlaceConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [len(cores) for cores, _ in cores_of(config, monkeypatch)] == [8] * 8


# --- which GPU

GCDS = ["0000:c1:00.0", "0000:c6:00.0", "0000:c9:00.0", "0000:ce:00.0",
        "0000:d1:00.0", "0000:d6:00.0", "0000:d9:00.0", "0000:de:00.0"]  # fmt: skip
#: The NUMA node of each, with sixteen cores.
NUMA = (3, 3, 1, 1, 0, 0, 2, 2)


@pytest.fixture
def frontier(tmp_path: Path) -> Path:
    """Write Frontier's node with the facts of Linux about the locations of GCDs."""
    files = {
        f"sys/bus/pci/devices/{bus}/local_cpulist": f"{16 * node}-{16 * node + 15}\n" for bus, node in zip(GCDS, NUMA)
    }
    return put(tmp_path, files)


def on_the_node(
    monkeypatch: pytest.MonkeyPatch, cores: list[list[int]], shown: list[list[str]], body: Callable[[Any], Any]
) -> list[Any]:
    """Return the results of ranks that a launcher has bound to these cores, and that see these GPUs."""
    own = threading.local()
    monkeypatch.setattr(placement, "one_core_each", lambda **_: cores[own.rank])
    monkeypatch.setattr(placement, "gpu_buses", lambda device: shown[own.rank])
    monkeypatch.setattr(placement, "bind", lambda asked: [])

    def rank(comm: Any) -> Any:
        own.rank = comm.rank
        return body(comm)

    return run_ranks(len(cores), rank)


EIGHTHS = [list(range(8 * rank, 8 * rank + 8)) for rank in range(8)]
WHOLE = [list(range(64))] * 8


@pytest.mark.parametrize(
    ("cores", "shown", "numbers"),
    [
        (WHOLE, [GCDS] * 8, list(range(8))),
        (EIGHTHS, [GCDS] * 8, [4, 5, 2, 3, 6, 7, 0, 1]),
        (EIGHTHS, [[bus] for bus in GCDS], list(range(8))),  # each sees another GPU, its only one
        (EIGHTHS, [[]] * 8, list(range(8))),  # `load_kernels` reports this
    ],
)
def test_each_rank_has_the_gpu_nearest_to_its_cores(
    frontier: Path, cores: list[list[int]], shown: list[list[str]], numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = PlaceConfig(**GPU)
    found = on_the_node(monkeypatch, cores, shown, lambda comm: placement.device_number(config, comm, frontier))
    assert found == numbers
    one = PlaceConfig(kernels="torch", device="cuda:3")
    assert set(on_the_node(monkeypatch, cores, shown, lambda comm: placement.device_number(one, comm, frontier))) == {0}


def test_ranks_that_srun_lets_use_the_whole_node_compute_near_their_gpus(
    frontier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = PlaceConfig(**GPU)

    def body(comm: Any) -> Any:
        number = placement.device_number(config, comm, frontier)
        near = list(range(16 * NUMA[number], 16 * NUMA[number] + 16))
        return placement.bind_to_cores(comm, None, near, number=number)

    placements = on_the_node(monkeypatch, WHOLE, [GCDS] * 8, body)
    assert [(one.device, one.cores[0], one.threads) for one in placements] == [
        (0, 48, 8), (1, 56, 8), (2, 16, 8), (3, 24, 8), (4, 0, 8), (5, 8, 8), (6, 32, 8), (7, 40, 8),
    ]  # fmt: skip
    assert not any(one.crowded or one.shared for one in placements)


def test_ranks_that_share_a_launchers_cores_divide_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """srun --cpu-bind=ldoms binds so: otherwise, each rank would start a thread per core of its NUMA node."""
    bound = [list(range(16 * (rank // 2), 16 * (rank // 2) + 16)) for rank in range(8)]
    found = on_the_node(monkeypatch, bound, [[]] * 8, lambda comm: placement.bind_to_cores(comm, None))
    assert [one.cores for one in found] == EIGHTHS
    crowded = on_the_node(monkeypatch, [[0], [0], [1]], [[]] * 3, lambda comm: placement.bind_to_cores(comm, None))
    assert [one.crowded for one in crowded] == [True, True, False]


def test_a_dry_run_states_the_gpu_and_the_cores_of_each_rank(frontier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = PlaceConfig(**GPU)
    by_srun = on_the_node(
        monkeypatch, EIGHTHS, [GCDS] * 8, lambda comm: placement.map_of_a_node(config, comm, None, frontier)[0]
    )
    assert by_srun[0] == by_srun[7]
    assert by_srun[0][:3] == [
        "rank  GPU               cores",
        "0     4 (0000:d1:00.0)  0-7",
        "1     5 (0000:d6:00.0)  8-15",
    ]
    monkeypatch.setattr(placement, "one_core_each", lambda **_: WHOLE[0])
    monkeypatch.setattr(placement, "gpu_buses", lambda device: GCDS)
    planned, cautions = placement.map_of_a_node(config, DryRunCommunicator(8), None, frontier)
    assert not cautions
    assert planned[1:3] == ["0     0 (0000:c1:00.0)  48-55", "1     1 (0000:c6:00.0)  56-63"]
    host, _ = placement.map_of_a_node(PlaceConfig(kernels="host", device="cpu"), DryRunCommunicator(2))
    assert host == ["rank  GPU  cores", "0     -    0-31", "1     -    32-63"]
    _, (crowded,) = placement.map_of_a_node(PlaceConfig(kernels="host", device="cpu"), DryRunCommunicator(65))
    assert "65 ranks on a node share fewer cores" in crowded.text
