"""`mxpeak scan`: run a small benchmark on all devices or groups of cores, and report the slow and faulty ones."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxpeak.cli.config_file import read_toml, values_for
from mxpeak.cli.ranks import join_ranks, read_on_root
from mxpeak.cli.request import add_options, check_variables
from mxpeak.cli.run_history import KEPT_BASELINE, RESULT
from mxpeak.errors import ExitCode, MxpeakError, UsageError, most_severe
from mxpeak.options import Run, Setting, options, path_name, resolve, run_of, stall_limits
from mxpeak.records import to_json
from mxpeak.verbs.scan.config import PROFILES, ScanConfig, ScanOutput

if TYPE_CHECKING:
    from mxpeak.cli.output import Folder, ResultWriter
    from mxpeak.cli.session import Session
    from mxpeak.watch.prometheus import Metrics

#: Files in the results folder: the page, and the script of --write-drain.
PAGE, DRAIN = "report.html", "drain.sh"

EXAMPLES = """\
examples:
  mxpeak scan
  mxpeak scan --ranks 8 --rounds 9 --tolerance 3%
  srun mxpeak scan --json scan.json --write-exclude exclude.txt
  mpiexec -n 64 mxpeak scan --write-exclude slow.txt --exclude-format hostfile
  srun --ntasks-per-node 8 mxpeak scan --links --min-link 20GB/s
  srun --ntasks-per-node 8 mxpeak scan --unit group --group 2,4
  srun mxpeak scan --against gpu-nodes.json --write-drain slurm

mxpeak stores the results in a new folder in mxpeak-out/, which history, report,
compare and baseline accept. The exit code is 0 if all ranks agree, 3 if a rank is
slow, its results differ, or the scan cannot decide, and 6 if a rank makes no
progress.
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `scan`."""
    parser.description = (
        "Run HPL or the LU of HPL-MxP, matrix products and memory reads on all devices, groups of cores or nodes. "
        "Report slow and wrong ones. With --links, also measure the links between them."
    )
    parser.epilog = EXAMPLES
    add_options(parser, ScanConfig)
    add_options(parser, ScanOutput)
    parser.add_argument("--config", type=path_name, metavar="FILE", help="read settings from a TOML file")
    parser.set_defaults(action=scan)


@dataclass(frozen=True, kw_only=True)
class ScanRun(Run[ScanConfig]):
    """Configuration and output options of a scan."""

    output: ScanOutput


def scan_settings(args: argparse.Namespace, environ: Mapping[str, str]) -> ScanRun:
    """Return the settings of a scan from flags, variables and the --config file, in this order of precedence."""
    check_variables(environ)
    file = args.config or environ.get("MXPEAK_CONFIG")
    values = values_for("scan", read_toml(file)) if file else {}
    shown = {o.name for o in options(ScanOutput)}
    settings = resolve(ScanConfig, vars(args), environ, {k: v for k, v in values.items() if k not in shown})
    output = resolve(ScanOutput, vars(args), environ, {k: v for k, v in values.items() if k in shown})
    profile = PROFILES.get(settings["profile"].value or "", {})
    settings |= {
        name: Setting(value, "profile") for name, value in profile.items() if settings[name].origin == "default"
    }
    run, shown_as = run_of(ScanConfig, settings), run_of(ScanOutput, output).config
    if run.config.against is None:
        run.config.check_precision()
    _check_flags(run)
    shown_as.check_progress()
    return ScanRun(config=run.config, origins=run.origins, output=shown_as)


def _check_flags(run: Run[ScanConfig]) -> None:
    """Raise a UsageError for a flag that has no effect with the other settings, or an --nb that exceeds -N."""
    n, nb = run.config.n, run.config.nb
    if n is not None and nb > n and run.origins["nb"] == "flag":
        raise UsageError(
            f"--nb {nb} exceeds -N {n}, so the matrix has {n}/{nb} = {n / nb:.2g} blocks per side; use --nb {n} or "
            f"less, or -N {nb} or more"
        )
    if run.config.unit != "group" and run.origins["group"] == "flag":
        raise UsageError(f"--group has no effect with --unit {run.config.unit}; use --unit group, or remove --group")
    for name in ("min_link", "link_tolerance"):
        if not run.config.links and run.origins[name] == "flag":
            raise UsageError(f"--{name.replace('_', '-')} has no effect without --links; add --links")


def scan(args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Scan the ranks of a launcher or of this host, and return the exit code. Collective when the ranks run."""
    wanted = read_on_root(args, session, lambda: scan_settings(args, os.environ))
    from mxpeak.runtime.placement import parts_here

    code = join_ranks(wanted.config, argv, session, local_ranks=parts_here)
    return _scan(wanted, argv, session) if code is None else code


