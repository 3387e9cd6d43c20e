"""Test the output, the files and the errors of `mxpeak plan` and `mxpeak simulate`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mxpeak.bench.hpl.input import read_dat as read_hpl
from mxpeak.bench.hpl_mxp.input import read_dat as read_mxp
from mxpeak.cli.main import main

SMALL = ["--machine", "frontier", "-N", "98304", "--nb", "3072", "--grid", "2x4"]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json", "-"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def error_of(capsys: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    assert main(list(arguments)) == code
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


# --- simulate ---------------------------------------------------------------------------------------------------


def test_a_simulation_as_text_fits_eighty_columns_and_says_where_the_time_goes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["simulate", "hpl-mxp", *SMALL]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    for word in ("rate", "interval", "time", "exposed", "gemm", "formula"):
        assert word in text


@pytest.mark.parametrize(
    "arguments",
    [
        ["hpl-mxp", *SMALL],
        ["hpl", "--machine", "crusher", "--ranks", "4", "-N", "20000", "--nb", "512"],
        ["hpg-mxp", "--machine", "frontier", "--nodes", "2", "--nx", "64"],
        ["hpcg", "--machine", "frontier", "--nodes", "2", "--nx", "64", "--ny", "32"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_simulation_as_json(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    body = json_of(capsys, "simulate", *arguments)
    prediction = body["prediction"]
    assert body["schema"] == "mxpeak.simulate/1"
    assert 0 < prediction["low"] < prediction["rate_flops"] < prediction["high"]
    assert prediction["time_s"] > 0
    assert 0 <= prediction["exposed"] < 1
    assert body["config"]["ranks"] in (4, 8, 16)
    assert body["machine"]["sources"]["memory_rate"]
    assert sum(body["phases"].values()) == pytest.approx(prediction["time_s"])


def test_what_if_changes_the_rate(capsys: pytest.CaptureFixture[str]) -> None:
    usual = json_of(capsys, "simulate", "hpl-mxp", *SMALL)["prediction"]["rate_flops"]
    slow = json_of(capsys, "simulate", "hpl-mxp", *SMALL, "--slow", "3:0.5")
    assert slow["prediction"]["rate_flops"] < 0.8 * usual
    assert slow["config"]["slow"] == {"3": 0.5}
    assert json_of(capsys, "simulate", "hpl-mxp", *SMALL, "--depth", "0")["prediction"]["rate_flops"] < usual
    assert json_of(capsys, "simulate", "hpl-mxp", *SMALL, "--staged")["config"]["gpu_aware"] is False


@pytest.mark.parametrize(
    ("code", "arguments", "words"),
    [
        (2, ["simulate"], ["the benchmark is missing; use one of hpl, hpl-mxp"]),
        (2, ["simulate", "linpack"], ["mxpeak cannot simulate 'linpack'"]),
        (2, ["simulate", "hpl"], ["--machine is missing", "summit, frontier, crusher"]),
        (2, ["simulate", "hpl", "--machine", "sumit"], ["did you mean summit?"]),
        (2, ["simulate", "hpl-mxp", *SMALL, "--ranks", "9"], ["--ranks sets 9, --grid sets 8"]),
        (
            2,
            ["simulate", "hpl-mxp", *SMALL, "--node-grid", "3x1"],
            ["2 / 3 leaves a remainder of 2", "use --node-grid"],
        ),
        (
            2,
            ["simulate", "hpl-mxp", *SMALL, "--node-grid", "1x2"],
            [
                "1x2 has 2 ranks, but a node of frontier has all 8 ranks",
                "use --node-grid 2x4, or use --ranks-per-node 2",
            ],
        ),
        (
            2,
            ["plan", "hpl", "--machine", "frontier", "--grid", "32x8", "--node-grid", "32x4"],
            ["has 128 ranks, but a node of frontier has 8 ranks; use --node-grid 1x8 or 2x4 or 4x2 or 8x1\n"],
        ),
        (2, ["simulate", "hpl-mxp", *SMALL, "--slow", "8:0.5"], ["use a rank from 0 to 7"]),
        *(
            (
                2,
                ["simulate", benchmark, "--machine", "frontier", "--nodes", "1", f"--slow={rank}:0.5"],
                [f"--slow {rank}:0.5 names a rank that does not exist; use a rank from 0 to 7"],
            )
            for benchmark in ("hpl", "hpl-mxp", "hpg-mxp", "hpcg")
            for rank in (99, -1)
        ),
        (2, ["simulate", "hpl-mxp", *SMALL, "--slow", "half"], ["'half' is not in the form RANK:FACTOR", "17:0.9"]),
        (2, ["simulate", "hpl-mxp", *SMALL, "--slow", "1:0"], ["must be above 0"]),
        (2, ["simulate", "hpl-mxp", *SMALL, "--nics", "9"], ["--nics: 9 is out of range; use an integer from 1 to 4"]),
        (2, ["simulate", "hpl-mxp", *SMALL, "--bcast", "star"], ["--bcast: 'star' is unknown"]),
        (2, ["simulate", "hpl-mxp", *SMALL, "--nx", "64"], ["--nx does not apply to hpl-mxp"]),
        (2, ["simulate", "hpl", *SMALL, "--precision", "fp16"], ["--precision does not apply to hpl"]),
        (2, ["simulate", "hpcg", "--machine", "frontier", "-N", "9"], ["-N does not apply to hpcg"]),
        (2, ["simulate", "hpl-mxp", "--machine", "crusher", "--nodes", "193"], ["1544 / 8 = 193 nodes", "1536 ranks"]),
        (
            2,
            ["simulate", "hpl-mxp", "--machine", "frontier", "-N", "100", "--nb", "200"],
            ["--nb 200 is larger than N"],
        ),
        (2, ["plan", "hpl", "--nb", "99999999"], ["the largest N that fits with this block size; use --nb"]),
        (2, ["plan", "hpl", "--machine", "frontier", "--nb", "99999999"], ["the largest N that fits", "use --nb 448"]),
        (
            2,
            ["simulate", "hpcg", "--machine", "frontier", "--nx", "36"],
            ["36 / 8 leaves a remainder of 4", "--nx 32 or --nx 40"],
        ),
        (
            2,
            ["simulate", "hpl", "--machine", "summit"],
            ["summit lacks values for hpl in fp64", "add fp64 to [mycluster.gemm]"],
        ),
        (
            5,
            ["simulate", "hpl-mxp", "--machine", "frontier", "--grid", "2x4", "-N", "900000"],
            ["use -N 350208", "a rank has only 63.98 GiB"],
        ),
        (5, ["plan", "hpcg", "--machine", "frontier", "--nx", "424", "--mem", "8GiB"], ["use a smaller --nx"]),
        (
            5,
            ["plan", "hpl", "--machine", "frontier", "-N", "100000", "--mem", "1MiB", "--ranks", "1"],
            ["a rank has only 1 MiB; use -N 56, the largest N that fits"],
        ),
        (2, ["plan", "norms"], ["mxpeak cannot plan 'norms'"]),
        (2, ["plan", "hpcg", "--machine", "frontier", "--write-dat", "x"], ["use mxpeak run hpcg --print-dat > FILE"]),
        (2, ["plan", "hpl", "--mem", "lots"], ["--mem: 'lots' is not a memory budget"]),
    ],
)
def test_an_error_names_the_correct_command(
    capsys: pytest.CaptureFixture[str], code: int, arguments: list[str], words: list[str]
) -> None:
    said = error_of(capsys, code, *arguments)
    for word in words:
        assert word in said


def test_an_error_in_a_machine_file_names_its_location(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.toml").write_text('[mine]\nbased_on = "frontier"\n[mine.network]\nnic_rate = "fast"\n')
    assert "[mine] network.nic_rate: 'fast' is not valid" in error_of(
        capsys, 2, "simulate", "hpl", "--machine", "mine.toml"
    )


def test_a_machine_file_counts(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.toml").write_text('[mine]\nbased_on = "frontier"\n[mine.gemm]\nfp16 = [[1024, 400e12]]\n')
    usual = json_of(capsys, "simulate", "hpl-mxp", *SMALL)["prediction"]["rate_flops"]
    mine = json_of(capsys, "simulate", "hpl-mxp", "--machine", "mine.toml", *SMALL[2:])["prediction"]["rate_flops"]
    assert mine > 1.05 * usual


def test_openmxps_run_on_1024_gcds_fits_and_is_predicted_within_two_percent(capsys: pytest.CaptureFixture[str]) -> None:
    # N_L = 125,440: 62.9e9 bytes of a GCD's 68.7e9 for the matrix, of which 5.1e9 are left for buffers in the log.
    asked = ("--machine", "frontier", "-N", "4014080", "--nb", "2560", "--grid", "32x32")
    rate = json_of(capsys, "simulate", "hpl-mxp", *asked)["prediction"]["rate_flops"] / 1024
    assert rate == pytest.approx(133.753e12, rel=0.02)


# --- plan -------------------------------------------------------------------------------------------------------


def test_a_plan_fills_the_memory_in_whole_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    body = json_of(capsys, "plan", "hpl-mxp", "--machine", "frontier", "--nodes", "2")
    config = body["config"]
    assert body["schema"] == "mxpeak.plan/1"
    assert (config["P"], config["Q"], config["ranks"]) == (4, 4, 16)
    assert config["n"] % (config["nb"] * 4) == 0
    assert 0.85 * 64 * 2**30 < body["memory"]["bytes_per_rank"] < 0.9 * 64 * 2**30
    assert config["node_grid"] in ([2, 4], [4, 2])
    assert body["prediction"]["low"] < body["prediction"]["rate_flops"] < body["prediction"]["high"]
    assert body["warnings"] == []


@pytest.mark.parametrize("machine", ["mi300x", "frontier"])
def test_the_block_size_is_the_fastest_in_a_simulation(machine: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The products of an MI300X grow up to blocks of 16384, whose panels would take most of the time."""
    flags = ("hpl", "--machine", machine, "--ranks", "4", "--mem", "20%")
    best = json_of(capsys, "simulate", *flags)
    nb, rate = best["config"]["nb"], best["prediction"]["rate_flops"]
    assert nb == json_of(capsys, "plan", *flags, "--bcast", "2ringM")["config"]["nb"]
    assert nb < 2000
    for other in (2 * nb, nb // 2):
        if machine == "frontier" or other > nb:  # the rates of an MI300X below 512 are unknown
            assert json_of(capsys, "simulate", *flags, "--nb", str(other))["prediction"]["rate_flops"] < rate


def test_a_plan_warns_of_what_is_odd(capsys: pytest.CaptureFixture[str]) -> None:
    body = json_of(capsys, "plan", "hpl", "--ranks", "7", "-N", "1000", "--nb", "64")
    assert [warning["code"] for warning in body["warnings"]] == ["prime-ranks", "ragged"]
    for benchmark in ("hpl", "hpcg"):
        for verb in ("plan", "simulate"):
            asked = ("--machine", "frontier", "--ranks", "12", "--ranks-per-node", "5")
            body = json_of(capsys, verb, benchmark, *asked)
            assert [warning["hint"] for warning in body["warnings"]] == ["use 10 or 15 ranks"]
    body = json_of(capsys, "plan", "hpl", "--grid", "4x4", "--node-grid", "2x2")
    assert body["config"]["node_grid"] == [2, 2], "nodes as it says"
    body = json_of(capsys, "plan", "hpl", "--grid", "8x1", "-N", "4096", "--nb", "64")
    assert [warning["code"] for warning in body["warnings"]] == ["tall-grid", "leading-dimension"]
    assert all(warning["hint"] for warning in body["warnings"])


def ran(folder: str, benchmark: str, rate: float, **problem: Any) -> None:
    """Write a valid run on 1x2 ranks to mxpeak-out/."""
    result = {"benchmark": benchmark, "status": "valid", "problem": {"P": 1, "Q": 2, **problem}}
    result["result"] = {"rate_flops": rate}
    path = Path("mxpeak-out", folder, "result.json")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"schema": "mxpeak.results/1", "results": [result]}))


