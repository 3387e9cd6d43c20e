"""Compare the numbers of HPL under mpiexec with one process, and test that it does not hang if a rank ends."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from mxpeak.report.phase_changes import phase_changes
from tests.support.processes import first_line, started
from tests.support.ranks import (
    ENDED_BY_A_RANK,
    MPIEXEC,
    PYTHON,
    Ended,
    StandingRanks,
    commands_here,
    mpiexec,
    needs_mpi,
)
from tests.support.result_file import VALIDATOR

pytestmark = needs_mpi

SYSTEM = ["run", "hpl", "-N", "197", "--nb", "24", "--warmup", "none", "--json", "-"]
GRIDS = {
    2: {"1x2": ["--bcast", "2ring"], "2x1": ["--swap", "long"]},
    4: {
        "2x2": ["--split", "0.5", "--swap", "bin"],
        "4x1": ["--depth", "0"],
        "1x4": ["--bcast", "longM", "--order", "column"],
        "2x2 of nodes": ["--node-grid", "1x2", "--bcast", "ilib"],
    },
}
#: Kernels that load fastest and generate most slowly.
LONG = ["-N", "1500", "--kernels", "reference", "--warmup", "none"]
MISTAKES = {
    "grid": (["--grid", "3x3"], "3*3 = 9"),
    "node grid": (["--grid", "2x2", "--node-grid", "3x1"], "node"),
    "ranks": (["--ranks", "8"], "--ranks 8"),
}


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory, standing: dict[int, StandingRanks]) -> dict[str, Ended]:
    """Run the commands on two ranks."""
    commands = {name: [*SYSTEM, "--grid", name, *extra] for name, extra in GRIDS[2].items()}
    commands["too slow"] = [*SYSTEM, "--target", "1e9"]
    commands["fails"] = [*SYSTEM, "--threshold", "1e-9"]
    commands["too large"] = ["run", "hpl", "-N", "9000000"]
    return standing[2].run(commands, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def on_four(tmp_path_factory: pytest.TempPathFactory, standing: dict[int, StandingRanks]) -> dict[str, Ended]:
    """Run the commands on four ranks."""
    folder = tmp_path_factory.mktemp("four")
    commands = {name: [*SYSTEM, "--grid", name.split()[0], *extra] for name, extra in GRIDS[4].items()}
    commands |= {name: ["run", "hpl", "-N", "100", *arguments] for name, (arguments, _) in MISTAKES.items()}
    (folder / "HPL.dat").write_text(HPL_DAT.replace("2 1 4        Ps", "2 1 3        Ps"))
    of_each_grid = ["--nbmin", "2", "--pfact", "right", "--rfact", "crout"]
    commands["idle"] = ["run", "hpl", "--dat", "../HPL.dat", "-N", "31", "--nb", "4", *of_each_grid]
    (folder / "HPL.dat of all").write_text(HPL_DAT)
    commands["all"] = ["run", "hpl", "--dat", "../HPL.dat of all", "-N", "29", "--nb", "3", "--rfact", "left"]
    return standing[4].run(commands, folder)


def test_every_grid_solves_a_ragged_system(tmp_path: Path, on_two: dict[str, Ended], on_four: dict[str, Ended]) -> None:
    same = commands_here({"alone": SYSTEM}, tmp_path)["alone"].body["validation"]["norms"]
    for ranks, results in ((2, on_two), (4, on_four)):
        for grid in GRIDS[ranks]:
            results[grid].check(0)
            body = results[grid].body
            assert (body["status"], body["launch"]["ranks"]) == ("valid", ranks), grid
            norms = body["validation"]["norms"]
            by_phase = phase_changes(body, body)
            assert {"gemm", "rfact", "other"} <= {phase.name for phase in by_phase}, grid
            for phase in by_phase:
                assert phase.change == 0.0, (grid, phase)
                assert phase.rank in range(ranks), (grid, phase)
                assert phase.host == os.uname().nodename, (grid, phase)
            # The matrix is bitwise identical, so its maximum norms are equal up to the order of 197 additions.
            assert norms["A_inf"] == pytest.approx(same["A_inf"], rel=197 * 2.0**-53), grid
            assert norms["b_inf"] == same["b_inf"], grid
            # The condition of this matrix is about 1e4.
            assert norms["x_inf"] == pytest.approx(same["x_inf"], rel=1e-9), grid


def test_a_failed_check_is_exit_code_3_from_all_ranks(on_two: dict[str, Ended]) -> None:
    on_two["fails"].check(3)
    body = on_two["fails"].body
    assert (body["status"], body["validation"]["passed"]) == ("invalid", False)


def test_a_target_out_of_reach_is_exit_code_6_from_all_ranks(on_two: dict[str, Ended]) -> None:
    on_two["too slow"].check(6)
    body = on_two["too slow"].body
    VALIDATOR.validate(body)
    assert (body["status"], body["result"]["rate_flops"]) == ("aborted", None)
    assert "--target is 1.00 EFLOP/s" in body["telemetry"]["aborted"]["reason"]


def test_impossible_requests_end_all_ranks_with_2_and_the_arithmetic(on_four: dict[str, Ended]) -> None:
    for name, (_, says) in MISTAKES.items():
        on_four[name].check(2)
        assert says in on_four[name].stderr
        assert on_four[name].stderr.count("error:") == 1, "only rank 0 speaks"


def test_a_mistake_is_mpiexecs_exit_code(tmp_path: Path) -> None:
    run = mpiexec(2, "run", "hpl", "-N", "100", "--grid", "3x3", cwd=tmp_path)
    assert run.returncode == 2
    assert run.stderr.count("error:") == 1


def test_a_matrix_that_does_not_fit_is_refused_with_the_largest_that_does(on_two: dict[str, Ended]) -> None:
    on_two["too large"].check(5)
    assert "largest N that fits" in on_two["too large"].stderr


def test_a_rank_that_raises_ends_all_within_ten_seconds(tmp_path: Path) -> None:
    (tmp_path / "crash.py").write_text(
        "import sys\n"
        "from mxpeak.solvers.lu import panel\n"
        "from mxpeak.runtime.launcher import launcher\n"
        "from mxpeak.cli.main import main\n"
        "def broken(self, *args):\n"
        "    print('the fault', flush=True)\n"
        "    raise FloatingPointError('a made-up fault')\n"
        "if launcher()[1] == 1: panel.FactoredPanel.factor = broken\n"
        "sys.exit(main(['run', 'hpl', '-N', '300', '--grid', '1x2', '--warmup', 'none', '--kernels', 'reference']))\n"
    )
    command = [str(MPIEXEC), "-n", "2", sys.executable, "crash.py"]
    with started(command, cwd=tmp_path) as run:
        assert first_line(run) == "the fault\n"
        begin = time.monotonic()
        _, err = run.communicate(timeout=30)
    assert time.monotonic() - begin < 10
    assert run.returncode in ENDED_BY_A_RANK
    assert "[rank 1" in err
    assert "a made-up fault" in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_terminated_run_ends_with_128_plus_the_signal_and_leaves_what_is_known(tmp_path: Path, number: int) -> None:
    command = [*PYTHON, "run", "hpl", *LONG, "--ranks", "2", "--out", "results", "--events", "events"]
    with started(command, cwd=tmp_path) as run:
        assert begun(tmp_path / "events"), "the ranks never started"
        run.send_signal(number)
        _, err = run.communicate(timeout=20)
    assert run.returncode == 128 + number
    assert "assert" not in err, "mpiexec must not fall over a signal that came twice"
    result = json.loads((tmp_path / "results" / "result.json").read_text())
    VALIDATOR.validate(result)
    assert (result["status"], result["result"]["rate_flops"]) == ("aborted", None)
    assert result["telemetry"]["aborted"]["reason"] == f"ended by signal {number:d}", "not mpiexec's"
    assert (result["problem"]["n"], result["launch"]["ranks"]) == (1500, 2)
    last = json.loads((tmp_path / "events").read_text().splitlines()[-1])
    assert (last["event"], last["exit_code"]) == ("run ended", 128 + number)


def begun(events: Path) -> bool:
    """Return whether a case begins within a minute."""
    deadline = time.monotonic() + 60
    while not (events.exists() and "case started" in events.read_text()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


HPL_DAT = """HPLinpack benchmark input file
Innovative Computing Laboratory, University of Tennessee
HPL.out      output file name (if any)
6            device out (6=stdout,7=stderr,file)
4            # of problems sizes (N)
29 30 34 35  Ns
4            # of NBs
1 2 3 4      NBs
0            PMAP process mapping (0=Row-,1=Column-major)
3            # of process grids (P x Q)
2 1 4        Ps
2 4 1        Qs
16.0         threshold
3            # of panel fact
0 1 2        PFACTs (0=left, 1=Crout, 2=Right)
2            # of recursive stopping criterium
2 4          NBMINs (>= 1)
1            # of panels in recursion
2            NDIVs
3            # of recursive panel fact.
0 1 2        RFACTs (0=left, 1=Crout, 2=Right)
1            # of broadcast
0            BCASTs (0=1rg,1=1rM,2=2rg,3=2rM,4=Lng,5=LnM)
1            # of lookahead depth
0            DEPTHs (>=0)
2            SWAP (0=bin-exch,1=long,2=mix)
64           swapping threshold
0            L1 in (0=transposed,1=no-transposed) form
0            U  in (0=transposed,1=no-transposed) form
1            Equilibration (0=no,1=yes)
8            memory alignment in double (> 0)
"""


def test_hpls_own_file_passes_on_ranks_that_share_cores(on_four: dict[str, Ended]) -> None:
    """Run one of its four orders, one of its four block sizes with a ragged last block, and one of its RFACTs."""
    on_four["all"].check(0)
    output = on_four["all"].stdout
    # 3 grids × 3 PFACT × 2 NBMIN
    assert "Finished     18 tests with the following results:" in output
    assert "             18 tests completed and passed residual checks," in output
    assert output.count("WR00") == 18
    assert output.rstrip().endswith("=" * 80)


def test_a_grid_of_hpl_dat_may_leave_ranks_idle(on_four: dict[str, Ended]) -> None:
    on_four["idle"].check(0)
    assert "              3 tests completed and passed residual checks," in on_four["idle"].stdout


def test_a_series_over_counts_of_ranks(standing: dict[int, StandingRanks], tmp_path: Path) -> None:
    """Run on one and three of four ranks; the other ranks wait, and all end with one exit code."""
    arguments = ["run", "hpl", "-N", "200", "--nb", "16", "--study", "weak", "--ranks-list", "3,1", "--json", "-"]
    ended = standing[4].run({"series": arguments}, tmp_path)["series"]
    ended.check(0)
    assert [(point["ranks"], point["problem"]["n"]) for point in ended.body["study"]["points"]] == [(1, 200), (3, 336)]
    assert [one["launch"]["ranks"] for one in ended.body["results"]] == [1, 3]
    assert "study: 2 of 2: 3 ranks, n 336" in ended.stderr
    (folder,) = (tmp_path / "series" / "mxpeak-out").iterdir()
    assert {path.name for path in folder.iterdir()} >= {
        "HPL-1ranks.out",
        "HPL-3ranks.out",
        "result.json",
        "report.html",
    }
