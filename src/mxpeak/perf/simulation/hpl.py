"""Simulate HPL step by step with a clock per rank, by the events of layout/lu_schedule.py (rocHPL §III, fig. 3 and 6).

    FACT     factor the panel on the host cores of a process column; copy it from the device and back
    LBCAST   broadcast the panel along the process rows
    RS       gather rows, exchange them within the process columns, scatter them
    UPDATE   U12 = L11^-1 U12, A22 = A22 - L21 U12

If the device of a rank is its own cores (on a CPU), the cores also compute FACT, and computation hides only LBCAST.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np

from mxpeak.errors import UsageError
from mxpeak.layout.lu_schedule import (
    ALL,
    FIRST,
    LEFT,
    NEXT,
    REST,
    RIGHT,
    UPDATE,
    LuEvent,
    LuOverlap,
    LuStep,
    Sections,
    execute,
    lu_schedule,
    split_columns,
)
from mxpeak.perf.simulation.clocks import Array, ProcessLine, arrivals
from mxpeak.perf.simulation.lu import LuClocks, LuForecast, LuRun, forecast, hops, message_in_solve_s, owned
from mxpeak.perf.simulation.machines import Machine

FP64_BYTES = 8
#: Maximum number of columns whose rows are swapped by binary exchange (HPL's default).
NARROW = 64


def simulate_hpl(run: LuRun, machine: Machine) -> LuForecast:
    """Simulate an HPL run, which consists of the LU and the triangular solve, and return the forecast."""
    return HplClocks(run, machine).result()


def fact_cores(machine: Machine, block: tuple[int, int], sharing: bool) -> int:
    """Return the number of cores per rank in FACT.

    With `sharing`, the p×q ranks of a node share its C cores, and a rank uses 1 + (C - pq)/p of them. Ranks of one
    process row never factor at the same time (rocHPL III-B). Without `sharing`, a rank uses C/(pq) cores.
    """
    p, q = block
    return 1 + (machine.cores - p * q) // p if sharing else max(1, machine.cores // (p * q))


def fact_s(machine: Machine, line: ProcessLine, M: float, nb: int, T: int) -> float:
    """Return the time of FACT in seconds for M×NB entries per rank on T cores.

    t = (M NB² - NB³/3) / (min(T, M/NB) r) + NB (log2(T) s + 2 log2(P) l)

    The terms are the products on T cores, and one pivot search per column. Here r is the rate of a core, s the time
    per level of a reduction over cores, and l the time per level of a reduction over ranks. Cores process tiles of NB
    rows (III-A), so a short panel does not occupy all cores. The core rates in machines.toml are calibrated with these
    2 log2(P) levels. With measured rates, `rounds` returns the actual number of exchanges between ranks.
    """
    assert machine.core_rate is not None
    assert machine.sync_s is not None
    flops = max(0.0, M * nb**2 - nb**3 / 3.0)
    busy = max(1.0, min(float(T), M / nb))
    level_s = max(machine.sync_s, line.slowest[0]) if line.size > 1 else 0.0
    pivots = nb * (math.log2(T) * machine.sync_s + 2.0 * math.ceil(math.log2(line.size)) * level_s)
    return flops / (busy * machine.core_rate) + pivots


def own_fact_s(machine: Machine, line: ProcessLine, M: float, nb: int) -> float:
    """Return the time of FACT in seconds for M×NB entries per rank on the rank's own device, including the copy.

    t = (M NB² - NB³/3) / r(NB) + NB (s + rounds(P) l)

    Here r is the measured rate, s the time per column, and l the time of an exchange between ranks.
    """
    flops = max(0.0, M * nb**2 - nb**3 / 3.0)
    pivots = nb * ((machine.sync_s or 0.0) + rounds(line.size) * exchange_s(machine, line, nb))
    return flops / machine.curve("fact", "fp64")(nb) + pivots


def rounds(P: int) -> int:
    """Return the number of successive exchanges in a butterfly over P ranks.

    The number is ⌊log2 P⌋, plus 2 if P is not a power of two.
    """
    full = P.bit_length() - 1
    return full + 2 * (1 << full < P)


def exchange_s(machine: Machine, line: ProcessLine, nb: int) -> float:
    """Return the time of one exchange in FACT, in seconds.

    The time is l + 2 NB 8 b for two rows, with latency l and b seconds per byte, plus the machine's `exchange_s`.
    """
    latency_s, per_byte = line.slowest
    return machine.exchange_s + latency_s + 2 * nb * FP64_BYTES * per_byte


class HplClocks(LuClocks):
    """The clocks of a simulated HPL run, in seconds.

    panel    when the next panel arrives
    pivots   when the next panel's pivots arrive, which are sent before the panel
    rows     when the swapped rows arrive, by section
    early    when the next panel's columns may be updated before the rest of a section; None: when the step begins
    """

    def __init__(self, run: LuRun, machine: Machine):
        if run.precision != "fp64":
            raise UsageError(f"HPL computes in fp64, not {run.precision}; remove --precision, or use hpl-mxp")
        machine.check_rates("hpl", "fp64")
        if run.P > 1 and None not in (
            machine.core_rate,
            machine.sync_s,
        ):  # a device factors a panel only if it has the whole panel
            machine = replace(machine, fact={})
        super().__init__(run, machine)
        self.panel, self.pivots = np.zeros_like(self.device), 0.0
        self.rows: dict[int, Array] = {}
        self.early: Array | None = None
        self.panel_s: Array | float = 0.0
        self.update1: Array | None = None
        self.half2: Array | float = 0.0
        self.trsm_rate = machine.curve("trsm", "fp64")
        self.columns = owned(run.n + 1, run.nb, run.Q)
        hides = run.depth > 0 and run.P > 1
        self.n2 = np.array([split_columns(int(c), run.split, run.nb) if hides else 0 for c in self.columns], float)
        self.sections = Sections(self.steps, self.columns_before, self.columns - self.n2, self.columns)
        host_panels = not machine.fact
        self.overlap = LuOverlap(run.depth > 0, self.split_steps(), host_panels, run.early and host_panels)
        self.cores = fact_cores(machine, self.ranks.node, run.core_sharing)
        self.busy = dict.fromkeys(("gemm", "trsm", "rows", "factor", "copy"), 0.0)

    def result(self) -> LuForecast:
        """Simulate all steps and the triangular solve, and return the forecast.

        In the solve, each rank reads N²/(PQ) entries, one block row after the other.
        """
        run, steps = self.run, self.steps
        execute(lu_schedule(len(steps), self.overlap), self)
        local = float(owned(run.n, run.nb, run.P)[0]) * float(self.columns[0])
        # A measured rate is that of a solve with L and U; this solve uses only U.
        rate = 2.0 * (self.machine.solve_rate or 0.0) or self.machine.memory_rate / FP64_BYTES
        solve_s = local / rate + len(steps) * hops(run.P, run.Q) * message_in_solve_s(self.machine, self.ranks.network)
        hidden = () if self.machine.fact else ("factor", "copy")  # other phases or "wait" contain this time
        phases = {**{name: busy_s for name, busy_s in self.busy.items() if name not in hidden}, "solve": solve_s}
        return forecast(run, float(self.device.max()) + solve_s, phases, self.step_s, self.device_s)

    def arrival(self) -> Array:
        """Return the time at which each rank has received the current panel."""
        return self.panel

    def prepare(self, event: LuEvent) -> None:
        """Simulate the update of a panel's columns.

        Record when FACT can begin, and the time during which the update occupies the devices.
        """
        begun, self.early = self.ready if self.early is None else self.early, None
        self.ahead, self.panel_s = self.update_panel(self.steps[event.k - 1], self.steps[event.k], begun)

    def factor(self, event: LuEvent) -> None:
        """Simulate FACT and the broadcast of a panel."""
        step = self.steps[event.k]
        if self.overlap.lookahead and event.k:
            self.panel_s = self.panel_s + self.factor_and_send(step, self.ahead, self.ready)
        else:
            self.device[:, step.q] += self.factor_and_send(step, self.device[:, step.q].copy(), self.device)

    def await_pivots(self, event: LuEvent) -> None:
        """Simulate the wait for the next panel's pivots; record when the columns of the following panel may start."""
        if self.overlap.early:
            self.device = np.maximum(self.device, self.pivots)
            self.early = np.maximum(self.device, self.panel)

    def begin_swap(self, event: LuEvent) -> None:
        """Simulate gathering and sending the rows of a section; `update_panel` simulates the section NEXT."""
        step, section = self.steps[event.k], event.section
        if section == NEXT:
            return
        n = self.width(event)
        if section == RIGHT and event.k == len(self.step_s):  # sent during the previous step
            self.device = self.device + self.half2
            self.rows[section] = self.exchange(self.device, n, step.jb)
            return
        self.gathered = self.ready + (0.5 if section == LEFT else 1.0) * self.rows_s(n, step.jb)
        if section in (LEFT, REST):
            self.gathered[:, self.steps[event.k + 1].q] += self.panel_s
        self.rows[section] = self.exchange(self.gathered, n, step.jb)

    def update(self, event: LuEvent) -> None:
        """Simulate the update of a section after its rows have arrived.

        After the last section of a step, record how long the device computed in the step.
        """
        step, section = self.steps[event.k], event.section
        m, n = self.rows_below(step.j1), self.width(event)
        if section == ALL:
            swapped = self.rows.pop(ALL)
            self.device = swapped + self.update_s(step.jb, m, n)
            self.note_device_s(step, self.device - swapped)
        elif section == REST:
            update = self.update_s(step.jb, m, n)
            self.device = self.rows.pop(REST) + update
            self.note_device_s(self.steps[event.k + 1], update + (self.gathered - self.ready))
        elif section == RIGHT:
            self.update2, self.update1 = self.update_s(step.jb, m, n), None
            self.half2 = 0.5 * self.rows_s(n, step.jb)
            self.device = np.maximum(self.gathered, self.rows.pop(RIGHT)) + self.half2 + self.update2
            if not self.overlap.early:
                self.device = np.maximum(self.device, self.panel)
        elif section == FIRST:
            self.update_first_columns(event.k)
        else:
            self.update_left(event.k)

    def update_first_columns(self, k: int) -> None:
        """Simulate the update of the first columns of the left section, which belong to the panel of step k + 2."""
        step, after = self.steps[k], self.steps[k + 2]
        n1 = self.width(LuEvent(UPDATE, k, LEFT))
        self.update1 = self.update_s(step.jb, self.rows_below(step.j1), n1)
        self.first = np.zeros_like(self.update1)
        self.first[:, after.q] = self.update1[:, after.q] * min(1.0, after.jb / max(float(n1[after.q]), 1.0))
        self.device = np.maximum(self.device, self.rows[LEFT]) + self.first

    def update_left(self, k: int) -> None:
        """Simulate the update of the left section, without the columns that `update_first_columns` has updated."""
        step = self.steps[k]
        n1 = self.width(LuEvent(UPDATE, k, LEFT))
        if self.update1 is None:
            rest1 = self.update1 = self.update_s(step.jb, self.rows_below(step.j1), n1)
        else:
            rest1 = self.update1 - self.first
        half1 = 0.5 * self.rows_s(n1, step.jb)
        self.device = np.maximum(self.device, self.rows.pop(LEFT)) + half1 + rest1
        self.note_device_s(
            self.steps[k + 1], self.update2 + self.update1 + self.half2 + half1 + (self.gathered - self.ready)
        )

    def update_panel(self, step: LuStep, following: LuStep, ready: Array) -> tuple[Array, Array]:
        """Simulate the row swaps and the update of the next panel's columns.

        Return, by process row, the time at which the columns are ready, and the seconds that the device spends.
        """
        q, jb = following.q, float(following.jb)
        m = self.rows_below(step.j1)
        columns = np.full(self.run.Q, jb)
        rows_s = self.rows_s(columns, step.jb)[:, q]
        swapped = self.exchange_one(ready[:, q] + rows_s, jb, step.jb)
        update = self.update_s(step.jb, m, columns, q)[:, 0]
        ahead: Array = swapped + update
        return ahead, rows_s + update

    def factor_and_send(self, step: LuStep, begun: Array, entry: Array) -> Array | float:
        """Simulate FACT, which ends at the same time on all ranks of the process column, and LBCAST.

        Return the time, in seconds, during which the devices of the column cannot compute.
        """
        q, jb = step.q, step.jb
        m = self.rows_below(step.j0)
        panel_bytes = FP64_BYTES * jb * m
        copy_s = panel_bytes / self.ranks.network.host_rate
        if self.machine.fact:  # the measured rate includes the copy
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

    def exchange(self, begun: Array, columns: Array, jb: int) -> Array:
        """Return the time at which the messages of RS have arrived on each rank.

        The ranks of a process column begin when all of them have gathered their rows. The owner of the block row
        scatters P - 1 pieces of jb n/P entries while all ranks gather U. Its outgoing link carries both messages, and
        their latencies overlap. With latency l and b seconds per byte, the time is

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
        """Return the time at which the messages of RS have arrived on each rank of one process column."""
        return self.exchange(begun[:, None], np.array([columns]), jb)[:, 0]

    def rows_s(self, columns: Array, jb: int) -> Array:
        """Return the seconds in which the device gathers and scatters the rows of a section, for each rank."""
        seconds: Array = (
            self.machine.row_passes * FP64_BYTES * jb * columns / self.machine.memory_rate / self.ranks.speed
        )
        self.busy["rows"] += float(seconds.sum()) / self.run.ranks
        return seconds

    def update_s(self, jb: int, m: Array, n: Array, q: int | None = None) -> Array:
        """Return the seconds of UPDATE for n columns, for each rank or for the ranks of process column q.

        The flops are jb² n for the solve of U, and 2 jb (m + edge)(n + edge) for the update of A22.
        """
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

    def split_steps(self) -> int:
        """Return the number of initial steps in which the next panel is in the left section of every process column."""
        if not self.n2.any():
            return 0
        split = self.columns - self.n2
        outside = (
            step.k for step, following in pairwise(self.steps) if (self.columns_before(following.j1) > split).any()
        )
        return next(outside, max(0, len(self.steps) - 1))

    def width(self, event: LuEvent) -> Array:
        """Return the number of local columns in the section of an event, by process column."""
        c0, c1 = self.sections.columns(event.k, event.section)
        return c1 - c0  # type: ignore[no-any-return]
