"""Simulate HPG-MxP and HPCG: memory traffic, halo exchanges that are partly hidden, and sums over all ranks.

The simulation follows a rank with neighbors on all sides, because these ranks are the slowest. At every sum over all
ranks, the other ranks wait for this rank. With n rows per level, entries of w bytes and 32-bit columns, the bytes are

    all of A            n (27 (w + 4) + 2 w)
    a sweep             n (27 (w + 4) + (8 + 2) w)       x is read again for each of 8 colors
    from zero           half of A's entries
    coarse residual     an eighth of A's rows, all of x

The halo exchange is hidden by the first color of a sweep or by a complete product (Kashi et al., 3.2.3 and 4.3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mxpeak.layout.stencil import LEVELS, STENCIL, Box
from mxpeak.perf.simulation.machines import Machine
from mxpeak.perf.sparse_counts import hpcg_flops, hpg_mxp_flops, stencil_levels
from mxpeak.precision import precision

INDEX_BYTES = 4
#: Number of colors of the 27-point stencil.
COLOURS = 8
#: Number of ranks at which the slowdown of the slowest device is machine.spread[0]: all of Frontier.
ALL_RANKS = 75264
#: Euler's constant.
EULER = 0.5772156649015329
#: n_d / n_ir on one node of Frontier (Kashi et al., 4): 2305 / 2382.
PENALTY = 2305 / 2382


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseRun:
    """The settings of a simulated run of HPG-MxP or HPCG.

    low        format of the matrices and vectors in the inner iteration; fp64 for HPCG
    counting   rule by which multigrid's flops are counted: "reference" or "ornl"
    slow       relative speed of each slow rank
    """

    box: Box
    benchmark: str = "hpg-mxp"
    low: str = "fp32"
    iterations: int = 300
    restart: int = 30
    counting: str = "reference"
    penalty: float = PENALTY
    aware: bool = False
    slow: Mapping[int, float] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """Return the number of ranks, npx × npy × npz."""
        return self.box.ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseForecast:
    """The result of a simulated solve.

    phases       seconds by motif
    exposed_s    seconds of communication that is not hidden
    rate_flops   credited flops per second, with the penalty
    """

    flops: float
    time_s: float
    phases: Mapping[str, float]
    exposed_s: float
    rate_flops: float

    @property
    def exposed(self) -> float:
        """Return the share of the time in which ranks wait for other ranks or for messages."""
        return self.exposed_s / self.time_s


def simulate_sparse(run: SparseRun, machine: Machine) -> SparseForecast:
    """Simulate one solve of `iterations` steps and return the forecast."""
    return SparseTimes(run, machine).result()


class SparseTimes:
    """Simulates a solve, and adds up the seconds of each motif and the seconds of communication that is not hidden."""

    def __init__(self, run: SparseRun, machine: Machine):
        self.run, self.machine = run, machine
        middle = replace(run.box, px=run.box.npx // 2, py=run.box.npy // 2, pz=run.box.npz // 2)
        self.levels = middle.levels(LEVELS)
        slowest = min(run.slow.values(), default=1.0)
        self.rate = machine.memory_rate * machine.memory_share * min(slowest, 1.0 - variation(machine, run.ranks))
        self.seconds: dict[str, float] = {}
        self.exposed_s = self.alone_s = 0.0  # alone_s: work since the last sum over all ranks
        self.halos: dict[tuple[int, int], float] = {}

    def result(self) -> SparseForecast:
        """Simulate the solve and return the forecast with the credited flops."""
        run = self.run
        levels = stencil_levels(run.box)
        if run.benchmark == "hpcg":
            self.hpcg()
            flops, penalty = float(hpcg_flops(levels, run.iterations)["total"]), 1.0
        else:
            cycles = [run.restart] * (run.iterations // run.restart)
            cycles += [run.iterations % run.restart] * (run.iterations % run.restart > 0)
            self.hpg_mxp(cycles)
            flops = float(hpg_mxp_flops(levels, cycles, run.counting)["total"])
            penalty = run.penalty if run.low != "fp64" else 1.0
        time_s = sum(self.seconds.values())
        return SparseForecast(
            flops=flops,
            time_s=time_s,
            phases=dict(self.seconds),
            exposed_s=self.exposed_s,
            rate_flops=penalty * flops / time_s,
        )

    def hpg_mxp(self, cycles: list[int]) -> None:
        """Simulate GMRES-IR; `cycles` contains the number of steps of each restart cycle.

        A step consists of multigrid, the product A z, CGS2 and a norm. A cycle begins with b - A x in fp64.
        """
        n, w = self.levels[0].rows, precision(self.run.low).bytes
        for steps in cycles:
            for _ in range(steps + 1):
                self.multigrid(w, symmetric=False)
            for _ in range(steps):
                self.product(self.levels[0], w, "spmv")
            self.product(self.levels[0], 8, "spmv")
            # CGS2 against k vectors reads the basis three times: n (3k + 7) w
            self.stream(sum(n * (3 * k + 7) * w for k in range(1, steps + 1)), "ortho")
            self.allreduce("ortho", 3 * steps)
            self.stream(n * (steps + 1) * w + 6 * n * 8, "update")
            self.allreduce("update", 1)

    def hpcg(self) -> None:
        """Simulate CG. A step consists of symmetric multigrid, A p, three dot products and three vector updates."""
        n = self.levels[0].rows
        for _ in range(self.run.iterations):
            self.multigrid(8, symmetric=True)
            self.product(self.levels[0], 8, "spmv")
            self.stream(5 * n * 8, "ddot")
            self.allreduce("ddot", 3)
            self.stream(9 * n * 8, "waxpby")

    def multigrid(self, w: int, symmetric: bool) -> None:
        """Simulate a V-cycle of multigrid with one sweep on the coarsest level.

        The other levels have a sweep from zero, the residual at coarse points, and a sweep after the correction. If
        `symmetric`, each sweep is a forward and a backward sweep. `w` is the number of bytes per value.
        """
        gs, restriction, prolongation = ("mg",) * 3 if symmetric else ("gs", "restriction", "prolongation")
        for box, coarser in zip(self.levels, [*self.levels[1:], None]):
            self.sweep(box, w, gs, share=0.5)
            if symmetric:
                self.sweep(box, w, gs)
            if coarser is None:
                if not symmetric:  # the coarsest level uses a complete sweep, although x is zero
                    self.sweep(box, w, gs, share=0.5)
                return
            self.product(box, w, restriction, share=1 / 8)
            self.stream(coarser.rows * (3 * w + INDEX_BYTES), prolongation)
            self.sweep(box, w, gs)
            if symmetric:
                self.sweep(box, w, gs)

    def sweep(self, box: Box, w: int, motif: str, share: float = 1.0) -> None:
        """Simulate a Gauss–Seidel sweep over a share of A's entries, color by color.

        In a complete sweep, the first color hides the halo exchange.
        """
        n = box.rows
        matrix_bytes = share * n * STENCIL * (w + INDEX_BYTES)
        seconds = self.stream(matrix_bytes + n * (COLOURS + 2) * w, motif, kernels=COLOURS)
        if share == 1.0:
            self.halo(box, w, motif, hidden_by=seconds / COLOURS)

    def product(self, box: Box, w: int, motif: str, share: float = 1.0) -> None:
        """Simulate A x for a share of the rows. The product hides the halo exchange."""
        n = box.rows
        seconds = self.stream(share * n * (STENCIL * (w + INDEX_BYTES) + w) + n * w, motif)
        self.halo(box, w, motif, hidden_by=seconds)

    def stream(self, size_bytes: float, motif: str, kernels: int = 1) -> float:
        """Add the time of `kernels` kernels that move `size_bytes` bytes in total to the time of a motif.

        Return the added time in seconds. The bytes are read from or written to device memory.
        """
        seconds = size_bytes / self.rate + kernels * self.machine.launch_s
        self.seconds[motif] = self.seconds.get(motif, 0.0) + seconds
        self.alone_s += seconds
        return seconds

    def halo(self, box: Box, w: int, motif: str, hidden_by: float) -> None:
        """Add the time of a halo exchange that remains after `hidden_by` seconds of other work."""
        key = box.nx, w
        if key not in self.halos:
            self.halos[key] = halo_s(box, w, self.machine, self.run.aware)
        self.wait(motif, max(0.0, self.halos[key] - hidden_by))

    def allreduce(self, motif: str, times: int) -> None:
        """Add the time of several sums over all ranks.

        A sum consists of messages up and down a tree, the notification of the host, and the wait for the slowest rank.
        """
        net, R = self.machine.network, self.run.ranks
        per_node = min(self.machine.ranks_per_node, R)
        between = math.ceil(math.log2(R / per_node)) if per_node < R else 0
        tree_s = 2 * (math.ceil(math.log2(per_node)) * net.local_latency_s + between * net.latency_s)
        self.wait(motif, times * (tree_s + self.machine.launch_s) + lateness(self.machine, R) * self.alone_s)
        self.alone_s = 0.0

    def wait(self, motif: str, seconds: float) -> None:
        """Add seconds of communication that is not hidden."""
        self.seconds[motif] = self.seconds.get(motif, 0.0) + seconds
        self.exposed_s += seconds


def halo_s(box: Box, w: int, machine: Machine, aware: bool) -> float:
    """Return the time of a halo exchange, in seconds, with `w` bytes per value.

    Messages that leave a node share its ports. Messages within a node have separate links. Consecutive ranks are
    neighbors along x. If a line of ranks fills a node, its ranks have no other neighbors on the node.
    """
    neighbors = box.neighbors()
    if not neighbors:
        return 0.0
    net, per_node = machine.network, min(machine.ranks_per_node, box.ranks)
    node = box.rank // per_node
    inside = sum(other.count for other in neighbors if other.rank // per_node == node)
    outside = box.halo - inside
    leaving = sum(other.rank // per_node != node for other in neighbors)
    between = leaving * net.latency_s + outside * w / net.rate(per_node) if leaving else 0.0
    local = (net.local_latency_s if inside else 0.0) + inside * w / net.local_rate
    staging = 0.0 if aware else 2 * (box.halo * w / net.host_rate + machine.launch_s)
    return max(between, local) + staging


def lateness(machine: Machine, ranks: int) -> float:
    """Return the delay of the last of R ranks at a sum, relative to the rank's work.

    The delay is the expected maximum of R exponential delays, machine.jitter (ln R + gamma) with Euler's constant
    gamma. The work takes the time of the slowest device.
    """
    return machine.jitter * (math.log(ranks) + EULER) if ranks > 1 else 0.0


def variation(machine: Machine, ranks: int) -> float:
    """Return the expected slowdown of the slowest of R devices, as a share of the rate.

    The largest of R normal deviates is about √(2 ln R) σ. The standard deviation σ is chosen so that all devices of
    Frontier give machine.spread[0] (OLCF, VI-B). The result does not exceed this value.
    """
    if ranks == 1:
        return 0.0
    return machine.spread[0] * math.sqrt(min(1.0, math.log(ranks) / math.log(ALL_RANKS)))
