"""Test that a run is compared with a recorded one, and that all ranks end together if a target is out of reach."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mxpeak.bench.expected import progress_of
from mxpeak.bench.hpl import run as hpl
from mxpeak.bench.hpl.config import HplConfig
from mxpeak.bench.hpl_mxp import run as hpl_mxp
from mxpeak.bench.hpl_mxp.config import HplMxpConfig
from mxpeak.bench.partial_result import stop_together
from mxpeak.cli import main as cli
from mxpeak.comm.transports.solo import Solo
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.errors import ResourceError, StoppedError
from mxpeak.perf.counts import lu_flops_done
from mxpeak.perf.simulation.machines import find_machine
from mxpeak.records import Result
from mxpeak.report.html import html_report
from mxpeak.report.text import verdict
from mxpeak.spans import Step
from mxpeak.watch.forecast import ProgressForecast
from mxpeak.watch.guard import Guard
from mxpeak.watch.progress import Progress
from tests.support.cli import Bench, Comm, hpl_result, use_fakes
from tests.support.result_file import VALIDATOR

#: A recorded run of 100 flops whose first half is twice as fast as the second.
RECORDED = ProgressForecast([10.0, 30.0], [50.0, 100.0])


def step(done: float, elapsed_s: float, total: float = 100.0) -> Step:
    return Step("HPL", int(done), 100, done, total, elapsed_s)


# --- the forecast -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("done", "seconds"), [(0, 0), (25, 5), (50, 10), (75, 20), (100, 30)])
def test_a_forecast_is_when_a_recorded_run_had_done_as_much(done: float, seconds: float) -> None:
    assert RECORDED.seconds(done) == pytest.approx(seconds)
    assert RECORDED.remaining_s(done) == pytest.approx(30 - seconds)


@pytest.mark.parametrize(
    ("elapsed_s", "says"),
    [(10.0, "as forecast"), (11.2, "12 % slower than forecast"), (9.0, "10 % faster than forecast")],
)
def test_the_progress_line_compares_the_run_with_the_recorded_one(elapsed_s: float, says: str) -> None:
    stream = io.StringIO()
    progress = Progress(stream, {}, "always")
    progress.forecast = RECORDED
    progress.start("HPL", 100.0)
    progress.step(step(50.0, elapsed_s))
    assert f"left  {says}  now " in stream.getvalue()


def test_what_came_after_the_last_step_is_no_part_of_a_forecast() -> None:
    steps = {"elapsed_s": [10.0, 30.0, 99.0], "done_flops": [50.0, 100.0, 100.0]}
    found = ProgressForecast.of({"telemetry": {"steps": steps}})
    assert found is not None
    assert found.seconds(100.0) == 30.0
    assert ProgressForecast.of({"telemetry": {}}) is None
    of_order_one = {"elapsed_s": [0.1, 0.2], "done_flops": [0.0, 0.0]}
    assert ProgressForecast.of({"telemetry": {"steps": of_order_one}}) is None


def test_a_simulation_is_called_by_its_name_and_kept_within_bounds() -> None:
    simulated = ProgressForecast([float(k) for k in range(1, 1001)], [2.0 * k for k in range(1, 1001)], simulated=True)
    assert simulated.compared(550.0, 1000.0) == "10 % slower than simulated"
    kept = simulated.section()
    assert kept["source"] == "simulated"
    assert (kept["elapsed_s"][-1], kept["done_flops"][-1]) == (1000.0, 2000.0)
    assert len(kept["elapsed_s"]) == len(kept["done_flops"]) <= 200


def test_the_model_says_when_flops_should_be_done() -> None:
    case = next(HplConfig(n=(4096,), nb=(512,)).cases(1))
    found = progress_of("hpl", case, find_machine("crusher"))
    assert found is not None
    elapsed_s, done = found
    assert elapsed_s == sorted(elapsed_s)
    assert len(elapsed_s) == len(done) == 8
    assert done[-1] == lu_flops_done(4096, 0)
    mixed = next(HplMxpConfig(n=(4096,), nb=(512,), precision=("fp8",)).cases(1))
    assert progress_of("hpl-mxp", mixed, find_machine("crusher")) is None, "of fp8 it has no rate"


# --- the guard --------------------------------------------------------------------------------------------------


def guarded(target: float, pace: float, forecast: ProgressForecast | None = None) -> tuple[int, str] | None:
    """Return the step at which a run of 100 flops at a constant rate is stopped, and the reason, or None."""
    guard = Guard(target)
    guard.forecast = forecast
    guard.start("HPL", 100.0)
    for k in range(1, 101):
        guard.step(step(k, k / pace))
        if (why := guard.reason()) is not None:
            return k, why
    return None


@pytest.mark.parametrize("pace", [5.0, 5.2])
def test_a_run_that_reaches_its_target_is_never_ended(pace: float) -> None:
    assert guarded(5.0, pace) is None


def test_a_run_that_cannot_reach_its_target_is_ended_once_that_is_certain() -> None:
    found = guarded(8.0, 5.0)
    assert found is not None
    at, why = found
    assert at == 10, "not before a tenth of the work, and not later"
    assert why == (
        "10.0 % of the work took 2.00 s, and the rest needs 17.6 s at 102 % of the best rate so far "
        "(5.00e-09 GFLOP/s), so the run reaches at most 5.09e-09 GFLOP/s, but --target is 8.00e-09 GFLOP/s; "
        "use a lower --target to complete the run"
    )


def test_a_slow_beginning_ends_no_run_that_can_make_up_for_it() -> None:
    guard = Guard(8.0)
    guard.start("HPL", 100.0)
    elapsed_s = 0.0
    for k in range(1, 101):
        elapsed_s += 1 / 4 if k <= 4 else 1 / 10  # the forecast of the whole: 100 flops in 10.6 s
        guard.step(step(k, elapsed_s))
        assert guard.reason() is None, k


def test_the_rest_may_be_as_fast_as_the_baseline_was() -> None:
    slow_then_fast = ProgressForecast([40.0, 45.0], [50.0, 100.0])
    alone, beside = guarded(2.0, 1.5), guarded(2.0, 1.5, slow_then_fast)
    assert alone is not None
    assert beside is not None
    assert (alone[0], beside[0] > 50) == (10, True), "the second half may make up for the first"
    assert "as in the baseline run" in beside[1]


@pytest.mark.parametrize("size", [1, 3])
def test_all_ranks_leave_at_the_same_step(size: int) -> None:
    def body(comm: Any) -> int:
        reached = 0
        look = stop_together(comm, lambda: "too slow" if reached >= 40 else None)
        for k in range(1, 101):
            reached = k
            try:
                look(step(k, float(k)))
            except StoppedError:
                return k
        return 0

    found = [body(Solo())] if size == 1 else run_ranks(size, body)
    assert set(found) == {40}


def test_the_guard_is_not_called_after_the_last_step() -> None:
    stop_together(Solo(), lambda: "too late")(Step("HPL", 100, 100, 100.0, 100.0, 1.0))


# --- stopped benchmarks -----------------------------------------------------------------------------------------


def ended(bench: Any, config: Any, ranks: int, after: int) -> list[list[Result]]:
    """Return the results of every rank if rank 0 requests the end at its query number `after`."""
    looks: list[int] = []

    def stop() -> str | None:
        looks.append(1)
        return "for the test" if len(looks) >= after else None

    if ranks == 1:
        return [bench.run(config, Solo(), benchmark="hpl", stop=stop)]
    return run_ranks(ranks, lambda comm: bench.run(config, comm, benchmark="hpl", stop=stop))


@pytest.mark.parametrize(
    ("grid", "options"),
    [((1, 1), {}), ((2, 3), {}), ((2, 2), {"split": 0.5}), ((3, 1), {"depth": (0,)}), ((1, 3), {"bcast": ("longM",)})],
)
@pytest.mark.parametrize("after", [1, 4])
def test_hpl_is_ended_on_every_grid_and_leaves_what_is_known(grid: Any, options: Any, after: int) -> None:
    config = HplConfig(n=(97,), nb=(8,), grid=(grid,), warmup="none", threads=1, device="cpu", target=1.0, **options)
    results_of = ended(hpl, config, grid[0] * grid[1], after)
    for results in results_of:
        (result,) = results
        assert result.status == "aborted"
    body = json.loads(json.dumps(results_of[0][0].as_dict()))
    VALIDATOR.validate(body)
    assert body["result"]["rate_flops"] is None
    assert body["validation"]["passed"] is None
    assert body["telemetry"]["aborted"]["reason"] == "for the test"
    assert 1 <= body["telemetry"]["aborted"]["step"] < 13
    assert body["telemetry"]["steps"]["phases"]["gemm"]["time_s"]
    assert body["problem"]["n"] == 97


def test_hpl_mxp_is_ended_and_the_next_case_runs() -> None:
    config = HplMxpConfig(
        n=(97, 53), nb=(8,), grid=((2, 2),), precision=("fp32",), warmup="none", threads=1, device="cpu", target=1.0
    )
    calls: list[int] = []

    def stop() -> str | None:
        calls.append(1)
        return "for the test" if len(calls) == 1 else None

    results = run_ranks(4, lambda comm: hpl_mxp.run(config, comm, benchmark="hpl-mxp", stop=stop))[0]
    assert [result.status for result in results] == ["aborted", "valid"]


def test_solves_that_were_finished_are_samples_of_a_run_that_was_not() -> None:
    config = HplConfig(n=(97,), nb=(8,), repeat=3, warmup="none", threads=1, device="cpu", target=1.0)
    (result,) = ended(hpl, config, 1, 15)[0]
    assert result.status == "aborted"
    assert len(result.samples_s) == 1


@pytest.mark.parametrize("error", [ResourceError("no room for the copy of A"), ValueError("a bug")])
def test_an_error_is_the_reason_of_the_partial_result(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """The partial result contains the first of two solves, which was finished."""
    partial_results: list[Result] = []
    residuals = iter([hpl.residual_norms])

    def failing(*args: Any) -> Any:
        for known in residuals:
            return known(*args)
        raise error

    monkeypatch.setattr(hpl, "residual_norms", failing)
    config = HplConfig(n=(97,), nb=(8,), repeat=2, warmup="none", threads=1, device="cpu")
    with pytest.raises(type(error), match=str(error)):
        hpl.run(config, Solo(), benchmark="hpl", on_case=lambda case, result: partial_results.append(result))
    (result,) = partial_results
    assert (result.status, result.telemetry["aborted"]["reason"]) == ("aborted", str(error))
    assert len(result.samples_s) == 1


def test_an_error_before_the_first_finished_solve_leaves_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal does leave a result, because a user or a scheduler stopped the run on purpose."""
    partial_results: list[Result] = []

    def ended_by(error: BaseException) -> list[str]:
        def failing(*args: Any) -> Any:
            raise error

        partial_results.clear()
        monkeypatch.setattr(hpl, "residual_norms", failing)
        config = HplConfig(n=(97,), nb=(8,), warmup="none", threads=1, device="cpu")
        with pytest.raises(type(error)):
            hpl.run(config, Solo(), benchmark="hpl", on_case=lambda case, result: partial_results.append(result))
        return [result.status for result in partial_results]

    assert ended_by(ResourceError("no room for the copy of A")) == []
    assert ended_by(KeyboardInterrupt()) == ["aborted"]


