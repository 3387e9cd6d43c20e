"""Test that scans with HPL find wrong results by the residual, and different results by comparing bits."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

from mxpeak.bench.hpl.config import THRESHOLD
from mxpeak.comm.base import Communicator
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.errors import UsageError
from mxpeak.kernels.choose import choose
from mxpeak.kernels.contract import Kernels
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.perf.counts import hpl_memory_bytes
from mxpeak.perf.sensors.cores import CoreSensors
from mxpeak.report.scan_text import scan_text
from mxpeak.report.scans import result_of_scan, scan_mismatch
from mxpeak.spans import Spans
from mxpeak.verbs.scan import probes
from mxpeak.verbs.scan.config import ScanConfig
from mxpeak.verbs.scan.decide import RankRates, decide
from mxpeak.verbs.scan.probes import Size, footprint
from mxpeak.verbs.scan.run import Record, measure, result
from mxpeak.verbs.scan.units import Unit
from tests.support.scans import open_bits

ROUNDS = 3
#: Rates do not decide: no rate is below 0.
CONFIG = ScanConfig(rounds=ROUNDS, unit="node", tolerance=1.0)


class Spoiled(HostKernels):
    """Kernels whose products have a wrong last entry; `spoil` changes its bits."""

    def __init__(self, spoil: Callable[[int], int]):
        super().__init__(1, poison=True)
        self._spoil = spoil

    def subtract_product(self, C: Any, A: Any, B: Any) -> None:
        super().subtract_product(C, A, B)
        if C.size:
            bits = C[-1:, -1:].copy().view("i8")
            C[-1, -1] = (bits ^ self._spoil(int(bits[0, 0]))).view("f8")[0, 0]


LAST_BIT = 1
#: The lowest bit of the exponent: the number is doubled or halved.
EXPONENT = 1 << 52


def scan(
    nodes: int, make: Callable[[int], Kernels], of_node: int = 2, n: int = 61, *, by_rank: bool = False
) -> dict[str, Any]:
    """Return a scan of nodes with HPL; all ranks of node k have the kernels make(k), or rank k if `by_rank`."""
    size = Size(n, 8, "fp64", of_node, "hpl")

    def body(comm: Communicator) -> Any:
        node = comm.rank // of_node
        own = comm.split(node, comm.rank)
        assert own is not None
        first = node * of_node
        where = {"rank": comm.rank, "host": f"node{node}", "boot": f"{node}", "cores": "0", "device": "cpu"}
        where |= {"model": "Invented 9000", "threads": 1, "uuid": None, "shares_cores": False}
        where |= {"unit_ranks": f"{first}-{first + of_node - 1}", "leads_unit": own.rank == 0}
        record, unit = Record(where, "k"), Unit(own, where["unit_ranks"], of_node)
        kernels = make(comm.rank if by_rank else node)
        measure(record, size, CONFIG, kernels, comm, Spans(), CoreSensors([0], "/nowhere"), unit)
        return comm.gather_objects(record)

    return {**result(run_ranks(nodes * of_node, body)[0], size, CONFIG), "warnings": []}


def sound(node: int = 0) -> HostKernels:
    return HostKernels(1, poison=True)


def wrong(body: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(found["host"], found["result"], found["reason"]) for found in body["wrong"]]


@pytest.mark.parametrize("of_node", [1, 2, 4])
def test_sound_nodes_pass_the_check_with_the_same_bits(of_node: int) -> None:
    body = scan(3, sound, of_node)
    assert wrong(body) == open_bits(body) == []
    assert body["problem"]["benchmark"] == "hpl"
    assert body["problem"]["threshold"] == THRESHOLD
    for rank in body["ranks"]:
        assert len(rank["rates"]["hpl"]) == len(rank["residuals"]["hpl"]) == ROUNDS
        assert all(0.0 < residual < 1.0 for residual in rank["residuals"]["hpl"])
        assert rank["bits"] == body["ranks"][0]["bits"] if rank["leads_unit"] else True
    stored = json.loads(json.dumps(body, allow_nan=False))
    assert scan_mismatch(stored) == ""
    assert result_of_scan(stored)["result"]["rate_flops"] == body["median"]["hpl"]
    text = scan_text(body)
    assert "HPL of N 61 NB 8 fp64" in text
    assert "scaled residual of HPL: 0.0" in text
    assert "limit 16" in text


def test_torch_kernels_of_several_process_rows_compute_hpl() -> None:
    body = scan(2, lambda node: choose("torch", "cpu", 1, (0,), panels=True), of_node=4)
    assert wrong(body) == open_bits(body) == []
    assert all(0.0 < residual < 1.0 for rank in body["ranks"] for residual in rank["residuals"]["hpl"])


def test_a_wrong_last_bit_passes_the_check_and_differs() -> None:
    body = scan(3, lambda node: Spoiled(lambda bits: LAST_BIT) if node == 1 else sound())
    assert wrong(body) == [("node1", "hpl", "differ"), ("node1", "gemm", "differ")]
    assert all(residual < 1.0 for rank in body["ranks"] for residual in rank["residuals"]["hpl"])
    assert body["exclude"]["hosts"] == ["node1"]


def test_the_wrong_rank_of_a_node_is_named() -> None:
    """The wrong entry is in the last column of its rank, so it spreads to the solution, but not to other columns."""
    body = scan(3, lambda rank: Spoiled(lambda bits: LAST_BIT) if rank == 3 else sound(), by_rank=True)
    assert wrong(body) == [("node1", "hpl", "differ"), ("node1", "gemm", "differ")]
    assert [found.get("ranks") for found in body["wrong"]] == [[3], [3]]
    assert "results of GEMM differ from those of the majority (rank 3)" in " ".join(scan_text(body).split())
    assert scan_mismatch(json.loads(json.dumps(body))) == ""


def test_a_wrong_factor_names_its_rank_although_the_solution_spreads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    factorize = probes.factorize_with_pivoting

    def flipped(A: Any, *arguments: Any) -> int:
        singular = factorize(A, *arguments)
        if threading.current_thread().name.endswith("wrong"):
            A.local.view("i8")[-1, -1] ^= LAST_BIT
        return singular

    def make(rank: int) -> Kernels:
        threading.current_thread().name += "wrong" * (rank == 5)
        return sound()

    monkeypatch.setattr(probes, "factorize_with_pivoting", flipped)
    body = scan(3, make, by_rank=True)
    assert [(found["host"], found["result"], found["ranks"]) for found in body["wrong"]] == [("node2", "hpl", [5])]


def test_an_intermittent_fault_of_a_rank_is_named() -> None:
    calls = iter(range(10**6))
    spoiled = Spoiled(lambda bits: LAST_BIT * (next(calls) == 20))
    body = scan(3, lambda rank: spoiled if rank == 2 else sound(), by_rank=True)
    assert {(host, reason) for host, _, reason in wrong(body)} == {("node1", "change")}
    assert all(found.get("ranks", [2]) == [2] for found in body["wrong"])


def test_without_a_majority_no_rank_of_a_node_is_named() -> None:
    body = scan(1, lambda rank: Spoiled(lambda bits: EXPONENT) if rank == 1 else sound(), by_rank=True)
    assert [(found["reason"], found.get("ranks")) for found in body["wrong"]] == [("residual", None)]


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_a_large_error_fails_the_check_with_any_number_of_peers(nodes: int) -> None:
    body = scan(nodes, lambda node: Spoiled(lambda bits: EXPONENT) if node == 0 else sound())
    assert ("node0", "hpl", "residual") in wrong(body)
    assert {host for host, *_ in wrong(body)} == {"node0"}
    assert [found for found in open_bits(body) if found["result"] == "hpl"] == [], "the check has decided"
    assert body["status"] == "different"
    assert body["actions"][0] == {"host": "node0", "severity": "replace", "reasons": body["actions"][0]["reasons"]}
    assert "WRONG  node node0 (ranks 0-1): HPL fails its check: scaled residual" in scan_text(body)


def test_a_result_that_is_not_finite_fails_the_check() -> None:
    body = scan(2, lambda node: Spoiled(lambda bits: bits ^ (0x7FF8 << 48)) if node == 1 else sound())
    assert ("node1", "hpl", "residual") in wrong(body)
    assert None in body["ranks"][2]["residuals"]["hpl"]
    stored = json.loads(json.dumps(body, allow_nan=False))
    assert scan_mismatch(stored) == ""
    assert "not finite" in scan_text(stored)


def test_one_round_that_fails_the_check_is_enough() -> None:
    residuals = [[0.01] * 5, [0.01, 0.01, 16.0, 0.01, 0.01], [math.nan] * 5, [0.01] * 5]
    ranks = [RankRates(k, "k", {}, {"hpl": ["a"] * 5}, {"hpl": own}) for k, own in enumerate(residuals)]
    assert [(found.rank, found.reason) for found in decide(ranks, 0.05).wrong] == [(1, "residual"), (2, "residual")]


@pytest.mark.parametrize(
    ("unit", "given", "expected"),
    [
        ("rank", None, "hpl-mxp"), ("device", None, "hpl-mxp"), ("node", None, "hpl"), ("group", None, "hpl"),
        ("node", "hpl-mxp", "hpl-mxp"), ("rank", "hpl", "hpl"),
    ],
)  # fmt: skip
def test_nodes_and_groups_run_hpl_by_default(unit: str, given: str | None, expected: str) -> None:
    config = ScanConfig(unit=unit, benchmark=given)
    assert config.factored == expected
    assert config.natively(["bf16"])["precision"] == ("fp64" if expected == "hpl" else "bf16")
    assert config.on_chip("H200") == (
        {"nb": 512, "precision": "fp64"} if expected == "hpl" else {"nb": 1024, "precision": "fp16"}
    )


def test_hpl_has_one_precision() -> None:
    ScanConfig(unit="node", precision="fp64").check_precision()
    ScanConfig(unit="rank", precision="bf16").check_precision()
    with pytest.raises(UsageError, match=r"--precision bf16 .*HPL.*fp64; use --benchmark hpl-mxp"):
        ScanConfig(unit="node", precision="bf16").check_precision()


def test_the_memory_of_hpl_is_counted() -> None:
    need = footprint("fp64", 4, "hpl", on_gpu=False)(4096, 192, 1, 8)
    assert need["matrix"] == 2 * hpl_memory_bytes(4096, 192, 1, 4)["matrix"], "two nodes of four ranks"
    assert need["total"] > need["matrix"] + 2 * hpl_memory_bytes(4096, 192, 1, 4)["buffers"], "and the products"
