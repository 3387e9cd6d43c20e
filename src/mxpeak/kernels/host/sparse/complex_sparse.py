"""Implement `kernels.contract.sparse` for complex numbers on the host.

Products and sweeps are compiled. A basis is processed in pieces of its vectors that fit in the cache: BLAS multiplies
each piece, and the sums of the pieces are added in fp64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from mxpeak.errors import UsageError
from mxpeak.kernels import arrays
from mxpeak.kernels.contract.sparse import Order, Part, Rows
from mxpeak.kernels.host.engine.blas import one_thread
from mxpeak.kernels.host.engine.team import Team
from mxpeak.kernels.host.sparse import complex_rows
from mxpeak.kernels.host.sparse.complex_rows import ComplexRows
from mxpeak.kernels.host.sparse.setup import HostSparseSetup
from mxpeak.layout.stencil import Box
from mxpeak.spans import HOST

Array = np.ndarray[Any, np.dtype[Any]]

#: Operations do not warn about overflow, because solvers detect infinite numbers.
quiet = np.errstate(all="ignore")
#: The type of complex numbers whose parts have a format.
TYPES: dict[str, np.dtype[Any]] = {"fp64": np.dtype(np.complex128), "fp32": np.dtype(np.complex64)}
#: Rows of a piece of the basis. A piece of 30 vectors in fp32 takes 1 MiB.
PIECE = 4096
#: Entries that one thread multiplies in the time that another thread needs to wake up.
SERIAL_BELOW = 2**16


@dataclass(frozen=True, slots=True)
class ComplexMatrix:
    """A complex matrix of this rank in compressed rows. See `kernels.contract.sparse.Stored` for the other fields.

    own      the entries in columns of this rank
    beyond   the entries of H, or None if there is no halo
    """

    n: int
    halo: int
    values: str
    vectors: str
    own: ComplexRows
    beyond: tuple[Array, Array, Array] | None

    storage = "rows"
    rows_at_a_time = 1

    @property
    def nnz(self) -> int:
        """Return the number of entries of L, D, U and H."""
        return int(self.own.indptr[-1]) + self.halo_nnz

    @property
    def halo_nnz(self) -> int:
        """Return the number of entries of H."""
        return 0 if self.beyond is None else int(self.beyond[0][-1])

    @property
    def lower(self) -> int:
        """Return the number of entries of L."""
        return int((self.own.lower - self.own.indptr[:-1]).sum())

    @property
    def upper(self) -> int:
        """Return the number of entries of U."""
        return int((self.own.indptr[1:] - self.own.upper).sum())

    @property
    def index_bytes(self) -> int:
        """Return the size of the arrays that encode the columns, in bytes."""
        own = self.own
        beyond = self.beyond[:2] if self.beyond is not None else ()
        return sum(int(part.nbytes) for part in (own.indptr, own.indices, own.lower, own.upper, *beyond))

    @property
    def bytes(self) -> int:
        """Return the size of all arrays in bytes."""
        beyond = self.beyond[2].nbytes if self.beyond is not None else 0
        return self.index_bytes + int(self.own.data.nbytes + self.own.inverse.nbytes + beyond)

    def extra_bytes(self, other: Any) -> int:
        """Return the bytes that this matrix needs in addition to `other`, with which it may share arrays."""
        shared = other.index_bytes if self.own.indices is other.own.indices else 0
        shared += other.own.data.nbytes if self.own.data is other.own.data else 0
        return self.bytes - int(shared)


class HostComplexSparse:
    """Sparse kernels of the host for complex matrices and vectors.

    Only the natural order of the rows is supported. Vectors have the type complex64 (fp32) or complex128 (fp64).
    """

    xp = arrays.xp
    stopwatch = HOST
    device = None
    parts = 2
    chunk_rows = 1

    def __init__(self, team: Team):
        self._team, self.threads, self._patterns = team, team.threads, HostSparseSetup(team)

    def computing(self) -> AbstractContextManager[None]:
        """Return a context with one thread of BLAS, which multiplies only pieces of vectors and columns of factors."""
        return one_thread()

    def stencil_rows(self, box: Box, weights: Sequence[float]) -> Rows:
        return _with_data(self._patterns.stencil_rows(box, weights))

    def rows_of(self, indptr: Any, indices: Any, data: Any, n: int, halo: int) -> Rows:
        columns, numbers = np.asarray(indices), np.asarray(data, np.complex128)
        positions = self._patterns.rows_of(indptr, columns, np.arange(columns.size, dtype=np.float64), n, halo)
        if not np.array_equal(positions.indices, columns):
            numbers = numbers[positions.data.astype(np.int64)]
        return positions._replace(data=numbers)

    def on_host(self, rows: Rows) -> Rows:
        return rows

    def is_symmetric_pattern(self, rows: Rows) -> bool:
        return self._patterns.is_symmetric_pattern(rows._replace(data=np.empty(0)))

    def with_symmetric_pattern(self, rows: Rows) -> Rows:
        positions = np.arange(1, rows.data.size + 1, dtype=np.float64)
        full = self._patterns.with_symmetric_pattern(rows._replace(data=positions))  # 0 for a new entry
        return full._replace(data=np.append(0.0, rows.data)[full.data.astype(np.int64)])

    def order(self, rows: Rows, kind: str) -> Order:
        if kind != "natural":
            raise UsageError(f'complex matrices support only the natural order, not {kind!r}; use smoother="natural"')
        return self._patterns.order(rows, kind)

    def rounding(self, rows: Rows, precision: str) -> float:
        if precision not in TYPES:
            return np.inf
        a = rows.data[rows.data != 0.0].view(np.float64)
        a = a[a != 0.0]
        with np.errstate(all="ignore"):
            near = a.astype(np.float32 if precision == "fp32" else np.float64).astype(np.float64)
            errors = np.where(np.isfinite(near), np.abs(near - a) / np.abs(a), np.inf)
        return float(errors.max(initial=0.0))

    def store(
        self, rows: Rows, order: Order, values: str, vectors: str, storage: str, like: ComplexMatrix | None = None
    ) -> ComplexMatrix:
        """Return the matrix in compressed rows, which is the only storage for complex numbers."""
        own, beyond = _split(rows, swept=order.row_by_row) if like is None else (like.own, like.beyond)
        inside = rows.indices < rows.n
        with np.errstate(all="ignore"):
            shared = like is not None and like.values == values
            data = (
                own.data
                if shared
                else (rows.data[inside] if rows.halo else rows.data).astype(TYPES[values], copy=False)
            )
            inverse = _inverse_diagonal(rows).astype(TYPES[vectors])
            if beyond is not None:
                beyond = (*beyond[:2], rows.data[~inside].astype(TYPES[vectors]))
        return ComplexMatrix(rows.n, rows.halo, values, vectors, own._replace(data=data, inverse=inverse), beyond)

    def row_sums(self, rows: Rows, order: Order) -> Array:
        sums = np.zeros(rows.n, np.complex128)
        np.add.at(sums, _lines(rows.indptr), rows.data)
        return sums[order.new_to_old]

    def halo_vector(self, A: ComplexMatrix) -> Array:
        return np.zeros(A.n + A.halo, TYPES[A.vectors])

    def gather(self, x: Array, rows: Array, out: Array) -> None:
        np.take(x, rows, out=out)

    def scatter_add(self, x: Array, rows: Array, y: Array) -> None:
        x[rows] += y

    @quiet
    def dot(self, x: Array, y: Array) -> float:
        """Return the real part of Σ conj(x_i) y_i, which is ||x||² if y is x."""
        pieces = (np.vdot(x[part], y[part]).real for part in _pieces(x.size))
        return float(sum(pieces, np.float64(0.0)))

    @quiet
    def scale(self, y: Array, factor: complex, x: Array) -> None:
        np.multiply(x, factor, out=y, casting="same_kind")

    @quiet
    def add_scaled(self, y: Array, factor: complex, x: Array) -> None:
        y += y.dtype.type(factor) * x

    @quiet
    def scale_and_add(self, y: Array, factor: complex, x: Array) -> None:
        y *= y.dtype.type(factor)
        y += x

    @quiet
    def subtract_from(self, y: Array, b: Array) -> float:
        np.subtract(b, y, out=y)
        return self.dot(y, y)

    def basis(self, n: int, count: int, precision: str) -> Array:
        return np.zeros((count, n), TYPES[precision])

    def project(self, Q: Array, k: int, w: Array) -> Array:
        """Return the products Σ_i conj(q_ji) w_i with the first k vectors of Q."""
        return self._subtracted(Q, k, w, None)

    def subtract_and_project(self, Q: Array, k: int, w: Array, h: Array) -> Array:
        return self._subtracted(Q, k, w, h)

    @quiet
    def subtract_and_square(self, Q: Array, k: int, w: Array, h: Array) -> float:
        factors = h.astype(w.dtype)
        for part in _pieces(w.size):
            w[part] -= factors @ Q[:k, part]
        return self.dot(w, w)

    @quiet
    def _subtracted(self, Q: Array, k: int, w: Array, h: Array | None) -> Array:
        """Compute w -= Q h unless h is None, and return Q^H w, with one read of Q."""
        products, factors = np.zeros(k, np.complex128), None if h is None else h.astype(w.dtype)
        for part in _pieces(w.size):
            if factors is not None:
                w[part] -= factors @ Q[:k, part]
            products += Q[:k, part] @ np.conj(w[part])
        return np.conj(products)

    @quiet
    def combine(self, Q: Array, y: Sequence[complex], out: Array) -> None:
        factors = np.array(y, Q.dtype)
        for part in _pieces(out.size):
            out[part] = factors @ Q[: len(y), part]

    def sweep_from_zero(
        self, A: ComplexMatrix, b: Array, x: Array, *, keep: Array | None = None, part: Part = Part.ALL
    ) -> None:
        if _is_swept(A, part):
            complex_rows.sweep_lower(A.own, b, x, x[:0] if keep is None else keep)

    def sweep_forward(
        self, A: ComplexMatrix, b: Array, x: Array, *, keep: Array | None = None, part: Part = Part.ALL
    ) -> None:
        if _is_swept(A, part):
            remainder = b
            if A.beyond is not None:
                remainder = np.zeros_like(b)
                self._multiply(A.beyond, x, remainder, add=True)
                np.subtract(b, remainder, out=remainder)
            complex_rows.sweep_all(A.own, remainder, x, x[:0] if keep is None else keep)

    def sweep_backward(self, A: ComplexMatrix, keep: Array, x: Array, *, part: Part = Part.ALL) -> None:
        if _is_swept(A, part):
            complex_rows.sweep_upper(A.own, keep, x)

    def matvec(self, y: Array, A: ComplexMatrix, x: Array, *, part: Part = Part.ALL) -> None:
        if part != Part.BOUNDARY:
            self._multiply(A.own[:3], x, y, add=False)
        if part != Part.INTERIOR and A.beyond is not None:
            self._multiply(A.beyond, x, y, add=True)

    def _multiply(self, rows: tuple[Array, Array, Array], x: Array, y: Array, *, add: bool) -> None:
        """Compute y = R x, or y += R x if `add`, on all threads or, if there are few entries, on the calling thread."""
        if rows[1].size < SERIAL_BELOW:
            complex_rows.multiply(0, 1, *rows, x, y, add)
        else:
            self._team.run(complex_rows.multiply, self.threads, *rows, x, y, add)

    def residual_at(
        self,
        A: ComplexMatrix,
        b: Array,
        x: Array,
        rows: Array,
        r: Array,
        *,
        swept: bool = False,
        keep: Array | None = None,
        part: Part = Part.ALL,
    ) -> None:
        """Compute r_k = (b - A x)[rows_k] from a complete product, also directly after a sweep."""
        product = np.zeros(A.n, x.dtype)
        self.matvec(product, A, x, part=part)
        r[:] = (r if part == Part.BOUNDARY else b[rows]) - product[rows]

    def read_values(self, A: ComplexMatrix) -> int:
        np.add.reduce(A.own.data)
        return int(A.own.data.nbytes)


def _pieces(n: int) -> Iterator[slice]:
    """Yield the slices of the pieces of a vector."""
    return (slice(first, first + PIECE) for first in range(0, n, PIECE))


def _is_swept(A: ComplexMatrix, part: Part) -> bool:
    """Return whether a sweep over a part updates the rows: if there is a halo, all rows belong to the boundary."""
    return part in (Part.ALL, Part.BOUNDARY if A.halo else Part.INTERIOR)


def _with_data(rows: Rows) -> Rows:
    return rows._replace(data=rows.data.astype(np.complex128))


def _lines(indptr: Array) -> Array:
    """Return the row of each entry."""
    return np.repeat(np.arange(indptr.size - 1), np.diff(indptr))


def _split(rows: Rows, *, swept: bool) -> tuple[ComplexRows, tuple[Array, Array, Array] | None]:
    """Return the patterns of the entries in this rank's columns, and of the entries of H, or None without a halo.

    Unless the rows are `swept` individually, all rows are one group, so that L and U are empty.
    """
    indptr, indices, beyond, none = rows.indptr, rows.indices, None, rows.data[:0]
    if rows.halo:
        outside = indices >= rows.n
        ends = np.append(0, np.cumsum(outside))[indptr]
        beyond = (ends, indices[outside], none)
        indptr, indices = indptr - ends, indices[~outside]
    if not swept:
        return ComplexRows(indptr, indices, none, indptr[:-1], indptr[1:], none), beyond
    line = _lines(indptr)
    lower, upper = (indptr[:-1] + np.bincount(line[low], minlength=rows.n) for low in (indices < line, indices <= line))
    return ComplexRows(indptr, indices, none, lower, upper, none), beyond


def _inverse_diagonal(rows: Rows) -> Array:
    """Return 1 / a_ii for each row, or zero if the row has no diagonal entry or a zero on the diagonal."""
    inverse, line = np.zeros(rows.n, np.complex128), _lines(rows.indptr)
    on = np.flatnonzero((rows.indices == line) & (rows.data != 0.0))
    inverse[line[on]] = 1.0 / rows.data[on]
    return inverse
