"""`mxpeak tune`: measure this machine, then find, check and store the fastest settings for `mxpeak run`."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxpeak.bench.registry import of_kind
from mxpeak.configs.run import BLAS_LIBRARIES, blas_library
from mxpeak.errors import ExitCode, MxpeakError, UsageError
from mxpeak.options import count, device, integer, listed, one_of, parsed_by, path_name, seconds

if TYPE_CHECKING:
    from mxpeak.cli.output import Folder
    from mxpeak.cli.session import Session
    from mxpeak.comm.base import Communicator
    from mxpeak.runtime.tuned import Store
    from mxpeak.verbs.tune.candidates import RankLayout
    from mxpeak.verbs.tune.groups import LaunchedRanks
    from mxpeak.verbs.tune.job import TuneJob
    from mxpeak.verbs.tune.plan import TunePlan

EXAMPLES = """\
examples:
  mxpeak tune
  mxpeak tune hpl --budget 2m
  mxpeak tune hpl-mxp --ranks 2 -N 8000 --budget 10m
  mxpeak tune hpl-mxp -N 8000,10000,12000
  mxpeak tune hpl --blas openblas,blis
  mxpeak tune hpcg --mode explore --json tune.json
"""

SCHEMA = "mxpeak.tune/1"
RESULT, PAGE = "tune.json", "tune.html"
MIN_S, MAX_S = 1.0, 7 * 24 * 3600.0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `tune`."""
    parser.description = (
        "Measure kernels and messages, and search for fast settings in short runs. Compare the fastest "
        "settings with the defaults, and store the faster ones for mxpeak run."
    )
    parser.epilog = EXAMPLES
    parser.add_argument(
        "benchmarks",
        nargs="*",
        metavar="BENCHMARK",
        help=f"benchmarks: {', '.join(of_kind('lu', 'sparse'))} (default: all)",
    )
    parser.add_argument(
        "--budget", default="5m", metavar="TIME", help="time budget, such as 90s, 5m or 1h (default: 5m)"
    )
    parser.add_argument("--fresh", action="store_true", help="discard earlier measurements on this machine")
    parser.add_argument(
        "--mode",
        default="official",
        metavar="{official,explore}",
        help="rules: official or explore (allows more settings) (default: official)",
    )
    hardware = parser.add_argument_group("hardware")
    hardware.add_argument("--ranks", metavar="R", help="number of local ranks (default: chosen by tune)")
    hardware.add_argument("--threads", metavar="T", help="threads per rank (default: an equal share of the cores)")
    hardware.add_argument(
        "--device", default="auto", metavar="{auto,cpu,cuda,cuda:0,...}", help="device to compute on (default: auto)"
    )
    hardware.add_argument(
        "--kernels",
        default="auto",
        metavar="{auto,host,torch}",
        help="kernels: auto, host (CPU) or torch (any device) (default: auto)",
    )
    hardware.add_argument(
        "--comm", default="auto", metavar="{auto,solo,mpi,torch}", help="communication between ranks (default: auto)"
    )
    hardware.add_argument(
        "--blas", metavar="NAMES", help="compare BLAS libraries, such as openblas,blis (default: scipy only)"
    )
    problem = parser.add_argument_group("problem")
    problem.add_argument(
        "-N", "--n", metavar="N,...", help="order of the matrix in trials, or orders to search (default: from --budget)"
    )
    problem.add_argument(
        "--nx", metavar="NX", help="grid points per rank in each direction in trials (default: from --budget)"
    )
    parser.add_argument(
        "--out",
        type=path_name,
        metavar="DIR",
        help="folder for the result files (default: a new folder in mxpeak-out/)",
    )
    parser.add_argument("--json", type=path_name, metavar="FILE", help="write JSON to FILE; use - to print only JSON")
    parser.add_argument("--quiet", action="store_true", help="do not print progress")
    parser.add_argument("--job", help=argparse.SUPPRESS)  # job of a rank that tune starts
    parser.set_defaults(action=tune, words=of_kind("lu", "sparse"))


