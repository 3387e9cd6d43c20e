"""Test the settings, the files and the exit codes of `mxpeak run hpg-mxp`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mxpeak.bench import limits
from mxpeak.cli import main as cli
from mxpeak.records import Result
from mxpeak.report.settings import settings
from tests.support.cli import nothing_from_outside, only_folder
from tests.support.hpg_mxp_results import check_result
from tests.support.result_file import VALIDATOR

#: The smallest problem, a few steps, one storage, one thread.
TINY = ["--nx", "8", "--mode", "explore", "--rt", "0", "--iterations", "5", "--storage", "sell", "--threads", "1"]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Use an empty folder, no settings from outside, and no measurement of the limit."""
    nothing_from_outside(monkeypatch, tmp_path)
    monkeypatch.setattr(limits, "MAX_S", 0.0)


def run(*argv: str) -> int:
    return cli.main(["run", "hpg-mxp", *argv])


def run_json(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> dict[str, Any]:
    """Return the result of a tiny run; flags of the caller override those of TINY."""
    assert run(*TINY, *argv, "--quiet", "--json", "-") == code
    body = json.loads(capsys.readouterr().out)
    VALIDATOR.validate(body)
    return body  # type: ignore[no-any-return]


# --- settings ---------------------------------------------------------------------------------------------------


def test_the_official_run_is_the_default(capsys: pytest.CaptureFixture[str]):
    assert run("--nx", "16", "--rt", "0", "--threads", "1", "--quiet", "--json", "-") == 0
    body = json.loads(capsys.readouterr().out)
    check_result(Result.from_dict(body))
    problem = body["problem"]
    assert (problem["restart"], problem["max_iterations"], problem["smoother"]) == (30, 300, "natural")
    assert (problem["storage"], problem["colouring"], problem["nonsymmetric"]) == ("rows", "greedy", False)
    assert problem["precision"] == {"mg": ["bf16"] * 4, "krylov": "bf16", "vectors": "fp32"}
    assert body["validation"]["threshold"] == 1e-9
    assert body["phases"]["ortho"]["calls"] == 300
    (beside,) = body["result"]["beside"]
    assert (beside["label"], beside["storage"]) == ("explore", "packed")
    assert {one["rule"] for one in body["rules"]["violations"]} == {"time", "memory"}
    assert not body["rules"]["admissible"]


def test_explore_also_measures_the_official_storage(capsys: pytest.CaptureFixture[str]):
    body = run_json(capsys, "--storage", "auto")
    assert body["problem"]["storage"] == "packed"
    assert body["problem"]["precision"]["mg"] == ["fp8"] * 4
    (beside,) = body["result"]["beside"]
    assert beside["storage"] == "rows"
    assert {"mode", "storage"} <= {one["rule"] for one in body["rules"]["violations"]}


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        (["--storage", "ell"], {"storage": "ell"}),
        (["--storage", "packed"], {"storage": "packed"}),
        (["--smoother", "natural"], {"smoother": "natural"}),
        (["--colouring", "jpl"], {"colouring": "jpl"}),
        (["--nonsymmetric"], {"nonsymmetric": True}),
        (["--restart", "4"], {"restart": 4}),
        (["--iterations", "9"], {"max_iterations": 9}),
        (["--ny", "16", "--nz", "24"], {"nx": 8, "ny": 16, "nz": 24}),
        (["--precision", "fp16"], {"precision": {"mg": ["fp16"] * 4, "krylov": "fp16", "vectors": "fp32"}}),
        (["--krylov-precision", "fp64"], {"precision": {"mg": ["fp8"] * 4, "krylov": "fp8", "vectors": "fp64"}}),
        (
            ["--mg-precision", "fp32,bf16,fp16,fp8"],
            {"precision": {"mg": ["fp32", "bf16", "fp16", "fp8"], "krylov": "fp32", "vectors": "fp32"}},
        ),
        (["--npx", "1", "--npy", "1", "--npz", "1"], {"npx": 1, "npy": 1, "npz": 1, "ranks": 1}),
    ],
)
def test_each_option_does_what_it_says(capsys: pytest.CaptureFixture[str], argv: list[str], wanted: dict[str, Any]):
    body = run_json(capsys, *argv)
    check_result(Result.from_dict(body))
    assert {name: body["problem"][name] for name in wanted} == wanted


