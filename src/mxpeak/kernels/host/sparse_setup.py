"""How the host makes sparse matrices: rows, orders, and chunks of rows in a storage (see `sparse_contract`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from mxpeak.kernels.contract.sparse import Order, Rows
from mxpeak.kernels.host import sparse_pack as pack
from mxpeak.kernels.host import sparse_rows as setup
from mxpeak.kernels.host.sparse_native import LANES
from mxpeak.kernels.host.team import Team
from mxpeak.layout.stencil import Box

Array = np.ndarray[Any, np.dtype[Any]]

#: The type of each format, and as what compiled code gets it.
FORMATS: dict[str, tuple[Any, Any]] = {
    "fp64": (np.dtype(np.float64), np.dtype(np.float64)),
    "fp32": (np.dtype(np.float32), np.dtype(np.float32)),
    "bf16": (np.dtype(ml_dtypes.bfloat16), np.dtype(np.int16)),
    "fp16": (np.dtype(np.float16), np.dtype(np.uint16)),
    "fp8": (np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(np.uint8)),
}
VECTORS: dict[str, np.dtype[Any]] = {"fp64": np.dtype(np.float64), "fp32": np.dtype(np.float32)}
STORAGES = {"ell": pack.ELL, "sell": pack.SELL, "packed": pack.PACKED}
MISTAKES = {
    0: "", 1: "a column outside of the matrix", 2: "an entry that is not finite", 3: "no entries",
    4: "no diagonal entry", 5: "a zero on the diagonal", 6: "two entries in one column",
}  # fmt: skip
#: Entries that are rounded at a time, so that no second array as large as the matrix comes to be.
PIECE = 2**22
#: Rows of a window, at least: what a step has to do is worth a barrier.
WINDOW = 2**16
#: Bytes of a cache line.
LINE = 64


@dataclass(frozen=True, slots=True)
class Pattern:
    """Where a matrix has entries, as `sparse_pack` tells it, and in which order sweeps go through the chunks.

    every           the chunks in the order of a sweep, and where its steps begin, which threads take together
    early, late     the same of those that need nothing of other ranks, and of the others
    rows_in_turn    the chunks by window, for whatever may take them in any order
    """

    storage: str
    table: Array
    bases: Array
    near: Array
    far: Array
    every: tuple[Array, Array]
    early: tuple[Array, Array]
    late: tuple[Array, Array]
    rows_in_turn: Array
    outside_rows: Array
    outside_first: Array
    outside_columns: Array

    @property
    def bytes(self) -> int:
        """Of all that tells columns."""
        return int(sum(array.nbytes for array in (self.table, self.bases, self.near, self.far)))

    @property
    def arrays(self) -> tuple[Array, ...]:
        """As the sweeps take them."""
        return self.table, self.bases, self.near, self.far


@dataclass(slots=True, repr=False)
class HostMatrix:
    """A matrix of this rank, stored: see `sparse_contract.Stored`."""

    n: int
    halo: int
    nnz: int
    values: str
    vectors: str
    pattern: Pattern
    entries: Array
    diagonal: Array
    outside: Array
    coarse: list[tuple[Array, Array, Array, Array]] = field(default_factory=list)

    @property
    def storage(self) -> str:
        """How its columns are told."""
        return self.pattern.storage

    @property
    def bytes(self) -> int:
        """Of everything."""
        pattern = self.pattern
        others = (self.entries, self.diagonal, self.outside, pattern.outside_columns, pattern.outside_first)
        return pattern.bytes + int(sum(array.nbytes for array in others))

    @property
    def index_bytes(self) -> int:
        """Of what tells the columns."""
        return self.pattern.bytes

    def bytes_beside(self, other: HostMatrix) -> int:
        """What it takes beside another form, with which it may share columns and values."""
        shared = other.pattern.bytes + other.entries.nbytes if self.entries is other.entries else 0
        return self.bytes - shared

    @property
    def foreign(self) -> int:
        """Entries of H."""
        return int(self.outside.size)

    @property
    def lower(self) -> int:
        """Values stored of L."""
        return LANES * int(self.pattern.table[:, pack.L_PART : pack.L_PART + 3].sum(dtype=np.int64))

    @property
    def upper(self) -> int:
        """Values stored of U."""
        return LANES * int(self.pattern.table[:, pack.U_PART : pack.U_PART + 3].sum(dtype=np.int64))


class SparseSetup:
    """All that happens before a solve, on the threads of a team."""

    def __init__(self, team: Team):
        self._team, self.threads = team, team.threads

    def _run(self, function: Any, *args: Any) -> None:
        self._team.run(function, self.threads, *args)

    def stencil_rows(self, box: Box, weights: Sequence[float]) -> Rows:
        """See `kernels.sparse_contract`."""
        sizes = np.array([*box.shape, *box.global_shape], np.int64)
        first = np.array(box.origin, np.int64)
        indptr = np.zeros(box.rows + 1, np.int64)
        self._run(setup.stencil_counts, sizes, first, indptr)
        np.cumsum(indptr, out=indptr)
        halo = np.zeros((27, 6), np.int64)
        for neighbour in box.neighbours():
            dx, dy, dz = neighbour.direction
            width, height, _ = neighbour.shape
            halo[dx + 1 + 3 * (dy + 1) + 9 * (dz + 1)] = (
                neighbour.recv_offset, *neighbour.first_received, width, height
            )  # fmt: skip
        indices, data = np.empty(indptr[-1], np.int32), np.empty(indptr[-1])
        self._run(setup.stencil_rows, sizes, first, halo, np.array(weights, float), indptr, indices, data)
        return Rows(box.rows, box.halo, indptr, indices, data)

    def rows_of(self, indptr: Any, indices: Any, data: Any, n: int, halo: int) -> Rows:
        """See `kernels.sparse_contract`."""
        start = np.ascontiguousarray(indptr, np.int64)
        column, value = np.ascontiguousarray(indices, np.int32), np.ascontiguousarray(data, np.float64)
        row = np.repeat(np.arange(n, dtype=np.int32), np.diff(start))
        if ((np.diff(column) < 0) & (row[1:] == row[:-1])).any():
            ascending = np.lexsort((column, row))
            column, value = column[ascending], value[ascending]
        return Rows(n, halo, start, column, value)

    def check(self, rows: Rows) -> tuple[str, int]:
        """See `kernels.sparse_contract`."""
        found = np.zeros(2, np.int64)
        setup.check_rows(rows.indptr, rows.indices, rows.data, rows.n, rows.n + rows.halo, found)
        return MISTAKES[int(found[0])], int(found[1]) if found[0] else -1

    def is_symmetric_pattern(self, rows: Rows) -> bool:
        """See `kernels.sparse_contract`."""
        found = np.zeros(self.threads, np.int64)
        self._run(setup.pattern_is_symmetric, rows.indptr, rows.indices, rows.n, found)
        return not found.any()

    def with_symmetric_pattern(self, rows: Rows) -> Rows:
        """See `kernels.sparse_contract`."""
        i = np.repeat(np.arange(rows.n), np.diff(rows.indptr))
        local = rows.indices < rows.n
        row = np.concatenate([i, rows.indices[local]])
        column = np.concatenate([rows.indices, i[local]])
        value = np.concatenate([rows.data, np.zeros(int(local.sum()))])
        order = np.lexsort((np.arange(row.size), column, row))  # an entry before the zero that is put beside it
        row, column, value = row[order], column[order], value[order]
        first = np.ones(row.size, bool)
        first[1:] = (row[1:] != row[:-1]) | (column[1:] != column[:-1])
        indptr = np.zeros(rows.n + 1, np.int64)
        np.cumsum(np.bincount(row[first], minlength=rows.n), out=indptr[1:])
        return self.rows_of(indptr, column[first], value[first], rows.n, rows.halo)

    def order(self, rows: Rows, kind: str) -> Order:
        """See `kernels.sparse_contract`."""
        group = np.zeros(rows.n, np.int32)
        if kind == "jpl":
            groups = self._jpl(rows, group)
        elif rows.n:
            compute = setup.greedy_colours if kind == "greedy" else setup.levels
            groups = compute(rows.indptr, rows.indices, rows.n, group)
        else:
            groups = 0
        places, inverse = np.empty(rows.n, np.int32), np.empty(rows.n, np.int32)
        starts = np.zeros(groups + 1, np.int64)
        setup.group_rows(group, groups, places, starts)
        inverse[places] = np.arange(rows.n, dtype=np.int32)
        return Order(places, inverse, starts, kind)

    def _jpl(self, rows: Rows, colour: Array) -> int:
        colour[:] = -1
        longest = int(np.diff(rows.indptr).max(initial=0))
        left = np.ones(self.threads, np.int64)
        while rows.n and left.any():
            before = colour.copy()
            self._run(setup.jpl_round, rows.indptr, rows.indices, rows.n, longest, colour, before, left)
        return int(colour.max(initial=-1)) + 1

    def rounding(self, rows: Rows, precision: str) -> float:
        """See `kernels.sparse_contract`."""
        worst = np.zeros(self.threads)
        for k in range(0, rows.data.size, PIECE):
            a = rows.data[k : k + PIECE]
            with np.errstate(all="ignore"):
                near = self._narrowed(a, precision).view(FORMATS[precision][0])
            self._run(setup.largest_error, a, near.astype(np.float64), worst)
        return float(worst.max())

    def store(
        self, rows: Rows, order: Order, values: str, vectors: str, storage: str, like: HostMatrix | None = None
    ) -> HostMatrix:
        """See `kernels.sparse_contract`."""
        if like is not None and like.pattern.storage == storage and like.values in (values, "fp64"):
            pattern = like.pattern
            entries = like.entries if like.values == values else self._narrowed(like.entries, values)
        else:
            pattern, entries = self._packed(rows, order, values, storage)
        real = VECTORS[vectors]
        diagonal = np.empty(rows.n, real)
        self._run(pack.diagonal_of, order.places, rows.indptr, rows.indices, rows.data, diagonal)
        outside = np.empty(pattern.outside_columns.size, real)
        pack.outside_entries(
            order.places, rows.indptr, rows.indices, rows.data, rows.n, pattern.outside_rows, pattern.outside_first,
            pattern.outside_columns, outside,
        )  # fmt: skip
        nnz = int(rows.indptr[-1])
        return HostMatrix(rows.n, rows.halo, nnz, values, vectors, pattern, entries, diagonal, outside)

    def _narrowed(self, data: Array, precision: str) -> Array:
        """fp64 numbers in another format, rounded to nearest even, once, as compiled code takes them."""
        dtype, compiled = FORMATS[precision]
        out = aligned(data.size, compiled)
        if precision == "bf16":
            self._run(setup.to_bf16, data, out)
        else:
            out[:] = _rounded(data, dtype).view(compiled)
        return out

    def _packed(self, rows: Rows, order: Order, values: str, storage: str) -> tuple[Pattern, Array]:
        """Where the entries stand, and their values in that order."""
        chunk_row, chunk_end, chunk_group = self._chunks(rows, order, storage)
        start = order.starts[chunk_group]
        columns = rows.n + rows.halo
        table = np.zeros((chunk_row.size, pack.TABLE), np.int32)
        where = (order.places, order.inverse, rows.indptr, rows.indices)
        rule = STORAGES[storage]
        length = np.diff(rows.indptr)[order.places]
        longest = int(np.add.reduceat(length, chunk_row).max()) if chunk_row.size else 0
        self._run(pack.count_slots, *where, chunk_row, chunk_end, start, columns, rule, longest, table)
        if rule == pack.ELL:
            for part in (pack.L_PART + 2, pack.U_PART + 2):
                widest = np.zeros(order.groups, np.int32)
                np.maximum.at(widest, chunk_group, table[:, part])
                table[:, part] = widest[chunk_group]
        slots, nears, fars = self._number(table)
        bases, near = np.zeros(slots, np.int32), np.zeros(nears * LANES, np.uint16)
        far = np.zeros(fars * LANES, np.int32)
        entries = aligned(slots * LANES, FORMATS[values][1])
        data = self._narrowed(rows.data, values) if values != "fp64" else rows.data
        self._run(pack.fill_slots, *where, data, start, columns, rule, longest, table, bases, near, far, entries)
        surface = np.zeros(rows.n, np.bool_)
        self._run(setup.touches_halo, rows.indptr, rows.indices, rows.n, surface)
        outside_rows, outside_first, outside_columns = self._outside(rows, order, surface)
        late = np.zeros(chunk_row.size, np.bool_)
        if outside_rows.size:
            chunk_of = np.repeat(np.arange(chunk_row.size, dtype=np.int32), chunk_end - chunk_row)
            pack.mark_late(*where[:2], surface, *where[2:], chunk_row, chunk_end, chunk_of, late)
        window = self._windows(rows, order, chunk_row, chunk_end)
        pattern = Pattern(
            storage, table, bases, near, far, _steps(np.ones_like(late), chunk_group, window),
            _steps(~late, chunk_group, window), _steps(late, chunk_group, window),
            np.lexsort((chunk_group, window)), outside_rows, outside_first, outside_columns,
        )  # fmt: skip
        return pattern, entries

    def _windows(self, rows: Rows, order: Order, chunk_row: Array, chunk_end: Array) -> Array:
        """The window of each chunk: rows that entries connect lie in the same window or in neighbouring ones.

        Windows are cut along the natural order, as wide as the farthest two connected rows and a chunk are apart.
        """
        apart = np.zeros(self.threads, np.int64)
        self._run(setup.bandwidth, rows.indptr, rows.indices, rows.n, apart)
        first, last = order.places[chunk_row].astype(np.int64), order.places[chunk_end - 1]
        width = max(int(apart.max(initial=0)) + int((last - first).max(initial=0)), WINDOW)
        return first // width

    def _chunks(self, rows: Rows, order: Order, storage: str) -> tuple[Array, Array, Array]:
        """First row, end and group of every chunk."""
        room, counts = np.empty(rows.n, np.int64), np.zeros(order.groups, np.int64)
        where = (order.places, order.inverse, rows.indptr, rows.indices)
        self._run(pack.cut_rows, order.starts, *where, storage == "packed", room, counts)
        parts = [room[first : first + count] for first, count in zip(order.starts, counts)]
        chunk_row = np.concatenate([*parts, np.empty(0, np.int64)]).astype(np.int64)
        return chunk_row, np.append(chunk_row, rows.n)[1:], np.repeat(np.arange(order.groups), counts)

    def _number(self, table: Array) -> tuple[int, int, int]:
        """Where each chunk's slots begin; how many there are, how many near ones and how many far ones."""
        both = [table[:, pack.L_PART + k].astype(np.int64) + table[:, pack.U_PART + k] for k in range(3)]
        totals = []
        for column, counts in ((pack.SLOT, sum(both)), (pack.NEAR, both[1]), (pack.FAR, both[2])):
            ends = np.cumsum(counts)
            table[:, column] = ends - counts
            totals.append(int(ends[-1]) if ends.size else 0)
        return totals[0], totals[1], totals[2]

    def _outside(self, rows: Rows, order: Order, surface: Array) -> tuple[Array, Array, Array]:
        """The rows that have entries from other ranks, where those of each begin, and room for their columns."""
        found = np.empty(int(surface.sum()), np.int32)
        _, entries = pack.count_outside(order.places, surface, rows.indptr, rows.indices, rows.n, found)
        return found, np.zeros(found.size + 1, np.int64), np.zeros(entries, np.int32)

    def row_sums(self, rows: Rows, order: Order) -> Array:
        """See `kernels.sparse_contract`."""
        sums = np.empty(rows.n)
        self._run(pack.row_sums, order.places, rows.indptr, rows.data, sums)
        return sums

    def indices(self, values: Sequence[int]) -> Array:
        """See `kernels.sparse_contract`."""
        return np.array(values, np.int32)

    def reordered(self, order: Order, numbers: Array) -> Array:
        """See `kernels.sparse_contract`."""
        moved: Array = order.inverse[numbers]
        return moved

    def coarse_rows(self, order: Order, coarse: Order, box: Box) -> Array:
        """See `kernels.sparse_contract`."""
        half = box.coarser()
        k = coarse.places.astype(np.int64)
        x, y, z = k % half.nx, k // half.nx % half.ny, k // (half.nx * half.ny)
        fine: Array = order.inverse[(2 * z * box.ny + 2 * y) * box.nx + 2 * x]
        return fine


