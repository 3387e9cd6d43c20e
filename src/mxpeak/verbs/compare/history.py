"""`mxpeak history`: list past runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxpeak.bench.registry import BENCHMARKS
from mxpeak.cli.run_history import OUT, check_readable, read_results, result_files
from mxpeak.errors import ExitCode
from mxpeak.options import integer, path_name
from mxpeak.runtime.parent_watch import terminal_width

if TYPE_CHECKING:
    from mxpeak.cli.session import Session

EXAMPLES = """\
examples:
  mxpeak history
  mxpeak history hpl --last 50 --json -
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `history`."""
    names = [*BENCHMARKS, "scan"]
    parser.description = "List past runs and scans."
    parser.epilog = EXAMPLES
    parser.add_argument("--json", type=path_name, metavar="FILE", help="write JSON to FILE; use - to print only JSON")
    parser.add_argument(
        "benchmark", nargs="?", choices=names, metavar="BENCHMARK", help=f"benchmark: {', '.join(names)}"
    )
    parser.add_argument(
        "--last", type=integer(1), default=20, metavar="K", help="show the last K results (default: 20)"
    )
    parser.set_defaults(action=history)


def history(args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Print the newest results of past runs on rank 0."""
    if session.rank != 0:
        return ExitCode.VALID
    from mxpeak.cli.output import show
    from mxpeak.report.columns import table
    from mxpeak.report.compare import row_of

    results: list[tuple[Path, Mapping[str, Any]]] = []
    for path in result_files():  # newest first, until the limit is reached
        here = [result for result in read_results(path) if args.benchmark in (None, result.get("benchmark"))]
        results = [*((path, result) for result in here), *results]
        if len(results) >= args.last:
            break
    if not results:
        check_readable()
    results = results[-args.last :]
    rows = [["when (UTC)", "benchmark", "case", "rate", "of limit", "status", "folder"]]
    rows += [row_of(result, _when(result), path.parent.name) for path, result in results]
    kept = ("benchmark", "status", "problem", "result")
    listed = [
        {"file": str(path), "start": _when(result), **{k: result.get(k) for k in kept}} for path, result in results
    ]
    width = terminal_width(sys.stdout)
    text = table(rows, width=width, least=(6, 4, 5)) if results else f"no results in {OUT}/\n"
    if any(row[4].endswith("*") for row in rows):
        text += "  * uncertain, because the machine's speed changed during the run\n"
    show({"schema": "mxpeak.history/1", "results": listed}, text, args.json)
    return ExitCode.VALID


def _when(result: Mapping[str, Any]) -> str:
    start: Any = (result.get("run") or {}).get("start_unix")
    try:
        return f"{datetime.fromtimestamp(start, UTC):%Y-%m-%d %H:%M}"
    except (TypeError, ValueError, OverflowError, OSError):  # no start time, or one outside the calendar
        return ""
