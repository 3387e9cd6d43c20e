"""Test that the order of a --quick run depends only on the class of the machine."""

from __future__ import annotations

from dataclasses import replace
from itertools import count, product
from typing import Any

import pytest

from mxpeak.bench import lu, quick
from mxpeak.bench.hpl import run as hpl
from mxpeak.bench.hpl.config import HplConfig
from mxpeak.bench.hpl_mxp import run as hpl_mxp
from mxpeak.bench.hpl_mxp.config import HplMxpConfig
from mxpeak.bench.limits import Reading
from mxpeak.bench.quick import MachineClass
from mxpeak.comm.transports.solo import DryRunCommunicator, Solo
from mxpeak.configs.lu import LuCase
from mxpeak.perf.counts import hpl_memory_bytes
from mxpeak.runtime.memory import Budget

GIB = 2**30
BLOCKS = (64, 96, 128, 192, 256, 384, 512)


def footprint(n: int, nb: int, P: int, Q: int) -> dict[str, int]:
    return hpl_memory_bytes(n, nb, P, Q)


def order(machine: MachineClass, memory: int, nb: int = 192, free: float = 0.9) -> int:
    budget = Budget(int(free * memory), int(free * memory), 1, total=memory)
    return lu._quick_n(machine, budget, footprint, nb, LuCase(n=1, nb=nb, P=1, Q=1))[0]


def test_the_order_of_a_server_takes_seconds_and_is_a_multiple_of_usual_blocks() -> None:
    assert order(MachineClass(cores=2), 64 * GIB) == 9216
    for cores, speed, nb in product(range(1, 129), (1.0, 2.0, 4.0), BLOCKS):
        n = order(MachineClass(cores=cores, speed=speed), 512 * GIB, nb)
        assert n == order(MachineClass(cores=cores, speed=speed), 512 * GIB, 320), "tune may change NB"
        assert n % nb == 0
        assert 2 / 3 * n**3 <= quick.HOST_S * cores * speed * quick.CORE_RATE
    orders = [order(MachineClass(cores=cores), 512 * GIB) for cores in range(1, 129)]
    assert orders == sorted(orders)
    assert orders[-1] == quick.HOST_MAX_N


@pytest.mark.parametrize(
    "machine", [MachineClass(cores=2), MachineClass(on_gpu=True), MachineClass(on_gpu=True, slow_fp64=True)]
)
def test_the_order_does_not_depend_on_what_else_fills_the_memory(machine: MachineClass) -> None:
    for memory in (2**k * GIB for k in range(8)):
        assert len({order(machine, memory, free=free) for free in (0.95, 0.8, 0.6, 0.4)}) == 1


def test_a_small_memory_is_filled_by_a_quarter_at_most() -> None:
    for memory in (GIB, GIB // 2, GIB // 16):
        n = order(MachineClass(cores=64), memory)
        assert hpl_memory_bytes(n, 192, 1, 1)["total"] <= memory / 4
    assert order(MachineClass(cores=64), GIB // 16) == 960, "less than a step is used as it is"


def test_gpus_are_filled_by_their_memory_and_less_where_fp64_is_slow() -> None:
    fast, slow = (order(MachineClass(on_gpu=True, slow_fp64=slow), 80 * GIB, nb=1024) for slow in (False, True))
    assert (fast, slow) == (49152, 21504)
    assert order(MachineClass(on_gpu=True), 640 * GIB, nb=1024) == quick.GPU_MAX_N
    assert order(MachineClass(reference=True, cores=64), 64 * GIB) == quick.REFERENCE_N


def test_too_little_free_memory_makes_the_order_smaller_and_says_so() -> None:
    budget = Budget(GIB // 4, GIB // 4, 1, total=64 * GIB)
    n, (caution,) = lu._quick_n(MachineClass(cores=2), budget, footprint, 192, LuCase(n=1, nb=192, P=1, Q=1))
    assert n == 4608
    assert caution.text.startswith(
        "--quick uses N = 9216 here, which takes 716 MiB per node, but 256 MiB can be used; N = 4608"
    )


CONFIGS: dict[str, tuple[Any, Any]] = {
    "hpl": (hpl, HplConfig(quick=True, device="cpu", kernels="host", threads=1)),
    "hpl-mxp": (hpl_mxp, HplMxpConfig(quick=True, device="cpu", kernels="host", threads=1, precision=("fp32",))),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_machine_that_measures_other_rates_has_the_same_order_and_its_dry_run_says_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quick, "CORE_RATE", 1e4)
    monkeypatch.setattr(quick, "HOST_STEP", 4)
    rates = count(1)
    monkeypatch.setattr(lu.LuBench, "_gemm_reading", lambda *_: Reading(10.0 ** next(rates), 1.0, 1.0, 0.0))
    module, config = CONFIGS[name]
    config = replace(config, nb=(4,))
    orders = [result.problem["n"] for _ in range(3) for result in module.run(config, Solo())]
    assert len(orders) == 3
    assert set(orders) == {48 if name == "hpl" else 60}
    assert f"N {orders[0]} " in module.dry_run(config, Solo(), {}).text
    assert f"N {orders[0]} " not in module.dry_run(config, DryRunCommunicator(8), {}).text, (
        "more cores have another class"
    )


def test_a_dry_run_plans_the_order_of_the_run_if_its_cases_differ_in_memory() -> None:
    """The fp64 case takes twice the memory of the fp32 case, so it determines the order of both."""
    places: Any = {"device": "cpu", "kernels": "host", "threads": 1, "warmup": "none"}
    config = HplMxpConfig(**places, nb=(16,), precision=("fp32", "fp64"), mem="1MiB")
    (n,) = {result.problem["n"] for result in hpl_mxp.run(config, Solo())}
    plan = hpl_mxp.dry_run(config, Solo(), {})
    assert plan.fits
    assert plan.text.count(f"N {n} ") == 2
