"""`mxpeak resume DIR`: continue a run from its newest intact checkpoint."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxpeak.bench.registry import BENCHMARKS, Benchmark
from mxpeak.cli.ranks import join_ranks, read_on_root
from mxpeak.cli.request import RunRequest, add_options, check_variables, requests
from mxpeak.cli.run import run_requests
from mxpeak.configs.run import OutputConfig, RunConfig
from mxpeak.errors import UsageError
from mxpeak.options import Option, grid_shape, options, path_name

if TYPE_CHECKING:
    from mxpeak.cli.session import Session

EXAMPLES = """\
examples:
  mxpeak run hpl -N 60000 --ranks 4 --checkpoint kept --every 10m
  mxpeak resume kept
  mpiexec -n 8 mxpeak resume kept --grid 2x4
"""


#: Arguments of the command line that are not settings of a run.
OWN = ("verb", "action", "folder", "grid", "ranks", "whole")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `resume`."""
    parser.description = (
        "Continue a run of HPL or HPL-MxP that used --checkpoint DIR. The process grid may change. The "
        "reported time includes both parts of the run, and the result is never official."
    )
    parser.epilog = EXAMPLES
    parser.add_argument("folder", type=path_name, metavar="DIR", help="folder that --checkpoint named")
    parser.add_argument("--grid", metavar="PxQ", help="process grid (default: unchanged)")
    parser.add_argument("--ranks", metavar="R", help="start R local ranks (default: P*Q)")
    add_options(parser, OutputConfig)
    group = next(group for group in parser._action_groups if group.title == "output")
    for o in {o.name: o for benchmark in _with_checkpoints() for o in _paths(benchmark)}.values():
        group.add_argument(*o.flags, dest=o.name, default=argparse.SUPPRESS, help=o.help, metavar=o.metavar)
    parser.set_defaults(action=resume)


def _with_checkpoints() -> list[Benchmark]:
    """Return the benchmarks that have the option --checkpoint."""
    return [each for each in BENCHMARKS.values() if any(o.name == "checkpoint" for o in options(each.config))]


def _paths(benchmark: Benchmark) -> list[Option]:
    """Return the options whose values are paths of user files. A checkpoint does not record these options."""
    return [o for o in options(benchmark.config) if o.users_path and o.name != "checkpoint"]


def resume(args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Read the settings of an interrupted run and continue the run from its checkpoint. Collective."""
    request = read_on_root(args, session, lambda: wanted(args))
    code = join_ranks(request.config, argv, session)
    return run_requests(request.benchmark.name, [request], argv, session) if code is None else code


def wanted(args: argparse.Namespace) -> RunRequest:
    """Return the request of the run that wrote a folder of checkpoints; raise a UsageError if it cannot be resumed.

    The command line sets the process grid and the output options, and names the user files again.
    """
    from mxpeak.bench.checkpointing import check_resumable
    from mxpeak.bench.run_record import read_run
    from mxpeak.runtime.folder_lock import check_unlocked
    from mxpeak.runtime.launcher import launched

    folder = Path(args.folder)
    check_unlocked(folder)
    record = read_run(folder, {each.name: each.config for each in _with_checkpoints()})
    check_resumable(folder, record)
    benchmark = BENCHMARKS[record.benchmark]
    own = {name: value for name, value in vars(args).items() if name not in OWN}
    for o in {o.name: o for each in _with_checkpoints() for o in _paths(each)}.values():
        if o.name in own and o.name not in {option.name for option in options(benchmark.config)}:
            raise UsageError(
                f"{args.folder} contains a run of {benchmark.name}, which does not have the flag {o.flags[-1]}; "
                f"remove {o.flags[-1]}"
            )
    typed: dict[str, Any] = {**record.settings, **own, "checkpoint": args.folder, "tuned": "no"}
    if args.grid is not None:
        typed["grid"] = args.grid
        typed.pop("node_grid", None)
    P, Q = grid_shape(typed.get("grid", ""))
    if args.ranks is not None or not launched():
        typed["ranks"] = args.ranks or str(P * Q)
    names = argparse.Namespace(benchmark=record.benchmark, config=None, **typed)
    check_variables(os.environ)
    place = [o for o in options(RunConfig) if o.name in ("device", "kernels", "comm", "threads", "mem", "watchdog")]
    variables = {o.variable for o in (*options(OutputConfig), *_paths(benchmark), *place)}
    environ = {name: value for name, value in os.environ.items() if name in variables}
    (request,) = requests(names, environ)
    recorded = [name for name in (*record.settings, "ranks") if vars(args).get(name) is None]
    values = {name: getattr(request.config, name) for name in recorded if request.origins.get(name) == "flag"}
    request = request.with_values(values, "checkpoint")
    return replace(request, config=replace(request.config, resumed=True))  # type: ignore[call-arg]
