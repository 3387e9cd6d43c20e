"""Reference kernels of sparse matrices: `kernels.contract.sparse` row by row, from the formulas.

Sums are computed in fp64 and rounded once to the type of the vectors.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np

from mxpeak.kernels import arrays
from mxpeak.kernels.contract.sparse import Order, Part, Rows, Stored
from mxpeak.kernels.reference.rounding import TYPES, Array, quiet, rounded
from mxpeak.layout.stencil import Box
from mxpeak.precision import PRECISIONS
from mxpeak.spans import HOST

#: The types of the vectors of a basis, and of those that a matrix multiplies.
BASIS_TYPES = {**TYPES, "bf16": ml_dtypes.bfloat16, "fp16": np.float16}


@dataclass(frozen=True, slots=True)
class RowEntries:
    """The columns and values of a row's entries in L, U or H."""

    columns: Array
    values: Array

    def times(self, x: Array) -> float:
        """Return Σ a_ij x_j over these entries in fp64."""
        return float(self.values @ x[self.columns].astype(np.float64, copy=False))


@dataclass(frozen=True, slots=True)
class ReferenceRow:
    """One row of L, D, U and H, with columns in the new order; columns of H count from the first halo entry."""

    lower: RowEntries
    diagonal: float
    upper: RowEntries
    halo: RowEntries


@dataclass(frozen=True)
class ReferenceMatrix:
    """A sparse matrix as a list of rows in the new order, with fp64 values that are rounded to the stored format."""

    n: int
    halo: int
    values: str
    vectors: str
    storage: str
    rows: tuple[ReferenceRow, ...]
    rows_at_a_time: int = 1

    @cached_property
    def nnz(self) -> int:
        """Return the number of entries of all rows."""
        return self.n + self.lower + self.upper + self.halo_nnz

    @cached_property
    def halo_nnz(self) -> int:
        """Return the number of entries of H."""
        return sum(len(row.halo.values) for row in self.rows)

    @cached_property
    def lower(self) -> int:
        """Return the number of entries of L."""
        return sum(len(row.lower.values) for row in self.rows)

    @cached_property
    def upper(self) -> int:
        """Return the number of entries of U."""
        return sum(len(row.upper.values) for row in self.rows)

    @property
    def index_bytes(self) -> int:
        """Return the size of the column indices in bytes."""
        return sum(part.columns.nbytes for row in self.rows for part in (row.lower, row.upper, row.halo))

    @property
    def bytes(self) -> int:
        """Return the size of the column indices and of the fp64 values in bytes."""
        return self.index_bytes + 8 * self.nnz

    def extra_bytes(self, other: Any) -> int:
        """Return the size of this matrix in bytes, because the two matrices share no arrays."""
        return self.bytes


def entries_of(rows: Rows, i: int) -> list[tuple[int, float]]:
    """Return the entries of row i as (column, value) pairs."""
    of_row = slice(rows.indptr[i], rows.indptr[i + 1])
    return list(zip(rows.indices[of_row].tolist(), rows.data[of_row].tolist()))


def neighbors(rows: Rows, i: int) -> list[int]:
    """Return the columns of row i that are on this rank, without the diagonal."""
    return [j for j, _ in entries_of(rows, i) if j < rows.n and j != i]


def weight(i: int) -> int:
    """Return a pseudorandom 64-bit weight of row i (splitmix64); distinct rows have distinct weights."""
    mask = 2**64 - 1
    z = (i + 1) * 0x9E3779B97F4A7C15 & mask
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
    return z ^ (z >> 31)


def greedy_colors(rows: Rows, sequence: Sequence[int]) -> list[int]:
    """Color the rows in this sequence, and return the smallest color per row that no colored neighbor has.

    The algorithm is from Saad, Iterative Methods, section 3.3.3.
    """
    color = [-1] * rows.n
    for i in sequence:
        used = {color[j] for j in neighbors(rows, i)}
        color[i] = next(c for c in range(len(used) + 1) if c not in used)
    return color