def test_the_natural_order_and_other_colours_change_the_groups(capsys: pytest.CaptureFixture[str]):
    colours = {
        name: [level["colours"] for level in run_json(capsys, *argv)["problem"]["levels"]]
        for name, argv in (
            ("greedy", ["--storage", "sell"]),
            ("rows", ["--storage", "rows"]),
            ("slices", ["--storage", "sell", "--smoother", "natural"]),
            ("natural", ["--storage", "ell", "--smoother", "natural"]),
            ("jpl", ["--storage", "sell", "--colouring", "jpl"]),
            ("both", ["--storage", "ell", "--smoother", "natural", "--colouring", "jpl"]),
        )
    }
    assert colours["rows"] == colours["slices"] == [None] * 4, "row after row"
    assert colours["greedy"] == [8, 8, 8, 1]
    assert colours["natural"] == [7 * 7 + 1, 7 * 3 + 1, 7 + 1, 1], "wavefronts x + 2y + 4z"
    assert colours["both"] == colours["natural"]
    assert min(colours["jpl"][:3]) >= 8


def test_the_threshold_is_where_the_validation_ends(capsys: pytest.CaptureFixture[str]):
    loose, tight = (run_json(capsys, "--threshold", text)["validation"] for text in ("1e-3", "1e-12"))
    assert loose["threshold"] == 1e-3
    assert 1e-12 < loose["residual"] <= 1e-3
    assert tight["residual"] <= 1e-12
    assert loose["mixed_iterations"] < tight["mixed_iterations"]


def test_fullscale_is_shown(capsys: pytest.CaptureFixture[str]):
    assert run_json(capsys, "--validation", "fullscale")["validation"]["type"] == "fullscale"


@pytest.mark.parametrize(("rt", "least"), [("0", 1), ("0.05", 2)])
def test_the_time_asked_for_is_measured_and_no_more_than_a_solve_beyond(
    capsys: pytest.CaptureFixture[str], rt: str, least: int
):
    body = run_json(capsys, "--rt", rt)
    samples = body["samples_s"]
    assert sum(samples) >= float(rt)
    assert sum(samples[:-1]) < float(rt) or len(samples) == 1
    assert len(samples) >= least, "five steps take a few milliseconds"
    assert body["problem"]["rt_s"] == float(rt)


def test_no_warmup_is_no_limit(capsys: pytest.CaptureFixture[str]):
    body = run_json(capsys, "--warmup", "none")
    assert body["result"]["limit"] is body["result"]["fraction_of_limit"] is None
    assert "share_of_limit" not in body["phases"]["gs"]


