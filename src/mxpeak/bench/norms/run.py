"""Norms of a distributed matrix of any structure, type and layout.

generated   A, uniform in [-1/2, 1/2], before the timed part; its entries are equal for every grid and layout; entries
            outside of the structure are generated in the same way
timed       one norm of op(A), all kinds in one pass, or a norm of every column or row: from a barrier to the end of the
            slowest rank; the fastest run counts
counted     the bytes of the entries of the structure, each once
verified    every value of every run against double-double sums by other kernels: |norm - reference|/reference
            <= 10·s·eps with s = 1, sqrt(m), sqrt(n), sqrt(m·n) for max, one, inf, fro; the max of real entries exact
scalapack   with --scalapack: the same norm of the same arrays by P?LANGE, timed in the same way
extended    with --extended: if an entry becomes NaN or infinite, the norm must also, but only if it reads the entry
limit       read bandwidth: all ranks read as many bytes of the same matrix as the structure has at the same time, in
            the same process, before and after the norm; or the fastest norm of the process
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import groupby
from typing import Any, Unpack

from mxpeak.bench.dry_run import DryRun, with_open_values
from mxpeak.bench.harness import Bench, RunHooks, node_cautions, phase_table, repeated, run_cases, threads_per_rank
from mxpeak.bench.limits import READ, READ_MIN_S, Limit, Reading, Readings, read_limit, reading
from mxpeak.bench.norms.check import Reference, reference_norms, reference_vectors
from mxpeak.bench.norms.config import NormsCase, NormsConfig
from mxpeak.bench.norms.matrix import NormsMatrix, empty_matrix, generate, leading
from mxpeak.bench.norms.result import CheckRecords, TimedNorms, norms_result
from mxpeak.bench.norms.scalapack import Comparison
from mxpeak.bench.norms.sizes import (
    NormsSizes,
    check,
    matrix_bytes,
    matrix_of,
    read_bytes,
    structure_of,
    without_effect,
)
from mxpeak.bench.norms.special import check_special
from mxpeak.bench.timeline import events_per_rank, timeline
from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalar
from mxpeak.comm.grid import Grid, make_grid
from mxpeak.comm.transports.solo import Solo
from mxpeak.errors import ResourceError
from mxpeak.kernels.contract.norms import NormKernels
from mxpeak.layout.grid import ProcessGrid
from mxpeak.layout.structure import Structure
from mxpeak.options import Run
from mxpeak.records import Result, size_text
from mxpeak.runtime.compile import compile_in_turn
from mxpeak.runtime.memory import memory_budget
from mxpeak.runtime.placement import norm_devices, on_device
from mxpeak.solvers.exact_norms import reproducible_norms, vector_norms
from mxpeak.solvers.norms import distributed_norms
from mxpeak.spans import Spans

#: Seconds over which a norm is repeated, and the maximum number of runs unless --repeat is larger.
NORM_S, MAX_RUNS = 0.3, 50


def run(config: NormsConfig, comm: Communicator, **hooks: Unpack[RunHooks]) -> list[Result]:
    """Run every case and return the results. Usage errors are raised on every rank before any measurement.

    Collective over comm.
    """
    return run_cases(NormBench, check, NormBench.results, config, comm, **hooks)


def dry_run(config: NormsConfig, comm: Communicator, origins: Mapping[str, str] | None = None) -> DryRun:
    """Describe the grid, the sizes and the memory of each case without running it. Collective over comm."""
    run = on_device(Run(config, origins or {}))
    config = run.config
    grids = check(config, comm)
    lines = [ProcessGrid(*shape, config.order, config.node_grid).render() for shape in dict.fromkeys(grids)]
    threads = threads_per_rank(config, comm)
    sizes = NormsSizes(config, comm, memory_budget(run, comm), threads)
    for _, group in groupby(sizes.cases(), matrix_of):
        cases = list(group)
        lines.append(sizes.line(cases[0]))
        lines += [f"  {case.tag}: {size_text(read_bytes(case))} to be read" for case in cases]
    cautions = [*sizes.cautions, *without_effect(config, run.origins)]
    filled = with_open_values(run, ranks=comm.size, threads=threads, comm=comm.name)
    fits = all(map(sizes.fits, sizes.cases()))
    return DryRun("\n".join([*lines, *(caution.text for caution in cautions)]), fits, filled)


def norms_of(case: NormsCase, A: NormsMatrix, S: Structure, kernels: NormKernels) -> dict[str, Any]:
    """Return the norms of op(A) by kind; the norms of all rows or columns are a tuple. Collective over the grid."""
    if case.transposed:
        A, S = A.T, S.transposed
    if case.vectors:
        return {kind: tuple(vector_norms(A, S, kind, case.scope, kernels).tolist()) for kind in case.kinds}
    return (reproducible_norms if case.deterministic else distributed_norms)(A, S, case.kinds, kernels)


class NormBench(Bench[NormsConfig]):
    """Runs all cases of the norms benchmark, and keeps the state that the cases share."""

    def __init__(self, *shared: Any):
        super().__init__(*shared)
        self._sizes = NormsSizes(self.config, self.comm, self.budget, self.placement.threads)
        self.facts.cautions.extend([*node_cautions(self.config, self.comm), *self._sizes.cautions])
        origins = {name: str(setting.get("origin")) for name, setting in self.facts.config.items()}
        self.facts.cautions.extend(without_effect(self.config, origins))
        self._grid = lru_cache(maxsize=None)(self._make_grid)
        self._ready = lru_cache(maxsize=None)(self._make_ready)
        self._devices = norm_devices(self.config, self.comm, self.placement, self.kernels.norms)
        self._norms = self._devices.together
        self._comparison = None if self.config.scalapack is None else Comparison(self.config, self.comm)
        self._readings = Readings()
        self._fastest: dict[object, float] = {}  # the fastest norms of data that is read at the same rate

    def results(self) -> Iterator[tuple[NormsCase, Result | None]]:
        """Run all cases, and yield each one with its result on rank 0. Collective.

        The result is None if the case does not fit into memory.
        """
        cases = self._sizes.cases()
        if not any(map(self._sizes.fits, cases)):
            raise ResourceError(self._sizes.too_large(cases[0]))
        for _, group in groupby(cases, matrix_of):
            of_matrix = list(group)
            if self._sizes.fits(of_matrix[0]):
                yield from self._of_one_matrix(of_matrix)
            else:
                yield from ((case, None) for case in of_matrix)

    def _of_one_matrix(self, cases: Sequence[NormsCase]) -> Iterator[tuple[NormsCase, Result | None]]:
        """Generate the matrix that these cases share, and yield each case with its result. Finally, free the matrix."""
        first, spans = cases[0], self._unwatched()
        self._ready(first.dtype)
        with spans("generate", bytes=self._once(matrix_bytes(first))):
            A = empty_matrix(first, self._grid(first.P, first.Q), self._devices.each)
            generate(A, first, self.kernels, self.new_spans())
        for S, group in groupby(cases, structure_of):
            of_structure = list(group)
            with spans("check", bytes=self._once(read_bytes(of_structure[0]))):
                reference = self._reference(A, S, of_structure)
            for case in of_structure:
                yield case, self._measure(case, A, S, reference, spans)
                spans = self._unwatched()  # the first case records the phases that the cases share

    def _reference(self, A: NormsMatrix, S: Structure, cases: Sequence[NormsCase]) -> Reference | None:
        """Compute the reference norms that these cases need; return them on the first rank. Collective."""
        kernels = self._norms
        reference = reference_norms(A, S, kernels, self.new_spans())
        for by in dict.fromkeys(case.vectors_of_A for case in cases if case.vectors):
            vectors = reference_vectors(A, S, by, kernels, self.new_spans())
            if reference is not None and vectors is not None:
                reference.vectors[by] = vectors
        return reference

    def _unwatched(self) -> Spans:
        """Create spans without observers, because other spans report the parts of the case. Collective."""
        spans = self.new_spans(watched=False)
        if self.config.trace is not None:
            self.comm.barrier()
            spans.record(events_per_rank(self.comm))
        return spans

    def _measure(
        self, case: NormsCase, A: NormsMatrix, S: Structure, reference: Reference | None, spans: Spans
    ) -> Result | None:
        """Measure one case, and return its result on rank 0 and None on the other ranks. Collective."""
        self.begin(case)
        before, runs, after = self._between_readings(case, A, S, spans)
        special = None
        if case.extended:
            special = check_special(case, A, S, lambda: norms_of(case, A, S, self._norms), reference)
        compared = None if self._comparison is None else self._comparison.run(case, A, partial(self._repeated, A.comm))
        phases = phase_table(A.comm, spans)
        trace = None if self.config.trace is None else timeline(A.comm, spans)
        if reference is None:
            return None
        limit = self._limit(case, before, after, runs)
        checked = CheckRecords(reference, special, compared)
        result = norms_result(case, S, runs, checked, limit, phases, self._sizes.memory(case), self.facts)
        if trace is not None:
            result.telemetry["trace"] = trace
        return result

    def _timed(self, case: NormsCase, A: NormsMatrix, S: Structure, spans: Spans) -> TimedNorms:
        """Compute the norm once without timing, and then repeatedly with timing. Collective over the grid."""
        values: list[dict[str, Any]] = []

        def compute_norm() -> None:
            values.append(norms_of(case, A, S, self._norms))

        def timed() -> float:
            elapsed = self.metered(compute_norm, A.comm)
            spans.add("norm", elapsed, bytes=self._once(read_bytes(case)))
            return elapsed

        compute_norm()
        values.clear()
        start = time.time()
        samples = self._samples(timed)
        return TimedNorms(samples, values, start, time.time())

    def _samples(self, timed: Callable[[], float]) -> list[float]:
        """Run a timed function as often as a norm, and return the seconds of each run."""
        repeat = self.config.repeat
        return repeated(timed, min_runs=repeat, max_runs=max(repeat, MAX_RUNS), seconds=NORM_S)

    def _repeated(self, comm: Communicator, compute: Callable[[], None]) -> list[float]:
        """Run a function as often as a norm, and return the seconds of the slowest rank. Collective over comm."""
        return self._samples(partial(self.slowest, compute, comm))

    def _between_readings(
        self, case: NormsCase, A: NormsMatrix, S: Structure, spans: Spans
    ) -> tuple[Reading | None, TimedNorms, Reading | None]:
        """Time the norm between two measurements of the read bandwidth. Collective over the grid.

        The readings are None if --warmup is none. The reading after a norm is also the reading before the next norm of
        the same part of the matrix.
        """
        if self.config.warmup == "none":
            return None, self._timed(case, A, S, spans), None
        comm, data = A.comm, (matrix_of(case), read_bytes(case))

        def measure() -> Reading:
            return self._bandwidth(case, A, spans)

        before = self._readings.before(data, comm, measure)
        runs = self._timed(case, A, S, spans)
        return before, runs, self._readings.after(data, comm, measure, last=True)

    def _bandwidth(self, case: NormsCase, A: NormsMatrix, spans: Spans) -> Reading:
        """Measure the rate at which all ranks read as many bytes as the structure has. Collective over the grid."""
        part = leading(A, read_bytes(case) / matrix_bytes(case), by_columns=case.layout == "F")
        amount = allreduce_scalar(A.comm, float(sum(m * n for m, n in (tile.A.shape for tile in part))), "sum")
        amount *= case.itemsize

        def read() -> None:
            self._norms.read_all(part)
            self._devices.wait()
            A.comm.barrier()  # ranks that share a core read in sequence: wait for the last

        def timed() -> float:
            elapsed = self.slowest(read, A.comm)
            spans.add("limit", elapsed, bytes=self._once(amount))
            return elapsed

        def run_s(rate: float) -> float:
            norm_s = read_bytes(case) / rate
            return max(self.config.repeat * norm_s, min(NORM_S, MAX_RUNS * norm_s))

        return reading(timed, amount, run_s, READ_MIN_S)

    def _limit(self, case: NormsCase, before: Reading | None, after: Reading | None, runs: TimedNorms) -> Limit:
        """Return the limit of a case: the read bandwidth, or a higher rate of the fastest norm of the same data."""
        limit = read_limit(before, after, read_bytes(case), self.facts.machine, on_gpu=self.config.on_gpu)
        data = READ if limit.name == READ else (matrix_of(case), read_bytes(case))
        own = read_bytes(case) / min(runs.samples_s)
        self._fastest[data] = max(own, self._fastest.get(data, 0.0))
        return limit.including("norm", self._fastest[data])

    def _once(self, count: float) -> float:
        """Return a byte count on rank 0, and 0 on the other ranks, so that the sum over the ranks counts it once."""
        return float(count) if self.comm.rank == 0 else 0.0

    @property
    def _reproducible(self) -> bool:
        """Return whether any case uses the kernels of reproducible sums."""
        return self.config.deterministic or self.config.scope != ("matrix",)

    def _make_grid(self, P: int, Q: int) -> Grid:
        grid = make_grid(ProcessGrid(P, Q, self.config.order, self.config.node_grid), self.comm)
        assert grid is not None, "the grid uses all ranks"
        return grid

    def _make_ready(self, dtype: str) -> None:
        """Compile the norm kernels for entries of a type. Collective."""
        # Hermitian needs all kernels, also those for real parts
        name = "hermitian" if {"hermitian", "hermitian-band"} & set(self.config.structure) else "general"
        use = f"norms, {dtype} {name}{' deterministic' * self._reproducible}"
        cores, label = self.placement.before, f"first use of {dtype}"
        kernels = use if self.kernels.name == "host" else ""
        compile_in_turn(self.comm, label, partial(self._try_all, dtype, name), kernels, cores, self.kernels)

    def _try_all(self, dtype: str, structure: str) -> None:
        """Run all norm kernels on a tiny matrix of this rank, so that they are compiled."""
        case = NormsCase(m=2, n=2, nb=2, P=1, Q=1, dtype=dtype, structure=structure, kind="all")
        alone = make_grid(ProcessGrid(1, 1), Solo())
        assert alone is not None
        A, S, kernels = empty_matrix(case, alone, [self.kernels.norms]), structure_of(case), self.kernels.norms
        generate(A, case, self.kernels, Spans())
        reference_norms(A, S, kernels, Spans())
        kernels.read_all(A.tiles)
        (reproducible_norms if self._reproducible else distributed_norms)(A, S, case.kinds, kernels)
