"""Test that each check for several GPUs passes with the expected values only, and is started by gpu.sh."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.multi_gpu import PARTS, Ended, main  # noqa: E402


def good(words: Sequence[str], variables: Mapping[str, str], changes: Mapping[str, Any]) -> Ended:
    """Return a run with the expected values, some of which are changed."""
    figures: dict[str, Any] = {
        "status": "valid", "code": 0, "runs": 5, "differ": [], "residual": 0.004, "stderr": "", "direct_s": 1.0,
        "ranks": 4, "efficiency": 0.97, "value": 2.5, "many_rate": 3.8e12,
    } | changes  # fmt: skip
    many, direct = "--devices-per-rank" in words, variables.get("MXPEAK_GPU_AWARE_MPI") == "yes"
    result = {
        "status": figures["status"],
        "telemetry": {"soak": {"runs": figures["runs"], "differ": figures["differ"]}},
        "validation": {"residual": figures["residual"] if direct else 0.004},
        "result": {
            "time_s": figures["direct_s"] if direct else 1.2,
            "value": figures["value"] if many else 2.5,
            "rate_bytes": figures["many_rate"] if many else 1e12,
        },
    }
    study = {"points": [{"ranks": 1}, {"ranks": figures["ranks"], "efficiency": figures["efficiency"]}]}
    return Ended(figures["code"], figures["stderr"] if direct else "", {"results": [result, result], "study": study})


def outcome(part: str, **changes: Any) -> int:
    return main([part, "--gpus", "4"], lambda words, limit_s, variables: good(words, variables, changes))


@pytest.mark.parametrize("part", PARTS)
def test_a_proof_passes_with_the_expected_values_alone(part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(part) == 0
    assert "FAILED" not in capsys.readouterr().out
    for change in ({"status": "invalid"}, {"code": 3}):
        assert outcome(part, **change) == 1
    assert "measured exit 3, valid, valid, expected exit 0, valid" in capsys.readouterr().out
    assert main([part], lambda words, limit_s, variables: Ended(124, "", {})) == 1, "a run that was ended"


WRONG = [
    ("order", {"runs": 2}),
    ("order", {"differ": [{"rank": 1, "host": "a", "runs": [2]}]}),
    ("messages", {"residual": 0.005}),
    ("messages", {"stderr": "note: messages are staged through pinned host memory: lost"}),
    ("messages", {"direct_s": 1.3}),
    ("hpl", {"efficiency": 0.89}),
    ("hpl", {"efficiency": None}),
    ("hpl", {"ranks": 2}),
    ("halo", {"efficiency": 0.89}),
    ("norms", {"value": 2.5000000000000004}),
    ("norms", {"many_rate": 3.1e12}),
]


def test_each_wrong_value_fails_its_proof(capsys: pytest.CaptureFixture[str]) -> None:
    for part, changes in WRONG:
        assert outcome(part, **changes) == 1, (part, changes)
        assert "FAILED  " in capsys.readouterr().out


def test_no_command_may_take_longer_than_the_part() -> None:
    for part in PARTS:
        limits: list[float] = []

        def run(words: Sequence[str], limit_s: float, variables: Mapping[str, str]) -> Ended:
            limits.append(limit_s)  # noqa: B023
            return good(words, variables, {})

        main([part, "--gpus", "4"], run)
        assert 0 < sum(limits) <= 590


@pytest.mark.parametrize("gpus", [0, 1, 3])
def test_the_script_starts_the_proofs_on_several_gpus_only(tmp_path: Path, gpus: int) -> None:
    """The test uses an nvidia-smi that lists several GPUs or one, and an interpreter that records its command."""
    lines = "".join(f"echo 'GPU {k}: virtual (UUID: x)'\n" for k in range(gpus))
    for name, text in (("nvidia-smi", lines), ("python", f'echo "$@" >> {tmp_path}/commands; echo 0\n')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}")
        (tmp_path / name).chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    variables = os.environ | {"PATH": path, "PYTHON": str(tmp_path / "python")}
    command = ["bash", str(ROOT / "benchmarks/gpu.sh"), str(tmp_path / "out"), "multi-norms", "multi-order"]
    ran = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
    commands = (tmp_path / "commands").read_text() if (tmp_path / "commands").exists() else ""
    if gpus > 1:
        assert ran.returncode == 0, ran.stderr
        started = [line.split()[:4] for line in commands.splitlines() if "multi_gpu" in line]
        assert started == [["benchmarks/multi_gpu.py", part, "--gpus", "3"] for part in ("order", "norms")]
    else:
        assert ran.returncode == 1
        assert "multi_gpu" not in commands
        assert f"it needs at least 2 GPUs, but {gpus} found" in ran.stdout


def test_the_norms_proof_runs_on_the_cpu(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    command = [sys.executable, "benchmarks/multi_gpu.py", "norms", "--device", "cpu", "--small"]
    ran = subprocess.run(
        [*command, "--out", str(tmp_path / "norms.json")], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    checks = json.loads((tmp_path / "norms.json").read_text())["checks"]
    assert all(check["passed"] for check in checks)
    assert {"one on one and all", "fro on one and all"} <= {check["name"] for check in checks}


def test_a_file_that_cannot_be_written_is_refused_before_the_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs: list[Sequence[str]] = []

    def run(words: Sequence[str], limit_s: float, variables: Mapping[str, str]) -> Ended:
        runs.append(words)
        return Ended(0, "", {})

    with pytest.raises(SystemExit) as ended:
        main(["hpl", "--out", str(tmp_path / "missing" / "hpl.json")], run)
    assert ended.value.code == 2
    assert "missing is not a writable folder; use another file" in capsys.readouterr().err
    assert not runs
