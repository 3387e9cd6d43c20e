"""Share code between `mxpeak simulate` and `mxpeak plan`.

The module defines the flags for the machine and the run, and builds both from the flags. It also formats the run and
its prediction as text and as JSON.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, replace
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
from mxpeak.bench.hpl.config import HplConfig
from mxpeak.bench.hpl_mxp.config import HplMxpConfig
from mxpeak.bench.registry import kind_of
from mxpeak.configs.grid import squarest
from mxpeak.configs.lu import BCASTS
from mxpeak.errors import UsageError
from mxpeak.options import Option, integer, memory_bytes, options, path_name
from mxpeak.precision import PRECISIONS
from mxpeak.records import Caution, rate_text, three_digits

if TYPE_CHECKING:
    from mxpeak.layout.stencil import Box
    from mxpeak.perf.simulation.lu import LuForecast, LuRun
    from mxpeak.perf.simulation.machines import Machine
    from mxpeak.perf.simulation.predict import Prediction
    from mxpeak.perf.simulation.sparse import SparseForecast, SparseRun

AnyRun: TypeAlias = "LuRun | SparseRun"

WIDTH = 80
#: Largest product of ranks and steps of a run that is simulated several times to choose its settings.
QUICK = 3e6
#: Value of --machine that selects the measurements of `mxpeak tune` on this machine.
TUNED = "tuned"


def _flags() -> list[Option]:
    """Return the flags that describe a run. Unlike the same flags of `mxpeak run`, each accepts only one value."""
    of_run = {o.name: o.single for config in (HpgMxpConfig, HplConfig, HplMxpConfig) for o in options(config)}

    def flag(name: str, help: str, **changes: Any) -> Option:
        return replace(of_run[name], help=help, **changes)

    low, bcasts = ", ".join(PRECISIONS), ", ".join(BCASTS)
    nodes = flag("ranks", "number of nodes, as an alternative to --ranks", parse=integer(1), metavar="K")
    mem = "memory per device, as a share or size (default: 90%%; 80%% without --machine)"
    side = "number of ranks in the {} direction (default: a grid close to a cube)"
    return [
        flag("ranks", "number of ranks, one per device (default: one full node)", parse=integer(1)),
        replace(nodes, flags=("--nodes",)),
        flag("ranks", "ranks per node (default: as described for the machine)", flags=("--ranks-per-node",)),
        flag("mem", mem, metavar="80%|64GiB"),
        flag("n", "order of the matrix (default: the largest that fits)"),
        flag("nb", "block size (default: the fastest in a simulation)"),
        flag("precision", f"low precision: {low} (default: the machine's lowest; fp32 for hpg-mxp)", group="problem"),
        flag("nx", "grid points per rank in each direction (default: the largest that fit)", parse=integer(8)),
        *(
            flag(f"n{x}", f"grid points per rank in the {x} direction (default: as in x)", parse=integer(8))
            for x in "yz"
        ),
        flag("grid", "process grid (default: as square as possible)"),
        flag("node_grid", "part of the process grid on each node (default: the least communication)"),
        flag("order", "order in which ranks fill the grid (default: column; row without --machine)"),
        flag("bcast", f"panel broadcast algorithm: {bcasts} (default: chosen by plan; 2ringM for simulate)"),
        flag("depth", "look-ahead depth: 0 or 1 (default: 1)", parse=integer(0, 1)),
        flag("split", "fraction of columns in the split update (default: 0.5; 0 without --machine)"),
        *(flag(f"np{x}", side.format(x), metavar=f"NP{x.upper()}") for x in "xyz"),
    ]


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that describe a run and its machine to a parser."""
    groups = {title: parser.add_argument_group(title) for title in ("machine", "problem", "grid")}
    machine = "built-in name, FILE, FILE:NAME, or tuned (mxpeak tune)"
    groups["machine"].add_argument("--machine", type=path_name, metavar="FILE|NAME", help=machine)
    for o in _flags():
        groups["machine" if o.group == "hardware" else o.group].add_argument(
            *o.flags, type=o.parse, help=o.help, metavar=o.metavar
        )
    parser.add_argument("--json", type=path_name, metavar="FILE", help="write JSON to FILE; use - to print only JSON")


