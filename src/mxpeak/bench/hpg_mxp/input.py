"""Read a matrix of HPG-MxP from a file on rank 0, and compute its memory on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
from mxpeak.bench.hpg_mxp.rules import forms, solvers_of
from mxpeak.bench.sparse import hierarchies_of
from mxpeak.bench.stencil_sizes import HierarchySize
from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import run_on_root
from mxpeak.errors import ResourceError, UsageError
from mxpeak.perf.sparse_counts import FP64_BYTES
from mxpeak.precision import PRECISIONS
from mxpeak.records import size_text, three_digits
from mxpeak.runtime.memory import MARGIN, Budget

#: Bounds of ||b||. They keep the squares of the entries of b and of residuals in the range of fp64.
MIN_B, MAX_B = 1e-100, 1e100
#: Bytes per entry: the file's matrix on rank 0; the maximum while rows are ordered and stored; the maximum while the
#: pattern is made symmetric. The last step needs the rows before and after, and the positions of the added zeros.
KEPT_BYTES, MAKING_BYTES, FILLING_BYTES = 12, 64, 72


@dataclass(frozen=True, slots=True)
class MatrixFile:
    """The sizes of a matrix from a file, known on all ranks; only rank 0 stores its entries, in compressed rows (CSR).

    filled   number of entries including the zeros that make the pattern symmetric
    """

    name: str
    n: int
    nnz: int
    filled: int
    nonsymmetric: bool
    entries: Any = None

    def line(self, config: HpgMxpConfig, storage: str, ranks: int, budget: Budget) -> str:
        """Return the dry-run line with the sizes and the memory of the matrix.

        An automatic value format counts as fp64.
        """
        parts = self._parts(config, storage)
        text = (
            f"{self.name}  ranks {ranks}: {self.n} rows, {self.nnz} entries; matrices {size_text(parts['matrix'])}, "
            f"total at most {size_text(parts['total'])}"
        )
        fits = self.fits(config, storage, ranks, budget)
        return text if fits else f"{text}; does not fit: {budget.available}"

    def fits(self, config: HpgMxpConfig, storage: str, ranks: int, budget: Budget) -> bool:
        """Return whether the matrix fits into every node's memory, with fp64 values if the format is automatic."""
        return self.node_need(self._parts(config, storage), ranks, budget) <= budget.limit

    def _parts(self, config: HpgMxpConfig, storage: str) -> dict[str, int]:
        double, mixed = forms(config, storage)
        if config.mg_precisions(1) == ("auto",):
            mixed = replace(mixed, values=("fp64",))
        return self.memory_need(hierarchies_of(solvers_of(config, (double, mixed)), config.restart + 1))

    def memory_need(self, hierarchies: Sequence[HierarchySize]) -> dict[str, int]:
        """Return the memory of all ranks in bytes, without padding and halos. Each solver has n rows and nnz entries:

          matrix    filled·(value + index)
          vectors   3·n·vector, and 5·8·n for the outer solver
          basis     the largest basis·n·number      the solves run one after the other
          making    64·nnz at most                  rows while they are distributed and ordered
          filling   72·nnz at most                  rows while a pattern is made symmetric, before the matrix is stored
          kept      12·nnz                          the matrix of the file, on rank 0
        total       kept + the larger of filling and matrix + vectors + the larger of basis and making.
        """
        n, nnz = self.n, self.nnz
        parts = {
            "matrix": sum(self.filled * (size.value_bytes[0] + size.index_bytes) for size in hierarchies),
            "vectors": 5 * FP64_BYTES * n + sum(3 * n * size.vector_bytes for size in hierarchies),
            "basis": n * max(size.basis_row for size in hierarchies),
            "making": MAKING_BYTES * nnz,
            "filling": FILLING_BYTES * nnz if self.filled > nnz else 0,
            "kept": KEPT_BYTES * nnz,
        }
        stored = parts["matrix"] + parts["vectors"] + max(parts["basis"], parts["making"])
        return {**parts, "total": parts["kept"] + max(stored, parts["filling"])}

    def node_need(self, parts: dict[str, int], ranks: int, budget: Budget) -> int:
        """Return the bytes needed on the node of rank 0, which also stores the matrix of the file."""
        shared = {"total": parts["total"] - parts["kept"]}
        return parts["kept"] + budget.need(lambda n, nb, P, Q: shared, self.n, 1, ranks, 1)


def read_file(path: str, comm: Communicator) -> MatrixFile:
    """Read a matrix file on rank 0 and broadcast its sizes; errors are raised on all ranks. Collective over comm."""
    entries: Any = None

    def read() -> MatrixFile:
        nonlocal entries
        try:
            entries, file = _read(path, comm.size)
        except MemoryError:
            raise ResourceError(
                f"--matrix {path} does not fit into the free memory of the first node; use a smaller matrix, or "
                "a node with more memory"
            ) from None
        return file

    return replace(run_on_root(comm, read), entries=entries)


def _read(path: str, ranks: int) -> tuple[Any, MatrixFile]:
    """Read and check the matrix on rank 0, and return the matrix and its sizes."""
    from mxpeak.bench.matrix_market import read_matrix  # import SciPy only for a file

    A = read_matrix(path)
    n = A.shape[0]
    if n < ranks:
        raise UsageError(
            f"--matrix {path} has {n} rows for {ranks} ranks, but each rank needs at least one row; use at "
            f"most {n} ranks (--ranks {n})"
        )
    _check_sums(path, A)
    difference = A - A.T
    return A, MatrixFile(Path(path).name, n, int(A.nnz), filled_entries(A), bool(difference.count_nonzero()))


def filled_entries(A: Any) -> int:
    """Return the number of entries in the pattern of A + A^T, which the sweeps need."""
    pattern = A.astype(bool)
    pattern.data[:] = True  # stored zeros are entries
    return int((pattern + pattern.T).nnz)


def _check_sums(path: str, A: Any) -> None:
    """Raise a UsageError if b = A·1 is zero except for rounding, or out of range."""
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        b, sizes = A.sum(axis=1), abs(A).sum(axis=1)
        norm = float(np.sqrt(b @ b))
    if isfinite(norm) and (abs(b) <= A.shape[0] * PRECISIONS["fp64"].u * sizes).all():
        raise UsageError(
            f"--matrix {path} is singular, because every row sums to zero (A·1 = 0); fix one unknown, for "
            "example by replacing its row with a row of the identity"
        )
    if not MIN_B <= norm <= MAX_B:
        raise UsageError(
            f"--matrix {path}: the norm of b = A·1 is {three_digits(norm)}, but it must be from {MIN_B:g} "
            f"to {MAX_B:g}, so that its square is in the range of fp64; scale the matrix by a power of two"
        )


def too_large(file: MatrixFile, parts: dict[str, int], need: int, node_bytes: int) -> str:
    """Return the error message for a matrix that does not fit into a node's memory."""
    names = ("matrix", "vectors", "basis", "making", "filling", "kept")
    what = ", ".join(f"{name} {size_text(parts[name])}" for name in names)
    return (
        f"{file.name} with {file.n} rows and {file.nnz} entries needs {what}, but not all at the same time: "
        f"the first node needs up to {size_text(need)}, but {size_text(node_bytes)} per node is available "
        f"(free memory less {1 - MARGIN:.0%}, or --mem); use more nodes, a smaller --restart or a larger "
        "--mem"
    )
