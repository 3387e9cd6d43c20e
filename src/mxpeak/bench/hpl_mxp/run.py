"""Run HPL-MxP, which solves A x = b to fp64 accuracy by a low-precision LU and refinement, by the following rules.

generated   b and A's diagonal from the seed, before the clock; A itself is never stored in fp64
timed       generating A in fp32 (the cast of A), balancing and butterflies, LU, casts to the low precision,
            refinement, undoing the transformations: from a barrier to the slowest rank's end
counted     2/3 N³ + 3/2 N² flops, independently of the executed flops
verified    after the clock: ||Ax-b|| / ((||A||·||x|| + ||b||)·N·u) < 16 in the infinity norm, u = 2^-53, with A, b
            and ||A|| regenerated; and the factors, by the proof of LU, whose random vectors are drawn only then
limit       GEMM of the same precision with inner dimension NB on all ranks at once, in the same process, before and
            after the run; or the rate that the run's own GEMM reached
admissible  by the rules in rules.py
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack

from mxpeak.bench.dry_run import DryRun
from mxpeak.bench.harness import RunHooks, check_grids
from mxpeak.bench.hpl_mxp.config import BUTTERFLY, PARTIAL, HplMxpCase, HplMxpConfig
from mxpeak.bench.hpl_mxp.result import Check, MxpSolve, hpl_mxp_result
from mxpeak.bench.hpl_mxp.rules import NAMED, THRESHOLD, convergence_factor, foreseen, refused
from mxpeak.bench.lu import LuBench, Problem, dry_run_lu, run_lu
from mxpeak.bench.rules import OWN, PUBLISHED
from mxpeak.bench.soak import bits_of
from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalar, allreduce_scalars
from mxpeak.comm.grid import Grid
from mxpeak.distributed.dense import DistMatrix, dist_matrix
from mxpeak.distributed.sources import GeneratedSystem
from mxpeak.distributed.spaces import max_abs
from mxpeak.errors import UsageError
from mxpeak.kernels.contract import Kernels, Vector
from mxpeak.layout.block_cyclic import numroc
from mxpeak.layout.generators import generator
from mxpeak.layout.row_moves import RowOrder
from mxpeak.options import Run
from mxpeak.perf.counts import Footprint, hpl_flops, mxp_memory_bytes
from mxpeak.precision import precision, stored_as
from mxpeak.records import Result
from mxpeak.runtime.placement import native_precisions, on_device, on_processor
from mxpeak.solvers.abft.checksums import checking
from mxpeak.solvers.abft.mixed_checksums import MixedChecks
from mxpeak.solvers.butterfly import MESSAGE, ButterflyPair
from mxpeak.solvers.checkpointing import NO_CHECKPOINTS
from mxpeak.solvers.difficulty import condition_estimate, unpreconditioned_factor, unpreconditioned_steps
from mxpeak.solvers.growth_monitor import DiagonalBlocks
from mxpeak.solvers.krylov import Solve
from mxpeak.solvers.lu import lu, pivoted_lu
from mxpeak.solvers.lu.panel import PanelOptions
from mxpeak.solvers.lu.panel_solves import PanelSolves, panel_solve_facts
from mxpeak.solvers.lu.proof import prove
from mxpeak.solvers.mxp_system import MxpSystem
from mxpeak.solvers.refine import MAX_STEPS, TARGET, backward_error, refine_solution
from mxpeak.solvers.scaling import balance
from mxpeak.solvers.transformations import Pivoting, Transformation
from mxpeak.spans import Spans

#: The verb phrase of a note about a broken rule, by the source of the rule.
BREAKS = {PUBLISHED: "be ADMISSIBLE:", OWN: "pass mxpeak's own test"}
#: The phases of a run; "other" is the remaining time.
PARTS = (
    *("store", "balance", "butterfly", "factor", "rfact", "copy", "laswp"),
    *("trsm", "cast", "bcast", "gemm", "matvec", "ptrsv", "abft"),
)
#: Orders below this one have row numbers that fp32 represents, which panels with pivots contain.
FP32_ROWS = 1 << 24


def run(config: HplMxpConfig, comm: Communicator, **hooks: Unpack[RunHooks]) -> list[Result]:
    """Run every case and return the results. Usage errors are raised on every rank before any case.

    Collective over comm.
    """
    return run_lu(HPL_MXP, config, comm, **hooks)


def dry_run(config: HplMxpConfig, comm: Communicator, origins: Mapping[str, str] | None = None) -> DryRun:
    """Describe the grid, the sizes and the memory of each case without running it. Collective over comm."""
    described = dry_run_lu(HPL_MXP, Run(config, origins or {}), comm)
    return replace(described, text="\n".join([described.text, *forewarnings(config, comm)]))


def forewarnings(config: HplMxpConfig, comm: Communicator) -> list[str]:
    """Return the rules and tests that each case will fail regardless of its result, with the reasons."""
    if config.n is None or config.mode != "official":
        return []
    run = on_device(Run(config))
    config = on_processor(run, native_precisions(run.config)).config
    _check(config, comm)
    return [
        f"N {case.n} {case.generator} {case.precision} will not {BREAKS[broken.source]} {broken.rule}: {broken.text}"
        for case in config.cases(comm.size)
        for broken in foreseen(case)
    ]


def _check(config: HplMxpConfig, comm: Communicator) -> None:
    """Raise a UsageError for settings that no case can use, or that the run would ignore."""
    check_grids(config, comm)
    if config.condition != HplMxpConfig.condition and "fasi-higham" not in config.generator:
        generators = ", ".join(config.generator)
        raise UsageError(
            f"--condition applies only to --generator fasi-higham, not to {generators}; remove --condition"
        )
    if config.restart != HplMxpConfig.restart and config.refine == "classical":
        raise UsageError("--restart applies only to --refine gmres; remove --restart, or use --refine gmres")
    if config.butterfly_depth != HplMxpConfig.butterfly_depth and config.pivoting != BUTTERFLY:
        raise UsageError(
            f"--butterfly-depth applies only to --pivoting butterfly, not to {config.pivoting}; remove "
            "--butterfly-depth, or use --pivoting butterfly"
        )
    if config.abft and config.pivoting == PARTIAL:
        raise UsageError(
            "--abft in hpl-mxp checks only factors without row swaps, not --pivoting partial; remove --abft, or use "
            "--pivoting none or butterfly"
        )
    if config.panel_solves != HplMxpConfig.panel_solves and config.pivoting == PARTIAL:
        raise UsageError(
            f"--panel-solves {config.panel_solves} has no effect on --pivoting partial, which solves with the panel in "
            "the precision of the matrix; remove --panel-solves"
        )
    for case in config.cases(comm.size, config.n or [FP32_ROWS - 1]):
        refused(case)
        _generator(case)
        _check_pivoting(case)


def _check_pivoting(case: HplMxpCase) -> None:
    """Raise a UsageError if the order is too small for the butterflies, or too large for pivots in fp32."""
    layers = case.butterfly_depth
    if case.pivoting == BUTTERFLY and 1 << layers > case.n:
        raise UsageError(
            f"--butterfly-depth {layers} needs an order of at least 2^{layers} = {1 << layers}, but N = {case.n}; use "
            f"--butterfly-depth {case.n.bit_length() - 1} or less"
            if case.n > 1
            else "--pivoting butterfly combines pairs of rows, but N = 1; use --pivoting none"
        )
    if case.pivoting == PARTIAL and case.n >= FP32_ROWS and stored_as(case.precision) == "fp32":
        raise UsageError(
            f"--pivoting partial stores row numbers in fp32, which represents those below 2^24 = {FP32_ROWS}, but "
            f"N = {case.n}; use a smaller N, or --pivoting none or butterfly"
        )


def _footprint(case: HplMxpCase, on_gpu: bool) -> Footprint:
    stored = precision(stored_as(case.precision)).bytes

    def footprint(n: int, nb: int, P: int, Q: int) -> dict[str, int]:
        parts = mxp_memory_bytes(n, nb, P, Q, stored, stored, inverses=on_gpu, background=on_gpu, depth=case.depth)
        more = P * Q * _pivoting_bytes(case, numroc(n, nb, 0, P), numroc(n, nb, 0, Q), nb, stored)
        return {**parts, **{name: parts[name] + more for name in ("buffers", "total")}}

    return footprint


def _pivoting_bytes(case: HplMxpCase, m: int, k: int, nb: int, stored: int) -> int:
    """Return the bytes that a rank with an m×k part of A needs in addition to those of the LU without pivoting.

    butterfly   a message to and a message from the partners, and the diagonals of all layers
    partial     panels and the rows to swap, as in HPL (two panels, three block rows), and the rounded operands
    """
    if case.pivoting == BUTTERFLY:
        return 2 * stored * min(MESSAGE + m, m * k) + 8 * case.butterfly_depth * (m + k)
    return stored * (3 * m * nb + 3 * nb * k) if case.pivoting == PARTIAL else 0


def _generator(case: HplMxpCase) -> Any:
    return generator(case.generator, case.n, seed=case.seed, scale=case.diagonal_scale, condition=case.condition)


def _solve(bench: LuBench, case: HplMxpCase, grid: Grid, spans: Spans) -> MxpSolve:
    """Time one solve, and check its solution after the timed part. Collective over the grid."""
    _check_pivoting(case)  # again, because the order may be chosen by the memory
    kernels = bench.kernels
    begin = time.perf_counter()
    A = dist_matrix(grid, case.n, case.n, case.nb, kernels, stored_as(case.precision))  # first, in unfragmented memory
    system = GeneratedSystem(grid, case.n, case.nb, _generator(case), kernels)
    system.store(A)  # allocates the memory and finds the largest entry; the timed part repeats it
    timed = _Timed(bench, case, grid, system, A, spans)
    grid.all.barrier()
    generate_s = time.perf_counter() - begin
    start = time.time()
    elapsed_s = bench.before_s + bench.metered(timed.solve, grid.all)
    timed.lu_s += bench.before_s
    end = time.time()
    bench.announce(f"N={case.n}: checking the solution, proving the LU")
    if timed.checkpointer is not None:
        bench.facts.cautions.extend(timed.checkpointer.finish())
    bits = bits_of(kernels, A.local, timed.x) if bench.config.soak else ""
    checked = None if timed.checks is None else timed.checks.checked()
    return replace(_after_the_clock(timed, elapsed_s, start, end, generate_s), bits=bits, checked=checked)


def _after_the_clock(timed: _Timed, elapsed_s: float, start: float, end: float, generate_s: float) -> MxpSolve:
    """Check the solution, prove the LU, and measure the difficulty of the system. Collective.

    A, b and ||A|| are generated again, so the checks use only x and the factors of the timed part.
    """
    case, grid, A, kernels, done = timed.case, timed.grid, timed.A, timed.kernels, timed.done
    x = timed.x
    system = GeneratedSystem(grid, case.n, case.nb, _generator(case), kernels)
    mxp = MxpSystem(system, A, _norm(system, kernels), kernels, Spans(), timed.transformations)
    residual = mxp.equations.max_abs(mxp.residual(x))
    check = Check(backward_error(mxp, residual, x), residual, mxp.A_inf, mxp.unknowns.max_abs(x), mxp.b_inf)
    seed = int(grid.all.bcast_object(secrets.randbits(62)))
    largest_u = kernels.max_abs_upper(A.local, A.rows, A.cols)
    lu_s, refine_s, largest_a, largest_u = allreduce_scalars(
        grid.all, [timed.lu_s, timed.refine_s, timed.largest_a, largest_u], "max", kernels.xp
    )
    return MxpSolve(
        time_s=elapsed_s, lu_time_s=lu_s, refine_time_s=refine_s, start_unix=start, end_unix=end,
        generate_s=generate_s, check=check,
        proof=prove(system, A, case.precision, kernels, timed.transformations, seed),
        iterations=done.steps, history=done.by_step(), singular=timed.singular,
        growth=largest_u / largest_a if largest_a else 0.0, condition=condition_estimate(mxp),
        unpreconditioned_factor=unpreconditioned_factor(system, mxp),
        unpreconditioned_steps=_steps_without_factors(case, system, mxp), spans=timed.spans,
        growth_report=timed.blocks.report(with_l=True),
        panel_solves=panel_solve_facts(grid.all.gather_objects(timed.solves) or [timed.solves]),
    )  # fmt: skip


def _steps_without_factors(case: HplMxpCase, system: GeneratedSystem, mxp: MxpSystem) -> int | None:
    """Return the number of GMRES steps without the factors, unless the circular law predicts it. Collective.

    Returns None if the circular law applies, if the rules do not name the generator, or if GMRES needs more than fifty
    steps.
    """
    if case.generator not in NAMED or convergence_factor(case) is not None:
        return None
    return unpreconditioned_steps(system, mxp, MAX_STEPS, THRESHOLD)


class _Timed:
    """Runs the timed part of a solve and keeps its results."""

    def __init__(
        self, bench: LuBench, case: HplMxpCase, grid: Grid, system: GeneratedSystem, A: DistMatrix, spans: Spans
    ):
        self.case, self.grid, self.system, self.A = case, grid, system, A
        self.kernels, self.spans, kernels = bench.kernels, spans, bench.kernels
        self.before_s = bench.before_s
        spans.on_device = bench.on_device(case.P)
        self.forwards = bench.forwards(case) or case.P > 1  # with P > 1, other ranks wait for each diagonal block
        self.blocks, self.checkpointer = DiagonalBlocks(A, kernels), bench.checkpointer(A, spans)
        self.checks = None
        if bench.config.abft:
            self.checks = MixedChecks(A, system, case.precision, kernels, spans, self.checkpointer or NO_CHECKPOINTS)
        self.transformations: list[Transformation] = []
        self.x: Vector = None
        self.done = Solve()
        self.singular, self.solves = 0, PanelSolves()
        self.largest_a = _max_abs(A, kernels)  # the largest entry on this rank
        self.lu_s = self.refine_s = 0.0

    def solve(self) -> None:
        """Run the timed part: generate A in fp32, balance and factor A, and refine the solution. Collective."""
        case, kernels, spans = self.case, self.kernels, self.spans
        spans.start(f"HPL-MxP N={case.n} {case.precision}", hpl_flops(case.n), self.before_s)
        with spans("store"):
            if self.checks is None or case.scaling == "auto" or case.pivoting == BUTTERFLY:  # A changes before the LU
                self.system.store(self.A)
            else:
                self.checks.make()
        kernels.wait()
        begin = time.perf_counter()
        if case.scaling == "auto":
            with spans("balance"):
                self.transformations.append(balance(self.A, kernels))
                self.largest_a = 1.0  # the largest entry after balancing
        if case.pivoting == BUTTERFLY:
            with spans("butterfly"):
                butterfly = ButterflyPair(self.A, case.butterfly_depth, case.seed, kernels)
                butterfly.transform(self.A)
                self.largest_a = _max_abs(self.A, kernels)
            self.transformations.append(butterfly)
        if self.checkpointer is not None:
            self.checkpointer.load(self.blocks)
        self.singular = self._factorize_with_pivots() if case.pivoting == PARTIAL else self._factorize()
        kernels.wait()
        self.lu_s = time.perf_counter() - begin

        begin = time.perf_counter()
        with spans("matvec"):
            A_inf = _norm(self.system, kernels)
        mxp = MxpSystem(self.system, self.A, A_inf, kernels, spans, self.transformations)
        target = min(TARGET, case.threshold * TARGET / THRESHOLD)
        self.x, self.done = refine_solution(mxp, case.refine, restart=case.restart, target=target)
        self.refine_s = time.perf_counter() - begin
        spans.finish()
        spans.add("other", max(0.0, spans.active_s - sum(map(spans.time_of, PARTS))), scattered=True)

    def _factorize(self) -> int:
        """Factor A without pivoting, and return 0, or 1 + the first column with a zero pivot."""
        case, checkpointer = self.case, self.checks or self.checkpointer or NO_CHECKPOINTS
        options = lu.MixedLuOptions(case.precision, case.bcast, min(case.depth, 1), self.forwards, case.panel_solves)
        with checking(self.checks):
            return lu.factorize(self.A, options, self.kernels, self.spans, self.blocks, checkpointer, self.solves)

    def _factorize_with_pivots(self) -> int:
        """Factor A with partial pivoting, and return 0, or 1 + the first column without a nonzero pivot."""
        case, A, kernels, order = self.case, self.A, self.kernels, RowOrder(self.case.n)
        options = pivoted_lu.PivotedLuOptions(
            PanelOptions(bcast=case.bcast), lookahead=min(case.depth, 1), forwards=self.forwards,
            operands=case.precision,
        )  # fmt: skip
        checkpointer = self.checkpointer or NO_CHECKPOINTS
        singular = pivoted_lu.factorize(A, options, kernels, self.spans, self.blocks, checkpointer, order, self.solves)
        self.transformations.append(Pivoting(order, A.rows, A.grid.column, kernels.xp))
        return singular


def _norm(system: GeneratedSystem, kernels: Kernels) -> float:
    """Compute ||A||_inf. Collective."""
    return allreduce_scalar(system.grid.all, max_abs(kernels, system.row_sums()), "max", kernels.xp)


def _max_abs(A: DistMatrix, kernels: Kernels) -> float:
    """Return max |a_ij| over this rank's part of A."""
    by_row = kernels.xp.zeros(A.rows.local_size)
    kernels.row_max(A.local, by_row)
    return max_abs(kernels, by_row)


HPL_MXP: Problem[HplMxpCase, MxpSolve] = Problem(
    check=_check, footprint=_footprint, precision=lambda case: case.precision, solve=_solve, result=hpl_mxp_result
)