def machine_of(args: argparse.Namespace) -> Machine:
    """Return the machine that --machine names, with the ranks per node from --ranks-per-node."""
    from mxpeak.perf.simulation.machines import find_machine

    size = None if args.mem is None or args.mem.endswith("%") else float(memory_bytes(args.mem, 0))
    machine = find_machine(_tuned_table(args) if args.machine == TUNED else args.machine, size)
    if args.ranks_per_node is None:
        return machine
    if args.ranks_per_node > machine.cores:
        raise UsageError(
            f"--ranks-per-node {args.ranks_per_node} is too large, because a node of {machine.name} has "
            f"{machine.cores} cores; use at most {machine.cores}"
        )
    return replace(machine, ranks_per_node=args.ranks_per_node)


def _tuned_table(args: argparse.Namespace) -> str:
    """Return the path of the machine file that `mxpeak tune` wrote for the number of ranks in `args`.

    Without a number of ranks, the smallest measured number is used.
    """
    from mxpeak.runtime.tuned import this_store

    store = this_store()
    tables, sides = store.tables(), [args.npx, args.npy, args.npz]
    grid = prod(args.grid) if args.grid else prod(sides) if all(sides) else None
    ranks = args.ranks or grid or args.ranks_per_node or min((ranks for ranks, _ in tables), default=1)
    layout = max((layout for layout in tables if layout[0] == ranks), default=None)
    if layout is None:
        have = ", ".join(f"{R} of {T} threads" for R, T in tables) or "none"
        wanted = f"{ranks} rank{'s' * (ranks > 1)}"
        raise UsageError(
            f"--machine {TUNED} has no measurements of this machine with {wanted} (measured: {have}); run "
            f"mxpeak tune --ranks {ranks}"
        )
    return str(tables[layout])


def ranks_of(args: argparse.Namespace, machine: Machine) -> int:
    """Return the number of ranks from --ranks, --nodes or the process grid; the default is the number per node.

    Raise a UsageError if these flags contradict each other.
    """
    from mxpeak.perf.simulation.plan import check_ranks

    per_node = machine.ranks_per_node
    sides = [args.npx, args.npy, args.npz]
    given = {
        "--ranks": args.ranks,
        "--nodes": None if args.nodes is None else args.nodes * per_node,
        "--grid": None if args.grid is None else prod(args.grid),
        "--npx --npy --npz": None if None in sides else prod(sides),
    }
    numbers = {flag: ranks for flag, ranks in given.items() if ranks is not None}
    if len(set(numbers.values())) > 1:
        raise UsageError(
            "the flags set different numbers of ranks: "
            + ", ".join(f"{flag} sets {ranks}" for flag, ranks in numbers.items())
            + (f" ({per_node} per node)" if args.nodes is not None else "") + "; use only one of these flags"
        )  # fmt: skip
    ranks = next(iter(numbers.values()), per_node)
    check_ranks(machine, ranks)
    return int(ranks)


def refuse_foreign(args: argparse.Namespace, benchmark: str) -> None:
    """Raise a UsageError for flags that do not apply to the benchmark."""
    lu = ("n", "nb", "grid", "node_grid", "order", "bcast", "depth", "split")
    sparse = ("nx", "ny", "nz", "npx", "npy", "npz")
    foreign = sparse if kind_of(benchmark) == "lu" else lu
    if benchmark == "hpl-mxp":
        foreign = (*foreign, "split")
    if benchmark in ("hpl", "hpcg"):
        foreign = (*foreign, "precision")
    for name in foreign:
        if getattr(args, name, None) is not None:
            flag = "-N" if name == "n" else "--" + name.replace("_", "-")
            raise UsageError(f"{flag} does not apply to {benchmark}; remove {flag}")


def device_bytes(args: argparse.Namespace, machine: Machine) -> int:
    """Return the usable memory per device in bytes: --mem, or 90 % of the device's memory."""
    return memory_bytes(args.mem or "90%", int(machine.memory_bytes))


