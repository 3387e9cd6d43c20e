"""Show each case on rank 0 when it ends: the benchmark's own report, the verdict and the warnings."""

from __future__ import annotations

import io
import os
import sys
from dataclasses import dataclass, field
from typing import Any

from mxpeak.bench.registry import Benchmark, load
from mxpeak.cli.output import FaultTolerantStream
from mxpeak.cli.request import RunRequest
from mxpeak.configs.run import RunConfig
from mxpeak.foreign import printable
from mxpeak.records import Caution, Result, rate_text
from mxpeak.report.columns import folded
from mxpeak.report.native_report import OwnReport
from mxpeak.report.summaries import case_text, lines_of
from mxpeak.report.text import cautions, headline, painted, percent, verdict
from mxpeak.spans import Step
from mxpeak.watch.progress import Progress, how_far, since
from mxpeak.watch.step_table import StepTable


class PlainProgress(Progress):
    """Shows the completed share and the remaining time, without a rate, for benchmarks that do not count flops."""

    def _parts(self, step: Step) -> list[str]:
        return [*how_far(step), since(step)]


def progress_of(benchmark: Benchmark, mode: str, interval_s: float | None) -> Progress:
    """Return the progress display of a benchmark. A benchmark that does not count flops has no table of steps."""
    if not benchmark.in_flops:
        return PlainProgress(sys.stderr, os.environ, "always" if mode == "table" else mode, interval_s)
    if mode == "table":
        lines = lines_of(benchmark.name)
        return StepTable(sys.stderr, os.environ, set(lines.undrawn) - set(lines.timers), interval_s)
    return Progress(sys.stderr, os.environ, mode, interval_s)


def judge(result: Result, config: RunConfig) -> None:
    """Set the status of a valid result to `slow` and add warnings if it misses --min-gflops, --min-share or --target.

    A run with few steps may end before --target can stop it.
    """
    rate, share = result.result.get("rate_flops") or 0.0, result.result.get("fraction_of_limit")
    lines = []
    if config.min_gflops is not None and rate < 1e9 * config.min_gflops:
        lines.append(f"{rate_text(rate)} is below --min-gflops {config.min_gflops:g}")
    target = getattr(config, "target", None)
    if target is not None and rate < 1e9 * target:
        limit = f"--target {target:g}"
        if (slowdown := getattr(config, "max_slowdown", None)) is not None:  # it sets the target
            limit = f"{target:.3g} GFLOP/s, the limit of --max-slowdown {slowdown:.0%}"
        lines.append(f"{rate_text(rate)} is below {limit}; the run ended before mxpeak could stop it")
    if config.min_share is not None and (share is None or share < config.min_share):
        floor = f"--min-share {config.min_share:.0%}"
        unknown = f"no limit was measured, so {floor} cannot be checked"
        lines.append(unknown if share is None else f"{percent(share)} of the limit is below {floor}")
    if lines and result.status == "valid":
        result.status = "slow"
        result.warnings += [Caution("slow", text) for text in lines]


@dataclass
class Display:
    """Shows the results, reports and warnings of one benchmark on rank 0."""

    request: RunRequest
    ranks: int
    progress: Progress
    stdout: FaultTolerantStream
    stderr: FaultTolerantStream
    color: bool
    width: int | None = None  # width of the terminal; None: lines are not folded
    rows_only: bool = False  # show the results in the scoreboard only
    results: list[Result] = field(default_factory=list)
    skipped: int = 0
    failed: bool = False  # an error has ended the benchmark
    _warned: set[str] = field(default_factory=set)
    _report: io.StringIO = field(default_factory=io.StringIO)
    _texts: list[OwnReport] = field(default_factory=list)

    @property
    def report(self) -> str:
        """Return the benchmark's own report as text; empty if no case has ended."""
        return self._report.getvalue()

    def on_case(self, case: Any, result: Result | None) -> None:
        """Show and store the result of a case that has ended; `result` is None if the case did not fit into memory."""
        self.progress.close()  # the progress line would overwrite the result on a terminal
        if not self._texts:
            self._open_texts(case)
        if result is None:
            self.skipped += 1
            self.stderr.say(f"mxpeak: skipped {case.size}: it does not fit into memory\n")
            for text in self._texts:
                text.skipped()
        else:
            if self.request.benchmark.in_flops:
                label = result.telemetry.get("computation")  # the computation that determines the rate
                result.telemetry.setdefault("progress", self.progress.samples_of(label))
            if self.progress.forecast is not None:
                result.telemetry["forecast"] = self.progress.forecast.section()
            judge(result, self.request.config)
            self.results.append(result)
            for text in self._texts if result.status != "aborted" else ():  # the formats have no aborted runs
                text.case(result)
            self._show(result)

    def on_abort(self, result: Result) -> None:
        """Show and store the result of a run that a signal ended before its first case began."""
        self.progress.close()
        self.results.append(result)
        self._show(result)

    def close(self) -> None:
        """Write the footers of the benchmark's own reports."""
        passed, failed = sum(r.passed for r in self.results), sum(r.status == "invalid" for r in self.results)
        for text in self._texts:
            text.footer(passed, failed, self.skipped)

    def _open_texts(self, case: Any) -> None:
        own = self.request.benchmark.report
        if own is None:
            return
        writer, settings = load(own.writer), self.request.config.as_run(case, self.ranks)
        self._texts = [writer(stream, settings, self.request.begun) for stream in self._streams()]
        for text in self._texts:
            text.header()

    def _streams(self) -> list[FaultTolerantStream]:
        streams = [FaultTolerantStream(self._report)]
        if self.request.output.json != "-" and self.request.stdout_format == self.request.own_format:
            streams.append(self.stdout)
        if self.request.from_dat and self.request.config.report_to == "stderr":
            streams.append(self.stderr)
        return streams

    def _show(self, result: Result) -> None:
        output = self.request.output
        if output.json != "-" and self.request.stdout_format == "text" and not self.rows_only:
            one_line = f"{headline(result)}  {case_text(result)}\n"
            text = one_line if output.quiet else folded(verdict(result, verbose=output.verbose), self.width)
            self.stdout.say(printable(text).replace(result.mark, painted(result.mark, self.color), 1))
        grid = result.launch.get("grid") if result.problem.get("node_grid") else None
        if grid and not output.quiet and not output.verbose and grid not in self._warned:
            self._warned.add(grid)  # ranks were remapped: show the new placement
            self.stderr.say(printable(grid) + "\n")
        # A quiet run still prints "slow": it explains exit code 4.
        warnings = [warning for warning in result.warnings if not output.quiet or warning.code == "slow"]
        if self.rows_only:  # the scoreboard lists rows with a drift itself
            warnings = [warning for warning in warnings if warning.code != "drift"]
        if warnings:
            new = [warning for warning in warnings if warning.text not in self._warned]
            self._warned.update(warning.text for warning in new)  # hundreds of cases may share one warning
            self.stderr.say(folded(cautions(new), self.width))
