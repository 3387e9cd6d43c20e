"""`mxpeak study`: reproduce experiments of the papers as tables, figures and JSON."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from mxpeak.cli.ranks import join_ranks, read_on_root
from mxpeak.comm.collectives import run_on_root
from mxpeak.comm.transports.solo import Solo
from mxpeak.configs.lu import GENERATORS
from mxpeak.configs.run import PlaceConfig
from mxpeak.errors import ExitCode, UsageError, most_severe
from mxpeak.options import count, device, integer, listed, name_in, one_of, parsed_by, path_name, real, seconds
from mxpeak.precision import PRECISIONS
from mxpeak.records import to_json

if TYPE_CHECKING:
    from mxpeak.cli.output import Folder
    from mxpeak.cli.session import Session
    from mxpeak.verbs.study.hpg_mxp import SweepPlan
    from mxpeak.verbs.study.run import StudyPlan

EXAMPLES = """\
studies:
  pivots      pivots of the HPL-MxP matrices in fp64
  norms       residuals of LU with and without pivoting in fp64
  gmres       steps of GMRES without a preconditioner
  generators  the same steps for all matrix generators
  pivoting    growth and refinement of HPL-MxP without pivoting, with random
              butterflies and with partial pivoting
  fact        rate of the panel factorization of HPL
  hpg-mxp     gain of each optimization of HPG-MxP over the reference algorithm

examples:
  mxpeak study
  mxpeak study pivots norms -N 1000,2000,4000 --seeds 10
  mxpeak study gmres -N 2000 --diagonal-scale 0.6,0.625,1
  mxpeak study fact --nb 192 --threads 1,2
  mxpeak study pivoting generators --ranks 4 -N 1000,2000
  mxpeak study hpg-mxp --nx 64 --ranks 1,2
"""

#: The studies that run by default. STUDIES contains all studies.
DEFAULT = ("pivots", "norms", "gmres")
STUDIES = (*DEFAULT, "generators", "pivoting", "fact", "hpg-mxp")
#: The studies of matrices, which run on the ranks of a launcher or of --ranks.
ON_RANKS = (*DEFAULT, "generators", "pivoting")
#: The studies that read a flag, if not all of them do.
READERS = {
    "n": (*ON_RANKS, "fact"),
    "seeds": ON_RANKS,
    "diagonal_scale": ("gmres",),
    "generator": ("generators", "pivoting"),
    "precision": ("pivoting",),
    "nb": ("fact",),
    "threads": ("fact", "hpg-mxp"),
    "nx": ("hpg-mxp",),
    "rt": ("hpg-mxp",),
    "ranks": ("hpg-mxp", *ON_RANKS),
    "device": ("hpg-mxp", *ON_RANKS),
    "comm": ON_RANKS,
}
RESULT, PAGE = "study.json", "study.html"
#: Number of seconds before the first line of progress and between two lines.
PROGRESS_S = 2.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `study`."""
    parser.description = "Reproduce experiments of the papers on HPL, HPL-MxP and HPG-MxP."
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
    parser.add_argument(
        "--seeds", metavar="K", help="number of matrices per order (default: 5 for pivots and norms, otherwise 1)"
    )
    parser.add_argument(
        "--diagonal-scale", metavar="C,...", help="factors c of the diagonal c*sqrt(N) in gmres (default: 0.6 to 2)"
    )
    parser.add_argument(
        "--generator", metavar="NAME,...", help="for the studies generators and pivoting (default: all)"
    )
    parser.add_argument("--precision", metavar="P", help="operand precision of the update in pivoting (default: fp16)")
    parser.add_argument("--nb", metavar="NB", help="columns of the panels in fact (default: 192)")
    parser.add_argument(
        "--threads", metavar="T,...", help="threads in fact, or per rank in hpg-mxp (default: powers of two in fact)"
    )
    parser.add_argument("--nx", metavar="NX", help="grid points per rank in each direction in hpg-mxp (default: 64)")
    parser.add_argument("--rt", metavar="SECONDS", help="measuring time per step in hpg-mxp (default: 10 s)")
    parser.add_argument("--ranks", metavar="R,...", help="number of ranks, or several numbers in hpg-mxp (default: 1)")
    parser.add_argument(
        "--comm", metavar="NAME", help="communication between ranks: auto, solo, mpi or torch (default: auto)"
    )
    parser.add_argument("--device", metavar="DEVICE", help="device to compute on (default: cpu, or auto in hpg-mxp)")
    parser.add_argument(
        "--out",
        type=path_name,
        metavar="DIR",
        help="folder for the result files (default: a new folder in mxpeak-out/)",
    )
    parser.add_argument("--json", type=path_name, metavar="FILE", help="write JSON to FILE; use - to print only JSON")
    parser.set_defaults(action=study, words=STUDIES)