def _check_block(block: tuple[int, int] | None, P: int, Q: int, machine: Machine) -> None:
    """Raise a UsageError if the product of --node-grid is not the number of ranks per node."""
    from mxpeak.layout.grid import node_grids

    whole = machine.ranks_per_node >= P * Q
    per_node = min(machine.ranks_per_node, P * Q)
    if block is None or (here := block[0] * block[1]) == per_node:
        return
    blocks = node_grids(P, Q, per_node)
    instead = f"use --node-grid {' or '.join(f'{p}x{q}' for p, q in blocks)}" if blocks else "remove --node-grid"
    if here <= machine.cores:
        instead += f", or use --ranks-per-node {here}"
    has = f"a node of {machine.name} has {'all ' if whole else ''}{per_node} ranks"
    raise UsageError(f"--node-grid {block[0]}x{block[1]} has {here} ranks, but {has}; {instead}")


def lu_run(args: argparse.Namespace, benchmark: str, machine: Machine, **settings: Any) -> LuRun:
    """Build the simulated run of an LU benchmark from the flags.

    Settings that the user did not give have default values. Raise an error if the matrix does not fit into memory. The
    default block size is halved as long as a simulation gets faster, unless the simulations would take too long.
    """
    from mxpeak.perf.simulation.plan import good_block, smaller_block
    from mxpeak.perf.simulation.predict import simulate_lu

    low = "fp64" if benchmark == "hpl" else args.precision or _low(machine)
    if machine.gemm:  # the memory of this machine is known, but not its rates
        machine.check_rates(benchmark, low)
    if args.nb is not None:
        return _lu_run(args, benchmark, machine, low, args.nb, settings)
    curve = machine.curve("gemm", low)
    best = run = _lu_run(args, benchmark, machine, low, good_block(curve), settings)
    rate = 0.0
    while is_quick(run) and (forecast := simulate_lu(benchmark, run, machine).rate_flops) > rate:
        best, rate = run, forecast
        if (nb := smaller_block(curve, run.nb)) is None:
            break
        run = _lu_run(args, benchmark, machine, low, nb, settings)
    return best