def levels(rows: Rows) -> list[int]:
    """Return the level of each row: 1 + the highest level of its earlier neighbors, or 0 without earlier neighbors."""
    level: list[int] = []
    for i in range(rows.n):
        level.append(1 + max((level[j] for j in neighbors(rows, i) if j < i), default=-1))
    return level


def compressed(n: int, halo: int, rows: Sequence[Sequence[tuple[int, float]]]) -> Rows:
    """Return compressed rows made from lists of (column, value) pairs; the entries of a row are sorted by column."""
    ordered = [sorted(row, key=lambda entry: entry[0]) for row in rows]
    indptr = np.cumsum([0, *map(len, ordered)])
    indices = np.array([j for row in ordered for j, _ in row], np.int64)
    return Rows(n, halo, indptr, indices, np.array([a for row in ordered for _, a in row], np.float64))


class ReferenceSparse:
    """Reference implementation of `SparseKernels`: slow, single-threaded, and easy to verify."""

    threads = 1
    xp = arrays.xp
    stopwatch = HOST
    device = None
    parts = 1
    chunk_rows = 1

    def computing(self) -> nullcontext[None]:
        return nullcontext()

    def stencil_rows(self, box: Box, weights: Sequence[float]) -> Rows:
        column = {point: i for i, point in enumerate(_points((0, 0, 0), box.shape))}
        for neighbor in box.neighbors():
            first = box.rows + neighbor.recv_offset
            received = _points(neighbor.first_received, neighbor.shape)
            column |= {point: first + k for k, point in enumerate(received)}
        rows = []
        for x, y, z in _points((0, 0, 0), box.shape):
            around = {(x + dx, y + dy, z + dz): w for (dx, dy, dz), w in zip(_points((-1, -1, -1), (3, 3, 3)), weights)}
            rows.append([(column[point], w) for point, w in around.items() if point in column])
        return compressed(box.rows, box.halo, rows)

    def rows_of(self, indptr: Any, indices: Any, data: Any, n: int, halo: int) -> Rows:
        rows = Rows(n, halo, np.array(indptr, np.int64), np.array(indices, np.int64), np.array(data, np.float64))
        return compressed(n, halo, [entries_of(rows, i) for i in range(n)])

    def on_host(self, rows: Rows) -> Rows:
        return rows

    def is_symmetric_pattern(self, rows: Rows) -> bool:
        pattern = {(i, j) for i in range(rows.n) for j in neighbors(rows, i)}
        return pattern == {(j, i) for i, j in pattern}

    def with_symmetric_pattern(self, rows: Rows) -> Rows:
        full = [dict(entries_of(rows, i)) for i in range(rows.n)]
        for i in range(rows.n):
            for j in neighbors(rows, i):
                full[j].setdefault(i, 0.0)
        return compressed(rows.n, rows.halo, [list(row.items()) for row in full])

    def order(self, rows: Rows, kind: str) -> Order:
        """Return the `natural`, `surface_last`, `levels`, `greedy` or `jpl` order of the rows.

        In the algorithm of Jones, Plassmann and Luby, a row selects its color once its weight exceeds those of all
        uncolored neighbors. At that time, only neighbors with larger weights have colors. Therefore, coloring the rows
        sequentially by weight gives the same result.
        """
        natural = range(rows.n)
        if kind == "natural":
            group = list(natural)
        elif kind == "surface_last":
            surface = [any(j >= rows.n for j, _ in entries_of(rows, i)) for i in natural]
            group = np.argsort(sorted(natural, key=lambda i: (surface[i], i))).tolist()
        elif kind == "levels":
            group = levels(rows)
        else:
            group = greedy_colors(rows, sorted(natural, key=weight, reverse=True) if kind == "jpl" else natural)
        new_to_old = np.array(sorted(natural, key=lambda i: (group[i], i)), np.int64)
        groups, sizes = max(group, default=-1) + 1, Counter(group)
        starts = np.cumsum([0, *(sizes[g] for g in range(groups))])
        return Order(new_to_old, np.argsort(new_to_old), starts, kind)

    def rounding(self, rows: Rows, precision: str) -> float:
        a = rows.data[rows.data != 0.0]
        with quiet():
            nearest = rounded(a, precision)
            errors = np.where(np.isfinite(nearest), np.abs(nearest - a) / np.abs(a), np.inf)
        return float(errors.max(initial=0.0))

    def store(
        self, rows: Rows, order: Order, values: str, vectors: str, storage: str, like: Stored | None = None
    ) -> ReferenceMatrix:
        """Return the matrix as a list of rows for every storage format. No arrays are shared with `like`."""
        with quiet():
            narrow, wide = rounded(rows.data, values), rounded(rows.data, PRECISIONS[vectors].accumulate)
        stored = tuple(_stored_row(rows, order, r, narrow, wide) for r in range(rows.n))
        return ReferenceMatrix(rows.n, rows.halo, values, vectors, storage, stored)

    def row_sums(self, rows: Rows, order: Order) -> Array:
        return np.array([math.fsum(a for _, a in entries_of(rows, i)) for i in order.new_to_old], np.float64)

    def halo_vector(self, A: Any) -> Array:
        return np.zeros(A.n + A.halo, BASIS_TYPES[A.vectors])

    def gather(self, x: Array, rows: Array, out: Array) -> None:
        for k, row in enumerate(rows):
            out[k] = x[row]

    def scatter_add(self, x: Array, rows: Array, y: Array) -> None:
        for k, row in enumerate(rows):
            x[row] += y[k]

    def dot(self, x: Array, y: Array) -> float:
        with quiet():
            return float((_wide(x) * _wide(y)).sum())

    def scale(self, y: Array, factor: float, x: Array) -> None:
        with quiet():
            y[:] = _rounded_once(factor * _wide(x), y.dtype)

    def add_scaled(self, y: Array, factor: float, x: Array) -> None:
        with quiet():
            y[:] = _wide(y) + factor * _wide(x)

    def scale_and_add(self, y: Array, factor: float, x: Array) -> None:
        with quiet():
            y[:] = _wide(x) + factor * _wide(y)

    def subtract_from(self, y: Array, b: Array) -> float:
        with quiet():
            y[:] = _wide(b) - _wide(y)
        return self.dot(y, y)

    def basis(self, n: int, count: int, precision: str) -> Array:
        return np.zeros((count, n), BASIS_TYPES[precision])

    def project(self, Q: Array, k: int, w: Array) -> Array:
        return np.array([self.dot(Q[j], w) for j in range(k)], np.float64)

    def subtract_and_project(self, Q: Array, k: int, w: Array, h: Array) -> Array:
        self._subtract(Q, k, w, h)
        return self.project(Q, k, w)

    def subtract_and_square(self, Q: Array, k: int, w: Array, h: Array) -> float:
        self._subtract(Q, k, w, h)
        return self.dot(w, w)

    def _subtract(self, Q: Array, k: int, w: Array, h: Array) -> None:
        with quiet():
            w[:] = _wide(w) - _wide(h[:k]) @ _wide(Q[:k])

    def combine(self, Q: Array, y: Sequence[float], out: Array) -> None:
        with quiet():
            out[:] = np.array(y, np.float64) @ _wide(Q[: len(y)])

    # If the matrix has a halo, every row counts as a boundary row, so BOUNDARY sweeps all rows and INTERIOR none.

    def sweep_from_zero(self, A: Any, b: Array, x: Array, *, keep: Array | None = None, part: Part = Part.ALL) -> None:
        with quiet():
            for r in _swept_rows(A, part):
                row = A.rows[r]
                remainder = float(b[r]) - row.lower.times(x)
                if keep is not None:
                    keep[r] = remainder
                x[r] = remainder / row.diagonal

    def sweep_forward(self, A: Any, b: Array, x: Array, *, keep: Array | None = None, part: Part = Part.ALL) -> None:
        with quiet():
            for r in _swept_rows(A, part):
                row = A.rows[r]
                remainder = float(b[r]) - row.lower.times(x) - row.halo.times(x[A.n :])
                if keep is not None:
                    keep[r] = remainder
                x[r] = (remainder - row.upper.times(x)) / row.diagonal

    def sweep_backward(self, A: Any, keep: Array, x: Array, *, part: Part = Part.ALL) -> None:
        with quiet():
            for r in reversed(_swept_rows(A, part)):
                row = A.rows[r]
                x[r] = (keep[r] - row.upper.times(x)) / row.diagonal

    def matvec(self, y: Array, A: Any, x: Array, *, part: Part = Part.ALL) -> None:
        with quiet():
            for r, row in enumerate(A.rows):
                total = float(y[r]) if part == Part.BOUNDARY else _times_interior(row, x, r)
                y[r] = total + (0.0 if part == Part.INTERIOR else row.halo.times(x[A.n :]))

    def residual_at(
        self,
        A: Any,
        b: Array,
        x: Array,
        rows: Array,
        r: Array,
        *,
        swept: bool = False,
        keep: Array | None = None,
        part: Part = Part.ALL,
    ) -> None:
        with quiet():
            for k, i in enumerate(rows):
                row = A.rows[i]
                if keep is not None:
                    interior = float(b[i]) - float(keep[i]) - row.lower.times(x)
                else:
                    interior = -row.upper.times(x) if swept else float(b[i]) - _times_interior(row, x, i)
                total = float(r[k]) if part == Part.BOUNDARY else interior
                r[k] = total - (0.0 if part == Part.INTERIOR else row.halo.times(x[A.n :]))

    def read_values(self, A: Any) -> int:
        parts = [part for row in A.rows for part in (row.lower, row.upper, row.halo)]
        return sum(part.values.copy().nbytes for part in parts)


