"""Test the numbers and exit codes of HPCG under mpiexec, with fewer iterations on four ranks."""

from __future__ import annotations

import pytest

from tests.support.hpcg_steps import STEPS
from tests.support.ranks import Ended, StandingRanks, needs_mpi

pytestmark = needs_mpi

SHORT = ["run", "hpcg", "--nx", "16", "--rt", "0", "--warmup", "none", "--json", "-", "--quiet"]
#: Additional options by the number of ranks.
VALID = {2: ["--storage", "packed", "--mode", "explore"], 4: ["--smoother", "natural", "--storage", "ell"]}
MISTAKES = {"--nx 24": ["--nx", "20"], "leaves": ["--npx", "3"], "--mode explore": ["--nx", "8"]}


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory, standing: dict[int, StandingRanks]) -> dict[str, Ended]:
    """Run the commands on two ranks."""
    commands = {"two": [*SHORT, "--npx", "2"], "valid": [*SHORT, *VALID[2]]}
    commands |= {says: ["run", "hpcg", *arguments] for says, arguments in MISTAKES.items()}
    return standing[2].run(commands, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def on_four(tmp_path_factory: pytest.TempPathFactory, standing: dict[int, StandingRanks]) -> dict[str, Ended]:
    """Run the commands on four ranks."""
    folder = tmp_path_factory.mktemp("four")
    return standing[4].run({"valid": [*SHORT, *VALID[4]]}, folder, "tests.support.hpcg_steps")


def test_two_ranks_come_to_the_residual_that_hpcg_reports(on_two: dict[str, Ended]) -> None:
    on_two["two"].check(0)
    body = on_two["two"].body
    assert (body["status"], body["launch"]["ranks"]) == ("valid", 2)
    assert [body["problem"][name] for name in ("gnx", "gny", "gnz")] == [32, 16, 16]
    check = body["validation"]
    # Printed by HPCG 3.1 for this box and grid; far below the roundoff, the order of sums affects the second digit.
    assert check["reference_residual"] == pytest.approx(7.53688e-32, rel=0.05)
    assert check["cg"]["preconditioned"]["iterations"] == 2
    assert body["phases"]["halo"]["calls"] > 0
    assert body["result"]["dot_allreduce_s"]["max"] >= body["result"]["dot_allreduce_s"]["min"] > 0.0


@pytest.mark.parametrize("ranks", VALID)
def test_every_rank_count_is_valid(on_two: dict[str, Ended], on_four: dict[str, Ended], ranks: int) -> None:
    ended = {2: on_two, 4: on_four}[ranks]["valid"]
    ended.check(0)
    body = ended.body
    assert body["status"] == "valid"
    assert body["problem"]["rows"] == ranks * 16**3
    assert body["result"]["optimized_iterations_per_set"] >= {2: 50, 4: STEPS}[ranks]
    assert {one["rule"] for one in body["rules"]["violations"]} >= {"time", "memory"}


@pytest.mark.parametrize("says", MISTAKES)
def test_mistakes_end_all_ranks_before_anything_runs(on_two: dict[str, Ended], says: str) -> None:
    on_two[says].check(2)
    assert says in on_two[says].stderr