def test_people_read_why_and_when_a_run_was_ended() -> None:
    config = HplConfig(n=(97,), nb=(8,), warmup="none", threads=1, device="cpu", target=1.0)
    (result,) = ended(hpl, config, 1, 1)[0]
    first, second = verdict(result).splitlines()
    assert first == "ABORTED  hpl  no rate"
    assert second == "  HPL N=97, after step 1: for the test"
    assert verdict(replace(result, samples_s=[0.5, 0.25])).splitlines()[2:] == [
        "  2 solves finished before, the fastest in 0.250 s"
    ]
    assert "ABORTED" in html_report(result.as_dict())


# --- the command line -------------------------------------------------------------------------------------------


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    """Provide a command line in an empty folder whose HPL and launcher are fakes."""
    fake = Bench()
    use_fakes(monkeypatch, tmp_path, Comm(), fake)
    return fake


@pytest.mark.parametrize(("machine", "source"), [("crusher", "simulated"), ("not-there", None)])
def test_a_machine_that_was_tuned_is_what_a_run_is_compared_with(
    machine: str, source: str | None, bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("mxpeak.bench.expected.measured_layouts", lambda: {(1, 1): machine})
    assert cli.main(["run", "hpl", "-N", "2000", "--threads", "1", "--out", "out"]) == 0
    telemetry = json.loads(Path("out/result.json").read_text())["telemetry"]
    assert telemetry.get("forecast", {}).get("source") == source
    assert ("note: no forecast: --machine not-there" in capsys.readouterr().err) == (source is None)


def aborted(case: Any) -> Result:
    return hpl_result(case, "aborted", 0.0)


def test_a_run_that_was_ended_is_exit_code_six(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.outcome = aborted
    assert cli.main(["run", "hpl", "--target", "100", "--format", "hpl", "--out", "out"]) == 6
    assert json.loads(Path("out/result.json").read_text())["status"] == "aborted"
    assert "Finished      0 tests" in capsys.readouterr().out, "HPL's report knows only whole runs"


@pytest.mark.parametrize(("error", "code"), [(ResourceError("no room"), 5), (ValueError("a bug"), 1)])
def test_cases_that_had_ended_before_an_error_are_in_the_result(bench: Bench, error: Exception, code: int) -> None:
    bench.outcome = lambda case: hpl_result(case) if case.n == 10 else error
    assert cli.main(["run", "hpl", "-N", "10,20", "--out", "out"]) == code
    (result,) = json.loads(Path("out/result.json").read_text())["results"]
    assert result["problem"]["n"] == 10
    assert not Path("out/so-far.json").exists()


@pytest.mark.parametrize(("target", "code"), [("1.9", 0), ("100", 4)])
@pytest.mark.parametrize("quiet", [[], ["--quiet"]])
def test_a_run_that_ends_before_it_can_be_stopped_is_valid_but_slow(
    bench: Bench, capsys: pytest.CaptureFixture[str], target: str, code: int, quiet: list[str]
) -> None:
    assert cli.main(["run", "hpl", "--target", target, "--out", "out", *quiet]) == code
    result = json.loads(Path("out/result.json").read_text())
    assert (result["status"], result["result"]["rate_flops"]) == ("slow" if code else "valid", 2e9)
    text = "2.00 GFLOP/s is below --target 100; the run ended before mxpeak could stop it"
    assert [warning["text"] for warning in result["warnings"] if warning["code"] == "slow"] == [text] * bool(code)
    assert (f"warning: {text} [slow]" in " ".join(capsys.readouterr().err.split())) == bool(code)


def test_a_failed_check_counts_more_than_an_early_end(bench: Bench) -> None:
    bench.outcome = lambda case: hpl_result(case, "invalid") if case.n == 10 else aborted(case)
    assert cli.main(["run", "hpl", "-N", "10,20", "--target", "100"]) == 3


def recorded(**values: Any) -> dict[str, Any]:
    """Write the result file of a valid run of N = 1000 on one rank."""
    steps = {"index": [1, 2, 2], "elapsed_s": [1.0, 2.0, 2.1], "done_flops": [6e8, 6.6e8, 6.6e8], "phases": {}}
    return {
        "schema": "mxpeak.result/1",
        "benchmark": "hpl",
        "status": "valid",
        "problem": {"n": 1000},
        "launch": {"ranks": 1},
        "telemetry": {"steps": steps},
        **values,
    }


def with_baseline(body: Any, *arguments: str) -> int:
    Path("base.json").write_text(body if isinstance(body, str) else json.dumps(body))
    return cli.main(["run", "hpl", *arguments, "--baseline", "base.json"])


def test_a_baseline_of_the_same_problem_is_taken(bench: Bench) -> None:
    assert with_baseline(recorded(), "-N", "1000") == 0
    several = {"schema": "mxpeak.results/1", "results": [recorded(problem={"n": 7}), recorded()]}
    assert with_baseline(several, "-N", "1000,7") == 0
    Path("earlier").mkdir()
    Path("earlier/result.json").write_text(json.dumps(recorded()))
    assert cli.main(["run", "hpl", "-N", "1000", "--baseline", "earlier"]) == 0
    assert cli.main(["run", "hpl", "-N", "2000", "--baseline", "earlier"]) == 2


@pytest.mark.parametrize(
    ("body", "arguments", "says"),
    [
        (recorded(), ["-N", "2000"], "contains another problem: n is 1000 in the file and 2000 in this run"),
        (recorded(launch={"ranks": 4}), ["-N", "1000"], "ranks is 4 in the file and 1 in this run"),
        (recorded(benchmark="hpl-mxp"), ["-N", "1000"], "contains no valid result of hpl"),
        (recorded(status="aborted"), ["-N", "1000"], "contains no valid result of hpl"),
        (recorded(telemetry={}), ["-N", "1000"], "has no telemetry.steps"),
        (recorded(), [], "-N is not set; add -N"),
        ("{", ["-N", "1000"], "is not the result of a run: Expecting"),
        ({"schema": "mxpeak.plan/1"}, ["-N", "1000"], "is not the result of a run"),
    ],
)
def test_a_baseline_that_forecasts_nothing_is_refused_before_the_run(
    bench: Bench, capsys: pytest.CaptureFixture[str], body: Any, arguments: list[str], says: str
) -> None:
    assert with_baseline(body, *arguments) == 2
    assert says in capsys.readouterr().err
    assert not bench.calls
    assert not Path("mxpeak-out").exists()


def test_the_last_baseline_is_the_newest_valid_run(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "hpl", "-N", "1000", "--baseline", "last"]) == 2
    assert "no folder in mxpeak-out/ contains a valid result of hpl" in capsys.readouterr().err
    folder = Path("mxpeak-out/one")
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(recorded()))
    assert cli.main(["run", "hpl", "-N", "1000", "--baseline", "last"]) == 0


def test_norms_have_no_target(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "norms", "--target", "100"]) == 2
    assert "does not accept --target 100; --target is for hpl, hpl-mxp, hpg-mxp, hpcg" in capsys.readouterr().err
