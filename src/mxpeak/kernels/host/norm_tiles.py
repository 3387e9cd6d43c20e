"""Norms on the host: tiles as a table that compiled code goes through, shared out among a team of threads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any

import ml_dtypes
import numpy as np
from numba import types
from numba.np.numpy_support import from_dtype

from mxpeak.kernels.contract.norms import ExtendedParts, NormParts, Tile
from mxpeak.kernels.host import norm_check, norm_folds, norm_small
from mxpeak.kernels.host import norm_pass as compiled
from mxpeak.kernels.host.team import Team
from mxpeak.layout.index_map import IndexMap
from mxpeak.layout.structure import WHOLE, Band

Array = np.ndarray[Any, np.dtype[Any]]

#: The types of entries, and as what compiled code gets them.
KNOWN = {np.dtype(name): np.dtype(name) for name in ("float64", "float32", "complex128", "complex64")} | {
    np.dtype(ml_dtypes.bfloat16): np.dtype(np.int16),
    np.dtype(np.float16): np.dtype(np.uint16),
}
WANTS = {"max": compiled.MAX, "squares": compiled.SQUARES, "rows": compiled.ROWS, "columns": compiled.COLUMNS}
#: Lines that one thread takes at a time, and how many such chunks each should at least have; entries of a piece of a
#: line where there are too few lines.
LINES, CHUNKS, PIECE = 128, 4, 2**16
#: The least that a piece is cut to; lines of fewer entries are short.
LEAST_PIECE, SHORT = 4096, 64
#: Fewer bytes than this are not worth waking a thread for.
ALONE = 2**18
#: Up to here one thread by itself is as quick as several that must be woken.
SMALL = 2**22


def small_norm(A: Array, want: str) -> float | None:
    """One norm of a small general matrix, by what is wanted of a pass; None where it takes a pass."""
    dtype = KNOWN.get(A.dtype)
    A = A[:, None] if A.ndim == 1 else A
    if dtype is None or A.ndim != 2 or not A.flags.aligned:
        return None
    if dtype not in _ready:
        with _making_ready:
            _make_ready(dtype)
    found: float = norm_small.small_norm(A if A.dtype is dtype else A.view(dtype), WANTS[want])
    return None if found == norm_small.THE_LONG_WAY else found


_ready: set[np.dtype[Any]] = set()
_making_ready = Lock()


def _make_ready(dtype: np.dtype[Any]) -> None:
    """Compile for arrays of this type of any layout, once, so that no layout has to be compiled for by itself."""
    norm_small.small_norm.disable_compile(False)
    norm_small.small_norm.compile((types.Array(from_dtype(dtype), 2, "A", readonly=True), types.int64))
    norm_small.small_norm.disable_compile()
    _ready.add(dtype)


class Norms:
    """The norm kernels of `kernels.contract` on the threads of a team."""

    def __init__(self, team: Team):
        self._team = team
        self._busy = Lock()  # a team does one thing at a time

    def norm_pass(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], rows: int, columns: int
    ) -> NormParts:
        """See `kernels.contract`."""
        job = _Job(tiles, band, wants, self._team.threads)
        by_row, by_column = np.zeros(job.rows(rows)), np.zeros(job.columns(columns))
        across = np.zeros((job.threads, job.width))
        tops, squares = np.zeros(job.threads * compiled.APART, np.int64), np.zeros((job.threads, compiled.APART))
        self._run(job, compiled.norm_pass, job.want, *job.tiles, across, by_row, by_column, tops, squares)
        return NormParts(
            float(tops.max().view(np.float64)), squares[:, :3].sum(axis=0), _total(by_row), _total(by_column)
        )

    def row_column_max(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], rows: int, columns: int
    ) -> tuple[Array, Array]:
        """See `kernels.contract`."""
        job = _Job(tiles, band, wants, self._team.threads)
        tops = [np.zeros((job.threads, *shape[1:]), np.int64) for shape in (job.rows(rows), job.columns(columns))]
        self._run(job, norm_folds.maxima, job.want, *job.tiles, *tops)
        by_row, by_column = (copies.max(axis=0).view(np.float64) for copies in tops)
        return by_row, by_column

    def folded_sums(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], squared: bool, sigmas: Sequence[float],
        row_factors: Array, column_factors: Array,
    ) -> tuple[Array, Array]:  # fmt: skip
        """See `kernels.contract`."""
        job, folds = _Job(tiles, band, wants, self._team.threads), len(sigmas)
        by_row = np.zeros((job.threads, folds, len(row_factors)))
        by_column = np.zeros((job.threads, folds, len(column_factors)))
        self._run(
            job, norm_folds.folded_sums, job.want, squared, *job.tiles, np.array(sigmas), row_factors, column_factors,
            by_row, by_column,
        )  # fmt: skip
        return by_row.sum(axis=0), by_column.sum(axis=0)  # exact, in any order

    def read_all(self, tiles: Sequence[Tile]) -> None:
        """See `kernels.contract`."""
        job = _Job(tiles, WHOLE, ("max",), self._team.threads)
        sample, table, _ = job.tiles
        self._run(job, compiled.read_all, sample, table, np.zeros(job.threads * compiled.APART, np.uint64))

    def half_powers(self, maxima: Array) -> Array:
        """See `kernels.contract`."""
        usable = np.isfinite(maxima) & (maxima > 0)
        fraction, e = np.frexp(np.where(usable, maxima, 1.0))  # maximum = fraction·2^e, fraction in [1/2, 1)
        e = np.where(fraction == 0.5, e - 1, e)
        return np.where(usable, np.ldexp(1.0, -((e + 1) // 2)), 1.0)

    def unfolded(self, folds: Array, factors: Array, maxima: Array, squared: bool) -> Array:
        """See `kernels.contract`."""
        total = np.zeros(folds.shape[1])
        with np.errstate(all="ignore"):
            for fold in folds[::-1]:  # the finest first
                total = total + fold
            values = (np.sqrt(total) if squared else total) / factors / factors
        return np.where(np.isfinite(maxima) & (maxima > 0), values, maxima)

    def real_part(self, tile: Tile) -> Tile:
        """See `kernels.contract`."""
        return replace(tile, A=tile.A.real) if tile.A.dtype.kind == "c" else tile

    def places(self, places: IndexMap) -> Array:
        """See `kernels.contract`."""
        il = np.arange(places.size)
        return places.first + il // places.nb * places.jump + il % places.nb

    def spread(self, values: Array, places: Array, size: int) -> Array:
        """See `kernels.contract`."""
        full = np.zeros((*values.shape[:-1], size))
        full[..., places] = values
        return full

    def taken(self, values: Array, places: Array) -> Array:
        """See `kernels.contract`."""
        return values[places]

    def below(self, places: Array, end: int) -> Array:
        """See `kernels.contract`."""
        return (places < end).astype(np.float64)

    def meeting(self, by_row: Array, row_places: Array, by_column: Array, column_places: Array) -> Array:
        """See `kernels.contract`."""
        _, rows, columns = np.intersect1d(row_places, column_places, assume_unique=True, return_indices=True)
        return np.asarray(by_row[rows] + by_column[columns])

    def larger(self, x: Array, y: Array) -> Array:
        """See `kernels.contract`."""
        return np.maximum(x, y)

    def largest(self, x: Array) -> float:
        """See `kernels.contract`."""
        return float(x.max(initial=0.0))

    def vector_of(self, values: Sequence[float]) -> Array:
        """See `kernels.contract`."""
        return np.array(values, dtype=np.float64)

    def floats(self, vector: Array) -> list[float]:
        """See `kernels.contract`."""
        return list(map(float, vector.tolist()))

    def hypot(self, x: Array, y: Array) -> Array:
        """See `kernels.contract`."""
        with np.errstate(all="ignore"):
            return np.where(np.isnan(x) | np.isnan(y), np.nan, np.hypot(x, y))

    def empty(self, rows: int, columns: int, dtype: str, order: str) -> Array:
        """See `kernels.contract`."""
        return np.empty((rows, columns), np.dtype(getattr(ml_dtypes, dtype, dtype)), "F" if order == "F" else "C")

    def put(self, target: Array, real: Array, imaginary: Array | None) -> None:
        """See `kernels.contract`."""
        self._team.run(self._put_part, target, real, imaginary)

    def _put_part(self, tid: int, target: Array, real: Array, imaginary: Array | None) -> None:
        rows, threads = target.shape[0], self._team.threads
        mine = slice(rows * tid // threads, rows * (tid + 1) // threads)
        if imaginary is None:
            target[mine] = real[mine]
        else:
            target.real[mine], target.imag[mine] = real[mine], imaginary[mine]

    def extended_pass(self, tiles: Sequence[Tile], band: Band, rows: int, columns: int) -> ExtendedParts:
        """See `kernels.contract`."""
        job = _Job(tiles, band, ("rows", "columns"), self._team.threads)
        values = norm_check.values_of(tiles[0].A.dtype) if tiles else np.zeros(0)
        by_row, by_column = np.zeros((job.threads, 2, rows)), np.zeros((job.threads, 2, columns))
        squares = np.zeros((job.threads, 2, norm_check.LANES))
        tops, counts = np.zeros(job.threads), np.zeros(job.threads, np.int64)
        self._run(job, norm_check.extended_pass, *job.tiles, values, by_row, by_column, tops, squares, counts)
        return ExtendedParts(
            float(tops.max()), self.paired_sum([squares.reshape(-1, 1)]), self.paired_sum(list(by_row)),
            self.paired_sum(list(by_column)), int(counts.sum()),
        )  # fmt: skip

    def paired_sum(self, terms: Sequence[Array]) -> Array:
        """See `kernels.contract`."""
        return norm_check.paired_sum(terms)

    def _run(self, job: _Job, kernel: Callable[..., None], *arguments: Any) -> None:
        if job.threads == 1:
            kernel(0, 1, *arguments)
        else:
            with self._busy:
                self._team.run(partial(_on_thread, kernel, job), job.threads, *arguments)


class _Job:
    """The tiles of one pass as compiled code takes them, and how many threads are worth it."""

    def __init__(self, tiles: Sequence[Tile], band: Band, wants: Collection[str], threads: int):
        self.want = sum(WANTS[name] for name in wants)
        self._arrays = [_known(tile.A) for tile in tiles]  # the table holds addresses only: keep them alive
        self.threads = threads if sum(_bytes_in(band, array) for array in self._arrays) > ALONE else 1
        entries = [_entry(tile, A, band, self.want, self.threads) for tile, A in zip(tiles, self._arrays)]
        self._table = np.array(entries, np.int64).reshape(-1, compiled.ENTRIES_OF_TABLE)

    @property
    def tiles(self) -> tuple[Array, Array, Array]:
        """An entry of the type, the table of tiles, and room for what lies apart."""
        sample = np.zeros(1, self._arrays[0].dtype if self._arrays else np.float64)
        return sample, self._table, np.zeros((self.threads, 5 * compiled.SEGMENT), sample.dtype)

    @property
    def width(self) -> int:
        """The longest piece of a line, at least a segment."""
        return max(compiled.SEGMENT, int(self._table[:, compiled.PIECE].max(initial=0)))

    def rows(self, rows: int) -> tuple[int, int]:
        """The shape of the sums by row."""
        return (self._copies(turned=False), rows) if self.want & compiled.ROWS else (1, 0)

    def columns(self, columns: int) -> tuple[int, int]:
        """The shape of the sums by column."""
        return (self._copies(turned=True), columns) if self.want & compiled.COLUMNS else (1, 0)

    def _copies(self, *, turned: bool) -> int:
        """One for all threads where no two add to the same sum: of one tile, cut between lines only or across them."""
        if len(self._table) != 1:
            return self.threads
        along = bool(self._table[0, compiled.TURNED]) == turned
        whole, cut = (compiled.LENGTH, compiled.PIECE) if along else (compiled.LINES, compiled.CHUNK)
        return 1 if self._table[0, whole] <= self._table[0, cut] else self.threads


def _on_thread(kernel: Callable[..., None], job: _Job, tid: int, *arguments: Any) -> None:
    """The kernel on one thread; `job` keeps the arrays, of which the kernel knows the addresses, while it runs."""
    kernel(tid, *arguments)


def _total(copies: Array) -> Array:
    return np.asarray(copies[0] if len(copies) == 1 else copies.sum(axis=0))


def _bytes_in(band: Band, A: Array) -> int:
    """About how many bytes of a tile lie in the band."""
    width = max(0, min(band.below + band.above + 1, *A.shape))
    return min(max(A.shape) * width * A.itemsize, A.nbytes)


def _known(A: Array) -> Array:
    """A with a type that compiled code knows."""
    dtype = KNOWN[A.dtype]
    return A if dtype == A.dtype else A.view(dtype)


def _entry(tile: Tile, A: Array, band: Band, want: int, threads: int) -> tuple[int, ...]:
    """A tile's row of the table, see `norm_pass`."""
    (m, n), (down, right) = A.shape, A.strides
    turned = _turned(m, n, down, right, A.itemsize)
    lines, length, line_stride, stride = (n, m, right, down) if turned else (m, n, down, right)
    line0, place0 = (tile.col0, tile.row0) if turned else (tile.row0, tile.col0)
    by_line, by_place = (tile.cols, tile.rows) if turned else (tile.rows, tile.cols)
    back, ahead = (band.above, band.below) if turned else (band.below, band.above)
    no_gaps = A.flags.c_contiguous or A.flags.f_contiguous
    if not want & (compiled.ROWS | compiled.COLUMNS) and band == WHOLE and no_gaps:
        lines, length, stride = 1, A.size, A.itemsize  # where it is cut into lines makes no difference
    few = lines < CHUNKS * threads * 4
    chunk = max(1, lines) if few else max(4, min(LINES, -(-lines // (CHUNKS * threads))))
    piece = max(LEAST_PIECE, PIECE // max(1, lines)) if few else max(1, length)
    return (
        A.ctypes.data, lines, length, line_stride, stride, line0, place0, turned, by_line.first, by_line.nb,
        by_line.jump, by_place.first, by_place.nb, by_place.jump, back, ahead, chunk, piece,
    )  # fmt: skip


def _turned(m: int, n: int, down: int, right: int, itemsize: int) -> bool:
    """Whether columns are the lines: where they are contiguous, or the longer of two, or lie closer.

    Contiguous lines that are short cost more than long ones whose entries lie apart.
    """
    by_rows, by_columns = right == itemsize, down == itemsize
    if by_rows == by_columns:
        return m > n if by_rows else abs(down) < abs(right)
    return (by_columns and not m < SHORT < n) or (by_rows and n < SHORT < m)
