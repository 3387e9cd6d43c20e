"""mxpeak compare A B, mxpeak history, mxpeak baseline set: runs beside each other, and one after the other."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxpeak.bench.registry import BENCHMARKS
from mxpeak.cli.run_history import KEPT, OUT, read_results, result_files, results_in, run_file
from mxpeak.errors import ExitCode, UsageError
from mxpeak.foreign import printable
from mxpeak.options import integer, share
from mxpeak.records import PASSED, SCHEMA_RESULTS, to_json
from mxpeak.runtime.parent_watch import terminal_width

if TYPE_CHECKING:
    from mxpeak.cli.session import Session

COMPARE = """\
examples:
  mxpeak compare previous last
  mxpeak compare baseline last --tolerance 3%
  mxpeak compare HPL.out mxpeak-out/20261123T065303Z-all-fe67b4
  mxpeak compare old.json new.json --json -
  mxpeak compare --rounds 5 'mxpeak run hpl -N 8000 --nb 128' 'mxpeak run hpl -N 8000 --nb 192'
  mxpeak compare --rounds 7 'old/bin/mxpeak run hpl -N 8000' 'new/bin/mxpeak run hpl -N 8000'

A and B are results folders, result files, or reports from other programs (HPL, rocHPL, NVIDIA, HPCG, HPG-MxP).
They can also be 'last', 'previous' (the newest earlier run with a case of 'last') or 'baseline' (see mxpeak baseline).

With --rounds, A and B are quoted commands that run alternately, so that a change in machine speed affects both. mxpeak
ignores the first run of each command and compares the medians. The noise is the spread of the ratio B/A.

The exit code is 2 if the runs have no case in common, 4 if a case fails or is slower by more than --tolerance and the
noise, and otherwise 0. A change is AMBIGUOUS if a run was timed only once; use --repeat 3 in both runs.
"""
HISTORY = """\
examples:
  mxpeak history
  mxpeak history hpl --last 50 --json -
"""
BASELINE = """\
example:
  mxpeak baseline set last
"""
#: Change that counts where noise is less; runs that take turns show smaller ones than two that lie days apart.
TOLERANCE, IN_TURNS = 0.05, 0.01
JSON_HELP = "write JSON to FILE; use - to print only JSON"


def add_verb(verbs: Any) -> None:
    """Add `compare` to the command line."""
    parser = _verb(verbs, "compare", "compare two runs", COMPARE, compare)
    parser.add_argument("before", metavar="A", help="reference run")
    parser.add_argument("after", metavar="B", help="run to compare with A")
    parser.add_argument(
        "--tolerance",
        type=share,
        metavar="5%",
        help="ignore changes smaller than this (default: 5%%, or 1%% with --rounds)",
    )
    parser.add_argument(
        "--rounds", type=integer(2, 1000), metavar="K", help="run the commands A and B alternately, K times each"
    )


def add_history(verbs: Any) -> None:
    """Add `history` to the command line."""
    parser = _verb(verbs, "history", "list past runs", HISTORY, history)
    parser.add_argument(
        "benchmark",
        nargs="?",
        choices=list(BENCHMARKS),
        metavar="BENCHMARK",
        help=f"benchmark: {', '.join(BENCHMARKS)}",
    )
    parser.add_argument(
        "--last", type=integer(1), default=20, metavar="K", help="show the last K results (default: 20)"
    )


def add_baseline(verbs: Any) -> None:
    """Add `baseline` to the command line."""
    parser = _verb(verbs, "baseline", "store a run as the reference for compare", BASELINE, baseline, json_too=False)
    parser.add_argument("set", choices=["set"], metavar="set", help="store a run")
    parser.add_argument("result", metavar="RESULT", help="a results folder, a result file, 'last' or 'previous'")


def _verb(verbs: Any, name: str, summary: str, epilog: str, action: Any, *, json_too: bool = True) -> Any:
    parser = verbs.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", epilog=epilog)
    if json_too:
        parser.add_argument("--json", metavar="FILE", help=JSON_HELP)
    parser.set_defaults(action=action)
    return parser


# --- the verbs --------------------------------------------------------------------------------------------------


def compare(args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Set two runs side by side; all ranks end with the same code, and one speaks."""
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

    tolerance = TOLERANCE if args.tolerance is None else args.tolerance
    paths = [run_file(name) for name in (args.before, args.after)]
    before, after = (results_in(path) for path in paths)
    same = list(pairs(before, after))
    if not same:
        raise UsageError(nothing_in_common([str(path) for path in paths], before, after))
    changes, different = compared(before, after, tolerance), _merged([differences(*pair) for pair in same])
    only, skipped = alone(before, after), not_comparable(before, after)
    if session.rank == 0:
        _show(
            body_of(changes, different, [str(path) for path in paths], tolerance, only, skipped),
            text_of(changes, different, only, skipped),
            args.json,
        )
    return ExitCode.BELOW_TARGET if any(one.regressed for one in changes) else ExitCode.VALID


