"""Generate the candidates that `mxpeak tune` tries, the most promising first.

A candidate consists of settings of a benchmark and of a layout of ranks and threads. Settings are strings as in flags
and contain only values that differ from the defaults. A candidate without settings therefore represents the defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from mxpeak.bench.registry import BENCHMARKS, load
from mxpeak.bench.sparse import PLAIN, smoother_of
from mxpeak.configs.grid import squarest
from mxpeak.errors import UsageError
from mxpeak.layout.grid import divisors, node_grids
from mxpeak.layout.stencil import LEVELS, Box, Triple, check_box, process_grid
from mxpeak.options import grid_shape
from mxpeak.perf.simulation.machines import Machine
from mxpeak.runtime.placement import gpu_defaults

#: Values of NB on CPUs and on GPUs, and values of --split.
BLOCKS = (64, 96, 128, 160, 192, 256, 320, 384, 512, 768)
GPU_BLOCKS = (128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
SPLITS = ("0", "0.3", "0.5")
#: Broadcasts for process rows of two ranks, in which all rings are the same, and for longer rows.
SHORT, ALL = ("1ringM", "long", "lib", "ilib"), ("1ringM", "1ring", "2ringM", "2ring", "longM", "long", "lib", "ilib")
#: Number of broadcasts that are tried first among settings that differ only in the broadcast.
ALIKE = 2
#: Smallest number of blocks per process row and column for a candidate NB.
MIN_BLOCKS = 4
#: Matrix orders and box sides from which the size of a trial is chosen.
ORDERS = tuple(int(2048 * 2 ** (step / 2)) // 64 * 64 for step in range(11))
SIDES, GPU_SIDES = (32, 48, 64, 80, 104), (64, 96, 128, 192, 256)


@dataclass(frozen=True, slots=True)
class RankLayout:
    """A layout of a run: number of ranks, threads per rank, and nodes."""

    ranks: int
    threads: int
    nodes: int = 1

    def __str__(self) -> str:
        return f"{self.ranks}x{self.threads}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """The settings of a trial and the layout on which it runs."""

    layout: RankLayout
    settings: Mapping[str, str]

    @property
    def key(self) -> str:
        """Return a text that identifies the candidate by its layout and settings."""
        return " ".join([str(self.layout), *(f"{name}={text}" for name, text in sorted(self.settings.items()))])


def layouts(cores: int, *, several: bool) -> list[RankLayout]:
    """Return the layouts to try on a node: one rank, one rank per core, and at most two numbers of ranks in between.

    Without `several`, the only layout is one rank.
    """
    counts = divisors(cores) if several else [1]
    middle = counts[1:-1]
    kept = dict.fromkeys([1, counts[-1], *middle[len(middle) // 2 :][:1], *middle[:1]])
    return [RankLayout(ranks, max(1, cores // ranks)) for ranks in kept]


def lu_candidates(benchmark: str, layout: RankLayout, n: int, default_nb: int, *, on_gpu: bool) -> list[Candidate]:
    """Return the combinations of NB, grid, broadcast, split (HPL) and node grid, with the defaults first.

    On a GPU, each candidate sets NB, because the default NB for the small matrix of a trial is too small.
    """
    first: dict[str, str] = {"nb": str(default_nb)} if on_gpu else {}
    candidates = [Candidate(layout, first)]
    for P, Q in _grids(layout.ranks):
        longest = max(P, Q) if benchmark == "hpl-mxp" else Q
        bcasts = (SHORT if longest == 2 else ALL) if longest > 1 else ("1ringM",)
        splits = SPLITS if benchmark == "hpl" and P > 1 else ("0",)
        blocks = [nb for nb in (GPU_BLOCKS if on_gpu else BLOCKS) if nb * MIN_BLOCKS * max(P, Q) <= n] or [default_nb]
        parts = node_grids(P, Q, layout.ranks // layout.nodes) if layout.nodes > 1 else []
        nodes = ["", *(f"{p}x{q}" for p, q in parts)]  # "": the rank order determines which ranks share a node
        for node, split, bcast, nb in product(nodes, splits, bcasts, blocks):
            settings = {
                **({"nb": str(nb)} if on_gpu or nb != default_nb else {}),
                **({"grid": f"{P}x{Q}"} if squarest(layout.ranks) != (P, Q) else {}),
                **({"bcast": bcast} if bcast != "1ringM" else {}),
                **({"split": split} if split != "0" else {}),
                **({"node_grid": node} if node else {}),
            }
            if settings != first:
                candidates.append(Candidate(layout, settings))
    return candidates


def _grids(ranks: int) -> list[tuple[int, int]]:
    """Return the process grids with an aspect ratio of at most 8, the squarest first."""
    pairs = [(P, ranks // P) for P in divisors(ranks)]
    grids = [(P, Q) for P, Q in pairs if max(P, Q) <= 8 * min(P, Q)] or [squarest(ranks)]
    return sorted(grids, key=lambda pair: (max(pair), pair[0]))


def ordered(
    candidates: Sequence[Candidate],
    seconds_of: Callable[[Candidate], float | None],
    limit: int,
    libraries: Collection[str] = (),
) -> list[Candidate]:
    """Return the default candidate of each layout, then the other candidates in order of simulated time.

    The default candidate of a layout is its first one, which sets NB on a GPU (see `lu_candidates`). If the candidates
    have several orders N, each layout has a default candidate per order. The default candidates of the first order with
    each of the BLAS libraries come second. The list has at most `limit` candidates, but at least one candidate in
    addition to these. Of the candidates that differ only in the broadcast, all but the ALIKE fastest are moved to the
    end of the simulated candidates. Candidates without a simulated time follow, and alternate between the layouts.
    """
    firsts = dict[tuple[RankLayout, str], Candidate]()
    for candidate in candidates:
        firsts.setdefault((candidate.layout, candidate.settings.get("n", "")), candidate)
    defaults = list(firsts.values())
    of_layout = dict[RankLayout, Candidate]()
    for candidate in defaults:
        of_layout.setdefault(candidate.layout, candidate)
    with_blas = [Candidate(c.layout, {**c.settings, "blas": name}) for c in of_layout.values() for name in libraries]
    rest = [candidate for candidate in candidates if candidate not in defaults]
    seconds = {candidate.key: seconds_of(candidate) for candidate in rest}
    turns, seen = dict[str, int](), dict[RankLayout, int]()
    for candidate in rest:
        turns[candidate.key] = seen[candidate.layout] = seen.get(candidate.layout, 0) + 1
    simulated = [candidate for candidate in rest if seconds[candidate.key] is not None]
    others = [candidate for candidate in rest if seconds[candidate.key] is None]
    simulated = _different(sorted(simulated, key=lambda candidate: seconds[candidate.key] or 0.0))
    rest = simulated + sorted(others, key=lambda candidate: turns[candidate.key])
    first = [*defaults, *with_blas]
    return [*first, *rest][: max(limit, len(first) + 1)]


def _different(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates in a new order, in which surplus broadcasts are at the end.

    Of the candidates that differ only in the broadcast, the first ALIKE keep their place, and the others are moved to
    the end. A limited search then also tries other settings.
    """
    seen: dict[str, int] = {}
    front: list[Candidate] = []
    back: list[Candidate] = []
    for candidate in candidates:
        others = {name: text for name, text in candidate.settings.items() if name != "bcast"}
        key = Candidate(candidate.layout, others).key
        seen[key] = seen.get(key, 0) + 1
        (front if seen[key] <= ALIKE else back).append(candidate)
    return front + back


