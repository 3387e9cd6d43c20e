"""mxpeak run BENCHMARK: resolve the request, start the ranks, run, show, write, and say how it went."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mxpeak.bench.registry import BENCHMARKS, load
from mxpeak.cli.ranks import on_ranks
from mxpeak.cli.request import Request, add_options, requests
from mxpeak.cli.run_history import RESULT, SO_FAR
from mxpeak.cli.scaling import parts, section, turns
from mxpeak.cli.session import GRACE_S
from mxpeak.configs.run import OutputConfig, RunConfig
from mxpeak.errors import ExitCode, MxpeakError, UsageError
from mxpeak.records import Result, document, to_json
from mxpeak.runtime.parent_watch import terminal_width

if TYPE_CHECKING:
    from mxpeak.cli.display import Display, PlainProgress
    from mxpeak.cli.observers import RunObservers, Simulated
    from mxpeak.cli.output import FaultTolerantStream, Folder
    from mxpeak.cli.partial_results import SoFarFile
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
    """Add the benchmarks to `run`, each with its flags."""
    parser.description = "Run a benchmark and validate its result."
    parser.epilog = EXAMPLES
    choices = parser.add_subparsers(dest="benchmark", metavar="BENCHMARK", required=True)
    for benchmark in BENCHMARKS.values():
        of_benchmark = _add_benchmark(
            choices,
            benchmark.name,
            benchmark.summary,
            benchmark.example,
            benchmark.config,
            formats=["text", *([benchmark.report.format] if benchmark.report else [])],
        )
        if benchmark.input:
            of_benchmark.add_argument(
                "--dat", metavar="FILE", help=f"read an {benchmark.input.name} file; flags override its settings"
            )
            of_benchmark.add_argument(
                "--print-dat",
                action="store_true",
                help=f"print an {benchmark.input.name} file with these settings, then exit",
            )
    _add_benchmark(choices, "all", "all benchmarks, with one scoreboard", "mxpeak run all --quick", RunConfig)


def _add_benchmark(
    choices: Any, name: str, summary: str, example: str, config: type, formats: Sequence[str] = ("text",)
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = choices.add_parser(
        name, help=summary, description=f"{name}: {summary}.", epilog=f"example:\n  {example}\n"
    )
    add_options(parser, config)
    add_options(parser, OutputConfig, metavars={"format": f"{{{','.join(formats)}}}"})
    parser.add_argument("--config", metavar="FILE", help="read settings from a TOML file or a result.json")
    parser.set_defaults(action=run)
    return parser


def run(args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Run what the command line asks for.  Collective over all ranks, once they are there."""
    if getattr(args, "print_dat", False):
        from mxpeak.cli.dry_run import print_dat

        return print_dat(requests(args, os.environ)[0], session)
    return on_ranks(
        args,
        argv,
        session,
        read=lambda: requests(args, os.environ),
        place=lambda wanted: wanted[0].config,
        act=lambda wanted: run_requests(args.benchmark, wanted, argv, session),
        planned=lambda wanted: max(one.config.least_ranks for one in wanted) if wanted[0].output.dry_run else 0,
    )


def run_requests(benchmark: str, wanted: list[Request], argv: list[str], session: Session) -> int:
    """Run what is asked for, on the ranks that are there.  Collective."""
    from mxpeak.cli.observers import observing

    wanted = [part for request in wanted for part in parts(request, session)]
    if wanted[0].output.dry_run:
        from mxpeak.cli.dry_run import dry_run

        return dry_run(wanted, session)
    forecasts: dict[str, Any] = {}  # of rank 0, which alone compares
    session.on_root(lambda: forecasts.update(_forecasts(wanted, session)))
    folders = session.on_root(lambda: _prepare_files(benchmark, wanted))
    try:
        with observing(wanted[0].output, benchmark, argv, session) as onlookers:
            onlookers.forecasts = forecasts
            return _run_all(benchmark, wanted, folders, argv, session, onlookers)
    finally:
        if session.rank == 0:
            _remove_if_empty(folders)


def _forecasts(wanted: list[Request], session: Session) -> dict[str, Any]:
    """What every case should take by its --baseline, by benchmark."""
    compared = [request for request in wanted if getattr(request.config, "baseline", None) is not None]
    if not compared:
        return {}
    from mxpeak.cli.baseline import forecasts_of

    assert session.comm is not None
    return {request.benchmark.name: forecasts_of(request, session.comm.size) for request in compared}


