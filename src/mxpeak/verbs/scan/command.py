"""`mxpeak scan`: run a small benchmark on all devices or groups of cores, and report the slow and faulty ones."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxpeak.cli.config_file import read_toml, values_for
from mxpeak.cli.ranks import join_ranks, read_on_root
from mxpeak.cli.request import add_options, check_variables
from mxpeak.errors import ExitCode
from mxpeak.options import Run, Setting, options, resolve, run_of
from mxpeak.records import to_json
from mxpeak.verbs.scan.config import PROFILES, ScanConfig, ScanOutput

if TYPE_CHECKING:
    from mxpeak.cli.session import Session

EXAMPLES = """\
examples:
  mxpeak scan
  mxpeak scan --ranks 8 --rounds 9 --tolerance 3%
  srun mxpeak scan --json scan.json --write-exclude exclude.txt
  mpiexec -n 64 mxpeak scan --write-exclude slow.txt --exclude-format hostfile
  srun --ntasks-per-node 8 mxpeak scan --links --min-link 20GB/s
  srun --ntasks-per-node 8 mxpeak scan --unit group --group 2,4

The exit code is 0 if all ranks agree, and 3 if a rank is slow, its results differ, or the scan cannot decide.
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `scan`."""
    parser.description = (
        "Run a small LU, matrix products and memory reads on all devices or groups of cores. Report slow "
        "ranks and ranks with different results. With --links, also measure the links between them."
    )
    parser.epilog = EXAMPLES
    add_options(parser, ScanConfig)
    add_options(parser, ScanOutput)
    parser.add_argument("--config", metavar="FILE", help="read settings from a TOML file")
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
    run = run_of(ScanConfig, settings)
    return ScanRun(config=run.config, origins=run.origins, output=run_of(ScanOutput, output).config)


def scan(args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Scan the ranks of a launcher or of this host, and return the exit code. Collective when the ranks run."""
    wanted = read_on_root(args, session, lambda: scan_settings(args, os.environ))
    from mxpeak.runtime.placement import parts_here

    code = join_ranks(wanted.config, argv, session, local_ranks=parts_here)
    return _scan(wanted, argv, session) if code is None else code


def _check_files(output: ScanOutput) -> None:
    """Raise a UsageError if a file of --json or --write-exclude cannot be created."""
    from mxpeak.cli.output import check_file

    written = [Path(output.json)] if output.json and output.json != "-" else []
    for path in written:
        check_file(path)
    if output.write_exclude is not None:
        check_file(Path(output.write_exclude), written, "--write-exclude")


def _scan(wanted: ScanRun, argv: list[str], session: Session) -> int:
    from mxpeak.cli.display import PlainProgress
    from mxpeak.verbs.scan.run import run

    assert session.comm is not None
    session.on_root(lambda: _check_files(wanted.output))
    mode = "never" if wanted.output.quiet or session.rank != 0 else wanted.output.progress
    progress = PlainProgress(sys.stderr, os.environ, "always" if mode == "table" else mode)
    with closing(progress):
        observers = [progress] if session.rank == 0 else []
        body = run(wanted.config, session.comm, origins=wanted.origins, observers=observers, argv=argv)
    code = None if body is None else _show(body, wanted.output, session)
    return int(session.comm.bcast_object(code))


def _show(body: dict[str, Any], output: ScanOutput, session: Session) -> int:
    """Print the result of the scan, write the JSON and exclude files, and return the exit code."""
    from mxpeak.cli.output import FaultTolerantStream, write_new
    from mxpeak.records import Caution
    from mxpeak.report.text import cautions
    from mxpeak.verbs.scan.report import scan_text, verdict

    stdout = FaultTolerantStream(sys.stdout)
    try:
        try:
            if output.json not in (None, "-"):
                write_new(Path(output.json or ""), to_json(body))  # first, because printing may fail
        finally:
            text = verdict(body) if output.quiet else scan_text(body)
            stdout.say(to_json(body) if output.json == "-" else text)
            if not output.quiet:
                session.log(cautions([Caution(**warning) for warning in body["warnings"]]).rstrip("\n"))
        if output.write_exclude is not None:
            write_new(Path(output.write_exclude), excluded(body, output.exclude_format))
    except OSError as error:
        session.log(f"mxpeak: error: cannot write {error.filename}: {error.strerror}")
        return ExitCode.RESOURCE
    failed = ExitCode.VALID if body["status"] == "alike" else ExitCode.FAILED
    return stdout.exit_code(session.log) or failed


def excluded(body: Mapping[str, Any], form: str) -> str:
    """Return the content of an exclude file: a Slurm host list, or one host per line if `form` is `hostfile`."""
    hosts: list[str] = body["exclude"]["hosts"]
    lines = hosts if form == "hostfile" else [body["exclude"]["slurm"]] if hosts else []
    return "".join(f"{line}\n" for line in lines)
