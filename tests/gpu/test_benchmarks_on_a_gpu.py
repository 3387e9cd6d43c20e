"""Run the benchmarks as commands on a GPU: all checks pass, with the iterations of the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(os.environ.get("TEST_DEVICE") != "cuda", reason="for a GPU: TEST_DEVICE=cuda")

CUBE = "--nx 32 --ny 32 --nz 32 --mode explore --rt 0.05"
COMMANDS = {
    "hpl": "-N 2000",
    "hpl-mxp": "-N 2000",
    "hpg-mxp": f"{CUBE} --iterations 50",
    "hpcg": CUBE,
    "norms": "-N 2001 --kind all --dtype float32,complex64",
}
#: The allowed relative difference of iterations, if it is not one iteration. HPG-MxP's mixed solver restarts at the
#: accuracy of fp32, and the 50 iterations of HPCG exceed the accuracy of fp64: rounding decides there.
SPREAD = {"hpl-mxp": 0.0, "double": 0.0, "mixed": 0.15, "hpcg": 0.1}


def start(name: str, where: str, *flags: str) -> subprocess.Popen[str]:
    """Start the command."""
    command = [sys.executable, "-m", "mxpeak", "run", name, *COMMANDS[name].split(), "--device", where, *flags]
    command += ["--warmup", "none", "--json", "-", "--quiet"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def results(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    """Return the results of the command."""
    try:
        output, complaints = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, complaints
    body = json.loads(output)
    return list(body.get("results", [body]))


def iterations(name: str, validation: dict[str, Any]) -> dict[str, int]:
    """Return the iterations of each solver."""
    if name == "hpg-mxp":
        return {kind: validation[f"{kind}_iterations"] for kind in ("double", "mixed")}
    return {name: validation["iterations"]} if validation["iterations"] is not None else {}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_benchmark_is_valid_after_the_cpus_iterations(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    on_gpu = start(name, "cuda")
    on_cpu = start(name, "cpu", "--kernels", "host", "--threads", "2") if name != "norms" else None
    found = results(on_gpu)
    exact = results(on_cpu) if on_cpu else found
    for result, other in zip(found, exact, strict=True):
        assert (result["status"], result["validation"]["passed"]) == ("valid", True)
        assert result["software"]["kernels"] == "torch"
        assert result["validation"].get("lu_proof", {"passed": True})["passed"]
        expected = iterations(name, other["validation"])
        for solver, count in iterations(name, result["validation"]).items():
            assert abs(count - expected[solver]) <= max(1, SPREAD[solver] * expected[solver]), solver


@pytest.mark.parametrize(("benchmark", "factors"), [("hpl-mxp", "lu"), ("hpl", "hpl")])
def test_a_scan_gives_the_same_bits_in_every_round(tmp_path: Path, benchmark: str, factors: str) -> None:
    command = [sys.executable, "-m", "mxpeak", "scan", "--ranks", "1", "--device", "cuda", "-N", "5000", "--json", "-"]
    command += ["--benchmark", benchmark]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    (rank,) = json.loads(run.stdout)["ranks"]
    assert {name: len(bits) for name, bits in rank["bits"].items()} == {factors: 1, "gemm": 1}
    assert all(0.0 < residual < 1.0 for rounds in rank.get("residuals", {}).values() for residual in rounds)
    assert rank["device"] == "cuda:0"
