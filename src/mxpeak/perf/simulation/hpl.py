"""HPL step by step on the clocks of all ranks: the order of solvers/lu/pivoted_lu.py (rocHPL §III, fig. 3 and 6).

    FACT     the panel, on the cores of the ranks of its process column; from the device and back
    LBCAST   along the process rows
    RS       gather rows, exchange them within the process columns, scatter them
    UPDATE   U12 = L11^-1 U12, A22 = A22 - L21 U12

With look-ahead the next panel's columns come first, and FACT and LBCAST go on behind the rest of UPDATE; with the split
update RS does too, as long as there is a left section, and a panel begins beside UPDATE1 of the step before.  Where the
device is a rank's own cores (a CPU), FACT is part of their work, and hides LBCAST alone.
"""

from __future__ import annotations

import math

import numpy as np

from mxpeak.errors import UsageError
from mxpeak.layout.lu_schedule import LuStep, lu_steps, split_columns
from mxpeak.perf.simulation.clocks import Array, Line, arrivals
from mxpeak.perf.simulation.lu import LuForecast, LuRun, Ranks, forecast, hops, message_in_solve_s, owned
from mxpeak.perf.simulation.machines import Machine

FP64_BYTES = 8
#: The most columns of a section whose rows are swapped by binary exchange, as HPL's default has it.
NARROW = 64


def simulate(run: LuRun, machine: Machine) -> LuForecast:
    """One run: LU, and the triangular solve at its end."""
    return _Simulation(run, machine).result()


def fact_cores(machine: Machine, block: tuple[int, int], sharing: bool) -> int:
    """Cores of one rank in FACT: T = 1 + (C - pq)/p where a node's p×q ranks share C in turn, else C/(pq).

    rocHPL III-B: ranks of one process row never factor at the same time.
    """
    p, q = block
    return 1 + (machine.cores - p * q) // p if sharing else max(1, machine.cores // (p * q))


def fact_s(machine: Machine, line: Line, M: float, nb: int, T: int) -> float:
    """Seconds of FACT of M×NB numbers a rank on T cores: products on T cores, and a pivot a column.

    t = (M NB² - NB³/3) / (min(T, M/NB) r) + NB (log2(T) s + 2 log2(P) l)

    with a core's rate r, a level of a reduction over cores s, and of one over ranks l.  Tiles of NB rows are what cores
    are given (III-A), so a short panel has no work for all of them.  The tables' core rates are calibrated with these
    2 log2(P) levels; `rounds` counts what ranks exchange here, and goes with measured rates.
    """
    assert machine.core_rate is not None
    assert machine.sync_s is not None
    flops = max(0.0, M * nb**2 - nb**3 / 3.0)
    busy = max(1.0, min(float(T), M / nb))
    level_s = max(machine.sync_s, line.slowest[0]) if line.size > 1 else 0.0
    pivots = nb * (math.log2(T) * machine.sync_s + 2.0 * math.ceil(math.log2(line.size)) * level_s)
    return flops / (busy * machine.core_rate) + pivots


def own_fact_s(machine: Machine, line: Line, M: float, nb: int) -> float:
    """Seconds of FACT of M×NB numbers a rank by its device, which copies them first.

    t = (M NB² - NB³/3) / r(NB) + NB (s + rounds(P) l)
    """
    flops = max(0.0, M * nb**2 - nb**3 / 3.0)
    pivots = nb * ((machine.sync_s or 0.0) + rounds(line.size) * exchange_s(machine, line, nb))
    return flops / machine.curve("fact", "fp64")(nb) + pivots


def rounds(P: int) -> int:
    """Exchanges one after the other in a butterfly: log2 P; ranks beyond a power of two hand in and get back."""
    full = P.bit_length() - 1
    return full + 2 * (1 << full < P)


def exchange_s(machine: Machine, line: Line, nb: int) -> float:
    """Seconds of a round of FACT's exchange: l + 2 NB 8 b of its message, two rows, and what comes beside it."""
    latency_s, per_byte = line.slowest
    return machine.exchange_s + latency_s + 2 * nb * FP64_BYTES * per_byte


