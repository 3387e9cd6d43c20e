"""Restricted additive Schwarz sweeps over rows that are distributed over ranks (Cai and Sarkis 1999).

A rank sweeps over its own rows and those of its halo, and keeps the result for its own rows. If the colors are the
same on all ranks, this is nearly the sweep of one process, at the cost of two messages per sweep.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sparse

from mxpeak.distributed.csr import Csr
from mxpeak.distributed.rank_group import RankGroup
from mxpeak.distributed.rows import Array
from mxpeak.distributed.spaces import zeros
from mxpeak.distributed.sparse import SparseMatrix
from mxpeak.kernels.contract.sparse import Vector
from mxpeak.solvers.precond.matrix_builder import MatrixBuilder, one_group


@dataclass(frozen=True, slots=True)
class Overlap:
    """The rows of a rank and of its halo as one square matrix, in the order of the global matrix.

    before   the number of halo rows that precede the own rows
    colours  the colors of all these rows for sweeps, or None if they are not known
    """

    A: Csr
    before: int
    colours: Array | None = None


def overlapping(A: Csr, group: RankGroup, colours: Array | None = None) -> Overlap:
    """Return the rows of A and of its halo as one square matrix, given the colors of A's columns. Collective."""
    n, first = A.shape[0], group.first
    columns = group.with_halo(np.arange(first, first + n))
    sequence = np.argsort(columns, kind="stable")
    ascending, before = columns[sequence], int(np.count_nonzero(columns[n:] < first))
    of_halo = group.rows_with_halo(group.in_global_columns(A))[n:]
    at = np.minimum(np.searchsorted(ascending, of_halo.indices), columns.size - 1)
    kept = ascending[at] == of_halo.indices
    indptr = np.concatenate([[0], np.cumsum(kept)])[of_halo.indptr]
    halo = sparse.csr_array((of_halo.data[kept], at[kept], indptr), shape=(columns.size - n, columns.size))
    inverse = np.argsort(sequence)
    own = sparse.csr_array((A.data, inverse[A.indices], A.indptr), shape=(n, columns.size))
    square = sparse.vstack([halo[:before], own, halo[before:]], format="csr")
    square.sort_indices()
    return Overlap(square, before, None if colours is None else colours[sequence])


class OverlappingSweep:
    """A sweep S over the rows of an overlap: forward, or forward and backward if `symmetric`."""

    def __init__(
        self, builder: MatrixBuilder, overlap: Overlap, group: RankGroup, A: SparseMatrix, *, symmetric: bool = False
    ):
        kernels, n, vectors = builder.kernels, A.n, A.A.vectors
        E, before, width = overlap.A, overlap.before, overlap.A.shape[0]
        self._own, self._before = slice(before, before + n), before
        whole = kernels.rows_of(E.indptr, E.indices, E.data, width, 0)
        rows, self.order = builder.ordered(whole, overlap.colours)
        self._kernels, self._n = kernels, n
        self._E = builder.store(rows, self.order, A.A.values, vectors, brief=True)
        self._exchange = group.exchange(kernels, one_group(n), vectors)
        at = np.concatenate([np.arange(n, n + before), np.arange(n), np.arange(n + before, width)])
        self._in_place = self.order.kind == "natural"
        self._to_swept = kernels.xp.asarray(at[self.order.new_to_old].astype(np.int32))
        self._from_swept = kernels.xp.asarray(self.order.old_to_new[self._own].astype(np.int32))
        self._b, self._b_swept = zeros(kernels, width, vectors), zeros(kernels, width, vectors)
        self._x = self._E.halo_vector()
        self._keep = zeros(kernels, width, vectors) if symmetric else None
        own = [v.nbytes for v in (self._b, self._b_swept, self._x, self._keep) if v is not None]
        self.bytes = int(self._E.A.bytes + sum(own))

    def __call__(self, b: Vector, x: Vector) -> None:
        """Compute x = S b, a sweep from zero. Collective."""
        self._collect(b)
        self._E.relax_from_zero(self._b_swept, self._x, self._keep)
        if self._keep is not None:
            self._E.relax_backward(self._b_swept, self._x, self._keep)
        if self._in_place:
            x[:] = self._x[self._own]
        else:
            self._kernels.gather(self._x, self._from_swept, x)

    def _collect(self, b: Vector) -> None:
        """Collect the right-hand side of all swept rows, in the order of the global matrix. Collective."""
        if self._in_place:
            halo, swept, before = self._b[self._n :], self._b_swept, self._before
            swept[self._own] = b
            self._exchange.complete(swept[self._own], halo)
            swept[:before], swept[before + self._n :] = halo[:before], halo[before:]
            return
        self._b[: self._n] = b
        self._exchange.complete(self._b[: self._n], self._b[self._n :])
        self._kernels.gather(self._b, self._to_swept, self._b_swept)


class SchwarzSweep:
    """A symmetric overlapping sweep as the preconditioner of a matrix whose rows are stored in sequence."""

    def __init__(self, builder: MatrixBuilder, overlap: Overlap, group: RankGroup, A: SparseMatrix):
        self._sweep = OverlappingSweep(builder, overlap, group, A, symmetric=True)
        self._A, self._x, self.order = A, A.halo_vector(), self._sweep.order
        self.bytes = self._sweep.bytes + int(self._x.nbytes)

    def __call__(self, r: Vector) -> Vector:
        """Return S r. Collective."""
        self._sweep(r, self._A.own(self._x))
        return self._x
