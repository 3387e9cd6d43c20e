"""`mxpeak plan`: choose sizes, grid and broadcast of a run, and predict its memory and rate."""

from __future__ import annotations

import argparse
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mxpeak.bench.registry import BENCHMARKS, kind_of, load, of_kind
from mxpeak.cli.run_history import last_rate
from mxpeak.errors import ExitCode, UsageError, cannot_write
from mxpeak.options import path_name
from mxpeak.records import size_text
from mxpeak.verbs.predict.flags import (
    AnyRun,
    add_run_flags,
    box_bytes,
    caution_lines,
    cautions_of,
    counting_lines,
    forecast_lines,
    heading_lines,
    inherited_lines,
    is_quick,
    lu_run,
    machine_of,
    predicted,
    prediction_lines,
    refuse_foreign,
    shared_sections,
    sparse_run,
    wrapped,
)

if TYPE_CHECKING:
    from mxpeak.cli.session import Session
    from mxpeak.perf.simulation.lu import LuRun
    from mxpeak.perf.simulation.machines import Machine
    from mxpeak.perf.simulation.sparse import SparseRun

EXAMPLES = """\
examples:
  mxpeak plan hpl --ranks 4
  mxpeak plan hpl-mxp --machine frontier --nodes 128
  mxpeak plan hpl --machine crusher --nodes 4 --write-dat HPL.dat
  mxpeak plan hpg-mxp --machine frontier --nodes 8 --json -
"""