def _in_turns(args: argparse.Namespace, session: Session) -> int:
    """Run two commands alternately, and compare the medians."""
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
    _show({**body, "rounds": rates, "folder": str(folder)}, text, args.json)
    return ExitCode.BELOW_TARGET if any(one.regressed for one in changes) else ExitCode.VALID


def history(args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """List past results."""
    if session.rank != 0:
        return ExitCode.VALID
    from mxpeak.report.columns import table
    from mxpeak.report.compare import row_of

    found: list[tuple[Path, Mapping[str, Any]]] = []
    for path in result_files():  # the newest first, and no more of them than are shown
        here = [one for one in read_results(path) if args.benchmark in (None, one.get("benchmark"))]
        found = [*((path, one) for one in here), *found]
        if len(found) >= args.last:
            break
    found = found[-args.last :]
    rows = [["when (UTC)", "benchmark", "case", "rate", "of limit", "status", "folder"]]
    rows += [row_of(one, _when(one), path.parent.name) for path, one in found]
    kept = ("benchmark", "status", "problem", "result")
    body = {
        "schema": "mxpeak.history/1",
        "results": [{"file": str(path), "start": _when(one), **{k: one.get(k) for k in kept}} for path, one in found],
    }
    width = terminal_width(sys.stdout)
    text = table(rows, width=width, least=(6, 4, 5)) if found else f"no results in {OUT}/\n"
    if any(row[4].endswith("*") for row in rows):
        text += "  * uncertain, because the machine's speed changed during the run\n"
    _show(body, text, args.json)
    return ExitCode.VALID


def baseline(args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Keep a run under the name `baseline`; the one that was kept before is replaced."""
    from mxpeak.report.compare import listed

    path = run_file(args.result)
    valid = [one for one in results_in(path) if one.get("status") in PASSED]
    if not valid:
        raise UsageError(f"{path} contains no valid result; use another RESULT")
    if session.rank != 0:
        return ExitCode.VALID
    body = {"schema": SCHEMA_RESULTS, "of": str(path), "results": valid}
    part = KEPT.with_suffix(".part")
    try:
        OUT.mkdir(exist_ok=True)
        part.write_text(to_json(body), encoding="utf-8")
        part.replace(KEPT)
    except OSError as error:
        raise UsageError(
            f"mxpeak cannot write {KEPT}: {error.strerror}; use a working folder that you can write to"
        ) from None
    print(printable(f"{KEPT}: {listed(valid)} of {path}"))
    return ExitCode.VALID


def _merged(found: Sequence[Mapping[str, Sequence[str]]]) -> dict[str, list[str]]:
    """What differs in any of the cases, each thing once."""
    names = dict.fromkeys(name for one in found for name in one)
    return {name: list(dict.fromkeys(line for one in found for line in one.get(name, ()))) for name in names}


def _when(one: Mapping[str, Any]) -> str:
    start: Any = (one.get("run") or {}).get("start_unix")
    try:
        return f"{datetime.fromtimestamp(start, UTC):%Y-%m-%d %H:%M}"
    except (TypeError, ValueError, OverflowError, OSError):  # no time, or none that a calendar has
        return ""


def _show(body: Mapping[str, Any], text: str, target: str | None) -> None:
    from mxpeak.cli.output import write_json

    if target is not None:
        write_json(body, target)
    if target != "-":
        print(printable(text), end="")
