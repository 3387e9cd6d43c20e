"""Ranks of torch.distributed: every operation over Gloo, the order that NCCL needs, the ends, and whole benchmarks."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import first_line, started
from tests.support.ranks import PYTHON, ROOT, TORCHRUN

if not os.environ.get("CI"):  # there, a missing torch is a failure
    pytest.importorskip("torch", reason="PyTorch is not installed")

SOLVE = ["run", "hpl", "-N", "200", "--nb", "32", "--warmup", "none", "--json", "-"]


def environ(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env=environ(), capture_output=True, text=True, timeout=120)


def torchrun(ranks: int, *arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return run(*TORCHRUN, str(ranks), "-m", *arguments, cwd=cwd)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_of_torch_communicate_and_posts_by_family_need_no_tags_and_never_wait_for_each_other(ranks: int) -> None:
    done = torchrun(ranks, "tests.support.torch_ranks", "communicate")
    assert done.returncode == 0, done.stderr


def test_a_solver_runs_on_messages_in_order_without_tags(tmp_path: Path) -> None:
    arguments = ["-N", "197", "--nb", "24", "--grid", "2x2", "--split", "0.5", "--bcast", "longM", "--json", "-"]
    done = torchrun(4, "tests.support.torch_ranks", "mxpeak", "run", "hpl", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["validation"]["passed"]


@pytest.mark.parametrize(("arguments", "code"), [([], 0), (["--threshold", "1e-9"], 3), (["--grid", "3x5"], 2)])
def test_ranks_started_by_mxpeak_end_with_their_own_code(tmp_path: Path, arguments: list[str], code: int) -> None:
    done = run(*PYTHON, *SOLVE, "--ranks", "2", "--comm", "torch", *arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert "torch/distributed" not in done.stderr, "torchrun has nothing to add"
    if code in (0, 3):
        assert json.loads(done.stdout)["validation"]["passed"] == (code == 0)
    if code == 0:
        check_the_numbers_of_one_rank(json.loads(done.stdout), tmp_path)


def check_the_numbers_of_one_rank(body: dict[str, Any], cwd: Path) -> None:
    """The system of torchrun's two ranks, and its solution, are those of a process alone."""
    assert body["launch"]["launcher"] == "torchrun"
    assert body["launch"]["ranks"] == 2
    alone = json.loads(run(*PYTHON, *SOLVE, cwd=cwd).stdout)
    ours, theirs = body["validation"]["norms"], alone["validation"]["norms"]
    # The matrix is the same to the last bit, so its maximum norms are, up to the order of 200 additions.
    assert ours["A_inf"] == pytest.approx(theirs["A_inf"], rel=200 * 2.0**-53)
    assert ours["b_inf"] == theirs["b_inf"]
    assert ours["x_inf"] == pytest.approx(theirs["x_inf"], rel=1e-9)  # condition of this matrix: about 1e4


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_ranks_that_mxpeak_started(tmp_path: Path, number: int) -> None:
    large = ["run", "hpl", "-N", "8000", "--threads", "1", "--warmup", "none", "--progress", "always"]
    with started([*PYTHON, *large, "--ranks", "2", "--comm", "torch"], cwd=tmp_path, env=environ()) as run:
        assert run.stderr is not None
        assert any(" % " in line for line in run.stderr), "progress: the ranks are at work"
        begin = time.monotonic()
        run.send_signal(number)
        out, _ = run.communicate(timeout=40)
    assert time.monotonic() - begin < 20
    assert run.returncode == 128 + number
    assert out == "", "they had not come to their end"


def test_a_rank_that_raises_ends_all_with_its_traceback(tmp_path: Path) -> None:
    (tmp_path / "crash.py").write_text(
        "import sys\n"
        "from mxpeak.solvers import panel\n"
        "from mxpeak.runtime.launch import launcher\n"
        "from mxpeak.cli.main import main\n"
        "def broken(self, *args): raise FloatingPointError('a made-up fault')\n"
        "if launcher()[1] == 1: panel.FactoredPanel.factor = broken\n"
        "sys.exit(main(['run', 'hpl', '-N', '300', '--nb', '64', '--grid', '1x2', '--warmup', 'none']))\n"
    )
    begin = time.monotonic()
    done = run(*TORCHRUN, "2", "crash.py", cwd=tmp_path)
    assert time.monotonic() - begin < 30
    assert done.returncode == 1
    assert "[rank 1" in done.stderr
    assert "a made-up fault" in done.stderr
    assert "[rank 0" not in done.stderr, "only the rank that failed is heard"


@contextmanager
def without_torchrun(*arguments: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Three ranks that a launcher of another kind started: nobody ends them but they themselves."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "tests.support.torch_ranks", *arguments]
    with ExitStack() as stack:
        ranks = []
        for rank in map(str, range(3)):
            mine = {"RANK": rank, "WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "3", "LOCAL_RANK": rank}
            where = environ(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, **mine)
            ranks.append(stack.enter_context(started(command, cwd=ROOT, env=where)))
        yield ranks


def test_abort_ends_ranks_that_wait_and_ranks_that_compute_with_its_code() -> None:
    with without_torchrun("ends", "7") as ranks:
        assert first_line(ranks[1]) == "the end\n"
        begin = time.monotonic()
        errors = [rank.communicate(timeout=50)[1] for rank in ranks]
    assert time.monotonic() - begin < 20
    assert [rank.returncode for rank in ranks] == [7, 7, 7]
    assert not any("Traceback" in error for error in errors), "only the rank that failed is heard"


def test_ranks_that_wait_for_a_killed_one_end() -> None:
    with without_torchrun("ends", "killed") as ranks:
        assert first_line(ranks[1]) == "the end\n"
        begin = time.monotonic()
        assert ranks[1].wait(timeout=40) == -signal.SIGKILL
        _, error = ranks[0].communicate(timeout=40)
        assert ranks[0].returncode == 1
        assert time.monotonic() - begin < 20
        ranks[2].kill()  # it computes, and would notice at its next message
    assert "RuntimeError" in error