def _prepare_files(benchmark: str, wanted: list[Request]) -> list[Folder]:
    """Find out before the run whether its results can be written: the folder of results, and of a submission."""
    from mxpeak.cli.output import check_file, checkpoint_folder, empty_folder, results_folder

    output = wanted[0].output
    names = [RESULT, PAGE, SO_FAR, *(r.report_name for r in wanted if r.report_name)]
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
        for request in wanted:
            if request.config.trace is not None:
                check_file(Path(request.config.trace), taken=taken, flag="--trace")
            if (kept := getattr(request.config, "checkpoint", None)) and not getattr(request.config, "resumed", False):
                checkpoint_folder(kept, not_in=folders[0].path).remove_if_empty()
            if (submission := request.config.submission_folder) is not None:
                folders.append(empty_folder(submission, "--submit", not_in=folders[0].path))
    except UsageError:
        _remove_if_empty(folders)
        raise
    return folders


def _remove_if_empty(folders: list[Folder]) -> None:
    for folder in reversed(folders):  # one may stand in the other
        folder.remove_if_empty()


def _run_all(
    name: str, wanted: list[Request], folders: list[Folder], argv: list[str], session: Session, onlookers: RunObservers
) -> int:
    from mxpeak.cli.observers import stalls_noticed
    from mxpeak.options import stall_limits

    with stalls_noticed(stall_limits(wanted[0].config.watchdog), session) as watchdog:
        return _run_watched(name, wanted, folders, argv, session, onlookers, watchdog)


def _run_watched(
    name: str,
    wanted: list[Request],
    folders: list[Folder],
    argv: list[str],
    session: Session,
    onlookers: RunObservers,
    watchdog: Watchdog | None,
) -> int:
    from mxpeak.cli.output import FaultTolerantStream
    from mxpeak.cli.partial_results import SoFarFile
    from mxpeak.watch.watchdog import WRITING

    stdout, stderr = FaultTolerantStream(sys.stdout), FaultTolerantStream(sys.stderr)
    displays: list[Display] = []
    codes: list[int] = []
    so_far = SoFarFile(folders[0], session) if session.rank == 0 else None
    try:
        for request, comm in turns(wanted, session, lambda: _first_problem(displays)):
            codes.append(_run_one(request, comm, argv, session, stdout, stderr, onlookers, displays, so_far, watchdog))
    except BaseException:  # a signal, or an error of this rank alone
        if so_far is not None:
            _finish(name, displays, folders, session, stdout)  # with what is known so far
            so_far.clear()
        raise
    if watchdog is not None:
        watchdog.phase = WRITING
    if so_far is not None:
        codes.append(_finish(name, displays, folders, session, stdout))
        so_far.clear()
        codes.append(onlookers.trouble(session))
    assert session.comm is not None
    code = int(session.comm.bcast_object(_worst(codes)))
    onlookers.close(code)
    return code


def _simulated(request: Request, comm: Communicator, session: Session) -> Simulated:
    """What to expect of LU's cases where no --baseline says it, and somebody sees it."""
    from mxpeak.cli.baseline import simulated

    if getattr(request.config, "baseline", "none to have") is not None:
        return lambda case: None
    return simulated(request, comm, session.say)


def _first_problem(displays: list[Display]) -> Mapping[str, Any] | None:
    """The problem of a series on its fewest ranks, if its result is valid."""
    return next((result.problem for result in displays[0].results if result.passed), None)


def _run_one(
    request: Request,
    comm: Communicator,
    argv: list[str],
    session: Session,
    stdout: FaultTolerantStream,
    stderr: FaultTolerantStream,
    onlookers: RunObservers,
    displays: list[Display],
    so_far: SoFarFile | None,
    watchdog: Watchdog | None,
) -> int:
    """Run one benchmark, with a display of its own; an error that all ranks raise ends it alone."""
    display, progress = _display(request, comm.size, session, stdout, stderr)
    displays.append(display)
    watched = onlookers.of_benchmark(request, progress, _simulated(request, comm, session))

    def on_case(case: Any, result: Result | None) -> None:
        display.on_case(case, result)
        onlookers.end(result)
        on_sample()

    def on_sample(under_way: Callable[[], Result] | None = None) -> None:
        if so_far is not None:
            so_far.keep([one for shown in displays for one in shown.results], under_way)

    session.grace_s = GRACE_S if getattr(request.config, "checkpoint", None) is not None else 0.0
    try:
        module = import_module(request.benchmark.module)
        _say_notes(request, module, comm, session)
        with closing(progress):
            module.run(
                request.config,
                comm,
                settings=request.settings,
                benchmark=request.benchmark.name,
                observers=watched.observers if session.rank == 0 else [],
                on_begin=watched.begin,
                on_case=on_case,
                on_note=lambda text: None if request.output.quiet else session.say(f"note: {text}"),
                on_sample=on_sample,
                **({} if watchdog is None else {"follow": watchdog.follow}),
                stop=watched.reason,
                ending=lambda: session.ending,
                argv=argv,
            )
        code = _verdict_code(display.results, display.skipped)
    except MxpeakError as error:
        session.say(f"mxpeak: error: {error}")
        code = int(error.exit_code)
    display.close()
    return code


