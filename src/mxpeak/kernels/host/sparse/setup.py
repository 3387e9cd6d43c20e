"""Set up sparse matrices on the host: rows, orders and storage (see `kernels.contract.sparse`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from mxpeak.errors import UsageError
from mxpeak.kernels.contract.sparse import Order, Rows
from mxpeak.kernels.host.engine.team import Team
from mxpeak.kernels.host.sparse import chunk_format
from mxpeak.kernels.host.sparse import rows as row_kernels
from mxpeak.kernels.host.sparse.chunk_format import ChunkColumns, GroupCuts
from mxpeak.kernels.host.sparse.gs_colored import StepList
from mxpeak.kernels.host.sparse.matrix import (
    FORMATS,
    PIECE,
    VECTORS,
    Array,
    ChunkPattern,
    HostMatrix,
    NaturalPattern,
    aligned,
    as_bits,
    rounded,
)
from mxpeak.kernels.host.sparse.natural import gs_csr, schedule, slot_format
from mxpeak.kernels.host.sparse.natural.autotune import rows_at_a_time, trial
from mxpeak.kernels.host.sparse.natural.gs_csr import CsrColumns
from mxpeak.kernels.host.sparse.natural.slot_format import ChunkCuts, SlotColumns
from mxpeak.kernels.host.sparse.rows import Halo, OrderedRows
from mxpeak.kernels.host.sparse.slot_sums import LANES, SUCCESSIVE
from mxpeak.layout.stencil import Box
from mxpeak.precision import PRECISIONS

#: Successive rows are interleaved if the stored values are at most this multiple of the entries.
MAX_FILLED = 1.25
#: The smallest number of rows in a window, so that a step has enough work between two barriers.
WINDOW = 2**16


class HostSparseSetup:
    """The part of the host's sparse kernels that sets up matrices, on the threads of a team."""

    def __init__(self, team: Team, rows_at_a_time: int | None = None):
        self._team, self.threads, self._at_a_time = team, team.threads, rows_at_a_time
        self._scratch = {dtype: aligned(team.threads * 4 * SUCCESSIVE, dtype) for dtype in VECTORS.values()}

    def _run(self, function: Any, *args: Any) -> None:
        """Run a compiled function on all threads of the team."""
        self._team.run(function, self.threads, *args)

    def stencil_rows(self, box: Box, weights: Sequence[float]) -> Rows:
        sizes = np.array([*box.shape, *box.global_shape], np.int64)
        first = np.array(box.origin, np.int64)
        indptr = np.zeros(box.rows + 1, np.int64)
        self._run(row_kernels.stencil_counts, sizes, first, indptr)
        np.cumsum(indptr, out=indptr)
        halo = np.zeros((27, 6), np.int64)
        for neighbor in box.neighbors():
            dx, dy, dz = neighbor.direction
            width, height, _ = neighbor.shape
            received = (neighbor.recv_offset, *neighbor.first_received, width, height)
            halo[dx + 1 + 3 * (dy + 1) + 9 * (dz + 1)] = received
        indices, data = np.empty(indptr[-1], np.int32), np.empty(indptr[-1])
        self._run(row_kernels.stencil_rows, sizes, first, halo, np.array(weights, float), indptr, indices, data)
        return Rows(box.rows, box.halo, indptr, indices, data)

    def rows_of(self, indptr: Any, indices: Any, data: Any, n: int, halo: int) -> Rows:
        start = np.ascontiguousarray(indptr, np.int64)
        column, value = np.ascontiguousarray(indices, np.int32), np.ascontiguousarray(data, np.float64)
        flags = np.zeros(self.threads, np.int64)
        self._run(row_kernels.columns_descend, start, column, n, flags)
        if flags.any():
            from scipy.sparse import csr_array  # this import takes a tenth of a second

            sorted_rows = csr_array((value.copy(), column.copy(), start), shape=(n, n + halo))
            sorted_rows.sort_indices()
            column, value = sorted_rows.indices.astype(np.int32, copy=False), sorted_rows.data
        return Rows(n, halo, start, column, value)

    def on_host(self, rows: Rows) -> Rows:
        return rows

    def is_symmetric_pattern(self, rows: Rows) -> bool:
        flags = np.zeros(self.threads, np.int64)
        self._run(row_kernels.pattern_is_unsymmetric, rows, flags)
        return not flags.any()

    def with_symmetric_pattern(self, rows: Rows) -> Rows:
        missing = np.zeros(rows.n, np.int64)
        self._run(row_kernels.find_partners, rows, missing, np.empty(0, np.int32))
        first = np.append(0, np.cumsum(missing))
        columns = np.empty(first[-1], np.int32)
        self._run(row_kernels.find_partners, rows, first[:-1].copy(), columns)
        indptr = rows.indptr + first
        merged = Rows(rows.n, rows.halo, indptr, np.empty(indptr[-1], np.int32), np.empty(indptr[-1]))
        self._run(row_kernels.merge_rows, rows, first, columns, merged)
        return merged

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
            compute = row_kernels.greedy_colors if kind == "greedy" else row_kernels.levels
            groups = compute(rows, group)
        else:
            groups = 0
        new_to_old, starts = np.empty(rows.n, np.int32), np.zeros(groups + 1, np.int64)
        row_kernels.group_rows(group, groups, new_to_old, starts)
        return Order(new_to_old, _inverse(new_to_old), starts, kind)

    def _surface(self, rows: Rows) -> Array:
        """Return a Boolean array that is True for the rows with entries in the halo."""
        surface = np.zeros(rows.n, np.bool_)
        if rows.halo:
            self._run(row_kernels.touches_halo, rows, surface)
        return surface

    def _jpl(self, rows: Rows, color: Array) -> int:
        """Store the Jones–Plassmann–Luby color of each row in `color`, and return the number of colors."""
        color[:] = -1
        longest = int(np.diff(rows.indptr).max(initial=0))
        uncolored = np.ones(self.threads, np.int64)
        while rows.n and uncolored.any():
            self._run(row_kernels.jpl_round, rows, longest, color, color.copy(), uncolored)
        return int(color.max(initial=-1)) + 1

    def rounding(self, rows: Rows, precision: str) -> float:
        worst = np.zeros(self.threads)
        for k in range(0, rows.data.size, PIECE):
            a = rows.data[k : k + PIECE]
            with np.errstate(all="ignore"):
                near = self._narrowed(a, precision).view(FORMATS[precision][0])
            self._run(row_kernels.largest_error, a, near.astype(np.float64), worst)
        return float(worst.max())

    def store(
        self, rows: Rows, order: Order, values: str, vectors: str, storage: str, like: HostMatrix | None = None
    ) -> HostMatrix:
        nnz, real = int(rows.indptr[-1]), VECTORS[PRECISIONS[vectors].accumulate]
        if like is not None and self._may_share(like, rows, order, values, vectors, storage):
            entries = like.entries if like.values == values else self._narrowed(like.entries, values)
            pattern, diagonal = like.pattern, like.diagonal.astype(real)
            halo_entries = like.halo_entries.astype(real)
        else:
            pattern, entries = self._pattern(rows, order, values, vectors, storage)
            diagonal, halo_entries = np.zeros(rows.n, real), np.empty(pattern.halo.columns.size, real)
            self._run(row_kernels.diagonal_of, order.new_to_old, rows, diagonal)
            row_kernels.halo_entries(order.new_to_old, rows, pattern.halo, halo_entries)
        parts = (pattern, entries, diagonal, halo_entries, self._scratch[real])
        return HostMatrix(rows.n, rows.halo, nnz, values, vectors, *parts)

    def _may_share(self, like: HostMatrix, rows: Rows, order: Order, values: str, vectors: str, storage: str) -> bool:
        """Return whether a new matrix can use the columns of `like`, and values derived from those of `like`.

        The new matrix has the given order, formats and storage.
        """
        derivable = like.values in (values, "fp64") and like.vectors in (vectors, "fp64")
        if like.pattern.storage != storage or not derivable:
            return False
        if storage != "rows":
            return True
        if like.rows_at_a_time == 1:
            return self._rows_per_step(rows, order, values, vectors) == 1
        return self._tuned_rows_per_step(values, vectors) != 1  # these rows can be interleaved

    def _pattern(
        self, rows: Rows, order: Order, values: str, vectors: str, storage: str
    ) -> tuple[ChunkPattern | NaturalPattern, Array]:
        """Return the pattern of a matrix in the format that `storage` requires, and the values in the same order."""
        natural = storage == "rows" or (order.row_by_row and storage != "ell")
        if natural and vectors not in VECTORS:
            raise UsageError(f"sweeps in natural order do not support vectors in {vectors}; use colors, or fp32")
        if storage == "rows" and self._rows_per_step(rows, order, values, vectors) == 1:
            return self._csr_pattern(rows, order, values)
        if natural:
            return self._slot_pattern(rows, order, values, storage)
        return self._chunk_pattern(rows, order, values, storage)

    def _rows_per_step(self, rows: Rows, order: Order, values: str, vectors: str) -> int:
        """Return the number of rows that are interleaved in the storage `rows`.

        If interleaving would store too many zeros, the number is 1.
        """
        lengths = np.diff(rows.indptr)[order.new_to_old]
        longest = np.maximum.reduceat(lengths, np.arange(0, rows.n, SUCCESSIVE)) if rows.n else lengths
        if SUCCESSIVE * int(longest.sum()) > MAX_FILLED * rows.indices.size:
            return 1
        return self._tuned_rows_per_step(values, vectors)

    def _tuned_rows_per_step(self, values: str, vectors: str) -> int:
        """Return the fastest number of rows to interleave, from the constructor's argument or from autotuning."""
        return self._at_a_time or rows_at_a_time(values, vectors, partial(trial, type(self), values, vectors))

    def _narrowed(self, data: Array, precision: str) -> Array:
        """Round fp64 numbers to a format, to nearest even, with a single rounding.

        The result has the type that compiled code receives.
        """
        dtype, compiled = FORMATS[precision]
        out = aligned(data.size, compiled)
        if precision == "bf16":
            self._run(row_kernels.to_bf16, data, out)
        else:
            out[:] = rounded(data, dtype).view(compiled)
        return out

    def _bits(self, data: Array, values: str) -> Array:
        """Return a matrix's values in a format, as unsigned integers with the same bits."""
        return as_bits(self._narrowed(data, values) if values != "fp64" else data)

    def _csr_pattern(self, rows: Rows, order: Order, values: str) -> tuple[NaturalPattern, Array]:
        """Store the entries of L and U row by row, and return the pattern and the values."""
        where = ordered(rows, order)
        in_lower, in_upper, youngest = (np.empty(rows.n, np.int32) for _ in range(3))
        self._run(row_kernels.count_parts, where, in_lower, in_upper, youngest)
        units = np.zeros((rows.n // gs_csr.FEW + 2, 3), np.int64)
        units = units[: gs_csr.cut_units(in_lower, in_upper, youngest, units) + 1].copy()
        units[:, gs_csr.UPPER] += units[-1, gs_csr.LOWER]
        size = int(units[-1, gs_csr.UPPER])
        columns = CsrColumns(units, in_lower, in_upper, np.empty(size, np.int32))
        entries = aligned(-(-size // LANES) * LANES, FORMATS[values][1])
        self._run(gs_csr.fill_parts, where, self._bits(rows.data, values), columns, as_bits(entries))
        begins = units[:, gs_csr.ROW]
        cost = np.diff(units[:, gs_csr.LOWER] + units[:, gs_csr.UPPER]) + 8.0 * np.diff(begins)
        return self._natural_pattern(rows, order, "rows", columns, begins, cost, in_lower), entries

    def _slot_pattern(self, rows: Rows, order: Order, values: str, storage: str) -> tuple[NaturalPattern, Array]:
        """Pack the entries into chunks of successive rows, and return the pattern and the values."""
        where = ordered(rows, order)
        chunk_row, units = np.empty(rows.n, np.int64), np.zeros(rows.n + 1, np.int64)
        in_lower, in_upper, youngest = (np.empty(rows.n, np.int32) for _ in range(3))
        self._run(row_kernels.count_parts, where, in_lower, in_upper, youngest)
        chunks, count = slot_format.cut_chunks(youngest, chunk_row, units)
        chunk_row, units = chunk_row[:chunks].copy(), units[: count + 1].copy()
        ends = np.append(chunk_row, rows.n)
        table = np.zeros((chunks, slot_format.TABLE), np.int32)
        columns, packed = rows.n + rows.halo, storage == "packed"
        cuts = ChunkCuts(chunk_row, ends[1:], _max_entries(rows, order, chunk_row))
        self._run(slot_format.count_slots, where, cuts, columns, packed, table)
        slots, fars = self._number_slots(table)
        bases, far = np.zeros(slots, np.int32), aligned(fars * SUCCESSIVE, np.int32)
        slotted = SlotColumns(units, table, bases, far)
        entries = aligned(-(-bases.size * SUCCESSIVE // LANES) * LANES, FORMATS[values][1])
        bits = self._bits(rows.data, values)
        self._run(slot_format.fill_slots, where, bits, cuts.longest, columns, packed, slotted, as_bits(entries))
        per_chunk = _slots_of_chunks(table)[0].sum(axis=0)
        cost = np.add.reduceat(per_chunk, units[:-1]).astype(float) if count else np.empty(0)
        return self._natural_pattern(rows, order, storage, slotted, ends[units], cost, in_lower), entries

    def _number_slots(self, table: Array) -> tuple[int, int]:
        """Store each chunk's slot positions in `table`; return the numbers of slots and of slots with columns."""
        totals = []
        for first, sizes in zip((slot_format.SLOT, slot_format.FAR), _slots_of_chunks(table)):
            begins = (np.cumsum(sizes) - sizes.ravel()).reshape(2, -1)
            table[:, first], table[:, first + 2] = begins[0], begins[1]
            totals.append(int(sizes.sum()))
        return totals[0], totals[1]

    def _natural_pattern(
        self,
        rows: Rows,
        order: Order,
        storage: str,
        columns: CsrColumns | SlotColumns,
        begins: Array,
        cost: Array,
        in_lower: Array,
    ) -> NaturalPattern:
        """Return the pattern with the schedule of its sweeps.

        `cost` contains the cost of each unit, and `begins` the first row of each unit, followed by n.
        """
        halo, count = self._halo(rows, order, self._surface(rows)), begins.size - 1
        late = int(np.searchsorted(begins, halo.rows[0], side="right")) - 1 if halo.rows.size else count
        edges = self.unit_edges(rows, order, begins, in_lower) if self.threads > 1 else (np.empty(0),) * 2
        every, none = (0, count), (count, count)
        from_zero = (every, none, every) if halo.rows.size else (every, every, none)
        shares = schedule.shares(self.threads, cost, *edges)
        return NaturalPattern(storage, columns, *shares, (every, (0, late), (late, count)), from_zero, halo)

    def unit_edges(self, rows: Rows, order: Order, begins: Array, in_lower: Array) -> tuple[Array, Array]:
        """Return the dependences of the units as (first, edges).

        Unit u has entries in columns of the earlier units edges[first[u]:first[u+1]].
        """
        count = begins.size - 1
        unit_of = np.repeat(np.arange(count, dtype=np.int32), np.diff(begins))
        of_thread = count * np.arange(self.threads + 1) // self.threads
        first_edge = np.append(0, np.cumsum(in_lower, dtype=np.int64))[begins[of_thread]]
        sizes, edges = np.zeros(count, np.int64), np.empty(first_edge[-1], np.int32)  # few pages of `edges` are touched
        self._run(schedule.unit_edges, ordered(rows, order), begins, unit_of, first_edge, sizes, edges)
        first = np.append(0, np.cumsum(sizes))
        pieces = [edges[k : k + size] for k, size in zip(first_edge[:-1], np.diff(first[of_thread]), strict=True)]
        return first, np.concatenate(pieces)

    def _chunk_pattern(self, rows: Rows, order: Order, values: str, storage: str) -> tuple[ChunkPattern, Array]:
        """Pack the entries into chunks of independent rows, and return the pattern and the values."""
        where, columns, rule = ordered(rows, order), rows.n + rows.halo, chunk_format.STORAGES[storage]
        cuts, group = self._cut_groups(rows, order, storage)
        table = np.zeros((cuts.first.size, chunk_format.TABLE), np.int32)
        self._run(chunk_format.count_slots, where, cuts, columns, rule, table)
        if rule == chunk_format.ELL:
            for part in (chunk_format.L_PART + 2, chunk_format.U_PART + 2):
                widest = np.zeros(order.groups, np.int32)
                np.maximum.at(widest, group, table[:, part])
                table[:, part] = widest[group]
        slots, nears, fars = _number_chunks(table)
        bases, near = np.zeros(slots, np.int32), np.zeros(nears * LANES, np.uint16)
        packed = ChunkColumns(table, bases, near, np.zeros(fars * LANES, np.int32))
        entries = aligned(slots * LANES, FORMATS[values][1])
        bits = self._bits(rows.data, values)
        self._run(chunk_format.fill_slots, where, bits, cuts, columns, rule, packed, as_bits(entries))
        surface = self._surface(rows)
        halo = self._halo(rows, order, surface)
        waits, needed = np.zeros((2, cuts.first.size), np.bool_)
        if halo.rows.size:
            chunk_of = np.repeat(np.arange(cuts.first.size, dtype=np.int32), cuts.end - cuts.first)
            for backward, marks in ((False, waits), (True, needed)):
                chunk_format.mark(where, surface, cuts, chunk_of, backward, marks)
        window = self._windows(rows, order, cuts)
        # These arrays are separate even if they are equal, because checks locate a fault by the array that contains
        # it.
        every, early, late, first, rest = (
            _steps(chosen, group, window) for chosen in (np.ones_like(waits), ~waits, waits, needed, ~needed)
        )
        by_window = np.lexsort((group, window))
        return ChunkPattern(storage, packed, (every, early, late), (every, rest, first), by_window, halo), entries

    def _windows(self, rows: Rows, order: Order, cuts: GroupCuts) -> Array:
        """Return the window of each chunk. Rows connected by an entry are in the same window or in adjacent windows.

        Windows divide the natural order. Their width is the bandwidth plus the width of the widest chunk.
        """
        distance = np.zeros(self.threads, np.int64)
        self._run(row_kernels.bandwidth, rows, distance)
        first, last = order.new_to_old[cuts.first].astype(np.int64), order.new_to_old[cuts.end - 1]
        width = max(int(distance.max(initial=0)) + int((last - first).max(initial=0)), WINDOW)
        return first // width

    def _cut_groups(self, rows: Rows, order: Order, storage: str) -> tuple[GroupCuts, Array]:
        """Divide the rows of each group into chunks, and return the chunks and the group of each chunk."""
        first_rows, counts = np.empty(rows.n, np.int64), np.zeros(order.groups, np.int64)
        repeats, longest = np.zeros(rows.n, np.bool_), int(np.diff(rows.indptr).max(initial=0))
        packed = storage == "packed"
        where = ordered(rows, order)
        self._run(chunk_format.cut_rows, order.starts, where, packed, longest, first_rows, counts, repeats)
        parts = [first_rows[first : first + count] for first, count in zip(order.starts, counts)]
        chunk_row = np.concatenate([*parts, np.empty(0, np.int64)]).astype(np.int64)
        group, end = np.repeat(np.arange(order.groups), counts), np.append(chunk_row, rows.n)[1:]
        return GroupCuts(chunk_row, end, order.starts[group], repeats, _max_entries(rows, order, chunk_row)), group

    def _halo(self, rows: Rows, order: Order, surface: Array) -> Halo:
        """Return H with its rows, and with empty arrays for the starts and the columns of its entries."""
        halo_rows = np.empty(int(surface.sum()), np.int32)
        _, entries = row_kernels.count_halo(order.new_to_old, surface, rows, halo_rows)
        return Halo(halo_rows, np.zeros(halo_rows.size + 1, np.int64), np.zeros(entries, np.int32))

    def row_sums(self, rows: Rows, order: Order) -> Array:
        sums = np.empty(rows.n)
        self._run(row_kernels.row_sums, order.new_to_old, rows, sums)
        return sums


def ordered(rows: Rows, order: Order) -> OrderedRows:
    """Return the pattern of the rows together with their order."""
    return OrderedRows(order.new_to_old, order.old_to_new, rows.indptr, rows.indices)


def _inverse(permutation: Array) -> Array:
    """Return the inverse of a permutation."""
    inverse = np.empty_like(permutation)
    inverse[permutation] = np.arange(permutation.size, dtype=permutation.dtype)
    return inverse


def _max_entries(rows: Rows, order: Order, chunk_row: Array) -> int:
    """Return the largest number of entries of a chunk. `chunk_row` contains the first rows of all chunks."""
    length = np.diff(rows.indptr)[order.new_to_old]
    return int(np.add.reduceat(length, chunk_row).max()) if chunk_row.size else 0


def _slots_of_chunks(table: Array) -> tuple[Array, Array]:
    """Return the numbers of slots of L and of U in each chunk of successive rows: all slots, and slots with columns.

    Each result has one row for L and one row for U.
    """
    counts, overflow, _ = np.split(
        table[:, slot_format.COUNTS :].astype(np.int64), [slot_format.OVERFLOW, slot_format.NEXT], axis=1
    )
    extra = -(-overflow.sum(axis=1) // SUCCESSIVE)
    lower, upper = counts[:, : 2 * slot_format.LATER], counts[:, 2 * slot_format.LATER :]
    slots = np.stack([lower.sum(axis=1), upper.sum(axis=1) + extra])
    return slots, np.stack([lower[:, 1::2].sum(axis=1), upper[:, 1::2].sum(axis=1) + 2 * extra])


def _number_chunks(table: Array) -> tuple[int, int, int]:
    """Store the position of each chunk's slots in `table`, and return the numbers of all, near and far slots."""
    both = [table[:, chunk_format.L_PART + k].astype(np.int64) + table[:, chunk_format.U_PART + k] for k in range(3)]
    totals = []
    for column, counts in ((chunk_format.SLOT, sum(both)), (chunk_format.NEAR, both[1]), (chunk_format.FAR, both[2])):
        ends = np.cumsum(counts)
        table[:, column] = ends - counts
        totals.append(int(ends[-1]) if ends.size else 0)
    return totals[0], totals[1], totals[2]


def _steps(chosen: Array, group: Array, window: Array) -> StepList:
    """Return the steps of a sweep over the chunks that are True in `chosen`.

    Group g visits window w in stage w + g, after the earlier groups of that stage. At that time, all earlier groups
    have visited the windows w - 1, w and w + 1, and no later group has visited them. The x of the window is still in
    the cache from the previous group.
    """
    chunks = np.flatnonzero(chosen)
    stage = window[chunks] + group[chunks]
    chunks = chunks[np.lexsort((group[chunks], stage))]
    stage = window[chunks] + group[chunks]
    begins = np.ones(chunks.size, bool)
    begins[1:] = (np.diff(stage) != 0) | (np.diff(group[chunks]) != 0)
    return StepList(chunks, np.append(np.flatnonzero(begins), chunks.size))
