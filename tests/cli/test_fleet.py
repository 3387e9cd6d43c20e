"""Test that history, report, baseline and compare accept scans as past runs, node by node."""

from __future__ import annotations

import json
import random
import stat
import subprocess
import time
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from mxpeak.cli.main import main
from mxpeak.report.scans import node_rates
from mxpeak.verbs.compare.fleet import judged, noise_of, spread_of
from mxpeak.verbs.scan import run as scan_run
from mxpeak.verbs.scan.actions import drain_script
from mxpeak.verbs.scan.baseline import baseline_of, expected_of
from mxpeak.verbs.scan.decide import Expected, RankRates, decide
from tests.support.scans import HOT, scan_body

SMALL = ["scan", "--ranks", "1", "--threads", "1", "-N", "40", "--nb", "16", "--rounds", "2"]
LARGE = 1000


def noisy(nodes: int, seed: int, **about: Any) -> dict[str, Any]:
    """A scan of nodes whose rates vary by 0.3 % between rounds and by 0.5 % between nodes."""
    chance, permanent = random.Random(seed), random.Random(0)
    body = scan_body(nodes, **about)
    for rank in body["ranks"]:
        own = permanent.gauss(1.0, 0.005)
        rank["rates"] = {
            name: [rate * own * chance.gauss(1.0, 0.003) for rate in rates] for name, rates in rank["rates"].items()
        }
    return body


def written(name: str, body: dict[str, Any]) -> str:
    Path(name).write_text(json.dumps({"run": {}, "software": {}, "machine": {}, "config": {}, "warnings": [], **body}))
    return name


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def compared(before: dict[str, Any], after: dict[str, Any], *more: str) -> tuple[int, dict[str, Any]]:
    for name in ("a.json", "b.json", "compared.json"):
        Path(name).unlink(missing_ok=True)
    code = main(["compare", written("a.json", before), written("b.json", after), "--json", "compared.json", *more])
    return code, json.loads(Path("compared.json").read_text())


def verdicts(body: dict[str, Any]) -> dict[str, str]:
    return {node["host"]: node["verdict"] for node in body["nodes"]}


def test_a_scan_is_stored_and_accepted_like_a_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bodies = iter([scan_body(8), scan_body(8, slow={1: 0.8})])
    monkeypatch.setattr(scan_run, "run_scan", lambda *_, **told: {**next(bodies), "warnings": []})
    assert main([*SMALL, "--out", "mxpeak-out/first"]) == 0
    assert main([*SMALL, "--prometheus", "scan.prom"]) == 3
    (second,) = (folder for folder in Path("mxpeak-out").iterdir() if folder.name != "first")
    assert {file.name for file in second.iterdir()} == {"result.json", "report.html"}
    assert "-scan-" in second.name
    assert "rank 1 (node001, cores 0-3)" in (second / "report.html").read_text()
    assert main(["history", "scan"]) == 0
    assert "N=6144 NB=512 bf16, 8 ranks on 8 hosts" in capsys.readouterr().out
    assert main(["report", "last", "mxpeak-out/first", "--out", "page.html"]) == 0
    assert Path("page.html").read_text().count("Ranks of the scan") == 2
    assert main(["report", "last", "--format", "csv"]) == 0
    assert main(["baseline", "set", "mxpeak-out/first"]) == 0
    capsys.readouterr()
    assert main(["compare", "baseline", "last"]) == 4
    assert "SLOWER: node001" in capsys.readouterr().out
    assert main(["compare", "first", "baseline"]) == 0
    metrics = Path("scan.prom").read_text()
    assert 'mxpeak_scan_ranks{finding="slow"} 1.0' in metrics
    assert 'mxpeak_scan_node_action{host="node001",severity="drain"} 1.0' in metrics
    assert "mxpeak_exit_code 3.0" in metrics


def test_a_node_is_compared_with_its_noise_and_with_the_fleet() -> None:
    before = noisy(20, 1)
    code, body = compared(before, noisy(20, 2))
    assert code == 0
    assert set(verdicts(body).values()) == {"same"}
    assert not body["regressed"]
    code, body = compared(before, noisy(20, 2, slow={3: 0.9, 5: 1.1}))
    assert code == 4
    assert verdicts(body)["node003"] == "slower"
    assert verdicts(body)["node005"] == "faster"
    slowest = body["nodes"][0]
    assert slowest["host"] == "node003"
    assert slowest["after"] / slowest["before"] == pytest.approx(1.0 + slowest["change"])
    assert slowest["change"] == pytest.approx(-0.1, abs=0.01)
    assert 0 < slowest["spread"] < 0.01
    assert 0 < slowest["noise"] < 0.05