def test_here_the_rate_is_unknown_until_something_has_run(capsys: pytest.CaptureFixture[str]) -> None:
    plan = ["plan", "hpl", "--ranks", "2", "-N", "8000"]
    body = json_of(capsys, *plan)
    assert set(body["prediction"].values()) == {None}
    assert not any("last run" in note for note in body["notes"])
    ran("one", "hpl", 5e10, n=2000)
    body = json_of(capsys, *plan)
    found = body["prediction"]
    assert (found["rate_flops"], found["low"], found["high"]) == (5e10, 4e10, 6e10)
    assert "rate of the last run here with 2 ranks and N of at least 2000, plus or minus 20%" in body["notes"][-1]
    assert json_of(capsys, "plan", "hpl", "--ranks", "4")["prediction"]["rate_flops"] is None, "on other ranks"
    assert json_of(capsys, *plan[:-1], "9000")["prediction"]["rate_flops"] is None, "of a much smaller problem"


def test_here_the_rate_of_another_precision_is_no_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    ran("one", "hpl-mxp", 5e10, n=2000, precision="fp32")
    plan = ["plan", "hpl-mxp", "--ranks", "2", "-N", "8000"]
    assert json_of(capsys, *plan, "--precision", "fp16")["prediction"]["rate_flops"] is None
    assert json_of(capsys, *plan, "--precision", "fp32")["prediction"]["rate_flops"] == 5e10


