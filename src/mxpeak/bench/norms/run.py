"""Norms of a distributed matrix of any structure, type and layout; the rules in one screen.

generated   A, uniform in [-1/2, 1/2], before the clock: the same for every grid and layout; what the structure does
            not read holds numbers like all others
timed       one norm, or all four in one pass: from a barrier to the slowest rank's end; repeated, the best counts
counted     the bytes of the entries that the structure has, each once, whatever was read
verified    every value of every run against sums in doubled precision by other kernels: |norm - reference|/reference
            <= 10·s·eps with s = 1, sqrt(m), sqrt(n), sqrt(m·n) for max, one, inf, fro; the max of real entries exact
limit       read bandwidth: as many bytes of the same matrix as its structure has, read by all ranks at once, in the
            same process, before and after the norm; or the fastest norm of the process
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, Unpack

from mxpeak.bench.dry_run import DryRun, as_found
from mxpeak.bench.harness import Bench, RunHooks, node_cautions, phase_table, repeated, run_cases, threads_a_rank
from mxpeak.bench.limits import READ, READ_LEAST_S, Limit, Reading, Readings, read_limit, reading
from mxpeak.bench.norms.check import Reference, reference_norms
from mxpeak.bench.norms.config import NormsCase, NormsConfig
from mxpeak.bench.norms.matrix import StoredMatrix, empty_matrix, generate, leading
from mxpeak.bench.norms.result import Runs, norms_result
from mxpeak.bench.norms.sizes import Sizes, check, matrix_bytes, matrix_of, read_bytes, structure_of, without_effect
from mxpeak.bench.timeline import events_a_rank, timeline
from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalar
from mxpeak.comm.grid import Grid, make_grid
from mxpeak.comm.transports.solo import Solo
from mxpeak.errors import ResourceError
from mxpeak.layout.grid import ProcessGrid
from mxpeak.layout.structure import Structure
from mxpeak.options import Setting
from mxpeak.records import Result, size_text
from mxpeak.runtime.compile import compile_in_turn
from mxpeak.runtime.memory import memory_budget
from mxpeak.runtime.placement import on_device
from mxpeak.solvers.exact_norms import reproducible_norms
from mxpeak.solvers.norms import norms
from mxpeak.spans import Spans

#: Seconds over which a norm is taken again and again, and how often at most unless --repeat asks for more.
NORM_S, MOST_RUNS = 0.3, 50


def run(config: NormsConfig, comm: Communicator, **told: Unpack[RunHooks]) -> list[Result]:
    """Run every case of the config.  Mistakes raise on every rank before anything runs.  Collective over comm."""
    return run_cases(NormBench, check, NormBench.results, config, comm, **told)


def dry_run(config: NormsConfig, comm: Communicator, settings: dict[str, Setting] | None = None) -> DryRun:
    """What a run would do: grid, sizes and memory of each case, nothing run.  Collective over comm."""
    config, settings = on_device(config, settings or {})
    grids = check(config, comm)
    lines = [ProcessGrid(*shape, config.order, config.node_grid).render() for shape in dict.fromkeys(grids)]
    threads = threads_a_rank(config, comm)
    sizes = Sizes(config, comm, memory_budget(config, settings, comm), threads)
    for _, group in groupby(sizes.cases(), matrix_of):
        cases = list(group)
        lines.append(sizes.line(cases[0]))
        lines += [f"  {case.tag}: {size_text(read_bytes(case))} to be read" for case in cases]
    known = as_found(settings, ranks=comm.size, threads=threads, comm=comm.name)
    fits = all(map(sizes.fits, sizes.cases()))
    return DryRun("\n".join([*lines, *(caution.text for caution in sizes.cautions)]), fits, known)


def forewarnings(config: NormsConfig, comm: Communicator) -> list[str]:
    """What will be ignored: better known before a run than after it."""
    return without_effect(config)


class NormBench(Bench[NormsConfig]):
    """What all cases of one run share."""

    def __init__(self, *shared: Any):
        super().__init__(*shared)
        self._sizes = Sizes(self.config, self.comm, self.budget, self.placement.threads)
        self.facts.cautions.extend([*node_cautions(self.config, self.comm), *self._sizes.cautions])
        self._grid = lru_cache(maxsize=None)(self._make_grid)
        self._ready = lru_cache(maxsize=None)(self._make_ready)
        self._readings = Readings()
        self._fastest: dict[object, float] = {}  # the norms of data that is read at the same rate

    def results(self) -> Iterator[tuple[NormsCase, Result | None]]:
        """Each case with its result on rank 0; None where it does not fit.  Collective."""
        cases = self._sizes.cases()
        if not any(map(self._sizes.fits, cases)):
            raise ResourceError(self._sizes.too_large(cases[0]))
        for _, group in groupby(cases, matrix_of):
            same = list(group)
            if self._sizes.fits(same[0]):
                yield from self._of_one_matrix(same)
            else:
                yield from ((case, None) for case in same)

    def _of_one_matrix(self, cases: Sequence[NormsCase]) -> Iterator[tuple[NormsCase, Result | None]]:
        """All that is asked of one matrix: it is made once, and freed when the last result is out."""
        first, spans = cases[0], self._unwatched()
        self._ready(first.dtype)
        with spans("generate", bytes=self._once(matrix_bytes(first))):
            A = empty_matrix(first, self._grid(first.P, first.Q), self.kernels.norms)
            generate(A, first, self.kernels, self.new_spans())
        for S, group in groupby(cases, structure_of):
            same = list(group)
            with spans("check", bytes=self._once(read_bytes(same[0]))):
                reference = reference_norms(A, S, self.kernels.norms, self.new_spans())
            for case in same:
                yield case, self._measured(case, A, S, reference, spans)
                spans = self._unwatched()  # what several cases share is booked with the first of them

    def _unwatched(self) -> Spans:
        """The spans of one case, for whose parts observers have spans of their own.  Collective."""
        spans = self.new_spans(watched=False)
        if self.config.trace is not None:
            self.comm.barrier()
            spans.record(events_a_rank(self.comm))
        return spans

    def _measured(
        self, case: NormsCase, A: StoredMatrix, S: Structure, reference: Reference | None, spans: Spans
    ) -> Result | None:
        """The result of one case, on rank 0."""
        self.begin(case)
        before, runs, after = self._between_readings(case, A, S, spans)
        phases = phase_table(A.grid.all, spans)
        trace = None if self.config.trace is None else timeline(A.grid.all, spans)
        if reference is None:
            return None
        limit = self._limit(case, before, after, runs)
        result = norms_result(case, S, runs, reference, limit, phases, self._sizes.memory(case), self.facts)
        if trace is not None:
            result.telemetry["trace"] = trace
        return result

    def _timed(self, case: NormsCase, A: StoredMatrix, S: Structure, spans: Spans) -> Runs:
        """The norm, once for nothing and then as often as it takes.  Collective over the grid."""
        compute = reproducible_norms if case.deterministic else norms
        values: list[dict[str, float]] = []

        def take() -> None:
            values.append(compute(A, S, case.kinds, self.kernels.norms))

        def timed() -> float:
            elapsed = self.metered(take, A.grid.all)
            spans.add("norm", elapsed, bytes=self._once(read_bytes(case)))
            return elapsed

        take()
        values.clear()
        start = time.time()
        repeat = self.config.repeat
        samples = repeated(timed, least=repeat, most=max(repeat, MOST_RUNS), seconds=NORM_S)
        return Runs(samples, values, start, time.time())

    def _between_readings(
        self, case: NormsCase, A: StoredMatrix, S: Structure, spans: Spans
    ) -> tuple[Reading | None, Runs, Reading | None]:
        """Take the norm between two readings of the limit; none with --warmup none.  Collective over the grid.

        The reading after a norm is the one before the next norm of as much of the same matrix.
        """
        if self.config.warmup == "none":
            return None, self._timed(case, A, S, spans), None
        comm, what = A.grid.all, (matrix_of(case), read_bytes(case))

        def measure() -> Reading:
            return self._bandwidth(case, A, spans)

        before = self._readings.before(what, comm, measure)
        runs = self._timed(case, A, S, spans)
        return before, runs, self._readings.after(what, comm, measure, last=True)

    def _bandwidth(self, case: NormsCase, A: StoredMatrix, spans: Spans) -> Reading:
        """Read as many bytes of the matrix as the structure has, on all ranks at once.  Collective over the grid."""
        part = leading(A, read_bytes(case) / matrix_bytes(case), by_columns=case.layout == "F")
        amount = allreduce_scalar(A.grid.all, float(sum(m * n for m, n in (tile.A.shape for tile in part))), "sum")
        amount *= case.itemsize

        def read() -> None:
            self.kernels.norms.read_all(part)
            A.grid.all.barrier()  # ranks that share a core read one after the other: wait for the last

        def timed() -> float:
            elapsed = self.slowest(read, A.grid.all)
            spans.add("limit", elapsed, bytes=self._once(amount))
            return elapsed

        def run_s(rate: float) -> float:
            one = read_bytes(case) / rate
            return max(self.config.repeat * one, min(NORM_S, MOST_RUNS * one))

        return reading(timed, amount, run_s, READ_LEAST_S)

    def _limit(self, case: NormsCase, before: Reading | None, after: Reading | None, runs: Runs) -> Limit:
        """Return the limit of a case: the fastest norm of the process counts too, as far as it read the same memory."""
        limit = read_limit(before, after, read_bytes(case), self.facts.machine, on_gpu=self.config.on_gpu)
        data = READ if limit.name == READ else (matrix_of(case), read_bytes(case))
        own = read_bytes(case) / min(runs.samples_s)
        self._fastest[data] = max(own, self._fastest.get(data, 0.0))
        return limit.including("norm", self._fastest[data])

    def _once(self, count: float) -> float:
        """Bytes of all ranks, booked on one of them."""
        return float(count) if self.comm.rank == 0 else 0.0

    def _make_grid(self, P: int, Q: int) -> Grid:
        grid = make_grid(ProcessGrid(P, Q, self.config.order, self.config.node_grid), self.comm)
        assert grid is not None, "a grid that was asked for takes all ranks"
        return grid

    def _make_ready(self, dtype: str) -> None:
        """Compile what a type needs.  Collective."""
        how = " deterministic" if self.config.deterministic else ""
        name = f"norms, {dtype} {self._structure()}{how}" if self.kernels.name == "host" else ""
        cores = self.placement.before
        compile_in_turn(self.comm, f"first use of {dtype}", lambda: self._try_all(dtype), name, cores, self.kernels)

    def _structure(self) -> str:
        """Real parts are those of Hermitian matrices, as far as what is compiled goes."""
        return "hermitian" if {"hermitian", "hermitian-band"} & set(self.config.structure) else "general"

    def _try_all(self, dtype: str) -> None:
        """Everything that happens to a matrix, to a tiny one on this rank."""
        case = NormsCase(m=2, n=2, nb=2, P=1, Q=1, dtype=dtype, structure=self._structure(), kind="all")
        alone = make_grid(ProcessGrid(1, 1), Solo())
        assert alone is not None
        A, S, kernels = empty_matrix(case, alone, self.kernels.norms), structure_of(case), self.kernels.norms
        generate(A, case, self.kernels, Spans())
        reference_norms(A, S, kernels, Spans())
        kernels.read_all(A.tiles)
        (reproducible_norms if self.config.deterministic else norms)(A, S, case.kinds, kernels)
