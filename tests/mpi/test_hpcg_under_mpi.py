"""HPCG under real mpiexec: HPCG's own numbers, the documented ends."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.mpi.test_hpl_under_mpi import MPIEXEC, PYTHON, mpiexec

if not os.environ.get("CI"):  # there, a missing MPI is a failure
    pytest.importorskip("mpi4py", reason="MPI for Python is not installed")
    pytestmark = pytest.mark.skipif(not MPIEXEC.exists(), reason="there is no mpiexec beside this Python")

SHORT = ["run", "hpcg", "--nx", "16", "--rt", "0", "--warmup", "none", "--json", "-", "--quiet"]


def run_json(ranks: int, *arguments: str, cwd: Path) -> dict[str, Any]:
    run = mpiexec(ranks, *SHORT, *arguments, cwd=cwd)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)  # type: ignore[no-any-return]


def test_two_ranks_come_to_the_residual_that_hpcg_reports(tmp_path: Path) -> None:
    body = run_json(2, "--npx", "2", cwd=tmp_path)
    assert (body["status"], body["launch"]["ranks"]) == ("valid", 2)
    assert [body["problem"][name] for name in ("gnx", "gny", "gnz")] == [32, 16, 16]
    check = body["validation"]
    # Printed by HPCG 3.1 for this box and grid; far below rounding the order of sums is seen in the second digit.
    assert check["reference_residual"] == pytest.approx(7.53688e-32, rel=0.05)
    assert check["cg"]["preconditioned"]["iterations"] == 2
    assert body["phases"]["halo"]["calls"] > 0
    assert body["result"]["dot_allreduce_s"]["max"] >= body["result"]["dot_allreduce_s"]["min"] > 0.0


@pytest.mark.parametrize(("ranks", "extra"), [(1, []), (4, ["--storage", "packed", "--mode", "explore"]),
                                              (4, ["--smoother", "natural", "--storage", "ell"])])  # fmt: skip
def test_every_rank_count_is_valid(tmp_path: Path, ranks: int, extra: list[str]) -> None:
    body = run_json(ranks, *extra, cwd=tmp_path)
    assert body["status"] == "valid"
    assert body["problem"]["rows"] == ranks * 16**3
    assert body["result"]["optimized_iterations_per_set"] >= 50
    assert {one["rule"] for one in body["rules"]["violations"]} >= {"time", "memory"}


def test_ranks_flag_starts_mpiexec_itself(tmp_path: Path) -> None:
    run = subprocess.run(
        [*PYTHON, *SHORT, "--ranks", "2"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["launch"]["ranks"] == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--nx", "20"], "--nx 24"), (["--npx", "3"], "leaves"), (["--nx", "8"], "--mode explore")],
)
def test_mistakes_end_all_ranks_before_anything_runs(tmp_path: Path, arguments: list[str], says: str) -> None:
    run = mpiexec(2, "run", "hpcg", *arguments, cwd=tmp_path)
    assert run.returncode == 2
    assert says in run.stderr
    assert "Traceback" not in run.stderr