@pytest.mark.parametrize(("benchmark", "read"), [("hpl", read_hpl), ("hpl-mxp", read_mxp)])
def test_a_dat_holds_the_plan_and_is_never_overwritten(
    capsys: pytest.CaptureFixture[str], benchmark: str, read: Any
) -> None:
    where = ["plan", benchmark, "--machine", "crusher", "--nodes", "1", "--write-dat", "mine.dat"]
    config = json_of(capsys, *where)["config"]
    text = Path("mine.dat").read_text()
    settings = read(text, "mine.dat")
    assert (settings["n"], settings["nb"], settings["P"], settings["Q"]) == (
        (config["n"],),
        (config["nb"],),
        (config["P"],),
        (config["Q"],),
    )
    assert settings["bcast"] == (config["bcast"],)
    assert settings["order"] == config["order"]
    assert "mine.dat already exists" in error_of(capsys, 2, *where)
    assert Path("mine.dat").read_text() == text
    assert "mine.dat already exists" in error_of(capsys, 2, *where[:-1], "new.dat", "--json", "mine.dat")
    assert "new.dat is one of the run's own" in error_of(capsys, 2, *where[:-1], "new.dat", "--json", "new.dat")
    assert not Path("new.dat").exists()


def test_the_command_of_a_plan_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    command = json_of(capsys, "plan", "hpl", "--ranks", "1", "-N", "2000")["command"]
    arguments = command.split(" mxpeak ")[1].split()
    assert main([*arguments, "--device", "cpu", "--dry-run"]) == 0
    assert "N 2000" in capsys.readouterr().out