def lu_seconds(benchmark: str, candidate: Candidate, n: int, nb: int, low: str, machine: Machine) -> float:
    """Simulate an LU candidate and return the time in seconds; `nb` is used if the settings contain no NB."""
    from mxpeak.perf.simulation.lu import LuRun
    from mxpeak.perf.simulation.predict import simulate_lu

    settings = candidate.settings
    P, Q = grid_shape(settings["grid"]) if "grid" in settings else squarest(candidate.layout.ranks)
    node = settings.get("node_grid")
    run = LuRun(
        n=n, nb=min(n, int(settings.get("nb", nb))), P=P, Q=Q, precision="fp64" if benchmark == "hpl" else low,
        order="row", node_grid=grid_shape(node) if node else None, bcast=settings.get("bcast", "1ringM"),
        split=float(settings.get("split", "0")),
    )  # fmt: skip
    return simulate_lu(benchmark, run, machine).time_s


def sparse_candidates(
    benchmark: str, layout: RankLayout, mode: str, side: int, *, on_gpu: bool, boxes: bool
) -> list[Candidate]:
    """Return candidates with another storage, smoother or process grid, and with another box shape if `boxes`.

    The first candidate has the default settings. In official mode, all settings are allowed by the rules. Packed
    storage needs --mode explore.
    """
    default = _default_form(benchmark, mode, on_gpu=on_gpu)
    storages = [name for name in PLAIN if not (on_gpu and name == "rows")] + ["packed"] * (mode == "explore")
    choices: list[dict[str, str]] = [{}]
    forms = [(name, order) for name in storages for order in ("natural", "coloured")]
    choices += [{"storage": name, "smoother": order} for name, order in forms if (name, order) != default]
    default_grid = process_grid(layout.ranks)
    choices += list(_process_grids(layout.ranks, default_grid))
    if boxes:
        choices += list(_boxes(side, default_grid))
    return [Candidate(layout, settings) for settings in choices]


