"""Test that only runs that are slower than --target or --baseline allows are stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mxpeak.bench.sparse import stop_if_slow
from mxpeak.cli.baseline import with_recorded_target
from mxpeak.cli.main import parsed
from mxpeak.cli.request import RunRequest, requests
from mxpeak.errors import StoppedError, UsageError
from tests.support.ranks import commands_here


def test_solves_that_reach_the_target_continue() -> None:
    """The fastest of three solves has 1.2 times the mean rate of 10 GFLOP/s: 3.6 s in all, 1 s the fastest."""
    samples = [1.0, 1.3, 1.3]
    for target in (None, 1.0, 10.0, 12.2):
        stop_if_slow(target, samples, 10e9, 30.0)
    with pytest.raises(StoppedError, match=r"3 solves reach 10.0 GFLOP/s.*\(12.0 GFLOP/s\).*12.3 GFLOP/s"):
        stop_if_slow(12.3, samples, 10e9, 30.0)


def test_no_decision_without_enough_solves_or_time() -> None:
    stop_if_slow(100.0, [1.0, 1.0], 10e9, 1.0)
    stop_if_slow(100.0, [1.0, 1.0, 1.0], 10e9, 31.0)


def request(*flags: str) -> RunRequest:
    (wanted,) = requests(parsed(["run", *flags]), {})
    return wanted


HPCG = {"nx": 16, "ny": 16, "nz": 16}


def recorded(folder: Path, benchmark: str, rate: float, **sections: Any) -> str:
    """Write a valid result and return the name of its file."""
    file = folder / "result.json"
    result = {"benchmark": benchmark, "status": "valid", "result": {"rate_flops": rate}, "launch": {"ranks": 2}}
    file.write_text(json.dumps({"schema": "mxpeak.results/1", "results": [{**result, **sections}]}))
    return str(file)


def test_the_target_follows_from_the_baseline(tmp_path: Path) -> None:
    file = recorded(tmp_path, "hpcg", 8e9, problem=HPCG)
    flags = ("hpcg", "--nx", "16", "--baseline", file, "--max-slowdown", "10%")
    assert with_recorded_target(request(*flags), 2).config.target == pytest.approx(7.2)  # type: ignore[attr-defined]
    higher = with_recorded_target(request(*flags, "--target", "7.5"), 2)
    assert higher.config.target == 7.5  # type: ignore[attr-defined]
    plain = request("hpcg", "--nx", "16", "--baseline", file)
    assert with_recorded_target(plain, 2) is plain


def test_a_result_without_mg_vectors_is_not_compared_with_a_run_that_has_them(tmp_path: Path) -> None:
    file = recorded(tmp_path, "hpg-mxp", 8e9, problem=HPCG, config={})
    flags = ("hpg-mxp", "--nx", "16", "--baseline", file, "--max-slowdown", "10%")
    assert with_recorded_target(request(*flags), 2).config.target == pytest.approx(7.2)  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=r"mg.vectors is .* in the file and fp16 in this run"):
        with_recorded_target(request(*flags, "--mg-vectors", "fp16"), 2)


def test_a_result_is_repeated_with_its_target(tmp_path: Path) -> None:
    """The file of --baseline is not part of a recorded run, but the target that follows from it is."""
    file = recorded(tmp_path, "hpcg", 8e9, problem=HPCG)
    limited = with_recorded_target(
        request("hpcg", "--nx", "16", "--baseline", file, "--max-slowdown", "10%", "--tuned", "no"), 2
    )
    again = recorded(tmp_path, "hpcg", 8e9, problem=HPCG, config=limited.section())
    repeated = with_recorded_target(request("hpcg", "--config", again, "--tuned", "no"), 2).config
    assert repeated.target == pytest.approx(7.2)  # type: ignore[attr-defined]
    assert (repeated.max_slowdown, repeated.baseline) == (None, None)  # type: ignore[attr-defined]


def test_the_target_of_an_lu(tmp_path: Path) -> None:
    problem = {"n": 400, "precision": None, "generator": None, "refine": None, "scaling": None}
    file = recorded(tmp_path, "hpl", 50e9, problem=problem)
    flags = ("hpl", "--baseline", file, "--max-slowdown", "20%")
    assert with_recorded_target(request(*flags, "-N", "400"), 2).config.target == pytest.approx(40.0)  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="one case"):
        with_recorded_target(request(*flags, "-N", "400,500"), 2)
    with pytest.raises(UsageError, match="n is 400 in the file and 500 in this run"):
        with_recorded_target(request(*flags, "-N", "500"), 2)


def test_another_problem_or_no_baseline(tmp_path: Path) -> None:
    file = recorded(tmp_path, "hpcg", 8e9, problem=HPCG)
    with pytest.raises(UsageError, match="nx is 16 in the file and 24 in this run"):
        with_recorded_target(request("hpcg", "--nx", "24", "--baseline", file, "--max-slowdown", "10%"), 2)
    with pytest.raises(UsageError, match="ranks is 2 in the file and 1 in this run"):
        with_recorded_target(request("hpcg", "--nx", "16", "--baseline", file, "--max-slowdown", "10%"), 1)
    with pytest.raises(UsageError, match="no valid result of hpg-mxp"):
        with_recorded_target(request("hpg-mxp", "--nx", "16", "--baseline", file, "--max-slowdown", "10%"), 2)
    with pytest.raises(UsageError, match="add --nx or --box"):
        with_recorded_target(request("hpcg", "--baseline", file, "--max-slowdown", "10%"), 2)
    coloured = {"smoother": {"value": "coloured", "origin": "flag"}}
    file = recorded(tmp_path, "hpcg", 8e9, problem=HPCG, config=coloured)
    flags = ("--smoother", "natural", "--baseline", file, "--max-slowdown", "10%")
    with pytest.raises(UsageError, match="smoother is coloured in the file and natural in this run"):
        with_recorded_target(request("hpcg", "--nx", "16", *flags), 2)
    with pytest.raises(UsageError, match="add --baseline"):
        with_recorded_target(request("hpcg", "--nx", "16", "--max-slowdown", "10%"), 2)


def test_sparse_runs_stop(tmp_path: Path) -> None:
    """Whole runs against a target that no machine reaches: exit code 6, and the finished solves are kept."""
    small = ["--nx", "16", "--rt", "60", "--warmup", "none", "--threads", "1", "--json", "-", "--target", "1e6"]
    ended = commands_here(
        {"hpcg": ["run", "hpcg", *small], "hpg-mxp": ["run", "hpg-mxp", "--iterations", "30", *small]}, tmp_path
    )
    for name, run in ended.items():
        run.check(6)
        (result,) = run.body["results"]
        assert result["status"] == "aborted", name
        assert result["telemetry"]["aborted"]["finished"]["solves"] >= 3
        assert "but --target is" in run.stderr
