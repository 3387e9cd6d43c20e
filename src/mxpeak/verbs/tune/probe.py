"""Time single kernels on all ranks at the same time, for the figures of the papers and the parameters of the model.

    gemm        C -= A B over (m, n, k) in each precision that is not emulated      OLCF, figs. 3, 5 and 6
    trsm, factor, fact   solves and factorizations of a step, by NB                 OLCF, figs. 5 and 6; rocHPL, fig. 5
    ld          the same product over m = n, with other leading dimensions          OLCF, fig. 7
    bcast       each broadcast of panels                                            OLCF, fig. 8
    pingpong    time of a message from rank 0 to rank 1
    pair        additional time per column of FACT if two ranks share a panel
    turn        time per message, including waits, in solves with distributed L and U
    read, cast, copy, rows, generate, solve, sweep   the other parts of a run

A run reads its operands from memory, not from cache. Probes therefore alternate between several operands.

A probe is a plain dictionary that can be sent to other processes and stored. A measured probe has the `seconds` of the
slowest rank or a `rate` per rank. The measured times are medians, because a run of several seconds does not reach the
machine's best rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from itertools import cycle, product
from statistics import median
from typing import Any

from mxpeak.bench.harness import Bench, repeated
from mxpeak.bench.lu import gemm_probe
from mxpeak.comm.base import Task
from mxpeak.comm.broadcast import broadcast
from mxpeak.comm.collectives import allreduce_scalar
from mxpeak.comm.exchange import allreduce_by
from mxpeak.comm.grid import Grid, make_grid
from mxpeak.configs.grid import squarest
from mxpeak.configs.lu import BCASTS
from mxpeak.configs.run import RunConfig
from mxpeak.distributed.dense import dist_matrix
from mxpeak.distributed.sources import GeneratedSystem
from mxpeak.distributed.stencil import weights
from mxpeak.kernels.contract import Kernels
from mxpeak.kernels.contract.lu import Exchange, Panel, better_candidate
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.generators import generator
from mxpeak.layout.grid import ProcessGrid
from mxpeak.layout.panel_plan import panel_plan
from mxpeak.layout.stencil import Box
from mxpeak.perf.simulation.lu import hops, owned
from mxpeak.perf.simulation.machine_from_measurements import panel_flops
from mxpeak.precision import precision
from mxpeak.solvers.lu.triangular import Factored
from mxpeak.verbs.tune.operands import alone, filled, near_one, triangle

Probe = dict[str, Any]

#: Minimum seconds per kernel, and minimum and maximum number of repetitions.
SECONDS, MIN_RUNS, MAX_RUNS = 0.1, 3, 40
#: Seconds of uninterrupted work if ranks share a core. This is many times the scheduler's time slice.
SHARED_S = 0.03
#: On CPUs and GPUs: inner sizes (NB), the order of C for rates by NB, and the other orders of C in the heat map.
INNER, GPU_INNER = (256, 128, 512, 192, 384, 64, 768), (512, 256, 1024, 128, 2048, 3072, 4096)
SIDE, GPU_SIDE = 3072, 8192
SIDES, GPU_SIDES = (256, 512, 1024, 2048), (1024, 2048, 4096, 16384)
#: Values of m and n, and of k, in the map of GEMM rates over (m, n, k), and of NB in the rates over the trailing size.
MAP, GPU_MAP = (256, 1024, 3072), (1024, 4096, 8192)
MAP_INNER, GPU_MAP_INNER = (64, 256, 768), (256, 1024, 3072)
#: Inner size for the other orders in the heat map, for row moves, and for kernels that are measured with one NB.
AT, GPU_AT = 256, 512
#: Number of entries that are added to the leading dimension LD, which is a power of two.
PADDING = (0, 8, 16, 64, 136)
LD, GPU_LD = 2048, 8192
#: Number of operands between which a probe alternates, so that they do not stay in the cache.
PLACES = 6
MESSAGES = (8, 2**16, 2**20, 2**23)
#: Points per side of the box in the `sweep` probe.
BOX, GPU_BOX = 48, 128


def probes(ranks: int, low: Iterable[str], *, on_gpu: bool, scale: int = 1) -> list[Probe]:
    """Return the probes of a layout. The probes that the machine table needs come first.

    `low` contains the low precisions to measure, and `scale` divides the sizes for tests.
    """
    side, at = (GPU_SIDE // scale, GPU_AT // scale) if on_gpu else (SIDE // scale, AT // scale)
    inner = [max(8, k // scale) for k in (GPU_INNER if on_gpu else INNER)]
    sides = tuple(max(16, s // scale) for s in (GPU_SIDES if on_gpu else SIDES))
    formats = ["fp64", "fp32", *low]
    big = 5 * side // 3
    probes: list[Probe] = [{"name": name, "m": big} for name in ("read", "cast", "generate", "solve")]
    probes += [{"name": name, "m": big, "k": at} for name in ("copy", "rows")]
    probes.append({"name": "sweep", "m": max(16, (GPU_BOX if on_gpu else BOX) // scale // 8 * 8)})
    probes += [{"name": "pingpong", "bytes": size} for size in MESSAGES] * (ranks > 1)
    if ranks > 1 and not on_gpu:  # candidates are in the memory of the host
        probes.append({"name": "pair", "m": 8 * at, "k": at})
    probes += [{"name": "turn", "m": side, "k": 2 * at}] * (ranks > 1)
    for k in inner:
        probes += [{"name": "gemm", "precision": name, "m": side, "n": side, "k": k} for name in formats]
        probes += [{"name": "trsm", "precision": name, "m": side, "k": k} for name in ("fp64", "fp32")]
        probes.append({"name": "factor", "precision": "fp32", "k": k})
        probes += [{"name": "fact", "precision": "fp64", "m": m, "k": k} for m in (big, 4 * k)]
    if ranks > 1:
        probes += [{"name": "bcast", "bcast": name, "bytes": size} for size in MESSAGES[2:] for name in BCASTS]
    probes += [{"name": "gemm", "precision": name, "m": s, "n": s, "k": at} for s in sides for name in formats]
    wide = (GPU_LD if on_gpu else LD) // scale
    probes += [
        {"name": "ld", "precision": name, "m": m, "k": at, "ld": wide + pad}
        for name in formats
        for m in (wide, wide // 2, wide // 4)
        for pad in PADDING
    ]
    edges = [max(16, s // scale) for s in (GPU_MAP if on_gpu else MAP)]
    blocks = [max(8, k // scale) for k in (GPU_MAP_INNER if on_gpu else MAP_INNER)]
    shapes = [*((s, s) for s in sides), *product(edges, edges)]  # trailing matrices, and the map
    probes += [
        {"name": "gemm", "precision": name, "m": m, "n": n, "k": k}
        for k in blocks
        for m, n in shapes
        for name in formats
    ]
    probes += [
        {"name": "trsm", "precision": name, "m": m, "k": k} for k in blocks for m in sides for name in ("fp64", "fp32")
    ]
    return [probe for at, probe in enumerate(probes) if probe not in probes[:at]]


def native(kernels: Kernels, *, on_gpu: bool = False) -> list[str]:
    """Return a list with the default low precision of HPL-MxP; the list is empty if this precision is emulated."""
    names = ("fp16", "bf16") if on_gpu else ("bf16", "fp16")
    return [name for name in names if not kernels.emulates(name)][:1]


def measured(bench: Bench[RunConfig], probe: Probe) -> Probe:
    """Measure a probe, and return it with its seconds or its rate, which are equal on all ranks. Collective."""
    name = probe["name"]
    if name in _MESSAGES:
        return {**probe, "seconds": _MESSAGES[name](bench, probe)}
    work, amount = _WORK[name](bench.kernels, probe, bench.config.on_gpu)
    seconds = _usual(bench, work)
    if name in ("fact", "rows"):
        return {**probe, **({"bytes": amount} if name == "rows" else {}), "seconds": seconds}
    return {**probe, "seconds": seconds, "rate": amount / seconds}


def _usual(bench: Bench[RunConfig], work: Callable[[], object]) -> float:
    """Return the median time of `work` on the slowest rank, in seconds. Collective.

    If ranks share cores, each measurement repeats `work`. A shorter measurement would end within one time slice, as if
    each rank had its own core.
    """
    once_s = bench.slowest(work)  # touches pages and wakes threads
    # all ranks must repeat collective work equally often, even if only one node shares its cores
    shared = allreduce_scalar(bench.comm, float(bench.placement.crowded), "max", bench.kernels.xp) > 0.0
    times = 1 + int(SHARED_S / max(once_s, 1e-6)) if shared else 1

    def in_a_row() -> None:
        for _ in range(times):
            work()

    return max(
        1e-9,
        median(repeated(lambda: bench.slowest(in_a_row), min_runs=MIN_RUNS, max_runs=MAX_RUNS, seconds=SECONDS))
        / times,
    )


#: The kernels whose work is measured in bytes, and in entries of the matrix. The work of the others is in flops.
IN_BYTES, IN_ENTRIES = ("read", "cast", "copy", "rows", "sweep"), ("generate", "solve")
#: The function to time, and its amount of work in flops, bytes or entries.
Work = tuple[Callable[[], object], float]


def _in_turn(work: Callable[[Any], object], places: Iterable[Any]) -> Callable[[], object]:
    """Return a function that calls `work` with the next operand of a cyclic sequence."""
    following = cycle(places)
    return lambda: work(next(following))


def _gemm(kernels: Kernels, probe: Probe, on_gpu: bool) -> Work:
    m, n, k = probe["m"], probe["n"], probe["k"]
    return gemm_probe(kernels, m, n, k, probe["precision"]), 2.0 * m * n * k


def _ld(kernels: Kernels, probe: Probe, on_gpu: bool) -> Work:
    """Prepare a product C -= A B for timing, in which C has the leading dimension `ld`.

    In fp64, A is a panel, and B also has this leading dimension, as in HPL. In the other formats, A and B are operands,
    as in HPL-MxP.
    """
    m, k, ld = probe["m"], probe["k"], probe["ld"]
    if probe["precision"] != "fp64":
        return gemm_probe(kernels, m, m, k, probe["precision"], ld), 2.0 * m * m * k
    C, B = (kernels.buffer(rows * ld).reshape((rows, ld)) for rows in (m, k))
    C[:] = 0.0
    filled(kernels, B, 2)
    A = filled(kernels, kernels.panel(kernels.buffer(kernels.panel_size(m, k)), m, k), 1)
    return lambda: kernels.subtract_product(C[:, :m], A, B[:, :m]), 2.0 * m * m * k


def _trsm(kernels: Kernels, probe: Probe, on_gpu: bool) -> Work:
    """Prepare triangular solves for timing: both sides in fp32 as in HPL-MxP, or the left side in fp64 as in HPL."""
    m, k, name = probe["m"], probe["k"], probe["precision"]
    T = triangle(kernels, k, name)
    right = filled(kernels, kernels.matrix(k, PLACES * m, name), 1)
    A21 = filled(kernels, kernels.matrix(PLACES * m, k, name), 2)
    low = next(iter(native(kernels, on_gpu=on_gpu)), name) if name == "fp32" else name

    def both(place: slice) -> None:
        kernels.solve_unit_lower(T, right[:, place], low)
        if name == "fp32":
            kernels.solve_right_upper(A21[place], T, low)

    places = (slice(j * m, (j + 1) * m) for j in range(PLACES))
    return _in_turn(both, places), float(k) ** 2 * m * (2 if name == "fp32" else 1)


def _factor(kernels: Kernels, probe: Probe, on_gpu: bool) -> Work:
    k, name = probe["k"], probe["precision"]
    T, D = (triangle(kernels, k, name) for _ in range(2))
    singular = kernels.xp.zeros(1)

    def factor() -> None:
        kernels.copy(T, D)
        kernels.factor_block(D, singular)

    return factor, 2.0 / 3.0 * k**3


def _fact(kernels: Kernels, probe: Probe, on_gpu: bool) -> Work:
    """Prepare the factorization of an m×k panel on one rank, without messages, for timing."""
    m, k = probe["m"], probe["k"]
    return _factoring(kernels, m, k, BlockCyclic(m, k, 0, 1), None), panel_flops(m, k)


def _factoring(kernels: Kernels, m: int, k: int, rows: BlockCyclic, exchange: Exchange | None) -> Callable[[], object]:
    """Return a function that copies an m×k panel and factors it; `rows` is the distribution of its rows."""
    source = filled(kernels, kernels.matrix(m, max(m, PLACES * k)), 1 + rows.p)
    A = kernels.panel(kernels.buffer(kernels.panel_size(m, k)), m, k)
    L1 = kernels.panel(kernels.buffer(kernels.panel_size(k, k)), k, k)
    top, plan = k if rows.p == 0 else 0, panel_plan(k, 8, 2, "right")
    panel = Panel(A, L1, kernels.buffer(k + 1), rows, 0, top, plan, "right")

    def factor(columns: slice) -> None:
        kernels.copy(source[:, columns], A)
        kernels.factor_panel(panel, exchange)

    return _in_turn(factor, (slice(j, j + k) for j in range(0, source.shape[1] - k + 1, k)))


def _read(kernels: Kernels, probe: Probe, on_gpu: bool) -> Work:
    m = probe["m"]
    A, x, y = filled(kernels, kernels.matrix(m, m), 1), kernels.xp.zeros(m), kernels.xp.zeros(m)
    return lambda: kernels.add_matvec(y, A, x), 8.0 * m * m


def _cast(kernels: Kernels, probe: Probe, on_gpu: bool) -> Work:
    m, k = probe["m"], GPU_AT if on_gpu else AT
    low = next(iter(native(kernels, on_gpu=on_gpu)), "fp32")
    source = filled(kernels, kernels.matrix(m, PLACES * k, "fp32"), 1)
    places = []
    for j in range(PLACES):
        target = kernels.operand_matrix(kernels.operand_buffer(m, k, low, "left"), m, k, low, "left")
        places.append((source[:, j * k : (j + 1) * k], target))
    cast = _in_turn(lambda place: kernels.cast(place[0], place[1], low), places)
    return cast, float(m * k * (4 + precision(low).bytes))


def _copy(kernels: Kernels, probe: Probe, on_gpu: bool) -> Work:
    """Prepare the copy of k matrix columns into a panel for timing. Panel factorizations start with this copy."""
    m, k = probe["m"], probe["k"]
    A = filled(kernels, kernels.matrix(m, m), 1)
    panel = kernels.panel(kernels.buffer(kernels.panel_size(m, k)), m, k)
    places = [A[:, j : j + k] for j in range(0, m - k + 1, k)]
    return _in_turn(lambda place: kernels.copy(place, panel), places), 8.0 * m * k


def _rows(kernels: Kernels, probe: Probe, on_gpu: bool) -> Work:
    """Prepare the copy of k pivot rows into a block row for timing."""
    m, k = probe["m"], probe["k"]
    A = filled(kernels, kernels.matrix(m, m), 1)
    places = []
    for block in range(0, min(PLACES, m // k - 1) * k, k):
        below = list(range(block + k, m)) + list(range(block))
        sources = kernels.indices(below[:: max(1, len(below) // k)][:k])
        places.append((block, sources, sources, kernels.indices(list(range(k)))))
    return _in_turn(lambda place: kernels.permute_rows(A, *place), places), 8.0 * k * m


def _generate(kernels: Kernels, probe: Probe, on_gpu: bool) -> Work:
    m = probe["m"]
    system, x = GeneratedSystem(alone(), m, min(m, AT), generator("sqrt-n", m), kernels), kernels.xp.zeros(m)
    return lambda: system.multiply(x), float(m) ** 2


def _solve(kernels: Kernels, probe: Probe, on_gpu: bool) -> Work:
    m = probe["m"]
    return _solving(kernels, alone(), m, min(m, GPU_AT if on_gpu else AT)), float(m) ** 2


def _solving(kernels: Kernels, grid: Grid, n: int, nb: int) -> Callable[[], object]:
    """Return a function that computes U^-1 L^-1 r with fp32 factors L and U of order n on a process grid."""
    A = dist_matrix(grid, n, n, nb, kernels, "fp32")
    near_one(kernels, A.local, A.rows, A.cols)
    factors, r = Factored(A, kernels), kernels.xp.ones(A.rows.local_size)
    return lambda: factors.solve(r)


def _sweep(kernels: Kernels, probe: Probe, on_gpu: bool) -> Work:
    """Prepare a forward Gauss–Seidel sweep in fp64, in the default order and storage, for timing.

    The bytes are counted as in the simulation.
    """
    sparse, box = kernels.sparse, Box(probe["m"], probe["m"], probe["m"])
    rows = sparse.stencil_rows(box, weights())
    order = sparse.order(rows, "greedy" if on_gpu else "natural")
    A = sparse.store(rows, order, "fp64", "fp64", "sell" if on_gpu else "rows")
    x, b = sparse.halo_vector(A), sparse.xp.zeros(rows.n)
    return lambda: sparse.sweep_forward(A, b, x), rows.n * (27.0 * 12 + 10 * 8)


_WORK: dict[str, Callable[[Kernels, Probe, bool], Work]] = {
    "gemm": _gemm, "ld": _ld, "trsm": _trsm, "factor": _factor, "fact": _fact, "read": _read, "cast": _cast,
    "copy": _copy, "rows": _rows, "generate": _generate, "solve": _solve, "sweep": _sweep,
}  # fmt: skip


def _pingpong(bench: Bench[RunConfig], probe: Probe) -> float:
    """Measure the time of a message between ranks 0 and 1, in seconds: half of a round trip. Collective."""
    comm, buffer = bench.comm, _message(bench.kernels, probe)

    def there_and_back() -> None:
        for sender in (0, 1):
            if comm.rank == sender:
                comm.isend(buffer, 1 - sender).wait()
            elif comm.rank == 1 - sender:
                comm.irecv(buffer, sender).wait()

    return _usual(bench, there_and_back) / 2


def _bcast(bench: Bench[RunConfig], probe: Probe) -> float:
    """Measure the time of a broadcast from rank 0 with the algorithm of the probe, in seconds. Collective."""
    buffer = _message(bench.kernels, probe)
    return _usual(bench, lambda: Task(broadcast(probe["bcast"], bench.comm, buffer, 0)).wait())


def _pair(bench: Bench[RunConfig], probe: Probe) -> float:
    """Measure the additional seconds per column of a panel that two ranks share, over one panel per rank. Collective.

    The two ranks exchange pivot candidates and wait for each other. Their distance is that of two ranks in a process
    column of a grid with two rows. The other ranks wait, as in a run without look-ahead.
    """
    comm, apart, (m, k) = bench.comm, bench.comm.size // 2, (probe["m"], probe["k"])
    first = comm.rank in (0, apart)
    pair = comm.split(int(not first), comm.rank)
    assert pair is not None, "every rank is in a group"
    exchange = partial(allreduce_by, pair, combine=better_candidate)
    ways = ((BlockCyclic(m, k, 0, 1), None), (BlockCyclic(2 * m, k, int(comm.rank > 0), 2), exchange))
    try:
        alone_s, shared_s = (
            _usual(bench, _factoring(bench.kernels, m, k, *how) if first else lambda: None) for how in ways
        )
        return max(1e-9, (shared_s - alone_s) / float(k))
    finally:
        pair.free()


def _turn(bench: Bench[RunConfig], probe: Probe) -> float:
    """Measure the time per message, including waits, of solves with distributed factors, in seconds. Collective.

    A solve on the squarest P×Q grid takes t = s t_alone + 2 n/k (⌈log2 P⌉ + ⌈log2 Q⌉) turn. Here t_alone is the time
    of one rank with order m, n² = P Q m², and k is the block size. The rank with the most entries has s m² entries.
    The result `turn` includes the work of one rank on a diagonal block while the others wait.
    """
    comm, (m, k) = bench.comm, (probe["m"], probe["k"])
    P, Q = squarest(comm.size)
    grid, n = make_grid(ProcessGrid(P, Q), comm), round(math.sqrt(P * Q) * m)
    assert grid is not None, "all ranks are in the grid"
    try:
        ways = [_solving(bench.kernels, *how) for how in ((alone(), m, k), (grid, n, k))]
        share = float(owned(n, k, P).max() * owned(n, k, Q).max()) / m**2
        # alternately, because clock rates change with time
        rounds = [[_usual(bench, way) for way in ways] for _ in range(MIN_RUNS)]
        more_s = median(shared_s - share * alone_s for alone_s, shared_s in rounds)
        return max(1e-9, float(more_s / (2.0 * n / k * hops(P, Q))))
    finally:
        for group in (grid.all, grid.row, grid.column):
            group.free()


_MESSAGES = {"pingpong": _pingpong, "bcast": _bcast, "pair": _pair, "turn": _turn}


def _message(kernels: Kernels, probe: Probe) -> Any:
    buffer = kernels.buffer(max(1, probe["bytes"] // 8))
    buffer[:] = 0.0
    return buffer
