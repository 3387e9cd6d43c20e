"""`mxpeak baseline`: store a run as the reference of `mxpeak compare`, or the expected rates of many scanned nodes."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxpeak.cli.run_history import KEPT, KEPT_BASELINE, OUT, results_in, run_file
from mxpeak.errors import ExitCode, UsageError, cannot_write
from mxpeak.foreign import printable
from mxpeak.options import path_name, share
from mxpeak.records import PASSED, SCHEMA_RESULTS, to_json

if TYPE_CHECKING:
    from mxpeak.cli.session import Session

EXAMPLES = f"""\
examples:
  mxpeak baseline set last
  mxpeak baseline from monday.json tuesday.json --out gpu-nodes.json
  mxpeak scan --against gpu-nodes.json

set   stores one run or scan in {KEPT}, which compare accepts
      as 'baseline'; the word set may be omitted
from  computes the expected rates of each processor or device model from scans,
      without slow and faulty nodes, and writes them to --out or to
      {KEPT_BASELINE}, which scan --against accepts as 'baseline'
"""
#: Default of --tolerance, as in `mxpeak scan`.
TOLERANCE = 0.05


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `baseline`."""
    parser.description = "Store a run or a scan as a reference, or compute expected rates from scans."
    parser.epilog = EXAMPLES
    parser.add_argument(
        "set",
        choices=["set", "from"],
        metavar="{set,from}",
        help="set: store a run or a scan; from: compute expected rates from scans",
    )
    parser.add_argument(
        "results",
        nargs="+",
        type=path_name,
        metavar="RESULT",
        help="a results folder, a result file, 'last' or 'previous'",
    )
    parser.add_argument(
        "--out",
        type=path_name,
        metavar="FILE",
        help="from: write the baseline to FILE (default: mxpeak-out/scan-baseline.json)",
    )
    parser.add_argument(
        "--tolerance",
        type=share,
        default=TOLERANCE,
        metavar="5%",
        help="from: largest slowdown that does not exclude a node (default: 5%%)",
    )
    parser.set_defaults(action=baseline)


def baseline(args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Store a run, or compute and store the expected rates of scans. Return the exit code."""
    if args.set == "from":
        return _from(args, session)
    if args.out is not None:
        raise UsageError(f"--out applies only to baseline from; remove --out, because set always writes {KEPT}")
    if len(args.results) > 1:
        raise UsageError(f"baseline set stores one run, not {len(args.results)}; use one RESULT, or baseline from")
    return _set(args.results[0], session)


def _set(name: str, session: Session) -> int:
    """Store the valid results of a run as the reference of `mxpeak compare`. The previous reference is overwritten."""
    from mxpeak.report.compare import listed

    path = run_file(name)
    kept = [each for each in results_in(path) if each.get("status") in PASSED or each.get("benchmark") == "scan"]
    if not kept:
        raise UsageError(f"{path} contains no valid result; use a run that passed its validation")
    if session.rank == 0:
        _replace(KEPT, {"schema": SCHEMA_RESULTS, "of": str(path), "results": kept})
        print(printable(f"{KEPT}: {listed(kept)} of {path}"))
    return ExitCode.VALID


def _from(args: argparse.Namespace, session: Session) -> int:
    """Compute the expected rates of the scans, write them to a file and print a summary."""
    from mxpeak.cli.output import check_file, write_new
    from mxpeak.verbs.scan.baseline import baseline_of

    scans = [scan for name in args.results for scan in _scans_in(run_file(name))]
    body = baseline_of(scans, args.tolerance)
    if session.rank != 0:
        return ExitCode.VALID
    if args.out is None:
        _replace(KEPT_BASELINE, body)
    else:
        check_file(Path(args.out), flag="--out")
        write_new(Path(args.out), to_json(body))
    print(printable(_summary(args.out or str(KEPT_BASELINE), body)), end="")
    return ExitCode.VALID


def _scans_in(path: Path) -> Sequence[tuple[str, Mapping[str, Any]]]:
    """Return the name and content of the scan in a file; raise a UsageError if the file contains another result."""
    from mxpeak.report.compare import listed
    from mxpeak.report.scans import scan_of_result

    results = results_in(path)
    if any(result.get("benchmark") != "scan" for result in results):
        raise UsageError(f"{path} contains {listed(results)}, not a scan; use the result.json of mxpeak scan")
    return [(str(path), scan_of_result(result)) for result in results]


def _summary(file: str, body: Mapping[str, Any]) -> str:
    """Return the expected rates of each model as text, with the excluded nodes."""
    from mxpeak.layout.host_list import host_list
    from mxpeak.options import count_text
    from mxpeak.records import SCANNED_BYTES, bytes_rate_text, rate_text
    from mxpeak.report.scan_text import measure_title

    lines = [f"{file}: {count_text(len(body['models']), 'model')} from {count_text(len(body['of']), 'scan')}"]
    for entry in body["models"]:
        healthy = f"{count_text(entry['ranks'], 'rank')} on {count_text(entry['nodes'], 'node')}"
        lines.append(f"{entry['model']}, {count_text(entry['threads'], 'thread')}: {healthy}")
        for name, rate in entry["rates"].items():
            text = (bytes_rate_text if name in SCANNED_BYTES else rate_text)(rate["expected"])
            lines.append(f"  {measure_title(name):<6}{text:>14}, spread {100 * rate['sigma'] / rate['expected']:.1f} %")
        lines += [f"  excluded: {host_list(entry['excluded'])}"] * bool(entry["excluded"])
    return "\n".join(lines) + "\n"


def _replace(file: Path, body: Mapping[str, Any]) -> None:
    """Write a file in mxpeak-out/ completely, and replace the previous file."""
    from mxpeak.cli.output import Folder

    try:
        OUT.mkdir(exist_ok=True)
        Folder(OUT, ()).replace(file.name, to_json(body))
    except OSError as error:
        raise cannot_write(file, error, "use a working folder that you can write to") from None
