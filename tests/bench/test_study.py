"""Test the measurements, the conclusions and the files of `mxpeak study`."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
from mxpeak.bench.sparse import order_of, plain_storage
from mxpeak.cli import main as cli
from mxpeak.cli.session import Interrupted
from mxpeak.configs.lu import GENERATORS
from mxpeak.errors import ExitCode, MxpeakError, ResourceError, UsageError
from mxpeak.layout.entries import Entries
from mxpeak.perf.sparse_counts import HPG_MXP_MOTIFS
from mxpeak.records import Result
from mxpeak.report.plots import Axis, Series, loglog
from mxpeak.verbs.study import command
from mxpeak.verbs.study import hpg_mxp as sweep
from mxpeak.verbs.study import run as study
from mxpeak.verbs.study.hpg_mxp_report import sweep_figures, sweep_table
from mxpeak.verbs.study.run import (
    StudyPlan,
    draw,
    full_gmres_on_arrays,
    largest_pivot,
    lu_without_pivoting,
    residual_norms,
    uniform_system,
)
from tests.support.generated import drawn_system
from tests.support.hpg_mxp_results import measured

U = 2.0**-53
#: The settings that differ between the steps of the study hpg-mxp.
STEP = ("storage", "smoother", "precision", "overlap", "zero_guess", "fused_restriction")


# --- measurements -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "columns", "first"), [(1, 1, 1), (1, 5, 1), (7, 3, 50), (16, 16, 1), (33, 33, 1090)])
def test_drawn_matrices_are_the_entries_bit_by_bit(n, columns, first):
    entries = Entries("lcg", n, seed=42, first=first, scale=-2.0, shift=1.0)
    expected = [[entries.value(i, j) for j in range(columns)] for i in range(n)]
    assert np.array_equal(draw(entries, columns), expected)


@pytest.mark.parametrize("n", [1, 2, 30, 101])
def test_the_largest_pivot_is_that_of_gaussian_elimination_with_row_interchanges(n):
    A, _ = uniform_system(n, 100)
    S, pivots = A.copy(), []
    for k in range(n):
        at = k + int(np.argmax(np.abs(S[k:, k])))
        S[[k, at]] = S[[at, k]]
        S[k + 1 :, k + 1 :] -= np.outer(S[k + 1 :, k] / S[k, k], S[k, k + 1 :])
        pivots.append(abs(S[k, k]))
    pivot = largest_pivot(A)
    # two orders of the same sums: n roundings of numbers that grow by less than n
    assert pivot["largest"] == pytest.approx(max(pivots), rel=n * n * U * 100)
    assert pivot["position"] == (int(np.argmax(pivots)) + 1) / n
    assert pivot["late_over_sqrt_n"] == pytest.approx(np.median(pivots[n * 9 // 10 :]) / n**0.5)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 150])
def test_lu_without_pivoting_gives_factors_of_the_matrix_itself(n):
    A, _ = uniform_system(n, 3)
    np.fill_diagonal(A, n)
    LU = lu_without_pivoting(A)
    L, R = np.tril(LU, -1) + np.eye(n), np.triu(LU)
    # the bound of the elimination, n·u·|L||U|, and the same again for the product here
    assert (np.abs(L @ R - A) <= 2 * n * U * (np.abs(L) @ np.abs(R))).all()


def test_residuals_without_pivoting_are_larger_and_with_it_pass():
    A, b = uniform_system(300, 100)
    kept, lost = residual_norms(A, b, pivoting=True), residual_norms(A, b, pivoting=False)
    assert kept["passed"]
    assert kept["norm_inf"] <= kept["norm_2"] <= kept["norm_1"]
    for name in ("norm_1", "norm_2", "norm_inf"):
        assert lost[name] > 10 * kept[name]


def test_a_zero_pivot_without_pivoting_is_reported_as_no_number():
    A, b = np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([1.0, 2.0])
    assert residual_norms(A, b, pivoting=True)["norm_1"] == 0.0
    assert residual_norms(A, b, pivoting=False) == {
        "norm_1": None,
        "norm_2": None,
        "norm_inf": None,
        "scaled_residual": None,
        "passed": False,
    }


# --- GMRES ------------------------------------------------------------------------------------------------------


def test_gmres_needs_one_step_for_each_distinct_eigenvalue(rng):
    b = rng.uniform(-1, 1, 60)
    for k in (1, 2, 5):
        went = full_gmres_on_arrays(np.diag(1.0 + np.arange(60) % k), b)
        assert went.steps == k
        assert went.scaled_residual < 16.0


def test_gmres_needs_all_n_steps_for_a_cyclic_shift():
    n = 20
    assert full_gmres_on_arrays(np.roll(np.eye(n), 1, axis=0), np.eye(n)[0]).steps == n


def test_gmres_that_cannot_succeed_says_so():
    nothing = full_gmres_on_arrays(np.zeros((3, 3)), np.ones(3))
    assert (nothing.steps, nothing.reduction) == (None, 1.0)


def test_gmres_steps_follow_the_circular_law_where_the_disc_is_away_from_zero():
    A, b = uniform_system(400, 100)
    for c in (1.0, 1.5):
        np.fill_diagonal(A, c * 20.0)
        case = study.gmres_case(A, b, c)
        assert case["steps"] == pytest.approx(case["predicted_steps"], rel=0.1)


@pytest.mark.parametrize("name", GENERATORS)
def test_a_mildly_scaled_diagonal_makes_a_preconditioner_necessary(name):
    steps = full_gmres_on_arrays(*drawn_system(name, 200)).steps
    # dominant matrices, and fasi-higham with its eigenvalues in one cluster, are solved without any factors
    easy = name in ("dominant-n", "icl", "fasi-higham")
    assert steps < 20 if easy else steps > 100


# --- whole studies ------------------------------------------------------------------------------------------------


def test_a_run_holds_every_case_and_no_nan():
    heard: list[tuple[str, int, int]] = []
    plan = StudyPlan(("pivots", "norms", "gmres"), orders=(30, 1, 2, 30), seeds=2, scales=(0.7, 2.0))
    body = study.run_study(plan, argv=["study"], on_case=lambda *news: heard.append(news))
    assert json.loads(json.dumps(body, allow_nan=False))["schema"] == "mxpeak.study/1"
    assert heard[-1] == ("gmres", 6, 6)
    assert len(heard) == 18
    assert [(c["n"], c["seed"]) for c in body["pivots"]["cases"]] == [(n, s) for n in (1, 2, 30) for s in (100, 101)]
    assert [c["pivoting"] for c in body["norms"]["cases"]] == [True, False] * 6
    assert {c["diagonal_scale"] for c in body["gmres"]["cases"]} == {0.7, 2.0}
    assert all(c["steps"] <= c["n"] for c in body["gmres"]["cases"])


def test_the_trend_is_the_exponent_of_a_power():
    exponent, spread = study._trend([(n, 3.0 * n**0.45) for n in (10, 100, 1000)])
    assert exponent == pytest.approx(0.45)
    assert spread == pytest.approx(0.0, abs=1e-12)
    assert study._trend([(10, 1.0), (10, 2.0)]) == (None, None)


def test_an_order_that_does_not_fit_is_refused_with_the_arithmetic(monkeypatch):
    monkeypatch.setattr(study, "available_memory_bytes", lambda: 2**30)
    with pytest.raises(
        ResourceError, match=r"N=20000 needs 4 matrices of 8·N² bytes .11.92 GiB., but only 1 GiB.*-N 5700"
    ):
        study.run_study(StudyPlan(("pivots",), orders=(100, 20000)))
    with pytest.raises(ResourceError, match=r"N=200000 needs 4 matrices of 8·N² bytes .1192 GiB., but only 1 GiB"):
        study.run_study(StudyPlan(("pivots",), orders=(200000,)))


# --- the command line ---------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


SMALL = ["-N", "20,40", "--seeds", "2"]


def test_study_shows_tables_and_writes_json_and_figures(here, capsys):
    assert cli.main(["study", *SMALL, "--diagonal-scale", "0.625,1"]) == 0
    out, err = capsys.readouterr()
    assert [line.split(":")[0] for line in out.splitlines() if line and line[0] != " "] == ["pivots", "norms", "gmres"]
    (folder,) = (here / "mxpeak-out").iterdir()
    assert err.splitlines()[-1] == f"results in mxpeak-out/{folder.name}/"
    body = json.loads((folder / "study.json").read_text())
    assert body["argv"] == ["study", *SMALL, "--diagonal-scale", "0.625,1"]
    page = (folder / "study.html").read_text()
    assert page.count("<svg") == 4
    assert "://" not in page


def test_only_the_studies_asked_for_run(here, capsys):
    assert cli.main(["study", "norms", "pivots", *SMALL, "--json", "-", "--out", "here"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert {"pivots", "norms", "gmres"} & set(body) == {"pivots", "norms"}
    assert body == json.loads((here / "here" / "study.json").read_text())


def test_fact_measures_panels_by_height_and_threads(here, capsys):
    argv = ["study", "fact", "--nb", "16", "-N", "64,16", "--threads", "1", "--out", "out", "--json", "fact.json"]
    assert cli.main(argv) == 0
    part = json.loads(Path("fact.json").read_text())["fact"]
    assert [(case["m"], case["nb"], case["threads"]) for case in part["cases"]] == [(16, 16, 1), (64, 16, 1)]
    assert all(case["rate_flops"] > 0 and case["dgemm_flops"] > 0 for case in part["cases"])
    best = max(part["cases"], key=lambda case: case["rate_flops"])
    assert part["summary"]["1"]["m"] == best["m"]
    assert part["summary"]["1"]["share"] == best["rate_flops"] / best["dgemm_flops"]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-4:]] == ["M", "16", "64", "DGEMM"]
    page = Path("out/study.html").read_text()
    assert "panel factorization" in page
    assert "T = 1" in page


def test_hpg_mxp_adds_one_optimization_per_step_until_the_full_code(here, capsys, monkeypatch):
    """The runs use thread ranks, the reference kernels, boxes of 8 points per side and one iteration."""
    calls: list[dict[str, Any]] = []
    tiny = {"kernels": "reference", "iterations": 1, "threshold": 0.5, "warmup": "none"}

    def run(**settings: Any) -> Result:
        calls.append(settings)
        wanted = {name: value for name, value in settings.items() if name in STEP}
        return measured(settings["ranks"], **tiny, **wanted)

    monkeypatch.setattr(sweep, "hpg_mxp", run)
    argv = ["hpg-mxp", "--nx", "16", "--rt", "2", "--ranks", "2,1", "--device", "cpu", "--json", "s.json", "--out", "o"]
    assert cli.main(["study", *argv]) == 0
    part = json.loads(Path("s.json").read_text())["hpg-mxp"]
    assert {(one["nx"], one["rt"], one["device"]) for one in calls} == {(16, 2.0, "cpu")}
    names = ["reference", "zero guess", "fused restriction", "exact 16-bit values"]
    by_ranks = {ranks: [case for case in part["cases"] if case["ranks"] == ranks] for ranks in (1, 2)}
    assert [case["step"] for case in by_ranks[1]] == names
    assert [case["step"] for case in by_ranks[2]] == [names[0], "overlap", *names[1:]]
    off, on = dict.fromkeys(STEP[-3:], False), dict.fromkeys(STEP[-3:], True)
    assert [case["ran"]["optimizations"] for case in (by_ranks[2][0], by_ranks[2][-1])] == [off, on]
    assert [case["ran"]["precision"]["mg"][0] for case in (by_ranks[2][0], by_ranks[2][-1])] == ["fp32", "fp8"]
    for cases in by_ranks.values():
        for case in cases:
            assert case["over_reference"] == case["rate_flops"] / cases[0]["rate_flops"]
            assert sum(case["seconds_per_solve"]["double"][name] for name in HPG_MXP_MOTIFS) > 0.0
    last = {name: value for name, value in calls[-1].items() if name in STEP}
    config = HpgMxpConfig(kernels="host", **{name: value for name, value in last.items() if name != "smoother"})
    assert config == HpgMxpConfig(kernels="host", storage=plain_storage(config)), "the full code is the default"
    assert order_of(config, "rows") == order_of(replace(config, smoother=last["smoother"]), "rows")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-9:]] == ["1"] * 4 + ["2"] * 5
    page = Path("o/study.html").read_text()
    assert page.count("<figure>") == 3
    assert "fp64, random entries" not in page


def test_hpg_mxp_steps_on_a_device_begin_with_levels_and_slices():
    named = dict(sweep.steps(4, on_gpu=True))
    assert list(named)[:3] == ["reference", "multicolor sweeps", "overlap"]
    assert (named["reference"]["storage"], named["reference"]["smoother"]) == ("sell", "reference")
    assert {named[name]["smoother"] for name in named if name != "reference"} == {"coloured"}


def test_a_step_without_a_valid_result_has_no_rate(monkeypatch):
    results = iter(
        [Result(benchmark="hpg-mxp", status="invalid", result={"rate_flops": 1e9}, problem={"ranks": 1})] * 4
    )
    monkeypatch.setattr(sweep, "hpg_mxp", lambda **settings: next(results))
    cases: list[dict[str, Any]] = []
    sweep.sweep_cases(sweep.SweepPlan(device="cpu"), lambda done, count: None, cases)
    assert {(case["status"], case["rate_flops"], case["over_reference"]) for case in cases} == {("invalid", None, None)}
    rows, _ = sweep_table({"cases": cases})
    assert all("no rate: invalid" in row for row in rows[1:])
    assert sweep_figures({"cases": cases}) == ""


SWEEP = ["study", "hpg-mxp", "--nx", "16", "--rt", "1", "--device", "cpu", "--out", "o"]


@pytest.fixture
def sweep_that_raises(monkeypatch):
    """Return a function that sets the errors of the steps of hpg-mxp, by the number of the run."""

    def raising(errors: dict[int, BaseException]) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []

        def run(**settings: Any) -> Result:
            calls.append(settings)
            if len(calls) in errors:
                raise errors[len(calls)]
            return measured(settings["ranks"], kernels="reference", iterations=1, threshold=0.5, warmup="none")

        monkeypatch.setattr(sweep, "hpg_mxp", run)
        return calls

    return raising


def test_a_step_that_fails_is_named_and_the_other_steps_are_kept(here, capsys, sweep_that_raises):
    sweep_that_raises({2: ResourceError("out of memory")})
    assert cli.main(SWEEP) == ExitCode.RESOURCE
    cases = json.loads(Path("o/study.json").read_text())["hpg-mxp"]["cases"]
    assert [case["step"] for case in cases] == list(dict(sweep.steps(1, on_gpu=False)))
    assert [case.get("error") for case in cases] == [None, "out of memory", None, None]
    assert [case["rate_flops"] is None for case in cases] == [False, True, False, False]
    out, err = capsys.readouterr()
    assert "  zero guess, 1 rank: out of memory" in out.splitlines()
    assert "hpg-mxp, step 'zero guess' on 1 rank: out of memory; to repeat this step" in " ".join(err.split())
    assert "mxpeak run hpg-mxp --nx 16 --rt 1.0 --ranks 1 --device cpu --quick --storage rows" in " ".join(err.split())
    assert "no rate: aborted" in Path("o/study.html").read_text()


def test_ranks_without_a_reference_are_skipped(here, capsys, sweep_that_raises):
    calls = sweep_that_raises({5: MxpeakError("rank 1 ended")})
    assert cli.main([*SWEEP, "--ranks", "1,2,3"]) == ExitCode.BUG
    assert [settings["ranks"] for settings in calls] == [1] * 4 + [2] + [3] * 5
    cases = json.loads(Path("o/study.json").read_text())["hpg-mxp"]["cases"]
    assert [case["error"] for case in cases if case["ranks"] == 2] == ["rank 1 ended"]
    assert "step 'reference' on 2 ranks: rank 1 ended" in " ".join(capsys.readouterr().err.split())


def test_a_failure_of_the_first_step_ends_the_study_and_leaves_nothing_behind(here, capsys, sweep_that_raises):
    calls = sweep_that_raises({1: UsageError("nx is too small")})
    assert cli.main(SWEEP) == ExitCode.USAGE
    assert len(calls) == 1
    assert list(here.iterdir()) == []


def test_a_failed_validation_of_a_step_is_an_exit_code(here, capsys, monkeypatch):
    invalid = Result(benchmark="hpg-mxp", status="invalid", problem={"ranks": 1})
    monkeypatch.setattr(sweep, "hpg_mxp", lambda **settings: invalid)
    assert cli.main(SWEEP) == ExitCode.FAILED
    assert "step 'reference' on 1 rank: the result is invalid" in " ".join(capsys.readouterr().err.split())


def test_a_signal_keeps_the_finished_steps(here, capsys, sweep_that_raises):
    sweep_that_raises({3: Interrupted(signal.SIGINT)})
    assert cli.main(SWEEP) == 128 + signal.SIGINT
    body = json.loads(Path("o/study.json").read_text())
    assert [case["step"] for case in body["hpg-mxp"]["cases"]] == ["reference", "zero guess"]
    assert body["aborted"] == "ended by signal 2"
    assert capsys.readouterr().out.splitlines()[-1] == "The study is incomplete: ended by signal 2"
    assert "The study is incomplete: ended by signal 2" in Path("o/study.html").read_text()


@pytest.mark.parametrize("name", ["pivots", "norms", "gmres", "generators", "pivoting", "fact"])
def test_a_signal_keeps_the_finished_cases_of_every_study(here, capsys, monkeypatch, name):
    def interrupted(self: Any, study: str, done: int, count: int) -> None:
        if done == 2:
            raise Interrupted(signal.SIGTERM)

    monkeypatch.setattr(command._Progress, "__call__", interrupted)
    size = ["--nb", "8", "--threads", "1"] if name == "fact" else ["--seeds", "1"]
    assert cli.main(["study", name, "-N", "16,24,32", *size, "--out", "o"]) == 128 + signal.SIGTERM
    whole = {"norms": 4, "gmres": 2 * len(study.SCALES), "generators": 2 * len(GENERATORS)}
    assert len(json.loads(Path("o/study.json").read_text())[name]["cases"]) == whole.get(name, 2)
    assert f"<h2>{name}</h2>" in Path("o/study.html").read_text()


def test_hpg_mxp_is_refused_under_a_launcher(here, capsys, monkeypatch):
    monkeypatch.setattr("mxpeak.runtime.launcher.launched", lambda: True)
    assert cli.main(["study", "hpg-mxp"]) == 2
    assert "mxpeak study hpg-mxp starts its own ranks" in capsys.readouterr().err


def test_fact_is_not_among_the_default_studies(here, capsys):
    assert cli.main(["study", "-N", "20", "--seeds", "1", "--json", "-"]) == 0
    assert "fact" not in json.loads(capsys.readouterr().out)


def test_json_goes_to_a_file_too(here, capsys):
    assert cli.main(["study", "pivots", *SMALL, "--json", "copy.json"]) == 0
    assert json.loads((here / "copy.json").read_text())["schema"] == "mxpeak.study/1"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["spectra"],
            "study: 'spectra' is unknown; use one of pivots, norms, gmres, generators, pivoting, fact, hpg-mxp",
        ),
        (["pivots", "-N", "0"], "-N: 0 is out of range"),
        (["pivots", "-N", "ten"], "-N: 'ten' is not an integer"),
        (["--seeds", "0"], "--seeds: 0 is out of range"),
        (["gmres", "--diagonal-scale", "nan"], "--diagonal-scale: 'nan' is not a finite number"),
        (
            ["pivots", "--diagonal-scale", "1"],
            "--diagonal-scale applies only to the study gmres, but the command runs the study pivots",
        ),
        (["pivots", "--json", "no/such/file"], "cannot write no/such/file"),
        (["pivots", "--nb", "8"], "--nb applies only to the study fact, but the command runs the study pivots"),
        (
            ["--threads", "1"],
            "--threads applies only to the studies fact and hpg-mxp, but the command runs the studies pivots, norms "
            "and gmres; remove --threads, or run mxpeak study fact",
        ),
        (["fact", "--nx", "32"], "--nx applies only to the study hpg-mxp, but the command runs the study fact"),
        (["hpg-mxp", "--nx", "20"], "--nx 20 is not a multiple of 8"),
        (["hpg-mxp", "--rt", "-1"], "--rt: -1 is out of range"),
        (["hpg-mxp", "--threads", "1,2"], "--threads 1,2 has 2 values, but the study hpg-mxp needs one number"),
        (["fact", "--nb", "32", "-N", "16,64"], "a panel of 16 rows has fewer rows than its NB = 32 columns"),
        (["fact", "--threads", "1024"], "--threads 1024 exceeds the"),
        (
            ["pivots", "--generator", "ddd"],
            "--generator applies only to the studies generators and pivoting, but the command runs the study pivots",
        ),
        (
            ["generators", "--precision", "fp16"],
            "--precision applies only to the study pivoting, but the command runs the study gen",
        ),
        (
            ["fact", "--seeds", "3"],
            "--seeds applies only to the studies pivots, norms, gmres, generators and pivoting, but the command runs "
            "the study fact; remove --seeds, or run mxpeak study pivots",
        ),
        (
            ["hpg-mxp", "-N", "100"],
            "-N applies only to the studies pivots, norms, gmres, generators, pivoting and fact",
        ),
        (["generators", "--generator", "dd"], "--generator: 'dd' is unknown; use one of sqrt-n"),
        (["pivoting", "-N", "3,200"], "groups of 4 rows by butterflies, but N = 3; use -N 4 or more"),
        (
            ["fact", "pivots", "--ranks", "2"],
            "fact measures one process, but --ranks is 2; remove fact, or use --ranks 1",
        ),
        (["fact", "--depth", "1"], "mxpeak study does not accept --depth 1"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing_behind(here, capsys, argv, message):
    assert cli.main(["study", *argv]) == 2
    assert message in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_results_are_never_overwritten(here, capsys):
    (here / "study.html").write_text("mine")
    assert cli.main(["study", "pivots", *SMALL, "--out", "."]) == 2
    assert "never overwrites results" in capsys.readouterr().err
    assert (here / "study.html").read_text() == "mine"


# --- figures ------------------------------------------------------------------------------------------------------


def parsed(figure: str) -> Any:
    return ElementTree.fromstring(figure)


def test_a_figure_has_a_mark_a_point_and_leaves_out_what_has_no_place_on_it():
    points = [(1.0, 10.0), (10.0, None), (100.0, 0.0), (100.0, -1.0), (100.0, float("inf")), (1000.0, 1e4)]
    drawn = parsed(loglog("t", "x", "y", [Series("dots", points), Series("line", points, joined=True)]))
    dots = drawn.findall(".//circle")
    assert len(dots) == 2
    (line,) = drawn.findall(".//polyline")
    assert line.get("points") == " ".join(f"{d.get('cx')},{d.get('cy')}" for d in dots[:2])
    assert float(dots[0].get("cy")) > float(dots[1].get("cy"))
    assert loglog("t", "x", "y", [Series("nothing", [(1.0, None)])]) == ""


def test_texts_in_a_figure_are_escaped():
    drawn = parsed(loglog('a "<b>', "x < y", "R & D", [Series("<i>", [(1.0, 1.0)])], caption="a > b"))
    texts = ["".join(element.itertext()).strip() for element in drawn.iter()]
    assert {'a "<b>', "x < y", "R & D", "● <i>", "a > b"} <= set(texts)


def test_an_axis_places_equal_ratios_equally_far_apart():
    axis = Axis(1.0, 100.0, [], logarithmic=True)
    assert [round(axis.place(v, 0.0, 200.0)) for v in (1, 10, 100)] == [0, 100, 200]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (1.0, 1000.0, ["1", "10", "100", "1000"]),
        (90.0, 1700.0, ["100", "200", "500", "1000"]),
        (0.58, 0.82, ["0.6", "0.7", "0.8"]),
        (1e-9, 1e-7, ["10⁻⁹", "10⁻⁸", "10⁻⁷"]),
    ],
)
def test_ticks_are_round_numbers_few_and_inside(low, high, ticks):
    assert [text for _, text in Axis.decades([low, high]).ticks] == ticks
    assert len(Axis.decades([1e-16, 1e6]).ticks) <= 12
