"""Test ranks of torch.distributed: every operation over Gloo, the order that NCCL needs, endings and benchmarks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked_ranks import Check, Outcome, run_checks
from tests.support.processes import started
from tests.support.ranks import PYTHON, ROOT

if not os.environ.get("CI"):  # there, a missing torch is a failure
    pytest.importorskip("torch", reason="PyTorch is not installed")

#: Kernels that load fastest.
SOLVE = ["run", "hpl", "-N", "200", "--nb", "32", "--kernels", "reference", "--warmup", "none", "--json", "-"]
IN_ORDER = [
    "run",
    "hpl",
    "-N",
    "197",
    "--nb",
    "24",
    "--grid",
    "2x2",
    "--split",
    "0.5",
    "--bcast",
    "longM",
    "--json",
    "-",
]
#: The first step of the links has ten times the minimum limit.
DELAYED = ["scan", "--links", "--kernels", "reference", "-N", "32", "--nb", "16", "--rounds", "1", "--warmup", "none"]
DELAYED += ["--watchdog", "2,0.3", "--out", "scan"]
SIZES = (1, 2, 3)
#: The group in which rank 0 waits while the function of rank 1 raises: none, a group of the user, or the solver's;
#: and whether the script catches the error.
RAISES = ("alone", "other group", "same group", "caught")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Return the outcomes of all checks that need no launcher of their own."""
    module, folder = "tests.support.torch_ranks", tmp_path_factory.mktemp("ranks")
    checks = {f"communicate {size}": Check(size, module, "communicate") for size in SIZES}
    checks["in order"] = Check(4, module, "mxpeak", tuple(IN_ORDER), str(folder))
    checks["alone"] = Check(1, module, "alone", tuple(SOLVE), str(folder))
    checks["abort"] = Check(3, module, "ends", ("7",))
    checks["killed"] = Check(3, module, "ends", ("killed",))
    for kind in RAISES:
        checks[f"operator {kind}"] = Check(2, module, "operator", (kind,))
    checks["describes"] = Check(3, module, "describes")
    checks["connects alone"] = Check(2, module, "connects_alone")
    checks["scan delayed"] = Check(2, module, "scan_delayed", tuple(DELAYED), str(folder))
    checks["late"] = Check(2, module, "posts_late")
    checks["raises"] = Check(2, module, "raises", (*SOLVE, "--grid", "1x2"), str(folder))
    return run_checks(checks, folder)


