"""HPG-MxP under real mpiexec: the steps of the virtual ranks, one exit code, and no hang when a rank dies or errs."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mxpeak.bench import sparse
from mxpeak.records import Result
from tests.bench.test_hpg_mxp_on_thread_ranks import check_result, measured
from tests.mpi.test_hpl_under_mpi import MPIEXEC, mpiexec
from tests.solvers.test_hpg_mxp import agree
from tests.support.processes import first_line, started

if not os.environ.get("CI"):  # there, a missing MPI is a failure
    pytest.importorskip("mpi4py", reason="MPI for Python is not installed")
    pytestmark = pytest.mark.skipif(not MPIEXEC.exists(), reason="there is no mpiexec beside this Python")

#: Short, and with one storage.
SHORT = ["--nx", "16", "--rt", "0", "--iterations", "30", "--storage", "sell", "--threads", "1", "--warmup", "none"]


def run_json(ranks: int, *arguments: str, cwd: Path, code: int = 0) -> dict[str, Any]:
    run = mpiexec(ranks, "run", "hpg-mxp", *SHORT, *arguments, "--quiet", "--json", "-", cwd=cwd)
    assert run.returncode == code, run.stderr
    return json.loads(run.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("ranks", "arguments", "values"),
    [
        (2, [], {}),
        (2, ["--npx", "2", "--smoother", "natural", "--nonsymmetric"],
         {"npx": 2, "smoother": "natural", "nonsymmetric": True}),
        (4, [], {}),
        (4, ["--nz", "24", "--npz", "4", "--mg-precision", "fp16,fp32,fp32,fp32", "--validation", "fullscale"],
         {"nz": 24, "npz": 4, "mg_precision": ("fp16", "fp32", "fp32", "fp32"), "validation": "fullscale"}),
    ],
)  # fmt: skip
def test_real_ranks_take_the_steps_of_virtual_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, arguments: list[str], values: dict[str, Any]
) -> None:
    found = Result.from_dict(run_json(ranks, *arguments, cwd=tmp_path))
    check_result(found)
    assert (found.launch["ranks"], found.problem["ranks"]) == (ranks, ranks)
    monkeypatch.setattr(sparse, "LIMIT_S", 0.0)
    wanted = measured(ranks, **{"nx": 16, "mode": "official", "iterations": 1, "warmup": "none", **values})
    for name in ("nx", "ny", "nz", "npx", "npy", "npz", "rows", "nnz"):
        assert found.problem[name] == wanted.problem[name]
    assert found.validation["double_iterations"] == wanted.validation["double_iterations"]
    agree(found.validation["history"]["double"], wanted.validation["history"]["double"])
    # A sum over the ranks may be taken in another order, and what fp32 leaves is rounding: a step more or less.
    assert abs(found.validation["mixed_iterations"] - wanted.validation["mixed_iterations"]) <= 1


def test_a_validation_that_fails_is_exit_code_3_from_all_ranks(tmp_path: Path) -> None:
    body = run_json(2, "--nx", "32", "--nz", "64", "--threshold", "1e-15", "--iterations", "1", cwd=tmp_path, code=3)
    assert (body["status"], body["validation"]["passed"]) == ("invalid", False)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--nx", "20"], "20 / 8 leaves 4"),
        (["--npx", "3"], "--npx 3 does not divide the number of ranks: 2 / 3 leaves 2"),
        (["--precision", "fp8"], "type --mode explore"),
    ],
)
def test_a_mistake_ends_all_ranks_with_2_and_is_told_once(tmp_path: Path, arguments: list[str], says: str) -> None:
    run = mpiexec(2, "run", "hpg-mxp", *SHORT, *arguments, "--quiet", cwd=tmp_path)
    assert run.returncode == 2
    assert says in run.stderr
    assert run.stderr.count("error:") == 1
    assert "Traceback" not in run.stderr


def ended_by(tmp_path: Path, fault: str) -> tuple[int, str, float]:
    """A run whose last rank meets a fault in its hundredth cycle of multigrid: exit code, stderr, seconds after it."""
    (tmp_path / "crash.py").write_text(
        "import os, signal, sys\n"
        "from itertools import count\n"
        "from mxpeak.bench.hpg_mxp import run as hpg_mxp\n"
        "from mxpeak.runtime.launch import launcher\n"
        "from mxpeak.cli.main import main\n"
        "cycle, cycles = hpg_mxp.cycle, count()\n"
        "def faulty(level, b):\n"
        "    if next(cycles) == 100:\n"
        "        print('the fault', flush=True)\n"
        f"        {fault}\n"
        "    return cycle(level, b)\n"
        "if launcher()[1] == launcher()[2] - 1: hpg_mxp.cycle = faulty\n"
        "sys.exit(main(['run', 'hpg-mxp', '--nx', '16', '--rt', '100', '--threads', '1', '--warmup', 'none']))\n"
    )
    command = [str(MPIEXEC), "-n", "2", sys.executable, "crash.py"]
    with started(command, cwd=tmp_path) as run:
        assert first_line(run) == "the fault\n"
        begin = time.monotonic()
        _, err = run.communicate(timeout=30)
    return run.returncode, err, time.monotonic() - begin


def test_a_rank_that_raises_ends_all_within_ten_seconds(tmp_path: Path) -> None:
    code, err, seconds = ended_by(tmp_path, "raise FloatingPointError('a made-up fault')")
    assert seconds < 10
    assert code == 1
    assert "[rank 1" in err
    assert "a made-up fault" in err


def test_a_killed_rank_ends_all_within_ten_seconds(tmp_path: Path) -> None:
    code, _, seconds = ended_by(tmp_path, "os.kill(os.getpid(), signal.SIGKILL)")
    assert seconds < 10
    assert code != 0
    assert not list(tmp_path.glob("mxpeak-out/*/*")), "a run that did not end has no result"
