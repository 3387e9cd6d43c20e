"""`mxpeak simulate`: predict the rate of a run by simulating each step of all ranks."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from mxpeak.bench.registry import kind_of, of_kind
from mxpeak.errors import ExitCode, UsageError
from mxpeak.options import integer, parsed_by
from mxpeak.verbs.predict.flags import (
    add_run_flags,
    caution_lines,
    cautions_of,
    counting_lines,
    forecast_lines,
    heading_lines,
    inherited_lines,
    lu_run,
    machine_of,
    predicted,
    prediction_lines,
    ranks_of,
    refuse_foreign,
    shared_sections,
    sparse_run,
)

if TYPE_CHECKING:
    from mxpeak.cli.session import Session
    from mxpeak.perf.simulation.lu import LuRun
    from mxpeak.perf.simulation.machines import Machine
    from mxpeak.perf.simulation.sparse import SparseRun

EXAMPLES = """\
examples:
  mxpeak simulate hpl-mxp --machine frontier -N 4014080 --nb 2560
  mxpeak simulate hpl --machine crusher --nodes 4 --bcast 1ringM --split 0.5
  mxpeak simulate hpg-mxp --machine frontier --nodes 9408 --nx 320 --json -
  mxpeak simulate --table
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `simulate`."""
    parser.description = "Predict the rate of a run from the kernel rates and network links of a machine."
    parser.epilog = EXAMPLES
    names = ", ".join(of_kind("lu", "sparse"))
    parser.add_argument("benchmark", nargs="?", metavar="BENCHMARK", help=f"benchmark: {names}")
    add_run_flags(parser)
    scenario = parser.add_argument_group("scenario")
    scenario.add_argument(
        "--slow", metavar="RANK:FACTOR,...", help="relative speed of single ranks, such as 17:0.9 (default: 1)"
    )
    scenario.add_argument("--nics", metavar="K", help="number of network ports to use per node (default: all)")
    scenario.add_argument("--staged", action="store_true", help="send messages through host memory")
    scenario.add_argument(
        "--no-core-sharing", action="store_true", help="factor panels of hpl only on the rank's own cores"
    )
    parser.add_argument("--table", action="store_true", help="print published results next to their predictions")
    parser.set_defaults(action=simulate, words=of_kind("lu", "sparse"))


def simulate(args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Simulate a run, or print the table of published results, on rank 0, and return the exit code."""
    if session.rank != 0:
        return ExitCode.VALID
    if args.table:
        from mxpeak.verbs.predict.validation_table import table

        for line in table():
            print(line, flush=True)
        return ExitCode.VALID
    benchmark = args.benchmark
    if not kind_of(benchmark):
        problem = "the benchmark is missing" if benchmark is None else f"mxpeak cannot simulate {benchmark!r}"
        raise UsageError(f"{problem}; use one of {', '.join(of_kind('lu', 'sparse'))}")
    refuse_foreign(args, benchmark)
    if args.machine is None:
        from mxpeak.perf.simulation.machines import known_machines

        raise UsageError(
            f"--machine is missing; use a FILE, one of {', '.join(known_machines())}, or 'tuned' for this "
            "machine after mxpeak tune has measured it"
        )
    from mxpeak.cli.output import show

    body, lines = simulated(args, benchmark)
    show(body, "\n".join(lines) + "\n", args.json)
    return ExitCode.VALID


def simulated(args: argparse.Namespace, benchmark: str) -> tuple[dict[str, Any], list[str]]:
    """Simulate the run that the flags describe, and return the prediction as a dict for JSON and as lines of text."""
    machine = machine_of(args)
    what_if: dict[str, Any] = {"slow": _slow(args.slow, ranks_of(args, machine)), "aware": not args.staged}
    nics = parsed_by(integer(1, machine.network.nics), args.nics, "--nics")
    formula: dict[str, float | None] = {}
    run: LuRun | SparseRun
    if kind_of(benchmark) == "lu":
        run = lu = lu_run(args, benchmark, machine, nics=nics, core_sharing=not args.no_core_sharing, **what_if)
        problem, formula["formula_s"] = _lu(benchmark, lu, machine)
    else:
        run = sparse_run(args, benchmark, machine, **what_if)
        box = run.box
        problem = f"box {box.nx}x{box.ny}x{box.nz}  ranks {box.npx}x{box.npy}x{box.npz}  {run.low}, one solve"
        problem += "".join(f"\n{line}" for line in counting_lines(benchmark, run))
    prediction, cautions = predicted(benchmark, run, machine), cautions_of(benchmark, run, machine)
    forecast, section = prediction.forecast, prediction.section()
    lines = [
        *heading_lines(benchmark, run, machine),
        problem,
        *prediction_lines(section, run.ranks),
        *forecast_lines(forecast),
    ]
    lines += [f"formula   {bound:.4g} s at most (OLCF, eq. 3 and 5)" for bound in formula.values() if bound is not None]
    body = {
        "schema": "mxpeak.simulate/1",
        "benchmark": benchmark,
        "prediction": {**section, "exposed": forecast.exposed, **formula},
        "phases": dict(forecast.phases),
        **shared_sections(run, machine, cautions),
    }
    return body, [*lines, *inherited_lines(machine), *caution_lines(cautions)]


def _lu(benchmark: str, run: LuRun, machine: Machine) -> tuple[str, float | None]:
    """Return a line that describes an LU run, and an upper bound of the time in seconds by the closed formula.

    The bound is None for HPL.
    """
    from mxpeak.perf.simulation.lu import node_block
    from mxpeak.perf.simulation.model import upper_bound

    block = node_block(run.P, run.Q, machine.ranks_per_node, run.order, run.node_grid)
    split = f"  split {run.split:g}" if run.split else ""
    grid = f"grid {run.P}x{run.Q}, {block[0]}x{block[1]} per node"
    line = f"N {run.n}  NB {run.nb}  {grid}  {run.bcast}  depth {run.depth}{split}  {run.precision}"
    if benchmark != "hpl-mxp":
        return line, None
    return line, upper_bound(machine, run.n, run.nb, run.P, run.Q, block, run.precision, run.nics).time_s


def _slow(text: str | None, ranks: int) -> dict[int, float]:
    """Parse RANK:FACTOR,... and return the relative speed of each listed rank.

    Raise a UsageError for other texts, and for a rank that is not one of the `ranks` ranks.
    """
    speeds: dict[int, float] = {}
    for part in (text or "").split(","):
        if not part and not text:
            continue
        rank, _, factor = part.partition(":")
        try:
            speeds[int(rank)] = float(factor)
        except ValueError:
            raise UsageError(f"--slow {part!r} is not in the form RANK:FACTOR; use, for example, 17:0.9") from None
        if not 0.0 < speeds[int(rank)] <= 10.0:
            raise UsageError(
                f"--slow {part}: the relative speed of a rank must be above 0 and at most 10; use, for example, 17:0.9"
            )
        if not 0 <= int(rank) < ranks:
            raise UsageError(f"--slow {part} names a rank that does not exist; use a rank from 0 to {ranks - 1}")
    return speeds
