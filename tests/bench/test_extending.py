"""Run the benchmark, the generator and the broadcast in docs/project/extending.md."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mxpeak
from mxpeak.bench.hpl.config import HplConfig
from mxpeak.bench.hpl.run import run as run_hpl
from mxpeak.bench.hpl_mxp.config import HplMxpConfig
from mxpeak.bench.hpl_mxp.run import run as run_hpl_mxp
from mxpeak.bench.registry import BENCHMARKS, ReportFormat, register
from mxpeak.cli.main import main
from mxpeak.cli.registry import VERBS
from mxpeak.comm.broadcast import BROADCASTS
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.configs.lu import BCASTS, GENERATORS
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.layout.generators import MAKERS
from mxpeak.records import results_of
from tests.support.result_file import VALIDATOR

GUIDE = (Path(__file__).parents[2] / "docs" / "project" / "extending.md").read_text(encoding="utf-8")


def blocks(section: str) -> dict[str, str]:
    """Return the Python blocks of a section by the file that is named before each, or by number."""
    text = re.split(r"^## ", GUIDE, flags=re.MULTILINE)
    (body,) = (part for part in text if part.startswith(f"{section}\n"))
    code_of: dict[str, str] = {}
    for named, code in re.findall(r"(?:^`([\w/.]+)`[^\n]*:\n\n)?^```python\n(.*?)^```", body, re.DOTALL | re.MULTILINE):
        code_of[named or str(len(code_of))] = code
    return code_of


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """Restore the tables of benchmarks and other extensions after each test."""
    tables: list[Any] = [BENCHMARKS, VERBS, BROADCASTS, MAKERS, BCASTS, GENERATORS]
    before = [table.copy() for table in tables]
    yield
    for table, entries in zip(tables, before):
        table.clear()
        table.extend(entries) if isinstance(table, list) else table.update(entries)
    for name in [name for name in sys.modules if name.split(".")[0] in ("triad", "nodes")]:
        del sys.modules[name]


@pytest.fixture
def triad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the package of the guide to an empty folder and add it to the path."""
    for name, code in blocks("A benchmark").items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(code, encoding="utf-8")
    assert {file.name for file in (tmp_path / "triad").iterdir()} == {"__init__.py", "config.py", "report.py", "run.py"}
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MXPEAK_IMPORT", "triad")


def test_the_benchmark_runs_from_the_command_line_and_its_result_is_whole(
    triad: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "triad", "-N", "1000", "--repeat", "3", "--threads", "1", "--json", "-"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["benchmark"], body["status"], body["problem"]) == ("triad", "valid", {"n": 1000, "ranks": 1})
    assert body["validation"]["residual"] == 0.0
    assert body["result"]["rate_bytes"] == 24000 / min(body["samples_s"])
    assert len(body["samples_s"]) == 3
    assert body["config"]["n"] == {"value": 1000, "origin": "flag"}
    assert body["machine"]
    assert body["launch"]["ranks"] == 1
    (folder,) = Path("mxpeak-out").iterdir()
    assert sorted(file.name for file in folder.iterdir()) == ["report.html", "result.json", "triad.txt"]


def test_its_own_report_is_asked_for_by_its_name(triad: None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "120")
        assert main(["run", "triad", "--help"]) == 0
        assert "--format {text,triad,junit,bencher}" in capsys.readouterr().out
        assert main(["run", "hpl", "--help"]) == 0
        assert "--format {text,hpl,junit,bencher}" in capsys.readouterr().out
    assert main(["run", "triad", "-N", "1000", "--threads", "1", "--format", "triad", "--out", "out"]) == 0
    line = capsys.readouterr().out
    assert re.fullmatch(r"TRIAD 1000 [\d.e+]+ PASSED\n", line)
    assert Path("out/triad.txt").read_text() == line
    assert main(["report", "out", "--format", "triad"]) == 0
    assert capsys.readouterr().out == line
    assert main(["report", "out", "--format", "hpl"]) == 2
    assert "--format hpl does not apply to results of triad; use html" in capsys.readouterr().err
    for benchmark, wanted, fits in (("triad", "hpl", "text or triad"), ("hpl", "triad", "text or hpl")):
        assert main(["run", benchmark, "-N", "100", "--format", wanted]) == 2
        assert f"run {benchmark} does not support --format {wanted}; use {fits}" in capsys.readouterr().err


