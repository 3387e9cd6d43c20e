"""HPG-MxP on a matrix from a file under real mpiexec: dealt rows, the documented ends, one voice and no hang."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from tests.mpi.test_hpl_under_mpi import MPIEXEC, PYTHON, mpiexec

if not os.environ.get("CI"):  # there, a missing MPI is a failure
    pytest.importorskip("mpi4py", reason="MPI for Python is not installed")
    pytestmark = pytest.mark.skipif(not MPIEXEC.exists(), reason="there is no mpiexec beside this Python")

SHORT = ["--rt", "0", "--iterations", "5", "--storage", "sell", "--warmup", "none", "--threads", "1"]
RUN = ["run", "hpg-mxp", "--matrix", "A.mtx"]


def write(folder: Path, A: Any) -> None:
    scipy.io.mmwrite(folder / "A.mtx", sp.coo_array(A), precision=17)


def lopsided(n: int) -> Any:
    """All rows need the first one, the last one needs all, and neighbours need each other one way."""
    A = sp.lil_array(sp.diags_array([-1.1, 4.0], offsets=[-1, 0], shape=(n, n)))
    A[:, 0] = 0.25
    A[n - 1, :] = 0.125
    A[0, 0] = A[n - 1, n - 1] = 3.0 + n / 8
    return sp.csr_array(A)


def test_two_and_four_ranks_find_ones_in_as_many_steps_as_threads_do(tmp_path: Path) -> None:
    from mxpeak.bench.hpg_mxp import run as hpg_mxp
    from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
    from mxpeak.comm.threads import run_ranks

    write(tmp_path, lopsided(80))
    for ranks in (2, 4):
        run = mpiexec(ranks, *RUN, *SHORT, "--json", "-", "--quiet", cwd=tmp_path)
        assert run.returncode == 0, run.stderr
        body = json.loads(run.stdout)
        assert (body["status"], body["problem"]["ranks"], body["problem"]["matrix"]) == ("valid", ranks, "A.mtx")
        assert body["validation"]["max_error"] <= 1e-8
        assert body["phases"]["halo"]["calls"] > 0
        config = HpgMxpConfig(
            matrix=str(tmp_path / "A.mtx"), rt=0.0, iterations=5, storage="sell", warmup="none", threads=1
        )
        (same, *_) = run_ranks(ranks, lambda comm, config=config: hpg_mxp.run(config, comm))
        for name in ("double_iterations", "mixed_iterations"):
            assert body["validation"][name] == same[0].validation[name]


def test_what_does_not_converge_ends_with_three_and_its_history(tmp_path: Path) -> None:
    write(tmp_path, np.random.default_rng(5).standard_normal((40, 40)))
    run = mpiexec(2, *RUN, *SHORT, "--restart", "2", "--out", "out", cwd=tmp_path)
    assert run.returncode == 3, run.stderr
    assert "FAILED" in run.stdout
    assert "--restart" in run.stdout + run.stderr
    assert len(json.loads((tmp_path / "out" / "result.json").read_text())["validation"]["history"]["double"]) > 10


@pytest.mark.parametrize(
    ("text", "arguments", "says"),
    [
        (None, [], "no such file"),
        ("hello", [], "no Matrix Market banner"),
        ("%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1\n2 2 nan\n", [], "row 2, column 2 is nan"),
        ("%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 1\n", [], "1 rows for 2 ranks"),
        (None, ["--nx", "16"], "--matrix A.mtx and --nx 16"),
    ],
)
def test_mistakes_end_all_ranks_with_two_and_one_message(
    tmp_path: Path, text: str | None, arguments: list[str], says: str
) -> None:
    if text is not None:
        (tmp_path / "A.mtx").write_text(text)
    run = mpiexec(2, *RUN, *arguments, cwd=tmp_path, timeout=60)
    assert run.returncode == 2, run.stderr
    assert run.stderr.count(says) == 1
    assert "Traceback" not in run.stderr


def test_ranks_flag_and_dry_run_work_with_a_file(tmp_path: Path) -> None:
    A = lopsided(30)
    write(tmp_path, A)
    run = subprocess.run(
        [*PYTHON, *RUN, "--ranks", "2", "--dry-run"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert f"A.mtx  ranks 2: 30 rows, {A.nnz} entries" in run.stdout