def _display(
    request: Request, ranks: int, session: Session, stdout: FaultTolerantStream, stderr: FaultTolerantStream
) -> tuple[Display, Progress | PlainProgress]:
    """How results and progress of one benchmark are shown."""
    from mxpeak.cli.display import Display, PlainProgress
    from mxpeak.watch.progress import Progress, is_terminal

    output = request.output
    color = output.color == "always" or (output.color == "auto" and is_terminal(sys.stdout, os.environ))
    mode = "never" if output.quiet or session.rank != 0 else output.progress
    kind = Progress if request.benchmark.in_flops else PlainProgress
    progress = kind(sys.stderr, os.environ, mode)
    rows_only = request.among and not output.verbose and not output.quiet
    return Display(request, ranks, progress, stdout, stderr, color, terminal_width(sys.stdout), rows_only), progress


def _say_notes(request: Request, module: ModuleType, comm: Communicator, session: Session) -> None:
    """What is to be known before the run: of its settings, and of rules that it will break.  Collective."""
    if request.output.quiet:
        return
    for line in request.notes:
        session.say(f"note: {line}")
    if hasattr(module, "forewarnings") and (request.output.verbose or not request.among):
        for line in module.forewarnings(request.config, comm):
            session.say(f"note: {line}")


def _verdict_code(results: list[Result], skipped: int) -> int:
    """How a run that came to its end went, as rank 0 sees it; one case that is fast enough will do."""
    if any(r.status == "invalid" for r in results):
        return ExitCode.FAILED
    if any(r.status == "aborted" for r in results):
        return ExitCode.GUARD
    if skipped:
        return ExitCode.RESOURCE
    return ExitCode.BELOW_TARGET if results and all(r.status == "slow" for r in results) else ExitCode.VALID


def _worst(codes: list[int]) -> int:
    """The code of several runs: a bug or a mistake before a failed check before a slow run before a good one."""
    order = (ExitCode.BUG, ExitCode.USAGE, ExitCode.FAILED, ExitCode.GUARD, ExitCode.RESOURCE, ExitCode.BELOW_TARGET)
    return next((code for code in order if code in codes), ExitCode.VALID)


def _finish(
    name: str, displays: list[Display], folders: list[Folder], session: Session, stdout: FaultTolerantStream
) -> int:
    """Show the whole and write the files; what cannot be written is said, and stands on stdout all the same."""
    from mxpeak.report.html import html_report

    results = [r for display in displays for r in display.results]
    if not results and not any(display.skipped for display in displays):
        return ExitCode.VALID
    output = displays[0].request.output
    cases = len(results) + sum(display.skipped for display in displays)
    traces = _traces(displays)
    body = document(results, several=name == "all" or cases > 1)
    try:
        body |= _study(displays)
    finally:  # the result comes first, so that no later failure loses a finished run
        text = to_json(body)
        error = _write_result(folders[0], text)
    if output.json == "-":
        stdout.say(text)
    elif displays[0].request.stdout_format == "text" and not output.quiet and (name == "all" or cases > 1):
        stdout.say(_overview(name, body, displays, folders[0]))
    files = {display.request.report_name: display.report for display in displays if display.report}
    files[PAGE] = html_report(body)
    codes = [_write(folders[0], files, text, error, output, session, stdout), _write_traces(traces, session)]
    code, files = _worst(codes), {RESULT: text, **files}
    for folder in folders[1:]:
        code = _worst([code, _submit(folder, files, displays, session)])
    return code


def _study(displays: list[Display]) -> dict[str, Any]:
    """The section of a series over counts of ranks; nothing where there is none."""
    request = displays[0].request
    if request.of_ranks is None:
        return {}
    runs = [(one.request.of_ranks or 0, next(iter(one.results), None)) for one in displays]
    return {"study": section(request, runs)}


