"""Test the output, the refusals, the files and the reports of `mxpeak run norms`."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import mxpeak as mx
from mxpeak.bench.norms import run as bench
from mxpeak.bench.norms.config import NormsConfig
from mxpeak.cli import main as cli
from mxpeak.cli.display import PlainProgress
from mxpeak.cli.request import requests
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.errors import UsageError
from mxpeak.records import Result, bytes_rate_text, document
from mxpeak.report.html import html_report
from mxpeak.report.scoreboard import scoreboard, sweep
from mxpeak.report.text import verdict
from mxpeak.spans import Spans
from tests.support.cli import only_folder
from tests.support.norm_runs import bare
from tests.support.notes import note_case
from tests.support.result_file import VALIDATOR


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Use one timed run per case, and no settings from outside."""
    bare(monkeypatch, tmp_path)


# --- the command line -------------------------------------------------------------------------------------------


def test_the_verdict_has_rate_share_accuracy_and_case(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "norms", "-N", "300", "--kind", "one,max", "--threads", "1"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert re.fullmatch(r"PASSED  norms  \S+ GB/s  \(\S+ % of read bandwidth( in cache)? at \S+ GB/s\)", lines[0])
    assert re.fullmatch(r"  scaled error \S+ <= 10\.0 eps; one 8\d\.\d+", lines[1])
    assert re.fullmatch(r"  one general float64 C 300x300, time \S+ s", lines[2])
    assert re.fullmatch(r"  exact; max 0\.4\d+", lines[4])
    assert re.search(r"^  kind .*\n  one  .* PASSED\n  max  .* PASSED\n", out, re.MULTILINE)
    assert err.endswith(f"results in {only_folder()}/\n")
    assert sorted(p.name for p in only_folder().iterdir()) == ["report.html", "result.json"]


def test_verbose_shows_where_the_time_went_in_bytes(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "norms", "-N", "300", "--kind", "one", "-v", "--threads", "1"]) == 0
    out = capsys.readouterr().out
    for phase in ("generate", "check", "limit", "norm"):
        assert re.search(rf"^  {phase} .* [MG]B/s ", out, re.MULTILINE)
    shares = [float(share) for share in re.findall(r"(\S+) %  ", out)]
    assert sum(shares) == pytest.approx(100.0, abs=0.5), "shares are of all phases: a norm is taken many times"


def test_quiet_is_one_line_a_norm(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "norms", "-N", "50", "--kind", "one,fro", "--layout", "C,tiles", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert [line.split("GB/s)  ")[1] for line in out.splitlines()] == [
        "one general float64 C 50x50",
        "fro general float64 C 50x50",
        "one general float64 tiles 50x50 NB=512 1x1",
        "fro general float64 tiles 50x50 NB=512 1x1",
    ]
    assert err == ""


def test_json_on_stdout_is_alone_there_and_several_cases_are_a_list(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "norms", "-N", "50", "--kind", "one", "--json", "-", "--threads", "1"]) == 0
    body = json.loads(capsys.readouterr().out)
    VALIDATOR.validate(body)
    assert (body["schema"], body["config"]["kind"]) == ("mxpeak.results/1", {"value": ["one"], "origin": "flag"})
    assert {"energy"} <= set(body["telemetry"]) <= {"energy", "energy_unknown"}
    assert cli.main(["run", "norms", "-N", "50", "--json", "-", "--threads", "1"]) == 0
    assert len(json.loads(capsys.readouterr().out)["results"]) == 5


def test_a_dry_run_shows_cases_sizes_and_memory_and_runs_nothing(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "norms", "-N", "2048", "--structure", "general,band", "--kind", "one", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "2048x2048 float64 C  NB 512  grid 1x1: matrix 32 MiB" in out
    assert "  one general float64 C: 32 MiB to be read" in out
    assert "  one band kl=20 ku=100 float64 C: 1.85 MiB to be read" in out
    assert not Path("mxpeak-out").exists()


def test_help_shows_an_example_in_plain_ascii(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "norms", "--help"]) == 0
    out = capsys.readouterr().out
    assert out.isascii()
    assert "example:\n  mxpeak run norms " in out
    for flag in ("-m M,...", "--kind", "--structure", "--dtype", "--layout", "--uplo", "--diag", "--kl", "--ku"):
        assert flag in out
    assert "--dat FILE" not in out
    assert "--bcast" not in out


