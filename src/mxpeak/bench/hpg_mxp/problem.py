"""What HPG-MxP solves: the 27-point problem on boxes, or a matrix from a file.

A problem knows its sizes, the forms that its matrices are stored in, and how it is made on some ranks; what is
measured of it, and how, is the same for both.  A file's matrix has one level, so its preconditioner is one sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
from mxpeak.bench.hpg_mxp.input import MatrixFile, read_file, too_large
from mxpeak.bench.hpg_mxp.rules import forms, storages
from mxpeak.bench.sparse import SparseBench, hierarchies_of, order_of
from mxpeak.bench.stencil_sizes import box_of, fits_in, line
from mxpeak.comm.base import Communicator
from mxpeak.comm.transports.solo import Solo
from mxpeak.distributed.stencil import Form, StencilProblem, value_format, weights
from mxpeak.errors import ResourceError
from mxpeak.layout.stencil import LEVELS, Box, process_grid
from mxpeak.perf.sparse_counts import Levels, memory_bytes, stencil_levels
from mxpeak.runtime.memory import Budget


class Problem(Protocol):
    """A x = b with x = 1, as the phases of HPG-MxP see it.

    levels          its sizes
    may_fall_short  whether at full scale the double solver sets the aim, reached or not, as the rules let it
    """

    levels: Levels
    may_fall_short: bool

    def forms(self, storage: str) -> tuple[Form, Form]:
        """The double solver's matrices, and the mixed one's."""

    def make_ready(self, forms: Sequence[Form], use: Callable[[StencilProblem], None]) -> None:
        """Compile all that some forms take, by using them on something tiny.  Collective."""

    def make(self, forms: Sequence[Form], comm: Communicator) -> StencilProblem:
        """The problem on all ranks, or on the first of them, in some forms of one storage.  Collective over comm."""

    def described(self, made: StencilProblem, k: int) -> list[dict[str, Any]]:
        """Each level of a hierarchy as results tell it."""

    def section(self) -> dict[str, Any]:
        """Its sizes as results tell them."""

    def reference_bytes(self) -> int | None:
        """Its memory by the reference's formula, None where that does not speak of it."""

    def larger_mesh(self, share: float) -> int | None:
        """The side of the cube a rank that takes this share of the memory, None where there are no cubes."""


def problem_of(bench: SparseBench[HpgMxpConfig], file: MatrixFile | None) -> Problem:
    """The problem that was asked for, if it fits into memory.  Collective."""
    return Boxes(bench) if file is None else FileProblem(bench, file)


def size_lines(config: HpgMxpConfig, comm: Communicator, budget: Budget) -> tuple[list[str], bool]:
    """Sizes and memory by storage, and whether all of them fit, for a dry run.  Collective over comm."""
    if config.matrix is not None:
        file, names = read_file(config.matrix, comm), storages(config)
        fits = all(file.fits(config, storage, comm.size, budget) for storage in names)
        return [f"{storage}: {file.line(config, storage, comm.size, budget)}" for storage in names], fits
    box = box_of(config, comm.rank, comm.size)
    need = {
        storage: hierarchies_of(
            forms(config, storage), config.restart + 1, order_of(config, storage), on_gpu=config.on_gpu
        )
        for storage in storages(config)
    }
    lines = [f"{storage}: {line(box, hierarchies, budget)}" for storage, hierarchies in need.items()]
    return lines, all(fits_in(box, hierarchies, budget) for hierarchies in need.values())


# --- boxes ------------------------------------------------------------------------------------------------------


