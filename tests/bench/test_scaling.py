"""Test series over numbers of ranks: sizes, efficiency, expected rates, and groups that run one after the other."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from mxpeak.bench import expected, scaling
from mxpeak.bench.hpcg.config import HpcgConfig
from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
from mxpeak.bench.hpl import run as hpl
from mxpeak.bench.hpl.config import HplConfig
from mxpeak.bench.norms.config import NormsConfig
from mxpeak.bench.registry import BENCHMARKS
from mxpeak.bench.stencil_sizes import HierarchySize, fitted
from mxpeak.cli import main as cli
from mxpeak.cli.request import RunRequest
from mxpeak.cli.scaling import requests_with_ranks, study_requests
from mxpeak.cli.session import Session
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.configs.run import OutputConfig, RunConfig
from mxpeak.errors import ResourceError, UsageError
from mxpeak.layout.stencil import Box
from mxpeak.options import resolve, run_of
from mxpeak.perf.simulation.lu import LuRun
from mxpeak.perf.simulation.machines import find_machine
from mxpeak.perf.simulation.predict import simulate_lu
from mxpeak.records import Caution, Result, document
from mxpeak.report.html import html_report
from mxpeak.report.scaling import study_table
from mxpeak.runtime.memory import Budget
from tests.support.cli import Bench, Comm, use_fakes
from tests.support.result_file import VALIDATOR


def result(ranks: int, rate: float, status: str = "valid", **more: Any) -> Result:
    problem = {"n": 1000 * ranks, "nb": 100, "P": 1, "Q": ranks, "order": "row", "node_grid": None, "lookahead": 1}
    return Result(
        benchmark="hpl",
        status=status,
        problem={**problem, "split": 0.0, "memory_bytes": {"total": 800 * ranks}},
        result={"rate_flops": rate, "time_s": 2.0, "fraction_of_limit": None, "limit": None, "emulated": False},
        validation=dict.fromkeys(("passed", "residual", "threshold", "iterations")) | {"formula": "f"},
        config={"bcast": {"value": ("1ring",), "origin": "default"}},
        launch={"ranks": ranks},
        **more,
    )


# --- requested series -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requested", "ranks", "counts"),
    [(None, 2, (1, 2)), (None, 6, (1, 2, 4, 6)), (None, 8, (1, 2, 4, 8)), ((4, 1, 2), 2, (1, 2, 4))],
)
def test_counts_rise_and_by_default_double(requested: Any, ranks: int, counts: Any) -> None:
    assert scaling.rank_counts_of(requested, ranks, "") == counts


@pytest.mark.parametrize(
    ("values", "says"), [((1, 2, 2), "contains 2 twice"), ((4,), "4 has one"), (None, "1 has one (so)")]
)
def test_counts_that_make_no_series_are_refused(values: Any, says: str) -> None:
    with pytest.raises(UsageError) as error:
        scaling.rank_counts_of(values, 1, "so")
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (HplConfig(study="weak", grid=((1, 2),)), "--grid applies to a single run"),
        (HplConfig(study="weak", P=(1,), Q=(2,)), "remove -P or -Q, or both"),
        (HplConfig(study="weak", n=(10, 20)), "define 2 cases"),
        (HplConfig(study="weak", target=1.0), "--target applies to a single run"),
        (HplConfig(study="weak", baseline="last"), "--baseline applies to a single run"),
        (NormsConfig(study="weak", n=(10,)), "define 5 cases"),
        (NormsConfig(study="weak", n=(10,), m=(20,), kind=("one",)), "remove -m"),
        (HpgMxpConfig(study="weak", matrix="a.mtx"), "use --scaling-study strong"),
        (HpcgConfig(study="strong", nx=40), "40 / 2 = 20 is not a multiple of 8"),
        (HpcgConfig(study="strong", nx=16), "on 2 ranks (1x1x2): 16 / 2 = 8 is less than 16, the smallest side"),
        (HpcgConfig(study="strong", nx=16), "use --nx 32"),
        (HpcgConfig(study="strong", nx=16, ny=16, nz=16, sides_from_box=True), "allow; use --box 32x32x32"),
        (HpcgConfig(study="strong", nx=8), "on 1 rank (1x1x1): 8 is less than 16, the smallest side"),
        (RunConfig(study="weak"), "because its sizes do not grow"),
    ],
)
def test_what_makes_no_series_is_refused(config: RunConfig, says: str) -> None:
    with pytest.raises(UsageError) as error:
        scaling.check_study("triad", config, (1, 2))
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["hpl", "--ranks-list", "1,2"], "add --scaling-study weak or strong"),
        (["hpl", "--study", "weak", "--ranks-list", "1,x"], "'x' is not an integer"),
        (["hpl", "--study", "weak", "--ranks", "2", "--ranks-list", "1,4"], "needs 4 ranks, but --ranks is 2"),
        (["all", "--study", "weak"], "--scaling-study runs only one benchmark"),
    ],
)
def test_invalid_arguments_are_refused_before_any_rank_starts(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    use_fakes(monkeypatch, tmp_path, Comm(), Bench())
    assert cli.main(["run", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_the_most_ranks_of_a_list_are_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_fakes(monkeypatch, tmp_path, Comm(), Bench())
    assert cli.main(["run", "hpl", "-N", "100", "--study", "weak", "--ranks-list", "5,1"]) == 105, "the fake's code"


def test_ranks_that_were_not_started_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    use_fakes(monkeypatch, tmp_path, Comm(size=2), Bench())
    assert cli.main(["run", "hpl", "-N", "100", "--study", "weak", "--ranks-list", "1,4"]) == 2
    assert "needs 4 ranks, but 2 ranks were started" in capsys.readouterr().err


# --- sizes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 16, 72])
def test_a_weak_series_of_lu_keeps_the_memory_of_a_rank(ranks: int) -> None:
    config, first = HplConfig(study="weak", n=(20000,), nb=(96,)), {"n": 20000, "nb": 96}
    (n,) = scaling.sized(config, (1, ranks), ranks, first)["n"]
    (P, Q) = config.grids(ranks)[0]
    assert n % (96 * math.lcm(P, Q)) == 0
    assert n**2 / ranks == pytest.approx(20000**2, rel=2 * 96 * math.lcm(P, Q) / n)


def test_a_strong_series_of_lu_keeps_its_order() -> None:
    config = HplConfig(study="strong", n=(1000,))
    assert scaling.sized(config, (1, 2), 1, None) == {}
    assert scaling.sized(config, (1, 2), 2, {"n": 1000, "nb": 192}) == {"n": (1000,)}


@pytest.mark.parametrize(("mem", "share"), [("80%", "20%"), ("2GiB", "512MiB")])
def test_an_open_order_leaves_room_for_all_ranks(mem: str, share: str) -> None:
    config = HplConfig(study="weak", mem=mem, device="cpu")
    assert scaling.sized(config, (1, 2, 4), 1, None) == {"mem": share}


@pytest.mark.parametrize("counts", [(1, 2, 4), (2, 4, 8), (1, 3, 9)])
@pytest.mark.parametrize("quick", [False, True])
def test_a_strong_series_of_boxes_keeps_the_global_box(counts: tuple[int, ...], quick: bool) -> None:
    config = HpcgConfig(study="strong", device="cpu", quick=quick, mode="explore")
    shapes = scaling.boxes(config, counts)
    wholes = {scaling._whole(shape, ranks) for ranks, shape in shapes.items()}
    assert len(wholes) == 1
    assert all(n % 8 == 0 for shape in shapes.values() for n in shape)


def test_a_weak_series_of_boxes_keeps_a_ranks_box() -> None:
    assert scaling.boxes(HpcgConfig(study="weak", nx=24), (1, 2, 4)) == dict.fromkeys((1, 2, 4), (24, 24, 24))


@pytest.mark.parametrize("by_box", [False, True])
def test_the_advice_on_memory_of_a_strong_series_names_the_box_that_is_divided(by_box: bool) -> None:
    """The box on more ranks is derived, so a flag with its sides would be another problem."""
    config = HpcgConfig(study="strong", ranks_list=(1, 2), nx=32, ny=32, nz=16, sides_from_box=by_box)
    budget, hierarchies = Budget(20 << 20, 20 << 20, 2), [HierarchySize((8, 8, 8, 8), 8)]
    flag = "--box" if by_box else "--nx"
    with pytest.raises(ResourceError, match=f"use a smaller {flag}, which sets the box on 1 rank that the study"):
        fitted(Box(32, 32, 16, npz=2), config, hierarchies, budget)
    with pytest.raises(ResourceError, match=f"use {flag} .*, the largest cube that fits"):
        fitted(Box(32, 32, 32), config, hierarchies, budget)


# --- results ----------------------------------------------------------------------------------------------------


def study_of(runs: list[tuple[int, Result | None]], kind: str = "weak") -> dict[str, Any]:
    return scaling.scaling_study(HplConfig(study=kind), 1, runs, lambda valid: expected.expected_rates(valid, 1))


def test_efficiency_is_relative_to_the_rate_per_rank_of_the_fewest_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expected, "measured_layouts", dict)
    crowded = [Caution("oversubscribed", "4 ranks share fewer cores", "")]
    runs = [(2, result(2, 4e9)), (4, result(4, 6e9)), (8, result(8, 9e9, "invalid")), (16, None)]
    runs.append((32, result(32, 16e9, warnings=crowded)))
    study = study_of(runs)
    assert [point["efficiency"] for point in study["points"]] == [1.0, 0.75, None, None, 0.25]
    assert [point["expected_rate"] for point in study["points"]] == [4e9, 8e9, None, None, 64e9]
    assert [point["status"] for point in study["points"]] == ["valid", "valid", "invalid", "none", "valid"]
    assert study["expected"]["source"] == "measured"
    assert study["points"][0]["bytes_per_rank"] == 800
    body = document([one for _, one in runs if one], several=True) | {"study": study}
    VALIDATOR.validate(body)
    table = study_table(study).splitlines()
    assert "75.0 %" in table[3]
    assert "32*" in table[6]
    page = html_report(body)
    assert page.count("<title>4 ranks, N 4000 on 1x4: measured 75.0 %</title>") == 1
    assert page.count("<title>4 ranks, N 4000 on 1x4: expected 8.00 GFLOP/s</title>") == 1


def test_a_series_of_hpg_mxp_has_the_ratios_of_both_validations() -> None:
    def checked(ranks: int, standard: tuple[int, int], fullscale: tuple[int, int]) -> Result:
        names = ("type", "ranks", "double_iterations", "mixed_iterations", "ratio", "double_residual", "passed")

        def check(kind: str, n_d: int, n_ir: int, passed: bool = True) -> dict[str, Any]:
            return dict(zip(names, (kind, ranks, n_d, n_ir, n_d / n_ir, 9e-10, passed)))

        found = result(ranks, 1e9 * ranks)
        found.validation |= check("standard", *standard) | {"fullscale": check("fullscale", *fullscale, ranks < 4)}
        return found

    runs = [(2, checked(2, (30, 31), (30, 31))), (4, checked(4, (30, 31), (42, 40)))]
    study = study_of(runs)
    VALIDATOR.validate(document([one for _, one in runs if one], several=True) | {"study": study})
    last = study["points"][1]["validations"]
    assert [(each["type"], each["ratio"]) for each in last] == [("standard", 30 / 31), ("fullscale", 42 / 40)]
    head, two, four = [line.split() for line in study_table(study).splitlines()[-3:]]
    assert head[:4] == ["ranks", "standard:", "n_d", "n_ir"]
    assert two == ["2", "30", "31", "0.968", "9.00e-10", "30", "31", "0.968", "9.00e-10"]
    assert four == ["4", "30", "31", "0.968", "9.00e-10", "42", "40", "1.05", "9.00e-10", "FAILED"]
    page = html_report(document([one for _, one in runs if one], several=True) | {"study": study})
    assert page.count("<title>4 ranks, fullscale: 42 / 40 = 1.05</title>") == 1


def test_a_series_without_a_beginning_has_no_efficiency() -> None:
    study = study_of([(1, None), (2, result(2, 1e9))], "strong")
    assert [point["efficiency"] for point in study["points"]] == [None, None]
    assert study["expected"]["source"] == "none"


def test_a_machine_that_was_measured_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expected, "measured_layouts", lambda: {(2, 1): "crusher", (1, 8): "crusher"})
    results = [result(1, 1e9), result(2, 2e9)]
    source, _, rates = expected.expected_rates(results, 1)
    run = LuRun(n=2000, nb=100, P=1, Q=2, order="row", bcast="1ring")
    assert source == "tuned"
    assert rates[1] == simulate_lu("hpl", run, find_machine("crusher")).rate_flops
    assert expected.expected_rates(results, 3)[0] == "measured", "no layout has three threads a rank"


def test_a_sparse_run_is_simulated_as_it_ran() -> None:
    sides = {"nx": 32, "ny": 24, "nz": 16, "npx": 1, "npy": 2, "npz": 3}
    problem = {**sides, "precision": {"mg": ["bf16"], "krylov": "bf16"}, "max_iterations": 300}
    run = expected.sparse_run(Result(benchmark="hpg-mxp", status="valid", problem=problem, validation={"penalty": 0.5}))
    assert (run.box.global_shape, run.low, run.iterations, run.penalty) == ((32, 48, 48), "bf16", 300, 0.5)


# --- groups -----------------------------------------------------------------------------------------------------


def test_groups_run_one_after_the_other_and_the_others_wait() -> None:
    """Run HPL on one and then on two of three ranks; the sizes follow from the first run."""
    flags = {
        "n": "64",
        "nb": "8",
        "study": "weak",
        "ranks_list": "1,2",
        "warmup": "none",
        "threads": "1",
        "device": "cpu",
    }
    run = run_of(HplConfig, resolve(HplConfig, flags, {}, {}))
    about: Any = {"benchmark": BENCHMARKS["hpl"], "output": OutputConfig(quiet=True), "from_dat": False, "begun": None}
    request = RunRequest(config=run.config, origins=run.origins, **about)
    results: list[Result] = []

    def body(comm: Any) -> list[int]:
        session, sizes = Session(), []
        session.comm = comm
        for part, group in requests_with_ranks(study_requests(request, session), session, lambda: results[0].problem):
            (ended,) = hpl.run(part.config, group, origins=part.origins)
            sizes.append(group.size)
            if comm.rank == 0:
                results.append(ended)
        return sizes

    assert run_ranks(3, body) == [[1, 2], [2], []]
    assert [(one.problem["n"], one.problem["Q"], one.status) for one in results] == [(64, 1, "valid"), (96, 2, "valid")]