def _points(first: tuple[int, int, int], shape: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    """Return the coordinates (x, y, z) of the points of a box, with x fastest."""
    (x0, y0, z0), (nx, ny, nz) = first, shape
    return [(x0 + x, y0 + y, z0 + z) for z, y, x in product(range(nz), range(ny), range(nx))]


def _stored_row(rows: Rows, order: Order, r: int, narrow: Array, wide: Array) -> ReferenceRow:
    """Return row r of the new order, with the `narrow` values in L and U and the `wide` values in D and H.

    Rows of one group have no entries between them, so L consists of the entries in columns before r.
    """
    i = order.new_to_old[r]
    of_row = slice(rows.indptr[i], rows.indptr[i + 1])
    columns, wide = rows.indices[of_row].astype(np.int64), wide[of_row]
    own, beyond = columns < rows.n, columns >= rows.n
    new, narrow = order.old_to_new[columns[own]], narrow[of_row][own]
    return ReferenceRow(
        lower=RowEntries(new[new < r], narrow[new < r]),
        diagonal=float(wide[columns == i][0]),
        upper=RowEntries(new[new > r], narrow[new > r]),
        halo=RowEntries(columns[beyond] - rows.n, wide[beyond]),
    )


def _swept_rows(A: Any, part: Part) -> range:
    """Return the rows that a sweep over a part updates: all rows or none."""
    return range(A.n if part in (Part.ALL, Part.BOUNDARY if A.halo else Part.INTERIOR) else 0)


def _times_interior(row: ReferenceRow, x: Array, r: int) -> float:
    """Return component r of (L + D + U) x."""
    return row.lower.times(x) + row.diagonal * float(x[r]) + row.upper.times(x)


def _wide(x: Array) -> Array:
    return x.astype(np.float64)


def _rounded_once(x: Array, dtype: np.dtype[Any]) -> Array:
    """Return x rounded to a type, still in fp64; a conversion of arrays by NumPy may round to fp32 first."""
    names = [name for name, type_ in BASIS_TYPES.items() if dtype == type_]
    return rounded(x, names[0])
