"""Compare published results with the closed formula and the simulation for docs/reference/published-results.md.

Each row contains a published value, its computed counterparts and the error of the simulation. Each machine has one
set of parameters for all rows. "set by it" marks a row whose published value was used to fit a parameter of the
machine. Such a row validates nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

from mxpeak.layout.stencil import Box, process_grid
from mxpeak.perf.counts import hpl_flops, lu_flops_done
from mxpeak.perf.simulation.lu import LuForecast, LuRun, node_block
from mxpeak.perf.simulation.machines import find_machine
from mxpeak.perf.simulation.model import upper_bound
from mxpeak.perf.simulation.predict import simulate_lu
from mxpeak.perf.simulation.sparse import SparseForecast, SparseRun, simulate_sparse

RINGS = ("1ring", "1ringM", "2ringM")
#: Machine of the rows from the OLCF paper: Frontier with the libraries of spring 2022.
SC22 = "frontier-2022"


@dataclass(frozen=True, slots=True)
class Figure:
    """A published value and the functions that compute it.

    printed, unit     as in the paper; percentages are differences, "%", or shares, "% of"
    simulated         function that simulates the value
    formula           function that computes the value by eq. 1-5, or None if these do not apply
    set_by            whether a parameter of the machine was fitted to the value
    quick             whether the simulation takes only seconds
    """

    what: str
    source: str
    printed: float
    unit: str
    simulated: Callable[[], float]
    formula: Callable[[], float] | None = None
    set_by: bool = False
    quick: bool = True

    def line(self) -> str:
        """Simulate the value and return its row of the Markdown table."""
        value = self.simulated()
        formula = "" if self.formula is None else shown(self.formula(), self.unit)
        relative = f"{100 * (value / self.printed - 1):+.1f} %"
        error = f"{value - self.printed:+.1f} points" if self.unit == "%" else relative
        cells = [self.what, self.source, shown(self.printed, self.unit), formula, shown(value, self.unit)]
        return f"| {' | '.join([*cells, error + ', set by it' * self.set_by])} |"


def shown(value: float, unit: str) -> str:
    """Return a number with its unit as text; differences in percent have a sign."""
    if unit == "%":
        return f"{value:+.1f} %"
    if unit == "% of":
        return f"{value:.1f} %"
    return f"{value:.4g} {unit}".rstrip()


def summit(side: int, node: tuple[int, int] = (3, 2), bcast: str = "lib", nics: int = 2, local: int = 61440) -> LuRun:
    """Return the HPL-MxP run on Summit with block size B = 768 and local order N_L = `local` per GPU (OLCF, V-A)."""
    return LuRun(n=side * local, nb=768, P=side, Q=side, precision="fp16", node_grid=node, bcast=bcast, nics=nics)


def frontier(side: int, node: tuple[int, int], bcast: str = "2ringM", aware: bool = True) -> LuRun:
    """Return the HPL-MxP run on Frontier with B = 3072 and local order N_L = 119808 per GCD (OLCF, V-A and D)."""
    return LuRun(n=side * 119808, nb=3072, P=side, Q=side, precision="fp16", node_grid=node, bcast=bcast, aware=aware)


def openmxp(P: int, Q: int, n: int) -> LuRun:
    """Return the HPL-MxP run of the published OpenMxP log, which has B = 2560 and 2×4 ranks per node."""
    return LuRun(n=n, nb=2560, P=P, Q=Q, precision="fp16", order="row", node_grid=(2, 4), bcast="2ringM")


def rochpl(nodes: int, P: int, Q: int, node: tuple[int, int]) -> LuRun:
    """Return the HPL run on Crusher with NB = 512 and the same memory per node as N = 256,000 on one node.

    N is therefore proportional to the square root of the number of nodes (rocHPL, IV).
    """
    n = int(256000 * nodes**0.5) // 512 * 512
    return LuRun(n=n, nb=512, P=P, Q=Q, node_grid=node, bcast="1ringM", split=0.5, early=False)


#: Cached results of simulations that several rows share.
_DONE: dict[str, LuForecast] = {}


def of(machine: str, run: LuRun) -> LuForecast:
    """Simulate an LU run on a machine and return the forecast. The forecast is cached."""
    key = f"{machine} {run}"
    if key not in _DONE:
        _DONE[key] = simulate_lu("hpl" if run.precision == "fp64" else "hpl-mxp", run, find_machine(machine))
    return _DONE[key]


@cache
def of_sparse(nodes: int, low: str = "fp32", benchmark: str = "hpg-mxp") -> SparseForecast:
    """Simulate a sparse solve on Frontier with 320³ points per GCD and return the forecast. The forecast is cached.

    HPG-MxP has restart 30 and 300 iterations (Kashi et al., table 1), and HPCG has 50 iterations.
    """
    box = Box.of(0, (320, 320, 320), process_grid(8 * nodes))
    iterations = 50 if benchmark == "hpcg" else 300
    run = SparseRun(box=box, low=low, benchmark=benchmark, iterations=iterations, counting="ornl")
    return simulate_sparse(run, find_machine("frontier"))


def rank_rate(machine: str, run: LuRun) -> float:
    """Simulate a run and return its FLOP/s per rank."""
    return of(machine, run).rate_flops / run.ranks


def formula_rate(machine: str, run: LuRun) -> float:
    """Return the FLOP/s per rank of a run by eq. 1-5."""
    described = find_machine(machine)
    block = node_block(run.P, run.Q, described.ranks_per_node, run.order, run.node_grid)
    bound = upper_bound(described, run.n, run.nb, run.P, run.Q, block, run.precision, run.nics)
    return hpl_flops(run.n) / bound.time_s / run.ranks


def gain(rate: Callable[[str, LuRun], float], machine: str, better: LuRun, worse: LuRun) -> float:
    """Return the difference in percent between the rates per rank of `better` and `worse`."""
    return 100.0 * (rate(machine, better) / rate(machine, worse) - 1.0)


def ring(choose: Callable[[list[float]], float], machine: str, rings: list[LuRun], broadcast: LuRun) -> float:
    """Return the gain of the ring that `choose` selects over the library's broadcast, in percent.

    `choose` is `max` or `min`.
    """
    return choose([gain(rank_rate, machine, run, broadcast) for run in rings])


def rows() -> list[Figure]:
    """Return all rows of the table, sorted by machine."""
    return [*_summit_rows(), *_frontier_rows(), *_crusher_rows(), *_sparse_rows()]


def _gain_row(
    what: str, printed: float, machine: str, better: LuRun, worse: LuRun, formula: bool = False, quick: bool = True
) -> Figure:
    simulated, by_formula = (partial(gain, rate, machine, better, worse) for rate in (rank_rate, formula_rate))
    return Figure(what, "OLCF V-E", printed, "%", simulated, by_formula if formula else None, quick=quick)


def _efficiency_row(what: str, printed: float, machine: str, large: LuRun, small: LuRun) -> Figure:
    def of_small(rate: Callable[[str, LuRun], float]) -> Callable[[], float]:
        return lambda: 100 * rate(machine, large) / rate(machine, small)

    return Figure(what, "OLCF VI-A", printed, "% of", of_small(rank_rate), of_small(formula_rate), quick=False)


def _full(
    what: str, printed: float, machine: str, run: LuRun, set_by: bool = False, source: str = "OLCF VI-B"
) -> Figure:
    return Figure(
        what, source, printed, "EFLOP/s", lambda: of(machine, run).rate_flops / 1e18,
        lambda: formula_rate(machine, run) * run.ranks / 1e18, set_by, quick=False,
    )  # fmt: skip


def _summit_rows() -> list[Figure]:
    best, column, side = summit(54), summit(54, (6, 1)), 54
    rings = "summit", [summit(side, bcast=name) for name in RINGS], best

    def port(bcast: str) -> tuple[LuRun, LuRun]:
        return summit(side, bcast=bcast), summit(side, bcast=bcast, nics=1)

    poorest = summit(side, (6, 1), "ilib", nics=1)
    return [
        _full("Summit, 162², N = 9,953,280, which fits", 1.411, "summit", summit(162), set_by=True),
        _full("Summit, 162², N = 13,685,760, as printed", 1.411, "summit", summit(162, local=84480)),
        _efficiency_row("Summit, 2916 over 36 GPUs, column-major", 91.4, "summit", column, summit(6, (6, 1))),
        _efficiency_row("Summit, 2916 over 36 GPUs, 3×2 per node", 104.6, "summit", best, summit(6)),
        Figure("Summit, best ring over broadcast", "OLCF V-E", -2.3, "%", partial(ring, max, *rings), quick=False),
        Figure("Summit, poorest ring over broadcast", "OLCF V-E", -11.5, "%", partial(ring, min, *rings), quick=False),
        _gain_row("Summit, port binding, broadcast", 35.6, "summit", *port("lib"), formula=True, quick=False),
        _gain_row("Summit, port binding, 1ringM", 59.7, "summit", *port("1ringM"), formula=True, quick=False),
        _gain_row("Summit, 3×2 over 6×1 per node", 14.1, "summit", best, column, formula=True, quick=False),
        _gain_row("Summit, best over poorest settings", 603.0, "summit", best, poorest, quick=False),
    ]


def _frontier_rows() -> list[Figure]:
    column = {name: frontier(32, (8, 1), name) for name in (*RINGS, "lib")}
    rings = SC22, [column[name] for name in RINGS], column["lib"]

    def staged(bcast: str) -> tuple[LuRun, LuRun]:
        return frontier(32, (2, 4), bcast), frontier(32, (2, 4), bcast, aware=False)

    best, poorest = frontier(32, (2, 4)), frontier(32, (8, 1), "lib", aware=False)
    # The TOP500 list contains neither N nor the grid. The run uses the memory per GCD of OpenMxP's log, 34,060,800² /
    # 73,728 entries.
    whole = openmxp(256, 288, 34060800)
    return [
        _full("Frontier, 172², N = 20,606,976", 2.387, SC22, frontier(172, (4, 2)), set_by=True),
        _efficiency_row(
            "Frontier, 16384 over 64 GCDs, column-major", 92.2, SC22, frontier(128, (8, 1)), frontier(8, (8, 1))
        ),
        Figure("Frontier, best ring over broadcast", "OLCF V-E", 34.4, "%", partial(ring, max, *rings)),
        Figure("Frontier, poorest ring over broadcast", "OLCF V-E", 20.0, "%", partial(ring, min, *rings)),
        _gain_row("Frontier, GPU-aware MPI, 2ringM", 40.3, SC22, *staged("2ringM")),
        _gain_row("Frontier, GPU-aware MPI, broadcast", 56.6, SC22, *staged("lib")),
        _gain_row("Frontier, 2×4 over 8×1 per node", 2.7, SC22, best, column["2ringM"], formula=True),
        _gain_row("Frontier, best over poorest settings", 94.6, SC22, best, poorest),
        _full("Frontier, 9216 nodes, list of June 2023", 9.95, "frontier", whole, source="TOP500"),
    ]


def _crusher_rows() -> list[Figure]:
    log = openmxp(32, 32, 4014080)
    node = rochpl(1, 4, 2, (4, 2))
    many = rochpl(128, 32, 32, (1, 8))

    def running() -> float:
        done = of("crusher", node)
        half = len(done.step_s) // 2
        return lu_flops_done(node.n, node.n - half * node.nb) / float(done.step_s[half]) / 1e12

    def hidden(share: Callable[[LuForecast], float]) -> Callable[[], float]:
        return lambda: 100 * share(of("crusher", node))

    steps = hidden(lambda done: done.hidden_until() / len(done.step_s))
    time = hidden(lambda done: float(done.step_s[done.hidden_until()]) / done.time_s)

    return [
        Figure(
            "Crusher, 32², N = 4,014,080, a GCD", "OpenMxP's log", 133.753, "TFLOP/s",
            lambda: rank_rate("crusher", log) / 1e12, lambda: formula_rate("crusher", log) / 1e12, set_by=True,
        ),
        Figure(
            "Crusher, HPL on one node", "rocHPL IV-A", 153.0, "TFLOP/s",
            lambda: of("crusher", node).rate_flops / 1e12, set_by=True,
        ),
        Figure("Crusher, HPL on one node, while all is hidden", "rocHPL IV-A", 175.0, "TFLOP/s", running, set_by=True),
        Figure("Crusher, HPL, steps in which all is hidden", "rocHPL IV-A", 50.0, "% of", steps, set_by=True),
        Figure("Crusher, HPL, time in which all is hidden", "rocHPL III-C", 75.0, "% of", time, set_by=True),
        Figure(
            "Crusher, HPL on 128 nodes", "rocHPL IV-B", 17.75, "PFLOP/s",
            lambda: of("crusher", many).rate_flops / 1e15, quick=False,
        ),
    ]  # fmt: skip


def _sparse_rows() -> list[Figure]:
    def ratio(nodes: int) -> float:
        return of_sparse(nodes).rate_flops / of_sparse(nodes, "fp64").rate_flops

    def efficiency() -> float:
        return 100 * of_sparse(9408).rate_flops / of_sparse(1).rate_flops / 9408

    return [
        Figure(
            "Frontier, HPG-MxP on 1 node", "ORNL 4.1, 17.23 / 78 % / 9408", 2.348, "TFLOP/s",
            lambda: of_sparse(1).rate_flops / 1e12, set_by=True,
        ),
        Figure(
            "Frontier, HPG-MxP on 9408 nodes", "ORNL 4.1", 17.23, "PFLOP/s",
            lambda: of_sparse(9408).rate_flops / 1e15, set_by=True,
        ),
        Figure("Frontier, HPG-MxP, 9408 nodes over 1", "ORNL 4.1", 78.0, "% of", efficiency, set_by=True),
        Figure("Frontier, HPG-MxP, mixed over double", "ORNL 4.1", 1.6, "times", lambda: ratio(1)),
        Figure(
            "Frontier, HPCG on 9408 nodes", "ORNL 4.1", 10.4, "PFLOP/s",
            lambda: of_sparse(9408, "fp64", "hpcg").rate_flops / 1e15,
        ),
    ]  # fmt: skip


def table() -> Iterator[str]:
    """Yield the lines of the Markdown table, each as soon as it is computed."""
    yield "| result | source | printed | formula | simulation | error |"
    yield "|---|---|---|---|---|---|"
    for row in rows():
        yield row.line()