def _with_baseline(wanted: ScanRun) -> tuple[ScanRun, Mapping[str, Any] | None]:
    """Return the run with the problem of its baseline, and the baseline, or None without one.

    Raise a UsageError if the user has set another problem.
    """
    if wanted.config.against is None:
        return wanted, None
    from mxpeak.verbs.scan.baseline import ADDED, PROBLEM, read_baseline, unit_of

    name = KEPT_BASELINE if wanted.config.against == "baseline" else wanted.config.against
    baseline = read_baseline(str(name))
    known = {**ADDED, **baseline["problem"]}
    problem = {key: known[key] for key in PROBLEM if key != "unit_ranks"}  # follows from the ranks
    for key, value in problem.items():
        own = getattr(wanted.config, key)
        if not wanted.is_default(key) and own != value:
            raise UsageError(f"--against {name} was measured with --{key} {value}, not {own}; remove --{key}")
    if (unit := unit_of(baseline)) != unit_of({"unit": wanted.config.unit}):
        raise UsageError(f"--against {name} was measured with --unit {unit}; use --unit {unit}")
    return wanted.with_choices(problem), baseline


def _prepare(output: ScanOutput) -> Folder:
    """Return the folder of the results; raise a UsageError if a file of the scan cannot be created."""
    from mxpeak.cli.output import check_file, results_folder

    if output.json == "-" and output.format != "text":
        raise UsageError(f"--json - and --format {output.format} both write to stdout; use --json FILE")
    names = [RESULT, PAGE, *([DRAIN] if output.write_drain else [])]
    folder = results_folder(output.out, "scan", names, output.json)
    try:
        taken = [] if folder.missing else [folder.path / name for name in names]
        if output.json not in (None, "-"):
            check_file(Path(output.json or ""), taken)
            taken.append(Path(output.json or ""))
        if output.write_exclude is not None:
            check_file(Path(output.write_exclude), taken, "--write-exclude")
            taken.append(Path(output.write_exclude))
        if output.prometheus is not None:
            check_file(Path(output.prometheus), taken, "--prometheus", replaced=True)
        if output.write_drain and folder.missing:
            raise UsageError(
                f"--write-drain writes {DRAIN} into the results folder, but {folder.missing}; use --out DIR"
            )
    except MxpeakError:
        folder.close()
        raise
    return folder


def _scan(wanted: ScanRun, argv: list[str], session: Session) -> int:
    from mxpeak.cli.display import PlainProgress
    from mxpeak.cli.observers import metrics_of, stalls_noticed
    from mxpeak.report.scans import node_rates
    from mxpeak.verbs.scan.run import run_scan

    assert session.comm is not None
    wanted, baseline = session.on_root(lambda: _with_baseline(wanted))
    folder = session.on_root(lambda: _prepare(wanted.output))
    mode = wanted.output.progress_mode
    mode = "never" if session.rank != 0 else "always" if mode == "table" else mode
    progress = PlainProgress(sys.stderr, os.environ, mode, wanted.output.progress_interval)
    try:
        with (
            closing(progress),
            metrics_of(wanted.output.prometheus, "scan", session) as (metrics, devices),
            stalls_noticed(stall_limits(wanted.config.watchdog), session) as watchdog,
        ):
            observers = [progress, *([metrics] if metrics else [])] if session.rank == 0 else []
            follow = {} if watchdog is None else {"follow": watchdog.follow}
            hooks: Any = {"origins": wanted.origins, "observers": observers, "argv": argv, **follow}
            hooks |= {"on_devices": devices.watch} if devices else {}
            keep = partial(_show, output=wanted.output, folder=folder, session=session)
            body = run_scan(wanted.config, session.comm, baseline=baseline, keep=keep, **hooks)
            code = None if body is None else _show(body, wanted.output, folder, session)
            if devices:
                devices.close()
            if metrics and body is not None and code is not None:
                metrics.scan(body, node_rates(body["ranks"]))
                metrics.ended(code)
                code = most_severe([code, metrics_trouble(metrics, session)])
            if devices and not wanted.output.quiet:
                devices.log_missing(session)
            code = int(session.comm.bcast_object(code))
            session.comm.barrier()
            return code
    finally:
        if session.rank == 0:
            folder.close()