def _overview(name: str, body: dict[str, Any], displays: list[Display], folder: Folder) -> str:
    """All results at one glance: a scoreboard of benchmarks, the table of a series over ranks, or of a sweep."""
    from mxpeak.report.scaling import study_table
    from mxpeak.report.scoreboard import scoreboard, sweep
    from mxpeak.watch.progress import duration

    shown, results = displays[0], [result for display in displays for result in display.results]
    if "study" in body:
        return "\n" + study_table(body["study"])
    if name != "all":
        return "\n" + sweep(results, color=shown.color, width=shown.width)
    begun = min((r.run.get("start_unix") or 0.0 for r in results), default=0.0)
    ended = max((r.run.get("end_unix") or 0.0 for r in results), default=0.0)
    quick = bool(shown.request.config.quick)
    sizes = [*(["quick sizes"] * quick), duration(ended - begun)]
    lost = [one.request.benchmark.name for one in displays if one.skipped or not one.results]
    return ("" if shown.rows_only else "\n") + scoreboard(
        results,
        color=shown.color,
        page="" if folder.missing else str(folder.path / PAGE),
        sizes=sizes,
        lost=lost,
        quick=quick,
        verbose=shown.request.output.verbose,
    )


def _traces(displays: list[Display]) -> dict[str, list[tuple[str, list[Any]]]]:
    """The timelines of the cases, by the files that they go to; they are no part of the result file."""
    from mxpeak.report.summaries import case_text

    found: dict[str, list[tuple[str, list[Any]]]] = {}
    for display in displays:
        for result in display.results:
            events = result.telemetry.pop("trace", None)
            if display.request.config.trace is not None and events is not None:
                title = f"{result.benchmark} {case_text(result)}"
                found.setdefault(display.request.config.trace, []).append((title, events))
    return found


def _write_traces(traces: dict[str, list[tuple[str, list[Any]]]], session: Session) -> int:
    from mxpeak.cli.output import write_new
    from mxpeak.report.trace import chrome_trace

    for path, cases in traces.items():
        try:
            write_new(Path(path), chrome_trace(cases))
        except OSError as error:
            session.say(f"mxpeak: error: cannot write --trace {path}: {error.strerror}")
            return ExitCode.RESOURCE
    return ExitCode.VALID


def _submit(folder: Folder, files: dict[str, str], displays: list[Display], session: Session) -> int:
    """Write the fields of the list's form, and beside them the files of the run that they speak of."""
    display = next(display for display in displays if display.request.config.submission_folder is not None)
    if all(result.status == "aborted" for result in display.results):  # nothing that a list could take
        return ExitCode.VALID
    others = [r for one in displays for r in one.results if one is not display]
    submission_files = load(display.request.benchmark.submission)
    files = {**files, **submission_files(display.results, others, display.request.report_name)}
    try:
        for file, text in files.items():
            folder.write(file, text)
    except OSError as error:
        session.say(f"mxpeak: error: cannot write {error.filename or folder.path}: {error.strerror}")
        return ExitCode.RESOURCE
    if not display.request.output.quiet:
        session.say(f"submission in {folder.path}/")
    return ExitCode.VALID


def _write_result(folder: Folder, text: str) -> OSError | None:
    """Write the result file; return the error if it cannot be written."""
    try:
        folder.write(RESULT, text)
    except OSError as error:
        return error
    return None


def _write(
    folder: Folder,
    files: dict[str, str],
    result: str,
    error: OSError | None,
    output: OutputConfig,
    session: Session,
    stdout: FaultTolerantStream,
) -> int:
    """Write the other files of a run, print their paths, or report `error` or an error of the writes."""
    from mxpeak.cli.output import write_new

    try:
        if error is not None:
            raise error
        if output.json not in (None, "-"):
            write_new(Path(output.json or ""), result)
        for file, text in files.items():
            folder.write(file, text)
    except OSError as error:
        session.say(
            f"mxpeak: error: cannot write {error.filename or folder.path}: {error.strerror}; "
            "the result is on stdout only"
        )
        return ExitCode.RESOURCE
    if not output.quiet:
        session.say(folder.said(output.json or ""))
    if isinstance(stdout.error, BrokenPipeError) and not folder.missing:
        return ExitCode.VALID  # the reader has seen enough; the files are whole
    if stdout.error is not None:
        instead = "" if folder.missing else f"; see {folder.path}/{RESULT}"
        session.say(f"mxpeak: error: cannot write to stdout: {stdout.error.strerror}{instead}")
        return ExitCode.RESOURCE
    return ExitCode.VALID