#: Broadcasts that plan compares.
TRIED = ("1ringM", "2ringM", "long", "lib")
#: Half the width of the interval around the rate of the last run on this machine, relative to the rate.
LIKE_LAST = 0.2


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `plan`."""
    parser.description = (
        "Choose N, NB, the process grid and the broadcast for given ranks, nodes and memory. With "
        "--machine, also predict the rate."
    )
    parser.epilog = EXAMPLES
    parser.add_argument("benchmark", metavar="BENCHMARK", help=f"benchmark: {', '.join(of_kind('lu', 'sparse'))}")
    add_run_flags(parser)
    parser.add_argument("--write-dat", type=path_name, metavar="FILE", help="write a new HPL.dat or HPL-MxP.dat file")
    parser.set_defaults(action=plan, words=of_kind("lu", "sparse"))


def plan(args: argparse.Namespace, argv: list[str], session: Session) -> int:
    """Plan a run on rank 0: print the plan, write the JSON file and the .dat file, and return the exit code."""
    if session.rank != 0:
        return ExitCode.VALID
    benchmark = args.benchmark
    if not (kind := kind_of(benchmark)):
        raise UsageError(f"mxpeak cannot plan {benchmark!r}; use one of {', '.join(of_kind('lu', 'sparse'))}")
    refuse_foreign(args, benchmark)
    if args.write_dat is not None and kind != "lu":
        raise UsageError(
            f"--write-dat writes only HPL.dat and HPL-MxP.dat; use mxpeak run {benchmark} --print-dat > FILE"
        )
    from mxpeak.cli.output import check_file, show
    from mxpeak.perf.simulation.lu import LuRun
    from mxpeak.perf.simulation.plan import prime_caution

    if args.write_dat is not None:
        check_file(Path(args.write_dat), flag="--write-dat")
    if args.json not in (None, "-"):
        check_file(Path(args.json), taken=[Path(args.write_dat)] if args.write_dat is not None else [])
    machine, notes = (machine_of(args), []) if args.machine is not None else _this_machine(args, benchmark)
    run: AnyRun
    if kind == "lu":
        run, size, bytes_per_rank, command = _lu(args, benchmark, machine)
    else:
        run, size, bytes_per_rank, command = _sparse(args, benchmark, machine)
    section, forecast = _prediction(benchmark, run, machine)
    if isinstance(run, LuRun) and not machine.gemm and section["rate_flops"] is not None:
        notes.append(
            f"rate and time assume the rate of the last run here with {run.ranks} ranks and N of at least "
            f"{run.n / 4:.0f}, plus or minus {LIKE_LAST:.0%}"
        )
    cautions = [*(prime_caution(run.ranks) if kind == "sparse" else []), *cautions_of(benchmark, run, machine)]
    if args.write_dat is not None:
        assert isinstance(run, LuRun)
        _write_dat(args.write_dat, benchmark, run)
    lines = [
        *heading_lines(benchmark, run, machine),
        *size,
        *prediction_lines(section, run.ranks),
        *([] if forecast is None else forecast_lines(forecast)),
        *inherited_lines(machine),
        *caution_lines(cautions),
        f"\n{command}",
        *(line for note in notes for line in wrapped("note      ", note)),
    ]
    body = {
        "schema": "mxpeak.plan/1",
        "benchmark": benchmark,
        "prediction": section,
        "memory": {"bytes_per_rank": bytes_per_rank},
        "command": command,
        **shared_sections(run, machine, cautions),
        "notes": notes,
    }
    show(body, "\n".join(lines) + "\n", args.json)
    return ExitCode.VALID


def _this_machine(args: argparse.Namespace, benchmark: str) -> tuple[Machine, list[str]]:
    """Return a machine like this host but with unknown rates, and the notes to print.

    Unset flags in `args` are set to the defaults of `mxpeak run`.
    """
    from mxpeak.perf.host import one_core_each, total_memory_bytes
    from mxpeak.perf.simulation.machines import Machine, Network

    memory, cores = total_memory_bytes(), len(one_core_each())
    if memory is None:
        raise UsageError("the system does not report its memory; use --machine FILE")
    here = args.ranks or prod(args.grid or (1,))
    if args.node_grid is not None and args.nodes is None:
        here = prod(args.node_grid)
    per_node = args.ranks_per_node or (here if args.nodes is None else 1)
    ranks = f"{per_node} rank{'s' * (per_node > 1)} per node"
    notes = [f"planned for nodes like this one: {cores} cores and {size_text(memory)}, {ranks}"]
    unknown = Network(1, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0)
    machine = Machine(
        name="this machine", title="nodes like this one", nodes=None, ranks_per_node=per_node, cores=cores,
        memory_bytes=memory / per_node, memory_rate=1.0, network=unknown, gemm={}, trsm={}, factor={},
    )  # fmt: skip
    args.mem = args.mem or "80%"
    if kind_of(benchmark) == "lu":
        defaults: Any = BENCHMARKS[benchmark].config
        args.nb = args.nb or defaults.nb[0]
        args.bcast, args.order = args.bcast or "1ringM", args.order or "row"
        args.split = 0.0 if args.split is None and benchmark == "hpl" else args.split
        args.precision = args.precision or (None if benchmark == "hpl" else "fp32")
    return machine, notes


def _lu(args: argparse.Namespace, benchmark: str, machine: Machine) -> tuple[LuRun, list[str], int, str]:
    """Plan the run of an LU benchmark.

    Return the run, the lines that describe it, its bytes per rank, and the command that starts it.
    """
    from mxpeak.perf.simulation.lu import node_block
    from mxpeak.perf.simulation.plan import footprint_of

    run = lu_run(args, benchmark, machine)
    tried: list[str] = []
    if machine.gemm:
        run, tried = _best_broadcast(args, benchmark, run, machine)
    parts = footprint_of(benchmark, run.precision, machine.devices, run.depth)(run.n, run.nb, run.P, run.Q)
    block = node_block(run.P, run.Q, machine.ranks_per_node, run.order, run.node_grid)
    why = f"  (the best of {', '.join(tried)})" if tried else ""
    per_rank, matrix = size_text(parts["total"] / run.ranks), size_text(parts["matrix"] / run.ranks)
    lines = [
        f"N         {run.n}",
        f"NB        {run.nb}",
        f"grid      {run.P}x{run.Q}, {block[0]}x{block[1]} per node, {run.order} order",
        f"bcast     {run.bcast}{why}",
        f"memory    {per_rank} per rank (matrix {matrix})",
    ]
    return run, lines, parts["total"] // run.ranks, _command(args, benchmark, run, machine)


def _best_broadcast(args: argparse.Namespace, benchmark: str, run: LuRun, machine: Machine) -> tuple[LuRun, list[str]]:
    """Return the run with the broadcast that is fastest in a simulation, and the names of the simulated broadcasts.

    The run is unchanged if --bcast is set or if the simulations would take more than a few seconds.
    """
    from mxpeak.perf.simulation.predict import simulate_lu

    if args.bcast is not None or run.ranks == 1 or not is_quick(run):
        return run, []
    runs = [replace(run, bcast=name) for name in TRIED]
    return max(runs, key=lambda run: simulate_lu(benchmark, run, machine).rate_flops), list(TRIED)


def _prediction(benchmark: str, run: AnyRun, machine: Machine) -> tuple[dict[str, Any], Any]:
    """Return the prediction as a JSON section, and the simulated forecast if the GEMM rates of the machine are known.

    Without these rates, the prediction of an LU run uses the rate of the last run here of about this size on as many
    ranks and in the same precision, and there is no forecast.
    """
    from mxpeak.perf.counts import hpl_flops
    from mxpeak.perf.simulation.lu import LuRun

    if machine.gemm:
        prediction = predicted(benchmark, run, machine)
        return prediction.section(), prediction.forecast
    low = None if benchmark == "hpl" or not isinstance(run, LuRun) else run.precision
    rate = last_rate(benchmark, run.ranks, run.n, precision=low) if isinstance(run, LuRun) else None
    if rate is None or not isinstance(run, LuRun):
        return dict.fromkeys(("rate_flops", "time_s", "low", "high")), None
    interval = {"low": (1 - LIKE_LAST) * rate, "high": (1 + LIKE_LAST) * rate}
    return {"rate_flops": rate, "time_s": hpl_flops(run.n) / rate, **interval}, None


def _sparse(args: argparse.Namespace, benchmark: str, machine: Machine) -> tuple[SparseRun, list[str], int, str]:
    """Plan the run of a sparse benchmark.

    Return the run, the lines that describe it, its bytes per rank, and the command that starts it.
    """
    run = sparse_run(args, benchmark, machine)
    box, need = run.box, box_bytes(run.box, benchmark, run.low)
    shape = f"--nx {box.nx} --ny {box.ny} --nz {box.nz} --npx {box.npx} --npy {box.npy} --npz {box.npz}"
    lines = [
        f"box       {box.nx}x{box.ny}x{box.nz} per rank, {box.gnx}x{box.gny}x{box.gnz} in total",
        f"ranks     {box.npx}x{box.npy}x{box.npz}",
        f"memory    {size_text(need)} per rank",
    ]
    if benchmark == "hpg-mxp" and (machine.gemm or args.precision is not None):  # otherwise, no rate is predicted
        lines += [f"precision {run.low}", *counting_lines(benchmark, run)]
        shape += f" --precision {run.low}"
    return run, lines, need, f"{_start(run.ranks, machine)} mxpeak run {benchmark} {shape}"


def _command(args: argparse.Namespace, benchmark: str, run: LuRun, machine: Machine) -> str:
    """Return the shell command that starts the planned LU run."""
    size = f"-N {run.n} --nb {run.nb} --grid {run.P}x{run.Q} --order {run.order}"
    flags = (
        f"--dat {args.write_dat}" if args.write_dat is not None else f"{size} --bcast {run.bcast} --depth {run.depth}"
    )
    # a .dat file cannot contain the other settings
    flags += f" --node-grid {run.node_grid[0]}x{run.node_grid[1]}" if run.node_grid else ""
    if benchmark != "hpl":
        flags += f" --precision {run.precision}"
    elif run.split:
        flags += f" --split {run.split:g}"
    return f"{_start(run.ranks, machine)} mxpeak run {benchmark} {flags}"


def _start(ranks: int, machine: Machine) -> str:
    per_node = min(machine.ranks_per_node, ranks)
    nodes = -(-ranks // per_node)
    if nodes == 1:
        return f"mpiexec -n {ranks}"
    return f"srun --nodes={nodes} --ntasks={ranks} --ntasks-per-node={per_node}"


def _write_dat(name: str, benchmark: str, run: LuRun) -> None:
    from mxpeak.cli.output import write_new

    form = BENCHMARKS[benchmark].input
    assert form is not None, "both LU benchmarks have an input file"
    settings: dict[str, Any] = {
        "n": (run.n,), "nb": (run.nb,), "grid": ((run.P, run.Q),), "order": run.order, "bcast": (run.bcast,),
        "depth": (run.depth,),
    }  # fmt: skip
    try:
        write_new(Path(name), load(form.writer)(BENCHMARKS[benchmark].config(**settings)))
    except OSError as error:
        raise cannot_write(name, error, "use another --write-dat FILE") from None
