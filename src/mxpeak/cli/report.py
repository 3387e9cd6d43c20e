"""mxpeak report FILE…: results of one run or of several as one page, or as a table."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxpeak.cli.run_history import results_in, run_file
from mxpeak.errors import ExitCode
from mxpeak.foreign import printable
from mxpeak.records import SCHEMA_RESULTS

if TYPE_CHECKING:
    from mxpeak.cli.session import Session

EXAMPLES = """\
examples:
  mxpeak report last
  mxpeak report mxpeak-out/*/result.json --out all.html
  mxpeak report previous last --format markdown
  mxpeak report HPL.out --format csv --out hpl.csv

FILE is a results folder, a result file, or a report from another program (HPL, rocHPL, NVIDIA, HPCG, HPG-MxP).
It can also be 'last' or 'previous' (in mxpeak-out/), or 'baseline' (see mxpeak baseline).
"""
#: What is written where --out does not say it.
TARGETS = {"html": "report.html", "markdown": "-", "csv": "-"}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `report`."""
    parser.description = "Write the results of one or more runs as an HTML page, a Markdown table or CSV."
    parser.epilog = EXAMPLES
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="a results folder, a result file, 'last', 'previous' or 'baseline'"
    )
    parser.add_argument(
        "--format", choices=list(TARGETS), default="html", help="output format: html, markdown or csv (default: html)"
    )
    parser.add_argument(
        "--out", metavar="FILE", help="output file, or - for stdout (default: report.html, or stdout for tables)"
    )
    parser.set_defaults(action=report)


def report(args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Write the results of some runs; all ranks read, so that all end with the same code, and one writes."""
    from mxpeak.cli.output import check_file, write_new

    target = args.out or TARGETS[args.format]
    if target != "-":
        check_file(Path(target), flag="--out")
    paths = [run_file(name) for name in args.files]
    text = _text(args.format, [(_name(path), one) for path in paths for one in results_in(path)])
    if session.rank != 0:
        return ExitCode.VALID
    if target == "-":
        print(text, end="")
    else:
        write_new(Path(target), text)
        print(printable(f"{target}: {len(paths)} run{'s' * (len(paths) != 1)}"))
    return ExitCode.VALID


def _text(form: str, results: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    if form == "html":
        from mxpeak.report.html import html_report

        body = {"schema": SCHEMA_RESULTS, "results": [one for _, one in results]}
        return html_report(body, [name for name, _ in results])
    from mxpeak.report.tables import comma_separated, markdown

    return {"markdown": markdown, "csv": comma_separated}[form](results)


def _name(path: Path) -> str:
    """What tells a run from others: its folder, or the file where that has a name of its own."""
    return path.parent.name if path.name == "result.json" and path.parent.name else str(path)
