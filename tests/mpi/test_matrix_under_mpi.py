"""Test HPG-MxP on a matrix from a file under mpiexec: distributed rows, exit codes, one message and no hang."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from mxpeak.bench.hpg_mxp import run as hpg_mxp
from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
from mxpeak.comm.transports.threads import run_ranks
from tests.support.ranks import Ended, StandingRanks, needs_mpi

pytestmark = needs_mpi

SHORT = ["--rt", "0", "--iterations", "5", "--storage", "sell", "--warmup", "none", "--threads", "1"]
RUN = ["run", "hpg-mxp", "--matrix", "A.mtx"]


def write(folder: Path, A: Any) -> None:
    scipy.io.mmwrite(folder / "A.mtx", sp.coo_array(A), precision=17)


def lopsided(n: int) -> Any:
    """Return a matrix in which all rows need the first, the last needs all, and others need their predecessor."""
    A = sp.lil_array(sp.diags_array([-1.1, 4.0], offsets=[-1, 0], shape=(n, n)))
    A[:, 0] = 0.25
    A[n - 1, :] = 0.125
    A[0, 0] = A[n - 1, n - 1] = 3.0 + n / 8
    return sp.csr_array(A)


BANNER = "%%MatrixMarket matrix coordinate real general\n"
#: A file, arguments, and the expected message.
MISTAKES: dict[str, tuple[str | None, list[str], str]] = {
    "no file": (None, [], "does not exist"),
    "no banner": ("hello", [], "not a Matrix Market banner"),
    "NaN": (BANNER + "2 2 2\n1 1 1\n2 2 nan\n", [], "row 2, column 2 is nan"),
    "one row": (BANNER + "1 1 1\n1 1 1\n", [], "1 rows for 2 ranks"),
    "two problems": (None, ["--nx", "16"], "--matrix A.mtx conflicts with --nx 16"),
}


def solved(ranks: StandingRanks, folder: Path, more: dict[str, list[str]]) -> dict[str, Ended]:
    """Run the one-sided matrix and other commands on MPI ranks."""
    (folder / "solved").mkdir()
    write(folder / "solved", lopsided(80))
    return ranks.run({"solved": [*RUN, *SHORT, "--json", "-", "--quiet"], **more}, folder)


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory, standing: dict[int, StandingRanks]) -> dict[str, Ended]:
    """Run the commands on two ranks."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "stuck").mkdir()
    write(folder / "stuck", np.random.default_rng(5).standard_normal((40, 40)))
    (folder / "dry").mkdir()
    write(folder / "dry", lopsided(30))
    commands = {"stuck": [*RUN, *SHORT, "--restart", "2", "--json", "result.json"], "dry": [*RUN, "--dry-run"]}
    for name, (text, arguments, _) in MISTAKES.items():
        (folder / name).mkdir()
        commands[name] = [*RUN, *arguments]
        if text is not None:
            (folder / name / "A.mtx").write_text(text)
    return solved(standing[2], folder, commands)


@pytest.mark.parametrize("ranks", [2, 4])
def test_real_ranks_find_ones_in_as_many_steps_as_threads_do(
    tmp_path: Path, on_two: dict[str, Ended], standing: dict[int, StandingRanks], ranks: int
) -> None:
    ended = on_two["solved"] if ranks == 2 else solved(standing[4], tmp_path, {})["solved"]
    ended.check(0)
    body = ended.body
    assert (body["status"], body["problem"]["ranks"], body["problem"]["matrix"]) == ("valid", ranks, "A.mtx")
    assert body["validation"]["max_error"] <= 1e-8
    assert body["phases"]["halo"]["calls"] > 0
    write(tmp_path, lopsided(80))
    config = HpgMxpConfig(
        matrix=str(tmp_path / "A.mtx"), rt=0.0, iterations=5, storage="sell", warmup="none", threads=1
    )
    (same, *_) = run_ranks(ranks, lambda comm: hpg_mxp.run(config, comm))
    for name in ("double_iterations", "mixed_iterations"):
        assert body["validation"][name] == same[0].validation[name]


def test_what_does_not_converge_ends_with_three_and_its_history(on_two: dict[str, Ended]) -> None:
    ended = on_two["stuck"]
    ended.check(3)
    assert "FAILED" in ended.stdout
    assert "--restart" in ended.stdout + ended.stderr
    assert len(ended.file("result.json")["validation"]["history"]["double"]) > 10


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_end_all_ranks_with_two_and_one_message(on_two: dict[str, Ended], name: str) -> None:
    on_two[name].check(2)
    assert on_two[name].stderr.count(MISTAKES[name][2]) == 1


def test_a_dry_run_knows_the_matrix_of_a_file(on_two: dict[str, Ended]) -> None:
    on_two["dry"].check(0)
    assert f"A.mtx  ranks 2: 30 rows, {lopsided(30).nnz} entries" in on_two["dry"].stdout