def environ(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env=environ(), capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("ranks", SIZES)
def test_ranks_of_torch_communicate_and_posts_by_family_need_no_tags_and_never_wait_for_each_other(
    outcomes: dict[str, Outcome], ranks: int
) -> None:
    done = outcomes[f"communicate {ranks}"]
    assert done.codes == [0] * ranks, done.stderr


def test_a_solver_runs_on_messages_in_order_without_tags(outcomes: dict[str, Outcome]) -> None:
    done = outcomes["in order"]
    assert done.codes == [0] * 4, done.stderr
    assert json.loads("".join(done.stdout))["validation"]["passed"]


def test_ranks_started_by_mxpeak_have_the_numbers_of_one_and_end_with_their_own_code(
    tmp_path: Path, outcomes: dict[str, Outcome]
) -> None:
    done = run(*PYTHON, *SOLVE, "--ranks", "2", "--comm", "torch", "--threshold", "1e-9", cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    assert "torch/distributed" not in done.stderr, "torchrun has nothing to add"
    assert not json.loads(done.stdout)["validation"]["passed"]
    assert outcomes["alone"].codes == [0]
    check_the_numbers_of_one_rank(json.loads(done.stdout), json.loads(outcomes["alone"].stdout[0]))


def check_the_numbers_of_one_rank(body: dict[str, Any], alone: dict[str, Any]) -> None:
    """Check that the system and the solution on two ranks of torchrun are those of one process."""
    assert body["launch"]["launcher"] == "torchrun"
    assert body["launch"]["ranks"] == 2
    ours, theirs = body["validation"]["norms"], alone["validation"]["norms"]
    # The matrix is bitwise identical, so its maximum norms are equal up to the order of 200 additions.
    assert ours["A_inf"] == pytest.approx(theirs["A_inf"], rel=200 * 2.0**-53)
    assert ours["b_inf"] == theirs["b_inf"]
    assert ours["x_inf"] == pytest.approx(theirs["x_inf"], rel=1e-9)  # condition of this matrix: about 1e4


def test_an_interrupt_ends_the_ranks_that_mxpeak_started(tmp_path: Path) -> None:
    long = ["run", "hpl", "-N", "5000", "--nb", "8", "--threads", "1", "--warmup", "none", "--progress", "always"]
    with started([*PYTHON, *long, "--ranks", "2", "--comm", "torch"], cwd=tmp_path, env=environ()) as run:
        assert run.stderr is not None
        assert any(" % " in line for line in run.stderr), "progress: the ranks are at work"
        begin = time.monotonic()
        run.send_signal(signal.SIGINT)
        out, _ = run.communicate(timeout=40)
    assert time.monotonic() - begin < 20
    assert run.returncode == 128 + signal.SIGINT
    assert out.startswith("ABORTED"), "they had not come to their end"


def test_a_rank_that_raises_ends_all_with_its_traceback(outcomes: dict[str, Outcome]) -> None:
    done = outcomes["raises"]
    assert done.codes == [1, 1]
    assert "[rank 1" in done.stderr[1]
    assert "a made-up fault" in done.stderr[1]
    assert "[rank 0" not in done.stderr[0], "only the rank that failed is heard"


def test_abort_ends_ranks_that_wait_and_ranks_that_compute_with_its_code(outcomes: dict[str, Outcome]) -> None:
    done = outcomes["abort"]
    assert done.stdout[1] == "the end\n"
    assert done.codes == [7, 7, 7]
    assert not any("Traceback" in error for error in done.stderr), "only the rank that failed is heard"


def test_ranks_that_wait_for_a_killed_one_end(outcomes: dict[str, Outcome]) -> None:
    done = outcomes["killed"]
    assert done.stdout[1] == "the end\n"
    assert done.codes == [1, -signal.SIGKILL, 1]
    assert all("RuntimeError" in done.stderr[rank] for rank in (0, 2))


def test_a_message_to_a_lost_rank_fails_only_after_a_delay_for_signals(outcomes: dict[str, Outcome]) -> None:
    """torchrun sends such a signal when one rank has ended; the handler then writes the partial result."""
    done = outcomes["late"]
    assert done.stdout[0] == "heard\n", done.stderr[0]
    assert done.codes == [0, 0]


@pytest.mark.parametrize("kind", RAISES)
def test_an_error_that_a_function_raises_on_one_rank_ends_all_ranks(outcomes: dict[str, Outcome], kind: str) -> None:
    done = outcomes[f"operator {kind}"]
    assert done.codes == [1, 1], done.stderr
    assert done.stdout == ["", ""]
    assert "rank 1: OSError: the table is gone" in done.stderr[1]
    assert ("did not join this rank within 1 s" in done.stderr[1]) == (kind != "alone")
    if kind == "alone":
        assert "rank 1: OSError: the table is gone" in done.stderr[0]
    if kind == "same group":
        assert "Connection closed by peer" in done.stderr[0]
    if kind == "caught":
        assert "all 2 ranks of 0 to 1 cannot communicate" in done.stderr[1]


def test_the_watchdog_learns_what_a_rank_waits_for_with_the_numbers_of_the_whole_program(
    outcomes: dict[str, Outcome],
) -> None:
    done = outcomes["describes"]
    assert done.codes == [0, 0, 0], done.stderr
    assert done.stdout[2].splitlines() == [
        "a message from rank 1",
        "the broadcast of rank 1",
        "the broadcast of rank 1",
        "a reduction over all 2 ranks of 1 to 2",
        "a message to be received by rank 1",
    ]


def test_a_scan_of_links_ends_if_a_rank_does_not_answer_and_names_it(outcomes: dict[str, Outcome]) -> None:
    done = outcomes["scan delayed"]
    assert done.codes == [6, 6], done.stderr
    assert "links of 2 ranks: no progress for 3.00 s" in done.stderr[0]
    assert "this rank waits for a message from rank 1" in done.stderr[0]


def test_a_rank_that_does_not_connect_to_a_new_group_is_reported_after_the_limit(outcomes: dict[str, Outcome]) -> None:
    done = outcomes["connects alone"]
    assert done.codes == [1, 0]
    assert "rank 0 could not connect to the ranks 0-1: " in done.stderr[0]