def is_quick(run: LuRun) -> bool:
    """Return whether a simulation of the run takes at most a few seconds."""
    return run.ranks * (run.n // run.nb) <= QUICK


def _lu_run(
    args: argparse.Namespace, benchmark: str, machine: Machine, low: str, nb: int, settings: Mapping[str, Any]
) -> LuRun:
    """Build the simulated run of an LU benchmark with this precision and block size."""
    from mxpeak.layout.grid import ProcessGrid, best_node_grid
    from mxpeak.perf.simulation.lu import LuRun
    from mxpeak.perf.simulation.plan import check_fit, footprint_of, good_block, good_order

    ranks = ranks_of(args, machine)
    P, Q = args.grid or squarest(ranks)
    hpl = benchmark == "hpl"
    node_grid = args.node_grid or best_node_grid(
        P, Q, machine.ranks_per_node, shares_cores=hpl and machine.devices, panels=hpl
    )
    order = args.order or "column"
    ProcessGrid(P, Q, order, node_grid)  # raises an error if the node grids do not tile the process grid
    _check_block(args.node_grid, P, Q, machine)
    depth = 1 if args.depth is None else args.depth
    footprint, per_rank = footprint_of(benchmark, low, machine.devices, depth), device_bytes(args, machine)
    n = args.n or good_order(per_rank * ranks, nb, P, Q, footprint)
    whole = machine.memory_bytes if args.mem is None else per_rank
    check_fit(benchmark, n, nb, P, Q, low, whole, footprint)
    if nb > n:
        if args.n:
            raise UsageError(f"--nb {nb} is larger than N = {n}; use --nb {n}, or a larger -N")
        good = good_block(machine.curve("gemm", low)) if machine.gemm else n
        raise UsageError(
            f"--nb {nb} is larger than N = {n}, the largest N that fits with this block size; use --nb "
            f"{good}, or remove --nb"
        )
    split = args.split if args.split is not None else (0.5 if benchmark == "hpl" else 0.0)
    return LuRun(
        n=n, nb=nb, P=P, Q=Q, precision=low, order=order, node_grid=node_grid, bcast=args.bcast or "2ringM",
        depth=depth, split=split, **settings,
    )  # fmt: skip


def _low(machine: Machine) -> str:
    """Return the lowest precision that the HPL-MxP rules allow and for which the machine has a GEMM rate."""
    return next(name for name in ("fp16", "bf16", "tf32", "fp32", "fp64") if name in machine.gemm)


def sparse_run(args: argparse.Namespace, benchmark: str, machine: Machine, **settings: Any) -> SparseRun:
    """Build the simulated run of a sparse benchmark from the flags.

    Without --nx, the box is the largest cube that fits into memory. Raise an error if the box does not fit into
    memory.
    """
    from mxpeak.errors import ResourceError
    from mxpeak.layout.stencil import LEVELS, Box, check_box, largest_cube
    from mxpeak.perf.simulation.sparse import SparseRun
    from mxpeak.records import size_text

    ranks = ranks_of(args, machine)
    grid = _rank_grid(args, ranks)
    low = args.precision or ("fp64" if benchmark == "hpcg" else "fp32")
    if low not in ("fp64", "fp32", "bf16", "fp16"):
        raise UsageError(f"mxpeak cannot simulate hpg-mxp with --precision {low}; use fp64, fp32, bf16 or fp16")
    budget = device_bytes(args, machine)
    if args.nx is None:
        if args.ny is not None or args.nz is not None:
            raise UsageError("--ny and --nz need --nx; add --nx")
        sides = range(largest_cube(), 15, -(2 ** (LEVELS - 1)))
        nx = next((n for n in sides if box_bytes(Box.of(0, (n, n, n), grid), benchmark, low) <= budget), None)
        if nx is None:
            raise ResourceError(f"even --nx 16 does not fit into {size_text(budget)} per rank; use a larger --mem")
        shape = (nx, nx, nx)
    else:
        shape = (args.nx, args.ny or args.nx, args.nz or args.nx)
    box = Box.of(0, shape, grid)
    check_box(box, rules=False)
    need, limit = box_bytes(box, benchmark, low), machine.memory_bytes if args.mem is None else budget
    if need > limit:
        raise ResourceError(
            f"a box of {'x'.join(map(str, shape))} needs {size_text(need)} per rank, but a rank has only "
            f"{size_text(limit)}; use a smaller --nx"
        )
    return SparseRun(box=box, benchmark=benchmark, low=low, iterations=50 if benchmark == "hpcg" else 300, **settings)


def _rank_grid(args: argparse.Namespace, ranks: int) -> tuple[int, int, int]:
    from mxpeak.layout.stencil import process_grid

    given = [args.npx, args.npy, args.npz]
    if given == [None] * 3:
        return process_grid(ranks)
    if None in given:
        raise UsageError("--npx, --npy and --npz must be used together; add the missing flags, or remove all of them")
    return args.npx, args.npy, args.npz


def box_bytes(box: Box, benchmark: str, low: str) -> int:
    """Return the estimated memory of a sparse run, in bytes per rank.

    The estimate includes the matrices of all levels and the vectors. A row has 27 entries, and all levels together
    have about 8/7 times the rows of the finest level. For HPG-MxP, it also includes two bases of 31 vectors.
    """
    from mxpeak.precision import precision

    n, w = box.rows, precision(low).bytes
    levels = 8 / 7
    double = 27 * n * levels * 12 + 9 * n * levels * 8
    if benchmark == "hpcg":
        return int(double)
    inner = 27 * n * levels * (w + 4) + 31 * n * max(w, 4)
    return int(double + inner + 31 * n * 8)


def predicted(benchmark: str, run: AnyRun, machine: Machine) -> Prediction[Any]:
    """Simulate a run and return the predicted rate with its uncertainty interval."""
    from mxpeak.perf.simulation.lu import LuRun
    from mxpeak.perf.simulation.predict import predict, simulate_lu
    from mxpeak.perf.simulation.sparse import simulate_sparse

    if isinstance(run, LuRun):
        return predict(lambda varied: simulate_lu(benchmark, run, varied), machine)
    return predict(lambda varied: simulate_sparse(run, varied), machine)


def shared_sections(run: AnyRun, machine: Machine, cautions: list[Caution]) -> dict[str, Any]:
    """Return the sections that the JSON output of `simulate` and `plan` share: settings, machine and warnings."""
    return {
        "config": _config(run),
        "machine": {
            **{name: getattr(machine, name) for name in ("name", "title", "ranks_per_node", "memory_bytes")},
            "nodes": -(-run.ranks // machine.ranks_per_node),
            "sources": dict(machine.sources),
            "inherited": list(machine.inherited),
        },
        "warnings": [asdict(caution) for caution in cautions],
    }


def _config(run: AnyRun) -> dict[str, Any]:
    """Return the settings of a run as a dictionary for the JSON output."""
    from mxpeak.perf.simulation.lu import LuRun

    shared = {
        "ranks": run.ranks, "gpu_aware": run.aware, "slow": {str(rank): factor for rank, factor in run.slow.items()},
    }  # fmt: skip
    if isinstance(run, LuRun):
        names = ("n", "nb", "P", "Q", "order", "node_grid", "bcast", "depth", "split", "precision", "nics")
        return {**{name: getattr(run, name) for name in names}, "core_sharing": run.core_sharing, **shared}
    box = {name: getattr(run.box, name) for name in ("nx", "ny", "nz", "npx", "npy", "npz")}
    settings = {name: getattr(run, name) for name in ("iterations", "counting", "penalty")}
    return {**box, "precision": run.low, **settings, **shared}


def heading_lines(benchmark: str, run: AnyRun, machine: Machine) -> list[str]:
    """Return text lines with the benchmark, its ranks and nodes, and the machine."""
    nodes = -(-run.ranks // machine.ranks_per_node)
    counts = f"{run.ranks} rank{'s' * (run.ranks > 1)} on {nodes} node{'s' * (nodes > 1)}"
    return [f"{benchmark} with {counts}", *wrapped("machine   ", machine.title)]


def forecast_lines(forecast: LuForecast | SparseForecast) -> list[str]:
    """Return text lines with the shares of the time that exposed communication and each phase take."""
    shares = ", ".join(
        f"{name} {100 * seconds / forecast.time_s:.1f} %"
        for name, seconds in forecast.phases.items()
        if seconds >= 5e-4 * forecast.time_s
    )
    return [
        f"exposed   {100 * forecast.exposed:.1f} % of the time is communication without overlap",
        *wrapped("phases    ", shares),
    ]


def prediction_lines(prediction: Mapping[str, Any], ranks: int) -> list[str]:
    """Return text lines with the predicted rate, the rate per rank, the interval and the time."""
    if prediction["rate_flops"] is None:
        return ["rate      unknown"]
    rate = prediction["rate_flops"]
    return [
        f"rate      {rate_text(rate)}, {rate_text(rate / ranks)} per rank",
        f"interval  {rate_text(prediction['low'])} to {rate_text(prediction['high'])}",
        f"time      {three_digits(prediction['time_s'])} s",
    ]


def counting_lines(benchmark: str, run: SparseRun) -> list[str]:
    """Return a text line with the flop count and the penalty of the predicted rate of HPG-MxP."""
    if benchmark != "hpg-mxp":
        return []
    penalty = "" if run.low == "fp64" else f", times a penalty of {run.penalty:.3g}"
    return [f"counted   flops by the formula of the reference code{penalty}"]


def cautions_of(benchmark: str, run: AnyRun, machine: Machine) -> list[Caution]:
    """Return cautions about unusual settings: sizes and grids of an LU run, and a partly filled last node."""
    from mxpeak.perf.simulation.lu import LuRun
    from mxpeak.perf.simulation.plan import lu_cautions, part_node_caution
    from mxpeak.precision import precision

    entry_bytes = precision("fp64" if benchmark == "hpl" else "fp32").bytes
    odd = lu_cautions(run.n, run.nb, run.P, run.Q, entry_bytes) if isinstance(run, LuRun) else []
    return [*odd, *part_node_caution(run.ranks, machine.ranks_per_node)]


def inherited_lines(machine: Machine) -> list[str]:
    """Return text lines with the values that a machine inherits from another, or no lines."""
    if not machine.inherited:
        return []
    compute, network = (f"{100 * spread:.0f} %" for spread in machine.spread)
    names = ", ".join(machine.inherited)
    text = f"{len(machine.inherited)} values are those of {machine.base}: {names}"
    return wrapped("inherited ", f"{text}; the interval is for ±{compute} of compute and ±{network} of network rates")


def caution_lines(cautions: list[Caution]) -> list[str]:
    """Return text lines with the cautions and their advice."""
    return [line for caution in cautions for line in wrapped("warning   ", f"{caution.text}; {caution.hint}")]


def wrapped(head: str, text: str) -> list[str]:
    """Wrap a text at 80 columns, with a heading in front of the first line, and return the lines."""
    return textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