def test_half_of_a_fleet_and_a_whole_fleet_become_slower() -> None:
    before = noisy(20, 1)
    half = compared(before, noisy(20, 2, slow=dict.fromkeys(range(10), 0.9)))[1]
    assert sum(verdict == "slower" for verdict in verdicts(half).values()) == 10
    assert sum(verdict == "same" for verdict in verdicts(half).values()) == 10
    code, whole = compared(before, noisy(20, 2, slow=dict.fromkeys(range(20), 0.9)))
    assert code == 4
    assert set(verdicts(whole).values()) == {"slower"}
    assert whole["fleet"]["lu"]["verdict"] == "slower"


def test_a_change_within_the_noise_of_the_node_is_ambiguous() -> None:
    before, after = noisy(8, 1), noisy(8, 2)
    after["ranks"][2]["rates"]["lu"] = [1.0e11, 2.2e11, 2.6e11]
    code, body = compared(before, after)
    assert code == 0
    assert verdicts(body)["node002"] == "ambiguous"


def test_verdicts_have_these_limits() -> None:
    assert judged(-0.05, 0.05, None, None) == "same"
    assert judged(-0.06, 0.05, None, None) == "ambiguous", "neither noise nor spread is known"
    assert judged(-0.06, 0.05, 0.059, 0.01) == "slower"
    assert judged(-0.06, 0.05, 0.061, 0.01) == "ambiguous"
    assert judged(0.06, 0.05, 0.01, 0.021) == "ambiguous", "three times the spread is 0.063"
    assert judged(0.06, 0.05, 0.01, 0.019) == "faster"
    assert spread_of([0.0, 0.1, 0.2], [1.0, 1.0, 1.0]) is None
    assert spread_of([0.0, 0.1, 0.2, 0.3], [1.0, 1.0, 1.0, 1.0]) == 0.0, "the smaller of the two estimates"
    assert noise_of([1.0], [1.0, 1.0]) is None


def test_wrong_results_missing_and_new_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    before, after = scan_body(6), scan_body(8, wrong={4: "bbb"})
    after["ranks"] = after["ranks"][1:]
    for finding in after["wrong"]:
        finding["rank"] -= 1
    for group in after["groups"]:
        group["ranks"] = list(range(7))
    code, body = compared(before, after)
    assert code == 4
    assert verdicts(body)["node004"] == "failed"
    assert "FAILED (wrong results only in B): node004" in capsys.readouterr().out
    assert (body["missing"], body["new"]) == (["node000"], ["node006", "node007"])


def test_the_rate_of_a_node_is_that_of_its_slowest_rank_in_each_round() -> None:
    ranks = [{"host": "a", "rates": {"lu": [1.0, 3.0]}}, {"host": "a", "rates": {"lu": [2.0, 2.0]}}]
    assert node_rates(ranks) == {"a": {"lu": [1.0, 2.0]}}


