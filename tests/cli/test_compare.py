"""Test that `mxpeak compare`, `history` and `baseline` report changes beyond noise, differences and reasons."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from mxpeak.cli.main import main
from mxpeak.layout.stencil import Box
from mxpeak.perf.sparse_counts import hpg_mxp_flops, stencil_levels
from mxpeak.report.compare import alone, compared, differences, not_comparable, pairs
from mxpeak.report.importers import results_of_log

GOLDEN = Path(__file__).parents[1] / "golden"
#: The seconds of two timings with a noise of 0.5 %.
TWICE = (1.0, 1.01)
REPEATED = {"swap": {"value": "mix", "origin": "default"}, "repeat": {"value": 3, "origin": "flag"}}
SWAP_LONG = {"nb": {"value": [64], "origin": "flag"}, "swap": {"value": "long", "origin": "flag"}}


def run(
    rate: float, *, samples: tuple[float, ...] = (), limit: float = 200e9, status: str = "valid", **more: Any
) -> Any:
    """Return one result of HPL with this rate in GFLOP/s."""
    body = {
        "benchmark": "hpl",
        "status": status,
        "run": {"start_unix": 1.7e9},
        "problem": {"n": 1000, "nb": 64, "P": 1, "Q": 1},
        "result": {
            "rate_flops": 1e9 * rate,
            "time_s": 1.0,
            "fraction_of_limit": 1e9 * rate / limit,
            "limit": {"name": "DGEMM", "rate_flops": limit},
        },
        "samples_s": list(samples),
        "config": {"nb": {"value": [64], "origin": "flag"}, "swap": {"value": "mix", "origin": "default"}},
        "machine": {"cpu_model": "A", "hostname": "one"},
        "launch": {"ranks": 1},
    }
    return {**body, **more}


def write(folder: str, *results: Any) -> str:
    path = Path("mxpeak-out", folder, "result.json")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"schema": "mxpeak.results/1", "results": results}))
    os.utime(path, (1e9 + len(list(Path("mxpeak-out").iterdir())),) * 2)
    return str(path.parent)


@pytest.fixture(autouse=True)
def empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


# --- changes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (run(100), run(103), "same"),
        (run(100), run(110), "ambiguous"),
        (run(100), run(50), "ambiguous"),
        (run(100, samples=TWICE), run(50), "ambiguous"),
        (run(100), run(50, samples=TWICE), "ambiguous"),
        (run(100, samples=(1.0,)), run(50, samples=(1.0,)), "ambiguous"),
        (run(100, samples=TWICE), run(110, samples=TWICE), "faster"),
        (run(100, samples=TWICE), run(90, samples=TWICE), "slower"),
        (run(100, samples=(1.0, 1.2, 1.3)), run(90, samples=TWICE), "same"),  # noise of 20 %
        (run(100), run(100, status="invalid"), "failed"),
        (run(100, status="invalid", samples=TWICE), run(90, status="invalid", samples=TWICE), "slower"),
        (run(100), run(0), "unknown"),
    ],
)
def test_a_change_counts_beyond_tolerance_and_known_noise(before: Any, after: Any, verdict: str) -> None:
    (change,) = compared([before], [after], 0.05)
    assert change.verdict == verdict
    assert change.regressed == (verdict in ("slower", "failed"))


@pytest.mark.parametrize(
    ("more", "rate", "why"),
    [
        ({"limit": 160e9}, 80, "DGEMM also changed by -20.0 %: the machine is slower"),
        ({}, 80, "DGEMM is the same (+0.0 %); neither settings, software nor launch differ"),
        ({"config": REPEATED}, 80, "neither settings, software nor launch differ"),
        ({"software": {"numpy": "2"}}, 80, "DGEMM is the same (+0.0 %); software differs"),
        ({"launch": {"comm": "torch"}}, 80, "DGEMM is the same (+0.0 %); launch differs"),
        ({"limit": 160e9}, 70, "and the share of this limit by -12.5 %: the machine changed, and neither settings"),
        ({"limit": 160e9, "config": SWAP_LONG}, 70, "the machine changed, and settings differ"),
        ({"limit": 160e9, "config": SWAP_LONG, "software": {"numpy": "2"}}, 70, "and settings and software differ"),
        ({"result": {"rate_flops": 80e9}}, 80, "the limit was not measured in both runs"),
    ],
)
def test_the_measured_limit_tells_machine_from_settings_and_software(more: Any, rate: float, why: str) -> None:
    before = run(100, samples=TWICE, software={"numpy": "1"}, launch={"ranks": 1, "comm": "mpi"})
    (change,) = compared([before], [run(rate, samples=TWICE, **{"software": {"numpy": "1"}, **more})], 0.05)
    assert change.verdict == "slower"
    assert why in change.why
    assert "code" not in change.why


def with_limit(rate: float, nb: int = 64, **limit: Any) -> Any:
    body = run(rate, samples=TWICE, problem={"n": 1000, "nb": nb, "P": 1, "Q": 1})
    body["result"]["limit"] |= limit
    return body


def test_a_change_within_the_drift_of_the_machine_is_no_verdict() -> None:
    before, after = with_limit(100), with_limit(80, drift=0.3, drifted=True)
    (change,) = compared([before], [after], 0.05)
    assert (change.verdict, change.noise) == ("same", 0.3)
    assert change.why == "the speed of the machine changed by 30 % during a run; use compare --rounds 5"
    (change,) = compared([before], [with_limit(60, drift=0.3, drifted=True)], 0.05)
    assert change.verdict == "slower"


def test_limits_of_different_kernels_are_not_compared() -> None:
    before = with_limit(100, 128, name="DGEMM, inner dimension 128")
    after = with_limit(80, 64, name="DGEMM, inner dimension 64", rate_flops=300e9)
    (change,) = compared([before], [after], 0.05)
    assert change.name == "hpl N=1000 NB=128->64 1x1"
    assert change.why.startswith(
        "the runs have different limits (DGEMM, inner dimension 128; DGEMM, inner dimension 64)"
    )


# --- the phases of a change -------------------------------------------------------------------------------------


def by_phase(phases: dict[str, tuple[float, float, int]], time_s: float, *, hosts: str = "aabb", **more: Any) -> Any:
    """Return a result of HPL with mean time, largest time and rank of each phase; 100 GFLOP in time_s seconds."""
    body = run(100 / time_s, samples=(time_s, 1.01 * time_s))
    body["result"]["time_s"] = time_s
    body["phases"] = {
        name: {"time_s": mean, "max_s": longest, "max_rank": rank, "min_s": mean / 2, "min_rank": 3 - rank}
        for name, (mean, longest, rank) in phases.items()
    }
    binding = [{"rank": rank, "host": f"node{host}"} for rank, host in enumerate(hosts)]
    return {**body, "launch": {"ranks": len(hosts), "binding": binding}, **more}


FAST = {"gemm": (7.0, 7.0, 0), "update": (8.0, 8.0, 0), "trsm": (1.0, 1.0, 0), "bcast": (0.5, 0.6, 1)}
SLOW = {"gemm": (8.5, 10.0, 3), "update": (9.6, 9.6, 0), "trsm": (1.1, 1.1, 0), "bcast": (2.0, 2.7, 0)}


def test_a_change_is_split_over_the_phases_that_do_not_contain_each_other() -> None:
    (change,) = compared([by_phase(FAST, 10.0)], [by_phase(SLOW, 14.0)], 0.05)
    assert {phase.name for phase in change.phases} == {"gemm", "trsm", "bcast", "other"}, "update has two parts"
    changes = {phase.name: phase.change for phase in change.phases}
    assert changes == pytest.approx({"gemm": 0.15, "trsm": 0.01, "bcast": 0.15, "other": 0.09})
    assert sum(changes.values()) == pytest.approx(14.0 / 10.0 - 1.0)
    gemm, bcast = (next(phase for phase in change.phases if phase.name == name) for name in ("gemm", "bcast"))
    assert (gemm.rank, gemm.host, gemm.rank_s) == (3, "nodeb", 10.0)
    assert (bcast.rank, bcast.host, bcast.rank_s) == (3, "nodeb", 1.0), "the rank for which the others wait"


def test_the_phases_of_a_longer_measurement_are_those_of_the_same_work() -> None:
    before, after = by_phase(FAST, 10.0), by_phase(FAST, 10.0)
    after["result"] |= {"rate_flops": 5e9, "time_s": 40.0}  # twice the work in four times the time
    (change,) = compared([before], [after], 0.05)
    assert {phase.name: phase.after for phase in change.phases} == pytest.approx(
        {"gemm": 3.5, "trsm": 0.5, "bcast": 0.25, "other": (40.0 - 8.5) / 2}
    )
    assert next(phase.rank_s for phase in change.phases if phase.name == "gemm") == 3.5


@pytest.mark.parametrize(
    "odd",
    [
        {"phases": {}},
        {"phases": {"gemm": {"max_s": 1.0}}},
        {"result": {"rate_bytes": 1e9, "time_s": 1.0}},
        {"result": {"rate_flops": 1e9}},
        {"result": {"rate_flops": 1e9, "time_s": 1.0, "resumed": {"steps": 3}}},
    ],
)
def test_without_comparable_phases_nothing_is_split(odd: Any) -> None:
    assert compared([by_phase(FAST, 10.0)], [{**by_phase(SLOW, 14.0), **odd}], 0.05)[0].phases == []


def test_compare_shows_the_phases_and_the_rank_of_the_slowest(capsys: pytest.CaptureFixture[str]) -> None:
    write("a", by_phase(FAST, 10.0))
    write("b", by_phase(SLOW, 14.0))
    write("c", by_phase(FAST, 10.0))
    assert main(["compare", "a", "b"]) == 4
    shown = capsys.readouterr().out
    assert "  hpl N=1000 NB=64 1x1 by phase, for the same work; change in % of the total time:\n" in shown
    rows = {line.split()[0]: line for line in shown.splitlines()}
    assert rows["gemm"].split(maxsplit=5) == ["gemm", "7.00", "8.50", "+15.0", "%", "rank 3 on nodeb: 10.0 s"]
    assert rows["bcast"].endswith("shortest wait: rank 3 on nodeb: 1.00 s")
    assert main(["compare", "a", "b", "--json", "-"]) == 4
    (change,) = json.loads(capsys.readouterr().out)["changes"]
    assert change["phases"][0].keys() >= {"name", "before", "after", "change", "rank", "host", "rank_s"}
    assert main(["compare", "a", "c"]) == 0
    assert "by phase" not in capsys.readouterr().out, "nothing changed"


# --- pairs of cases ---------------------------------------------------------------------------------------------


def case(nb: int = 64, n: int = 1000, **more: Any) -> Any:
    return run(100, problem={"n": n, "nb": nb, "P": 1, "Q": 1, **more})


def test_cases_are_paired_by_size_and_then_by_the_way_they_ran() -> None:
    before = [case(64), case(128), case(64, 2000)]
    found = [(a["problem"]["nb"], b["problem"]["nb"]) for a, b in pairs(before, [case(128), case(64), case(64, 500)])]
    assert found == [(128, 128), (64, 64)]
    seeds = [
        (a["problem"]["seed"], b["problem"]["seed"]) for a, b in pairs([case(seed=1), case(seed=2)], [case(seed=2)])
    ]
    assert seeds == [(2, 2)]


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (case(n=9600), case(n=9408), "N differs (9600 and 9408)"),
        (case(precision="fp32"), case(precision="bf16"), "precision differs (fp32 and bf16)"),
        (
            case(precision={"mg": ["bf16", "bf16"], "krylov": "bf16", "vectors": "fp32"}),
            case(precision={"mg": ["fp64", "fp64"], "krylov": "fp64", "vectors": "fp64"}),
            "precision differs (values bf16, vectors fp32 and fp64)",
        ),
        (case(n=9600, precision="fp32"), case(n=2, precision="bf16"), "N differs (9600 and 2), precision differs"),
        (case(structure="band", kl=1), case(structure="band", kl=9), "kl differs (1 and 9)"),
        (case(nx=64, npx=1), case(nx=64, npx=4), "npx differs (1 and 4)"),
        (case(nx=64, nonsymmetric=False), case(nx=64, nonsymmetric=True), "nonsymmetric differs (no and yes)"),
    ],
)
def test_different_problems_are_never_compared(before: Any, after: Any, reason: str) -> None:
    assert compared([before], [after], 0.05) == []
    (skipped,) = not_comparable([before], [after])
    assert skipped.reason.startswith(reason)


def test_sizes_that_quick_chose_are_no_exception(capsys: pytest.CaptureFixture[str]) -> None:
    def quick(n: int) -> Any:
        config = {"quick": {"value": True, "origin": "flag"}, "n": {"value": [n], "origin": "auto"}}
        return run(100, problem={"n": n, "nb": 64}, config=config)

    write("a", quick(9600))
    write("b", quick(9408))
    assert main(["compare", "a", "b"]) == 2
    said = capsys.readouterr().err
    assert "not comparable: N differs (9600 and 9408) in hpl, so mxpeak-out/a/result.json and" in said
    assert "run the same problem in both, with the same sizes or with --config RESULT" in said


def test_a_case_that_cannot_be_compared_is_skipped_with_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    other = {"benchmark": "hpl-mxp", "samples": TWICE}
    write("a", run(100, samples=TWICE), case(n=9600) | other)
    write("b", run(100, samples=TWICE), case(n=9408) | other)
    assert main(["compare", "a", "b"]) == 0
    out = capsys.readouterr().out
    assert "  not comparable: N differs (9600 and 9408): hpl-mxp N=9600 NB=64 1x1 and hpl-mxp N=9408 NB=64 1x1\n" in out
    assert "only in" not in out
    assert main(["compare", "a", "b", "--json", "-"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert [one["name"].split()[0] for one in body["changes"]] == ["hpl"]
    assert [one["reason"] for one in body["not_comparable"]] == ["N differs (9600 and 9408)"]


def test_a_change_of_unknown_noise_is_ambiguous_and_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    write("a", run(100))
    write("b", run(50))
    assert main(["compare", "a", "b"]) == 0
    out = capsys.readouterr().out
    assert "-50.0 %  unknown  AMBIGUOUS" in out
    assert "use --repeat 3 in both" in out
    assert main(["compare", "a", "b", "--json", "-"]) == 0
    (change,) = json.loads(capsys.readouterr().out)["changes"]
    assert (change["verdict"], change["noise"]) == ("ambiguous", None)
    write("c", run(50, status="invalid"))
    assert main(["compare", "a", "c"]) == 4, "a result that no longer passes needs no noise"


def test_a_log_that_does_not_say_the_precision_is_of_the_same_case_and_other_grids_of_ranks_are_others() -> None:
    (log,) = results_of_log((GOLDEN / "hpgmp.txt").read_text())
    own = {**log, "problem": {**log["problem"], "precision": "fp32"}}
    (change,) = compared([log], [own], 0.05)
    assert change.verdict == "same"
    four = {**own, "problem": {**own["problem"], "npx": 4 * own["problem"]["npx"]}}
    assert compared([log], [four], 0.05) == []


def test_a_case_that_only_one_run_has_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    other = run(50, problem={"n": 2000, "nb": 64, "P": 1, "Q": 1})
    assert alone([run(100), other], [run(100)]) == (["hpl N=2000 NB=64 1x1"], [])
    write("a", run(100), other)
    write("b", run(100))
    assert main(["compare", "a", "b"]) == 0
    assert "  only in A: hpl N=2000 NB=64 1x1\n" in capsys.readouterr().out
    assert main(["compare", "b", "a", "--json", "-"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["only_before"], body["only_after"]) == ([], ["hpl N=2000 NB=64 1x1"])


def test_differences_are_grouped_by_their_place() -> None:
    other = run(100, machine={"cpu_model": "B", "hostname": "one"}, launch={"ranks": 2})
    other["config"]["swap"]["value"] = "long"
    other["problem"]["nb"] = 96
    assert differences(run(100), other) == {
        "settings": ["swap: mix -> long", "nb: 64 -> 96"],
        "machine": ["cpu_model: A -> B"],
        "launch": ["ranks: 1 -> 2"],
    }


# --- the commands -----------------------------------------------------------------------------------------------


def test_compare_shows_a_table_and_ends_with_four_at_a_regression(capsys: pytest.CaptureFixture[str]) -> None:
    write("a", run(100, samples=(1.0, 1.01)))
    write("b", run(90, samples=(1.0, 1.02)))
    assert main(["compare", "previous", "last"]) == 4
    out = capsys.readouterr().out
    assert "hpl N=1000 NB=64 1x1  100 GFLOP/s  90.0 GFLOP/s  -10.0 %  1.0 %  SLOWER" in out
    assert "DGEMM is the same (+0.0 %); neither settings, software nor launch differ" in out
    assert main(["compare", "a", "b", "--tolerance", "15%"]) == 0
    assert main(["compare", "b", "a", "--json", "-"]) == 0
    body = json.loads(capsys.readouterr().out.split("\n", 2)[2].partition("{")[2].join(["{", ""]))
    assert body["schema"] == "mxpeak.compare/1"
    (change,) = body["changes"]
    assert {"name", "before", "after", "change", "noise", "verdict"} <= set(change)
    assert (change["verdict"], body["regressed"]) == ("faster", False)


def test_the_previous_run_is_one_that_can_be_compared(capsys: pytest.CaptureFixture[str]) -> None:
    write("a", run(100))
    two = [run(70, problem={"n": n, "nb": 64, "P": 1, "Q": 1}) for n in (2000, 4000)]
    write("b", run(70, benchmark="hpl-mxp"), *two)
    write("c", run(99))
    assert main(["compare", "previous", "last"]) == 0
    assert "100 GFLOP/s  99.0 GFLOP/s" in capsys.readouterr().out
    write("d", run(5, benchmark="hpcg"))
    assert main(["compare", "previous", "last"]) == 2
    assert (
        "no earlier run in mxpeak-out/ has a case in common with the last run (hpcg); run mxpeak history, "
        "and use a folder from its list" in capsys.readouterr().err
    )


def test_the_previous_run_is_earlier_than_the_last_one_even_if_a_newer_run_was_interrupted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write("a", run(100))
    write("b", run(99))
    folder = Path(write("c", run(50)))
    (folder / "result.json").rename(folder / "so-far.json")
    assert main(["compare", "previous", "last"]) == 0
    assert "100 GFLOP/s  99.0 GFLOP/s" in capsys.readouterr().out


def test_a_baseline_is_kept_and_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    write("a", run(100))
    assert main(["baseline", "last"]) == 0
    write("b", run(99))
    assert main(["compare", "baseline", "last"]) == 0
    assert main(["baseline", "set", "b"]) == 0
    kept = json.loads(Path("mxpeak-out/baseline.json").read_text())
    assert kept["results"][0]["result"]["rate_flops"] == 99e9
    assert main(["history"]) == 0, "the baseline is no run of its own"
    assert capsys.readouterr().out.count("2023-11-14") == 2


def test_history_lists_results_the_newest_last(capsys: pytest.CaptureFixture[str]) -> None:
    write("a", run(100))
    write("b", run(90), run(80, benchmark="hpl-mxp"))
    assert main(["history", "--json", "-"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["schema"] == "mxpeak.history/1"
    assert [one["result"]["rate_flops"] for one in body["results"]] == [100e9, 90e9, 80e9]
    assert main(["history", "hpl", "--last", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[2:5] == ["hpl", "N=1000", "NB=64"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["compare", "last", "previous"],
            "there is no last run, because mxpeak-out/ contains no results; run mxpeak first",
        ),
        (["compare", "baseline", "x"], "no baseline has been set; run mxpeak baseline set"),
        (["compare", "none", "none"], "cannot read none"),
        (["compare", "notes", "notes"], "notes is neither a result file nor a report"),
        (["baseline", "set", "bad"], "contains no valid result"),
    ],
)
def test_an_error_names_the_correct_command(argv: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("notes").write_text("a = b\n")
    Path("bad").write_text(json.dumps({"schema": "mxpeak.results/1", "results": [run(1, status="aborted")]}))
    assert main(argv) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "odd",
    [
        {"problem": None, "config": None, "machine": None, "warnings": None, "samples_s": None},
        {"warnings": [{"text": "so"}], "samples_s": [None, -1.0]},
        {"run": {"start_unix": 1e300}},
        {"added_later": 1, "result": {"rate_flops": 1e11, "added_later": {}}},
        {"validation": {"passed": None}},
        {"validation": None},
        {"status": "slow", "validation": {"passed": True}},
    ],
)
def test_odd_results_are_read_as_far_as_they_go(odd: Any) -> None:
    write("a", run(100) | odd)
    write("b", run(100))
    assert main(["compare", "a", "b"]) == 0
    assert main(["history"]) == 0


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        ({"machine": "mine"}, 'machine is "mine", not an object'),
        ({"result": {"rate_flops": "fast"}}, 'result.rate_flops is "fast", not a number or null'),
        ({"result": {"rate_flops": -1.0}}, "result.rate_flops is -1.0, less than 0"),
        ({"warnings": [3]}, "warnings[0] is 3, not an object"),
        ({"samples_s": ["a"]}, 'samples_s[0] is "a", not a number or null'),
        ({"run": {"start_unix": "yesterday"}}, 'run.start_unix is "yesterday", not a number or null'),
        ({"status": "fine"}, 'status is "fine", not one of valid, slow, invalid, aborted'),
        ({"result": {"rate_flops": float("nan")}}, "NaN is not a JSON number"),
        ({"validation": {"passed": False}}, 'status is "valid", but validation.passed is false'),
        ({"status": "slow", "validation": {"passed": False}}, 'status is "slow", but validation.passed is false'),
        ({"status": "invalid", "validation": {"passed": True}}, 'status is "invalid", but validation.passed is true'),
    ],
)
def test_a_result_that_does_not_match_the_schema_is_refused_and_skipped_by_name(
    odd: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write("good", run(100))
    write("odd", run(100) | odd)
    for argv in (["compare", "good", "odd"], ["report", "odd"], ["baseline", "set", "odd"]):
        assert main(argv) == 2
        assert message in capsys.readouterr().err
    assert main(["history"]) == 0
    out, err = capsys.readouterr()
    assert out.count("N=1000") == 1, "one odd file hides no other"
    assert err == f"warning: mxpeak-out/odd/result.json is skipped: {message}\n"


def test_history_reads_no_more_files_than_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    write("old", run(1) | {"machine": "odd"})
    write("a", run(100), run(80, benchmark="hpl-mxp"))
    write("b", run(90))
    assert main(["history", "--last", "2", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert [one["result"]["rate_flops"] for one in json.loads(out)["results"]] == [80e9, 90e9]
    assert err == ""
    assert main(["history", "hpl", "--last", "2", "--json", "-"]) == 0
    assert [one["result"]["rate_flops"] for one in json.loads(capsys.readouterr().out)["results"]] == [100e9, 90e9]


def test_history_passes_over_files_that_are_gone_and_names_those_of_another_kind(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, text in (("d", '{"schema": "mxpeak.tuned/1"}'), ("e", ""), ("f", "{"), ("g", '{"a": 1, "a": 2}')):
        Path("mxpeak-out", name).mkdir(parents=True)
        Path("mxpeak-out", name, "result.json").write_text(text)
    Path("mxpeak-out/c").mkdir()
    Path("mxpeak-out/c/result.json").symlink_to("gone")
    Path("mxpeak-out/h").mkdir()
    Path("mxpeak-out/h/result.json").write_bytes(b'{"schema": "\xff"}')
    assert main(["history"]) == 0
    out, err = capsys.readouterr()
    assert "no results" in out
    assert sorted(line.split("/")[1] for line in err.splitlines()) == ["d", "e", "f", "g", "h"]


@pytest.mark.parametrize(("argv", "code"), [(["compare", "a", "b"], 4), (["baseline", "set", "c"], 2)])
def test_all_ranks_end_with_the_code_of_the_one_that_speaks(
    argv: list[str], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write("a", run(100, samples=TWICE))
    write("b", run(50, samples=TWICE))
    write("c", run(50, status="invalid"))
    monkeypatch.setattr("mxpeak.runtime.launcher.launcher", lambda: ("mpiexec", 1, 2))
    assert main(argv) == code
    assert main(["baseline", "set", "a"]) == 0
    assert not Path("mxpeak-out/baseline.json").exists()
    assert capsys.readouterr() == ("", "")


# --- reports of other programs ----------------------------------------------------------------------------------


def test_a_report_of_hpl_is_read_line_by_line() -> None:
    results = results_of_log((GOLDEN / "checked.txt").read_text())
    assert results
    first = results[0]
    assert (first["benchmark"], first["status"]) == ("hpl", "valid")
    assert first["problem"] == {"n": 20000, "nb": 256, "P": 2, "Q": 2}
    assert (first["result"]["rate_flops"], first["result"]["time_s"]) == (164.12e9, 32.5)
    assert first["validation"]["residual"] == 3.25e-3
    failed = results_of_log((GOLDEN / "failed.txt").read_text())
    assert "invalid" in [one["status"] for one in failed]


@pytest.mark.parametrize("check", ["-nan ...... FAILED", "nan ...... FAILED", "inf ...... FAILED", ""])
def test_a_report_of_hpl_without_a_check_that_passed_is_not_valid(check: str) -> None:
    text = (GOLDEN / "checked.txt").read_text()
    end = text.index("||Ax-b||", text.index("\nWR"))
    said = f"||Ax-b||_oo/(eps*(||A||_oo*||x||_oo+||b||_oo)*N)= {check}\n" if check else ""
    (result,) = results_of_log(text[:end] + said)
    assert (result["status"], result["validation"]) == ("invalid", {"passed": False, "residual": None})
    assert {one["status"] for one in results_of_log((GOLDEN / "unchecked.txt").read_text())} == {"invalid"}


@pytest.mark.parametrize(
    ("name", "benchmark", "rate", "status"),
    [
        ("hpcg", "hpcg", 3.15e9, "valid"),
        ("hpcg_failed", "hpcg", None, "invalid"),
        ("hpgmp", "hpg-mxp", 48.57724601175482e9, "valid"),
    ],
)
def test_reports_of_hpcg_and_hpg_mxp_are_read(name: str, benchmark: str, rate: float | None, status: str) -> None:
    (result,) = results_of_log((GOLDEN / f"{name}.txt").read_text())
    assert (result["benchmark"], result["status"], result["result"]["rate_flops"]) == (benchmark, status, rate)
    assert result["problem"]["nx"] == 104


def test_the_raw_rates_of_standalone_solvers_are_compared_only_with_each_other() -> None:
    def solved(rate: float) -> Any:
        body = case(nx=16, run_type="mixed")
        return {**body, "result": {"rate_flops": None, "raw_rate_flops": rate}, "validation": {"type": "none"}}

    (change,) = compared([solved(2e9)], [solved(3e9)], 0.05)
    assert (change.before, change.after) == (2e9, 3e9)
    (skipped,) = not_comparable([solved(2e9)], [case(nx=16, run_type="benchmark")])
    assert skipped.reason == "--run-type differs (mixed and benchmark)"


def report_of_hpg_mxp(counting: str, *, rating: float, nx: int = 16) -> str:
    """Return a report of HPG-MxP on two ranks with 10 cycles of 30 steps and the flops by a count."""
    flops = hpg_mxp_flops(stencil_levels(Box(nx, nx, nx, 1, 1, 2)), [30] * 10, counting)
    multigrid = sum(flops[name] for name in ("gs", "restriction", "prolongation"))
    amounts = {"Raw SpMV": flops["spmv"], "Raw MG": multigrid, "Total": flops["total"]}
    sides = [f"Local Domain Dimensions::n{axis}={nx}" for axis in "xyz"]
    grid = [f"Processor Dimensions::np{axis}={ranks}" for axis, ranks in zip("xyz", (1, 1, 2))]
    counted = [f"Floating Point Operations Summary::{name}={amount:g}" for name, amount in amounts.items()]
    rated = f"Final Summary::HPGMP result is VALID with a GFLOP/s rating of={rating}"
    return "\n".join(["Machine Summary::Distributed Processes=2", *sides, *grid, *counted, rated, ""])


def test_a_rate_by_the_count_of_ornl_is_converted_to_that_of_the_reference_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (result,) = results_of_log(report_of_hpg_mxp("reference", rating=2.0))
    assert result["result"] == {"rate_flops": 2e9, "time_s": None}
    (result,) = results_of_log(report_of_hpg_mxp("ornl", rating=2.0))
    levels = stencil_levels(Box(16, 16, 16, 1, 1, 2))
    factor = hpg_mxp_flops(levels, [30] * 10)["total"] / hpg_mxp_flops(levels, [30] * 10, "ornl")["total"]
    assert factor > 1.2
    assert result["result"]["rate_flops"] == pytest.approx(2e9 * factor, rel=1e-5)  # reports have six digits
    assert result["result"]["rate_flops_ornl"] == 2e9
    (tmp_path / "ornl.txt").write_text(report_of_hpg_mxp("ornl", rating=2.0))
    (tmp_path / "reference.txt").write_text(report_of_hpg_mxp("reference", rating=2.0 * factor))
    assert main(["compare", str(tmp_path / "reference.txt"), str(tmp_path / "ornl.txt")]) == 0
    out, err = capsys.readouterr()
    assert "-0.0 %" in out or "+0.0 %" in out
    text = "ornl.txt: the report uses ORNL's flop count, so its rate was converted to the count of the reference code"
    assert text in " ".join(err.split())
    assert "reference.txt" not in err


def test_the_rate_of_a_report_with_other_flops_or_an_odd_box_is_not_converted() -> None:
    text = report_of_hpg_mxp("ornl", rating=2.0)
    for changed in (
        re.sub("Raw MG=.*", "Raw MG=1e8", text),
        re.sub("Raw SpMV=.*", "Raw SpMV=nan", text),
        re.sub("nx=16", "nx=17", text),
        re.sub(".*Dimensions.*", "", text),
    ):
        (result,) = results_of_log(changed)
        assert result["result"] == {"rate_flops": 2e9, "time_s": None}


def test_a_full_disk_is_no_mistake_of_the_user_and_keeps_the_old_baseline(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write("a", run(100))
    assert main(["baseline", "set", "last"]) == 0
    kept = Path("mxpeak-out", "baseline.json")
    before = kept.read_text()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert main(["baseline", "set", "last"]) == 5
    assert "cannot write mxpeak-out/baseline.json: No space left on device" in capsys.readouterr().err
    assert sorted(file.name for file in kept.parent.iterdir()) == ["a", "baseline.json"]
    assert kept.read_text() == before


@pytest.mark.parametrize("argv", [["history"], ["compare", "previous", "last"]])
def test_results_that_cannot_be_read_are_not_called_absent(
    argv: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Any = ".") -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "scandir", refused)
    assert main(argv) == 2
    assert "mxpeak cannot read mxpeak-out/: Permission denied" in capsys.readouterr().err
