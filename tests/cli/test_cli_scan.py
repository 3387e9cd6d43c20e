"""Test the settings, the files, the exit codes and the errors of `mxpeak scan`."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mxpeak.cli import output
from mxpeak.cli.main import main, parsed
from mxpeak.errors import UsageError
from mxpeak.kernels import choose
from mxpeak.runtime import launch, placement
from mxpeak.verbs.scan import run as scan_run
from mxpeak.verbs.scan.command import scan_settings
from tests.support.ranks import Ended, commands_here
from tests.support.scans import scan_body

SMALL = ["scan", "--ranks", "1", "--threads", "1", "-N", "40", "--nb", "16", "--rounds", "2"]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """Run scans of one rank."""
    commands = {
        "text": SMALL,
        "json": [*SMALL, "--json", "-", "--warmup", "none"],
        "files": [*SMALL, "--json", "scan.json", "--write-exclude", "exclude.txt", "--quiet", "--warmup", "gemm"],
        "reference": [*SMALL, "--kernels", "reference", "--json", "-"],
        "torch": [*SMALL, "--kernels", "torch", "--device", "cpu", "--json", "-"],
        "large": [*SMALL[:5], "-N", "9000000"],
    }
    return commands_here(commands, tmp_path_factory.mktemp("scans"))


def test_one_rank_is_alike(ended: dict[str, Ended]) -> None:
    ended["text"].check(0)
    assert "LU of N 40 NB 16" in ended["text"].stdout
    assert "no other rank to compare it with" in ended["text"].stdout


def test_json_has_what_programs_rely_on(ended: dict[str, Ended]) -> None:
    for name in ("json", "reference", "torch"):
        ended[name].check(0)
        body = ended[name].body
        assert body["schema"] == "mxpeak.scan/1"
        assert (body["slow"], body["wrong"], body["undecided"]) == ([], [], [])
        assert all(rate > 0 for rate in body["median"].values())
        (rank,) = body["ranks"]
        assert {key: len(rates) for key, rates in rank["rates"].items()} == {"lu": 2, "gemm": 2, "read": 2}
        assert rank["host"] == body["machine"]["hostname"]
        assert {"clock_mhz", "throttle_events", "throttle_reasons", "ecc_corrected", "uuid"} <= set(rank)
        assert body["config"]["n"] == {"value": 40, "origin": "flag"}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--unit", "node", "--precision", "bf16"], "use --benchmark hpl-mxp, or remove --precision"),
        (["--benchmark", "hpl", "--precision", "fp32"], "HPL, which computes in fp64"),
        (["--group", "2"], "--group has no effect with --unit rank; use --unit group"),
        (["--min-link", "20GB/s"], "--min-link has no effect without --links; add --links"),
        (["--link-tolerance", "10%"], "--link-tolerance has no effect without --links; add --links"),
    ],
)
def test_flags_that_contradict_each_other(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scan", *flags]) == 2
    assert said in capsys.readouterr().err


def test_quiet_scans_write_files_and_print_one_line(ended: dict[str, Ended]) -> None:
    ended["files"].check(0)
    assert len(ended["files"].stdout.splitlines()) == 1
    assert ended["files"].stderr == ""
    assert ended["files"].file("scan.json")["problem"]["warmup"] == "gemm"
    assert (ended["files"].folder / "exclude.txt").read_text() == ""


def test_an_order_beyond_the_memory_is_refused_with_the_largest_one(ended: dict[str, Ended]) -> None:
    ended["large"].check(5)
    assert "the largest N that fits" in ended["large"].stderr


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (scan_body(4), 0),
        (scan_body(4, slow={1: 0.5}), 3),
        (scan_body(4, wrong={1: "bbb"}), 3),
        (scan_body(2, wrong={1: "bbb"}), 3),
        (scan_body(4, slow={1: 0.76, 2: 0.76}), 3),
    ],
)
def test_the_exit_code_tells_whether_all_are_alike(
    body: dict[str, Any], code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scan_run, "run_scan", lambda *_, **told: {**body, "warnings": []})
    assert main([*SMALL, "--json", "body.json", "--write-exclude", "out"]) == code
    assert json.loads(Path("body.json").read_text())["status"] == body["status"]
    assert (Path("out").read_text() == "") == (body["exclude"]["hosts"] == [])
    assert main([*SMALL, "--json", "body.json"]) == 2, "nothing is overwritten"


@pytest.mark.parametrize(("body", "code"), [(scan_body(4), 5), (scan_body(4, slow={1: 0.5}), 3)])
@pytest.mark.parametrize("flags", [[], ["--prometheus", "m.prom"]])
def test_a_full_disk_does_not_hide_a_slow_rank(
    body: dict[str, Any],
    code: int,
    flags: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(path: Path, *what: Any, **how: Any) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scan_run, "run_scan", lambda *_, **told: {**body, "warnings": []})
    if flags:
        monkeypatch.setattr(Path, "write_text", full)  # of the metrics file
    else:
        monkeypatch.setattr(output, "_write_out", full)
    assert main([*SMALL, *flags]) == code
    assert "No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["--rounds", "0"], "--rounds: 0 is out of range; use an integer from 1 to "),
        (["-N", "0"], "-N/--n: 0 is out of range"),
        (["--warmup", "cold"], "--warmup: 'cold' is unknown; use one of none, gemm, full"),
        (["--device", "tpu"], "--device: 'tpu' is not a device"),
        (["--tolerance", "100%"], "--tolerance: '100%' is out of range; use a share"),
        (["--tolerance", "-1%"], "--tolerance: '-1%' is out of range; use a share"),
        (["--exclude-format", "pbs"], "--exclude-format: 'pbs' is unknown; use one of slurm, hostfile"),
        (["--write-exclude", "/no/such/folder/file"], "use another --write-exclude FILE"),
        (["--json", "a", "--write-exclude", "a"], "--write-exclude a is one of the run's own result files"),
        (["--prometheus", "/"], "--prometheus / is a folder, but mxpeak replaces only regular files"),
        (
            ["--config", "none.toml"],
            "error: mxpeak cannot read --config none.toml: No such file or directory; use another",
        ),
        (["--repeat", "3"], "mxpeak scan does not accept --repeat 3; see mxpeak scan --help"),
    ],
)
def test_mistakes_are_named_before_anything_runs(
    typed: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["scan", "--ranks", "1", *typed]) == 2
    assert message in capsys.readouterr().err


def test_settings_come_from_flags_variables_and_files(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text("nb = 64\nrounds = 2\n[scan]\nrounds = 7\nwrite-exclude = 'x'\n[hpl]\nnb = 1\n")
    environ = {"MXPEAK_WARMUP": "none", "MXPEAK_NB": "96"}
    settings = scan_settings(parsed(["scan", "--config", str(file), "--tolerance", "3%"]), environ)
    assert (settings.config.rounds, settings.config.nb, settings.config.warmup) == (7, 96, "none")
    assert settings.config.tolerance == pytest.approx(0.03)
    assert settings.output.write_exclude == "x"
    assert settings.origins["nb"] == "variable"
    with pytest.raises(UsageError, match="the variable MXPEAK_ROUND is unknown; did you mean MXPEAK_ROUNDS"):
        scan_settings(parsed(["scan"]), {"MXPEAK_ROUND": "1"})


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the list of local rank counts that a scan would start; no rank is started."""
    counts: list[int] = []
    monkeypatch.setattr(launch, "respawn", lambda ranks, argv, comm: counts.append(ranks) or 0)
    monkeypatch.setattr(placement, "core_groups", lambda: [[0, 1, 2, 3], [4, 5, 6, 7]])
    return counts


