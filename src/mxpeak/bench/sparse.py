"""What HPG-MxP and HPCG share: sizes, memory, the problem in its forms, the limit, and solves that are watched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from mxpeak.bench.abft import check_abft
from mxpeak.bench.dry_run import DryRun, as_found
from mxpeak.bench.harness import NO_PHASE, Bench, threads_a_rank
from mxpeak.bench.limits import READ_LEAST_S, Limit, Reading, in_cache, read_limit, reading, uncached_bytes
from mxpeak.bench.rules import Violation
from mxpeak.bench.stencil_sizes import INDEX_BYTES, PACKED_BYTES, Hierarchy, box_of, fitted
from mxpeak.bench.timeline import events_a_rank, timeline
from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalar
from mxpeak.comm.transports.solo import Solo
from mxpeak.configs.sparse import SparseConfig
from mxpeak.distributed.spaces import zeros
from mxpeak.distributed.sparse import SparseMatrix
from mxpeak.distributed.stencil import Form, StencilProblem, make_stencil
from mxpeak.errors import UsageError
from mxpeak.kernels.contract.norms import Tile
from mxpeak.kernels.contract.sparse import natural_kind
from mxpeak.layout.index_map import consecutive
from mxpeak.layout.stencil import LEVELS, Box
from mxpeak.options import Setting
from mxpeak.precision import PRECISIONS
from mxpeak.records import Caution, size_text, three_digits
from mxpeak.runtime.compile import compile_in_turn
from mxpeak.solvers.abft.solve_faults import SolveChecks

#: Seconds to measure for where none were asked for, and with --quick.
DEFAULT_RT, QUICK_RT = 60.0, 1.0
#: Readings that a GPU makes between two looks at the clock: a single one is hardly longer than the look.
GPU_READS = 8
#: Entries of a row of the array that is read if the values of a matrix would stay in the caches.
ROW = 4096
#: Share of the machine's memory that the rules ask a problem to take.
OFFICIAL_SHARE = 0.25
#: Storages whose columns are 32-bit numbers.
PLAIN = ("rows", "ell", "sell")
#: Points a side of the box on which everything is used once before any clock.
TINY = 8


def plain_storage(config: SparseConfig) -> str:
    """The storage with 32-bit columns that is fastest here: rows one after the other for CPUs, slices for devices."""
    return "sell" if config.kernels == "torch" else "rows"


def check_storage(config: SparseConfig) -> None:
    """Stop at a storage that the kernels do not have."""
    if config.storage == "rows" and config.kernels == "torch":
        raise UsageError(
            "--storage rows needs the host kernels, because the torch kernels compute many rows at the "
            "same time; use --storage sell, or --kernels host"
        )


def order_of(config: SparseConfig, storage: str) -> str:
    """The order in which sweeps take rows, unless one was asked for.

    Natural on CPUs with storage `rows`, and with `packed` if the benchmark sweeps forward and backward (HPCG); else by
    colours.  Colours take fewer iterations where all sweeps go forward, more where they go both ways.  In the natural
    order rows that need other ranks come last, so that the others do not wait for these; in the reference's all stay.
    """
    natural = storage == "rows" or (storage == "packed" and config.both_ways and config.kernels != "torch")
    if config.smoother != "auto":
        natural = config.smoother in ("natural", "reference")
    if not natural:
        return config.colouring
    order = natural_order(config, storage)
    return "surface_last" if order == "natural" and config.smoother != "reference" else order


def natural_order(config: SparseConfig, storage: str) -> str:
    """Row after row, as the reference codes have it."""
    return natural_kind(storage, on_device=config.kernels == "torch")


def smoother_of(config: SparseConfig, storage: str) -> str:
    """The order of the sweeps as results call it."""
    if order_of(config, storage) == config.colouring:
        return "coloured"
    return "reference" if config.smoother == "reference" else "natural"


def seconds_for(config: SparseConfig) -> float:
    """Seconds to measure for."""
    if config.rt is not None:
        return config.rt
    return QUICK_RT if config.quick else DEFAULT_RT


def sparse_outlook(
    config: SparseConfig,
    comm: Communicator,
    settings: Mapping[str, Setting],
    box: Box | None,
    lines: Sequence[str],
    *,
    fits: bool,
) -> DryRun:
    """What a run would do: its lines, and the settings with the box and the ranks that it has.  Collective."""
    found: dict[str, Any] = {"ranks": comm.size, "threads": threads_a_rank(config, comm), "comm": comm.name}
    if box is not None:
        found |= {name: getattr(box, name) for name in ("nx", "ny", "nz", "npx", "npy", "npz")}
    rt = seconds_for(config)
    return DryRun("\n".join(lines), fits, as_found(settings, **found, rt=rt), time_s=rt)


def of_memory(used: int, machine: Mapping[str, Any]) -> list[Violation]:
    """The rule about memory, where the machine says how much its nodes have, or the GPUs that compute."""
    if "device_memory_bytes" in machine:
        present = machine["device_memory_bytes"] * machine["device_count"]
    else:
        present = (machine.get("memory_total_bytes") or 0) * machine["nodes"]
    if not present or used >= OFFICIAL_SHARE * present:
        return []
    share = three_digits(100 * used / present)
    text = f"the problem takes {size_text(used)}, {share} % of {size_text(present)}; the rules require 25 %"
    return [Violation("memory", text)]


def without_admission(config: SparseConfig, broken: Sequence[Violation]) -> list[str]:
    """What to say before a run of the rules that it will break."""
    if config.mode != "official":
        return []
    return [f"the result will not be ADMISSIBLE: {one.rule}: {one.text}" for one in broken]


def hierarchies_of(
    forms: Sequence[Form], basis: int, order: str | None = None, *, on_gpu: bool = False
) -> list[Hierarchy]:
    """What forms of the problem need, as `stencil_sizes` counts it; `order` is that of the sweeps on several levels."""
    return [
        Hierarchy(
            tuple(PRECISIONS[values].bytes for values in form.values),
            PRECISIONS[form.vectors].bytes,
            basis,
            PACKED_BYTES if form.storage == "packed" else INDEX_BYTES,
            points_apart=order in ("natural", "surface_last"),
            joined=on_gpu,
        )
        for form in forms
    ]


def with_own_rates(limit: Limit, name: str, rate: float, phases: Mapping[str, Any]) -> Limit:
    """Return a limit of memory with the rates that a solver and its products moved bytes at."""
    limit, spmv = limit.including(name, rate), phases.get("spmv", NO_PHASE)
    return limit.including("spmv", spmv["bytes"] / spmv["max_s"]) if spmv["max_s"] else limit


AnySparse = TypeVar("AnySparse", bound=SparseConfig)


class SparseBench(Bench[AnySparse]):
    """What all phases of one run share."""

    def __init__(self, *shared: Any):
        super().__init__(*shared)
        self.spans = self.new_spans()
        self.cautions: list[Caution] = []
        self.parts: Sequence[str] = ()
        check_abft(self)
        self.checks = self._new_checks()

    def _new_checks(self) -> SolveChecks | None:
        """With --abft, what solves are checked by."""
        return SolveChecks(self.spans) if self.config.abft else None

    def solving(self, part: str, made: StencilProblem | None = None) -> None:
        """Solves begin that faults will be told of by this name; with matrices that may not change from now on."""
        if self.checks is not None:
            self.checks.begin(part)
            if made is not None:
                self.checks.know(made)

    def forget(self) -> None:
        """Keep nothing of the problem that was solved last: the next one is about to be made."""
        if self.checks is not None:
            self.checks.forget()

    def label(self, part: str) -> str:
        """What a part of the run is called while it is watched: its number among all of them comes first."""
        if part not in self.parts:
            return part
        return f"phase {self.parts.index(part) + 1} of {len(self.parts)}: {part}"

    def begin(self, case: Any) -> None:
        """A case begins; all of it has the same spans."""
        super().begin(case)
        if self._under_way is not None:
            self._under_way.spans = self.spans

    @property
    def rt(self) -> float:
        """Seconds to measure for."""
        return seconds_for(self.config)

    def box(self, kinds: Sequence[Sequence[Hierarchy]]) -> Box:
        """This rank's box, if each kind of forms fits into memory by itself; collective, the same answer everywhere."""
        box = box_of(self.config, self.comm.rank, self.comm.size)
        for hierarchies in kinds:
            box, caution = fitted(box, self.config, hierarchies, self.budget)
            if caution is not None:
                self.cautions.append(caution)
        return box

    def make(self, box: Box, forms: Sequence[Form], stencil: Sequence[float], comm: Communicator) -> StencilProblem:
        """The problem on `comm`, in every form.  Collective over it."""
        self.forget()
        order = order_of(self.config, forms[0].storage)
        return make_stencil(self.kernels.sparse, comm, box.levels(LEVELS), forms, order, stencil, self.spans)

    def make_ready(
        self, forms: Sequence[Form], stencil: Sequence[float], use: Callable[[StencilProblem], None]
    ) -> None:
        """Compile what these forms take, by using all of it on a tiny box.  Collective."""
        if self.kernels.name == "reference":
            return  # plain NumPy: nothing is compiled

        def on_a_tiny_box() -> None:
            tiny = Box(TINY, TINY, TINY)
            checks, self.checks = self.checks, self._new_checks()  # what is found here says nothing of the run
            try:
                use(self.make(tiny, forms, stencil, Solo()))
            finally:
                self.checks = checks
            for form in forms:
                self._use_halo(replace(tiny, npz=2), form, stencil)

        name, cores = self._use(forms) if self.kernels.name == "host" else "", self.placement.before
        compile_in_turn(self.comm, "first use of these precisions", on_a_tiny_box, name, cores, self.kernels)

    def _use(self, forms: Sequence[Form]) -> str:
        """What is compiled for these forms, by name."""
        told = [
            f"{form.storage} {order_of(self.config, form.storage)} {'/'.join(form.values)} {form.vectors}"
            for form in forms
        ]
        return ", ".join([self.name, *told, *(["checked"] if self.checks else [])])

    def _use_halo(self, box: Box, form: Form, stencil: Sequence[float]) -> None:
        """What only happens to a matrix with entries from another rank; nobody is asked for them here."""
        kernels = self.kernels.sparse
        rows = kernels.stencil_rows(box, stencil)
        order = kernels.order(rows, order_of(self.config, form.storage))
        for values, vectors in {(name, form.vectors_of(name)) for name in form.values}:
            A = kernels.store(rows, order, values, vectors, form.storage)
            b, x, r = zeros(kernels, A.n, vectors), kernels.halo_vector(A), zeros(kernels, 1, vectors)
            first = kernels.xp.zeros(1, dtype=kernels.xp.int32)
            kernels.gather(x, first, r)
            kernels.matvec(b, A, x)
            kernels.relax(A, b, x)
            kernels.residual_at(A, b, x, first, r, swept=True)

    def bandwidth(self, A: SparseMatrix, held: int) -> Reading | None:
        """Measure at what rate all ranks at once read what a solver reads; None with --warmup none.  Collective.

        That is the values of its matrix.  If the caches hold these, but not all `held` bytes of the solver, it is an
        array that they cannot hold.
        """
        if self.config.warmup == "none":
            return None
        read = self._reader(A, held)
        amount, times = self.total(float(read())), GPU_READS if self.config.on_gpu else 1

        def repeatedly() -> None:
            for _ in range(times):
                read()

        return reading(lambda: self.slowest(repeatedly), times * amount, lambda rate: self.rt, READ_LEAST_S)

    def _reader(self, A: SparseMatrix, held: int) -> Callable[[], int]:
        """Return what reads the values, or an array that no cache holds, and returns the bytes.  Collective."""
        kernels, machine, on_gpu = self.kernels, self.facts.machine, self.config.on_gpu

        def values() -> int:
            return kernels.sparse.read_values(A.A)

        left = self.budget.limit - held // self.comm.size * self.budget.ranks_a_node
        size = uncached_bytes(machine, left, self.budget.ranks_a_node, on_gpu=on_gpu)
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
        """Return the limit of a solver for the number of bytes that it holds."""
        return read_limit(before, after, held, self.facts.machine, on_gpu=self.config.on_gpu)

    def traced(self, work: Callable[[], Any]) -> list[dict[str, Any]]:
        """Every span of some work on all ranks, seconds from a barrier on; whole on rank 0.  Collective."""
        self.comm.barrier()
        self.spans.record(events_a_rank(self.comm))
        work()
        return timeline(self.comm, self.spans)

    def total(self, value: float) -> float:
        """The sum of everybody's value.  Collective."""
        return allreduce_scalar(self.comm, value, "sum", self.kernels.sparse.xp)

    def bytes_of(self, made: StencilProblem, k: int, basis: int) -> int:
        """Bytes that one solver of the problem holds, over all ranks: matrices, vectors, basis.  Collective."""
        top, outer = made.hierarchies[k].top.A, made.hierarchies[k].outer
        levels = made.levels(k)
        mine = sum(level.A.A.bytes for level in levels) + (0 if outer is top else outer.extra_bytes(top))
        width = [PRECISIONS[level.A.A.vectors].bytes for level in levels]
        vectors = sum(w * (2 * level.A.n + level.A.A.halo) for w, level in zip(width, levels))
        return int(self.total(float(mine + vectors + width[0] * basis * top.n + 3 * 8 * top.n)))
