"""Test the answers of `mxpeak peak`, `doctor` and `completion`, as text and as JSON."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mxpeak.bench.peak import run as peak
from mxpeak.cli.main import main
from mxpeak.comm.transports.solo import Solo
from mxpeak.configs.run import RunConfig
from mxpeak.verbs.peak import text_of


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = peak.run_peak
    monkeypatch.setattr(peak, "SECONDS", 0.0)
    monkeypatch.setattr(peak, "run_peak", lambda config, comm, **told: measure(config, comm, scale=32, **told))


def test_peak_measures_products_memory_and_their_balance(quick: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["peak", "--threads", "1", "--json", "-"]) == 0
    body: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert body["schema"] == "mxpeak.peak/1"
    names = [rate["name"] for rate in body["rates"]]
    assert names[:2] == ["DGEMM", "SGEMM"]
    assert names[-2:] == ["memory read", "memory triad"]
    rates = {rate["name"]: rate.get("rate_flops", rate.get("rate_bytes")) for rate in body["rates"]}
    assert body["balance"]["flops_per_byte"] == rates["DGEMM"] / rates["memory read"]
    assert {"machine", "software", "launch"} <= set(body)
    assert "ranks" not in text_of(body)
    assert "ranks         4; each rate is the total of all ranks\n" in text_of({**body, "launch": {"ranks": 4}})


def test_a_precision_that_is_emulated_is_no_limit(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    body = peak.run_peak(RunConfig(threads=1, kernels="reference"), Solo())
    assert [one["name"] for one in body["rates"]] == ["DGEMM", "SGEMM", "memory read", "memory triad"]


def test_doctor_ends_in_a_verdict_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", "-"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["schema"] == "mxpeak.doctor/1"
    assert body["verdict"]["cpu"] is True
    assert set(body["verdict"]) == {"cpu", "mpi", "gpu", "text", "to_do"}
    assert {"host", "BLAS", "MPI", "GPU", "cores"} <= set(body["sections"])
    missing = [one for one in body["sections"].values() if "missing" in one]
    assert all(one["fix"] for one in missing)
    assert len(body["verdict"]["to_do"]) <= len(missing)
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.startswith("ready: mxpeak runs on the CPU")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_verbs_benchmarks_and_flags(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("simulate", "compare", "hpl-mxp", "warmup", "min-gflops"):
        assert word in script
    assert "mapfile" not in script, "zsh has none"


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("compl", "completion"),
        ("run hpl-m", "hpl-mxp"),
        ("run hpl --min-g", "--min-gflops"),
        ("--out a", "a file"),
        ("job sc", "scan"),
        ("plan hpl-m", "hpl-mxp"),
        ("tune hpc", "hpcg"),
        ("study gen", "generators"),
        ("baseline s", "set"),
        ("completion z", "zsh"),
    ],
)
def test_bash_completes_words_and_files(
    line: str, offered: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "a file").touch()
    assert main(["completion", "bash"]) == 0
    words = ["mxpeak", *line.split()]
    ask = (
        f"\nCOMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; _mxpeak; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["bash"], input=capsys.readouterr().out + ask, text=True, capture_output=True, cwd=tmp_path)
    assert done.stdout.splitlines() == [offered]


def test_fish_offers_sub_verbs_only_where_they_stand(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "complete -c mxpeak -n '__mxpeak_at run' -f -a hpl" in lines
    assert "complete -c mxpeak -n '__mxpeak_after run hpl' -l min-gflops" in lines
