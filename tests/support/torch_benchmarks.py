"""Run small problems of benchmarks with torch's kernels and with the host's.

They use the CPU. A GPU uses other forms of the same kernels, which their own tests compare with the reference.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import pytest

from mxpeak.bench.registry import BENCHMARKS
from mxpeak.comm.transports.solo import Solo
from mxpeak.records import Result
from tests.support.hpcg_steps import few_steps
from tests.support.ranks import Ended

#: Settings of small problems: ragged blocks, several levels, a matrix of two structures. HPCG uses one storage, because
#: packed ones, which HPG-MxP covers, require a second run for comparison. Ten iterations solve such a small box.
CASES: dict[str, dict[str, Any]] = {
    "hpl": {"n": (211,), "nb": (32,)},
    "hpl-mxp": {"n": (211,), "nb": (32,), "precision": ("fp16",)},
    "hpg-mxp": {
        "nx": 16,
        "ny": 8,
        "nz": 8,
        "rt": 0.0,
        "precision": "bf16",
        "mode": "explore",
        "iterations": 5,
        "threshold": 1e-5,
    },
    "hpcg": {"nx": 16, "ny": 8, "nz": 8, "rt": 0.0, "mode": "explore", "storage": "sell", "smoother": "coloured"},
    "norms": {"n": (301,), "kind": ("all",), "structure": ("general", "hermitian"), "dtype": ("complex64",)},
}


def run(name: str, kernels: str) -> list[Result]:
    """Run the benchmark in this process."""
    config = BENCHMARKS[name].config(kernels=kernels, device="cpu", threads=1, warmup="none", **CASES[name])
    with few_steps():
        found: list[Result] = import_module(f"mxpeak.bench.{name.replace('-', '_')}.run").run(config, Solo())
    return found


@cache
def on_host(name: str) -> list[Result]:
    """Run a benchmark with the host's kernels."""
    return run(name, "host")


def command(name: str, comm: str) -> list[str]:
    """Return the benchmark's command for ranks with this connection."""
    flags = []
    for key, value in CASES[name].items():
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        flags += [f"--{key}", text]
    flags += ["--threads", "1", "--warmup", "none", "--kernels", "torch", "--device", "cpu"]
    return ["run", name, *flags, "--comm", comm, "--json", "-", "--quiet"]


def check_alike(name: str, result: dict[str, Any], host: dict[str, Any]) -> None:
    """Check that two results have the same problem, and the same solution except for the order of sums."""
    assert result["status"] == "valid"
    ours, theirs = result["validation"], host["validation"]
    assert ours["passed"]
    assert {result["software"]["kernels"], host["software"]["kernels"]} == {"torch", "host"}
    if name == "norms":
        for kind, value in theirs["values"].items():
            # The sums of n·n terms have another order; 10·n·eps of the type is the benchmark's own bound.
            assert ours["values"][kind] == pytest.approx(value, rel=10 * 301 * 2.0**-23), kind
    elif name == "hpl":
        assert ours["residual"] < 16.0
    elif name == "hpl-mxp":
        assert abs(ours["iterations"] - theirs["iterations"]) <= 1
        assert ours["lu_proof"]["passed"]
    elif name == "hpg-mxp":
        for key in ("mixed_iterations", "double_iterations"):
            assert abs(ours[key] - theirs[key]) <= 1
    else:
        assert abs(ours["iterations"] - theirs["iterations"]) <= 0.05 * theirs["iterations"]


def check_two(name: str, ended: Ended) -> None:
    """Check that two ranks give the host's result."""
    ended.check(0)
    body = ended.body
    for result, same in zip(body.get("results", [body]), on_host(name), strict=True):
        assert result["launch"]["ranks"] == 2
        if name in ("hpl", "hpl-mxp", "norms"):  # the other benchmarks have one box per rank
            check_alike(name, result, same.as_dict())
        else:
            assert result["validation"]["passed"]
