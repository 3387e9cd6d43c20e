"""HPL-MxP: solve A x = b to FP64 accuracy by a low-precision LU and refinement; the rules in one screen.

generated   A (no pivoting needed) and b from the seed, in FP32 for the LU, before the clock
timed       balancing, LU without pivoting, casts, refinement, undoing the balancing: from a barrier to the slowest
            rank's end
counted     2/3 N³ + 3/2 N² flops, whatever was executed
verified    after the clock: ||Ax-b|| / ((||A||·||x|| + ||b||)·N·u) < 16 in the infinity norm, u = 2^-53, by a product
            of its own with A made anew in FP64; and the factors, by the proof of LU
limit       GEMM of the same precision with inner dimension NB on all ranks at once, in the same process
admissible  what `mxp_rules` says
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from mxpeak.bench.facts import phase_table
from mxpeak.bench.hpl_mxp_result import Check, MxpSolve, hpl_mxp_result
from mxpeak.bench.lu_bench import LuBench, Problem, dry_run_text, run_cases, slowest
from mxpeak.bench.mxp_rules import refused
from mxpeak.comm.base import Communicator
from mxpeak.comm.grid import Grid
from mxpeak.configs import HplMxpCase, HplMxpConfig
from mxpeak.dist.generate import GeneratedSystem
from mxpeak.dist.matrix import DistMatrix, dist_matrix
from mxpeak.kernels.contract import Kernels
from mxpeak.layout.generators import generator
from mxpeak.options import Setting
from mxpeak.perf.counts import Footprint, hpl_flops, mxp_memory_bytes
from mxpeak.precision import precision
from mxpeak.records import Result
from mxpeak.solvers.difficulty import condition_estimate, unpreconditioned_factor
from mxpeak.solvers.lu import LuOptions, factorize, storage
from mxpeak.solvers.mxp_system import Balance, MxpSystem, balance
from mxpeak.solvers.proof import prove
from mxpeak.solvers.refine import Refinement, backward_error, refine
from mxpeak.spans import Observer, Spans

#: The phases that make up a run; "other" is what they leave: Python, vectors, and whatever has no name.
PARTS = ("balance", "factor", "trsm", "cast", "bcast", "gemm", "matvec", "ptrsv")
#: The random signs of the proof are drawn from this on: no seed of a matrix that a user would give.
PROOF_SEED = 0x5EED_0F_1


def run(
    config: HplMxpConfig,
    comm: Communicator,
    *,
    settings: dict[str, Setting] | None = None,
    observers: Sequence[Observer] = (),
    on_case: Callable[[HplMxpCase, Result | None], None] = lambda case, result: None,
    argv: Sequence[str] = (),
) -> list[Result]:
    """Run every case of the config; `on_case` hears of each on rank 0 (None: it did not fit, and was skipped).

    Mistakes raise on every rank before anything runs.  Collective over comm.
    """
    _check(config, comm)
    return run_cases(config, _problem(config, comm), comm, settings or {}, observers, on_case, argv)


def dry_run(config: HplMxpConfig, comm: Communicator, settings: dict[str, Setting] | None = None) -> str:
    """What a run would do: grid, sizes and memory of each case, nothing run.  Collective over comm."""
    _check(config, comm)
    return dry_run_text(config, _problem(config, comm), comm, settings)


def _check(config: HplMxpConfig, comm: Communicator) -> None:
    """Stop at what no case can be run with, before anything is."""
    for case in config.cases(comm.size, config.n or [1000]):
        refused(case)
        _generator(case)


def _problem(config: HplMxpConfig, comm: Communicator) -> Problem[HplMxpCase]:
    return Problem(
        cases=lambda sizes: config.cases(comm.size, sizes),
        footprint=_footprint,
        precision=lambda case: case.precision,
        run=run_case,
    )


def _footprint(case: HplMxpCase) -> Footprint:
    stored = precision(storage(case.precision)).bytes
    return lambda n, nb, P, Q: mxp_memory_bytes(n, nb, P, Q, stored, stored)


def _generator(case: HplMxpCase) -> Any:
    return generator(case.generator, case.n, seed=case.seed, scale=case.diagonal_scale, condition=case.condition)


def run_case(bench: LuBench, case: HplMxpCase, grid: Grid) -> Result | None:
    """Generate, factor, refine, check, prove; `--repeat` times, of which the best counts and all must pass.

    Collective over the grid; the result is whole on its rank 0.
    """
    kernels, config, looks = bench.kernels, bench.config, bench.looks(case)
    runs: list[MxpSolve] = []

    def solve_all() -> float:
        if config.warmup == "full":
            _solve(replace(case, n=min(case.n, 4 * case.nb * max(case.P, case.Q))), grid, kernels, Spans(), looks)
        for _ in range(config.repeat):
            spans = Spans(bench.observers if grid.all.rank == 0 else ())
            runs.append(_solve(case, grid, kernels, spans, looks))
        return min(one.time_s for one in runs)

    limit = bench.limits(case, case.precision, solve_all)
    best = min(runs, key=lambda one: one.time_s)
    phases = phase_table(grid, best.spans)
    rss = bench.peak_rss(grid)
    if grid.all.rank != 0:
        return None
    memory = _footprint(case)(case.n, case.nb, case.P, case.Q)
    return hpl_mxp_result(
        case, runs, best, limit, phases, {**memory, "peak_rss": rss}, bench.facts, kernels.emulates(case.precision)
    )


def _solve(case: HplMxpCase, grid: Grid, kernels: Kernels, spans: Spans, looks: int) -> MxpSolve:
    """One timed solve, and after its clock the check, the proof of LU, and how hard the system was."""
    begin = time.perf_counter()
    system = GeneratedSystem(grid, case.n, case.nb, _generator(case), kernels)
    A = dist_matrix(grid, case.n, case.n, case.nb, kernels, storage(case.precision))
    system.store(A)
    largest_a = _largest(grid, [_max_abs(A, kernels)], kernels)[0]
    grid.all.barrier()
    generate_s = time.perf_counter() - begin

    timed = _Timed(case, grid, system, A, kernels, spans, looks)
    start = time.time()
    spans.start(f"HPL-MxP N={case.n} {case.precision}", hpl_flops(case.n))
    elapsed_s = slowest(grid, kernels, timed.solve)
    end = time.time()
    lu_s = timed.slowest_lu_s()
    mxp, done = timed.mxp, timed.done
    assert mxp is not None
    assert done is not None

    mxp.spans = Spans()  # what follows belongs to no phase
    check = _check_solution(mxp, done, kernels)
    proof = prove(system, A, case.precision, kernels, timed.balance, PROOF_SEED)
    largest_u = _largest(grid, [kernels.max_abs_upper(A.local, A.rows, A.cols)], kernels)[0]
    growth = largest_u / (1.0 if timed.balance else largest_a)  # balancing brings the largest entry to 1
    return MxpSolve(
        elapsed_s, lu_s, start, end, generate_s, check, proof, done.steps, done.history, done.outcome, timed.singular,
        growth, condition_estimate(mxp, kernels), unpreconditioned_factor(system, kernels, mxp), spans,
    )  # fmt: skip


class _Timed:
    """What the clock sees."""

    def __init__(
        self, case: HplMxpCase, grid: Grid, system: GeneratedSystem, A: DistMatrix, kernels: Kernels, spans: Spans,
        looks: int,
    ):  # fmt: skip
        self.case, self.grid, self.system, self.A = case, grid, system, A
        self.kernels, self.spans, self.looks = kernels, spans, looks
        self.balance: Balance | None = None
        self.mxp: MxpSystem | None = None
        self.done: Refinement | None = None
        self.singular = 0
        self._lu_s = 0.0

    def solve(self) -> None:
        """Balance, factor, refine."""
        begin = time.perf_counter()
        if self.case.scaling == "auto":
            with self.spans("balance"):
                self.balance = balance(self.A, self.kernels)
        options = LuOptions(self.case.precision, self.case.bcast, min(self.case.depth, 1), self.looks)
        self.singular = factorize(self.A, options, self.kernels, self.spans)
        self._lu_s = time.perf_counter() - begin

        with self.spans("matvec"):
            A_inf = self._norm()
        self.mxp = MxpSystem(self.system, self.A, A_inf, self.kernels, self.spans, self.balance)
        self.done = refine(self.mxp, self.case.refine, restart=self.case.restart)
        self.spans.finish()
        self.spans.add("other", self.spans.active_s - sum(map(self.spans.time_of, PARTS)))

    def _norm(self) -> float:
        """||A||_inf, which the stopping test needs."""
        sums, _ = self.system.row_sums()
        return _largest(self.grid, [self.kernels.max_abs(sums)], self.kernels)[0]

    def slowest_lu_s(self) -> float:
        """Seconds of balancing and LU on the slowest rank.  Collective."""
        return _largest(self.grid, [self._lu_s], self.kernels)[0]


def _check_solution(mxp: MxpSystem, done: Refinement, kernels: Kernels) -> Check:
    """The backward error by a product of its own; nothing that refinement computed is used but x."""
    residual = mxp.equations.max_abs(mxp.residual(done.x))
    return Check(backward_error(mxp, residual, done.x), residual, mxp.A_inf, mxp.unknowns.max_abs(done.x), mxp.b_inf)


def _max_abs(A: DistMatrix, kernels: Kernels) -> float:
    """max |a_ij| of this rank's part."""
    by_row = kernels.zeros(A.rows.local_size)
    kernels.row_max(A.local, by_row)
    return kernels.max_abs(by_row)


def _largest(grid: Grid, values: list[float], kernels: Kernels) -> list[float]:
    """The largest of everybody's, entry by entry.  Collective over the grid."""
    largest = kernels.zeros(len(values))
    kernels.assign(largest, values)
    grid.all.allreduce(largest, "max")
    return kernels.floats(largest)