def study(args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Run the studies, print the tables, write the HTML page and the JSON file on rank 0, and return the exit code.

    The studies fact and hpg-mxp run in this process, which starts the ranks of hpg-mxp. If one of them is requested,
    all other studies also run in this process.
    """
    names = [parsed_by(one_of(*STUDIES), name, "study") for name in args.studies]
    studies = tuple(name for name in STUDIES if name in (names or DEFAULT))
    _check_flags(args, studies)
    args.comm = parsed_by(one_of("auto", "solo", "mpi", "torch"), args.comm, "--comm") or "auto"
    if not set(studies) <= set(ON_RANKS):
        return ExitCode.VALID if session.rank != 0 else _run(_plan(args, studies), args, argv, session)
    args.device = args.device or "cpu"
    place, plan = read_on_root(args, session, lambda: (_place(args), _plan(args, studies)))
    code = join_ranks(place, argv, session)
    return _run(plan, args, argv, session) if code is None else code


def _place(args: argparse.Namespace) -> PlaceConfig:
    """Return the ranks and the device of the studies of matrices."""
    return PlaceConfig(
        ranks=parsed_by(integer(1, 4096), args.ranks, "--ranks"),
        comm=args.comm,
        device=parsed_by(device, args.device, "--device") or "cpu",
    )


def _plan(args: argparse.Namespace, studies: tuple[str, ...]) -> StudyPlan:
    """Return the plan of the studies; raise a UsageError for values that are not valid."""
    from mxpeak.verbs.study.run import StudyPlan

    given: dict[str, Any] = {
        "orders": parsed_by(listed(count(1)), args.n, "-N"),
        "seeds": parsed_by(integer(1, 100_000), args.seeds, "--seeds"),
        "scales": parsed_by(listed(real(1e-3, 1e6)), args.diagonal_scale, "--diagonal-scale"),
        "nb": parsed_by(integer(1, 4096), args.nb, "--nb"),
        "threads": parsed_by(listed(integer(1, 1024)), args.threads, "--threads"),
        "generators": parsed_by(listed(name_in(GENERATORS)), args.generator, "--generator"),
        "precision": parsed_by(one_of(*PRECISIONS), args.precision, "--precision"),
    }
    if "hpg-mxp" in studies:
        given["sweep"] = _sweep(args, given["threads"])
    else:
        given["device"] = parsed_by(device, args.device, "--device")
    return StudyPlan(studies=studies, **{name: value for name, value in given.items() if value is not None})


def _run(plan: StudyPlan, args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Run the studies of a plan on all ranks, and write the results on rank 0. Collective."""
    from mxpeak.cli.output import prepared_folder
    from mxpeak.verbs.study.run import run_study

    comm = session.comm or Solo()
    own: list[Folder] = []  # the folder, on rank 0 only
    body: dict[str, Any] = {}
    run_on_root(comm, lambda: own.append(prepared_folder(args.out, "study", [RESULT, PAGE], args.json)))
    try:
        try:
            run_study(plan, comm, argv=argv, on_case=_Progress(session), body=body)
        except BaseException as error:  # a signal or an error; the cases that were finished are kept
            if own and any(study in body for study in plan.studies):
                body["aborted"] = str(error) or type(error).__name__
                _finish(body, plan, args, own[0], session)
            raise
        code = _finish(body, plan, args, own[0], session) if own else None
        return int(comm.bcast_object(code))
    finally:
        for folder in own:
            folder.close()


def _check_flags(args: argparse.Namespace, studies: tuple[str, ...]) -> None:
    """Raise a UsageError if a flag applies to none of the studies, or if fact cannot run on several ranks."""
    for name, readers in READERS.items():
        if getattr(args, name) is not None and not set(readers) & set(studies):
            flag = "-N" if name == "n" else f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{flag} applies only to {_named(readers)}, but the command runs {_named(studies)}; remove {flag}, "
                f"or run mxpeak study {readers[0]}"
            )
    if "fact" in studies and "hpg-mxp" not in studies and args.ranks not in (None, "1"):
        raise UsageError(f"fact measures one process, but --ranks is {args.ranks}; remove fact, or use --ranks 1")


def _named(studies: Sequence[str]) -> str:
    """Return text that names these studies, such as "the studies pivots, norms and gmres"."""
    *others, last = studies
    return f"the studies {', '.join(others)} and {last}" if others else f"the study {last}"


def _sweep(args: argparse.Namespace, threads: tuple[int, ...] | None) -> SweepPlan:
    """Return the plan of the study hpg-mxp; raise a UsageError for values that its runs would reject."""
    from mxpeak.runtime.launcher import launched
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


def _finish(body: dict[str, Any], plan: StudyPlan, args: argparse.Namespace, folder: Folder, session: Session) -> int:
    """Print the tables, write the files, log the failures of hpg-mxp, and return the exit code."""
    from mxpeak.cli.output import write_result
    from mxpeak.verbs.study.hpg_mxp import failures
    from mxpeak.verbs.study.report import page, tables

    files = {RESULT: to_json(body), PAGE: page(body)}
    codes = [write_result(files, tables(body), args.json, folder, session.log)]
    for text, code in failures(plan.sweep, body.get("hpg-mxp", {}).get("cases", ())):
        session.log(f"mxpeak: error: {text}")
        codes.append(code)
    return most_severe(codes)


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