def other_device(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "ranks": [{**rank, "model": "Other 1"} for rank in body["ranks"]]}


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (other_device(scan_body(4)), "not comparable: node000 has 1 rank of Invented 9000 with 4 threads in a.json"),
        (scan_body(4, host="x{}"), "have no node in common; use scans of the same nodes"),
        (scan_body(4, host="same"), "two ranks have the host name same and the same cores and device"),
        ({**scan_body(4), "problem": {**scan_body(4)["problem"], "n": 96}}, "N differs (6144 and 96)"),
        ({**scan_body(4), "ranks": []}, "ranks has 0 items, fewer than 1"),
        ({**scan_body(4), "status": "fine"}, 'status is "fine", not one of alike, different, undecided'),
        ({**scan_body(4, slow={2: 0.5}), "ranks": scan_body(2)["ranks"]}, "a finding names rank 2, but there are 2"),
        ({"schema": "mxpeak.scan/1"}, "it has no status"),
    ],
)
def test_scans_that_are_not_comparable(after: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    written("a.json", scan_body(4))
    written("b.json", after)
    assert main(["compare", "a.json", "b.json"]) == 2
    assert message in capsys.readouterr().err


def test_two_nodes_with_one_name_differ_in_their_boot(capsys: pytest.CaptureFixture[str]) -> None:
    body = scan_body(4, host="same", a_host=1)
    for k, rank in enumerate(body["ranks"]):
        rank["boot"] = f"boot {k // 2}"
    assert main(["baseline", "from", written("scan.json", body)]) == 2
    assert "scan.json: 2 nodes have the host name same" in capsys.readouterr().err
    for rank in body["ranks"]:
        rank["boot"] = "boot"
    Path("scan.json").unlink()
    assert main(["baseline", "from", written("scan.json", body)]) == 0, "ranks of one node may share its cores"


def test_a_scan_and_a_run_are_not_compared(capsys: pytest.CaptureFixture[str]) -> None:
    run = {"benchmark": "hpl", "status": "valid", "problem": {"n": 1000}, "result": {"rate_flops": 1e9}}
    Path("run.json").write_text(json.dumps({"schema": "mxpeak.results/1", "results": [run]}))
    assert main(["compare", written("scan.json", scan_body(4)), "run.json"]) == 2
    assert "scan.json is a scan, but run.json is not" in capsys.readouterr().err
    assert main(["baseline", "from", "run.json"]) == 2
    assert "run.json contains 1 result (hpl), not a scan" in capsys.readouterr().err


def test_a_baseline_excludes_defective_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    scans = [written(f"{day}.json", noisy(20, day, slow={3: 0.8}, wrong={5: "bbb"})) for day in (1, 2)]
    scan = noisy(20, 3)
    scan["ranks"][7]["rates"]["gemm"] = [0.9 * rate for rate in scan["ranks"][7]["rates"]["gemm"]]
    scans.append(written("3.json", scan))
    assert main(["baseline", "from", *scans, "--out", "fleet.json"]) == 0
    assert "excluded: node[003,005]" in capsys.readouterr().out
    (model,) = json.loads(Path("fleet.json").read_text())["models"]
    assert (model["model"], model["nodes"], model["ranks"]) == ("Invented 9000", 18, 18)
    assert model["rates"]["lu"]["expected"] == pytest.approx(2.5e11, rel=0.01)
    assert model["rates"]["lu"]["sigma"] < 0.01 * model["rates"]["lu"]["expected"]
    (bits,) = model["bits"].values()
    assert bits == {"lu": "a", "gemm": "a"}
    assert main(["baseline", "from", *scans, "--out", "fleet.json"]) == 2, "no file is overwritten"
    assert main(["baseline", "from", *scans]) == 0
    assert Path("mxpeak-out/scan-baseline.json").exists()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (scan_body(3), "3 of 3 ranks are on healthy nodes, and at least 4 are necessary; use scans of more nodes"),
        (scan_body(5, wrong={0: "bbb", 1: "ccc"}), "3 of 5 ranks are on healthy nodes"),
        (scan_body(4, slow={0: 0.7, 1: 0.7}), "LU rates of Invented 9000 spread by"),
    ],
)
def test_a_baseline_of_too_few_nodes_is_an_error(
    body: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["baseline", "from", written("scan.json", body)]) == 2
    assert message in capsys.readouterr().err