def _default_form(benchmark: str, mode: str, *, on_gpu: bool) -> tuple[str, str]:
    """Return the default storage and smoother of a sparse benchmark."""
    config = BENCHMARKS[benchmark].config(mode=mode, kernels="torch" if on_gpu else "host")  # type: ignore[call-arg]
    rules = BENCHMARKS[benchmark].module.rpartition(".")[0] + ".rules"
    storage = str(load(f"{rules}:storages")(config)[0])
    return storage, smoother_of(config, storage)  # type: ignore[arg-type]


def _process_grids(ranks: int, default: Triple) -> Iterator[dict[str, str]]:
    for npx in divisors(ranks):
        for npy in divisors(ranks // npx):
            if (grid := (npx, npy, ranks // (npx * npy))) != default and _allowed(None, grid):
                yield dict(zip(("npx", "npy", "npz"), map(str, grid)))


def _boxes(side: int, grid: Triple) -> Iterator[dict[str, str]]:
    """Yield settings with boxes that are elongated in x or z and have about as many points as the cube."""
    step = 2 ** (LEVELS - 1)
    for stretch in ((2, 1, 0.5), (0.5, 1, 2), (1.5, 1, 0.67), (2, 0.71, 0.71)):
        shape = tuple(max(step, round(side * s / step) * step) for s in stretch)
        if _allowed((shape[0], shape[1], shape[2]), grid):
            yield dict(zip(("nx", "ny", "nz"), map(str, shape)))


def _allowed(shape: tuple[int, int, int] | None, grid: tuple[int, int, int]) -> bool:
    """Return whether the rules of the benchmark allow this box, or a cube if `shape` is None, on this grid."""
    try:
        check_box(Box.of(0, shape or (16, 16, 16), grid))
    except UsageError:
        return False
    return True


def sparse_seconds(benchmark: str, side: int, ranks: int, machine: Machine) -> float:
    """Return the approximate time of a trial on a cube, in seconds.

    A trial consists of the validation or the reference, the first solve, and the timed solve.
    """
    from mxpeak.perf.simulation.sparse import SparseRun, simulate_sparse

    box = Box.of(0, (side, side, side), process_grid(ranks))
    solves, steps = (4, 50) if benchmark == "hpcg" else (6, 60)
    return (
        solves * simulate_sparse(SparseRun(box=box, benchmark=benchmark, iterations=steps, low="fp64"), machine).time_s
    )


def default_nb(benchmark: str, *, on_gpu: bool, native: Sequence[str]) -> int:
    """Return the default NB of an LU benchmark on this kind of processor."""
    config = BENCHMARKS[benchmark].config()
    changed = gpu_defaults(config, "cuda") if on_gpu else config.natively(native)
    return int(changed.get("nb", config.nb)[0])  # type: ignore[attr-defined]


def largest(sizes: Sequence[int], seconds_of: Callable[[int], float], seconds: float) -> int:
    """Return the largest of the ascending sizes whose trial takes at most `seconds`, or the smallest size."""
    chosen = sizes[0]
    for size in sizes:
        if seconds_of(size) > seconds:
            break
        chosen = size
    return chosen
