"""Compare the steps of HPG-MxP under mpiexec with those of virtual ranks, and test that there is one exit code."""

from __future__ import annotations

from typing import Any

import pytest

from mxpeak.bench import limits
from mxpeak.records import Result
from tests.support.hpg_mxp_results import check_result, measured
from tests.support.hpg_mxp_solves import agree
from tests.support.ranks import Ended, StandingRanks, needs_mpi

pytestmark = needs_mpi

#: A short run with one storage.
SHORT = ["--nx", "16", "--rt", "0", "--iterations", "7", "--storage", "sell", "--threads", "1", "--warmup", "none"]
RUN = ["run", "hpg-mxp", *SHORT, "--quiet", "--json", "-"]
#: Flags and the same settings by name, for each number of ranks.
PROBLEMS: dict[tuple[int, str], tuple[list[str], dict[str, Any]]] = {
    (2, "nonsymmetric"): (
        ["--npx", "2", "--smoother", "natural", "--nonsymmetric"],
        {"npx": 2, "smoother": "natural", "nonsymmetric": True},
    ),
    (2, "unoptimized"): (
        ["--overlap", "off", "--zero-guess", "off", "--fused-restriction", "off"],
        {"overlap": "off", "zero_guess": "off", "fused_restriction": "off"},
    ),
    (2, "narrow"): (["--mg-vectors", "fp16"], {"mg_vectors": "fp16"}),
    (4, "narrow"): (["--mg-vectors", "bf16", "--npx", "4"], {"mg_vectors": "bf16", "npx": 4}),
    (4, "plain"): ([], {}),
    (4, "both"): (
        [
            "--nx",
            "24",
            "--ny",
            "16",
            "--nz",
            "16",
            "--overlap",
            "off",
            "--validation",
            "both",
            "--validation-ranks",
            "2",
        ],
        {"nx": 24, "ny": 16, "nz": 16, "overlap": "off", "validation": "both", "validation_ranks": 2},
    ),
    (4, "fullscale"): (
        ["--nz", "24", "--npz", "4", "--mg-precision", "fp16,fp32,fp32,fp32", "--validation", "fullscale"],
        {"nz": 24, "npz": 4, "mg_precision": ("fp16", "fp32", "fp32", "fp32"), "validation": "fullscale"},
    ),
}
MISTAKES = {
    "size": (["--nx", "20"], "20 / 8 leaves a remainder of 4"),
    "ranks": (["--npx", "3"], "--npx 3 does not divide the number of ranks: 2 / 3 leaves a remainder of 2"),
    "mode": (["--precision", "fp8"], "use --mode explore"),
}


def problems(ranks: int) -> dict[str, list[str]]:
    return {name: [*RUN, *flags] for (size, name), (flags, _) in PROBLEMS.items() if size == ranks}


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory, standing: dict[int, StandingRanks]) -> dict[str, Ended]:
    """Run the commands on two ranks."""
    commands = problems(2)
    commands["fails"] = [*RUN, "--nx", "32", "--threshold", "1e-15", "--iterations", "1"]
    commands |= {name: [*RUN, *flags] for name, (flags, _) in MISTAKES.items()}
    return standing[2].run(commands, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def on_four(tmp_path_factory: pytest.TempPathFactory, standing: dict[int, StandingRanks]) -> dict[str, Ended]:
    """Run the commands on four ranks."""
    return standing[4].run(problems(4), tmp_path_factory.mktemp("four"))


@pytest.mark.parametrize("problem", PROBLEMS)
def test_real_ranks_take_the_steps_of_virtual_ones(
    monkeypatch: pytest.MonkeyPatch, on_two: dict[str, Ended], on_four: dict[str, Ended], problem: tuple[int, str]
) -> None:
    ranks, name = problem
    ended = {2: on_two, 4: on_four}[ranks][name]
    ended.check(0)
    result = Result.from_dict(ended.body)
    check_result(result)
    assert (result.launch["ranks"], result.problem["ranks"]) == (ranks, ranks)
    monkeypatch.setattr(limits, "MAX_S", 0.0)
    settings = {"nx": 16, "mode": "official", "iterations": 1, "warmup": "none", **PROBLEMS[problem][1]}
    wanted = measured(ranks, **settings)
    for name in ("nx", "ny", "nz", "npx", "npy", "npz", "rows", "nnz"):
        assert result.problem[name] == wanted.problem[name]
    assert result.validation["double_iterations"] == wanted.validation["double_iterations"]
    agree(result.validation["history"]["double"], wanted.validation["history"]["double"])
    # Sums over ranks may have another order, and below fp32's accuracy only rounding is left: one step more or less.
    assert abs(result.validation["mixed_iterations"] - wanted.validation["mixed_iterations"]) <= 1


def test_a_validation_that_fails_is_exit_code_3_from_all_ranks(on_two: dict[str, Ended]) -> None:
    on_two["fails"].check(3)
    body = on_two["fails"].body
    assert (body["status"], body["validation"]["passed"]) == ("invalid", False)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_ends_all_ranks_with_2_and_is_reported_once(on_two: dict[str, Ended], name: str) -> None:
    on_two[name].check(2)
    assert MISTAKES[name][1] in on_two[name].stderr
    assert on_two[name].stderr.count("error:") == 1
