"""Compare the bytes of simulated HPG-MxP and HPCG with results by hand, and test that less is never faster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mxpeak.layout.stencil import Box, process_grid
from mxpeak.perf.simulation.machines import find_machine
from mxpeak.perf.simulation.sparse import SparseForecast, SparseRun, halo_s, simulate_sparse, variation

FRONTIER = find_machine("frontier")


def run_of(nodes: int = 1, nx: int = 128, **settings: object) -> SparseRun:
    return SparseRun(box=Box.of(0, (nx, nx, nx), process_grid(8 * nodes)), **settings)  # type: ignore[arg-type]


def rate(run: SparseRun, **changes: object) -> float:
    return simulate_sparse(run, replace(FRONTIER, **changes)).rate_flops  # type: ignore[arg-type]


def test_one_rank_moves_the_bytes_that_are_written_down() -> None:
    """A step of CG has sweeps of 27·12 + 80 bytes per row, two of them from zero, and a product of 27·12 + 16."""
    box = Box(64, 64, 64)
    machine = replace(FRONTIER, launch_s=0.0, memory_share=1.0)
    forecast = simulate_sparse(SparseRun(box=box, benchmark="hpcg", iterations=1, low="fp64"), machine)
    n = 64**3
    spmv = n * (27 * 12 + 16) / machine.memory_rate
    assert forecast.phases["spmv"] == pytest.approx(spmv)
    assert forecast.phases["ddot"] == pytest.approx(5 * n * 8 / machine.memory_rate)
    assert forecast.phases["waxpby"] == pytest.approx(9 * n * 8 / machine.memory_rate)
    full, half = 27 * 12 + 80, 27 * 6 + 80
    level = half + 3 * full + 27 * 12 / 8 + 1 + 8 + 28 / 8  # three sweeps and one from zero, coarse residual, and back
    rows = [n, n // 8, n // 64]
    mg = sum(rows) * level + n // 512 * (half + full)
    assert forecast.phases["mg"] == pytest.approx(mg / machine.memory_rate)
    assert forecast.exposed_s == 0.0


def test_phases_sum_to_the_time() -> None:
    forecast: SparseForecast = simulate_sparse(run_of(8), FRONTIER)
    assert sum(forecast.phases.values()) == pytest.approx(forecast.time_s)
    assert set(forecast.phases) == {"gs", "spmv", "ortho", "restriction", "prolongation", "update"}
    assert 0.0 < forecast.exposed < 1.0


def test_less_is_never_faster() -> None:
    run = run_of(8)
    assert rate(run, memory_rate=2e12) > rate(run) > rate(run, memory_rate=1e12)
    assert rate(run) > rate(replace(run, low="fp64"))
    assert rate(replace(run, aware=True)) >= rate(run)
    assert rate(run) > rate(replace(run, slow={5: 0.5}))
    slow_links = replace(FRONTIER.network, nic_rate=1e8, latency_s=1e-3)
    assert rate(run) > rate(run, network=slow_links)


def test_a_larger_machine_is_never_more_efficient() -> None:
    by_rank = [rate(run_of(nodes)) / nodes for nodes in (1, 8, 64, 1024, 9408)]
    assert by_rank == sorted(by_rank, reverse=True)


def test_halos_within_a_node_take_no_port() -> None:
    one_node, eight = Box(64, 64, 64, 2, 2, 2, 1, 1, 1), Box(64, 64, 64, 4, 4, 4, 1, 1, 1)
    inside = halo_s(one_node, 4, FRONTIER, aware=True)
    assert inside == pytest.approx(FRONTIER.network.local_latency_s + one_node.halo * 4 / FRONTIER.network.local_rate)
    assert halo_s(eight, 4, FRONTIER, aware=True) > inside
    assert halo_s(eight, 4, FRONTIER, aware=False) > halo_s(eight, 4, FRONTIER, aware=True)
    assert halo_s(Box(64, 64, 64), 4, FRONTIER, aware=False) == 0.0


def test_sums_wait_for_the_last_rank_and_for_longer_among_more() -> None:
    calm = replace(FRONTIER, jitter=0.0)
    for nodes in (1, 64, 9408):
        run = run_of(nodes)
        late, punctual = simulate_sparse(run, FRONTIER), simulate_sparse(run, calm)
        delay = FRONTIER.jitter * sum(1 / i for i in range(1, run.ranks + 1))  # the mean of the largest of R
        computing = punctual.time_s - punctual.exposed_s
        assert late.time_s - punctual.time_s == pytest.approx(delay * computing, rel=0.05)
        assert late.phases["gs"] == punctual.phases["gs"], "the sums wait, and nothing else"


def test_the_slowest_of_many_devices_is_slower() -> None:
    slower = [variation(FRONTIER, ranks) for ranks in (1, 8, 1000, 75264, 10**6)]
    assert slower == sorted(slower)
    assert slower[0] == 0.0
    assert slower[3] == slower[4] == FRONTIER.spread[0]
