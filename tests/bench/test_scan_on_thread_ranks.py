"""Test that a scan on virtual ranks names exactly the rank whose kernels differ in the last bit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mxpeak.comm.base import ARRAYS, Communicator
from mxpeak.comm.transports.solo import Solo
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.kernels.contract.lu import PanelSolve
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.layout.cores import short_list
from mxpeak.perf.counts import lu_flops
from mxpeak.perf.sensors.cores import CoreSensors
from mxpeak.spans import Spans
from mxpeak.verbs.scan.config import ScanConfig
from mxpeak.verbs.scan.probes import Size, footprint, probes
from mxpeak.verbs.scan.run import CompleteRounds, Record, measure, result, short
from mxpeak.verbs.scan.units import unit_of
from tests.support.scans import open_bits

SIZE = Size(61, 8, "fp32")
ROUNDS = 3
#: With a tolerance of 1, no rate is slow: only results decide.
CONFIG = ScanConfig(rounds=ROUNDS, warmup="full", tolerance=1.0)
Make = Callable[[int], HostKernels]


class OffByAUnit(HostKernels):
    """Kernels of which one operation, if `when` is true, returns one number that is an ulp too large."""

    def __init__(self, operation: str, when: Callable[[], bool]):
        super().__init__(1, poison=True)
        self.operation, self.when = operation, when

    def subtract_product(self, C: Any, A: Any, B: Any) -> None:
        super().subtract_product(C, A, B)
        self._spoil("subtract_product", C)

    def solve_unit_lower(self, L: Any, B: Any, precision: str) -> PanelSolve:
        how = super().solve_unit_lower(L, B, precision)
        self._spoil("solve_unit_lower", B)
        return how

    def _spoil(self, operation: str, A: Any) -> None:
        if operation == self.operation and A.size and self.when():
            A.view("i4")[-1, -1] += 1  # always away from zero, so that no later error cancels it


def scan(ranks: int, make: Make, size: Size = SIZE, kinds: str = "") -> dict[str, Any]:
    """Return the result of a scan in which rank r has the kernels make(r) and the kind kinds[r]."""

    def body(comm: Communicator) -> Any:
        where = {"rank": comm.rank, "host": f"node{comm.rank:03}", "cores": "0", "device": "cpu", "uuid": None}
        where |= {"shares_cores": False, "unit_ranks": str(comm.rank), "leads_unit": True}
        record = Record(where, kinds[comm.rank] if kinds else "k")
        measure(
            record, size, CONFIG, make(comm.rank), comm, Spans(), CoreSensors([0], "/nowhere"), unit_of("rank", comm)
        )
        return comm.gather_objects(record)

    return result(run_ranks(ranks, body)[0], size, CONFIG)


def sound(rank: int) -> HostKernels:
    return HostKernels(1, poison=True)


def wrong(body: dict[str, Any]) -> list[tuple[int, str, str]]:
    return [(found["rank"], found["result"], found["reason"]) for found in body["wrong"]]


def test_sound_ranks_compute_the_same_bits_in_every_round() -> None:
    body = scan(3, sound)
    assert body["wrong"] == open_bits(body) == []
    bits = [rank["bits"] for rank in body["ranks"]]
    assert bits[0] == bits[1] == bits[2]
    assert all(len(found) == 1 for found in bits[0].values())
    for rank in body["ranks"]:
        assert {name: len(rates) for name, rates in rank["rates"].items()} == dict.fromkeys(
            ("lu", "gemm", "read"), ROUNDS
        )
        assert min(rate for rates in rank["rates"].values() for rate in rates) > 0
    json.dumps(body, allow_nan=False)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_number_that_is_off_by_its_last_bit_is_found_in_it_and_in_the_factors(precision: str) -> None:
    def make(rank: int) -> HostKernels:
        return OffByAUnit("subtract_product", lambda: True) if rank == 2 else sound(rank)

    body = scan(4, make, Size(61, 8, precision))
    assert wrong(body) == [(2, "lu", "differ"), (2, "gemm", "differ")]
    assert body["status"] == "different"
    assert "node002" in body["exclude"]["hosts"]


def test_a_fault_outside_of_products_is_found_in_the_factors_only() -> None:
    body = scan(3, lambda rank: OffByAUnit("solve_unit_lower", lambda: True) if rank == 0 else sound(rank))
    assert wrong(body) == [(0, "lu", "differ")]


def test_a_fault_that_comes_once_is_found_as_bits_that_change() -> None:
    calls = iter(range(10**6))
    body = scan(3, lambda rank: OffByAUnit("subtract_product", lambda: next(calls) == 60) if rank == 1 else sound(rank))
    ((rank, result_, reason),) = wrong(body)
    assert (rank, reason) == (1, "change")
    assert len(body["ranks"][1]["bits"][result_]) == 2


def test_of_two_ranks_that_differ_neither_is_named_and_no_host_is_left_out_for_it() -> None:
    body = scan(2, lambda rank: OffByAUnit("subtract_product", lambda: True) if rank else sound(rank))
    assert body["wrong"] == []
    assert [(found["result"], found["reason"], list(found["ranks"])) for found in open_bits(body)] == [
        ("lu", "no majority", [0, 1]),
        ("gemm", "no majority", [0, 1]),
    ]
    assert body["status"] != "alike"


def test_kinds_may_compute_other_bits() -> None:
    body = scan(4, lambda rank: OffByAUnit("subtract_product", lambda: True) if rank > 1 else sound(rank), kinds="oonn")
    assert body["wrong"] == open_bits(body) == []
    assert [group["ranks"] for group in body["groups"]] == [(0, 1), (2, 3)]


def test_wrong_ranks_are_listed_with_their_hosts() -> None:
    body = scan(5, lambda rank: OffByAUnit("subtract_product", lambda: True) if rank in (1, 3) else sound(rank))
    assert short_list([found["rank"] for found in body["wrong"]]) == "1,3"
    assert {found["host"] for found in body["wrong"]} == {"node001", "node003"}


@pytest.mark.parametrize(("n", "nb"), [(1, 1), (2, 4), (48, 16), (100, 320)])
def test_every_size_has_work_for_the_clock_and_leaves_its_bits(n: int, nb: int) -> None:
    size = Size(n, nb, "fp32")
    for probe in probes(HostKernels(1, poison=True), Solo(ARRAYS), size):
        probe.prepare()
        probe.work()
        first = probe.bits() if probe.bits else None
        probe.prepare()
        probe.work()
        assert first == (probe.bits() if probe.bits else None), probe.name
    assert size.product_flops >= lu_flops(n)


def short_of(n: int | None, lu_s: float, doubtful: str, *, tolerance: float = 0.05, against: str | None = None) -> str:
    """Return the caution of a scan whose LU takes lu_s and whose products take one second, on the faster of two ranks.

    The rates of the measure `doubtful` differ.
    """
    records = [
        Record({}, "k", rates={"lu": [1e9 / lu_s / k], "gemm": [1e9 / k]}, amounts={"lu": 1e9, "gemm": 1e9})
        for k in (1, 2)
    ]
    found = {"slow": [{"measure": doubtful}], "undecided": [{"result": "lu"}], "against": against}
    cautions = short(found, records, ScanConfig(n=n, tolerance=tolerance))
    return " ".join(f"{caution.text}; {caution.hint}" for caution in cautions)


def test_a_larger_order_is_advised_if_slow_ranks_are_found_in_short_rounds() -> None:
    assert short_of(40, 0.002, "lu") == (
        "LU takes 2.00 ms per round, but rates within 5 % need 20 ms or more, because other programs interrupt a rank "
        "for about 1 ms: ranks that are reported as slow may be healthy; use a larger -N, or remove -N to let each "
        "round take about one second"
    )
    assert "need 100 ms or more" in short_of(40, 0.002, "lu", tolerance=0.0)
    assert short_of(40, 0.002, "lu", against="baseline").endswith("; use a baseline with a larger -N")


def test_no_larger_order_is_advised_if_rounds_are_long_or_the_ranks_agree_or_mxpeak_chose_the_order() -> None:
    assert short_of(4000, 0.03, "lu") == ""
    assert short_of(40, 0.002, "gemm") == ""
    assert short_of(None, 0.002, "lu") == ""


def test_a_measurement_states_the_work_whose_size_follows_from_the_order() -> None:
    record = Record({"rank": 0}, "k")
    shared = HostKernels(1, poison=True), Solo(), Spans(), CoreSensors([0], "/nowhere"), unit_of("rank", Solo())
    measure(record, SIZE, CONFIG, *shared)
    assert record.amounts == {"lu": lu_flops(SIZE.n), "gemm": SIZE.product_flops, "read": float(SIZE.read_bytes)}


def test_the_complete_rounds_of_all_ranks_are_known_while_a_scan_runs() -> None:
    def body(comm: Communicator) -> Any:
        record = Record({"rank": comm.rank}, "k")
        rounds = CompleteRounds(comm, record)
        seen = []

        def after_round(record: Record) -> None:
            rounds.add(record)
            seen.append(
                [(each.where["rank"], len(each.rates["lu"]), list(each.bits["gemm"])) for each in rounds.records()]
            )

        shared = Spans(), CoreSensors([0], "/nowhere"), unit_of("rank", comm), None, after_round
        measure(record, SIZE, CONFIG, sound(comm.rank), comm, *shared)
        return seen, record.bits["gemm"]

    (seen, bits), (nothing, _) = run_ranks(2, body)
    assert seen == [[(rank, count, bits[:count]) for rank in range(2)] for count in range(1, ROUNDS + 1)]
    assert nothing == [[]] * ROUNDS, "only rank 0 collects"


def test_a_round_that_is_interrupted_while_it_is_collected_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    comm = Solo()
    record = Record({"rank": 0}, "k", rates={"lu": [1.0, 2.0]}, bits={"lu": ["a", "b"]})
    rounds = CompleteRounds(comm, record)
    rounds.add(record)

    def values() -> Iterator[dict[str, float]]:
        yield {"lu": 3.0}
        raise KeyboardInterrupt

    monkeypatch.setattr(comm, "gather_objects", lambda value: [(*value[:3], values())])
    with pytest.raises(KeyboardInterrupt):
        rounds.add(record)
    (kept,) = rounds.records()
    assert (rounds.count, kept.rates, kept.bits) == (1, {"lu": [2.0]}, {"lu": ["b"]})


def test_memory_is_counted_for_every_rank_of_a_host() -> None:
    one, four = (footprint("fp32", on_gpu=False)(4096, 320, 1, ranks)["total"] for ranks in (1, 4))
    assert four == 4 * one
    assert one > 4 * 4096**2 * 5 // 4, "A, and C of half its sides"
