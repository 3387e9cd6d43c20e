"""Every benchmark whole on torch's kernels, on one rank and on ranks that torch.distributed or MPI connects.

On the CPU: what a GPU adds is other forms of the same kernels (held against the reference by themselves) and its speed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from mxpeak.bench.registry import BENCHMARKS
from mxpeak.comm.solo import Solo
from mxpeak.records import Result

#: Settings of small problems: ragged blocks, several levels, a matrix of two structures.
CASES: dict[str, dict[str, Any]] = {
    "hpl": {"n": (211,), "nb": (32,)},
    "hpl-mxp": {"n": (211,), "nb": (32,), "precision": ("fp16",)},
    "hpg-mxp": {"nx": 16, "ny": 8, "nz": 8, "rt": 0.01, "precision": "bf16", "mode": "explore", "iterations": 20},
    "hpcg": {"nx": 16, "ny": 8, "nz": 8, "rt": 0.01, "mode": "explore"},
    "norms": {"n": (301,), "kind": ("all",), "structure": ("general", "hermitian"), "dtype": ("complex64",)},
}


def run(name: str, kernels: str) -> list[Result]:
    """The benchmark in this process."""
    config = BENCHMARKS[name].config(kernels=kernels, device="cpu", threads=1, warmup="none", **CASES[name])
    found: list[Result] = import_module(f"mxpeak.bench.{name.replace('-', '_')}.run").run(config, Solo())
    return found


def start(name: str, *asked: str, cwd: Path) -> list[dict[str, Any]]:
    """The benchmark as a command, on ranks of its own."""
    flags = []
    for key, value in CASES[name].items():
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        flags += [f"--{key}", text]
    command = [sys.executable, "-m", "mxpeak", "run", name, *flags, "--threads", "1", "--warmup", "none", *asked]
    done = subprocess.run(
        [*command, "--kernels", "torch", "--device", "cpu", "--json", "-", "--quiet"],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    return list(body.get("results", [body]))


def check_alike(name: str, found: dict[str, Any], host: dict[str, Any]) -> None:
    """The same problem, and the same answer but for the order of sums."""
    assert found["status"] == "valid"
    ours, theirs = found["validation"], host["validation"]
    assert ours["passed"]
    assert {found["software"]["kernels"], host["software"]["kernels"]} == {"torch", "host"}
    if name == "norms":
        for kind, value in theirs["values"].items():
            # Sums of n·n terms in another order: 10·n·eps of the type is the benchmark's own bound.
            assert ours["values"][kind] == pytest.approx(value, rel=10 * 301 * 2.0**-23), kind
    elif name == "hpl":
        assert ours["residual"] < 16.0
    elif name == "hpl-mxp":
        assert abs(ours["iterations"] - theirs["iterations"]) <= 1
        assert ours["lu_proof"]["passed"]
    elif name == "hpg-mxp":
        for key in ("mixed_iterations", "double_iterations"):
            assert abs(ours[key] - theirs[key]) <= 1
    else:  # so small a box is solved after ten steps: the others go on by forty orders, and rounding steers them
        assert abs(ours["iterations"] - theirs["iterations"]) <= 0.05 * theirs["iterations"]


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[str, list[Result]]:
    """A benchmark, and what the host's kernels make of it."""
    return request.param, run(request.param, "host")


def test_one_rank_gives_what_the_host_gives(case: tuple[str, list[Result]]) -> None:
    name, host = case
    for found, same in zip(run(name, "torch"), host, strict=True):
        check_alike(name, found.as_dict(), same.as_dict())


@pytest.mark.parametrize("comm", ["torch", "mpi"])
def test_two_ranks_give_what_the_host_gives(case: tuple[str, list[Result]], comm: str, tmp_path: Path) -> None:
    name, host = case
    found = start(name, "--ranks", "2", "--comm", comm, cwd=tmp_path)
    for one, same in zip(found, host, strict=True):
        assert one["launch"]["ranks"] == 2
        if name in ("hpl", "hpl-mxp", "norms"):  # of the others a rank has a box of its own
            check_alike(name, one, same.as_dict())
        else:
            assert one["validation"]["passed"]
