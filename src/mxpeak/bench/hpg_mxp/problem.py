"""Build the systems of HPG-MxP: the 27-point problem on boxes, or a matrix from a file.

A problem provides its sizes, its storage forms, and a method that builds it on some ranks. The measurements are the
same for both kinds of problem. A matrix from a file has one level, so its preconditioner is one sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
from mxpeak.bench.hpg_mxp.input import MatrixFile, read_file, too_large
from mxpeak.bench.hpg_mxp.rules import forms, solvers_of, storages
from mxpeak.bench.sparse import (
    SparseBench,
    box_lines,
    hierarchies_by_storage,
    hierarchies_of,
    optimizations_of,
    order_of,
)
from mxpeak.bench.sparse_result import mesh_section
from mxpeak.bench.stencil_sizes import box_of
from mxpeak.comm.base import Communicator
from mxpeak.comm.transports.solo import Solo
from mxpeak.distributed.stencil import Form, StencilProblem, value_format, weights
from mxpeak.errors import ResourceError
from mxpeak.layout.stencil import LEVELS, Box, process_grid
from mxpeak.perf.sparse_counts import Levels, memory_bytes, stencil_levels
from mxpeak.runtime.memory import Budget


class HpgMxpProblem(Protocol):
    """A system A x = b with x = 1, on which the phases of HPG-MxP run.

    levels           sizes of the multigrid levels
    double_sets_aim  whether GMRES-IR must reach the residual of the double solver at full scale, as the rules allow
    """

    levels: Levels
    double_sets_aim: bool

    def forms(self, storage: str) -> tuple[Form, Form]:
        """Return the storage forms (precisions and layout) of the double solver and of the mixed solver."""

    def make_ready(self, forms: Sequence[Form], use: Callable[[StencilProblem], None]) -> None:
        """Call `use` with a tiny problem in these forms, so that all kernels are compiled. Collective."""

    def make(self, forms: Sequence[Form], comm: Communicator) -> StencilProblem:
        """Build the problem in the given forms on the ranks of comm. Collective over comm."""

    def described(self, problem: StencilProblem, k: int) -> list[dict[str, Any]]:
        """Return a description of each level of hierarchy `k` for the result."""

    def section(self) -> dict[str, Any]:
        """Return the sizes of the problem for the result."""

    def reference_bytes(self) -> int | None:
        """Return the bytes that the reference code's memory formula gives, or None for a matrix from a file."""

    def larger_mesh(self, share: float) -> int | None:
        """Return the side of a cube with `share` times as many points as this rank's box.

        The side is rounded down to a multiple of 8. Returns None for a matrix from a file.
        """


def problem_of(bench: SparseBench[HpgMxpConfig], file: MatrixFile | None) -> HpgMxpProblem:
    """Build the problem of a run; raise a ResourceError if the problem does not fit into memory. Collective."""
    return BoxProblem(bench) if file is None else FileProblem(bench, file)


def size_lines(config: HpgMxpConfig, comm: Communicator, budget: Budget) -> tuple[Box | None, list[str], bool]:
    """Return the box of the run, a line of sizes per storage format, and whether all formats fit. Collective over comm.

    The box is None if the matrix comes from a file.
    """
    if config.matrix is not None:
        file, names = read_file(config.matrix, comm), storages(config)
        fits = all(file.fits(config, storage, comm.size, budget) for storage in names)
        return None, [f"{storage}: {file.line(config, storage, comm.size, budget)}" for storage in names], fits
    box = box_of(config, comm.rank, comm.size)
    by_storage = {storage: solvers_of(config, forms(config, storage)) for storage in storages(config)}
    return box_lines(box, config, hierarchies_by_storage(config, by_storage, config.restart + 1), budget)


