"""mxpeak report FILE…: write the results of one or several runs as one page or as a table."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from datetime import datetime
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from mxpeak.bench.registry import BENCHMARKS, Benchmark, ReportFormat, load
from mxpeak.cli.run_history import results_in, run_file
from mxpeak.errors import ExitCode, UsageError
from mxpeak.foreign import printable
from mxpeak.options import options, path_name
from mxpeak.records import SCHEMA_RESULTS, Result

if TYPE_CHECKING:
    from mxpeak.cli.session import Session

EXAMPLES = """\
examples:
  mxpeak report last
  mxpeak report mxpeak-out/*/result.json --out all.html
  mxpeak report previous last --format markdown
  mxpeak report HPL.out --format csv --out hpl.csv

FILE is a results folder, a result file, or a report from another program (HPL,
rocHPL, NVIDIA, HPCG, HPG-MxP). It can also be 'last' or 'previous' (in
mxpeak-out/), or 'baseline' (see mxpeak baseline).
"""
#: The output file without --out, by format; - is stdout.
TARGETS = {"html": "report.html", "markdown": "-", "csv": "-"}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `report`."""
    parser.description = "Write the results of one or more runs as an HTML page, a Markdown table or CSV."
    parser.epilog = EXAMPLES
    parser.add_argument(
        "files",
        nargs="+",
        type=path_name,
        metavar="FILE",
        help="a results folder, a result file, 'last', 'previous' or 'baseline'",
    )
    parser.add_argument(
        "--format",
        choices=[*TARGETS, *dict.fromkeys(b.report.format for b in BENCHMARKS.values() if b.report)],
        default="html",
        metavar=f"{{{','.join(TARGETS)}}}",
        help="output format: html, markdown, csv or the benchmark's own (default: html)",
    )
    parser.add_argument(
        "--out",
        type=path_name,
        metavar="FILE",
        help="output file, or - for stdout (default: report.html, or stdout for tables)",
    )
    parser.set_defaults(action=report)


def report(args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Write a report on one or several runs; all ranks read the results, and rank 0 prints or writes the report."""
    from mxpeak.cli.output import check_file, write_new

    paths = [run_file(name) for name in args.files]
    results = [(_name(path), result) for path in paths for result in results_in(path)]
    target = args.out or TARGETS.get(args.format, "-")
    if target != "-":
        check_file(Path(target), flag="--out")
    text = _text(args.format, results)
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

        body = {"schema": SCHEMA_RESULTS, "results": [result for _, result in results]}
        return html_report(body, [name for name, _ in results])
    if form in TARGETS:
        from mxpeak.report.tables import comma_separated, markdown

        return {"markdown": markdown, "csv": comma_separated}[form](results)
    return _native_report(form, [result for _, result in results])


def _native_report(form: str, results: Sequence[Mapping[str, Any]]) -> str:
    """Return the results of one benchmark in its own report format; raise a UsageError for another format."""
    names = dict.fromkeys(str(result.get("benchmark")) for result in results)
    benchmark = BENCHMARKS.get(next(iter(names), ""))
    if benchmark is None or benchmark.report is None or len(names) > 1 or benchmark.report.format != form:
        raise UsageError(f"--format {form} does not apply to results of {', '.join(names)}; use {', '.join(TARGETS)}")
    cases = list(map(Result.from_dict, results))
    if not cases[0].config:
        raise UsageError(
            f"--format {form} needs the settings of the run, but the file does not contain them; use --format "
            f"{', '.join(TARGETS)}"
        )
    try:
        return _written(benchmark, benchmark.report, cases)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UsageError(f"the file has an incomplete result: {error!r}; use the result.json of a run") from None


def _written(benchmark: Benchmark, own: ReportFormat, cases: Sequence[Result]) -> str:
    """Return the results as a report in the format of the benchmark's original code."""
    values = {o.name: cases[0].config.get(o.name, {}).get("value") for o in options(benchmark.config)}
    config = benchmark.config(**{name: _frozen(value) for name, value in values.items() if value is not None})
    settings = config.as_run(SimpleNamespace(**cases[0].problem), cases[0].launch.get("ranks", 1))
    stream = StringIO()
    report = load(own.writer)(stream, settings, datetime.fromtimestamp(cases[0].run.get("start_unix", 0)))
    report.header()
    for case in cases:
        report.case(case)
    report.footer(sum(case.passed for case in cases), sum(case.status == "invalid" for case in cases), 0)
    return stream.getvalue()


def _frozen(value: Any) -> Any:
    """Return a JSON value with tuples instead of lists, as in a configuration."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _name(path: Path) -> str:
    """Return the name of a run: the name of its folder, or the path if the file is not named result.json."""
    return path.parent.name if path.name == "result.json" and path.parent.name else str(path)