def tune(args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Tune this machine on rank 0 and return the exit code.

    Rank 0 starts ranks for its jobs or, under a launcher, sends the jobs to the other ranks.
    """
    if args.job is not None:
        return _job(args.job, session)
    _parse(args)
    from mxpeak.runtime.launch import start
    from mxpeak.runtime.launcher import launched

    if not launched():
        return _lead(args, session, None, None)
    session.comm = comm = start(args.comm)
    return _follow(args, session, comm)


def _parse(args: argparse.Namespace) -> None:
    """Parse the values of the flags in place; raise a UsageError that names the flag if a value is invalid."""
    tunable = of_kind("lu", "sparse")
    names = [parsed_by(one_of(*tunable), name, "tune") for name in args.benchmarks]
    args.benchmarks = [name for name in tunable if name in (names or tunable)]
    args.budget_s = parsed_by(budget_seconds, args.budget, "--budget")
    args.mode = parsed_by(one_of("official", "explore"), args.mode, "--mode")
    parsers: dict[str, Callable[[str], Any]] = {
        **dict.fromkeys(("ranks", "threads"), integer(1, 4096)),
        "device": device,
        "kernels": one_of("auto", "host", "torch"),
        "comm": one_of("auto", "solo", "mpi", "torch"),
    }
    for name, parse in parsers.items():
        setattr(args, name, parsed_by(parse, getattr(args, name), f"--{name}"))
    for flag, given, kind in (("-N", args.n, "lu"), ("--blas", args.blas, "lu"), ("--nx", args.nx, "sparse")):
        if given is not None and not set(args.benchmarks) & set(of_kind(kind)):
            raise UsageError(f"{flag} does not apply to {' and '.join(args.benchmarks)}; remove {flag}")
    args.n, args.nx = parsed_by(listed(count(64)), args.n, "-N"), parsed_by(integer(16), args.nx, "--nx")
    args.blas = parsed_by(blas_names, args.blas, "--blas")
    if args.nx is not None and args.nx % 8:
        below = args.nx // 8 * 8
        raise UsageError(
            f"--nx {args.nx} is not a multiple of 8, but multigrid halves the box three times; use --nx {below}"
        )


def blas_names(text: str) -> list[str]:
    """Parse a list of BLAS libraries, and return those other than SciPy's, with absolute paths."""
    names = dict.fromkeys(listed(blas_library)(text))
    libraries = [name if name in BLAS_LIBRARIES else os.path.abspath(name) for name in names if name != "scipy"]
    if not libraries:
        raise UsageError(f"{text} is the default; add another library, such as openblas, mkl or blis")
    return list(dict.fromkeys(libraries))


def budget_seconds(text: str) -> float:
    """Parse a time with a unit, such as 90s, 2m or 1.5h, and return it in seconds."""
    if text.strip()[-1:].isdecimal():
        raise UsageError(f"{text!r} is not a time; use a number with s, m or h, for example 5m")
    time_s = seconds(text)
    if not MIN_S <= time_s <= MAX_S:
        raise UsageError(f"{text} ({time_s:g} s) is out of range; use a time from {MIN_S:g} s to 168h, for example 2m")
    return time_s


def _say(settings: argparse.Namespace | TuneJob, session: Session) -> Callable[[str], None]:
    """Return a function that prints a line of progress on rank 0. With --quiet, the function does nothing."""
    return (lambda text: None) if settings.quiet else session.log


def _job(file: str, session: Session) -> int:
    """Perform the job in a file as one of the ranks that `mxpeak tune` has started."""
    from mxpeak.runtime.launch import start
    from mxpeak.verbs.tune.job import TuneJob, perform

    try:
        job = TuneJob(**json.loads(Path(file).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"--job {file} is reserved for ranks that mxpeak tune starts: {error}; remove --job") from None
    session.comm = start(job.comm)
    perform(job, session.comm, _say(job, session))
    return ExitCode.VALID


def _follow(args: argparse.Namespace, session: Session, comm: Communicator) -> int:
    """Run `_lead` on rank 0 of a launcher, and perform its jobs on the other ranks. Collective."""
    from mxpeak.runtime.launch import confirm
    from mxpeak.runtime.nodes import nodes_of
    from mxpeak.runtime.placement import threads_of
    from mxpeak.verbs.tune.candidates import RankLayout
    from mxpeak.verbs.tune.groups import LaunchedRanks

    confirm(args.comm, args.ranks, comm)
    layout = RankLayout(comm.size, args.threads or threads_of(comm), nodes_of(comm, None).count)
    group = LaunchedRanks(comm, _say(args, session))
    if comm.rank != 0:
        group.serve()
        return int(comm.bcast_object(None))
    code = int(ExitCode.BUG)
    try:
        code = _lead(args, session, group, layout)
        return code
    except MxpeakError as error:
        code = int(error.exit_code)
        raise
    finally:
        group.dismiss()
        comm.bcast_object(code)


def _lead(args: argparse.Namespace, session: Session, standing: LaunchedRanks | None, layout: RankLayout | None) -> int:
    """Plan and run the search on rank 0, print and write the result, and return the exit code."""
    from mxpeak.cli.output import prepared_folder
    from mxpeak.runtime.tuned import this_store
    from mxpeak.verbs.tune.groups import StartedRanks, Stopped
    from mxpeak.verbs.tune.libraries import checked_libraries
    from mxpeak.verbs.tune.run import Tuner

    plan, say = _plan(args, layout), _say(args, session)
    folder = prepared_folder(args.out, "tune", [RESULT, PAGE], args.json)
    store, group = this_store(), standing or StartedRanks()
    say(f"tuning {', '.join(plan.benchmarks)} for {args.budget} on {', '.join(map(str, plan.layouts))} ranks x threads")
    try:
        if args.blas is not None:
            plan = replace(plan, libraries=checked_libraries(plan, args.blas, group))
        if args.fresh:
            store.clear()
        body = Tuner(plan, store, group, say).run()
        return _show(args, session, folder, _result(plan, store, body))
    except Stopped as stopped:
        session.log("mxpeak tune was stopped; the next mxpeak tune continues with its measurements")
        return stopped.code
    finally:
        folder.close()


def _plan(args: argparse.Namespace, layout: RankLayout | None) -> TunePlan:
    """Return the plan of a call from the flags. The layout of a launcher replaces the layouts of this machine."""
    from mxpeak.perf.host import one_core_each, total_memory_bytes
    from mxpeak.runtime.launch import can_start_ranks
    from mxpeak.runtime.tuned import device_of
    from mxpeak.verbs.tune.candidates import RankLayout, layouts
    from mxpeak.verbs.tune.plan import TunePlan

    cores, where = max(1, len(one_core_each())), device_of(args.kernels, args.device)
    if args.blas is not None and (where != "cpu" or args.kernels == "torch"):
        computing = "GPUs" if where != "cpu" else "--kernels torch"
        raise UsageError(f"--blas does not apply to {computing}; remove --blas, or use --device cpu --kernels host")
    if layout is not None:
        chosen = [layout]
    elif args.ranks is not None or args.threads is not None or where != "cpu" or args.comm == "solo":
        ranks = args.ranks or 1
        chosen = [RankLayout(ranks, args.threads or max(1, cores // ranks))]
    else:
        chosen = layouts(cores, several=can_start_ranks())
    orders = sorted(set(args.n or ()), reverse=True)  # the defaults run with the largest
    size = {name: n for name, n in (("n", next(iter(orders), None)), ("nx", args.nx)) if n is not None}
    searched = orders if len(orders) > 1 else []
    given = {name: getattr(args, name) for name in ("benchmarks", "budget_s", "mode", "kernels", "comm", "quiet")}
    limits: dict[str, Any] = {"cores": cores, "memory_bytes": float(total_memory_bytes() or 2**30)}
    return TunePlan(layouts=chosen, device=where, size=size, orders=searched, **limits, **given)


def _result(plan: TunePlan, store: Store, body: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a call as it is written as JSON."""
    tables_of = {f"{ranks}x{threads}": str(path) for (ranks, threads), path in store.tables().items()}
    config = {name: getattr(plan, name) for name in ("benchmarks", "mode", "budget_s", "device")}
    return {
        "schema": SCHEMA,
        "config": {
            **config,
            "layouts": list(map(str, plan.layouts)),
            **plan.size,
            **({"orders": list(plan.orders)} if plan.orders else {}),
            **({"blas": dict(plan.libraries)} if plan.libraries else {}),
        },
        "machine": {"fingerprint": store.name, "facts": dict(store.facts), "tables": tables_of},
        "store": str(store.book_file),
        **body,
        "winners": [asdict(winner) for winner in body["winners"]],
    }


def _show(args: argparse.Namespace, session: Session, folder: Folder, body: dict[str, Any]) -> int:
    """Print the result and write its files on rank 0, and return the exit code."""
    from mxpeak.cli.output import write_result
    from mxpeak.records import to_json
    from mxpeak.verbs.tune.page import page
    from mxpeak.verbs.tune.report import tables

    return write_result({RESULT: to_json(body), PAGE: page(body)}, tables(body), args.json, folder, session.log)