@pytest.mark.parametrize(
    ("typed", "groups", "ranks"),
    [
        ([], [[0, 1, 2, 3], [4, 5, 6, 7]], 2),
        ([], [[0, 1, 2]], 3),
        (["--threads", "2"], [[0, 1, 2, 3], [4, 5, 6, 7]], 4),
        (["--ranks", "5"], [[0, 1]], 5),
        (["--device", "cpu", "--kernels", "torch"], [[0, 1]], 2),
    ],
)
def test_a_host_is_scanned_by_groups_of_cores(
    typed: list[str], groups: list[list[int]], ranks: int, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "core_groups", lambda: groups)
    assert main(["scan", "--device", "cpu", *typed]) == 0
    assert started == [ranks]


def test_a_host_is_scanned_by_gpus(started: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from mxpeak.kernels.torch.engine import device

    monkeypatch.setattr(choose, "open_device", lambda name: None)
    monkeypatch.setattr(device, "count", lambda: 4)
    assert main(["scan", "--device", "cuda"]) == 0
    assert started == [4]
    assert placement.parts_here(SimpleNamespace(kernels="auto", device="cuda:1", threads=None)) == 1  # type: ignore[arg-type]


def test_without_mpi_a_scan_says_what_one_rank_would_take(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_mpi(*_: Any) -> int:
        raise UsageError("--ranks 2 needs MPI for Python")

    monkeypatch.setattr(launch, "respawn", no_mpi)
    monkeypatch.setattr(placement, "core_groups", lambda: [[0, 1]])
    assert main(["scan", "--device", "cpu"]) == 2
    assert (
        "mxpeak selected 2 ranks for this host, but could not start them: --ranks 2 needs MPI for Python, "
        "or use --ranks 1"
    ) in (capsys.readouterr().err)


def test_a_profile_sets_what_the_user_does_not_set() -> None:
    def settings(*flags: str) -> Any:
        return scan_settings(parsed(["scan", *flags]), {})

    deep = settings("--profile", "deep", "--rounds", "4")
    assert (deep.config.rounds, deep.config.links) == (4, True)
    assert (deep.origins["rounds"], deep.origins["links"]) == ("flag", "profile")
    assert settings("--profile", "quick").config.warmup == "gemm"
    assert settings().config.links is False
    with pytest.raises(UsageError, match="nightly"):
        settings("--profile", "nightly")
