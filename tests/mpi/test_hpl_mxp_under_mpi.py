"""Compare the system, factors and steps of HPL-MxP under mpiexec with one process, and test its exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.ranks import Ended, StandingRanks, commands_here, needs_mpi

pytestmark = needs_mpi

SYSTEM = ["run", "hpl-mxp", "-N", "197", "--nb", "24", "--warmup", "none", "--json", "-"]
GRIDS = {
    2: {
        "1x2": ["--bcast", "2ring"],
        "2x1": ["--refine", "classical"],
        "2x1 butterfly": ["--pivoting", "butterfly", "--butterfly-depth", "3"],
        "1x2 partial": ["--pivoting", "partial"],
    },
    4: {
        "2x2": ["--scaling", "auto", "--bcast", "ilib"],
        "4x1": ["--depth", "0"],
        "1x4": ["--bcast", "longM", "--order", "column"],
        "2x2 of nodes": ["--node-grid", "1x2"],
        "2x2 butterfly": ["--pivoting", "butterfly", "--scaling", "auto"],
        "4x1 partial": ["--pivoting", "partial", "--scaling", "auto"],
    },
}
#: Options that break a rule, by the name of the rule.
BROKEN = {"generator": ["--generator", "dominant-n"], "lu-needed": ["--diagonal-scale", "1"]}
#: Options that would be ignored, by a part of the error.
IGNORED = {
    "--generator fasi-higham": ["--condition", "10"],
    "--refine gmres": ["--restart", "3", "--refine", "classical"],
    "above 0": ["--threshold", "0"],
    "--pivoting butterfly": ["--butterfly-depth", "3"],
    "--diagonal-scale": ["--generator", "fasi-higham", "--diagonal-scale", "2"],
}


def grids(ranks: int) -> dict[str, list[str]]:
    return {
        name: [*SYSTEM, "--precision", "fp16", "--grid", name.split()[0], *extra]
        for name, extra in GRIDS[ranks].items()
    }


@pytest.fixture(scope="module")
def on_one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """Run the system of these tests on one process, and the commands that need no more."""
    commands = {"alone": [*SYSTEM, "--precision", "fp16"]}
    commands |= {name: [*SYSTEM, *asked] for name, asked in {**BROKEN, **IGNORED}.items()}
    return commands_here(commands, tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory, standing: dict[int, StandingRanks]) -> dict[str, Ended]:
    """Run the commands on two ranks."""
    hopeless = ["--precision", "fp8", "--mode", "explore", "--refine", "classical", "--diagonal-scale", "0.3"]
    commands = {**grids(2), "hopeless": [*SYSTEM, *hopeless]}
    return standing[2].run(commands, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def on_four(tmp_path_factory: pytest.TempPathFactory, standing: dict[int, StandingRanks]) -> dict[str, Ended]:
    """Run the commands on four ranks."""
    commands = {**grids(4), "fp8": [*SYSTEM, "--precision", "fp8"]}
    return standing[4].run(commands, tmp_path_factory.mktemp("four"))


@pytest.mark.parametrize("ranks", GRIDS)
def test_every_grid_solves_the_system_of_one_process(
    ranks: int, on_one: dict[str, Ended], on_two: dict[str, Ended], on_four: dict[str, Ended]
) -> None:
    alone = on_one["alone"].body["validation"]
    for grid in GRIDS[ranks]:
        ended = {2: on_two, 4: on_four}[ranks][grid]
        ended.check(0)
        body: dict[str, Any] = ended.body
        assert body["launch"]["ranks"] == ranks
        pivoting = [remark["covered"] for remark in body["rules"].pop("remarks", [])]
        assert pivoting == {"butterfly": [False], "partial": [True]}.get(grid.split()[-1], [])
        assert body["rules"] == {"mode": "official", "admissible": True, "meaningful": True, "violations": []}
        assert body["validation"]["lu_proof"]["passed"]
        assert body["launch"]["comm"] == "mpi"
        assert body["software"]["mpi_library"], "the library that carried the messages"
        assert body["result"]["panel_solves"]["share"] == 1.0
        assert abs(body["validation"]["iterations"] - alone["iterations"]) <= 1
        norms, same = body["validation"]["norms"], alone["norms"]
        assert norms["A_inf"] == pytest.approx(same["A_inf"], rel=197 * 2.0**-53)  # the order of 197 additions
        assert norms["b_inf"] == same["b_inf"]
        # Both are within eta·n·u·condition of the solution, and the condition is about a thousand.
        assert norms["x_inf"] == pytest.approx(same["x_inf"], rel=32 * 197 * 2.0**-53 * 5000)


def test_a_system_that_cannot_converge_is_invalid_with_its_history(on_two: dict[str, Ended]) -> None:
    on_two["hopeless"].check(3)
    body = on_two["hopeless"].body
    assert body["status"] == "invalid"
    assert len(body["validation"]["history"]) == body["validation"]["iterations"] + 1
    assert not body["rules"]["admissible"]


def test_fp8_is_refused_in_official_mode_by_one_rank(on_four: dict[str, Ended]) -> None:
    on_four["fp8"].check(2)
    assert "--mode explore" in on_four["fp8"].stderr
    assert on_four["fp8"].stderr.count("error:") == 1


@pytest.mark.parametrize("rule", BROKEN)
def test_broken_rules_are_named(on_one: dict[str, Ended], rule: str) -> None:
    on_one[rule].check(0)
    body = on_one[rule].body
    assert not body["rules"]["admissible" if rule == "generator" else "meaningful"]
    assert body["rules"]["admissible"] == (rule != "generator")
    assert rule in [violation["rule"] for violation in body["rules"]["violations"]]


@pytest.mark.parametrize("says", IGNORED)
def test_options_that_would_be_ignored_are_refused(on_one: dict[str, Ended], says: str) -> None:
    on_one[says].check(2)
    assert says in on_one[says].stderr


def test_a_rank_that_computes_wrongly_is_found_by_the_proof(standing: dict[int, StandingRanks], tmp_path: Path) -> None:
    commands = {"wrong": [*SYSTEM, "--precision", "fp16", "--grid", "1x2"]}
    ended = standing[2].run(commands, tmp_path, "tests.support.wrong_products", "off_by_a_half")["wrong"]
    ended.check(3)
    body = ended.body
    assert not body["validation"]["lu_proof"]["passed"]
    assert body["validation"]["residual"] < 16, "refinement made up for it: the residual alone would have passed"
