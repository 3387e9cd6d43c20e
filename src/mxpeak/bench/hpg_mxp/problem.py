"""What HPG-MxP solves: the 27-point problem on boxes, or a matrix from a file.

A problem knows its sizes, the forms that its matrices are stored in, and how it is made on some ranks; what is
measured of it, and how, is the same for both.  A file's matrix has one level, so its preconditioner is one sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
from mxpeak.bench.hpg_mxp.rules import forms, storages
from mxpeak.bench.sparse import SparseBench, held, order_of
from mxpeak.bench.stencil_sizes import Hierarchy as Held
from mxpeak.bench.stencil_sizes import box_of, fits_in, line
from mxpeak.comm.base import Communicator, meet_asleep
from mxpeak.comm.solo import Solo
from mxpeak.distributed.stencil import Form, Made, settled, weights
from mxpeak.errors import MxpeakError, ResourceError, UsageError
from mxpeak.layout.stencil import LEVELS, Box, process_grid
from mxpeak.perf.sparse_counts import FP64_BYTES, Levels, memory_bytes, stencil_levels
from mxpeak.precision import PRECISIONS
from mxpeak.records import size_text, three_digits
from mxpeak.runtime.memory import MARGIN, Budget

#: ||b|| outside of these is refused: squares of its entries, and of residuals, have to be numbers of fp64.
LEAST_B, MOST_B = 1e-100, 1e100
#: Bytes of an entry on rank 0, which keeps the file's matrix; at the most of one while rows are ordered and stored;
#: and of one while a pattern is filled up, at the most, which takes the rows before and after, and the zeros' places.
KEPT_BYTES, MAKING_BYTES, FILLING_BYTES = 12, 64, 72


class Problem(Protocol):
    """A x = b with x = 1, as the phases of HPG-MxP see it.

    levels          its sizes
    may_fall_short  whether at full scale the double solver sets the aim, reached or not, as the rules let it
    """

    levels: Levels
    may_fall_short: bool

    def forms(self, storage: str) -> tuple[Form, Form]:
        """The double solver's matrices, and the mixed one's."""

    def make_ready(self, forms: Sequence[Form], use: Callable[[Made], None]) -> None:
        """Compile all that some forms take, by using them on something tiny.  Collective."""

    def make(self, forms: Sequence[Form], comm: Communicator) -> Made:
        """The problem on all ranks, or on the first of them, in some forms of one storage.  Collective over comm."""

    def described(self, made: Made, k: int) -> list[dict[str, Any]]:
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
    need = {storage: held(forms(config, storage), config.restart + 1) for storage in storages(config)}
    lines = [f"{storage}: {line(box, hierarchies, budget)}" for storage, hierarchies in need.items()]
    return lines, all(fits_in(box, hierarchies, budget) for hierarchies in need.values())


# --- boxes ------------------------------------------------------------------------------------------------------


class Boxes:
    """The benchmark's own problem: a box of points a rank."""

    may_fall_short = True

    def __init__(self, bench: SparseBench[HpgMxpConfig]):
        self._bench, self._config = bench, (config := bench.config)
        self._stencil = weights(nonsymmetric=config.nonsymmetric)
        self._box = bench.box([self.forms(storage) for storage in storages(config)], config.restart + 1)
        self.levels = stencil_levels(self._box)

    def forms(self, storage: str) -> tuple[Form, Form]:
        return forms(self._config, storage)

    def make_ready(self, forms: Sequence[Form], use: Callable[[Made], None]) -> None:
        self._bench.make_ready(forms, self._stencil, use)

    def make(self, forms: Sequence[Form], comm: Communicator) -> Made:
        """See `Problem`; on fewer ranks boxes are as large, in a grid of their own."""
        box = self._box
        if comm.size != box.ranks:
            box = Box.of(comm.rank, box.shape, process_grid(comm.size))
        return self._bench.make(box, forms, self._stencil, comm)

    def described(self, made: Made, k: int) -> list[dict[str, Any]]:
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