# --- imports ----------------------------------------------------------------------------------------------------


def imported_by(*arguments: str) -> set[str]:
    code = (
        "import sys\nfrom mxpeak.cli.main import main\n"
        f"code = main({list(arguments)!r})\nprint(sorted(set(sys.modules)), file=sys.stderr)\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(eval(done.stderr.strip().splitlines()[-1]))


@pytest.mark.parametrize("verb", ["plan", "simulate"])
def test_help_imports_nothing_heavy_and_shows_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert not imported_by(verb, "--help") & {"numpy", "scipy", "numba", "torch", "mpi4py", "rich"}
    assert main([verb, "--help"]) == 0
    assert f"  mxpeak {verb} hpl" in capsys.readouterr().out


@pytest.mark.parametrize(("low", "penalty"), [("fp32", ", times a penalty of 0.968"), ("fp64", "")])
def test_a_simulation_of_hpg_mxp_names_the_count_of_its_rate(
    capsys: pytest.CaptureFixture[str], low: str, penalty: str
) -> None:
    assert main(["simulate", "hpg-mxp", "--machine", "frontier", "--nodes", "1", "--nx", "64", "--precision", low]) == 0
    counted = f"counted   flops by the formula of the reference code{penalty}"
    assert counted in capsys.readouterr().out.splitlines()


def test_the_command_of_a_plan_of_hpg_mxp_has_the_precision_of_its_rate(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["plan", "hpg-mxp", "--machine", "frontier", "--nodes", "1", "--nx", "64"]
    for low, asked in (("fp32", []), ("fp16", ["--precision", "fp16"])):
        assert main([*flags, *asked]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert f"precision {low}" in lines
        assert "counted   flops by the formula of the reference code, times a penalty of 0.968" in lines
        assert lines[-1].endswith(f" --precision {low}")
    assert main(["plan", "hpg-mxp", "--ranks", "1", "--nx", "64"]) == 0
    assert "precision" not in capsys.readouterr().out


def test_planning_and_simulating_need_neither_mpi_nor_torch_nor_numba() -> None:
    for arguments in (
        ["plan", "hpl", "--ranks", "2"],
        ["plan", "hpl-mxp", "--machine", "frontier", "--nodes", "1"],
        ["simulate", "hpg-mxp", "--machine", "frontier", "--nx", "64"],
    ):
        assert not imported_by(*arguments) & {"numba", "torch", "triton", "mpi4py", "scipy"}, arguments
