"""How the host makes sparse matrices: rows, orders, and chunks of rows in a storage (see `kernels.contract.sparse`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from mxpeak.kernels.contract.sparse import Order, Rows
from mxpeak.kernels.host.engine.team import Team
from mxpeak.kernels.host.sparse import chunk_format as pack
from mxpeak.kernels.host.sparse import gs_csr as natural
from mxpeak.kernels.host.sparse import rows as setup
from mxpeak.kernels.host.sparse import slot_format
from mxpeak.kernels.host.sparse.autotune import rows_at_a_time, trial
from mxpeak.kernels.host.sparse.by_row import shares
from mxpeak.kernels.host.sparse.matrix import (
    FORMATS,
    PIECE,
    VECTORS,
    Array,
    HostMatrix,
    Pattern,
    RowPattern,
    SuccessivePattern,
    aligned,
    as_bits,
    rounded,
)
from mxpeak.kernels.host.sparse.slot_sums import LANES, SUCCESSIVE
from mxpeak.layout.stencil import Box

#: Rows are taken several at a time where so many times the entries are stored then, at most.
MOST_FILLED = 1.25
#: Rows of a window, at least: what a step has to do is worth a barrier.
WINDOW = 2**16


class SparseSetup:
    """All that happens before a solve, on the threads of a team."""

    def __init__(self, team: Team, rows_at_a_time: int | None = None):
        self._team, self.threads, self._at_a_time = team, team.threads, rows_at_a_time

    def _run(self, function: Any, *args: Any) -> None:
        self._team.run(function, self.threads, *args)

    def stencil_rows(self, box: Box, weights: Sequence[float]) -> Rows:
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
                neighbour.recv_offset,
                *neighbour.first_received,
                width,
                height,
            )
        indices, data = np.empty(indptr[-1], np.int32), np.empty(indptr[-1])
        self._run(setup.stencil_rows, sizes, first, halo, np.array(weights, float), indptr, indices, data)
        return Rows(box.rows, box.halo, indptr, indices, data)

    def rows_of(self, indptr: Any, indices: Any, data: Any, n: int, halo: int) -> Rows:
        start = np.ascontiguousarray(indptr, np.int64)
        column, value = np.ascontiguousarray(indices, np.int32), np.ascontiguousarray(data, np.float64)
        found = np.zeros(self.threads, np.int64)
        self._run(setup.columns_descend, start, column, n, found)
        if found.any():
            from scipy.sparse import csr_array  # which takes a tenth of a second to load

            sorted_rows = csr_array((value.copy(), column.copy(), start), shape=(n, n + halo))
            sorted_rows.sort_indices()
            column, value = sorted_rows.indices.astype(np.int32, copy=False), sorted_rows.data
        return Rows(n, halo, start, column, value)

    def on_host(self, rows: Rows) -> Rows:
        return rows

    def is_symmetric_pattern(self, rows: Rows) -> bool:
        found = np.zeros(self.threads, np.int64)
        self._run(setup.pattern_is_symmetric, rows.indptr, rows.indices, rows.n, found)
        return not found.any()

    def with_symmetric_pattern(self, rows: Rows) -> Rows:
        of = (rows.indptr, rows.indices)
        missing = np.zeros(rows.n, np.int64)
        self._run(setup.count_partners, *of, rows.n, missing)
        first = np.append(0, np.cumsum(missing))
        columns = np.empty(first[-1], np.int32)
        self._run(setup.fill_partners, *of, rows.n, first[:-1].copy(), columns)
        indptr = rows.indptr + first
        indices, data = np.empty(indptr[-1], np.int32), np.empty(indptr[-1])
        self._run(setup.merge_rows, *of, rows.data, rows.n, first, columns, indptr, indices, data)
        return Rows(rows.n, rows.halo, indptr, indices, data)

    def order(self, rows: Rows, kind: str) -> Order:
        if kind == "natural":
            every = np.arange(rows.n, dtype=np.int32)
            return Order(every, every, np.arange(rows.n + 1), kind)
        if kind == "surface_last":
            surface = self._surface(rows)
            new_to_old = np.concatenate([np.flatnonzero(~surface), np.flatnonzero(surface)]).astype(np.int32)
            return Order(new_to_old, _inverse(new_to_old), np.arange(rows.n + 1), kind)
        group = np.zeros(rows.n, np.int32)
        if kind == "jpl":
            groups = self._jpl(rows, group)
        elif rows.n:
            compute = setup.greedy_colours if kind == "greedy" else setup.levels
            groups = compute(rows.indptr, rows.indices, rows.n, group)
        else:
            groups = 0
        new_to_old, starts = np.empty(rows.n, np.int32), np.zeros(groups + 1, np.int64)
        setup.group_rows(group, groups, new_to_old, starts)
        return Order(new_to_old, _inverse(new_to_old), starts, kind)

    def _surface(self, rows: Rows) -> Array:
        """Which rows have entries in the halo."""
        surface = np.zeros(rows.n, np.bool_)
        if rows.halo:
            self._run(setup.touches_halo, rows.indptr, rows.indices, rows.n, surface)
        return surface

    def _jpl(self, rows: Rows, colour: Array) -> int:
        colour[:] = -1
        longest = int(np.diff(rows.indptr).max(initial=0))
        left = np.ones(self.threads, np.int64)
        while rows.n and left.any():
            before = colour.copy()
            self._run(setup.jpl_round, rows.indptr, rows.indices, rows.n, longest, colour, before, left)
        return int(colour.max(initial=-1)) + 1

    def rounding(self, rows: Rows, precision: str) -> float:
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
        nnz, real = int(rows.indptr[-1]), VECTORS[vectors]
        if like is not None and self._may_share(like, rows, order, values, vectors, storage):
            entries = like.entries if like.values == values else self._narrowed(like.entries, values)
            of_rows = like.diagonal.astype(real), like.halo_entries.astype(real)
            return HostMatrix(rows.n, rows.halo, nnz, values, vectors, like.pattern, entries, *of_rows)
        pattern, entries = self._stored(rows, order, values, vectors, storage)
        diagonal = np.zeros(rows.n, real)
        self._run(pack.diagonal_of, order.new_to_old, rows.indptr, rows.indices, rows.data, diagonal)
        halo_entries = np.empty(pattern.halo_columns.size, real)
        pack.halo_entries(
            order.new_to_old,
            rows.indptr,
            rows.indices,
            rows.data,
            rows.n,
            pattern.halo_rows,
            pattern.halo_first,
            pattern.halo_columns,
            halo_entries,
        )
        return HostMatrix(rows.n, rows.halo, nnz, values, vectors, pattern, entries, diagonal, halo_entries)

    def _may_share(self, like: HostMatrix, rows: Rows, order: Order, values: str, vectors: str, storage: str) -> bool:
        """Whether a matrix stored like this one has its columns, and values made of its values."""
        made = like.values in (values, "fp64") and like.vectors in (vectors, "fp64")
        if like.pattern.storage != storage or not made:
            return False
        if storage != "rows":
            return True
        if isinstance(like.pattern, RowPattern):
            return self._way(rows, order, values, vectors) == 1
        return self._faster_way(values, vectors) != 1  # these rows can be taken several at a time

    def _stored(
        self, rows: Rows, order: Order, values: str, vectors: str, storage: str
    ) -> tuple[Pattern | RowPattern | SuccessivePattern, Array]:
        """Where the entries stand, and their values in that order."""
        if storage == "rows" and self._way(rows, order, values, vectors) == 1:
            return self._by_rows(rows, order, values)
        if storage == "rows" or (order.row_by_row and storage != "ell"):
            return self._successive(rows, order, values, storage)
        return self._packed(rows, order, values, storage)

    def _way(self, rows: Rows, order: Order, values: str, vectors: str) -> int:
        """How many rows are taken at a time where they are stored one after the other."""
        lengths = np.diff(rows.indptr)[order.new_to_old]
        longest = np.maximum.reduceat(lengths, np.arange(0, rows.n, SUCCESSIVE)) if rows.n else lengths
        if SUCCESSIVE * int(longest.sum()) > MOST_FILLED * rows.indices.size:
            return 1
        return self._faster_way(values, vectors)

    def _faster_way(self, values: str, vectors: str) -> int:
        """How many rows are taken at a time where they may be several."""
        return self._at_a_time or rows_at_a_time(values, vectors, partial(trial, type(self), values, vectors))

    def _narrowed(self, data: Array, precision: str) -> Array:
        """fp64 numbers in another format, rounded to nearest even, once, as compiled code takes them."""
        dtype, compiled = FORMATS[precision]
        out = aligned(data.size, compiled)
        if precision == "bf16":
            self._run(setup.to_bf16, data, out)
        else:
            out[:] = rounded(data, dtype).view(compiled)
        return out

    def _by_rows(self, rows: Rows, order: Order, values: str) -> tuple[RowPattern, Array]:
        """Where the entries of L and U stand, row after row, and their values in that order."""
        where = (order.new_to_old, order.old_to_new, rows.indptr, rows.indices)
        in_lower, in_upper, youngest = (np.empty(rows.n, np.int32) for _ in range(3))
        self._run(natural.count_parts, *where, in_lower, in_upper, youngest)
        units = np.zeros((rows.n // natural.FEW + 2, 3), np.int64)
        units = units[: natural.cut_units(in_lower, in_upper, youngest, units) + 1].copy()
        units[:, natural.UPPER] += units[-1, natural.LOWER]
        size = int(units[-1, natural.UPPER])
        columns = np.empty(size, np.int32)
        entries = aligned(-(-size // LANES) * LANES, FORMATS[values][1])
        data = self._narrowed(rows.data, values) if values != "fp64" else rows.data
        self._run(natural.fill_parts, *where, as_bits(data), units, in_lower, in_upper, columns, as_bits(entries))
        begins = units[:, natural.ROW]
        cost = np.diff(units[:, natural.LOWER] + units[:, natural.UPPER]) + 8.0 * np.diff(begins)
        in_turn = self._in_turn(rows, order, begins, cost, in_lower)
        return RowPattern(units=units, in_lower=in_lower, in_upper=in_upper, columns=columns, **in_turn), entries

    def _successive(self, rows: Rows, order: Order, values: str, storage: str) -> tuple[SuccessivePattern, Array]:
        """Chunks of successive rows."""
        where = (order.new_to_old, order.old_to_new, rows.indptr, rows.indices)
        chunk_row, units = np.empty(rows.n, np.int64), np.zeros(rows.n + 1, np.int64)
        in_lower, in_upper, youngest = (np.empty(rows.n, np.int32) for _ in range(3))
        self._run(natural.count_parts, *where, in_lower, in_upper, youngest)
        chunks, count = slot_format.cut_chunks(youngest, chunk_row, units)
        chunk_row, units = chunk_row[:chunks].copy(), units[: count + 1].copy()
        ends = np.append(chunk_row, rows.n)
        table, columns = np.zeros((chunks, slot_format.TABLE), np.int32), rows.n + rows.halo
        length = np.diff(rows.indptr)[order.new_to_old]
        longest = int(np.add.reduceat(length, chunk_row).max()) if chunks else 0
        packed = storage == "packed"
        self._run(slot_format.count_slots, *where, chunk_row, ends[1:], columns, packed, longest, table)
        counts, strays, _ = np.split(
            table[:, slot_format.COUNTS :].astype(np.int64), [slot_format.STRAYS, slot_format.NEXT], axis=1
        )
        apart = -(-strays.sum(axis=1) // SUCCESSIVE)
        lower, upper = counts[:, : 2 * slot_format.LATER], counts[:, 2 * slot_format.LATER :]
        slots = np.stack([lower.sum(axis=1), upper.sum(axis=1) + apart])
        fars = np.stack([lower[:, 1::2].sum(axis=1), upper[:, 1::2].sum(axis=1) + 2 * apart])
        for first, sizes in ((slot_format.SLOT, slots), (slot_format.FAR, fars)):
            begins = (np.cumsum(sizes) - sizes.ravel()).reshape(2, -1)
            table[:, first], table[:, first + 2] = begins[0], begins[1]
        bases, far = np.zeros(int(slots.sum()), np.int32), aligned(int(fars.sum()) * SUCCESSIVE, np.int32)
        entries = aligned(-(-bases.size * SUCCESSIVE // LANES) * LANES, FORMATS[values][1])
        data = self._narrowed(rows.data, values) if values != "fp64" else rows.data
        filled = (table, bases, far, as_bits(entries))
        self._run(slot_format.fill_slots, *where, as_bits(data), columns, packed, longest, *filled)
        cost = np.add.reduceat(slots.sum(axis=0), units[:-1]).astype(float) if count else np.empty(0)
        in_turn = self._in_turn(rows, order, ends[units], cost, in_lower)
        pattern = SuccessivePattern(storage=storage, units=units, table=table, bases=bases, far=far, **in_turn)
        return pattern, entries

    def _in_turn(self, rows: Rows, order: Order, begins: Array, cost: Array, in_lower: Array) -> dict[str, Any]:
        """The parts of an `InTurn`; units begin at these rows, the last one where all ends, and take so long."""
        halo_rows, halo_first, halo_columns = self._halo_pattern(rows, order, self._surface(rows))
        count = begins.size - 1
        late = int(np.searchsorted(begins, halo_rows[0], side="right")) - 1 if halo_rows.size else count
        edges = self.unit_edges(rows, order, begins, in_lower) if self.threads > 1 else (np.empty(0),) * 2
        owner, forward, backward = shares(self.threads, cost, *edges)
        return {
            "owner": owner,
            "forward": forward,
            "backward": backward,
            "every": (0, count),
            "early": (0, late),
            "late": (late, count),
            "halo_rows": halo_rows,
            "halo_first": halo_first,
            "halo_columns": halo_columns,
        }

    def unit_edges(self, rows: Rows, order: Order, begins: Array, in_lower: Array) -> tuple[Array, Array]:
        """The earlier units that each has entries in, edges[first[u]:first[u+1]]: (first, edges).

        Units begin at these rows, the last one where all ends; rows have so many entries of L.
        """
        count = begins.size - 1
        unit_of = np.repeat(np.arange(count, dtype=np.int32), np.diff(begins))
        of_thread = count * np.arange(self.threads + 1) // self.threads
        room = np.append(0, np.cumsum(in_lower, dtype=np.int64))[begins[of_thread]]
        found, edges = np.zeros(count, np.int64), np.empty(room[-1], np.int32)  # few of whose pages are touched
        where = (order.new_to_old, order.old_to_new, rows.indptr, rows.indices)
        self._run(natural.unit_edges, *where, begins, unit_of, room, found, edges)
        first = np.append(0, np.cumsum(found))
        pieces = [edges[k : k + size] for k, size in zip(room[:-1], np.diff(first[of_thread]), strict=True)]
        return first, np.concatenate(pieces)

    def _packed(self, rows: Rows, order: Order, values: str, storage: str) -> tuple[Pattern, Array]:
        """Where the entries stand, and their values in that order."""
        chunk_row, chunk_end, chunk_group, alike = self._chunks(rows, order, storage)
        start = order.starts[chunk_group]
        columns = rows.n + rows.halo
        table = np.zeros((chunk_row.size, pack.TABLE), np.int32)
        where = (order.new_to_old, order.old_to_new, rows.indptr, rows.indices)
        rule = pack.STORAGES[storage]
        length = np.diff(rows.indptr)[order.new_to_old]
        longest = int(np.add.reduceat(length, chunk_row).max()) if chunk_row.size else 0
        self._run(pack.count_slots, *where, chunk_row, chunk_end, start, alike, columns, rule, longest, table)
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
        filled = (table, bases, near, far, as_bits(entries))
        self._run(pack.fill_slots, *where, as_bits(data), start, alike, columns, rule, longest, *filled)
        surface = self._surface(rows)
        halo_rows, halo_first, halo_columns = self._halo_pattern(rows, order, surface)
        waits, needed = np.zeros((2, chunk_row.size), np.bool_)
        if halo_rows.size:
            chunk_of = np.repeat(np.arange(chunk_row.size, dtype=np.int32), chunk_end - chunk_row)
            for backward, marks in ((False, waits), (True, needed)):
                pack.mark(*where[:2], surface, *where[2:], chunk_row, chunk_end, chunk_of, backward, marks)
        window = self._windows(rows, order, chunk_row, chunk_end)
        # Arrays of their own also where they are equal: checks tell a fault by the array that it is in.
        swept = (np.ones_like(waits), ~waits, waits, needed, ~needed)
        every, early, late, first, rest = (_steps(chosen, chunk_group, window) for chosen in swept)
        pattern = Pattern(
            storage,
            table,
            bases,
            near,
            far,
            every,
            early,
            late,
            first,
            rest,
            np.lexsort((chunk_group, window)),
            halo_rows,
            halo_first,
            halo_columns,
        )
        return pattern, entries

    def _windows(self, rows: Rows, order: Order, chunk_row: Array, chunk_end: Array) -> Array:
        """The window of each chunk: rows that entries connect lie in the same window or in neighbouring ones.

        Windows are cut along the natural order, as wide as the farthest two connected rows and a chunk are apart.
        """
        apart = np.zeros(self.threads, np.int64)
        self._run(setup.bandwidth, rows.indptr, rows.indices, rows.n, apart)
        first, last = order.new_to_old[chunk_row].astype(np.int64), order.new_to_old[chunk_end - 1]
        width = max(int(apart.max(initial=0)) + int((last - first).max(initial=0)), WINDOW)
        return first // width

    def _chunks(self, rows: Rows, order: Order, storage: str) -> tuple[Array, Array, Array, Array]:
        """First row, end and group of every chunk; and which rows are like the row before, where that is used."""
        first_rows, counts = np.empty(rows.n, np.int64), np.zeros(order.groups, np.int64)
        where = (order.new_to_old, order.old_to_new, rows.indptr, rows.indices)
        alike, longest = np.zeros(rows.n, np.bool_), int(np.diff(rows.indptr).max(initial=0))
        self._run(pack.cut_rows, order.starts, *where, storage == "packed", longest, first_rows, counts, alike)
        parts = [first_rows[first : first + count] for first, count in zip(order.starts, counts)]
        chunk_row = np.concatenate([*parts, np.empty(0, np.int64)]).astype(np.int64)
        return chunk_row, np.append(chunk_row, rows.n)[1:], np.repeat(np.arange(order.groups), counts), alike

    def _number(self, table: Array) -> tuple[int, int, int]:
        """Where each chunk's slots begin; how many there are, how many near ones and how many far ones."""
        both = [table[:, pack.L_PART + k].astype(np.int64) + table[:, pack.U_PART + k] for k in range(3)]
        totals = []
        for column, counts in ((pack.SLOT, sum(both)), (pack.NEAR, both[1]), (pack.FAR, both[2])):
            ends = np.cumsum(counts)
            table[:, column] = ends - counts
            totals.append(int(ends[-1]) if ends.size else 0)
        return totals[0], totals[1], totals[2]

    def _halo_pattern(self, rows: Rows, order: Order, surface: Array) -> tuple[Array, Array, Array]:
        """The rows that have entries from other ranks, where those of each begin, and memory for their columns."""
        found = np.empty(int(surface.sum()), np.int32)
        _, entries = pack.count_halo(order.new_to_old, surface, rows.indptr, rows.indices, rows.n, found)
        return found, np.zeros(found.size + 1, np.int64), np.zeros(entries, np.int32)

    def row_sums(self, rows: Rows, order: Order) -> Array:
        sums = np.empty(rows.n)
        self._run(pack.row_sums, order.new_to_old, rows.indptr, rows.data, sums)
        return sums


def _inverse(permutation: Array) -> Array:
    """Where each number stands."""
    inverse = np.empty_like(permutation)
    inverse[permutation] = np.arange(permutation.size, dtype=permutation.dtype)
    return inverse


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
