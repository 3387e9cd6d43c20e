"""The reference kernels of sparse matrices: `kernels.sparse_contract`, row by row, as the formulas say.

Sums are taken in fp64 and rounded once to the vectors' type.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from mxpeak.kernels.contract.sparse import Order, Rows, Stored
from mxpeak.kernels.reference.rounding import TYPES, quiet, rounded
from mxpeak.layout.stencil import Box

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Entries:
    """Some of a row's entries: their columns and values."""

    columns: Array
    values: Array

    def times(self, x: Array) -> float:
        """Σ a_ij x_j in fp64."""
        return float(self.values @ x[self.columns].astype(np.float64))


@dataclass(frozen=True, slots=True)
class Row:
    """A row of L, D, U and H, its columns in the new numbers, those of H from 0 on."""

    lower: Entries
    diagonal: float
    upper: Entries
    outside: Entries


@dataclass(frozen=True, slots=True)
class ReferenceMatrix:
    """A matrix in rows, in the order of its groups; the values are fp64 numbers that the stored format has too."""

    n: int
    halo: int
    values: str
    vectors: str
    storage: str
    rows: tuple[Row, ...]

    @property
    def nnz(self) -> int:
        """Entries of all rows."""
        return self.n + self.lower + self.upper + self.foreign

    @property
    def foreign(self) -> int:
        """Entries of H."""
        return sum(len(row.outside.values) for row in self.rows)

    @property
    def lower(self) -> int:
        """Entries of L."""
        return sum(len(row.lower.values) for row in self.rows)

    @property
    def upper(self) -> int:
        """Entries of U."""
        return sum(len(row.upper.values) for row in self.rows)

    @property
    def index_bytes(self) -> int:
        """Of the columns."""
        return sum(part.columns.nbytes for row in self.rows for part in (row.lower, row.upper, row.outside))

    @property
    def bytes(self) -> int:
        """Of the columns and of the values, which are held in fp64."""
        return self.index_bytes + 8 * self.nnz

    def bytes_beside(self, other: Any) -> int:
        """What it takes beside another form of the same matrix: all, for nothing is shared."""
        return self.bytes


def entries_of(rows: Rows, i: int) -> list[tuple[int, float]]:
    """The columns and values of a row."""
    of_row = slice(rows.indptr[i], rows.indptr[i + 1])
    return list(zip(rows.indices[of_row].tolist(), rows.data[of_row].tolist()))


def neighbours(rows: Rows, i: int) -> list[int]:
    """The other local rows in whose columns row i has an entry."""
    return [j for j, _ in entries_of(rows, i) if j < rows.n and j != i]


def weight(i: int) -> int:
    """A number without order, the same of a row wherever it is asked for (splitmix64), and no other row's."""
    mask = 2**64 - 1
    z = (i + 1) * 0x9E3779B97F4A7C15 & mask
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
    return z ^ (z >> 31)


def colours(rows: Rows, sequence: Sequence[int]) -> list[int]:
    """Row after row, the least colour that no neighbour has yet (Saad, Iterative Methods, section 3.3.3)."""
    colour = [-1] * rows.n
    for i in sequence:
        taken = {colour[j] for j in neighbours(rows, i)}
        colour[i] = next(c for c in range(len(taken) + 1) if c not in taken)
    return colour


def levels(rows: Rows) -> list[int]:
    """One more than the highest level of a neighbour that comes before; 0 where there is none."""
    level: list[int] = []
    for i in range(rows.n):
        level.append(1 + max((level[j] for j in neighbours(rows, i) if j < i), default=-1))
    return level


def mistake(rows: Rows, i: int) -> str:
    """What is wrong with a row, "" if nothing is: the first of its entries that is wrong, then its diagonal."""
    seen: set[int] = set()
    for j, a in entries_of(rows, i):
        if not 0 <= j < rows.n + rows.halo:
            return "a column outside of the matrix"
        if not math.isfinite(a):
            return "an entry that is not finite"
        if j in seen:
            return "two entries in one column"
        seen.add(j)
    if not seen:
        return "no entries"
    if i not in seen:
        return "no diagonal entry"
    return "a zero on the diagonal" if dict(entries_of(rows, i))[i] == 0.0 else ""