#: Invalid command lines and their errors.
MISTAKES = [
    (["-N", "100", "--min-gflops", "3"], "but mxpeak measures norms in GB/s; remove --min-gflops"),
    (["-N", "100", "-m", "50", "--structure", "general,symmetric"], "a symmetric matrix must be square, but this "
     "matrix is 50x100; use structure 'general', which allows any shape, or remove -m"),
    (["-N", "100", "-m", "50", "--structure", "hermitian-band"], "use structure 'band', which allows any shape"),
    (["-N", "100", "--dtype", "int8"], "--dtype: 'int8' is unknown; use one of float64"),
    (["-N", "100", "--kind", "two"], "--kind: 'two' is unknown"),
    (["-N", "100", "--dat", "HPL.dat"], "mxpeak run norms does not accept --dat HPL.dat"),
    (["-N", "100", "--format", "hpl"], "mxpeak run norms does not support --format hpl; use text"),
    (["-N", "100", "--grid", "2x2"], "grid 2x2 needs 2*2 = 4 ranks, but there is 1"),
    (["-N", "100", "--bcast", "lib"], "mxpeak run norms does not accept --bcast lib"),
]  # fmt: skip


def test_a_mistake_is_named_before_anything_runs_and_exits_with_two(capsys: pytest.CaptureFixture[str]):
    for argv, says in MISTAKES:
        with note_case(argv=argv):
            assert cli.main(["run", "norms", *argv]) == 2
            out, err = capsys.readouterr()
            assert out == ""
            assert says in err
            assert not Path("mxpeak-out").exists()


def test_a_mistake_raises_on_every_rank():
    def body(comm: Any) -> str:
        with pytest.raises(UsageError) as caught:
            bench.run(NormsConfig(n=(9,), m=(8,), structure=("hermitian",)), comm)
        return str(caught.value)

    assert len(set(run_ranks(2, body))) == 1


def test_an_option_without_effect_is_a_warning_and_does_no_harm(capsys: pytest.CaptureFixture[str]):
    """Values that equal the defaults are also warned about, because the user typed them."""
    options = ["--uplo", "lower", "--diag", "unit", "--kl", "3"]
    argv = ["run", "norms", "-N", "50", "--kind", "one,max", *options, "--threads", "1", "--json", "x.json"]
    assert cli.main(argv) == 0
    err = capsys.readouterr().err
    hints = {
        "uplo": "trapezoid, triangular, symmetric, hermitian or hermitian-band",
        "diag": "trapezoid or triangular",
        "kl": "band or hermitian-band",
    }
    text = "--{} has no effect on general matrices"
    for result in json.loads(Path("x.json").read_text())["results"]:
        assert result["problem"]["not_used"] == ["uplo", "diag", "kl", "ku"]
        assert [warning for warning in result["warnings"] if warning["code"] == "unused"] == [
            {"code": "unused", "text": text.format(name), "hint": f"remove --{name}, or use --structure {others}"}
            for name, others in hints.items()
        ]
    for name in hints:
        assert err.count(f"warning: {text.format(name)} [unused]") == 1
    assert cli.main([*argv[:-2], "--dry-run"]) == 0
    assert text.format("diag") in capsys.readouterr().out


