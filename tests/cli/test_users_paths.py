"""Test that files of other people, such as results and tuned settings, set no path of the user."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mxpeak.bench.matrix_market import read_matrix
from mxpeak.bench.registry import BENCHMARKS
from mxpeak.cli.main import main, parsed, parser
from mxpeak.cli.registry import VERBS
from mxpeak.cli.request import requests
from mxpeak.configs.run import OutputConfig
from mxpeak.errors import UsageError
from mxpeak.options import options, recordable
from mxpeak.perf.tuned import Winner
from mxpeak.runtime.tuned import _winner_values
from mxpeak.verbs.scan.config import ScanConfig, ScanOutput


def paths_of(config: type) -> list[str]:
    return [o.name for o in options(config) if o.users_path]


@pytest.fixture(autouse=True)
def empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_path_that_a_run_writes_is_marked() -> None:
    assert set(paths_of(OutputConfig)) == {"json", "out", "events", "prometheus"}
    named = {benchmark.name: set(paths_of(benchmark.config)) for benchmark in BENCHMARKS.values()}
    assert named["hpl-mxp"] == {"trace", "baseline", "checkpoint", "submit"}
    assert named["hpl"] == {"trace", "baseline", "checkpoint"}
    for name in ("hpg-mxp", "hpcg"):
        assert named[name] == {"trace", "baseline"}
    assert named["norms"] == {"trace"}
    for config in (OutputConfig, *(benchmark.config for benchmark in BENCHMARKS.values())):
        unmarked = {o.name for o in options(config) if o.metavar in ("FILE", "DIR")} & recordable(config)
        assert unmarked == set()


def flags_with_paths() -> dict[str, Callable[[str], Any]]:
    """Return the parser of each flag and argument of the command line whose value is a path."""
    found: dict[str, Callable[[str], Any]] = {}
    of_benchmarks = {name: {o.name: o.parse for o in options(each.config)} for name, each in BENCHMARKS.items()}
    output = {o.name: o.parse for config in (OutputConfig, ScanOutput, ScanConfig) for o in options(config)}
    for verb in VERBS:
        parsers = [(verb, subparsers(parser(verb))[verb])]
        parsers += [(f"{verb} {name}", each) for name, each in subparsers(parsers[0][1]).items()]
        for words, each in parsers:
            inherited = {**of_benchmarks["hpl-mxp"], **of_benchmarks.get(words.split()[-1], {}), **output}
            for action in each._actions:
                if re.search(r"FILE|DIR|PATH|RESULT|^[AB]$", str(action.metavar)):
                    of_option = inherited.get(action.dest) if action.default is argparse.SUPPRESS else None
                    name = f"{words} {'/'.join(action.option_strings) or action.metavar}"
                    found[name] = of_option or action.type or str
    return found


def subparsers(top: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    choices = [each.choices for each in top._actions if isinstance(each, argparse._SubParsersAction)]
    return dict(choices[0]) if choices else {}


@pytest.mark.parametrize("flag", (flags := flags_with_paths()))
def test_no_flag_accepts_an_empty_path(flag: str) -> None:
    with pytest.raises(UsageError, match=r"empty path; use|'' is not a BLAS library"):
        flags[flag]("")


def test_the_flags_with_paths_are_found() -> None:
    for name in ("run hpl --out", "run hpcg --dat", "scan --write-exclude", "resume DIR", "compare A", "report FILE"):
        assert name in flags
    assert len(flags) > 60


@pytest.mark.parametrize(
    ("typed", "source"),
    [
        (["run", "hpl", "--out", ""], "--out"),
        (["run", "hpl", "--json="], "--json"),
        (["run", "hpl", "--config", ""], "--config"),
        (["run", "hpl", "--dat", ""], "--dat"),
        (["run", "hpg-mxp", "--matrix", ""], "--matrix"),
        (["run", "norms", "--scalapack", ""], "--scalapack"),
        (["scan", "--prometheus", ""], "--prometheus"),
        (["report", ""], "FILE"),
        (["report", "last", "--out", ""], "--out"),
        (["compare", "", "last"], "A"),
        (["baseline", "set", ""], "RESULT"),
        (["resume", ""], "DIR"),
        (["plan", "hpl", "--write-dat", ""], "--write-dat"),
        (["simulate", "hpl", "--machine", ""], "--machine"),
        (["tune", "--out", ""], "--out"),
        (["study", "--out", ""], "--out"),
        (["doctor", "--json", ""], "--json"),
        (["history", "--json", ""], "--json"),
        (["peak", "--json", ""], "--json"),
        (["job", "hpl", "--for", "slurm", "--", "--out", ""], "--out"),
    ],
)
def test_an_unset_variable_of_a_shell_is_refused_at_once(
    typed: list[str], source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed) == 2
    assert f"mxpeak: error: {source}: empty path; use the path of a file or folder" in capsys.readouterr().err
    assert not os.listdir()


def test_a_toml_file_with_an_empty_path_is_refused() -> None:
    Path("my.toml").write_text('out = ""\n')
    with pytest.raises(UsageError, match="--config key out: empty path"):
        requests(parsed(["run", "hpl", "--config", "my.toml"]), {})


def test_an_empty_variable_sets_no_path() -> None:
    (found,) = requests(parsed(["run", "hpl"]), {"MXPEAK_OUT": ""})
    assert found.output.out is None


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_result_that_is_repeated_sets_no_path(name: str) -> None:
    """Neither those that results record, nor those that only a changed file holds."""
    shown = {o.name: getattr(OutputConfig(), o.name) for o in options(OutputConfig)}
    said: dict[str, Any] = {path: f"/home/{path}" for path in (*paths_of(BENCHMARKS[name].config), *shown)}
    said |= {"warmup": "none", "every": "5m"}
    config = {path: {"value": value, "origin": "flag"} for path, value in said.items()}
    one = {"schema": "mxpeak.result/1", "benchmark": name, "status": "valid", "config": config}
    Path("result.json").write_text(json.dumps({"schema": "mxpeak.results/1", "results": [one]}))
    (run,) = requests(parsed(["run", name, "--config", "result.json"]), {})
    assert run.config.warmup == "none"
    assert {path: getattr(run.config, path) for path in paths_of(BENCHMARKS[name].config)} == dict.fromkeys(
        paths_of(BENCHMARKS[name].config)
    )
    assert vars(run.output) == shown


def test_a_toml_file_of_the_user_sets_paths() -> None:
    Path("my.toml").write_text('out = "here"\nprometheus = "metrics"\ntrace = "trace.json"\n')
    (found,) = requests(parsed(["run", "hpl", "--config", "my.toml"]), {})
    assert (found.output.out, found.output.prometheus, found.config.trace) == ("here", "metrics", "trace.json")


@pytest.mark.parametrize("path", ["trace", "checkpoint", "baseline"])
def test_tuned_settings_set_no_path(path: str) -> None:
    settings = {"nb": "64", path: "/home/file"}
    winner = Winner(
        benchmark="hpl",
        mode="official",
        device="cpu",
        ranks=1,
        threads=1,
        any_layout=False,
        size={"n": 2000},
        precision="",
        settings=settings,
        rate_flops=1e9,
        gain=1.0,
        verdict="",
        when="",
    )
    with pytest.raises(UsageError, match=f"hpl has no setting '{path}'"):
        _winner_values(winner, BENCHMARKS["hpl"].config, open_layout=False)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_matrix_that_never_ends_is_refused(kind: str) -> None:
    path = Path("A.mtx")
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(UsageError, match=r"A\.mtx is a pipe or a device"):
        read_matrix(path)


def test_a_run_of_an_hpl_dat_is_repeated_from_its_result() -> None:
    """Settings that only the file can have are repeated, except the name of its report."""
    config = {
        "n": {"value": [500], "origin": "HPL.dat"},
        "idle_ranks": {"value": True, "origin": "HPL.dat"},
        "l1_form": {"value": "no-transposed", "origin": "HPL.dat"},
        "output_file": {"value": "/home/user/file", "origin": "HPL.dat"},
        "device_out": {"value": 8, "origin": "HPL.dat"},
    }
    one = {"schema": "mxpeak.result/1", "benchmark": "hpl", "status": "valid", "config": config}
    Path("result.json").write_text(json.dumps({"schema": "mxpeak.results/1", "results": [one]}))
    (run,) = requests(parsed(["run", "hpl", "--config", "result.json", "--tuned", "no"]), {})
    assert run.config.n == (500,)
    assert run.config.idle_ranks
    assert run.config.l1_form == "no-transposed"
    assert run.config.output_file == "HPL.out"
    assert run.config.report_to == "stdout"
