"""The common part of the simulations of HPL and HPL-MxP: runs, ranks on nodes, clocks and forecasts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from mxpeak.layout.grid import ProcessGrid
from mxpeak.layout.lu_schedule import LuEvent, LuStep, lu_steps
from mxpeak.perf.counts import hpl_flops
from mxpeak.perf.simulation.clocks import Array, ProcessLine
from mxpeak.perf.simulation.machines import Machine, Network


@dataclass(frozen=True, slots=True, kw_only=True)
class LuRun:
    """The settings of a simulated LU run.

    aware          whether messages are sent from device memory; otherwise they are copied to host memory first
    nics           number of network ports per node that are used; None: all
    core_sharing   whether FACT also uses the cores of the node's waiting ranks (rocHPL III-B)
    early          whether panels start during UPDATE of a split update's left section (HPL) or after it (rocHPL, III-C)
    slow           relative speed of each slow rank
    """

    n: int
    nb: int
    P: int
    Q: int
    precision: str = "fp64"
    order: str = "column"
    node_grid: tuple[int, int] | None = None
    bcast: str = "1ringM"
    depth: int = 1
    split: float = 0.0
    aware: bool = True
    nics: int | None = None
    core_sharing: bool = True
    early: bool = True
    slow: Mapping[int, float] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """Return the number of ranks, P × Q."""
        return self.P * self.Q


@dataclass(frozen=True, slots=True, kw_only=True)
class LuForecast:
    """The result of a simulated run.

    phases      mean seconds per rank by phase; "wait" is the remaining time, communication that is not hidden
    step_s      times at which the owner of each step's diagonal block began the step
    device_s    seconds that the device of this owner computed in the step
    """

    flops: float
    time_s: float
    phases: Mapping[str, float]
    step_s: Array
    device_s: Array

    @property
    def rate_flops(self) -> float:
        """Return the rate in flop/s, based on the credited flops."""
        return self.flops / self.time_s

    def hidden_until(self, slack: float = 1.1) -> int:
        """Return the first of sixteen successive steps that together take more than `slack` times their computation.

        Before this step, computation hides the communication.
        """
        took, computed = np.diff(self.step_s), self.device_s[: len(self.step_s) - 1]
        window = np.ones(min(16, len(took)))
        late = np.convolve(took, window, "valid") > slack * np.convolve(computed, window, "valid")
        return int(np.argmax(late)) if late.any() else len(took)

    @property
    def exposed(self) -> float:
        """Return the share of the time in which ranks wait for other ranks or for messages."""
        return self.phases["wait"] / self.time_s


def owned(n: int, nb: int, P: int) -> Array:
    """Return the number of the n entries that each of P processes owns (`layout.block_cyclic.numroc` for all P)."""
    blocks, ragged = divmod(n, nb)
    rounds, extra = divmod(blocks, P)
    sizes: Array = np.full(P, float(rounds * nb))
    sizes[:extra] += nb
    sizes[extra] += ragged
    return sizes


class RankGrid:
    """The process grid of a run on a machine: the lines of ranks on nodes, the ranks' speeds, and the network."""

    def __init__(self, run: LuRun, machine: Machine):
        self.run, self.machine = run, machine
        self.network = used_network(run, machine)
        p, q = self.node = node_block(run.P, run.Q, machine.ranks_per_node, run.order, run.node_grid)
        self.along_row = ProcessLine(run.Q, q, p, self.network)
        self.along_column = ProcessLine(run.P, p, q, self.network)
        self.speed: Array = np.ones((run.P, run.Q))
        grid = ProcessGrid(run.P, run.Q, run.order, run.node_grid)
        for rank, factor in run.slow.items():
            self.speed[grid.coords(rank)] = factor

    @property
    def wait_on_the_spot(self) -> bool:
        """Return whether ranks must wait for the end of a broadcast before they continue with other work."""
        return self.run.bcast == "lib" and not self.network.lib_overlaps

    def staged(self, size_bytes: Array) -> Array | float:
        """Return the seconds of a copy between device and host memory, or 0 if messages are sent from device memory."""
        return 0.0 if self.run.aware else size_bytes / self.network.host_rate