def compressed(n: int, halo: int, rows: Sequence[Sequence[tuple[int, float]]]) -> Rows:
    """Rows of (column, value), each put in order of the columns."""
    ordered = [sorted(row, key=lambda entry: entry[0]) for row in rows]
    indptr = np.cumsum([0, *map(len, ordered)])
    indices = np.array([j for row in ordered for j, _ in row], np.int64)
    return Rows(n, halo, indptr, indices, np.array([a for row in ordered for _, a in row], np.float64))


class ReferenceSparse:
    """Definitions, not algorithms: slow, single-threaded, and easy to check by eye."""

    threads = 1

    # --- set-up

    def stencil_rows(self, box: Box, weights: Sequence[float]) -> Rows:
        """See `kernels.sparse_contract`."""
        column = {point: i for i, point in enumerate(_points((0, 0, 0), box.shape))}
        for neighbour in box.neighbours():
            first = box.rows + neighbour.recv_offset
            received = _points(neighbour.first_received, neighbour.shape)
            column |= {point: first + k for k, point in enumerate(received)}
        rows = []
        for x, y, z in _points((0, 0, 0), box.shape):
            around = {(x + dx, y + dy, z + dz): w for (dx, dy, dz), w in zip(_points((-1, -1, -1), (3, 3, 3)), weights)}
            rows.append([(column[point], w) for point, w in around.items() if point in column])
        return compressed(box.rows, box.halo, rows)

    def rows_of(self, indptr: Any, indices: Any, data: Any, n: int, halo: int) -> Rows:
        """See `kernels.sparse_contract`."""
        given = Rows(n, halo, np.array(indptr, np.int64), np.array(indices, np.int64), np.array(data, np.float64))
        return compressed(n, halo, [entries_of(given, i) for i in range(n)])

    def check(self, rows: Rows) -> tuple[str, int]:
        """See `kernels.sparse_contract`."""
        for i in range(rows.n):
            if found := mistake(rows, i):
                return found, i
        return "", -1

    def is_symmetric_pattern(self, rows: Rows) -> bool:
        """See `kernels.sparse_contract`."""
        pattern = {(i, j) for i in range(rows.n) for j in neighbours(rows, i)}
        return pattern == {(j, i) for i, j in pattern}

    def with_symmetric_pattern(self, rows: Rows) -> Rows:
        """See `kernels.sparse_contract`."""
        full = [dict(entries_of(rows, i)) for i in range(rows.n)]
        for i in range(rows.n):
            for j in neighbours(rows, i):
                full[j].setdefault(i, 0.0)
        return compressed(rows.n, rows.halo, [list(row.items()) for row in full])

    def order(self, rows: Rows, kind: str) -> Order:
        """See `kernels.sparse_contract`.

        Jones, Plassmann and Luby let a row choose once it outweighs all neighbours that have no colour.  So a row sees
        the colours of its heavier neighbours and of no others, and all of them might choose in turn, by weight.
        """
        natural = range(rows.n)
        if kind == "natural":
            group = levels(rows)
        else:
            group = colours(rows, sorted(natural, key=weight, reverse=True) if kind == "jpl" else natural)
        places = np.array(sorted(natural, key=lambda i: (group[i], i)), np.int64)
        groups, sizes = max(group, default=-1) + 1, Counter(group)
        starts = np.cumsum([0, *(sizes[g] for g in range(groups))])
        return Order(places, np.argsort(places), starts, kind)

    def rounding(self, rows: Rows, precision: str) -> float:
        """See `kernels.sparse_contract`."""
        a = rows.data[rows.data != 0.0]
        with quiet():
            nearest = rounded(a, precision)
            errors = np.where(np.isfinite(nearest), np.abs(nearest - a) / np.abs(a), np.inf)
        return float(errors.max(initial=0.0))

    def store(
        self, rows: Rows, order: Order, values: str, vectors: str, storage: str, like: Stored | None = None
    ) -> ReferenceMatrix:
        """See `kernels.sparse_contract`; whatever the storage, rows are kept as they are, and nothing is shared."""
        stored = tuple(_stored_row(rows, order, r, values, vectors) for r in range(rows.n))
        return ReferenceMatrix(rows.n, rows.halo, values, vectors, storage, stored)

    def row_sums(self, rows: Rows, order: Order) -> Array:
        """See `kernels.sparse_contract`."""
        return np.array([math.fsum(a for _, a in entries_of(rows, i)) for i in order.places], np.float64)

    def indices(self, values: Sequence[int]) -> Array:
        """See `kernels.sparse_contract`."""
        return np.array(values, np.int64)

    def reordered(self, order: Order, numbers: Array) -> Array:
        """See `kernels.sparse_contract`."""
        return np.array([order.inverse[number] for number in numbers], np.int64)

    def coarse_rows(self, order: Order, coarse: Order, box: Box) -> Array:
        """See `kernels.sparse_contract`."""
        points = list(_points((0, 0, 0), box.coarser().shape))
        doubled = [(2 * x, 2 * y, 2 * z) for x, y, z in (points[k] for k in coarse.places)]
        return self.reordered(order, self.indices([(z * box.ny + y) * box.nx + x for x, y, z in doubled]))

    # --- vectors

    def operand(self, A: Any) -> Array:
        """See `kernels.sparse_contract`."""
        return self.vector(A.n + A.halo, A.vectors)

    def vector(self, n: int, precision: str) -> Array:
        """See `kernels.sparse_contract`."""
        return np.zeros(n, TYPES[precision])

    def own(self, A: Any, x: Array) -> Array:
        """See `kernels.sparse_contract`."""
        return x[: A.n]

    def halo(self, A: Any, x: Array) -> Array:
        """See `kernels.sparse_contract`."""
        return x[A.n :]

    def assign(self, x: Array, values: Any) -> None:
        """See `kernels.sparse_contract`."""
        with quiet():
            x[:] = values

    def take(self, x: Array, places: Array, out: Array) -> None:
        """See `kernels.sparse_contract`."""
        for k, place in enumerate(places):
            out[k] = x[place]

    def add_at(self, x: Array, places: Array, y: Array) -> None:
        """See `kernels.sparse_contract`."""
        for k, place in enumerate(places):
            x[place] += y[k]

    def dot(self, x: Array, y: Array) -> float:
        """See `kernels.sparse_contract`."""
        with quiet():
            return float((_wide(x) * _wide(y)).sum())

    def scaled(self, x: Array, factor: float, out: Array) -> None:
        """See `kernels.sparse_contract`."""
        with quiet():
            out[:] = factor * _wide(x)

    def add_scaled(self, y: Array, factor: float, x: Array) -> None:
        """See `kernels.sparse_contract`."""
        with quiet():
            y[:] = _wide(y) + factor * _wide(x)

    def scale_and_add(self, y: Array, factor: float, x: Array) -> None:
        """See `kernels.sparse_contract`."""
        with quiet():
            y[:] = _wide(x) + factor * _wide(y)

    def subtract_from(self, b: Array, y: Array) -> float:
        """See `kernels.sparse_contract`."""
        with quiet():
            y[:] = _wide(b) - _wide(y)
        return self.dot(y, y)

    def distance(self, x: Array, value: float) -> float:
        """See `kernels.sparse_contract`."""
        with quiet():
            return float(np.abs(_wide(x) - value).max(initial=0.0))

    # --- bases

    def basis(self, n: int, most: int, precision: str) -> Array:
        """See `kernels.sparse_contract`."""
        return np.zeros((most, n), TYPES[precision])

    def member(self, Q: Array, k: int) -> Array:
        """See `kernels.sparse_contract`."""
        vector: Array = Q[k]
        return vector

    def project(self, Q: Array, k: int, w: Array) -> Array:
        """See `kernels.sparse_contract`."""
        return np.array([self.dot(Q[j], w) for j in range(k)], np.float64)

    def subtract_and_project(self, Q: Array, k: int, w: Array, h: Array) -> Array:
        """See `kernels.sparse_contract`."""
        self._subtract(Q, k, w, h)
        return self.project(Q, k, w)

    def subtract_and_square(self, Q: Array, k: int, w: Array, h: Array) -> float:
        """See `kernels.sparse_contract`."""
        self._subtract(Q, k, w, h)
        return self.dot(w, w)

    def _subtract(self, Q: Array, k: int, w: Array, h: Array) -> None:
        with quiet():
            w[:] = _wide(w) - _wide(h[:k]) @ _wide(Q[:k])

    def combine(self, Q: Array, y: Sequence[float], out: Array) -> None:
        """See `kernels.sparse_contract`."""
        with quiet():
            out[:] = np.array(y, np.float64) @ _wide(Q[: len(y)])

    # --- the matrix

    def relax(
        self, A: Any, b: Array, x: Array, *, late: bool | None = None, from_zero: bool = False,
        backward: bool = False, keep: Array | None = None,
    ) -> None:  # fmt: skip
        """See `kernels.sparse_contract`.

        Where there are other ranks no row is taken before all has come from them: late=False does nothing, late=True
        everything.  An x that is taken for zero is zero on them too: H is not read then.
        """
        waits = A.halo > 0 and not from_zero
        if late is not None and late is not waits:
            return
        with quiet():
            for r in reversed(range(A.n)) if backward else range(A.n):
                row = A.rows[r]
                before, after = (row.upper, row.lower) if backward else (row.lower, row.upper)
                if backward and keep is not None:
                    x[r] = (keep[r] - before.times(x)) / row.diagonal
                    continue
                left = float(b[r]) - before.times(x) - (0.0 if from_zero else row.outside.times(self.halo(A, x)))
                if keep is not None:
                    keep[r] = left
                x[r] = (left - (0.0 if from_zero else after.times(x))) / row.diagonal

    def multiply(self, A: Any, x: Array, y: Array, *, outside: bool | None = None) -> None:
        """See `kernels.sparse_contract`."""
        with quiet():
            for r, row in enumerate(A.rows):
                total = float(y[r]) if outside is True else _times_inside(row, x, r)
                y[r] = total + (0.0 if outside is False else row.outside.times(self.halo(A, x)))

    def residual_at(
        self, A: Any, b: Array, x: Array, rows: Array, r: Array, *, swept: bool, outside: bool | None = None
    ) -> None:
        """See `kernels.sparse_contract`."""
        with quiet():
            for k, i in enumerate(rows):
                row = A.rows[i]
                inside = -row.upper.times(x) if swept else float(b[i]) - _times_inside(row, x, i)
                total = float(r[k]) if outside is True else inside
                r[k] = total - (0.0 if outside is False else row.outside.times(self.halo(A, x)))

    def read_all(self, A: Any) -> int:
        """See `kernels.sparse_contract`."""
        parts = [part for row in A.rows for part in (row.lower, row.upper, row.outside)]
        return sum(part.values.copy().nbytes for part in parts)


