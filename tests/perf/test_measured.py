"""Test that a machine from invented measurements has their values, and that the model runs on it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from mxpeak.errors import UsageError
from mxpeak.perf.simulation.lu import LuRun
from mxpeak.perf.simulation.machine_from_measurements import Layout, machine_table, panel_flops, to_toml
from mxpeak.perf.simulation.machines import Machine, find_machine, machine_from
from mxpeak.perf.simulation.predict import simulate_lu

NBS = (64, 128, 256, 512)
EDGE, SYNC, EXCHANGE, TURN = 24.0, 3e-6, 9e-6, 6e-5


def gemm_rate(m: float, k: float) -> float:
    return (90e9 + 0.02e9 * k) * (m / (m + EDGE)) ** 2


def fact_rate(nb: float) -> float:
    return 10e9 + 0.05e9 * nb


def records(ranks: int = 2) -> list[dict[str, Any]]:
    """Return measurements of a machine that contain every value."""
    rates = {"read": 20e9, "cast": 15e9, "generate": 1e9, "solve": 2e9, "copy": 5e9, "sweep": 16e9}
    entries: list[dict[str, Any]] = [{"name": name, "rate": rate} for name, rate in rates.items()]
    entries.append({"name": "rows", "bytes": 8e6, "seconds": 5 * 8e6 / 20e9})
    for k in NBS:
        for name in ("fp64", "bf16"):
            entries.append(
                {"name": "gemm", "precision": name, "m": 2048, "n": 2048, "k": k, "rate": gemm_rate(2048, k)}
            )
        entries += [
            {"name": "trsm", "precision": name, "m": 2048, "k": k, "rate": 3e8 * k} for name in ("fp64", "fp32")
        ]
        entries.append({"name": "factor", "precision": "fp32", "k": k, "rate": 1e8 * k})
        for m in (4096, 4 * k):
            seconds = panel_flops(m, k) / fact_rate(k) + k * SYNC
            entries.append({"name": "fact", "precision": "fp64", "m": m, "k": k, "seconds": seconds})
    for m in (256, 512):
        entries.append({"name": "gemm", "precision": "fp64", "m": m, "n": m, "k": 256, "rate": gemm_rate(m, 256)})
    if ranks > 1:
        entries += [{"name": "pingpong", "bytes": size, "seconds": 2e-6 + size / 8e9} for size in (8, 2**20, 2**23)]
        entries.append({"name": "pair", "k": 256, "seconds": EXCHANGE})
        entries += [{"name": "turn", "k": 512, "seconds": seconds} for seconds in (2 * TURN, TURN)]
        entries += [
            {"name": "bcast", "bcast": name, "bytes": 2**23, "seconds": t * 2**23 / 8e9}
            for name, t in (("lib", 1.5), ("ilib", 3.0), ("1ring", 1.0))
        ]
    return entries


def layout(ranks: int = 2) -> Layout:
    return Layout(title="invented", ranks=ranks, threads=1, ranks_per_node=ranks, cores=2, memory_bytes=8e9, steps=4)


def machine(ranks: int = 2) -> Machine:
    return machine_from("tuned", {"tuned": machine_table(records(ranks), layout(ranks))}, "here")


def test_what_was_measured_is_what_the_machine_has() -> None:
    measured = machine()
    assert measured.edge == pytest.approx(EDGE, rel=1e-6)
    for k in NBS:
        assert measured.gemm["fp64"](k) == pytest.approx(90e9 + 0.02e9 * k, rel=1e-6)
        assert measured.fact["fp64"](k) == pytest.approx(fact_rate(k), rel=1e-6)
    assert measured.sync_s == pytest.approx(SYNC, rel=1e-6)
    assert measured.exchange_s == pytest.approx(EXCHANGE - (2e-6 + 2 * 8 * 256 / 8e9), rel=1e-3)
    assert measured.turn_s == TURN
    assert measured.row_passes == pytest.approx(5.0)
    assert measured.memory_share == pytest.approx(0.8)
    assert (measured.refine_steps, measured.extra_passes) == (6, 2)
    assert measured.network.local_rate == pytest.approx(8e9, rel=1e-3)
    assert measured.network.latency_s == pytest.approx(2e-6, rel=1e-3)
    assert (measured.network.lib_passes, measured.network.ilib_passes) == (
        pytest.approx(1.5, rel=1e-2),
        pytest.approx(3.0, rel=1e-2),
    )


def test_one_rank_sends_nothing() -> None:
    assert machine(1).network.latency_s == 0.0
    assert machine(1).exchange_s == 0.0
    assert machine(1).turn_s is None


@pytest.mark.parametrize("name", ["read", "generate", "gemm", "trsm", "factor", "fact", "pingpong", "copy", "sweep"])
def test_what_was_not_measured_yet_is_named(name: str) -> None:
    some = [r for r in records() if r["name"] != name]
    with pytest.raises(UsageError, match=name):
        machine_from("tuned", {"tuned": machine_table(some, layout())}, "here")


def test_the_table_is_a_file_that_machine_takes(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(to_toml("tuned", machine_table(records(), layout())), encoding="utf-8")
    assert find_machine(str(path)) == machine()
    assert "source" in str(tomllib.loads(path.read_text(encoding="utf-8"))["tuned"]["gemm"]["fp64"])


def test_the_best_of_repeated_measurements_counts() -> None:
    slower = [{**r, "rate": r["rate"] / 2} for r in records() if "rate" in r]
    assert machine_from("tuned", {"tuned": machine_table([*slower, *records()], layout())}, "here") == machine()


@pytest.mark.parametrize("benchmark", ["hpl", "hpl-mxp"])
def test_a_run_on_one_rank_takes_the_sum_of_its_kernels(benchmark: str) -> None:
    """If no work overlaps and no messages are sent, the phases add up to the total."""
    low = "fp64" if benchmark == "hpl" else "bf16"
    forecast = simulate_lu(benchmark, LuRun(n=4096, nb=256, P=1, Q=1, precision=low), machine(1))
    assert sum(forecast.phases.values()) == pytest.approx(forecast.time_s, rel=1e-9)
    assert forecast.phases["wait"] == pytest.approx(0.0, abs=1e-9 * forecast.time_s)
    assert forecast.phases["factor"] > 0.0


def test_panels_of_a_cpu_cost_its_own_time() -> None:
    """The same machine with free panels is faster on one rank by the time of the panels."""
    run = LuRun(n=4096, nb=256, P=1, Q=1)
    slow, table = machine(1), machine_table(records(1), layout(1))
    table["fact"] = {"fp64": 1e17}
    table["panel"] = {**table["panel"], "sync_s": 0.0}
    fast = machine_from("tuned", {"tuned": table}, "here")
    with_panels, without = (simulate_lu("hpl", run, one) for one in (slow, fast))
    assert with_panels.time_s - without.time_s == pytest.approx(with_panels.phases["factor"], rel=1e-6)
