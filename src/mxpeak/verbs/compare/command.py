"""`mxpeak compare`: compare two runs, two scans, or two commands that run alternately."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxpeak.cli.run_history import results_in, run_file
from mxpeak.configs.run import CI_FORMATS
from mxpeak.errors import ExitCode, UsageError
from mxpeak.options import integer, path_name, share

if TYPE_CHECKING:
    from mxpeak.cli.session import Session

EXAMPLES = """\
examples:
  mxpeak compare previous last
  mxpeak compare baseline last --tolerance 3%
  mxpeak compare HPL.out mxpeak-out/20261123T065303Z-all-fe67b4
  mxpeak compare old.json new.json --json -
  mxpeak compare before-update/scan.json after-update/scan.json
  mxpeak compare --rounds 5 'mxpeak run hpl -N 8000 --nb 128' 'mxpeak run hpl -N 8000 --nb 192'
  mxpeak compare --rounds 7 'old/bin/mxpeak run hpl -N 8000' 'new/bin/mxpeak run hpl -N 8000'

A and B can be:
  results folders, result files, or scans (compared node by node)
  reports from other programs (HPL, rocHPL, NVIDIA, HPCG, HPG-MxP)
  'last', 'previous' (the newest earlier run with a case of 'last') or
  'baseline' (see mxpeak baseline)

With --rounds, A and B are quoted commands that run alternately, so that a change
in machine speed affects both. mxpeak ignores the first run of each command and
compares the medians. The noise is half the width of the 90 % confidence interval
of the ratio B/A.

The exit code is 2 if the runs have no case in common, 4 if a case fails or is
slower by more than --tolerance and the noise, and otherwise 0. A change is
AMBIGUOUS if a run was timed only once; use --repeat 3 in both runs.
"""
#: Default of --tolerance for two recorded runs, and for runs that alternate, which resolve smaller changes.
TOLERANCE, IN_TURNS = 0.05, 0.01


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `compare`."""
    parser.description = "Compare two runs, or two scans node by node."
    parser.epilog = EXAMPLES
    parser.add_argument("--json", type=path_name, metavar="FILE", help="write JSON to FILE; use - to print only JSON")
    parser.add_argument(
        "--format",
        choices=["text", *CI_FORMATS],
        default="text",
        metavar="{text,junit,bencher}",
        help="format on stdout: text, junit or bencher (default: text)",
    )
    parser.set_defaults(action=compare)
    parser.add_argument("before", type=path_name, metavar="A", help="reference run")
    parser.add_argument("after", type=path_name, metavar="B", help="run to compare with A")
    parser.add_argument(
        "--tolerance",
        type=share,
        metavar="5%",
        help="ignore changes smaller than this (default: 5%%, or 1%% with --rounds)",
    )
    parser.add_argument(
        "--rounds", type=integer(2, 1000), metavar="K", help="run the commands A and B alternately, K times each"
    )