def aligned(size: int, dtype: Any) -> Array:
    """Zeros that begin with a cache line: vector loads then touch no second one."""
    itemsize = np.dtype(dtype).itemsize
    raw = np.zeros(size * itemsize + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + size * itemsize].view(dtype)


def _rounded(data: Array, dtype: Any) -> Array:
    """Values in a format, rounded to nearest even, once."""
    if data.dtype == dtype:
        return data
    out = np.empty(data.size, dtype)
    with np.errstate(all="ignore"):
        for k in range(0, data.size, PIECE):
            part = data[k : k + PIECE]
            out[k : k + PIECE] = _odd(part) if dtype.kind == "V" else part
    return out


def _odd(a: Array) -> Array:
    """fp64 numbers cut off to fp32, the last bit set where something was lost: rounded once more, they are right.

    ml_dtypes' formats are made of fp32, and two roundings to nearest are not one.
    """
    near = a.astype(np.float32)
    bits = near.view(np.int32)
    bits -= np.abs(near.astype(np.float64)) > np.abs(a)  # towards zero
    bits |= (near.astype(np.float64) != a) & np.isfinite(near)
    return near


def _steps(chosen: Array, group: Array, window: Array) -> tuple[Array, Array]:
    """The chosen chunks in the order of a sweep, and where each of its steps begins.

    Group g takes window w in stage w + g, after the earlier groups of that stage: so all earlier groups have been in
    windows w - 1, w and w + 1, none of the later ones has, and x stays in the cache from one group to the next.
    """
    chunks = np.flatnonzero(chosen)
    stage = window[chunks] + group[chunks]
    chunks = chunks[np.lexsort((group[chunks], stage))]
    stage = window[chunks] + group[chunks]
    begins = np.ones(chunks.size, bool)
    begins[1:] = (np.diff(stage) != 0) | (np.diff(group[chunks]) != 0)
    return chunks, np.append(np.flatnonzero(begins), chunks.size)
