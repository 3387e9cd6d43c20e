"""The matrices of algebraic multigrid levels, for one process or distributed over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sparse

from mxpeak.comm.base import Communicator
from mxpeak.distributed.csr import Csr, rows_of_entries
from mxpeak.distributed.halo import Partner, numbered, partners
from mxpeak.distributed.rank_group import SERIAL, RankGroup
from mxpeak.distributed.rows import Array, RowBlock
from mxpeak.solvers.precond.schwarz import Overlap

#: Largest number of rows of the coarsest level, and of a level that is solved by its inverse.
COARSEST, DENSE = 200, 2000
#: Smallest number of rows of a distributed level. Every rank stores all rows of smaller levels, which saves messages.
MIN_SHARED = 10_000


@dataclass(frozen=True, slots=True)
class Coupling:
    """The rows of P or R on this rank, in local columns.

    This rank's unknowns of the other level come first, followed by the unknowns of `partners`. If every rank stores
    the whole coarser level, there are no partners: P has all its columns, and R all its rows.
    """

    T: Csr
    partners: tuple[Partner, ...] = ()

    @property
    def own(self) -> int:
        """Return the number of columns that belong to this rank's own unknowns."""
        return int(self.T.shape[1]) - sum(partner.received for partner in self.partners)


@dataclass(frozen=True, slots=True)
class LevelMatrices:
    """The matrix A of one level, and P and R to the next coarser level, which are None on the coarsest level.

    overlap   the rows of this rank and its halo if the level is distributed; None if the rank has the whole level
    """

    A: Csr
    P: Coupling | None = None
    R: Coupling | None = None
    group: RankGroup = SERIAL
    overlap: Overlap | None = None

    @property
    def n(self) -> int:
        """Return the number of rows of this rank."""
        return int(self.A.shape[0])

    @property
    def has_inverse(self) -> bool:
        """Return whether the level is solved by its inverse instead of a sweep."""
        return self.P is None and self.n <= DENSE

    @property
    def defect(self) -> str:
        """Return the reason why the level cannot be smoothed or solved, or an empty string."""
        parts = [self.A, *(coupling.T for coupling in (self.P, self.R) if coupling is not None)]
        if not all(np.isfinite(T.data).all() for T in parts):
            return "has entries that are not finite"
        if not self.has_inverse and not self.A.diagonal().all():
            return "has zeros on its diagonal"
        return ""


@dataclass(frozen=True, slots=True)
class DiagonalFactor:
    """A diagonal matrix with the entries factor_i · 2^exponent_i.

    Each of the fields `factor` and `exponent` is an array, or one number for all i.
    """

    factor: Any
    exponent: Any

    def scale(self, data: Array, lines: Array) -> Array:
        """Multiply the entries of a matrix by the factors of their rows or columns, and return the products.

        `lines` contains the row or the column of each entry.
        """
        factor, exponent = (part[lines] if np.ndim(part) else part for part in (self.factor, self.exponent))
        return np.asarray(np.ldexp(data * factor, exponent))


def complexity(levels: Sequence[LevelMatrices]) -> float:
    """Return the number of entries of all levels divided by that of the finest level."""
    return float(sum(level.A.nnz for level in levels) / levels[0].A.nnz)


def worth_sharing(n: int) -> bool:
    """Return whether a coarser level of n rows is distributed over the ranks."""
    return n >= MIN_SHARED


def for_pyamg(A: Csr) -> Any:
    """Return A with 32-bit indices, because PyAMG accepts only these and SciPy 1.13 may produce 64-bit indices."""
    M = sparse.csr_matrix(A)
    if M.nnz < 2**31:
        M.indices, M.indptr = M.indices.astype(np.int32, copy=False), M.indptr.astype(np.int32, copy=False)
    return M


def from_pyamg(levels: Sequence[Any]) -> list[LevelMatrices]:
    """Return the levels of a PyAMG solver in fp64."""
    matrices = [
        LevelMatrices(_fp64(level.A), Coupling(_fp64(level.P)), Coupling(_fp64(level.R))) for level in levels[:-1]
    ]
    return [*matrices, LevelMatrices(_fp64(levels[-1].A))]


def _fp64(T: Any) -> Csr:
    T = sparse.csr_array(T).astype(np.float64, copy=False)
    T.sum_duplicates()
    return T


def scale_couplings(P: Csr, R: Csr, P_rows: DiagonalFactor, R_columns: DiagonalFactor) -> None:
    """Multiply the rows of P by P_rows and the columns of R by R_columns, in place."""
    with np.errstate(over="ignore"):
        R.data = R_columns.scale(R.data, R.indices)
        P.data = P_rows.scale(P.data, rows_of_entries(P))


def local_columns(comm: Communicator, rows: RowBlock, starts: Sequence[int]) -> tuple[Csr, tuple[Partner, ...]]:
    """Return the rows in local columns of the distribution `starts`, and the partners of this rank. Collective."""
    n = starts[comm.rank + 1] - starts[comm.rank]
    columns, halo = numbered(RowBlock(list(starts), comm.rank, rows.indptr, rows.columns, rows.data))
    A = sparse.csr_array((rows.data, columns.astype(np.int32), rows.indptr), shape=(rows.n, n + halo.size))
    A.sort_indices()
    return A, tuple(partners(comm, starts, halo))
