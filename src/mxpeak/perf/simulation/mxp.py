"""Simulate HPL-MxP step by step with a clock per rank, by the events of layout/lu_schedule.py (OLCF's Algorithm 1).

A11 = L11 U11                  factor, sent along its row and column
L21 = A21 U11^-1, cast         trsm, sent along the rows
U12 = L11^-1 A12, cast         trsm, sent along the columns
A22 = A22 - L21 U12            gemm, first in the block column and block row of the next panels
"""

from __future__ import annotations

import math

import numpy as np

from mxpeak.layout.lu_schedule import REST, LuEvent, LuOverlap, LuStep, execute, looks_ahead, lu_schedule
from mxpeak.perf.simulation.clocks import Array, ProcessLine, arrivals
from mxpeak.perf.simulation.lu import LuClocks, LuForecast, LuRun, RankGrid, forecast, hops, message_in_solve_s, owned
from mxpeak.perf.simulation.machines import Machine
from mxpeak.precision import precision, stored_as

FP32_BYTES = 4
#: Number of sums over all ranks in a step of GMRES: two projections, a norm, the product and the predicted error.
REDUCTIONS = 5


def simulate_mxp(run: LuRun, machine: Machine) -> LuForecast:
    """Simulate an HPL-MxP run, which consists of the LU and the refinement, and return the forecast."""
    return MxpClocks(run, machine).result()


class MxpClocks(LuClocks):
    """The clocks of a simulated HPL-MxP run. `L` and `U` contain the arrival times of a step's panels."""

    def __init__(self, run: LuRun, machine: Machine):
        machine.check_rates("hpl-mxp", run.precision)
        super().__init__(run, machine)
        self.L, self.U = np.zeros_like(self.device), np.zeros_like(self.device)
        self.busy = dict.fromkeys(("gemm", "trsm", "factor", "cast"), 0.0)
        self.overlap = LuOverlap(looks_ahead(run.depth, run.ranks, background=machine.devices))
        self.low = precision(run.precision).bytes
        stored = stored_as(run.precision)
        self.stored = precision(stored).bytes
        self.trsm_rate, self.factor_rate = machine.curve("trsm", stored), machine.curve("factor", stored)

    def result(self) -> LuForecast:
        """Simulate all steps and the refinement, and return the forecast."""
        execute(lu_schedule(len(self.steps), self.overlap), self)
        lu_s = float(np.maximum(self.device, np.maximum(self.L, self.U)).max())
        refine_s = refinement_s(self.run, self.machine, self.ranks)
        phases = {**self.busy, "refine": refine_s}
        return forecast(self.run, lu_s + refine_s, phases, self.step_s, self.device_s)

    def arrival(self) -> Array:
        """Return the time at which each rank has received both panels of the current step."""
        return np.maximum(self.L, self.U)

    def await_panel(self, event: LuEvent) -> None:
        """Simulate the wait for both panels, and begin the step."""
        super().await_panel(event)
        step = self.steps[event.k]
        side = (self.run.n - step.j1) / math.sqrt(self.run.ranks)
        self.per_entry = 2.0 * step.jb / self.machine.gemm_rate(self.run.precision, step.jb, side)

    def prepare(self, event: LuEvent) -> None:
        """Simulate the update of the next block column and block row, and record when their panels can begin."""
        step, width = self.steps[event.k], np.array([float(self.steps[event.k].jb)])
        column, row = self.ready[:, step.q].copy(), self.ready[step.p].copy()
        column += self.gemm(self.rows_below(step.j0), width, q=step.q)[:, 0]
        across = self.gemm(width, self.columns_from(step.j1), p=step.p)[0]
        row += across
        row[step.q] = column[step.p] = column[step.p] + across[step.q]
        self.column, self.row = column, row

    def factor(self, event: LuEvent) -> None:
        """Simulate the computation and the broadcast of a step's panels.

        With look-ahead, `update` simulates the panels of all steps except the first, because they overlap an update.
        """
        step = self.steps[event.k]
        if event.k == 0 or not self.overlap.lookahead:
            self.panels(step, self.device[:, step.q], self.device[step.p], self.device, 0.0)

    def update(self, event: LuEvent) -> None:
        """Simulate the update of a section, and the panels of the next step if they overlap it."""
        if event.k + 1 == len(self.steps):
            return
        following = self.steps[event.k + 1]
        trailing = self.steps[event.k + (event.section == REST)].j1
        seconds = self.gemm(self.rows_below(trailing), self.columns_from(trailing))
        if event.section == REST:
            p, q = following.p, following.q
            self.device_s.append(float(self.row[q] - self.ready[p, q] + seconds[p, q]))
            self.panels(following, self.column, self.row, self.ready, seconds)
        else:
            self.device = self.ready + seconds
            self.note_device_s(following, self.device - self.ready)

    def panels(self, step: LuStep, column: Array, row: Array, entry: Array, rest: Array | float) -> None:
        """Simulate the computation and the broadcast of a step's panels, which begin at the times `column` and `row`.

        While the ranks of these panels wait for the diagonal block, their devices continue with `rest` of the update.
        """
        p, q, jb = step.p, step.q, step.jb
        m, n = self.rows_below(step.j1), self.columns_from(step.j1)
        speed, device, blocking = self.ranks.speed, entry + rest, self.ranks.wait_on_the_spot
        factor_s = 2.0 / 3.0 * jb**3 / self.factor_rate(jb) / float(speed[p, q])
        D = column[p] + factor_s
        block_bytes = float(self.stored * jb**2)
        D_column, D_row = (D + _tree(line, block_bytes) for line in (self.ranks.along_column, self.ranks.along_row))
        trsm_L, trsm_U = (jb**2 * size / self.trsm_rate(jb) for size in (m, n))
        cast_rate = self.machine.cast_rate or self.machine.memory_rate
        cast_L, cast_U = ((self.stored + self.low) * jb * size / cast_rate for size in (m, n))
        make_L, make_U = (trsm_L + cast_L) / speed[:, q], (trsm_U + cast_U) / speed[p]
        L = np.where(np.arange(self.run.P) == p, D, np.maximum(column, D_column)) + make_L
        U = np.where(np.arange(self.run.Q) == q, L[p], np.maximum(row, D_row)) + make_U

        # The time for a device's own panels is added to its update time. The device also waits for D.
        device[:, q] = np.maximum(device[:, q] - entry[:, q] + column + make_L, L)
        device[p] = np.maximum(device[p] - entry[p] + row + make_U, U)
        device[p, q] = max(column[p] + factor_s + make_L[p] + make_U[q] + (np.zeros_like(entry) + rest)[p, q], U[q])

        sent = entry.copy()
        sent[:, q], sent[p] = L, U
        L_bytes, U_bytes = self.low * jb * m, self.low * jb * n
        stage_L, stage_U = self.ranks.staged(L_bytes), self.ranks.staged(U_bytes)
        entry_L = entry if not blocking else sent
        self.L = arrivals(self.run.bcast, self.ranks.along_row, q, L + stage_L, entry_L, self.port, L_bytes)
        entry_U = entry if not blocking else np.maximum(sent, self.L)
        self.U = arrivals(self.run.bcast, self.ranks.along_column, p, U + stage_U, entry_U.T, self.port.T, U_bytes).T
        if not self.run.aware:
            self.L, self.U = self.L + np.reshape(stage_L, (-1, 1)), self.U + stage_U
        if blocking:  # the rest of the update begins after both panels have arrived
            device = np.maximum(device - rest, np.maximum(self.L, self.U)) + rest
        self.device = device
        size = self.run.ranks
        self.busy["factor"] += factor_s / size
        self.busy["trsm"] += float(np.sum(trsm_L / speed[:, q]) + np.sum(trsm_U / speed[p])) / size
        self.busy["cast"] += float(np.sum(cast_L / speed[:, q]) + np.sum(cast_U / speed[p])) / size

    def gemm(self, m: Array, n: Array, p: int | None = None, q: int | None = None) -> Array:
        """Return the seconds of an m×n product on all ranks, or on the ranks of process row p or process column q.

        The product is counted with (m + edge)(n + edge) entries.
        """
        edge = self.machine.edge
        padded_m, padded_n = np.where(m > 0, m + edge, 0.0), np.where(n > 0, n + edge, 0.0)
        speed = self.ranks.speed
        speed = speed[p : p + 1] if p is not None else speed[:, q : q + 1] if q is not None else speed
        seconds: Array = np.multiply.outer(padded_m * self.per_entry, padded_n) / speed
        self.busy["gemm"] += float(seconds.sum()) / self.run.ranks
        return seconds

    def columns_from(self, j: int) -> Array:
        """Return the number of local columns from global column j to the end, by process column."""
        return self.columns_before(self.run.n) - self.columns_before(j)