def metrics_trouble(metrics: Metrics, session: Session) -> int:
    """Print the write error of the metrics file, and return the exit code."""
    if metrics.error is None:
        return ExitCode.VALID
    session.log(f"mxpeak: error: cannot write --prometheus {metrics.path}: {metrics.error.strerror}")
    return ExitCode.RESOURCE


def _show(body: dict[str, Any], output: ScanOutput, folder: Folder, session: Session) -> int:
    """Print the result of the scan, write its files, and return the exit code."""
    from mxpeak.cli.output import FaultTolerantStream, ResultWriter
    from mxpeak.records import Caution, read_json
    from mxpeak.report.ci import cases_of_results, formatted
    from mxpeak.report.scan_text import scan_text, verdict
    from mxpeak.report.scans import result_of_scan
    from mxpeak.report.text import cautions

    stdout, writer, written = FaultTolerantStream(sys.stdout), ResultWriter(folder), to_json(body)
    if not folder.missing:
        writer.result(folder.path / RESULT, written)  # first, because printing may fail
    if output.json not in (None, "-"):
        writer.result(Path(output.json or ""), written)
    text = verdict(body) if output.quiet else scan_text(body)
    if output.format != "text" and output.json != "-":
        text = formatted(output.format, cases_of_results([result_of_scan(read_json(written))]))
    stdout.say(written if output.json == "-" else text)
    if not output.quiet:
        session.log(cautions([Caution(**warning) for warning in body["warnings"]]).rstrip("\n"))
    _write_more(body, written, output, writer)
    failed = ExitCode.VALID if body["status"] == "alike" else ExitCode.FAILED
    if (message := writer.message()) is not None:
        session.log(message)
        return most_severe([failed, ExitCode.RESOURCE])
    if not output.quiet:
        session.log(folder.location(output.json or ""))
    return most_severe([failed, stdout.exit_code(session.log, writer.stored)])


def _write_more(body: dict[str, Any], text: str, output: ScanOutput, writer: ResultWriter) -> None:
    """Write the exclude file, the page of the scan and, with --write-drain, the drain script."""
    from mxpeak.cli.output import write_new
    from mxpeak.records import SCHEMA_RESULTS, read_json
    from mxpeak.report.html import html_report
    from mxpeak.report.scans import result_of_scan
    from mxpeak.verbs.scan.actions import drain_script

    if output.write_exclude is not None:
        try:
            write_new(Path(output.write_exclude), excluded(body, output.exclude_format))
        except OSError as error:
            writer.error = writer.error or error
    writer.file(PAGE, html_report({"schema": SCHEMA_RESULTS, "results": [result_of_scan(read_json(text))]}))
    if output.write_drain:
        writer.file(DRAIN, drain_script(body["actions"]))


def excluded(body: Mapping[str, Any], form: str) -> str:
    """Return the content of an exclude file: a Slurm host list, or one host per line if `form` is `hostfile`."""
    hosts: list[str] = body["exclude"]["hosts"]
    lines = hosts if form == "hostfile" else [body["exclude"]["slurm"]] if hosts else []
    return "".join(f"{line}\n" for line in lines)
