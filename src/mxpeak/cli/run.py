"""`mxpeak run BENCHMARK`: read the settings, start the ranks, run, and show and write the results."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mxpeak.bench.registry import BENCHMARKS, Benchmark, load
from mxpeak.cli.ranks import join_ranks, read_on_root
from mxpeak.cli.request import RunRequest, add_options, requests
from mxpeak.cli.run_history import PARTIAL, RESULT
from mxpeak.cli.scaling import requests_with_ranks, study_requests, study_section
from mxpeak.cli.session import GRACE_S, Interrupted
from mxpeak.configs.lu import LuConfig
from mxpeak.configs.run import CI_FORMATS, OutputConfig, RunConfig
from mxpeak.configs.sparse import SparseConfig
from mxpeak.errors import ExitCode, MxpeakError, UsageError, most_severe
from mxpeak.options import path_name
from mxpeak.records import Result, document, to_json
from mxpeak.runtime.parent_watch import terminal_width

if TYPE_CHECKING:
    from mxpeak.cli.display import Display
    from mxpeak.cli.observers import RunObservers, Simulated
    from mxpeak.cli.output import Folder
    from mxpeak.cli.partial_results import PartialResultsFile
    from mxpeak.cli.session import Session
    from mxpeak.comm.base import Communicator
    from mxpeak.watch.progress import Progress
    from mxpeak.watch.watchdog import Watchdog

EXAMPLES = """\
examples:
  mxpeak run all --quick
  mxpeak run hpl -N 20000 --nb 256 --ranks 4
  mpiexec -n 4 mxpeak run hpl --dat HPL.dat --out results
  mxpeak run hpl-mxp -N 20000 --precision fp16 --submit submission
  mxpeak run norms -N 20000 --kind one,fro --structure general,symmetric
  mxpeak run hpl -N 10000 --scaling-study weak --ranks-list 1,2,4
"""

PAGE = "report.html"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add one subcommand per benchmark, with its flags, to `run`."""
    parser.description = "Run a benchmark and validate its result."
    parser.epilog = EXAMPLES
    choices = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    for benchmark in BENCHMARKS.values():
        _add_benchmark(choices, benchmark)
    summary, example = "all benchmarks, with one scoreboard", "mxpeak run all --quick"
    _add_benchmark(choices, Benchmark(name="all", summary=summary, config=RunConfig, module="", example=example))


def _add_benchmark(choices: Any, benchmark: Benchmark) -> None:
    """Add the parser of a benchmark to the choices of `run`."""
    about, form = f"{benchmark.name}: {benchmark.summary}.", benchmark.input
    parser: argparse.ArgumentParser = choices.add_parser(
        benchmark.name, help=benchmark.summary, description=about, epilog=f"example:\n  {benchmark.example}\n"
    )
    formats = ["text", *([benchmark.report.format] if benchmark.report else []), *CI_FORMATS]
    add_options(parser, benchmark.config)
    add_options(parser, OutputConfig, metavars={"format": f"{{{','.join(formats)}}}"})
    parser.add_argument(
        "--config", type=path_name, metavar="FILE", help="read settings from a TOML file or a result.json"
    )
    if form:
        settings = f"print an {form.name} file with these settings, then exit"
        parser.add_argument(
            "--dat", type=path_name, metavar="FILE", help=f"read an {form.name} file; flags override its settings"
        )
        parser.add_argument("--print-dat", action="store_true", help=settings)
    parser.set_defaults(action=run)