def compare(args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Compare two recorded runs, or run two commands alternately and compare them.

    Rank 0 prints the comparison. All ranks return the same exit code.
    """
    if args.json == "-" and args.format != "text":
        raise UsageError(f"--json - and --format {args.format} both write to stdout; use --json FILE")
    if args.rounds is not None:
        return _in_turns(args, session)
    from mxpeak.report.compare import (
        alone,
        body_of,
        compared,
        differences,
        not_comparable,
        nothing_in_common,
        pairs,
        text_of,
    )
    from mxpeak.report.importers import CONVERTED, CONVERTED_TEXT, warned_of

    tolerance = TOLERANCE if args.tolerance is None else args.tolerance
    paths = [run_file(name) for name in (args.before, args.after)]
    before, after = (results_in(path) for path in paths)
    if scans := [path for path, results in zip(paths, (before, after)) if _is_scan(results)]:
        if len(scans) == 1:
            other = next(path for path in paths if path not in scans)
            raise UsageError(f"{scans[0]} is a scan, but {other} is not; use two scans or two runs")
        return _fleets(paths, before[0], after[0], args, session)
    same = list(pairs(before, after))
    if not same:
        raise UsageError(nothing_in_common([str(path) for path in paths], before, after))
    changes, different = compared(before, after, tolerance), _merged([differences(*pair) for pair in same])
    only, skipped = alone(before, after), not_comparable(before, after)
    for path, results in zip(paths, (before, after)):
        if any(warned_of(result, CONVERTED) for result in results):
            session.log(f"note: {path}: {CONVERTED_TEXT}")
    if session.rank == 0:
        body = body_of(changes, different, [str(path) for path in paths], tolerance, only, skipped)
        _show(body, text_of(changes, different, only, skipped), args)
    return ExitCode.BELOW_TARGET if any(change.regressed for change in changes) else ExitCode.VALID


def _show(body: Mapping[str, Any], text: str, args: argparse.Namespace, *, checked: bool = False) -> None:
    """Print the comparison in the format of --format, and write it to the file of --json.

    `checked` means that the path of the file was free before the runs.
    """
    from mxpeak.cli.output import show
    from mxpeak.report.ci import cases_of_comparison, formatted

    text = text if args.format == "text" else formatted(args.format, cases_of_comparison(body))
    show(body, text, args.json, checked=checked)


def _is_scan(results: Sequence[Mapping[str, Any]]) -> bool:
    return [result.get("benchmark") for result in results] == ["scan"]


def _fleets(
    paths: Sequence[Path],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    args: argparse.Namespace,
    session: Session,
) -> int:
    """Compare two scans node by node, print and write the comparison on rank 0, and return the exit code."""
    from mxpeak.report.compare import differences
    from mxpeak.report.scans import scan_of_result
    from mxpeak.verbs.compare.fleet import compared_fleets
    from mxpeak.verbs.compare.fleet_table import fleet_body, fleet_text

    tolerance, names = TOLERANCE if args.tolerance is None else args.tolerance, list(map(str, paths))
    fleet = compared_fleets(names, scan_of_result(before), scan_of_result(after), tolerance)
    different = differences(before, after)
    if session.rank == 0:
        _show(fleet_body(fleet, different, names, tolerance), fleet_text(fleet, different), args)
    return ExitCode.BELOW_TARGET if any(node.regressed for node in fleet.nodes) else ExitCode.VALID


def _in_turns(args: argparse.Namespace, session: Session) -> int:
    """Run two commands alternately, print and write the comparison of their median rates, and return the exit code."""
    from mxpeak.cli.output import check_file
    from mxpeak.report.compare import alone, body_of, differences, not_comparable, pairs, text_of
    from mxpeak.verbs.compare.interleaved import EndedError, run_in_turns
    from mxpeak.verbs.compare.interleaved_table import compared_in_turns

    if args.json not in (None, "-"):
        check_file(Path(args.json))
    try:
        first, second, folder = run_in_turns((args.before, args.after), args.rounds, session)
    except EndedError as ended:
        return ended.code
    tolerance = IN_TURNS if args.tolerance is None else args.tolerance
    changes, rates = compared_in_turns(first.rounds, second.rounds, tolerance)
    last = first.rounds[-1], second.rounds[-1]
    different, only = _merged([differences(*pair) for pair in pairs(*last)]), alone(*last)
    skipped = not_comparable(*last)
    body = body_of(changes, different, [first.text, second.text], tolerance, only, skipped)
    text = text_of(changes, different, only, skipped)
    text += f"  before: {first.text}\n  after:  {second.text}\n  medians of {args.rounds} rounds; runs in {folder}/\n"
    _show({**body, "rounds": rates, "folder": str(folder)}, text, args, checked=True)
    return ExitCode.BELOW_TARGET if any(change.regressed for change in changes) else ExitCode.VALID


def _merged(differences: Sequence[Mapping[str, Sequence[str]]]) -> dict[str, list[str]]:
    """Merge the differences of several cases into one dictionary, and remove duplicate lines."""
    names = dict.fromkeys(name for case in differences for name in case)
    return {name: list(dict.fromkeys(line for case in differences for line in case.get(name, ()))) for name in names}