@dataclass(frozen=True, slots=True)
class MatrixFile:
    """A matrix from a file as all ranks know it; its entries, compressed rows, are on rank 0 alone.

    filled   entries and the zeros that make its pattern symmetric
    """

    name: str
    n: int
    nnz: int
    filled: int
    nonsymmetric: bool
    entries: Any = None

    def line(self, config: HpgMxpConfig, storage: str, ranks: int, budget: Budget) -> str:
        """Sizes and memory, for a dry run; a format that only the run will choose is taken for the widest."""
        parts = self._parts(config, storage)
        text = (
            f"{self.name}  ranks {ranks}: {self.n} rows, {self.nnz} entries; matrices {size_text(parts['matrix'])} and "
            f"{size_text(parts['total'])} in all, at most"
        )
        fits = self.fits(config, storage, ranks, budget)
        return text if fits else f"{text}; does NOT fit, a node can give {size_text(budget.most)}"

    def fits(self, config: HpgMxpConfig, storage: str, ranks: int, budget: Budget) -> bool:
        """Whether every node has room for it, with the widest of the formats that it may have."""
        return self.node_need(self._parts(config, storage), ranks, budget) <= budget.most

    def _parts(self, config: HpgMxpConfig, storage: str) -> dict[str, int]:
        double, mixed = forms(config, storage)
        if config.mg_precisions(1) == ("auto",):
            mixed = replace(mixed, values=("fp64",))
        return self.memory_need(held((double, mixed), config.restart + 1))

    def memory_need(self, hierarchies: Sequence[Held]) -> dict[str, int]:
        """The bytes that all ranks hold at a time, padding and halos left out; n rows, nnz entries, of each solver

          matrix    filled·(value + index)
          vectors   3·n·vector, and 5·8·n for the outer solver
          basis     the largest basis·n·vector      solves follow one another
          making    64·nnz at most                  rows as they are distributed and ordered
          filling   72·nnz at most                  of a pattern that is not symmetric, before anything is stored
          kept      12·nnz                          the file's matrix, on rank 0
        total       kept + the larger of filling and matrix + vectors + the larger of basis and making.
        """
        n, nnz = self.n, self.nnz
        parts = {
            "matrix": sum(self.filled * (one.value_bytes[0] + one.index_bytes) for one in hierarchies),
            "vectors": 5 * FP64_BYTES * n + sum(3 * n * one.vector_bytes for one in hierarchies),
            "basis": max(one.basis * n * one.vector_bytes for one in hierarchies),
            "making": MAKING_BYTES * nnz,
            "filling": FILLING_BYTES * nnz if self.filled > nnz else 0,
            "kept": KEPT_BYTES * nnz,
        }
        stored = parts["matrix"] + parts["vectors"] + max(parts["basis"], parts["making"])
        return {**parts, "total": parts["kept"] + max(stored, parts["filling"])}

    def node_need(self, parts: dict[str, int], ranks: int, budget: Budget) -> int:
        """The bytes that rank 0's node holds."""
        shared = {"total": parts["total"] - parts["kept"]}
        return parts["kept"] + budget.need(lambda n, nb, P, Q: shared, self.n, 1, ranks, 1)


def read_file(path: str, comm: Communicator) -> MatrixFile:
    """The matrix in a file; a mistake in it is raised on every rank alike.  Collective over comm."""
    entries: Any = None
    answer: MatrixFile | MxpeakError | None = None
    if comm.rank == 0:
        try:
            entries, answer = _read(path, comm.size)
        except MxpeakError as error:
            answer = error
        except MemoryError:
            answer = ResourceError(f"--matrix {path}: reading it takes more memory than is free")
    meet_asleep(comm)  # a long file takes longer than any message should
    answer = comm.bcast_object(answer)
    if isinstance(answer, MxpeakError):
        raise answer
    assert answer is not None
    return replace(answer, entries=entries)


def _read(path: str, ranks: int) -> tuple[Any, MatrixFile]:
    """The matrix as rank 0 reads it, and what the others hear of it."""
    from mxpeak.bench.matrix_market import read_matrix  # SciPy must not be loaded where no file is read

    A = read_matrix(path)
    n = A.shape[0]
    if n < ranks:
        raise UsageError(
            f"--matrix {path} has {n} rows for {ranks} ranks, of which each needs one; start at most {n} (--ranks {n})"
        )
    _check_sums(path, A)
    difference = A - A.T
    return A, MatrixFile(Path(path).name, n, int(A.nnz), _filled(A), bool(difference.count_nonzero()))