def run(args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Read the settings, join or start the ranks, run the benchmarks, and return the exit code. Collective."""
    if getattr(args, "print_dat", False):
        from mxpeak.cli.dry_run import print_dat

        return print_dat(requests(args, os.environ)[0], session)
    wanted = read_on_root(args, session, lambda: requests(args, os.environ))
    dry_ranks = max(request.config.least_ranks for request in wanted) if wanted[0].output.dry_run else 0
    code = join_ranks(wanted[0].config, argv, session, dry_ranks=dry_ranks)
    return run_requests(args.benchmark, wanted, argv, session) if code is None else code


def run_requests(benchmark: str, wanted: list[RunRequest], argv: list[str], session: Session) -> int:
    """Run the requests on the joined ranks, write the results, and return the exit code. Collective."""
    from mxpeak.cli.observers import observing, stalls_noticed
    from mxpeak.options import stall_limits

    wanted = [part for request in wanted for part in study_requests(request, session)]
    if wanted[0].output.dry_run:
        from mxpeak.cli.dry_run import dry_run

        return dry_run(wanted, session)
    wanted = session.on_root(lambda: _with_targets(wanted, session))
    forecasts: dict[str, Any] = {}  # only rank 0 has forecasts, because only rank 0 compares
    session.on_root(lambda: forecasts.update(_forecasts(wanted, session)))
    folders = session.on_root(lambda: _prepare_files(benchmark, wanted))
    try:
        with observing(wanted[0].output, benchmark, argv, session) as observers:
            observers.forecasts = forecasts
            execution = Execution(benchmark, folders, argv, session, observers)
            with (
                execution.saving(wanted),
                stalls_noticed(stall_limits(wanted[0].config.watchdog), session) as execution.watchdog,
            ):
                return execution.run(wanted)
    finally:
        if session.rank == 0:
            _close(folders)


def _with_targets(wanted: list[RunRequest], session: Session) -> list[RunRequest]:
    """Return the requests with the targets that follow from --baseline and --max-slowdown."""
    for request in wanted:
        if isinstance(request.config, SparseConfig) and request.config.baseline and not request.config.max_slowdown:
            raise UsageError(
                f"--baseline {request.config.baseline} has no effect on {request.benchmark.name} by itself; add "
                "--max-slowdown 10% to stop a slow run, or compare the results with mxpeak compare"
            )
    if all(getattr(request.config, "max_slowdown", None) is None for request in wanted):
        return wanted
    from mxpeak.cli.baseline import with_recorded_target

    assert session.comm is not None
    return [with_recorded_target(request, session.comm.size) for request in wanted]


def _forecasts(wanted: list[RunRequest], session: Session) -> dict[str, Any]:
    """Return the forecast of each case of an LU benchmark from --baseline, by benchmark and case."""
    compared = [
        request for request in wanted if isinstance(request.config, LuConfig) and request.config.baseline is not None
    ]
    if not compared:
        return {}
    from mxpeak.cli.baseline import forecasts_of

    assert session.comm is not None
    return {request.benchmark.name: forecasts_of(request, session.comm.size) for request in compared}


def _prepare_files(benchmark: str, wanted: list[RunRequest]) -> list[Folder]:
    """Create the folders for results and submission; raise a UsageError if a file of the run cannot be written."""
    from mxpeak.cli.output import check_file, checkpoint_folder, empty_folder, results_folder

    output = wanted[0].output
    names = [RESULT, PAGE, PARTIAL, *(r.report_name for r in wanted if r.report_name)]
    if len(set(names)) < len(names):
        dat = " or ".join(r.benchmark.input.name for r in wanted if r.benchmark.input)
        raise UsageError(
            f"{dat} names {names[-1]} as the report file, but mxpeak writes another result file with that name; "
            "use another name in line 3"
        )
    folders = [results_folder(output.out, benchmark, names, output.json)]
    try:
        taken = [] if folders[0].missing else [folders[0].path / name for name in names]
        if output.json not in (None, "-"):
            check_file(Path(output.json or ""), taken=taken)
            taken.append(Path(output.json or ""))
        if output.events is not None:
            check_file(Path(output.events), taken=taken, flag="--events")
            taken.append(Path(output.events))
        if output.prometheus is not None:
            check_file(Path(output.prometheus), taken=taken, flag="--prometheus", replaced=True)
            taken.append(Path(output.prometheus))
        for request in wanted:
            if request.config.trace is not None:
                check_file(Path(request.config.trace), taken=taken, flag="--trace")
            if (kept := getattr(request.config, "checkpoint", None)) and not getattr(request.config, "resumed", False):
                checkpoint_folder(kept, not_in=folders[0].path).close()
            if (submission := request.config.submission_folder) is not None:
                folders.append(empty_folder(submission, "--submit", not_in=folders[0].path))
    except MxpeakError:
        _close(folders)
        raise
    return folders


def _close(folders: list[Folder]) -> None:
    """Remove the empty folders."""
    for folder in reversed(folders):  # a folder may contain the next one
        folder.close()


class Execution:
    """Runs the benchmarks of a command line on all ranks, and keeps their results and files."""

    def __init__(self, name: str, folders: list[Folder], argv: list[str], session: Session, observers: RunObservers):
        from mxpeak.cli.output import FaultTolerantStream, ResultWriter
        from mxpeak.cli.partial_results import PartialResultsFile

        self.name, self.folders, self.argv, self.session = name, folders, argv, session
        self.observers, self.is_over = observers, False
        self.watchdog: Watchdog | None = None
        self.stdout, self.stderr = FaultTolerantStream(sys.stdout), FaultTolerantStream(sys.stderr)
        self.displays: list[Display] = []
        self.writer = ResultWriter(folders[0])
        self.so_far = PartialResultsFile(folders[0], session) if session.rank == 0 else None

    def run(self, wanted: list[RunRequest]) -> int:
        """Run all benchmarks, write the files and return the worst exit code. Collective."""
        from mxpeak.watch.watchdog import WRITING

        codes: list[int] = []

        def first() -> Mapping[str, Any] | None:  # the problem of a scaling study on its fewest ranks
            return next((result.problem for result in self.displays[0].results if result.passed), None)

        for request, comm in requests_with_ranks(wanted, self.session, first):
            codes.append(self._run_benchmark(request, comm))
        self.is_over = True
        if self.watchdog is not None:
            self.watchdog.phase = WRITING
        if self.so_far is not None:
            codes.append(self._finish())
            self._clear(self.so_far)
            codes.append(self.observers.trouble())
        code = self._agree_on_end(most_severe(codes))
        code = most_severe([code, self.observers.close(code)])
        assert self.session.comm is not None
        return int(self.session.comm.bcast_object(code))

    @contextmanager
    def saving(self, wanted: list[RunRequest]) -> Iterator[None]:
        """Write the results so far on rank 0 if a signal, or an error of only this rank, ends the benchmarks."""
        try:
            yield
        except BaseException as error:
            if self.so_far is not None and not self.is_over:
                if isinstance(error, Interrupted):
                    self._add_aborted(wanted[0], str(error))
                self._finish()
                self._clear(self.so_far)
            raise

    def _add_aborted(self, first: RunRequest, why: str) -> None:
        """Add the result of the current benchmark if none of its cases has begun and no error has ended it."""
        from mxpeak.bench.partial_result import aborted_at_start

        comm = self.session.comm
        assert comm is not None
        if not self.displays:
            self._new_display(first, comm.size)
        display = self.displays[-1]
        if not (display.results or display.skipped or display.failed):
            request = display.request
            display.on_abort(aborted_at_start(request.benchmark.name, request, comm, self.argv, why))

    def _agree_on_end(self, code: int) -> int:
        """Return the exit code of rank 0 on all ranks, when all of them have received it. Collective."""
        from mxpeak.watch.watchdog import EXIT

        comm = self.session.comm
        assert comm is not None
        code, files = comm.bcast_object((int(code), self.writer.stored))
        if self.watchdog is not None:
            self.watchdog.phase = EXIT
            self.watchdog.results = f"the results in {files[0]} are complete" if files else ""
        comm.barrier()
        return int(code)

    @property
    def results(self) -> list[Result]:
        """Return the results of all benchmarks."""
        return [result for display in self.displays for result in display.results]

    def _run_benchmark(self, request: RunRequest, comm: Communicator) -> int:
        """Run and display one benchmark and return its exit code.

        An error that all ranks raise ends only this benchmark.
        """
        display, progress = self._new_display(request, comm.size)
        watched = self.observers.of_benchmark(request, progress, self._simulated(request, comm))
        session, config = self.session, request.config

        def on_case(case: Any, result: Result | None) -> None:
            display.on_case(case, result)
            self.observers.end(result)
            on_sample()

        def on_sample(aborted: Callable[[], Result] | None = None) -> None:
            if self.so_far is not None:
                self.so_far.write(self.results, aborted)

        session.grace_s = GRACE_S if getattr(config, "checkpoint", None) is not None else 0.0
        try:
            module = import_module(request.benchmark.module)
            self._log_notes(request, module, comm)
            with closing(progress):
                module.run(
                    config,
                    comm,
                    origins=request.origins,
                    benchmark=request.benchmark.name,
                    observers=watched.observers if session.rank == 0 else [],
                    on_begin=watched.begin,
                    on_case=on_case,
                    on_note=lambda text: None if request.output.quiet else session.log(f"note: {text}"),
                    on_sample=on_sample,
                    **({} if self.watchdog is None else {"follow": self.watchdog.follow}),
                    **({} if self.observers.devices is None else {"on_devices": self.observers.devices.watch}),
                    stop=watched.reason,
                    ending=lambda: session.ending,
                    argv=self.argv,
                )
            code = _verdict_code(display.results, display.skipped)
        except MxpeakError as error:
            session.log(f"mxpeak: error: {error}")
            code, display.failed = int(error.exit_code), True
        display.close()
        return code

    def _new_display(self, request: RunRequest, ranks: int) -> tuple[Display, Progress]:
        """Return the display and the progress line of one benchmark."""
        from mxpeak.cli.display import Display, progress_of
        from mxpeak.watch.progress import is_terminal

        output = request.output
        color = output.color == "always" or (output.color == "auto" and is_terminal(sys.stdout, os.environ))
        mode = output.progress_mode if self.session.rank == 0 else "never"
        progress = progress_of(request.benchmark, mode, output.progress_interval)
        rows_only = request.runs_all and not output.verbose and not output.quiet
        width = terminal_width(sys.stdout)
        display = Display(request, ranks, progress, self.stdout, self.stderr, color, width, rows_only)
        self.displays.append(display)
        return display, progress

    def _simulated(self, request: RunRequest, comm: Communicator) -> Simulated:
        """Return a function that forecasts LU cases by simulation, if there is no --baseline."""
        from mxpeak.cli.baseline import simulated

        if not isinstance(request.config, LuConfig) or request.config.baseline is not None:
            return lambda case: None
        return simulated(request, comm, self.session.log)

    def _log_notes(self, request: RunRequest, module: ModuleType, comm: Communicator) -> None:
        """Print notes about the settings, and about list rules that the run will break. Collective."""
        if request.output.quiet:
            return
        for line in request.notes:
            self.session.log(f"note: {line}")
        if hasattr(module, "forewarnings") and (request.output.verbose or not request.runs_all):
            for line in module.forewarnings(request.config, comm):
                self.session.log(f"note: {line}")

    def _clear(self, so_far: PartialResultsFile) -> None:
        """Remove the file of partial results, unless the complete results could not be stored."""
        if self.writer.stored or self.writer.error is None:
            so_far.clear()

    def _finish(self) -> int:
        """Print the overview of the results, write the files of the run on rank 0, and return the exit code."""
        from mxpeak.report.html import html_report

        displays, results = self.displays, self.results
        skipped = sum(display.skipped for display in displays)
        if not results and not skipped:
            return ExitCode.VALID
        request, several = displays[0].request, self.name == "all" or len(results) + skipped > 1
        traces = self._traces()
        body = document(results, several=several)
        try:
            body |= self._study()
        finally:  # the result comes first, so that no later failure loses a finished run
            text = to_json(body)
            if not self.folders[0].missing:
                self.writer.result(self.folders[0].path / RESULT, text)
        if request.output.json == "-":
            self.stdout.say(text)
        elif request.output.format in CI_FORMATS:
            from mxpeak.report.ci import case_without_result, cases_of_results, formatted

            lost = [
                (each.request.benchmark.name, each.skipped) for each in displays if each.skipped or not each.results
            ]
            cases = [*cases_of_results(body["results"]), *(case_without_result(*each) for each in lost)]
            self.stdout.say(formatted(request.output.format, cases))
        elif request.stdout_format == "text" and not request.output.quiet and several:
            self.stdout.say(self._overview(body))
        files = {display.request.report_name: display.report for display in displays if display.report}
        files[PAGE] = html_report(body)
        codes = [self._write(files, text, request.output), self._write_traces(traces)]
        code, files = most_severe(codes), {RESULT: text, **files}
        for folder in self.folders[1:]:
            code = most_severe([code, self._submit(folder, files)])
        return code

    def _study(self) -> dict[str, Any]:
        """Return the section `study` of the results; empty without a scaling study."""
        request = self.displays[0].request
        if request.of_ranks is None:
            return {}
        runs = [(shown.request.of_ranks or 0, next(iter(shown.results), None)) for shown in self.displays]
        return {"study": study_section(request, runs)}

    def _overview(self, body: dict[str, Any]) -> str:
        """Return the scoreboard of all benchmarks, the table of a scaling study, or the table of a sweep."""
        from mxpeak.report.scaling import study_table
        from mxpeak.report.scoreboard import scoreboard, sweep
        from mxpeak.watch.progress import duration

        shown, results, folder = self.displays[0], self.results, self.folders[0]
        if "study" in body:
            return "\n" + study_table(body["study"])
        if self.name != "all":
            return "\n" + sweep(results, color=shown.color, width=shown.width)
        begun = min((r.run.get("start_unix") or 0.0 for r in results), default=0.0)
        ended = max((r.run.get("end_unix") or 0.0 for r in results), default=0.0)
        quick = bool(shown.request.config.quick)
        return ("" if shown.rows_only else "\n") + scoreboard(
            results,
            color=shown.color,
            page="" if folder.missing else str(folder.path / PAGE),
            sizes=[*(["quick sizes"] * quick), duration(ended - begun)],
            lost=[each.request.benchmark.name for each in self.displays if each.skipped or not each.results],
            quick=quick,
            verbose=shown.request.output.verbose,
        )

    def _traces(self) -> dict[str, list[tuple[str, list[Any]]]]:
        """Remove the timelines from the results, and return titles and timelines by output file."""
        from mxpeak.report.summaries import case_text

        traces: dict[str, list[tuple[str, list[Any]]]] = {}
        for display in self.displays:
            for result in display.results:
                events = result.telemetry.pop("trace", None)
                if display.request.config.trace is not None and events is not None:
                    title = f"{result.benchmark} {case_text(result)}"
                    traces.setdefault(display.request.config.trace, []).append((title, events))
        return traces

    def _write_traces(self, traces: dict[str, list[tuple[str, list[Any]]]]) -> int:
        """Write the timelines as Chrome traces and return the exit code."""
        from mxpeak.cli.output import write_new
        from mxpeak.report.trace import chrome_trace

        for path, cases in traces.items():
            try:
                write_new(Path(path), chrome_trace(cases))
            except OSError as error:
                self.session.log(f"mxpeak: error: cannot write --trace {path}: {error.strerror}")
                return ExitCode.RESOURCE
        return ExitCode.VALID

    def _submit(self, folder: Folder, files: dict[str, str]) -> int:
        """Write the files of a run and the submission form to the --submit folder, and return the exit code."""
        display = next(display for display in self.displays if display.request.config.submission_folder is not None)
        if all(result.status == "aborted" for result in display.results):  # no list accepts aborted results
            return ExitCode.VALID
        others = [result for other in self.displays for result in other.results if other is not display]
        submission_files = load(display.request.benchmark.submission)
        files = {**files, **submission_files(display.results, others, display.request.report_name)}
        try:
            for file, text in files.items():
                folder.write(file, text)
        except OSError as error:
            self.session.log(f"mxpeak: error: cannot write {error.filename or folder.path}: {error.strerror}")
            return ExitCode.RESOURCE
        if not display.request.output.quiet:
            self.session.log(f"submission in {folder.path}/")
        return ExitCode.VALID

    def _write(self, files: dict[str, str], result: str, output: OutputConfig) -> int:
        """Write the --json file and the reports, print their folder or the first error, and return the exit code."""
        folder, log = self.folders[0], self.session.log
        if output.json not in (None, "-"):
            self.writer.result(Path(output.json or ""), result)
        for file, text in files.items():
            self.writer.file(file, text)
        if (message := self.writer.message()) is not None:
            log(message)
            return ExitCode.RESOURCE
        if not output.quiet:
            log(folder.location(output.json or ""))
        return self.stdout.exit_code(log, self.writer.stored)


def _verdict_code(results: list[Result], skipped: int) -> int:
    """Return the exit code of a benchmark from its results. The code is BELOW_TARGET only if all cases are slow."""
    if any(r.status == "invalid" for r in results):
        return ExitCode.FAILED
    if any(r.status == "aborted" for r in results):
        return ExitCode.GUARD
    if skipped:
        return ExitCode.RESOURCE
    return ExitCode.BELOW_TARGET if results and all(r.status == "slow" for r in results) else ExitCode.VALID