class LuClocks(ABC):
    """The clocks of all P×Q ranks in a factorization, advanced by the solver's schedule of events.

    device     when each device has completed all of its work
    ready      when the current step began on each rank
    port       when the link of each rank out of its node is free
    step_s     when the owner of each step's diagonal block began the step
    device_s   how long the device of the next panel's owner computes in each step (rocHPL, fig. 7)
    """

    def __init__(self, run: LuRun, machine: Machine):
        self.run, self.machine, self.ranks = run, machine, RankGrid(run, machine)
        self.device, self.ready, self.port = (np.zeros((run.P, run.Q)) for _ in range(3))
        self.steps = lu_steps(run.n, run.nb, run.P, run.Q)
        self.step_s: list[float] = []
        self.device_s: list[float] = []

    @abstractmethod
    def arrival(self) -> Array:
        """Return the time at which each rank has received the current panel."""

    def await_panel(self, event: LuEvent) -> None:
        """Simulate the wait for the current panel, and begin the step."""
        step = self.steps[event.k]
        self.device = self.ready = np.maximum(self.device, self.arrival())
        self.step_s.append(float(self.ready[step.p, step.q]))

    @abstractmethod
    def prepare(self, event: LuEvent) -> None:
        """Simulate the previous step's update of a panel's columns."""

    @abstractmethod
    def factor(self, event: LuEvent) -> None:
        """Simulate the factorization and the broadcast of a panel."""

    @abstractmethod
    def update(self, event: LuEvent) -> None:
        """Simulate the update of a section of the trailing matrix."""

    def note_device_s(self, step: LuStep, seconds: Array) -> None:
        """Record how long, in seconds, the device of the owner of a step's diagonal block computes."""
        self.device_s.append(float(seconds[step.p, step.q]))

    def rows_below(self, j: int) -> Array:
        """Return the number of local rows from global row j to the end, by process row."""
        run = self.run
        return owned(run.n, run.nb, run.P) - owned(j, run.nb, run.P)

    def columns_before(self, j: int) -> Array:
        """Return the number of local columns left of global column j, by process column."""
        return owned(j, self.run.nb, self.run.Q)


def used_network(run: LuRun, machine: Machine) -> Network:
    """Return the machine's network with the number of ports that the run uses."""
    nics = machine.network.nics if run.nics is None else min(run.nics, machine.network.nics)
    return replace(machine.network, nics=nics)


def hops(P: int, Q: int) -> int:
    """Return the number of message rounds of a sum over a process row and a process column: ⌈log2 P⌉ + ⌈log2 Q⌉."""
    return math.ceil(math.log2(P)) + math.ceil(math.log2(Q))


def message_in_solve_s(machine: Machine, network: Network) -> float:
    """Return the seconds per message in a distributed triangular solve: `turn_s`, or latency + `exchange_s`."""
    return network.latency_s + machine.exchange_s if machine.turn_s is None else machine.turn_s


def node_block(P: int, Q: int, ranks: int, order: str, node_grid: tuple[int, int] | None) -> tuple[int, int]:
    """Return the shape p×q of a node's part of the process grid.

    The shape is `node_grid` or, if it is None, the block that consecutive ranks form. If they do not form a block (for
    example 8 ranks per node in columns of 172), return a block of at most as many ranks that tiles the grid.
    """
    if node_grid is not None:
        return node_grid
    ranks = min(ranks, P * Q)
    if order == "row":
        q, p = node_block(Q, P, ranks, "column", None)
        return p, q
    p = math.gcd(ranks, P)
    return p, math.gcd(ranks // p, Q)


def forecast(
    run: LuRun, time_s: float, phases: Mapping[str, float], step_s: list[float], device_s: list[float]
) -> LuForecast:
    """Return the forecast of a run. The time that is not in `phases` becomes the phase "wait"."""
    return LuForecast(
        flops=hpl_flops(run.n),
        time_s=time_s,
        phases={**phases, "wait": max(0.0, time_s - sum(phases.values()))},
        step_s=np.array(step_s),
        device_s=np.array(device_s),
    )
