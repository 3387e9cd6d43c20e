"""`mxpeak study`: reproduce experiments of the papers as tables, figures and JSON."""

from __future__ import annotations

import argparse
from time import perf_counter
from typing import TYPE_CHECKING, Any

from mxpeak.errors import ExitCode, UsageError
from mxpeak.options import count, device, integer, listed, one_of, parsed_by, real, seconds
from mxpeak.records import to_json

if TYPE_CHECKING:
    from mxpeak.cli.output import Folder
    from mxpeak.cli.session import Session
    from mxpeak.verbs.study.hpg_mxp import SweepPlan

EXAMPLES = """\
examples:
  mxpeak study
  mxpeak study pivots norms -N 1000,2000,4000 --seeds 10
  mxpeak study gmres -N 2000 --diagonal-scale 0.6,0.625,1
  mxpeak study fact --nb 192 --threads 1,2
  mxpeak study hpg-mxp --nx 64 --ranks 1,2
"""

#: The studies that run by default. STUDIES contains all studies.
DEFAULT = ("pivots", "norms", "gmres")
STUDIES = (*DEFAULT, "fact", "hpg-mxp")
#: The flags that only one study reads.
OF_ONE_STUDY = {
    "diagonal_scale": "gmres",
    "nb": "fact",
    "nx": "hpg-mxp",
    "rt": "hpg-mxp",
    "ranks": "hpg-mxp",
    "device": "hpg-mxp",
}
RESULT, PAGE = "study.json", "study.html"
#: Number of seconds before the first line of progress and between two lines.
PROGRESS_S = 2.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `study`."""
    parser.description = (
        "Reproduce the fp64 experiments behind the HPL-MxP matrices: pivots, residuals with and without "
        "pivoting, and GMRES without a preconditioner. The study fact measures the panel factorization of HPL. "
        "The study hpg-mxp measures each optimization of HPG-MxP, from the reference algorithm to the full code."
    )
    parser.epilog = EXAMPLES
    parser.add_argument(
        "studies", nargs="*", metavar="STUDY", help=f"studies: {', '.join(STUDIES)} (default: {', '.join(DEFAULT)})"
    )
    parser.add_argument(
        "-N",
        "--n",
        metavar="N,...",
        help="orders of the matrices (default: about ten orders from 100 to 1600), or "
        "rows of the panels (default: 1 to 128 times NB)",
    )
    parser.add_argument("--seeds", metavar="K", help="number of matrices per order (default: 5, or 1 for gmres)")
    parser.add_argument(
        "--diagonal-scale", metavar="C,...", help="factors c of the diagonal c*sqrt(N) in gmres (default: 0.6 to 2)"
    )
    parser.add_argument("--nb", metavar="NB", help="columns of the panels in fact (default: 192)")
    parser.add_argument(
        "--threads", metavar="T,...", help="threads in fact, or per rank in hpg-mxp (default: powers of two in fact)"
    )
    parser.add_argument("--nx", metavar="NX", help="points per rank in each direction in hpg-mxp (default: 64)")
    parser.add_argument("--rt", metavar="SECONDS", help="measuring time per step in hpg-mxp (default: 10)")
    parser.add_argument("--ranks", metavar="R,...", help="numbers of ranks in hpg-mxp (default: 1)")
    parser.add_argument("--device", metavar="DEVICE", help="device of hpg-mxp: auto, cpu or cuda (default: auto)")
    parser.add_argument("--out", metavar="DIR", help="folder for the files (default: a new folder in mxpeak-out/)")
    parser.add_argument("--json", metavar="FILE", help="write JSON to FILE; use - to print only JSON")
    parser.set_defaults(action=study)


def study(args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Run the studies on rank 0, print the tables, write the HTML page and the JSON file, and return the exit code."""
    names = [parsed_by(one_of(*STUDIES), name, "study") for name in args.studies]
    studies = tuple(name for name in STUDIES if name in (names or DEFAULT))
    _check_flags(args, studies)
    given: dict[str, Any] = {
        "orders": parsed_by(listed(count(1)), args.n, "-N"),
        "seeds": parsed_by(integer(1, 100_000), args.seeds, "--seeds"),
        "scales": parsed_by(listed(real(1e-3, 1e6)), args.diagonal_scale, "--diagonal-scale"),
        "nb": parsed_by(integer(1, 4096), args.nb, "--nb"),
        "threads": parsed_by(listed(integer(1, 1024)), args.threads, "--threads"),
    }
    if session.rank != 0:
        return ExitCode.VALID
    from mxpeak.cli.output import prepared_folder
    from mxpeak.verbs.study.run import StudyPlan, run

    if "hpg-mxp" in studies:
        given["sweep"] = _sweep(args, given["threads"])
    plan = StudyPlan(studies=studies, **{name: value for name, value in given.items() if value is not None})
    folder = prepared_folder(args.out, "study", [RESULT, PAGE], args.json)
    try:
        body = run(plan, argv=argv, on_case=_Progress(session))
        return _finish(body, args, folder, session)
    finally:
        folder.remove_if_empty()


def _check_flags(args: argparse.Namespace, studies: tuple[str, ...]) -> None:
    """Raise a UsageError if a flag applies to none of the studies."""
    readers = {**{name: (study,) for name, study in OF_ONE_STUDY.items()}, "threads": ("fact", "hpg-mxp")}
    for name, of_flag in readers.items():
        if getattr(args, name) is not None and not set(of_flag) & set(studies):
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{flag} applies only to {' and '.join(of_flag)}, but {' and '.join(studies)} "
                f"{'was' if len(studies) == 1 else 'were'} requested; remove {flag}, or run mxpeak study {of_flag[0]}"
            )


def _sweep(args: argparse.Namespace, threads: tuple[int, ...] | None) -> SweepPlan:
    """Return the plan of the study hpg-mxp; raise a UsageError for values that its runs would reject."""
    from mxpeak.runtime.launch import launched
    from mxpeak.verbs.study.hpg_mxp import SweepPlan

    if launched():
        raise UsageError(
            "mxpeak study hpg-mxp starts its own ranks, so it cannot run under a launcher; use --ranks, or start "
            "mxpeak run hpg-mxp with --overlap, --zero-guess and --fused-restriction under the launcher"
        )
    if threads is not None and len(threads) > 1:
        raise UsageError(
            f"--threads {','.join(map(str, threads))} has {len(threads)} values, but the study hpg-mxp needs one "
            "number of threads per rank; use one value"
        )
    given = {
        "nx": parsed_by(integer(16), args.nx, "--nx"),
        "rt": parsed_by(seconds, args.rt, "--rt"),
        "ranks": tuple(sorted(set(parsed_by(listed(integer(1, 4096)), args.ranks, "--ranks") or (1,)))),
        "threads": threads[0] if threads else None,
        "device": parsed_by(device, args.device, "--device"),
    }
    return SweepPlan(**{name: value for name, value in given.items() if value is not None})


def _finish(body: dict[str, Any], args: argparse.Namespace, folder: Folder, session: Session) -> int:
    """Print the tables, write the files and return the exit code."""
    from mxpeak.cli.output import write_result
    from mxpeak.verbs.study.report import page, tables

    return write_result({RESULT: to_json(body), PAGE: page(body)}, tables(body), args.json, folder, session.log)


class _Progress:
    """Prints a line of progress to stderr every few seconds."""

    def __init__(self, session: Session):
        self._session = session
        self._last = perf_counter()

    def __call__(self, study: str, done: int, count: int) -> None:
        now = perf_counter()
        if now - self._last >= PROGRESS_S and done < count:
            self._last = now
            self._session.log(f"study {study}: {done} of {count} cases")
