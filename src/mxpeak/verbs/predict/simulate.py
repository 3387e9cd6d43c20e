"""`mxpeak simulate`: predict the rate of a run on a machine, step by step for all ranks."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeAlias

from mxpeak.bench.registry import kind_of, of_kind
from mxpeak.errors import ExitCode, UsageError
from mxpeak.options import integer, parsed_by
from mxpeak.verbs.predict.flags import (
    add_run_flags,
    caution_lines,
    cautions_of,
    forecast_lines,
    lu_config,
    lu_run,
    machine_of,
    machine_section,
    prediction_lines,
    refuse_foreign,
    show,
    sparse_config,
    sparse_run,
)

if TYPE_CHECKING:
    from mxpeak.cli.session import Session

EXAMPLES = """\
examples:
  mxpeak simulate hpl-mxp --machine frontier -N 4014080 --nb 2560
  mxpeak simulate hpl --machine crusher --nodes 4 --bcast 1ringM --split 0.5
  mxpeak simulate hpg-mxp --machine frontier --nodes 9408 --nx 320 --json -
  mxpeak simulate --table
"""


#: A prediction: the body of the JSON file, and the lines of the text.
Predicted: TypeAlias = "tuple[dict[str, Any], list[str]]"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `simulate`."""
    parser.description = "Predict the rate of a run from the kernel rates and network links of a machine."
    parser.epilog = EXAMPLES
    names = ", ".join(of_kind("lu", "sparse"))
    parser.add_argument("benchmark", nargs="?", metavar="BENCHMARK", help=f"benchmark: {names}")
    add_run_flags(parser)
    what_if = parser.add_argument_group("what if")
    what_if.add_argument("--slow", metavar="RANK:FACTOR,...", help="relative speed of single ranks, such as 17:0.9")
    what_if.add_argument("--nics", metavar="K", help="number of network ports to use per node (default: all)")
    what_if.add_argument("--staged", action="store_true", help="send messages through host memory")
    what_if.add_argument(
        "--no-core-sharing", action="store_true", help="factor panels of hpl only on the rank's own cores"
    )
    parser.add_argument("--table", action="store_true", help="print published results next to their predictions")
    parser.set_defaults(action=simulate)


def simulate(args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Simulate a run on rank 0."""
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
    body, lines = simulated(args, benchmark)
    show(body, lines, args.json)
    return ExitCode.VALID


def simulated(args: argparse.Namespace, benchmark: str) -> Predicted:
    """Return the prediction of a run."""
    machine = machine_of(args)
    slow = _slow(args.slow)
    nics = parsed_by(integer(1, machine.network.nics), args.nics, "--nics")
    if kind_of(benchmark) == "lu":
        return _lu(args, benchmark, machine, slow, nics)
    return _sparse(args, benchmark, machine, slow)


def _lu(args: Any, benchmark: str, machine: Any, slow: dict[int, float], nics: int | None) -> Predicted:
    from mxpeak.perf.simulation.lu import node_block
    from mxpeak.perf.simulation.model import upper_bound
    from mxpeak.perf.simulation.predict import predict, simulate_lu

    run = lu_run(
        args, benchmark, machine, slow=slow, nics=nics, aware=not args.staged, core_sharing=not args.no_core_sharing
    )
    _check_slow(slow, run.ranks)
    prediction = predict(lambda one: simulate_lu(benchmark, run, one), machine)
    cautions = cautions_of(benchmark, run, machine)
    section = prediction.section()
    block = node_block(run.P, run.Q, machine.ranks_per_node, run.order, run.node_grid)
    bound = None
    if benchmark == "hpl-mxp":
        bound = upper_bound(machine, run.n, run.nb, run.P, run.Q, block, run.precision, run.nics).time_s
    split = f"  split {run.split:g}" if run.split else ""
    grid = f"grid {run.P}x{run.Q}, {block[0]}x{block[1]} per node"
    lines = [
        f"{benchmark} on {machine.title}",
        f"N {run.n}  NB {run.nb}  {grid}  {run.bcast}  depth {run.depth}{split}  {run.precision}",
        *prediction_lines(section, run.ranks),
        *forecast_lines(prediction.forecast),
    ]
    if bound is not None:
        lines.append(f"formula   {bound:.4g} s at most (OLCF, eq. 3 and 5)")
    body = {
        "schema": "mxpeak.simulate/1",
        "benchmark": benchmark,
        "prediction": {**section, "exposed": prediction.forecast.exposed, "formula_s": bound},
        "phases": dict(prediction.forecast.phases),
        "config": lu_config(run),
        "machine": machine_section(machine, run.ranks),
        "warnings": [asdict(caution) for caution in cautions],
    }
    return body, [*lines, *caution_lines(cautions)]


def _sparse(args: Any, benchmark: str, machine: Any, slow: dict[int, float]) -> Predicted:
    from mxpeak.perf.simulation.plan import part_node_caution
    from mxpeak.perf.simulation.predict import predict
    from mxpeak.perf.simulation.sparse import simulate as simulate_sparse

    run = sparse_run(args, benchmark, machine, slow=slow, aware=not args.staged)
    _check_slow(slow, run.ranks)
    prediction = predict(lambda one: simulate_sparse(run, one), machine)
    section, box = prediction.section(), run.box
    lines = [
        f"{benchmark} on {machine.title}",
        f"box {box.nx}x{box.ny}x{box.nz}  ranks {box.npx}x{box.npy}x{box.npz}  {run.low}, one solve",
        *prediction_lines(section, run.ranks),
        *forecast_lines(prediction.forecast),
    ]
    cautions = part_node_caution(run.ranks, machine.ranks_per_node)
    body = {
        "schema": "mxpeak.simulate/1",
        "benchmark": benchmark,
        "prediction": {**section, "exposed": prediction.forecast.exposed},
        "phases": dict(prediction.forecast.phases),
        "config": sparse_config(run),
        "machine": machine_section(machine, run.ranks),
        "warnings": [asdict(caution) for caution in cautions],
    }
    return body, [*lines, *caution_lines(cautions)]


def _slow(text: str | None) -> dict[int, float]:
    """Return the relative speeds in RANK:FACTOR,... by rank."""
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
    return speeds


def _check_slow(slow: dict[int, float], ranks: int) -> None:
    for rank in slow:
        if not 0 <= rank < ranks:
            raise UsageError(
                f"--slow {rank}:{slow[rank]:g} names a rank that does not exist; use a rank from 0 to {ranks - 1}"
            )
