"""Compare studies on thread ranks with those of one process, for all generators and kinds of pivoting."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mxpeak.bench.hpl_mxp.config import PIVOTING
from mxpeak.cli import main as cli
from mxpeak.comm.grid import make_grid
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.configs.lu import GENERATORS
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.layout.grid import ProcessGrid
from mxpeak.verbs.study import on_ranks
from mxpeak.verbs.study import run as study
from mxpeak.verbs.study.on_ranks import StudyGrid
from mxpeak.verbs.study.run import StudyPlan, residual_norms, uniform_system
from tests.support.generated import drawn_system

SHAPES = [(1, 1), (2, 2), (2, 3)]
U = 2.0**-53


@pytest.fixture(autouse=True)
def on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use one thread per rank without binding cores, and small blocks."""

    @contextmanager
    def opened(comm: Any, device: str) -> Iterator[StudyGrid]:
        P = {1: 1, 4: 2, 6: 2}[comm.size]
        grid = make_grid(ProcessGrid(P, comm.size // P, "row", None), comm)
        assert grid is not None
        yield StudyGrid(grid, HostKernels(1, poison=True))

    monkeypatch.setattr(on_ranks, "opened", opened)
    monkeypatch.setattr(on_ranks, "NB", 8)


def on(ranks: int, plan: StudyPlan) -> dict[str, Any]:
    """Return the study, on which all ranks must agree."""
    bodies: list[dict[str, Any]] = run_ranks(ranks, lambda comm: study.run_study(plan, comm))
    for body in bodies[1:]:
        assert all(body[name]["cases"] == bodies[0][name]["cases"] for name in plan.studies)
    assert bodies[0]["ranks"] == ranks
    return bodies[0]


@pytest.mark.parametrize("ranks", [4, 6])
def test_pivots_norms_and_gmres_are_those_of_one_process(ranks: int) -> None:
    plan = StudyPlan(("pivots", "norms", "gmres"), orders=(1, 37, 83), seeds=2, scales=(0.7, 2.0))
    together, alone = on(ranks, plan), study.run_study(plan)
    for case, other in zip(together["pivots"]["cases"], alone["pivots"]["cases"], strict=True):
        n = case["n"]
        # n roundings of numbers that grow by less than n, as in the test of the largest pivot
        assert case == pytest.approx(other, rel=n * n * U * 100)
    for case, other in zip(together["norms"]["cases"], alone["norms"]["cases"], strict=True):
        assert (case["n"], case["seed"], case["pivoting"]) == (other["n"], other["seed"], other["pivoting"])
        if case["pivoting"]:
            assert case["passed"]
        if case["n"] > 1:  # residuals are rounding errors, of the same size but not the same
            assert 0.01 < case["norm_2"] / other["norm_2"] < 100.0
        assert case["norm_inf"] <= case["norm_2"] * (1 + 1e-15) <= case["norm_1"] * (1 + 1e-14)
    for case, other in zip(together["gmres"]["cases"], alone["gmres"]["cases"], strict=True):
        assert case["diagonal_scale"] == other["diagonal_scale"]
        assert case["steps"] == other["steps"]
        assert case["predicted_steps"] == other["predicted_steps"]


def test_norms_without_pivoting_show_the_growth() -> None:
    n, (A, b) = 83, uniform_system(83, 100)
    (_, without) = on(4, StudyPlan(("norms",), orders=(n,), seeds=1))["norms"]["cases"]
    growing = residual_norms(A, b, pivoting=False)
    assert without["norm_inf"] > 3 * residual_norms(A, b, pivoting=True)["norm_inf"]
    assert 0.01 < without["norm_inf"] / growing["norm_inf"] < 100.0


def test_every_generator_needs_the_steps_of_gmres_on_arrays() -> None:
    n, part = 61, on(6, StudyPlan(("generators",), orders=(61,)))["generators"]
    assert [case["generator"] for case in part["cases"]] == GENERATORS
    for case in part["cases"]:
        steps = study.full_gmres_on_arrays(*drawn_system(case["generator"], n)).steps
        assert case["steps"] == steps, case["generator"]
    by_name = {each["generator"]: each for each in part["summary"]["by_generator"]}
    assert by_name["hpl"]["steps"]["most"] == n
    assert by_name["dominant-n"]["unsolved"] == 0


# --- on the command line ------------------------------------------------------------------------------------------


def test_pivoting_is_compared_for_all_generators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    argv = ["study", "pivoting", "generators", "-N", "61", "--generator", "sqrt-n,hpl", "--precision", "bf16"]
    assert cli.main([*argv, "--json", "-", "--out", "out"]) == 0
    body = json.loads(capsys.readouterr().out)
    cases = body["pivoting"]["cases"]
    assert [(case["generator"], case["pivoting"]) for case in cases] == [
        (name, kind) for kind in PIVOTING for name in ("sqrt-n", "hpl")
    ]
    assert {case["precision"] for case in cases} == {"bf16"}
    case_of = {(case["generator"], case["pivoting"]): case for case in cases}
    assert all(
        case_of["sqrt-n", kind]["iterations"] <= 6 and case_of["sqrt-n", kind]["growth"] < 3 for kind in PIVOTING
    )
    assert case_of["hpl", "partial"]["growth"] < case_of["hpl", "none"]["growth"]
    assert all(case_of["hpl", "partial"][key] for key in ("iterations", "proven", "condition"))
    summary = {(each["generator"], each["pivoting"]): each for each in body["pivoting"]["summary"]["by_generator"]}
    assert summary["sqrt-n", "none"]["growth"]["median"] == case_of["sqrt-n", "none"]["growth"]
    assert summary["sqrt-n", "none"]["unsolved"] == summary["sqrt-n", "none"]["not_finite"] == 0
    page = Path("out/study.html").read_text()
    assert page.count("<svg") == 7
    for text in ("growth with random butterflies", "steps of refinement with partial pivoting", "by generator"):
        assert text in page


def test_cases_that_fail_are_shown_as_failed_and_not_as_numbers() -> None:
    from mxpeak.verbs.study.report import page, tables

    case = {"n": 64, "seed": 100, "generator": "hpl", "precision": "fp16", "condition": None, "growth": None}
    case |= {"iterations": None, "scaled_residual": None, "proven": False}
    cases = [{**case, "pivoting": kind} for kind in PIVOTING]
    body = {"pivoting": {"cases": cases, "summary": study.SUMMARIES["pivoting"](cases)}}
    row = tables(body).splitlines()[-1].split()
    assert row == ["hpl", "64", *["overflow"] * 3, *["failed"] * 3, "none"]
    assert body["pivoting"]["summary"]["by_generator"][0]["not_finite"] == 1
    whole = {**body, "machine": {"cpu_model": "a", "logical_cores_allowed": 1}, "ranks": 2, "device": "cpu"}
    shown = page({**whole, "software": {"python": "3", "numpy": "2", "scipy": "1"}})
    assert "2 ranks, cpu" in shown
    assert "<svg" not in shown, "nothing is drawn without numbers"


def test_iterations_with_factors_that_are_not_proven_are_marked() -> None:
    from mxpeak.verbs.study.report import tables

    case = {"n": 64, "seed": 1, "generator": "hpl", "precision": "fp16", "condition": 9.0, "growth": 2.0}
    cases = [{**case, "pivoting": kind, "iterations": 7, "proven": kind == "partial"} for kind in PIVOTING]
    text = tables({"pivoting": {"cases": cases}})
    assert text.splitlines()[-1].split()[-4:-1] == ["7*", "7*", "7"]
    assert "*: the check of x passes, but the proof of the LU fails" in text
    note = f"N up to {on_ranks.NB}: the matrix is one block, so no product is computed in fp16"
    assert note not in text
    assert note in tables({"pivoting": {"cases": [{**each, "n": on_ranks.NB} for each in cases]}})
