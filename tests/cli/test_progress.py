"""Test progress: plain lines without a terminal, no output for short runs and in files, and at most 200 samples."""

from __future__ import annotations

import io
from threading import Event

import pytest

from mxpeak.bench.sparse import SolveProgress
from mxpeak.configs.run import ShowConfig
from mxpeak.errors import UsageError
from mxpeak.solvers.krylov import Solve
from mxpeak.spans import Phase, Spans, Step
from mxpeak.watch.progress import MAX_SAMPLES, Progress, duration, is_terminal
from mxpeak.watch.step_table import StepTable


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def follow(progress: Progress, seconds: float, steps: int = 1000) -> None:
    """Report the progress of a computation of 1e12 flops at a constant rate."""
    progress.start("hpl", 1e12)
    for k in range(1, steps + 1):
        progress.step(Step("hpl", k, steps, 1e12 * k / steps, 1e12, seconds * k / steps))
    progress.finish("hpl", seconds)


def shown(seconds: float, mode: str = "auto", steps: int = 1000) -> list[str]:
    """Return the plain lines on a terminal that cannot redraw a line."""
    stream = Terminal()
    follow(Progress(stream, {"TERM": "dumb"}, mode), seconds, steps)
    assert "\r" not in stream.getvalue()
    assert "\x1b" not in stream.getvalue()
    return stream.getvalue().splitlines()


def test_a_plain_line_says_share_time_rates_and_what_is_left():
    assert shown(100.0)[3] == (
        "hpl   20 %  1 min 20 s left  now 10.0 GFLOP/s  mean 10.0 GFLOP/s  20.0 s of ~1 min 40 s"
    )


def test_plain_lines_come_every_five_percent():
    assert 19 <= len(shown(100.0)) <= 20


def test_in_a_long_run_plain_lines_come_every_minute():
    assert 95 <= len(shown(6000.0)) <= 100


def test_what_ends_within_two_seconds_shows_nothing():
    assert shown(1.9) == []


def test_always_shows_short_runs_too_and_never_shows_none():
    assert len(shown(1.9, "always")) > 10
    assert shown(1000.0, "never") == []


@pytest.mark.parametrize(("interval_s", "lines"), [(10.0, 10), (0.0, 1000), (33.0, 3), (1000.0, 0)])
def test_an_interval_replaces_shares_and_minutes(interval_s: float, lines: int):
    stream = io.StringIO()
    follow(Progress(stream, {}, "always", interval_s), 100.0)
    assert len(stream.getvalue().splitlines()) == lines


def test_an_interval_also_spaces_the_rows_of_a_table():
    stream = io.StringIO()
    follow(StepTable(stream, {}, interval_s=25.0), 100.0)
    assert [line.split()[0] for line in stream.getvalue().splitlines()[1:]] == [
        "step",
        *(f"{k}/1000" for k in (250, 500, 750, 1000)),
    ]


def test_an_interval_asks_for_lines_and_cannot_be_silenced():
    assert ShowConfig(progress_interval=5.0).progress_mode == "always"
    assert ShowConfig(progress_interval=5.0, progress="table").progress_mode == "table"
    assert ShowConfig().progress_mode == "auto"
    assert ShowConfig(quiet=True).progress_mode == "never"
    with pytest.raises(UsageError, match="use either --progress never or --progress-interval"):
        ShowConfig(progress_interval=5.0, progress="never").check_progress()
    with pytest.raises(UsageError, match="use either --quiet or --progress-interval"):
        ShowConfig(progress_interval=5.0, quiet=True).check_progress()


def test_a_file_or_a_pipe_gets_lines_only_if_they_are_always_wanted():
    for mode, least, maximum in (("auto", 0, 0), ("never", 0, 0), ("always", 19, 20)):
        stream = io.StringIO()
        progress = Progress(stream, {"TERM": "xterm"}, mode)
        follow(progress, 100.0)
        assert least <= len(stream.getvalue().splitlines()) <= maximum
        assert "\x1b" not in stream.getvalue()
        assert progress.samples[-1] == (100.0, 1e12), "results keep samples without a line"
        progress.announce("checking the solution")
        assert progress._soon is None
        assert stream.getvalue().endswith("checking the solution\n") == (mode == "always")


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_no_color_and_dumb_terminals_get_plain_lines(environ: dict[str, str]):
    stream = Terminal()
    follow(Progress(stream, environ), 100.0)
    assert "\r" not in stream.getvalue()
    assert "\x1b" not in stream.getvalue()
    assert len(stream.getvalue().splitlines()) > 10


