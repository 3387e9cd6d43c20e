"""Test `mxpeak report FILE…` and `run --config result.json` with existing results."""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

import pytest

from mxpeak.cli.main import main
from mxpeak.cli.request import requests
from mxpeak.cli.run_history import results_in
from mxpeak.errors import UsageError
from mxpeak.report.tables import comma_separated

GOLDEN = Path(__file__).parents[1] / "golden"


def run(rate: float, n: int = 1000, **more: Any) -> Any:
    """Return one result of HPL with this rate in GFLOP/s."""
    body = {
        "benchmark": "hpl",
        "status": "valid",
        "run": {"start": "2026-11-23T11:04:22Z"},
        "problem": {"n": n, "nb": 64, "P": 1, "Q": 2},
        "result": {"rate_flops": 1e9 * rate, "time_s": 1.5, "fraction_of_limit": 0.5},
        "validation": {"residual": 0.0125, "threshold": 16.0},
        "machine": {"cpu_model": "A|B", "hostname": "one"},
        "launch": {"ranks": 2},
        "config": {
            "n": {"value": [n], "origin": "flag"},
            "nb": {"value": [64, 96], "origin": "variable"},
            "grid": {"value": [[1, 2], [2, 1]], "origin": "file"},
            "node_grid": {"value": [1, 2], "origin": "flag"},
            "kernels": {"value": "host", "origin": "auto"},
            "seed": {"value": 100, "origin": "default"},
            "trace": {"value": "trace.json", "origin": "flag"},
        },
    }
    return {**body, **more}


@pytest.fixture(autouse=True)
def two_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for folder, result in (("first", run(100)), ("second", run(110.5, 2000, status="invalid"))):
        Path(folder).mkdir()
        Path(folder, "result.json").write_text(json.dumps({"schema": "mxpeak.results/1", "results": [result]}))


def test_several_runs_come_on_one_page(capsys: pytest.CaptureFixture[str]) -> None:
    log = GOLDEN / "checked.txt"  # a report of another program
    assert main(["report", "first", "second/result.json", str(log), "--out", "both.html"]) == 0
    assert "both.html: 3 runs" in capsys.readouterr().out
    page = Path("both.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert page.count("<h2>hpl") == 2 + len(results_in(log))
    assert "N 2000" in page
    assert page.count(">2026-11-23 11:04:22 UTC<") == 2
    for name in ("first", "second"):
        assert f'data-name="run">{name}</td>' in page, "each row tells its run"
        assert f"<dd>{name}</dd>" in page
    assert main(["report", "first", "--out", "both.html"]) == 2, "no file is replaced"
    assert Path("both.html").read_text() == page


def test_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "first", "second", "--format", "markdown"]) == 0
    head, line, *rows = capsys.readouterr().out.splitlines()
    assert head == "| benchmark | case | rate | of limit | residual | status | run |"
    assert set(line) == set("| -")
    assert [row.split(" | ")[2:] for row in rows] == [
        ["100 GFLOP/s", "50.0 %", "0.0125", "PASSED", "first |"],
        ["110 GFLOP/s", "50.0 %", "0.0125", "FAILED", "second |"],
    ]


def test_a_table_for_programs() -> None:
    assert main(["report", "first", "second", "--format", "csv", "--out", "both.csv"]) == 0
    with open("both.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["status"], float(row["rate_flops"]), int(row["n"])) for row in rows] == [
        ("first", "valid", 100e9, 1000),
        ("second", "invalid", 110.5e9, 2000),
    ]
    assert {row["cpu_model"] for row in rows} == {"A|B"}
    assert {row["rate_bytes"] for row in rows} == {""}


def test_rows_of_different_norms_differ_in_their_case() -> None:
    matrix = {"structure": "general", "dtype": "float64", "layout": "C", "m": 8, "n": 8}
    norms = [("run", {"benchmark": "norms", "problem": {**matrix, "kind": kind}}) for kind in ("max", "one")]
    rows = csv.DictReader(comma_separated(norms).splitlines())
    assert [row["case"] for row in rows] == ["max general float64 C 8x8", "one general float64 C 8x8"]


