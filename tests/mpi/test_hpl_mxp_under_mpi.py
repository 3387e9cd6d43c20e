"""HPL-MxP under real mpiexec: the same system, factors and steps as on one process, and its documented ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.mpi.test_hpl_under_mpi import MPIEXEC, PYTHON, mpiexec

if not os.environ.get("CI"):  # there, a missing MPI is a failure
    pytest.importorskip("mpi4py", reason="MPI for Python is not installed")
    pytestmark = pytest.mark.skipif(not MPIEXEC.exists(), reason="there is no mpiexec beside this Python")

SYSTEM = ["run", "hpl-mxp", "-N", "397", "--nb", "24", "--warmup", "none", "--json", "-"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The system of these tests on one process."""
    command = [*PYTHON, *SYSTEM, "--precision", "fp16"]
    folder = tmp_path_factory.mktemp("alone")
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(run.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("ranks", "grid", "extra"),
    [
        (2, "1x2", ["--bcast", "2ring"]),
        (2, "2x1", ["--refine", "classical"]),
        (4, "2x2", ["--node-grid", "1x2"]),
        (4, "4x1", ["--depth", "0"]),
        (4, "1x4", ["--bcast", "longM", "--order", "column"]),
        (4, "2x2", ["--scaling", "auto", "--bcast", "ilib"]),
    ],
)
def test_every_grid_solves_the_system_of_one_process(
    tmp_path: Path, alone: dict[str, Any], ranks: int, grid: str, extra: list[str]
) -> None:
    run = mpiexec(ranks, *SYSTEM, "--precision", "fp16", "--grid", grid, *extra, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    body = json.loads(run.stdout)
    assert body["launch"]["ranks"] == ranks
    assert body["rules"] == {"mode": "official", "admissible": True, "violations": []}
    assert body["validation"]["lu_proof"]["passed"]
    assert abs(body["validation"]["iterations"] - alone["validation"]["iterations"]) <= 1
    found, same = body["validation"]["norms"], alone["validation"]["norms"]
    assert found["A_inf"] == pytest.approx(same["A_inf"], rel=397 * 2.0**-53)  # the order of 397 additions
    assert found["b_inf"] == same["b_inf"]
    # Both are within eta·n·u·condition of the solution, and the condition is about a thousand.
    assert found["x_inf"] == pytest.approx(same["x_inf"], rel=32 * 397 * 2.0**-53 * 5000)


def test_a_system_that_cannot_converge_is_invalid_with_its_history(tmp_path: Path) -> None:
    asked = ["--precision", "fp8", "--mode", "explore", "--refine", "classical", "--diagonal-scale", "0.3"]
    run = mpiexec(2, *SYSTEM, *asked, cwd=tmp_path)
    assert run.returncode == 3, run.stderr
    body = json.loads(run.stdout)
    assert body["status"] == "invalid"
    assert len(body["validation"]["history"]) == body["validation"]["iterations"] + 1
    assert not body["rules"]["admissible"]
    assert "Traceback" not in run.stderr


def test_fp8_is_refused_in_official_mode_by_one_rank(tmp_path: Path) -> None:
    run = mpiexec(4, *SYSTEM, "--precision", "fp8", cwd=tmp_path)
    assert run.returncode == 2
    assert "--mode explore" in run.stderr
    assert run.stderr.count("error:") == 1


def test_what_breaks_a_rule_is_named(tmp_path: Path) -> None:
    for asked, rule in ((["--generator", "dominant-n"], "generator"), (["--diagonal-scale", "1"], "lu-needed")):
        run = subprocess.run([*PYTHON, *SYSTEM, *asked], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert run.returncode == 0, run.stderr
        body = json.loads(run.stdout)
        assert not body["rules"]["admissible"]
        assert rule in [violation["rule"] for violation in body["rules"]["violations"]]


def test_a_rank_that_computes_wrongly_is_found_by_the_proof(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(
        "import sys\n"
        "from mxpeak.runtime.launch import launcher\n"
        "from mxpeak.kernels.host.kernels import HostKernels\n"
        "from mxpeak.cli.main import main\n"
        "right = HostKernels.subtract_product\n"
        "def wrong(self, C, A, B):\n"
        "    right(self, C, A, B)\n"
        "    if C.size and launcher()[1] == 1: C[-1, -1] += 0.5\n"
        "HostKernels.subtract_product = wrong\n"
        f"sys.exit(main({[*SYSTEM, '--precision', 'fp16', '--grid', '1x2']!r}))\n"
    )
    command = [str(MPIEXEC), "-n", "2", sys.executable, "wrong.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.returncode == 3, run.stderr
    body = json.loads(run.stdout)
    assert not body["validation"]["lu_proof"]["passed"]
    assert body["validation"]["residual"] < 16, "refinement made up for it: the residual alone would have passed"


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["--condition", "10"], "--generator fasi-higham"),
        (["--restart", "3", "--refine", "classical"], "--refine gmres"),
        (["--threshold", "0"], "above 0"),
        (["--generator", "fasi-higham", "--diagonal-scale", "2"], "--diagonal-scale"),
    ],
)
def test_what_would_be_ignored_is_refused(tmp_path: Path, asked: list[str], says: str) -> None:
    run = subprocess.run([*PYTHON, *SYSTEM, *asked], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.returncode == 2
    assert says in run.stderr
