"""mxpeak resume DIR: go on with a run from the last checkpoint that it has left there."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxpeak.bench.registry import BENCHMARKS
from mxpeak.cli.ranks import on_ranks
from mxpeak.cli.request import Request, add_options, requests
from mxpeak.cli.run import run_requests
from mxpeak.configs.run import OutputConfig
from mxpeak.errors import UsageError
from mxpeak.options import grid_shape

if TYPE_CHECKING:
    from mxpeak.cli.session import Session

EXAMPLES = """\
examples:
  mxpeak run hpl -N 60000 --ranks 4 --checkpoint kept --every 10m
  mxpeak resume kept
  mpiexec -n 8 mxpeak resume kept --grid 2x4
"""


def add_verb(verbs: Any) -> None:
    """Add `resume` to the command line."""
    parser = verbs.add_parser(
        "resume",
        help="go on with a run of HPL or HPL-MxP from its last checkpoint",
        description="Go on with a run of HPL or HPL-MxP that was started with --checkpoint DIR: same settings, same "
        "process grid or another. Its time is that of both parts, and it is never official.",
        epilog=EXAMPLES,
    )
    parser.add_argument("folder", metavar="DIR", help="what --checkpoint named")
    parser.add_argument("--grid", metavar="PxQ", help="another process grid (default: as before)")
    parser.add_argument("--ranks", metavar="R", help="start R local ranks (default: as many as the grid has)")
    add_options(parser, OutputConfig)
    parser.set_defaults(action=resume)


def resume(args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Go on with a run.  Collective over all ranks, once they are there."""
    return on_ranks(
        args,
        argv,
        session,
        read=lambda: [wanted(args)],
        place=lambda found: found[0].config,
        act=lambda found: run_requests(found[0].benchmark.name, found, argv, session),
    )


def wanted(args: argparse.Namespace) -> Request:
    """The run that the folder tells of, to go on with."""
    from mxpeak.bench.keeping import read_run
    from mxpeak.runtime.launch import launched

    said = read_run(Path(args.folder))
    if said["benchmark"] not in BENCHMARKS:
        raise UsageError(f"{args.folder} is of the benchmark {said['benchmark']!r}, which is not there")
    typed = {**said["settings"], **{name: vars(args)[name] for name in vars(args) if name not in OWN}}
    typed["checkpoint"] = args.folder
    if args.grid is not None:
        typed["grid"] = args.grid
        typed.pop("node_grid", None)
    P, Q = grid_shape(typed.get("grid", ""))
    typed.pop("ranks", None)
    if args.ranks is not None or not launched():
        typed["ranks"] = args.ranks or str(P * Q)
    names = argparse.Namespace(benchmark=said["benchmark"], config=None, **typed)
    environ = {name: value for name, value in os.environ.items() if name not in ("MXPEAK_CONFIG", "MXPEAK_DAT")}
    (found,) = requests(names, environ)
    return replace(found, config=replace(found.config, resumed=True))  # type: ignore[call-arg]


#: What is no setting of a run.
OWN = ("verb", "action", "folder", "grid", "ranks")