class Boxes:
    """The benchmark's own problem: a box of points a rank."""

    may_fall_short = True

    def __init__(self, bench: SparseBench[HpgMxpConfig]):
        self._bench, self._config = bench, (config := bench.config)
        self._stencil = weights(nonsymmetric=config.nonsymmetric)
        orders = {storage: order_of(config, storage) for storage in storages(config)}
        basis, on_gpu = config.restart + 1, config.on_gpu
        self._box = bench.box(
            [hierarchies_of(self.forms(name), basis, order, on_gpu=on_gpu) for name, order in orders.items()]
        )
        self.levels = stencil_levels(self._box)

    def forms(self, storage: str) -> tuple[Form, Form]:
        return forms(self._config, storage)

    def make_ready(self, forms: Sequence[Form], use: Callable[[StencilProblem], None]) -> None:
        self._bench.make_ready(forms, self._stencil, use)

    def make(self, forms: Sequence[Form], comm: Communicator) -> StencilProblem:
        """See `Problem`; on fewer ranks boxes are as large, in a grid of their own."""
        box = self._box
        if comm.size != box.ranks:
            box = Box.of(comm.rank, box.shape, process_grid(comm.size))
        return self._bench.make(box, forms, self._stencil, comm)

    def described(self, made: StencilProblem, k: int) -> list[dict[str, Any]]:
        return made.described(self._box, k)

    def section(self) -> dict[str, Any]:
        box = self._box
        return {
            "nx": box.nx,
            "ny": box.ny,
            "nz": box.nz,
            "npx": box.npx,
            "npy": box.npy,
            "npz": box.npz,
            "gnx": box.gnx,
            "gny": box.gny,
            "gnz": box.gnz,
            "rows": box.global_rows,
            "nnz": box.global_nnz,
            "nonsymmetric": self._config.nonsymmetric,
            "matrix": None,
        }

    def reference_bytes(self) -> int | None:
        return sum(memory_bytes(self._box, self._config.restart))

    def larger_mesh(self, share: float) -> int | None:
        return int((share * self._box.rows) ** (1 / 3)) // 8 * 8 or None


# --- a file -----------------------------------------------------------------------------------------------------


class FileProblem:
    """A matrix from a file, its rows distributed over the ranks."""

    may_fall_short = False

    def __init__(self, bench: SparseBench[HpgMxpConfig], file: MatrixFile):
        self._bench, self._config, self._file = bench, (config := bench.config), file
        self._values = self._settled()
        self.levels = Levels(rows=(file.n,), nnz=(file.nnz,), coarse_nnz=(0,))
        parts = file.memory_need(hierarchies_of(self.forms(storages(config)[0]), config.restart + 1))
        need = file.node_need(parts, bench.comm.size, bench.budget)
        if need > bench.budget.limit:
            raise ResourceError(too_large(file, parts, need, bench.budget.limit))

    def _settled(self) -> str:
        """The format of the mixed solver's values; rank 0 has them all.  Collective."""
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
        """See `Problem`: on a tiny box in these formats, with what only happens to a matrix that is not known."""
        kernels = self._bench.kernels.sparse
        tiny = [replace(form, values=form.values * LEVELS) for form in forms]

        def use_all(made: StencilProblem) -> None:
            use(made)
            kernels.is_symmetric_pattern(kernels.stencil_rows(Box(2, 2, 2), weights()))

        self._bench.make_ready(tiny, weights(), use_all)

    def make(self, forms: Sequence[Form], comm: Communicator) -> StencilProblem:
        from mxpeak.distributed.rows import distribute  # as SciPy above
        from mxpeak.distributed.stencil import make_general  # as SciPy above

        bench = self._bench
        bench.forget()
        block = distribute(comm, self._file.entries)
        order = order_of(self._config, forms[0].storage)
        return make_general(bench.kernels.sparse, comm, block, forms, order, bench.spans)

    def described(self, made: StencilProblem, k: int) -> list[dict[str, Any]]:
        """See `Problem`: the one level, sizes over all ranks, bytes of this one."""
        A = made.hierarchies[k].top.A.A
        return [
            {
                "rows": self._file.n,
                "nnz": self._file.nnz,
                "colours": made.colours[0],
                "value_precision": A.values,
                "vector_precision": A.vectors,
                "storage": A.storage,
                "rows_at_a_time": A.rows_at_a_time,
                "bytes": A.bytes,
                "index_bytes": A.index_bytes,
            }
        ]

    def section(self) -> dict[str, Any]:
        file = self._file
        mesh = dict.fromkeys(("nx", "ny", "nz", "npx", "npy", "npz", "gnx", "gny", "gnz"))
        sizes = {"rows": file.n, "nnz": file.nnz}
        return {**mesh, **sizes, "nonsymmetric": file.nonsymmetric, "matrix": file.name}

    def reference_bytes(self) -> int | None:
        return None

    def larger_mesh(self, share: float) -> int | None:
        return None