def test_an_option_that_some_structures_use_is_no_warning():
    assert cli.main(["run", "norms", "-N", "9", "--kind", "max", "--json", "x.json"]) == 0
    argv = ["run", "norms", "-N", "9", "--kind", "max", "--structure", "general,triangular", "--diag", "unit"]
    assert cli.main([*argv, "--json", "y.json"]) == 0
    for name in ("x.json", "y.json"):
        body = json.loads(Path(name).read_text())
        results = body.get("results", [body])
        assert not [warning for result in results for warning in result["warnings"] if warning["code"] == "unused"]
    assert [result["problem"]["not_used"] for result in results] == [["uplo", "diag", "kl", "ku"], ["kl", "ku"]]


def test_a_matrix_that_does_not_fit_exits_with_five_and_says_what_would(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "norms", "-N", "5000", "--mem", "100MB"]) == 5
    err = capsys.readouterr().err
    most = re.search(r"use -N (\d+), the largest N that fits", err)
    assert most
    assert cli.main(["run", "norms", "-N", most[1], "--mem", "100MB", "--dry-run"]) == 0
    assert "does not fit" not in capsys.readouterr().out
    assert cli.main(["run", "norms", "-m", "9000", "-N", "5000", "--mem", "100MB"]) == 5
    assert "a 9000x5000 float64 matrix needs 343 MiB" in capsys.readouterr().err


def test_matrices_that_do_not_fit_are_skipped_and_said(capsys: pytest.CaptureFixture[str]):
    argv = ["run", "norms", "-N", "5000,50", "--kind", "one", "--mem", "100MB", "--threads", "1"]
    assert cli.main(argv) == 5
    out, err = capsys.readouterr()
    assert out.count("one general float64 C 50x50,") == 1
    assert "skipped one general float64 C M=5000 N=5000 NB=512 1x1: it does not fit into memory" in err


def test_an_open_size_is_what_memory_holds_and_says_so(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "norms", "--kind", "max", "--mem", "20MB", "--json", "x.json", "--threads", "1"]) == 0
    n = json.loads(Path("x.json").read_text())["problem"]["n"]
    assert n < 1600
    assert f"N = {n} is used instead [size]" in capsys.readouterr().err


def test_quick_is_a_quarter_of_a_gigabyte_of_the_widest_type(capsys: pytest.CaptureFixture[str]):
    for dtypes, n in (("float64", 5632), ("float32", 7680), ("float32,complex128", 3584)):
        assert cli.main(["run", "norms", "--quick", "--dtype", dtypes, "--dry-run"]) == 0
        assert f"{n}x{n} {dtypes.split(',')[0]} C" in capsys.readouterr().out


def test_a_floor_in_gflops_is_for_the_other_benchmarks_of_run_all():
    runs = requests(cli.parsed(["run", "all", "--min-gflops", "5"]), {})
    floors = {one.benchmark.name: one.config.min_gflops for one in runs}
    assert floors.pop("norms") is None
    assert set(floors.values()) == {5.0}
    assert runs[-1].origins["min_gflops"] == "default"


def test_an_input_file_of_hpl_that_a_variable_names_is_not_for_norms():
    (made,) = requests(cli.parsed(["run", "norms"]), {"MXPEAK_DAT": "there/is/none.dat"})
    assert not made.from_dat


def test_the_function_mirrors_the_command():
    result = mx.run.norms(n=40, m=30, kind="one", dtype="bf16", deterministic=True, threads=1)
    assert isinstance(result, Result)
    assert result.passed
    assert (result.problem["m"], result.problem["n"], result.problem["dtype"]) == (30, 40, "bfloat16")
    assert result.problem["deterministic"]
    assert repr(result).startswith("Result(norms, valid, ")
    assert "kind=one" in repr(result)
    assert Result.from_dict(result.as_dict()).as_dict() == result.as_dict()
    with pytest.raises(UsageError, match="no setting 'bcast'"):
        mx.run.norms(bcast="lib")