def test_a_baseline_decides_even_for_one_rank() -> None:
    baseline = baseline_of([("scan", noisy(12, 1))], 0.05)
    kind = "Invented 9000, 4 threads, openblas 0.3.30 Haswell"
    expected = expected_of(baseline, "Invented 9000", 4, kind)
    assert expected is not None
    other = expected_of(baseline, "Invented 9000", 4, "another library")
    assert other == Expected(expected.rates, {})
    assert expected_of(baseline, "Invented 9000", 8, kind) is None

    def status(share: float, bits: str = "a") -> str:
        rates = {name: [share * middle] * 3 for name, (middle, _) in expected.rates.items()}
        rank = RankRates(0, kind, rates, {"lu": [bits] * 3, "gemm": ["a"] * 3})
        return decide([rank], 0.05, {kind: expected}).status

    assert [status(1.0), status(1.2), status(0.9), status(1.0, "b")] == ["alike", "alike", "different", "different"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "mxpeak cannot read --against fleet.json: No such file or directory"),
        ("{}", "its schema is not mxpeak.scan-baseline/1"),
        (
            '{"schema": "mxpeak.scan-baseline/1", "problem": {"n": 40, "nb": 16, "precision": "fp32"}, "models": []}',
            "--against fleet.json is an empty baseline, because it contains no model",
        ),
        (
            '{"schema": "mxpeak.scan-baseline/1", "problem": {"n": 80, "nb": 16, "precision": "fp32"}, "models": '
            '[{"model": "x", "threads": 1, "nodes": 4, "ranks": 4, "excluded": [], "bits": {}, "rates": {"lu": '
            '{"expected": 1, "sigma": 0}, "gemm": {"expected": 1, "sigma": 0}, "read": {"expected": 1, "sigma": 0}}}]}',
            "--against fleet.json was measured with --n 80, not 40; remove --n",
        ),
    ],
)
def test_a_baseline_that_does_not_apply_is_an_error(
    text: str | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        Path("fleet.json").write_text(text)
    assert main([*SMALL, "--against", "fleet.json"]) == 2
    assert message in capsys.readouterr().err


def test_a_thousand_nodes_take_less_than_five_seconds() -> None:
    before, after = noisy(LARGE, 1, slow={500: 0.8}), noisy(LARGE, 2, slow={500: 0.8, 700: 0.8})
    written("a.json", before)
    written("b.json", after)
    began = time.process_time()
    assert main(["compare", "a.json", "b.json", "--json", "compared.json"]) == 4
    assert time.process_time() - began < 5.0
    assert verdicts(json.loads(Path("compared.json").read_text()))["node700"] == "slower"
    began = time.process_time()
    assert main(["baseline", "from", "a.json", "b.json", "--out", "fleet.json"]) == 0
    assert time.process_time() - began < 5.0
    (model,) = json.loads(Path("fleet.json").read_text())["models"]
    assert (model["nodes"], model["excluded"]) == (LARGE - 2, ["node500", "node700"])


def test_each_finding_has_a_severity() -> None:
    body = scan_body(8, slow={1: 0.8}, wrong={2: "bbb"}, readings=HOT)
    severities = {action["host"]: action["severity"] for action in body["actions"]}
    assert severities["node001"] == "drain"
    assert severities["node002"] == "replace"
    assert {severity for host, severity in severities.items() if host not in ("node001", "node002")} == {"monitor"}
    assert [action["severity"] for action in body["actions"]][:3] == ["replace", "drain", "monitor"]


def fake_scontrol(folder: Path) -> None:
    """A scontrol that writes its arguments to a file, one per line."""
    folder.mkdir()
    command = folder / "scontrol"
    command.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word" >> drained; done\n')
    command.chmod(command.stat().st_mode | stat.S_IXUSR)


def test_the_drain_script_drains_slow_and_faulty_nodes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        scan_run, "run_scan", lambda *_, **told: {**scan_body(8, slow={1: 0.8}, wrong={2: "bbb"}), "warnings": []}
    )
    assert main([*SMALL, "--out", "out", "--write-drain", "slurm"]) == 3
    assert not Path("drained").exists(), "mxpeak never runs the script"
    fake_scontrol(Path("bin"))
    subprocess.run(["sh", "out/drain.sh"], check=True, env={"PATH": f"{Path('bin').absolute()}:/usr/bin:/bin"})
    assert Path("drained").read_text().splitlines() == [
        *("update", "NodeName=node002", "State=DRAIN", "Reason=mxpeak scan, replace: wrong results of LU"),
        *("update", "NodeName=node001", "State=DRAIN"),
        "Reason=mxpeak scan, drain: LU at 80 %; GEMM at 80 %; read at 80 %",
    ]
    if which("shellcheck"):
        subprocess.run(["shellcheck", "out/drain.sh"], check=True)
    assert main([*SMALL, "--write-drain", "pbs"]) == 2
    assert "--write-drain: 'pbs' is unknown; use one of slurm" in capsys.readouterr().err


def test_a_host_name_cannot_inject_a_command() -> None:
    assert "# The scan found no node to drain or to replace.\n" in drain_script([])
    script = drain_script([{"host": "a;touch b", "severity": "drain", "reasons": ["$(touch c)", "line\nbreak"]}])
    fake_scontrol(Path("bin"))
    subprocess.run(["sh", "-c", script], check=True, env={"PATH": f"{Path('bin').absolute()}:/usr/bin:/bin"})
    assert not Path("b").exists()
    assert not Path("c").exists()
    assert "NodeName=a;touch b" in Path("drained").read_text()