def _points(first: tuple[int, int, int], shape: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    """The points of a box, x fastest."""
    (x0, y0, z0), (nx, ny, nz) = first, shape
    return [(x0 + x, y0 + y, z0 + z) for z, y, x in product(range(nz), range(ny), range(nx))]


def _stored_row(rows: Rows, order: Order, r: int, values: str, vectors: str) -> Row:
    """Row r of the new order; between rows of one group there are no entries, so L is what comes before the row."""
    i = order.places[r]
    entries = entries_of(rows, i)
    local = [(int(order.inverse[j]), a) for j, a in entries if j < rows.n and j != i]
    return Row(
        lower=_rounded_entries([(j, a) for j, a in local if j < r], values),
        diagonal=float(rounded(np.array(dict(entries)[i]), vectors)),
        upper=_rounded_entries([(j, a) for j, a in local if j > r], values),
        outside=_rounded_entries([(j - rows.n, a) for j, a in entries if j >= rows.n], vectors),
    )


def _rounded_entries(entries: Sequence[tuple[int, float]], values: str) -> Entries:
    columns = np.array([j for j, _ in entries], np.int64)
    with quiet():
        return Entries(columns, rounded(np.array([a for _, a in entries], np.float64), values))


def _times_inside(row: Row, x: Array, r: int) -> float:
    """(L + D + U) x of row r."""
    return row.lower.times(x) + row.diagonal * float(x[r]) + row.upper.times(x)


def _wide(x: Array) -> Array:
    return x.astype(np.float64)
