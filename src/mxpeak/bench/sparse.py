"""The set-up, the timed solves and the read-bandwidth limit that HPG-MxP and HPCG share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, log
from typing import Any, TypeVar

from mxpeak.bench.abft import check_abft, record_solve_faults
from mxpeak.bench.dry_run import DryRun, with_open_values
from mxpeak.bench.harness import Bench, peak_rss, phase_table, threads_per_rank
from mxpeak.bench.limits import READ_MIN_S, Limit, Reading, in_cache, read_limit, reading, uncached_bytes
from mxpeak.bench.partial_result import Partial
from mxpeak.bench.rules import Violation
from mxpeak.bench.sparse_result import MeasuredStorage, TimedSolves
from mxpeak.bench.stencil_sizes import INDEX_BYTES, PACKED_BYTES, HierarchySize, box_of, fitted, line
from mxpeak.bench.timeline import events_per_rank, step_table, timeline
from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalar
from mxpeak.comm.transports.solo import Solo
from mxpeak.configs.sparse import SparseConfig
from mxpeak.distributed.spaces import zeros
from mxpeak.distributed.sparse import Optimizations, SparseMatrix
from mxpeak.distributed.stencil import Form, StencilProblem, make_stencil
from mxpeak.errors import ResourceError, StoppedError, UsageError
from mxpeak.kernels.contract.norms import Tile
from mxpeak.kernels.contract.sparse import natural_kind
from mxpeak.layout.index_map import consecutive
from mxpeak.layout.stencil import LEVELS, Box
from mxpeak.options import Run
from mxpeak.precision import PRECISIONS
from mxpeak.records import Caution, Result, rate_text, size_text, three_digits
from mxpeak.runtime.compile import compile_in_turn
from mxpeak.runtime.memory import Budget
from mxpeak.solvers.abft.solve_faults import SolveChecks
from mxpeak.solvers.krylov import Solve
from mxpeak.spans import Spans

#: Default measuring time in seconds, and that of --quick.
DEFAULT_RT, QUICK_RT = 60.0, 1.0
#: Share of the measuring time that each additional result has, compared with the official one.
ADDITIONAL_SHARE = 0.25
#: Readings per timing on a GPU: a single reading is hardly longer than the timing call.
GPU_READS = 8
#: Entries per row of the array that is read if the matrix values would stay in the caches.
ROW = 4096
#: Share of the machine's memory that the rules require.
OFFICIAL_SHARE = 0.25
#: Storage formats with 32-bit column indices.
PLAIN = ("rows", "ell", "sell")
#: Solves and share of the measuring time before which a run is never stopped, and the factor by which the other solves
#: may be faster than the fastest so far.
DECISIVE, UNDECIDED, MARGIN = 3, 0.1, 1.02
#: Points per side of the box on which all kernels are compiled before any timing.
TINY = 8


def plain_storage(config: SparseConfig) -> str:
    """Return the fastest storage format with 32-bit column indices: rows on CPUs, slices on devices.

    Vectors in 16 bits need slices.
    """
    return "sell" if config.kernels == "torch" or config.needs_chunks else "rows"


def auto_storages(config: SparseConfig) -> tuple[str, ...]:
    """Return the storage formats to measure if the user chose none, the official one first."""
    both = (plain_storage(config), "packed") if config.mode == "official" else ("packed", plain_storage(config))
    return both[:1] if config.quick else both


def check_storage(config: SparseConfig) -> None:
    """Raise a UsageError if the kernels do not support the storage format."""
    if config.storage == "rows" and config.kernels == "torch":
        raise UsageError(
            "--storage rows needs the host kernels, because the torch kernels compute many rows at the "
            "same time; use --storage sell, or --kernels host"
        )


def order_of(config: SparseConfig, storage: str) -> str:
    """Return the row order of the Gauss-Seidel sweeps.

    By default, sweeps use the natural order on CPUs for storage `rows`, and for `packed` if the benchmark sweeps in
    both directions (HPCG). Otherwise they use colors. Colors need fewer iterations if all sweeps are forward sweeps,
    and more iterations otherwise. The natural order puts rows that need data of other ranks last, so that the sweep of
    the other rows overlaps with the communication. The reference order does not.
    """
    natural = storage == "rows" or (storage == "packed" and config.both_ways and config.kernels != "torch")
    if config.smoother != "auto":
        natural = config.smoother in ("natural", "reference")
    if not natural:
        return config.colouring
    order = natural_order(config, storage)
    return "surface_last" if order == "natural" and config.smoother != "reference" else order


def natural_order(config: SparseConfig, storage: str) -> str:
    """Return the name of the row order that corresponds to the reference codes."""
    return natural_kind(storage, on_device=config.kernels == "torch")


def smoother_of(config: SparseConfig, storage: str) -> str:
    """Return the name of the sweep order for results."""
    if order_of(config, storage) == config.colouring:
        return "coloured"
    return "reference" if config.smoother == "reference" else "natural"


def optimizations_of(config: SparseConfig) -> Optimizations:
    """Return the optimizations that --overlap, --zero-guess and --fused-restriction leave on."""
    names = ("overlap", "zero_guess", "fused_restriction")
    return Optimizations(**{name: getattr(config, name) == "on" for name in names})


def measuring_seconds(config: SparseConfig) -> float:
    """Return the measuring time of a run in seconds."""
    if config.rt is not None:
        return config.rt
    return QUICK_RT if config.quick else DEFAULT_RT


def hierarchies_of(
    forms: Iterable[Form], basis: int, order: str | None = None, *, on_gpu: bool = False
) -> list[HierarchySize]:
    """Return the sizes that determine the memory of each storage form.

    `order` is the row order of the sweeps. It is None for a problem with one level.
    """
    return [
        HierarchySize(
            tuple(PRECISIONS[values].bytes for values in form.values),
            PRECISIONS[form.mg_vectors or form.vectors].bytes,
            basis,
            PACKED_BYTES if form.storage == "packed" else INDEX_BYTES,
            points_apart=order in ("natural", "surface_last"),
            joined=on_gpu,
            basis_bytes=None if form.basis is None else PRECISIONS[form.basis].bytes,
            wide_bytes=PRECISIONS[form.vectors].bytes,
        )
        for form in forms
    ]


def hierarchies_by_storage(
    config: SparseConfig, forms: Mapping[str, Iterable[Form]], basis: int
) -> dict[str, list[HierarchySize]]:
    """Return the sizes that determine the memory of the storage forms, keyed by storage format."""
    return {
        storage: hierarchies_of(of_storage, basis, order_of(config, storage), on_gpu=config.on_gpu)
        for storage, of_storage in forms.items()
    }


def box_lines(
    box: Box, config: SparseConfig, hierarchies: Mapping[str, Sequence[HierarchySize]], budget: Budget
) -> tuple[Box, list[str], bool]:
    """Return the box of the run, one dry-run line per storage format, and whether all formats fit into memory.

    A box of the default size is reduced as in a run.
    """
    cautions, fits = [], True
    try:
        for of_storage in hierarchies.values():
            box, caution = fitted(box, config, of_storage, budget)
            cautions += [caution.text] if caution is not None else []
    except ResourceError:
        fits = False
    return box, [*(f"{name}: {line(box, each, budget)}" for name, each in hierarchies.items()), *cautions], fits


def sparse_dry_run(run: Run[Any], comm: Communicator, box: Box | None, lines: Sequence[str], *, fits: bool) -> DryRun:
    """Build the dry run of a sparse benchmark from its text lines, its box, and its ranks and threads. Collective."""
    config: SparseConfig = run.config
    values: dict[str, Any] = {"ranks": comm.size, "threads": threads_per_rank(config, comm), "comm": comm.name}
    if box is not None:
        values |= {name: getattr(box, name) for name in ("nx", "ny", "nz", "npx", "npy", "npz")}
    rt = measuring_seconds(config)
    return DryRun("\n".join(lines), fits, with_open_values(run, **values, rt=rt), time_s=rt)


def mode_violations(config: SparseConfig, storage: str) -> list[Violation]:
    """Return the published rules that the mode and the storage format break."""
    broken = [Violation("mode", "--mode explore was chosen")] if config.mode != "official" else []
    text = f"--storage {storage} compresses the column indices, which the published rules do not cover"
    return broken + ([] if storage in PLAIN else [Violation("storage", text)])


def memory_violations(used: int, machine: Mapping[str, Any]) -> list[Violation]:
    """Return a violation if the problem uses less than 25 % of the known memory of the nodes or GPUs, otherwise []."""
    if "device_memory_bytes" in machine:
        present = machine["device_memory_bytes"] * machine["device_count"]
    else:
        present = (machine.get("memory_total_bytes") or 0) * machine["nodes"]
    if not present or used >= OFFICIAL_SHARE * present:
        return []
    share = three_digits(100 * used / present)
    text = f"the problem takes {size_text(used)}, {share} % of {size_text(present)}; the rules require 25 %"
    return [Violation("memory", text)]


def admission_notes(config: SparseConfig, broken: Sequence[Violation]) -> list[str]:
    """Return one note per rule that an official run will break. With --mode explore, return no notes.

    A note states the rule, the violation, and that the result will not be admissible.
    """
    if config.mode != "official":
        return []
    return [f"the result will not be ADMISSIBLE: {violation.rule}: {violation.text}" for violation in broken]


def stop_if_slow(target: float | None, samples_s: Sequence[float], rate_flops: float, rt: float) -> None:
    """Raise a StoppedError if a run can no longer reach --target, a rate in GFLOP/s.

    All further solves may take as little time as the fastest solve so far, less MARGIN. Then the mean of the run is at
    most this rate, so a run that can reach the target is never stopped. `rate_flops` is the rate of the solves so far.
    The function needs DECISIVE solves and a tenth of the measuring time, because a cold machine is slower.
    """
    spent = sum(samples_s)
    if target is None or len(samples_s) < DECISIVE or spent < UNDECIDED * rt:
        return
    best = rate_flops * spent / len(samples_s) / min(samples_s)
    if MARGIN * best < 1e9 * target:
        raise StoppedError(
            f"the first {len(samples_s)} solves reach {rate_text(rate_flops)}, and the others at most "
            f"{three_digits(100 * MARGIN)} % of the fastest solve ({rate_text(best)}), but --target is "
            f"{rate_text(1e9 * target)}; use a lower --target to complete the run"
        )


@dataclass(slots=True)
class SolveProgress:
    """Reports the steps of one or several solves to the observers of a run.

    expected  expected number of steps of all solves
    before    number of steps in the solves that have ended
    aim       relative residual at which the solve ends, from which the number of steps is extrapolated
    """

    spans: Spans
    label: str
    expected: int
    flops_per_step: float
    before: int = 0
    aim: float = 0.0

    def step(self, steps: int) -> None:
        """Report the number of steps that the current solve has completed."""
        steps += self.before
        self.expected = max(self.expected, steps)
        self.spans.expect(self.expected * self.flops_per_step)
        self.spans.step(steps, self.expected, steps * self.flops_per_step)

    def cycle(self, solve: Solve) -> None:
        """Report a completed restart cycle, and estimate the total number of steps from its residual."""
        if solve.residual <= self.aim:
            self.expected = self.before + solve.steps
        elif 0.0 < self.aim < solve.residual < 1.0:
            self.expected = int((self.before + solve.steps) * log(self.aim) / log(solve.residual))
        self.step(solve.steps)


AnySparse = TypeVar("AnySparse", bound=SparseConfig)
AnySolve = TypeVar("AnySolve")
AnyMeasured = TypeVar("AnyMeasured")


class SparseBench(Bench[AnySparse]):
    """The state that all phases of a sparse benchmark share."""

    def __init__(self, *shared: Any):
        super().__init__(*shared)
        self.spans = self.new_spans()
        self.cautions: list[Caution] = []
        self.parts: Sequence[str] = ()
        check_abft(self)
        self.checks = SolveChecks(self.spans) if self.config.abft else None

    def begin_solves(self, part: str, problem: StencilProblem | None = None) -> None:
        """Start the fault checks of --abft for a part of the run.

        From then on, the matrices of `problem` must not change.
        """
        if self.checks is not None:
            self.checks.begin(part)
            if problem is not None:
                self.checks.record_matrices(problem)

    def release_problem(self) -> None:
        """Release the matrices that the fault checks keep, before the next problem is built."""
        if self.checks is not None:
            self.checks.release_matrices()

    def label(self, part: str) -> str:
        """Return a label with the number and the name of a part of the run, for the observers."""
        if part not in self.parts:
            return part
        return f"phase {self.parts.index(part) + 1} of {len(self.parts)}: {part}"

    def progress(self, label: str, steps: int, flops_per_step: float, aim: float = 0.0) -> SolveProgress:
        """Start to record one part of the run, and return its progress reporter.

        The part is expected to take `steps` iterations.
        """
        progress = SolveProgress(self.spans, label, steps, flops_per_step, aim=aim)
        self.spans.start(label, steps * flops_per_step)
        return progress

    def begin(self, case: Any) -> None:
        """Start a case, and let all of its parts record into the same spans."""
        super().begin(case)
        self._spans.append(self.spans)
        if self._current is not None:
            self._current.spans = self.spans

    @property
    def rt(self) -> float:
        """Return the measuring time in seconds."""
        return measuring_seconds(self.config)

    def measure_each(self, storages: Sequence[str], measure: Callable[[str, float], AnyMeasured]) -> list[AnyMeasured]:
        """Call `measure` for each storage format and return the measurements. Collective.

        The first format has the whole measuring time, and each of the others a quarter of it.
        """
        return [
            measure(storage, self.rt if k == 0 else ADDITIONAL_SHARE * self.rt) for k, storage in enumerate(storages)
        ]

    def build_result(self, part: str, start: float, sections: Callable[[int], dict[str, Any]]) -> Result | None:
        """Build the result of the run with its fault checks on rank 0, and return None on the other ranks. Collective.

        part      the part of the run that determines the rate
        start     the time at which the run started
        sections  returns the sections of the result for a given peak memory
        """
        rss = peak_rss(self.comm)
        if self.comm.rank:
            return None
        result = Result(**self.facts.sections(start, time.time()), **sections(rss))
        result.telemetry["computation"] = self.label(part)
        record_solve_faults(result, self.checks)
        return result

    def storage_section(self, measured: MeasuredStorage[Any]) -> dict[str, Any]:
        """Return the storage settings of a result: levels, format, sweep order, ranks, threads and set-up times."""
        return {
            "levels": measured.levels,
            "storage": measured.storage,
            "smoother": smoother_of(self.config, measured.storage),
            "colouring": self.config.colouring,
            "optimizations": self._optimizations(len(measured.levels)),
            "ranks": self.comm.size,
            "threads": self.placement.threads,
            "setup_s": measured.setup_s,
            "optimize_s": measured.optimize_s,
        }

    def _optimizations(self, levels: int) -> dict[str, bool | None]:
        """Return whether each optimization ran; None without a halo to exchange, or without a coarser level."""
        ran = optimizations_of(self.config)
        return {
            "overlap": ran.overlap if self.comm.size > 1 else None,
            "zero_guess": ran.zero_guess,
            "fused_restriction": ran.fused_restriction if levels > 1 else None,
        }

    def box(self, kinds: Iterable[Sequence[HierarchySize]]) -> Box:
        """Choose this rank's box, and reduce it if one of the hierarchies does not fit into memory. Collective."""
        box = box_of(self.config, self.comm.rank, self.comm.size)
        for hierarchies in kinds:
            box, caution = fitted(box, self.config, hierarchies, self.budget)
            if caution is not None:
                self.cautions.append(caution)
        return box

    def make(self, box: Box, forms: Sequence[Form], stencil: Sequence[float], comm: Communicator) -> StencilProblem:
        """Build the problem in all storage forms on the ranks of `comm`. Collective over comm."""
        self.release_problem()
        order = order_of(self.config, forms[0].storage)
        optimizations = optimizations_of(self.config)
        levels = box.levels(LEVELS)
        return make_stencil(self.kernels.sparse, comm, levels, forms, order, stencil, self.spans, optimizations)

    def make_ready(
        self, forms: Sequence[Form], stencil: Sequence[float], use: Callable[[StencilProblem], None]
    ) -> None:
        """Compile the kernels of these forms by running all kernels on a tiny box. Collective."""
        if self.kernels.name == "reference":
            return  # plain NumPy: no kernel is compiled

        def on_a_tiny_box() -> None:
            tiny = Box(TINY, TINY, TINY)
            # Keep these solves out of the fault checks of the run.
            checks, self.checks = self.checks, SolveChecks(self.spans) if self.config.abft else None
            try:
                use(self.make(tiny, forms, stencil, Solo()))
            finally:
                self.checks = checks
            for form in forms:
                self._use_halo(replace(tiny, npz=2), form, stencil)

        name, cores = self._use(forms) if self.kernels.name == "host" else "", self.placement.before
        compile_in_turn(self.comm, "first use of these precisions", on_a_tiny_box, name, cores, self.kernels)

    def _use(self, forms: Sequence[Form]) -> str:
        """Return a text that identifies the set of kernels that these forms need."""
        names = [self.name]
        for form in forms:
            order = order_of(self.config, form.storage)
            vectors = f"{form.mg_vectors or form.vectors} {form.basis or form.vectors}"
            names.append(f"{form.storage} {order} {'/'.join(form.values)} {vectors}")
        return ", ".join([*names, *(["checked"] if self.checks else [])])

    def _use_halo(self, box: Box, form: Form, stencil: Sequence[float]) -> None:
        """Run the kernels for halo entries on this rank, without communication, so that they are compiled."""
        kernels = self.kernels.sparse
        rows = kernels.stencil_rows(box, stencil)
        order = kernels.order(rows, order_of(self.config, form.storage))
        for values, vectors in {(name, form.vectors_of(name)) for name in form.values}:
            A = kernels.store(rows, order, values, vectors, form.storage)
            b, x, r = zeros(kernels, A.n, vectors), kernels.halo_vector(A), zeros(kernels, 1, vectors)
            y = zeros(kernels, A.n, PRECISIONS[vectors].accumulate)
            first = kernels.xp.zeros(1, dtype=kernels.xp.int32)
            kernels.gather(x, first, r)
            kernels.matvec(y, A, x)
            kernels.sweep_forward(A, b, x)
            kernels.residual_at(A, b, x, first, r, swept=optimizations_of(self.config).zero_guess)

    def timed_solves(
        self,
        solve: Callable[[], AnySolve],
        progress: SolveProgress,
        steps: int,
        *,
        least: int,
        rt: float,
        prepare: Callable[[], object] = lambda: None,
        so_far: Callable[[TimedSolves[AnySolve]], Partial] | None = None,
        part: str | None = None,
    ) -> TimedSolves[AnySolve]:
        """Repeat a solve of `steps` iterations until `rt` seconds have passed, at least `least` times. Collective.

        prepare   runs before each solve and is not timed
        so_far    given if the solves determine the result: each sample is recorded with the partial result
        part      the part of ENERGIES to which the solves add their energy, or None
        """
        samples, solves = list[float](), list[AnySolve]()
        timed = self.slowest if part is None else partial(self.metered, part=part)
        while sum(samples) < rt or len(samples) < least:
            prepare()
            samples.append(timed(lambda: solves.append(solve())))
            progress.before = steps * len(samples)
            progress.expected = steps * max(least, ceil(rt * len(samples) / sum(samples)))
            if so_far is not None:
                finished = so_far(TimedSolves(samples, solves))
                self.sampled(samples[-1], finished)
                stop_if_slow(self.config.target, samples, finished.rate_flops, rt)
        self.spans.finish()
        by_step = step_table(self.kernels, self.comm, self.spans)
        return TimedSolves(samples, solves, phase_table(self.comm, self.spans), by_step)

    def bandwidth(self, A: SparseMatrix, held: int) -> Reading | None:
        """Measure the rate at which all ranks read the matrix values, or return None with --warmup none. Collective.

        If the caches can hold the values but not all `held` bytes of the solver, the ranks read an array larger than
        the caches.
        """
        if self.config.warmup == "none":
            return None
        read = self._reader(A, held)
        amount, times = self.total(float(read())), GPU_READS if self.config.on_gpu else 1

        def repeatedly() -> None:
            for _ in range(times):
                read()

        return reading(lambda: self.slowest(repeatedly), times * amount, lambda rate: self.rt, READ_MIN_S)

    def _reader(self, A: SparseMatrix, held: int) -> Callable[[], int]:
        """Return a function that reads the matrix or another array, and returns the number of bytes read. Collective.

        The function reads the values of the matrix if they are larger than the caches, or if the solver's data fits in
        the caches. Otherwise, it reads an array larger than the caches.
        """
        kernels, machine, on_gpu = self.kernels, self.facts.machine, self.config.on_gpu

        def values() -> int:
            return kernels.sparse.read_values(A.A)

        free = self.budget.limit - held // self.comm.size * self.budget.ranks_a_node
        size = uncached_bytes(machine, free, self.budget.ranks_a_node, on_gpu=on_gpu)
        if in_cache(held, machine, on_gpu=on_gpu) or self.total(float(values())) >= size * self.comm.size:
            return values
        lines = kernels.buffer(size // (8 * ROW) * ROW).reshape((-1, ROW))
        lines[:] = 1.0
        tile = Tile(lines, consecutive(lines.shape[0]), consecutive(ROW), 0, 0)

        def array() -> int:
            kernels.norms.read_all([tile])
            return 8 * ROW * int(lines.shape[0])

        return array

    def limit(self, before: Reading | None, after: Reading | None, held: int) -> Limit:
        """Return the read-bandwidth limit of a solver that stores `held` bytes over all ranks."""
        return read_limit(before, after, held, self.facts.machine, on_gpu=self.config.on_gpu)

    def trace(self, work: Callable[[], Any]) -> list[dict[str, Any]]:
        """Run `work` after a barrier, and return its spans on all ranks. Collective.

        Times are in seconds since the barrier. The list is complete on rank 0.
        """
        self.comm.barrier()
        self.spans.record(events_per_rank(self.comm))
        work()
        return timeline(self.comm, self.spans)

    def total(self, value: float) -> float:
        """Return the sum of `value` over all ranks. Collective."""
        return allreduce_scalar(self.comm, value, "sum", self.kernels.sparse.xp)

    def bytes_of(self, problem: StencilProblem, k: int, basis: int) -> int:
        """Return the size, in bytes, of the matrices, vectors and basis of solver `k` over all ranks. Collective."""
        top, outer = problem.hierarchies[k].top.A, problem.hierarchies[k].outer
        levels = problem.levels(k)
        matrices = sum(level.A.A.bytes for level in levels) + (0 if outer is top else outer.extra_bytes(top))
        width = [PRECISIONS[level.A.A.vectors].bytes for level in levels]
        vectors = sum(
            w * (2 * level.A.n + level.A.A.halo + (level.unfused.entries if level.unfused else 0))
            for w, level in zip(width, levels)
        )
        basis_bytes, working = (
            PRECISIONS[name].bytes for name in (problem.hierarchies[k].basis, PRECISIONS[top.A.vectors].accumulate)
        )
        stored = HierarchySize((), width[0], basis, basis_bytes=basis_bytes, wide_bytes=working)
        return int(self.total(float(matrices + vectors + stored.basis_row * top.n + 3 * 8 * top.n)))