def _tree(line: ProcessLine, size_bytes: float) -> float:
    """Return the seconds of the library's broadcast of the diagonal block.

    The block is small compared with panels, so the time includes a latency for each level of the broadcast tree.
    """
    if line.size == 1:
        return 0.0
    latency_s, _ = line.slowest
    rate = line.network.nic_rate if line.leaves else line.network.local_rate
    return math.ceil(math.log2(line.size)) * latency_s + line.network.lib_passes * size_bytes / rate


def refinement_s(run: LuRun, machine: Machine, ranks: RankGrid) -> float:
    """Return the time of the refinement in seconds.

    step = N²/(PQ) / generate + 4 N²/(PQ) / memory + (2 N/NB + 5) (log2 P + log2 Q) exchanges

    Each step regenerates A for the residual, and reads L and U for the solve. An exchange takes `turn_s` if this time
    was measured, otherwise a latency plus `exchange_s`. A measured rate of solves replaces the rate of memory. In
    addition, A is regenerated `extra_passes` times.
    """
    if machine.generate_rate is None:
        return 0.0
    local = float(owned(run.n, run.nb, run.P)[0] * owned(run.n, run.nb, run.Q)[0])
    solve_rate = machine.solve_rate or machine.memory_rate / FP32_BYTES
    exchanges = (2.0 * run.n / run.nb + REDUCTIONS) * hops(run.P, run.Q)
    solve_s = local / solve_rate + exchanges * message_in_solve_s(machine, ranks.network)
    pass_s = local / machine.generate_rate
    return machine.extra_passes * pass_s + machine.refine_steps * (pass_s + solve_s)