def test_the_formats_of_a_solver_are_text_in_a_table_for_programs() -> None:
    formats = {"mg": ["bf16", "bf16"], "krylov": "bf16", "vectors": "fp32"}
    (row,) = csv.DictReader(comma_separated([("run", {"problem": {"precision": formats}})]).splitlines())
    assert row["precision"] == "values bf16, vectors fp32"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["third"], "cannot read third"),
        (["last"], "there is no last run, because mxpeak-out/ contains no results; run mxpeak first"),
        (["first", "--format", "xml"], "xml"),
        (["first", "--out", "nowhere/page.html"], "cannot write nowhere/page.html"),
    ],
)
def test_what_cannot_be_read_or_written_is_a_mistake(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["report", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not Path("report.html").exists()


@pytest.mark.parametrize("name", ["nothing", "broken"])
def test_inputs_are_checked_before_the_output_file(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("report.html").write_text("of another report\n")
    Path("broken").write_text("{")
    assert main(["report", name]) == 2
    error = capsys.readouterr().err
    assert name in error
    assert "already exists" not in error
    assert main(["report", "first"]) == 2
    assert "report.html already exists" in capsys.readouterr().err
    assert Path("report.html").read_text() == "of another report\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["report", "empty.json", "--out", "page.html"],
        ["report", "first", "empty.json", "--format", "csv"],
        ["compare", "first", "empty.json"],
        ["baseline", "set", "empty.json"],
        ["baseline", "from", "empty.json"],
    ],
)
def test_a_file_without_results_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.json").write_text(json.dumps({"schema": "mxpeak.results/1", "results": []}))
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "empty.json contains no result; use the result.json of a run that completed a case" in said.err
    assert not Path("page.html").exists()


def repeated(benchmark: str = "hpl", **flags: str) -> Any:
    """Return the request that repeats the run of a result file."""
    return requests(argparse.Namespace(benchmark=benchmark, config="first/result.json", **flags), {})


def test_a_run_is_repeated_with_what_was_said() -> None:
    (run,) = repeated(depth="0")
    config = run.config
    assert (config.n, config.nb, config.grid, config.depth) == ((1000,), (64, 96), ((1, 2), (2, 1)), (0,))
    assert config.node_grid == (1, 2)
    assert config.trace is None, "a file of the run that is repeated"
    origins = {name: run.origins[name] for name in ("n", "nb", "depth", "kernels", "seed")}
    assert origins == {"n": "file", "nb": "file", "depth": "flag", "kernels": "default", "seed": "default"}


@pytest.mark.parametrize("name", ["first", "last", "baseline"])
def test_a_run_is_repeated_by_its_name(name: str) -> None:
    file = Path("first/result.json")
    for place in (Path("mxpeak-out/one/result.json"), Path("mxpeak-out/baseline.json")):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(file.read_text())
    (one,) = requests(argparse.Namespace(benchmark="hpl", config=name), {})
    assert one.config.nb == (64, 96)


@pytest.mark.parametrize(
    ("benchmark", "problem", "settings", "size"),
    [
        ("hpl", {"n": 9216}, {"quick": True}, {"n": (9216,)}),
        ("hpl", {"n": 40000}, {}, {"n": (40000,)}),
        ("norms", {"n": 5120, "m": 5120}, {"quick": True}, {"n": (5120,), "m": None}),
        ("hpcg", {"nx": 64, "ny": 64, "nz": 64}, {"quick": True}, {"nx": 64, "ny": None}),
        ("hpcg", {"nx": 24, "ny": 16, "nz": 8}, {"nx": 24, "ny": 16, "nz": 8}, {"nx": 24, "ny": 16, "nz": 8}),
        ("hpl", {"n": 1000}, {"study": "weak", "ranks_list": [1, 2]}, {"n": None}),
        ("hpcg", {"nx": None}, {"quick": True}, {"nx": None}),
    ],
)
def test_a_run_is_repeated_with_the_size_that_it_chose(
    benchmark: str, problem: dict[str, Any], settings: dict[str, Any], size: dict[str, Any]
) -> None:
    config = {name: {"value": value, "origin": "flag"} for name, value in settings.items()}
    config |= {name: {"value": None, "origin": "default"} for name in ("n", "nx") if name not in settings}
    body = run(1, benchmark=benchmark, problem=problem, config=config)
    Path("first/result.json").write_text(json.dumps({"schema": "mxpeak.results/1", "results": [body]}))
    (one,) = repeated(benchmark)
    assert {name: getattr(one.config, name) for name in size} == size
    name = next(iter(size))
    (other,) = repeated(benchmark, **{name: "4096"})
    assert getattr(other.config, name) in (4096, (4096,)), "a flag wins"


def test_a_run_of_an_input_file_is_repeated_with_what_the_file_said() -> None:
    body = json.loads(Path("first/result.json").read_text())
    result = {**body["results"][0], "benchmark": "hpcg", "config": {"nx": {"value": 48, "origin": "hpcg.dat"}}}
    Path("first/result.json").write_text(json.dumps({"schema": "mxpeak.results/1", "results": [result]}))
    assert repeated("hpcg")[0].config.nx == 48


def test_only_a_run_of_the_benchmark_is_repeated() -> None:
    with pytest.raises(UsageError, match=r"contains settings of hpl; use mxpeak run hpl"):
        repeated("hpcg")
    Path("first/result.json").write_text(json.dumps({"schema": "mxpeak.results/1", "results": [{"benchmark": "hpl"}]}))
    with pytest.raises(UsageError, match=r"neither a TOML file nor the result of a run"):
        repeated()


def test_what_only_a_dat_file_can_hold_is_repeated() -> None:
    settings = {"alignment": {"value": 8, "origin": "HPL.dat"}, "n": {"value": [500], "origin": "HPL.dat"}}
    for alignment in (8, 4):
        settings["alignment"]["value"] = alignment
        Path("first/result.json").write_text(
            json.dumps({"schema": "mxpeak.results/1", "results": [run(1, config=settings)]})
        )
        assert repeated()[0].config.n == (500,)
        assert repeated()[0].config.alignment == alignment
