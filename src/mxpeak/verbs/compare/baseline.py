"""`mxpeak baseline set RESULT`: store a run as the reference of `mxpeak compare`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from mxpeak.cli.run_history import KEPT, OUT, results_in, run_file
from mxpeak.errors import ExitCode, UsageError
from mxpeak.foreign import printable
from mxpeak.records import PASSED, SCHEMA_RESULTS, to_json

if TYPE_CHECKING:
    from mxpeak.cli.session import Session

EXAMPLES = """\
example:
  mxpeak baseline set last
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `baseline`."""
    parser.description = "Store a run as the reference for compare."
    parser.epilog = EXAMPLES
    parser.add_argument("set", choices=["set"], metavar="set", help="store a run")
    parser.add_argument("result", metavar="RESULT", help="a results folder, a result file, 'last' or 'previous'")
    parser.set_defaults(action=baseline)


def baseline(args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Store the valid results of a run as the reference of `mxpeak compare`. The previous reference is overwritten."""
    from mxpeak.report.compare import listed

    path = run_file(args.result)
    valid = [result for result in results_in(path) if result.get("status") in PASSED]
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