def test_settings_are_shown_with_their_origin(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MXPEAK_RESTART", "6")
    Path("mine.toml").write_text("threshold = 1e-4\n[hpg-mxp]\nnonsymmetric = true\n")
    body = run_json(capsys, "--config", "mine.toml")
    assert body["config"]["restart"] == {"value": 6, "origin": "variable"}
    assert body["config"]["nx"] == {"value": 8, "origin": "flag"}
    assert body["config"]["threshold"]["value"] == body["validation"]["threshold"] == 1e-4
    assert body["problem"]["nonsymmetric"]
    assert body["problem"]["restart"] == 6


# --- output -----------------------------------------------------------------------------------------------------


def test_a_run_ends_with_its_figure_and_the_files(capsys: pytest.CaptureFixture[str]):
    assert run(*TINY) == 0
    out, err = capsys.readouterr()
    assert re.match(
        r"PASSED  hpg-mxp  \S+ [GM]FLOP/s  \(\S+ % of read bandwidth( in cache)? at \S+ GB/s\)  NOT ADMISSIBLE\n", out
    )
    assert "penalty" in out
    assert "broken rule mode" in out
    assert err.endswith(f"results in {only_folder()}/\n")
    names = sorted(path.name for path in only_folder().iterdir())
    assert [name for name in names if not name.startswith("HPGMP-Benchmark_")] == ["report.html", "result.json"]
    VALIDATOR.validate(json.loads((only_folder() / "result.json").read_text()))


def test_quiet_is_one_line(capsys: pytest.CaptureFixture[str]):
    assert run(*TINY, "--quiet") == 0
    out, err = capsys.readouterr()
    assert re.fullmatch(r"PASSED  hpg-mxp  .* 8x8x8 1x1x1 .*sell\n", out)
    assert err == ""


def test_a_dry_run_shows_the_problem_and_runs_nothing(capsys: pytest.CaptureFixture[str]):
    assert run("--nx", "64", "--nz", "128", "--dry-run") == 0
    out = capsys.readouterr().out
    nnz = (3 * 64 - 2) ** 2 * (3 * 128 - 2)
    for storage in ("rows", "packed"):
        assert f"{storage}: local 64x64x128  ranks 1x1x1  global 64x64x128: 524288 rows, {nnz} entries" in out
    assert "least work, for any --rt: 4 solves to 1e-09 and 6 of 300 iterations, " in out
    assert not Path("mxpeak-out").exists()


@pytest.mark.parametrize("benchmark", ["hpcg", "hpg-mxp"])
def test_only_settings_of_the_user_are_shown(benchmark: str, capsys: pytest.CaptureFixture[str]):
    """The page is made from a result that contains the internal settings, so that a run can be repeated."""
    assert cli.main(["run", benchmark, "--box", "16x16x16", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"\n  nx +16 +flag\n", out)
    assert "sides_from_box" not in out
    config = {name: {"value": value, "origin": "flag"} for name, value in (("nx", 16), ("sides_from_box", True))}
    page = settings({"benchmark": benchmark, "config": config})
    assert "nx" in page
    assert "sides_from_box" not in page


def test_rules_that_a_run_will_break_are_reported_before_the_run(capsys: pytest.CaptureFixture[str]):
    assert run("--nx", "16", "--rt", "0", "--iterations", "1", "--threads", "1") == 0
    assert (
        "note: the result will not be ADMISSIBLE: time: --rt is 0 s, but the rules require 1800 s"
        in capsys.readouterr().err
    )
    assert run("--nx", "50", "--rt", "0") == 2
    assert capsys.readouterr().err.startswith("mxpeak: error: --nx 50 is not a multiple of 8"), (
        "no note precedes a refusal"
    )


def test_help_shows_an_example_in_plain_ascii(capsys: pytest.CaptureFixture[str]):
    assert run("--help") == 0
    out = capsys.readouterr().out
    assert out.isascii()
    assert "example:\n  mxpeak run hpg-mxp " in out
    for flag in ("--nx", "--npz", "--rt", "--mg-precision", "--krylov-precision", "--smoother", "--validation"):
        assert flag in out


# --- outcomes ---------------------------------------------------------------------------------------------------


def test_a_validation_that_stalls_exits_with_three_and_tells_its_history(capsys: pytest.CaptureFixture[str]):
    """x = 1 has a residual of about u·||A|| / λ, which is 53/0.15 u for 40 points per side: 9 u cannot be reached."""
    argv = ("--nx", "40", "--threshold", "1e-15", "--precision", "fp32", "--iterations", "1", "--storage", "sell")
    assert run(*argv, "--rt", "0", "--threads", "1", "--json", "result.json", "--warmup", "none") == 3
    assert capsys.readouterr().out.startswith("FAILED  hpg-mxp")
    body = json.loads(Path("result.json").read_text())
    VALIDATOR.validate(body)
    check = body["validation"]
    assert (body["status"], check["passed"]) == ("invalid", False)
    stalled = [name for name in ("double", "mixed") if check["outcome"][name] != "solved"]
    assert stalled
    for name in stalled:
        history = check["history"][name]
        assert len(history) > 10
        assert history[-1] > max(1e-15, 0.999 * history[-11])


def test_a_rate_below_the_floor_exits_with_four(capsys: pytest.CaptureFixture[str]):
    assert run(*TINY, "--min-gflops", "1e6", "--quiet") == 4
    assert "is below --min-gflops 1e+06" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (
            ["--nx", "12"],
            (
                "--nx 12 is not a multiple of 8, as 4 levels of multigrid need (12 / 8 leaves a remainder of "
                "4); use --nx 16"
            ),
        ),
        (["--nx", "16", "--nz", "20"], "20 / 8 leaves a remainder of 4); use --nz 16 or --nz 24"),
        (
            ["--nx", "8"],
            "--nx 8 is less than 16, the smallest value that the rules allow; use --nx 16, or --mode explore",
        ),
        (["--nz", "16"], "--nz 16 needs --nx; add --nx 16"),
        (["--nx", "16", "--npx", "3"], "--npx 3 does not divide the number of ranks: 1 / 3 leaves a remainder of 1"),
        (["--nx", "16", "--npx", "2", "--npy", "1", "--npz", "1"], "needs 2*1*1 = 2 ranks, but there is 1"),
        (
            ["--nx", "16", "--precision", "fp8"],
            "--mode official needs formats of 16 bits or more, but fp8 has 8 bits; use --mode explore",
        ),
        (["--nx", "16", "--mg-precision", "fp32,fp16,fp16,fp8"], "use --mode explore"),
        (
            ["--nx", "16", "--mg-precision", "fp32,fp16"],
            "--mg-precision fp32,fp16 has 2 formats for 4 levels; use one for all levels, or 4",
        ),
        (["--nx", "8", "--mode", "explore", "--mg-precision", "fp32,fp16"], "has 2 formats for 4 levels"),
        (
            ["--nx", "16", "--value-tolerance", "0.1"],
            "--value-tolerance 0.1 allows inexact stored values, but --mode official does not; use --mode explore",
        ),
        (
            ["--nx", "16", "--krylov-precision", "fp8"],
            "--krylov-precision: 'fp8' is unknown; use one of fp64, fp32, bf16, fp16",
        ),
        (
            ["--nx", "16", "--krylov-precision", "bf16", "--precision", "fp64"],
            "--krylov-precision bf16 stores the basis of fp32 vectors, but fp64 values on the finest level need fp64 "
            "vectors; use --precision fp32, or --krylov-precision fp64",
        ),
        (["--nx", "16", "--rt", "-1"], "--rt: -1 is out of range; use a number of at least 0"),
        (["--nx", "16", "--restart", "0"], "--restart: 0 is out of range; use an integer from 1 to 1000"),
        (["--nx", "16", "--storage", "csr"], "--storage: 'csr' is unknown; use one of auto, rows, ell, sell,"),
        (["--nx", "16", "--format", "hpl"], "mxpeak run hpg-mxp does not support --format hpl"),
        (
            ["--nx", "432"],
            "27*432*432*432 = 2176782336 entries, but 32-bit indices support at most 2^31-1 = 2147483647",
        ),
        (["-N", "100"], "mxpeak run hpg-mxp does not accept -N 100"),
    ],
)
def test_a_mistake_is_named_before_anything_runs_and_exits_with_two(
    capsys: pytest.CaptureFixture[str], argv: Sequence[str], says: str
):
    assert run(*argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert not Path("mxpeak-out").exists()


def test_a_matrix_that_is_not_there_is_a_mistake_and_not_the_27_point_one(capsys: pytest.CaptureFixture[str]):
    assert run(*TINY, "--matrix", "nowhere.mtx") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "nowhere.mtx" in err


def test_a_box_that_does_not_fit_exits_with_five_and_says_what_would(capsys: pytest.CaptureFixture[str]):
    assert run("--nx", "200", "--mem", "1GB") == 5
    most = re.search(r"use --nx (\d+), the largest cube that fits", capsys.readouterr().err)
    assert most
    assert run("--nx", most[1], "--mem", "1GB", "--dry-run") == 0
    assert "does not fit" not in capsys.readouterr().out


@pytest.mark.parametrize("benchmark", ["hpcg", "hpg-mxp"])
def test_errors_about_the_box_flag_name_it(benchmark: str, capsys: pytest.CaptureFixture[str]):
    argv = ["run", benchmark, "--dry-run", "--box"]
    assert cli.main([*argv, "33x32x32"]) == 2
    assert "use --box 32x32x32 or --box 40x32x32\n" in capsys.readouterr().err
    assert cli.main(["run", benchmark, "--mem", "1GB", "--box", "200x200x208"]) == 5
    assert re.search(r"use --box (\d+)x\1x\1, the largest cube that fits", capsys.readouterr().err)
    assert cli.main([*argv, "16x16x16"]) == 0
    assert re.search(r"^  nz +16 +flag$", capsys.readouterr().out, re.MULTILINE)


def test_the_storage_of_the_second_figure_must_also_fit_into_memory(capsys: pytest.CaptureFixture[str]):
    """In mode explore the second figure uses `rows`, whose column indices need more memory than those of `packed`."""
    flags = ("--nx", "32", "--mode", "explore", "--rt", "0", "--iterations", "1", "--threads", "1")
    assert run(*flags, "--dry-run") == 0
    lines = re.findall(r"^(\w+): local .* total ([\d.]+) MiB", capsys.readouterr().out, re.MULTILINE)
    needs = {name: float(size) for name, size in lines}
    assert needs["packed"] < 0.9 * needs["rows"]
    assert run(*flags, "--mem", f"{(needs['packed'] + needs['rows']) / 2}MiB") == 5


def test_a_size_left_open_is_what_memory_holds_and_says_so(capsys: pytest.CaptureFixture[str]):
    argv = ("--quick", "--mem", "25MB", "--rt", "0", "--iterations", "1", "--threads", "1", "--json", "x.json")
    assert run(*argv) == 0
    problem = json.loads(Path("x.json").read_text())["problem"]
    assert problem["nx"] == problem["ny"] == problem["nz"] < 32
    assert re.search(r"warning: local boxes of 48x48x48 need .*, so mxpeak uses .* \[size\]", capsys.readouterr().err)


@pytest.mark.parametrize("benchmark", ["hpcg", "hpg-mxp"])
def test_a_dry_run_chooses_the_size_that_a_run_would_choose(benchmark: str, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", benchmark, "--mem", "300MiB", "--threads", "1", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert f"{benchmark}: fits in memory" in out
    chosen = re.search(r"local boxes of \S+ need .*, so mxpeak uses (\d+)x\1x\1\n", out)
    assert chosen
    assert f"local {chosen[1]}x{chosen[1]}x{chosen[1]}  " in out
    assert re.search(rf"^  nx +{chosen[1]} +auto$", out, re.MULTILINE)
    assert cli.main(["run", benchmark, "--mem", "1MiB", "--threads", "1", "--dry-run"]) == 5
    assert "does not fit: only 1 MiB per node is available" in capsys.readouterr().out


def test_a_dry_run_of_hpcg_counts_the_reference_too(capsys: pytest.CaptureFixture[str]):
    """Its rows take more memory than ELL; a run of this size is refused."""
    argv = ["run", "hpcg", "--nx", "64", "--storage", "ell", "--threads", "1", "--dry-run", "--mem"]
    assert cli.main([*argv, "280MiB"]) == 5
    assert "reference: local 64x64x64" in capsys.readouterr().out
    assert cli.main([*argv, "300MiB"]) == 0