class _Simulation:
    """The clocks [P, Q] of a factorization under way.

    device   when each device has done all that it was given
    panel    when the next panel is where it is needed; pivots: when its pivots are, which go ahead of it
    right    when the rows of the right section are; None: not on their way
    early    when the next panel's columns may be brought up to date beside UPDATE1; None: not before the step
    port     when each rank's way out of its node is free
    """

    def __init__(self, run: LuRun, machine: Machine):
        if run.precision != "fp64":
            raise UsageError(f"HPL computes in fp64, not {run.precision}; remove --precision, or use hpl-mxp")
        if not machine.fact and (machine.core_rate is None or machine.sync_s is None):
            raise UsageError(
                f"the machine {machine.name} has no data for FACT, the panel factorization on the host; add "
                f"core_rate and sync_s to its table [{machine.name}.panel]"
            )
        self.run, self.machine, self.ranks = run, machine, Ranks(run, machine)
        self.device, self.panel, self.port = (np.zeros((run.P, run.Q)) for _ in range(3))
        self.pivots = 0.0
        self.right: Array | None = None
        self.early: Array | None = None
        self.trsm_rate = machine.curve("trsm", "fp64")
        self.columns = owned(run.n + 1, run.nb, run.Q)
        hides = run.depth > 0 and run.P > 1
        self.n2 = np.array([split_columns(int(c), run.split, run.nb) if hides else 0 for c in self.columns], float)
        self.cores = fact_cores(machine, self.ranks.node, run.core_sharing)
        self.busy = dict.fromkeys(("gemm", "trsm", "rows", "factor", "copy"), 0.0)
        self.step_s: list[float] = []
        self.device_s: list[float] = []

    def result(self) -> LuForecast:
        """All steps, then the triangular solve: N²/(PQ) numbers read, and a block row after the other."""
        run = self.run
        steps = lu_steps(run.n, run.nb, run.P, run.Q)
        self.device[:, 0] += self.next_panel(steps[0], self.device[:, 0].copy(), self.device)
        for step, following in zip(steps, [*steps[1:], None]):
            ready = np.maximum(self.device, self.panel)
            self.step_s.append(float(ready[step.p, step.q]))
            if following is None or run.depth == 0:
                self.plain(step, following, ready)
            elif self.splits(following):
                self.split(step, following, ready)
            else:
                self.look_ahead(step, following, ready)
        local = float(owned(run.n, run.nb, run.P)[0]) * float(self.columns[0])
        # a measured rate is that of a solve with L and with U; here U alone is left
        rate = 2.0 * (self.machine.solve_rate or 0.0) or self.machine.memory_rate / FP64_BYTES
        solve_s = local / rate + len(steps) * hops(run.P, run.Q) * message_in_solve_s(self.machine, self.ranks.network)
        hidden = () if self.machine.fact else ("factor", "copy")
        behind = {name: self.busy.pop(name) for name in hidden}
        phases = {**self.busy, "solve": solve_s}
        return forecast(run, float(self.device.max()) + solve_s, phases, self.step_s, self.device_s, behind)

    # --- one step

    def plain(self, step: LuStep, following: LuStep | None, ready: Array) -> None:
        """Fig. 2: one after the other."""
        m, n = self.trailing(step)
        swapped = self.exchange(ready + self.rows_s(n, step.jb), n, step.jb)
        self.device = swapped + self.update_s(step.jb, m, n)
        self.device_s.append(float((self.device - swapped)[step.p, step.q]))
        if following is not None:
            q = following.q
            self.device[:, q] += self.next_panel(following, self.device[:, q].copy(), self.device)

    def look_ahead(self, step: LuStep, following: LuStep, ready: Array) -> None:
        """Fig. 3: FACT and LBCAST behind UPDATE, RS not."""
        ahead, panel_s = self.ahead(step, following, ready)
        m, n = self.rest(step, following)
        begun = ready if self.right is None else np.maximum(ready, self.right)
        self.right = None
        gathered = begun + self.rows_s(n, step.jb)
        gathered[:, following.q] += panel_s + self.next_panel(following, ahead, ready)
        swapped = self.exchange(gathered, n, step.jb)
        update = self.update_s(step.jb, m, n)
        self.device = swapped + update
        self.device_s.append(self.active(following, update + (gathered - begun)))

    def split(self, step: LuStep, following: LuStep, ready: Array) -> None:
        """Fig. 6: UPDATE2 hides FACT, LBCAST and RS1; UPDATE1 hides the next step's RS2."""
        m, n = self.rest(step, following)
        n1, n2 = n - self.n2, self.n2
        if self.right is None:
            self.right = self.exchange(ready + self.rows_s(n2, step.jb), n2, step.jb)
        ahead, panel_s = self.ahead(step, following, ready if self.early is None else self.early)
        gathered = ready + 0.5 * self.rows_s(n1, step.jb)
        gathered[:, following.q] += panel_s + self.next_panel(following, ahead, ready)
        left = self.exchange(gathered, n1, step.jb)
        update2, update1 = self.update_s(step.jb, m, n2), self.update_s(step.jb, m, n1)
        half2, half1 = 0.5 * self.rows_s(n2, step.jb), 0.5 * self.rows_s(n1, step.jb)
        device = np.maximum(gathered, self.right) + half2 + update2
        early = self.run.early and not self.machine.fact
        if not early:
            device = np.maximum(device, self.panel)
        self.right = self.early = None
        rest1 = update1
        after = self.rest_of(following)
        if after is not None and self.splits(after):
            if early:
                first = np.zeros_like(update1)  # the columns of the panel after the next
                first[:, after.q] = update1[:, after.q] * min(1.0, after.jb / max(float(n1[after.q]), 1.0))
                device = np.maximum(np.maximum(device, left) + first, self.pivots)
                self.early = np.maximum(device, self.panel)
                rest1 = update1 - first
            device = device + half2
            self.right = self.exchange(device, n2, following.jb)
        self.device = np.maximum(device, left) + half1 + rest1
        self.device_s.append(self.active(following, update2 + update1 + half2 + half1 + (gathered - ready)))

    def ahead(self, step: LuStep, following: LuStep, ready: Array) -> tuple[Array, Array]:
        """The next panel's columns brought up to date: when, and the device's seconds for it, by process row."""
        q, jb = following.q, float(following.jb)
        m, _ = self.trailing(step)
        columns = np.full(self.run.Q, jb)
        rows_s = self.rows_s(columns, step.jb)[:, q]
        swapped = self.exchange_one(ready[:, q] + rows_s, jb, step.jb)
        update = self.update_s(step.jb, m, columns, q)[:, 0]
        ahead: Array = swapped + update
        return ahead, rows_s + update

    def next_panel(self, step: LuStep, begun: Array, entry: Array) -> Array | float:
        """FACT in process column q, which ends for all of it at once, and LBCAST; the seconds that its devices lose."""
        q, jb = step.q, step.jb
        m = self.below(step.j0)[0]
        panel_bytes = FP64_BYTES * jb * m
        copy_s = panel_bytes / self.ranks.network.host_rate
        if self.machine.fact:  # which includes the copy
            copy_s = np.zeros_like(panel_bytes)
            fact = own_fact_s(self.machine, self.ranks.along_column, float(m.max()), jb)
        else:
            fact = fact_s(self.machine, self.ranks.along_column, float(m.max()), jb, self.cores)
        done = float((begun + copy_s).max()) + fact
        self.pivots = done + (self.run.Q - 1) * self.ranks.along_row.slowest[0]
        L = done + copy_s
        message = panel_bytes + FP64_BYTES * jb * (jb + 1)
        stage = self.ranks.staged(message)
        taking = entry.copy()
        if self.ranks.wait_on_the_spot:
            taking[:, q] = L
        self.panel = arrivals(self.run.bcast, self.ranks.along_row, q, L + stage, taking, self.port, message)
        if not self.run.aware:
            self.panel = self.panel + np.reshape(stage, (-1, 1))
        self.busy["factor"] += fact / self.run.Q
        self.busy["copy"] += 2.0 * float(copy_s.sum()) / self.run.ranks
        return L - begun if self.machine.fact else 0.0

    # --- its parts

    def exchange(self, begun: Array, columns: Array, jb: int) -> Array:
        """RS's messages: within a process column all begin when the last has gathered.

        The owner of the block row scatters P - 1 pieces of jb n/P numbers while all gather U's, so its way out carries
        both, and the latencies of one hide those of the other:

            h l + 2 (P-1) (jb n 8/P) b        h = P - 1 rolls, or the rounds of a binary exchange of narrow sections
        """
        line, P = self.ranks.along_column, self.run.P
        if P == 1:
            return begun
        latency_s, per_byte = line.slowest
        rolls = np.where(columns <= NARROW, rounds(P), P - 1)
        seconds = rolls * latency_s + 2 * (P - 1) * FP64_BYTES * jb * columns / P * per_byte
        return np.broadcast_to(begun.max(axis=0) + np.where(columns > 0, seconds, 0.0), begun.shape).copy()

    def exchange_one(self, begun: Array, columns: float, jb: int) -> Array:
        """The same for one process column."""
        return self.exchange(begun[:, None], np.array([columns]), jb)[:, 0]

    def rows_s(self, columns: Array, jb: int) -> Array:
        """The device's seconds to gather and scatter the rows of a section, by process column, for all rows alike."""
        seconds = self.machine.row_passes * FP64_BYTES * jb * columns / self.machine.memory_rate / self.ranks.speed
        self.busy["rows"] += float(seconds.sum()) / self.run.ranks
        found: Array = seconds
        return found

    def update_s(self, jb: int, m: Array, n: Array, q: int | None = None) -> Array:
        """The device's seconds of UPDATE of n columns: jb² n for U, 2 jb (m + edge)(n + edge) for A22."""
        edge, speed = self.machine.edge, self.ranks.speed
        if q is not None:
            n, speed = n[q : q + 1], speed[:, q : q + 1]
        padded_m, padded_n = np.where(m > 0, m + edge, 0.0), np.where(n > 0, n + edge, 0.0)
        per_entry = 2.0 * jb / self.machine.gemm_rate("fp64", jb, float(m.max()))
        gemm = np.multiply.outer(padded_m, padded_n * per_entry) / speed
        trsm = jb**2 * n / self.trsm_rate(jb) / speed
        self.busy["gemm"] += float(gemm.sum()) / self.run.ranks
        self.busy["trsm"] += float(trsm.sum()) / self.run.ranks
        seconds: Array = gemm + trsm
        return seconds

    def active(self, following: LuStep, update: Array) -> float:
        """What the device of the next panel's owner computes in a step (fig. 7)."""
        return float(update[following.p, following.q])

    # --- sizes

    def splits(self, following: LuStep) -> bool:
        """Whether the next panel still lies in the left section everywhere (III-C)."""
        _, n = self.below(following.j1)
        return bool((self.n2 > 0).any() and (n >= self.n2).all())

    def rest_of(self, step: LuStep) -> LuStep | None:
        """The step after one."""
        run = self.run
        j0 = step.j1
        if j0 >= run.n:
            return None
        k = step.k + 1
        return LuStep(k, j0, min(run.nb, run.n - j0), k % run.P, k % run.Q)

    def trailing(self, step: LuStep) -> tuple[Array, Array]:
        """Local rows and columns behind a step's panel, b among the columns."""
        return self.below(step.j1)

    def rest(self, step: LuStep, following: LuStep) -> tuple[Array, Array]:
        """Local rows behind a step's panel, and columns behind the next one."""
        return self.below(step.j1)[0], self.below(following.j1)[1]

    def below(self, j: int) -> tuple[Array, Array]:
        """Local rows and columns from global index j on."""
        run = self.run
        return owned(run.n, run.nb, run.P) - owned(j, run.nb, run.P), self.columns - owned(j, run.nb, run.Q)