def test_other_phases_are_named_in_a_plain_line_unless_they_end_at_once(monkeypatch: pytest.MonkeyPatch):
    flushed = Event()
    stream = Terminal()
    monkeypatch.setattr(stream, "flush", flushed.set, raising=False)
    progress = Progress(stream, {"TERM": "dumb"}, "auto")
    progress.announce("generating the matrix")
    progress.start("hpl", 1e12)
    assert progress._soon is None, "nothing is left to be said once the computation has begun"
    progress.announce("checking the solution")
    assert flushed.wait(60.0)
    progress.close()
    assert stream.getvalue() == "checking the solution\n"
    silent = Progress(stream, {}, "never")
    silent.announce("proving the LU")
    assert silent._soon is None


def test_a_terminal_gets_one_live_line_that_is_gone_in_the_end():
    stream = Terminal()
    assert is_terminal(stream, {"TERM": "xterm"})
    follow(Progress(stream, {"TERM": "xterm"}), 10.0)
    text = stream.getvalue()
    assert "GFLOP/s" in text
    assert text.endswith("\x1b[2K") or text.rstrip().endswith("\x1b[?25h") or "\x1b[2K" in text.split("GFLOP/s")[-1]


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_live_line_fits_and_keeps_the_time_that_is_left(columns: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    progress = Progress(Terminal(), {"TERM": "xterm"})
    line = progress._line(Step("phase 3 of 5: rows: sets", 1, 4, 2.5e11, 1e12, 25.0))
    assert len(line) < columns
    assert "1 min 15 s left" in line
    assert ("25.0 s of ~1 min 40 s" in line) == (columns == 200)
    progress.close()


def test_samples_are_kept_by_phase():
    progress = Progress(io.StringIO(), {}, "never")
    for label, seconds in (("sets", 50.0), ("double", 5.0)):
        progress.start(label, 1e12)
        progress.step(Step(label, 1, 1, 1e12, 1e12, seconds))
        progress.finish(label, seconds)
    assert progress.samples_of("sets") == [(50.0, 1e12)]
    assert progress.samples_of(None) == progress.samples_of("double") == [(5.0, 1e12)]
    assert progress.samples_of("another") == []


def test_a_run_that_breaks_off_gives_the_terminal_its_cursor_back():
    stream = Terminal()
    progress = Progress(stream, {"TERM": "xterm"})
    progress.start("hpl", 1e12)
    progress.step(Step("hpl", 1, 2, 5e11, 1e12, 5.0))
    progress.close()
    assert stream.getvalue().count("\x1b[?25l") == stream.getvalue().count("\x1b[?25h") == 1


@pytest.mark.parametrize("steps", [1, 7, 199, 200, 201, 12345])
def test_at_most_two_hundred_samples_stay_and_the_last_is_among_them(steps: int):
    progress = Progress(io.StringIO(), {}, "never")
    follow(progress, 50.0, steps)
    assert len(progress.samples) <= MAX_SAMPLES
    assert progress.samples[-1] == (50.0, 1e12)
    assert progress.samples == sorted(progress.samples)


def test_each_computation_starts_its_samples_anew():
    progress = Progress(io.StringIO(), {}, "never")
    follow(progress, 50.0, 10)
    follow(progress, 5.0, 3)
    assert len(progress.samples) == 3


def test_a_computation_without_flops_or_steps_is_no_trouble():
    progress = Progress(io.StringIO(), {}, "always")
    progress.start("empty", 0.0)
    progress.step(Step("empty", 1, 1, 0.0, 0.0, 0.0))
    progress.finish("empty", 0.0)


@pytest.mark.parametrize(("seconds", "text"), [(8.25, "8.25 s"), (200, "3 min 20 s"), (18120, "5 h 02 min")])
def test_durations_read_as_people_say_them(seconds: float, text: str):
    assert duration(seconds) == text


def table_of(steps: list[tuple[float, float, dict[str, float]]]) -> list[str]:
    """Return the lines of a table for steps of (elapsed_s, done_flops, seconds by phase)."""
    stream = io.StringIO()
    table = StepTable(stream, {}, skipped=("update",))
    table.start("hpl", 10e9)
    for k, (elapsed_s, done, phases) in enumerate(steps, 1):
        totals = {name: Phase(time_s=time_s) for name, time_s in phases.items()}
        table.step(Step("hpl", k, len(steps), done, 10e9, elapsed_s, totals))
    table.finish("hpl", steps[-1][0])
    return stream.getvalue().splitlines()


def test_a_table_has_a_row_per_step_with_the_time_of_each_phase_since_the_previous_row():
    lines = table_of(
        [
            (1.0, 4e9, {"gemm": 0.75, "update": 0.9}),
            (3.0, 8e9, {"gemm": 2.25, "update": 2.5, "trsm": 0.125}),
            (4.0, 10e9, {"gemm": 2.75, "update": 3.0, "trsm": 0.25}),
        ]
    )
    rows = [line.split() for line in lines]
    assert lines[0] == "hpl; rate, and seconds per phase, since the previous row"
    assert rows[1] == ["step", "done", "time", "rate", "mean", "gemm"]
    assert rows[2] == ["1/3", "40", "%", "1.00", "s", "4.00", "GFLOP/s", "4.00", "GFLOP/s", "0.7500"]
    assert rows[3] == ["step", "done", "time", "rate", "mean", "gemm", "trsm"], "a new phase gets a column"
    assert rows[4] == ["2/3", "80", "%", "3.00", "s", "2.00", "GFLOP/s", "2.67", "GFLOP/s", "1.5000", "0.1250"]
    assert rows[5] == ["3/3", "100", "%", "4.00", "s", "2.00", "GFLOP/s", "2.50", "GFLOP/s", "0.5000", "0.1250"]
    assert len({len(line) for line in lines[3:]}) == 1, "columns are aligned"


def test_the_last_row_of_a_table_has_the_time_and_the_flops_after_the_last_step():
    stream = io.StringIO()
    table = StepTable(stream, {}, interval_s=0.5)
    totals = {"gemm": Phase()}
    table.start("hpl", 10e9)
    for k, done in enumerate((5e9, 8e9, 9e9), 1):
        totals["gemm"].time_s = 0.4 * k
        table.step(Step("hpl", k, 3, done, 10e9, 0.4 * k, totals))
    totals["ptrsv"] = Phase(time_s=0.75)
    table.finish("hpl", 2.0)
    rows = [line.split() for line in stream.getvalue().splitlines()[2:]]
    assert rows[0] == ["2/3", "80", "%", "0.800", "s", "10.0", "GFLOP/s", "10.0", "GFLOP/s", "0.8000"]
    assert rows[1] == ["3/3", "90", "%", "1.20", "s", "2.50", "GFLOP/s", "7.50", "GFLOP/s", "0.4000"]
    assert rows[2][-2:] == ["gemm", "ptrsv"]
    assert rows[3] == ["end", "100", "%", "2.00", "s", "1.25", "GFLOP/s", "5.00", "GFLOP/s", "0.0000", "0.7500"]


def test_a_table_combines_short_steps_and_ends_with_the_last_one():
    lines = table_of([(0.01 * k, 0.2e9 * k, {"gemm": 0.01 * k}) for k in range(1, 51)])
    rows = [line.split() for line in lines if "/50" in line]
    assert 4 <= len(rows) <= 5
    assert rows[-1][:3] == ["50/50", "100", "%"]
    assert sum(float(row[-1]) for row in rows) == pytest.approx(0.5, abs=1e-3)


def test_the_table_of_a_solve_with_fewer_steps_than_expected_ends_as_finished():
    stream = io.StringIO()
    table = StepTable(stream, {}, interval_s=1.0)
    for label, steps in ("row at the end", 45), ("row before the end", 40):
        table.start(label, 60e9)
        for k in range(1, steps + 1):
            table.step(Step(label, k, 60, k * 1e9, 60e9, 0.1 * k))
        table.finish(label, 0.1 * steps)
    rows = [line.split() for line in stream.getvalue().splitlines()]
    assert rows[5][:2] == ["40/60", "67"]
    assert rows[6][:3] == ["45/45", "100", "%"]
    assert rows[-2][:2] == ["40/60", "67"]
    assert " ".join(rows[-1]) == "finished after 40 steps; mxpeak expected 60"


def test_the_last_cycle_of_a_solve_ends_at_its_number_of_steps():
    counts: list[tuple[int, int]] = []
    spans = Spans()
    spans.look = lambda step: counts.append((step.index, step.count))
    progress = SolveProgress(spans, "convergence", 100, 1e9, aim=1e-9)
    spans.start("convergence", 100e9)
    for steps, residual in (30, 2e-3), (55, 1e-10):
        progress.cycle(Solve(steps=steps, residual=residual))
    assert counts == [(30, 100), (55, 55)]