def test_progress_says_how_far_and_how_long_still_and_no_flops():
    stream = io.StringIO()
    progress = PlainProgress(stream, {}, "always")
    spans = Spans([progress], clock=iter([0.0, 4.0, 8.0, 16.0]).__next__)
    spans.start("generating 9x9 float64", 10.0)
    spans.step(1, 2, 2.5)
    spans.step(2, 2, 5.0)
    spans.finish()
    assert stream.getvalue().splitlines() == [
        "generating 9x9 float64   25 %  12.0 s left  4.00 s of ~16.0 s",
        "generating 9x9 float64   50 %  8.00 s left  8.00 s of ~16.0 s",
    ]


# --- reports ----------------------------------------------------------------------------------------------------


def norms_result(**values: Any) -> Result:
    sections: dict[str, Any] = {
        "benchmark": "norms",
        "status": "valid",
        "problem": {
            "kind": "one",
            "structure": "band",
            "dtype": "float64",
            "layout": "C",
            "m": 300,
            "n": 400,
            "nb": 64,
            "P": 1,
            "Q": 1,
            "uplo": None,
            "diag": None,
            "kl": 20,
            "ku": 100,
            "entries": 9,
        },
        "result": {
            "rate_bytes": 41.2e9,
            "time_s": 0.02,
            "fraction_of_limit": 0.913,
            "limit": {"name": "read bandwidth", "rate_bytes": 45.1e9},
            "emulated": False,
            "value": 2.5,
        },
        "validation": {
            "passed": True,
            "residual": 0.0104,
            "threshold": 10.0,
            "formula": "f",
            "iterations": None,
            "value": 2.5,
            "expected": 2.5,
            "entries": 9,
        },
        "samples_s": [0.02],
    }
    return Result(**{**sections, **values})


def test_a_result_for_people_is_three_lines():
    assert verdict(norms_result()).splitlines() == [
        "PASSED  norms  41.2 GB/s  (91.3 % of read bandwidth at 45.1 GB/s)",
        "  scaled error 0.0104 <= 10.0 eps; one 2.5",
        "  one band kl 20 ku 100 float64 C 300x400, time 0.0200 s",
    ]


def test_entries_that_were_not_read_are_reported():
    check = {**norms_result().validation, "entries": 8}
    assert "8 entries were read instead of 9" in verdict(norms_result(status="invalid", validation=check))


def test_rates_of_bytes_are_in_si_units():
    for rate, text in (
        (41.23e9, "41.2 GB/s"),
        (9.999e11, "1.00 TB/s"),
        (2.5e12, "2.50 TB/s"),
        (3e15, "3.00 PB/s"),
        (5e6, "0.00500 GB/s"),
        (None, "no rate"),
    ):
        assert bytes_rate_text(rate) == text


def test_the_scoreboard_and_the_page_have_rates_in_bytes():
    row = scoreboard([norms_result()], verbose=True).splitlines()[3]
    assert row.startswith("norms ")
    assert "41.2 GB/s  91 of 45.1 GB/s  memory  PASSED" in row
    assert "41.2 GB/s    91.3 %" in sweep([norms_result()]).splitlines()[1]
    page = html_report(document([norms_result()]))
    assert "41.2 GB/s" in page
    assert "measured at 45.1 GB/s in this process" in page
    assert "one · band · kl=20 · ku=100 · float64 · C · 300×400" in page
    assert "FLOP/s" not in page


#: Keys that result files must have.
PROMISED = [
    "problem.kind", "problem.structure", "problem.dtype", "problem.layout", "problem.m", "problem.n",
    "result.rate_bytes", "result.time_s", "result.fraction_of_limit", "result.limit", "result.limit.name",
    "result.limit.rate_bytes", "validation.passed", "validation.residual", "validation.threshold",
    "validation.formula", "validation.iterations", "validation.expected",
]  # fmt: skip


def test_a_promised_key_of_norms_must_be_there():
    for path in PROMISED:
        body = json.loads(json.dumps(norms_result().as_dict()))
        VALIDATOR.validate(body)
        *way, last = path.split(".")
        section = body
        for name in way:
            section = section[name]
        del section[last]
        with note_case(path=path), pytest.raises(jsonschema.ValidationError):
            VALIDATOR.validate(body)