def test_its_result_matches_the_schema_and_is_read_where_it_is_not_registered(
    triad: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "triad", "-N", "1000", "--threads", "1", "--repeat", "2"]) == 0
    (folder,) = Path("mxpeak-out").iterdir()
    VALIDATOR.validate(json.loads((folder / "result.json").read_text()))
    assert main(["history", "triad"]) == 0
    assert "1000 entries per rank" in capsys.readouterr().out
    assert main(["report", "last", "--out", "page.html"]) == 0
    assert "Triad" in Path("page.html").read_text()
    (body,) = results_of(json.loads((folder / "result.json").read_text()))
    Path("wrong.json").write_text(json.dumps({**body, "problem": {"n": 1000, "ranks": 0}}))
    capsys.readouterr()
    assert main(["report", "wrong.json", "--format", "csv"]) == 2
    assert "problem.ranks is 0, less than 1" in capsys.readouterr().err
    monkeypatch.delenv("MXPEAK_IMPORT")
    BENCHMARKS.pop("triad")
    for argv in (["history"], ["compare", "last", "last"], ["report", "last", "--format", "markdown"]):
        assert main(argv) == 0
        out, err = capsys.readouterr()
        assert "triad" in out
        assert err == ""


def test_the_benchmark_moves_into_mxpeak(tmp_path: Path) -> None:
    package = tmp_path / "mxpeak"
    shutil.copytree(Path(mxpeak.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    moved = blocks("A benchmark")
    for old, new in (("triad.report", "mxpeak.report.triad_text"), ("from triad.", "from mxpeak.bench.triad.")):
        moved = {file: code.replace(old, new) for file, code in moved.items()}
    (package / "bench" / "triad").mkdir()
    (package / "bench" / "triad" / "__init__.py").touch()
    for name in ("config", "run"):
        (package / "bench" / "triad" / f"{name}.py").write_text(moved[f"triad/{name}.py"], encoding="utf-8")
    (package / "report" / "triad_text.py").write_text(moved["triad/report.py"], encoding="utf-8")
    entry = re.sub(r"^from mxpeak.bench.registry .*\n", "", moved["triad/__init__.py"], flags=re.MULTILINE)
    entry = entry.replace('"triad.run"', '"mxpeak.bench.triad.run"')
    with open(package / "bench" / "registry.py", "a", encoding="utf-8") as registry:
        registry.write(entry)

    def printed(*argv: str) -> str:
        command = [sys.executable, "-m", "mxpeak", *argv]
        environ = {**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "120"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path, env=environ)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run = ["run", "triad", "-N", "100", "--kernels", "reference", "--warmup", "none", "--threads", "1"]
    assert re.match(r"PASSED  triad  ", printed(*run, "--out", "out"))
    assert re.fullmatch(r"TRIAD 100 [\d.e+]+ PASSED\n", printed("report", "out", "--format", "triad"))
    assert "100 entries per rank" in printed("report", "out", "--format", "markdown")
    assert re.search(r"^ +triad +y = y", printed("run", "--help"), re.MULTILINE)
    assert "norms, triad" in printed("history", "--help")
    assert "run triad '*) known='--help --device" in printed("completion", "bash")


@pytest.mark.parametrize("change", [{"name": "a b"}, {"name": ""}, {"name": "t\n"}, {"name": "all"}])
def test_a_name_that_no_result_can_have_is_not_registered(change: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"not a valid name for a benchmark|already registered"):
        register(replace(BENCHMARKS["hpl"], **change))
    report = ReportFormat(format="text", file="x.txt", writer="x:y")
    with pytest.raises(ValueError, match="--format text selects the report of mxpeak"):
        register(replace(BENCHMARKS["hpl"], name="mine", report=report))


def test_it_is_known_from_when_it_is_registered(triad: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.delenv("MXPEAK_IMPORT")
        assert main(["run", "triad", "-N", "1000", "--dry-run"]) == 2
    assert main(["run", "triad", "-N", "1000", "--dry-run"]) == 0


def test_people_see_it_as_any_other_benchmark(triad: None, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "120")
        assert main(["run", "triad", "--help"]) == 0
    assert "entries of each rank's vectors (default: 10000000)" in capsys.readouterr().out
    assert main(["run", "triad", "-N", "1000", "--dry-run"]) == 0
    assert "two vectors of 1000 entries: 16000 bytes per rank" in capsys.readouterr().out
    assert main(["run", "triad", "-N", "0"]) == 2
    assert "-N/--n: 0 is out of range" in capsys.readouterr().err
    assert main(["run", "triad", "-N", "1000", "--threads", "1"]) == 0
    assert re.match(r"PASSED  triad  [\d.e+-]+ GB/s\n", capsys.readouterr().out)


def test_its_ranks_agree_and_a_wrong_sum_of_one_fails_on_all(triad: None, monkeypatch: pytest.MonkeyPatch) -> None:
    run, Config = import_module("triad.run").run, import_module("triad.config").TriadConfig
    config = Config(n=100, repeat=4, threads=1)
    for results in run_ranks(3, lambda comm: run(config, comm)):
        assert [one.status for one in results] == ["valid"]
        assert results[0].problem == {"n": 100, "ranks": 3}
    exact = HostKernels.add_scaled

    def wrong(self: Any, y: Any, factor: float, x: Any) -> None:
        exact(self, y, factor, x)
        y[-1] = 0.0

    monkeypatch.setattr(HostKernels, "add_scaled", wrong)
    assert [results[0].status for results in run_ranks(3, lambda comm: run(config, comm))] == ["invalid"] * 3


def test_a_package_registers_a_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, code in blocks("A verb").items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("MXPEAK_IMPORT", "nodes")
    monkeypatch.setenv("NODES", "3")
    assert main(["--help"]) == 0
    assert re.search(r"^ +nodes +print the number of nodes$", capsys.readouterr().out, re.MULTILINE)
    assert "nodes.command" not in sys.modules
    assert main(["nodes", "--plus", "2"]) == 0
    assert capsys.readouterr().out == "5\n"
    assert main(["help", "nodes"]) == 0
    assert "--plus K" in capsys.readouterr().out
    assert main(["completion", "bash"]) == 0
    assert "'nodes '*) known='--help --plus'" in capsys.readouterr().out
    del sys.modules["nodes"]
    with pytest.raises(ValueError, match="the verb nodes is already registered"):
        import_module("nodes")


def test_a_module_that_cannot_be_imported_is_a_mistake(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MXPEAK_IMPORT", "no_such_module")
    assert main(["run", "hpl", "-N", "10"]) == 2
    assert "MXPEAK_IMPORT: cannot import no_such_module" in capsys.readouterr().err


def test_a_name_is_registered_once(triad: None) -> None:
    import_module("triad")
    del sys.modules["triad"]
    with pytest.raises(ValueError, match="the benchmark triad is already registered"):
        import_module("triad")
    assert callable(mxpeak.run.triad)
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        mxpeak.run.other  # noqa: B018


def test_the_generator_is_solved_on_ranks_and_the_rules_do_not_name_it() -> None:
    (code,) = blocks("A generator").values()
    exec(code, {})
    config = HplMxpConfig(n=(61,), nb=(8,), generator=("log-n",), threads=1, warmup="none")
    for (result,) in run_ranks(4, lambda comm: run_hpl_mxp(config, comm)):
        assert (result.status, result.problem["generator"]) == ("valid", "log-n")
        assert [one["rule"] for one in result.rules["violations"]] == ["generator"]
        assert result.rules["violations"][0]["text"].startswith("log-n: it is not in the rules")


def test_the_broadcast_carries_panels_on_ranks() -> None:
    (code,) = blocks("A broadcast").values()
    exec(code, {})
    config = HplConfig(n=(61,), nb=(8,), grid=((1, 3),), bcast=("star",), threads=1, warmup="none")
    for (found,) in run_ranks(3, lambda comm: run_hpl(config, comm)):
        assert (found.status, found.problem["variant"]) == ("valid", "WR18R2L16")
        assert found.phases["bcast"]["calls"] > 0


@pytest.mark.parametrize("backend", ["reference", "host", "torch"])
def test_the_kernel_is_the_same_on_every_backend(backend: str) -> None:
    files = blocks("A kernel")
    paths = {"reference": "reference", "host": "host/lu", "torch": "torch/lu"}
    assert list(files) == [f"kernels/{path}/lu.py" for path in ("contract", *paths.values())]
    namespace: dict[str, Any] = {"np": np, "Vector": Any}
    exec(files["kernels/contract/lu.py"], namespace)
    assert namespace["distance"].__doc__.startswith("max |x_i - y_i|")
    exec(files[f"kernels/{paths[backend]}/lu.py"], namespace)
    x, y = (np.random.default_rng(seed).random(101) for seed in (1, 2))
    mine = [pytest.importorskip("torch").from_numpy(v) for v in (x, y)] if backend == "torch" else [x, y]
    assert namespace["distance"](None, *mine) == np.abs(x - y).max()


def with_additions(source: str, file: str, additions: list[tuple[str, ...]]) -> str:
    """Return the source of a file with the lines that the guide inserts before or after others."""
    lines = source.splitlines()
    for named, where, anchor, code in additions:
        if named == file:
            (place,) = (k for k, line in enumerate(lines) if line.startswith(anchor))
            lines.insert(place + (where == "after"), code)
    return "\n".join(lines) + "\n"


def test_a_flag_of_hpl_is_at_most_five_additions(tmp_path: Path) -> None:
    (section,) = (part for part in re.split(r"^## ", GUIDE, flags=re.MULTILINE) if part.startswith("A flag\n"))
    steps = re.split(r"^\d\. ", section, flags=re.MULTILINE)[1:]
    assert len(steps) <= 5
    shape = r"In `([\w/.]+)`, (before|after)\s+`([^`]+)`:\n\n   ```python\n   ([^\n]*)\n   ```"
    additions = [match.groups() for step in steps if (match := re.search(shape, step))]
    assert len(additions) == len(steps) - 1  # the last is the changelog
    home = Path(mxpeak.__file__).parent
    shutil.copytree(home, tmp_path / "mxpeak", ignore=shutil.ignore_patterns("__pycache__"))
    for file in {addition[0] for addition in additions}:
        source = (home / file).read_text(encoding="utf-8")
        (tmp_path / "mxpeak" / file).write_text(with_additions(source, file, additions), encoding="utf-8")

    def typed(*argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mxpeak", "run", "hpl", *argv]
        variables = {**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "120", **environ}
        return subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True)

    assert "--pause SECONDS" in typed("--help").stdout
    assert "--pause: -1 is out of range; use a number of at least 0" in typed("--pause", "-1").stderr
    small = ["-N", "30", "--nb", "8", "--kernels", "reference", "--warmup", "none", "--threads", "1", "--json", "-"]
    body = json.loads(typed(*small, MXPEAK_PAUSE="0.125").stdout)
    assert body["config"]["pause"] == {"value": 0.125, "origin": "variable"}
    assert body["problem"]["pause_s"] == 0.125