class BoxProblem:
    """The benchmark's own problem, with a box of points per rank."""

    double_sets_aim = True

    def __init__(self, bench: SparseBench[HpgMxpConfig]):
        self._bench, self._config = bench, (config := bench.config)
        self._stencil = weights(nonsymmetric=config.nonsymmetric)
        by_storage = {storage: solvers_of(config, self.forms(storage)) for storage in storages(config)}
        self._box = bench.box(hierarchies_by_storage(config, by_storage, config.restart + 1).values())
        self.levels = stencil_levels(self._box)

    def forms(self, storage: str) -> tuple[Form, Form]:
        return forms(self._config, storage)

    def make_ready(self, forms: Sequence[Form], use: Callable[[StencilProblem], None]) -> None:
        self._bench.make_ready(forms, self._stencil, use)

    def make(self, forms: Sequence[Form], comm: Communicator) -> StencilProblem:
        """Build the problem on the ranks of comm. If comm has fewer ranks than the run, the boxes keep their size."""
        box = self._box
        if comm.size != box.ranks:
            box = Box.of(comm.rank, box.shape, process_grid(comm.size))
        return self._bench.make(box, forms, self._stencil, comm)

    def described(self, problem: StencilProblem, k: int) -> list[dict[str, Any]]:
        return problem.described(self._box, k)

    def section(self) -> dict[str, Any]:
        return {**mesh_section(self._box), "nonsymmetric": self._config.nonsymmetric, "matrix": None}

    def reference_bytes(self) -> int | None:
        return sum(memory_bytes(self._box, self._config.restart))

    def larger_mesh(self, share: float) -> int | None:
        return int((share * self._box.rows) ** (1 / 3)) // 8 * 8 or None


class FileProblem:
    """A matrix from a file, with its rows distributed over the ranks."""

    double_sets_aim = False

    def __init__(self, bench: SparseBench[HpgMxpConfig], file: MatrixFile):
        self._bench, self._config, self._file = bench, (config := bench.config), file
        self._values = self._value_format()
        self.levels = Levels(rows=(file.n,), nnz=(file.nnz,), coarse_nnz=(0,))
        stored = solvers_of(config, self.forms(storages(config)[0]))
        parts = file.memory_need(hierarchies_of(stored, config.restart + 1))
        need = file.node_need(parts, bench.comm.size, bench.budget)
        if need > bench.budget.limit:
            raise ResourceError(too_large(file, parts, need, bench.budget.limit))

    def _value_format(self) -> str:
        """Choose the value format of the mixed solver on rank 0, which has all values, and broadcast the format.

        Collective.
        """
        bench, name, A = self._bench, None, self._file.entries
        if bench.comm.rank == 0:
            kernels, mixed = bench.kernels.sparse, forms(self._config, "sell")[1]
            rows = kernels.rows_of(A.indptr, A.indices, A.data, self._file.n, 0)
            name, _ = value_format(kernels, Solo(), rows, mixed.values[0], mixed.tolerance)
        return str(bench.comm.bcast_object(name))

    def forms(self, storage: str) -> tuple[Form, Form]:
        double, mixed = forms(self._config, storage)
        return double, replace(mixed, values=(self._values,))

    def make_ready(self, forms: Sequence[Form], use: Callable[[StencilProblem], None]) -> None:
        """Compile the kernels of these forms on a tiny problem, including the kernels for general matrices.

        Collective.
        """
        kernels = self._bench.kernels.sparse
        tiny = [replace(form, values=form.values * LEVELS) for form in forms]

        def use_all(problem: StencilProblem) -> None:
            use(problem)
            kernels.is_symmetric_pattern(kernels.stencil_rows(Box(2, 2, 2), weights()))

        self._bench.make_ready(tiny, weights(), use_all)

    def make(self, forms: Sequence[Form], comm: Communicator) -> StencilProblem:
        from mxpeak.distributed.rows import distribute  # SciPy is imported only for a file
        from mxpeak.distributed.stencil import make_general

        bench = self._bench
        bench.release_problem()
        block = distribute(comm, self._file.entries)
        order = order_of(self._config, forms[0].storage)
        optimizations = optimizations_of(self._config)
        return make_general(bench.kernels.sparse, comm, block, forms, order, bench.spans, optimizations)

    def described(self, problem: StencilProblem, k: int) -> list[dict[str, Any]]:
        """Describe the only level, with the sizes of all ranks and the bytes of this rank."""
        A = problem.hierarchies[k].top.A.A
        sizes = {"rows": self._file.n, "nnz": self._file.nnz, "colours": problem.colors[0]}
        formats = {"value_precision": A.values, "vector_precision": A.vectors}
        names = ("storage", "rows_at_a_time", "bytes", "index_bytes")
        return [{**sizes, **formats, **{name: getattr(A, name) for name in names}}]

    def section(self) -> dict[str, Any]:
        file = self._file
        mesh = dict.fromkeys(("nx", "ny", "nz", "npx", "npy", "npz", "gnx", "gny", "gnz"))
        sizes = {"rows": file.n, "nnz": file.nnz}
        return {**mesh, **sizes, "nonsymmetric": file.nonsymmetric, "matrix": file.name}

    def reference_bytes(self) -> int | None:
        return None

    def larger_mesh(self, share: float) -> int | None:
        return None