def _filled(A: Any) -> int:
    """Entries of A and A^T together: those of A's pattern as sweeps need it."""
    there = A.astype(bool)
    there.data[:] = True  # zeros that are stored are entries
    return int((there + there.T).nnz)


def _check_sums(path: str, A: Any) -> None:
    """Stop where b = A·1 is nothing to solve for: zero to rounding, or out of range."""
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        b, sizes = A.sum(axis=1), abs(A).sum(axis=1)
        norm = float(np.sqrt(b @ b))
    if isfinite(norm) and (abs(b) <= A.shape[0] * PRECISIONS["fp64"].u * sizes).all():
        raise UsageError(
            f"--matrix {path}: its rows all sum to zero, so A·1 = 0 and the matrix is singular; fix an unknown, for "
            "instance by making its row that of the identity"
        )
    if not LEAST_B <= norm <= MOST_B:
        raise UsageError(
            f"--matrix {path}: the norm of b = A·1 is {three_digits(norm)}, but its square has to be within "
            f"what fp64 can represent: {LEAST_B:g} to {MOST_B:g}; scale the matrix by a power of two"
        )


class FileProblem:
    """A matrix from a file, its rows distributed over the ranks."""

    may_fall_short = False

    def __init__(self, bench: SparseBench[HpgMxpConfig], file: MatrixFile):
        self._bench, self._config, self._file = bench, (config := bench.config), file
        self._values = self._settled()
        self.levels = Levels(rows=(file.n,), nnz=(file.nnz,), coarse_nnz=(0,))
        parts = file.memory_need(held(self.forms(storages(config)[0]), config.restart + 1))
        need = file.node_need(parts, bench.comm.size, bench.budget)
        if need > bench.budget.most:
            raise ResourceError(_too_large(file, parts, need, bench.budget.most))

    def _settled(self) -> str:
        """The format of the mixed solver's values; rank 0 has them all.  Collective."""
        bench, name, A = self._bench, None, self._file.entries
        if bench.comm.rank == 0:
            kernels, mixed = bench.kernels.sparse, forms(self._config, "sell")[1]
            rows = kernels.rows_of(A.indptr, A.indices, A.data, self._file.n, 0)
            name, _ = settled(kernels, Solo(), rows, mixed.values[0], mixed.tolerance)
        return str(bench.comm.bcast_object(name))

    def forms(self, storage: str) -> tuple[Form, Form]:
        double, mixed = forms(self._config, storage)
        return double, replace(mixed, values=(self._values,))

    def make_ready(self, forms: Sequence[Form], use: Callable[[Made], None]) -> None:
        """See `Problem`: on a tiny box in these formats, with what only happens to a matrix that is not known."""
        kernels = self._bench.kernels.sparse
        tiny = [replace(form, values=form.values * LEVELS) for form in forms]

        def use_all(made: Made) -> None:
            use(made)
            kernels.is_symmetric_pattern(kernels.stencil_rows(Box(2, 2, 2), weights()))

        self._bench.make_ready(tiny, weights(), use_all)

    def make(self, forms: Sequence[Form], comm: Communicator) -> Made:
        from mxpeak.distributed.general import distribute, make_general  # as SciPy above

        bench = self._bench
        block = distribute(comm, self._file.entries)
        order = order_of(self._config, forms[0].storage)
        return make_general(bench.kernels.sparse, comm, block, forms, order, bench.spans)

    def described(self, made: Made, k: int) -> list[dict[str, Any]]:
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


def _too_large(file: MatrixFile, parts: dict[str, int], need: int, node_bytes: int) -> str:
    names = ("matrix", "vectors", "basis", "making", "filling", "kept")
    what = ", ".join(f"{name} {size_text(parts[name])}" for name in names)
    return (
        f"{file.name} with {file.n} rows and {file.nnz} entries takes {what}, though not all at a time: at "
        f"most {size_text(need)} on the first node, but {size_text(node_bytes)} of a node can be planned for (what is "
        f"free less {1 - MARGIN:.0%}, or --mem); start it on more nodes, or give a smaller --restart or a larger --mem"
    )
