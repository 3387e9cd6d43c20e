"""Compute norms on the host by compiled passes over tiles, distributed to a team of threads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from threading import Lock
from typing import Any

import ml_dtypes
import numpy as np
from numba import types
from numba.np.numpy_support import from_dtype

from mxpeak.kernels import arrays
from mxpeak.kernels.contract.norms import ExtendedParts, NormParts, Tile
from mxpeak.kernels.host.engine.first_use import Entry
from mxpeak.kernels.host.engine.jit import INT, TABLE
from mxpeak.kernels.host.engine.team import Team
from mxpeak.kernels.host.norms import check, exact_sums, small, tile_pass
from mxpeak.kernels.host.norms.tile_table import COMPILED_TYPES, WANTS, PassJob
from mxpeak.layout.structure import WHOLE, Band

Array = np.ndarray[Any, np.dtype[Any]]

#: The largest matrix, in bytes, for which one thread is as fast as several threads that must first be woken.
SMALL = 2**22


class HostNorms:
    """The `NormKernels` of the host, which run on the threads of a team."""

    xp = arrays.xp
    transport = None

    def __init__(self, team: Team):
        self._team = team
        self._busy = Lock()  # a team runs one function at a time

    def small_norm(self, A: Array, want: str) -> float | None:
        dtype = COMPILED_TYPES.get(A.dtype)
        if dtype is None or A.nbytes > SMALL or not A.flags.aligned or not 1 <= A.ndim <= 2:
            return None
        if dtype not in _ready:
            with _making_ready:
                _make_ready(dtype)
        A = A[:, None] if A.ndim == 1 else A
        norm: float = small.small_norm(A if A.dtype is dtype else A.view(dtype), WANTS[want])
        return None if norm == small.NEEDS_FULL_PASS else norm

    def norm_pass(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], rows: int, columns: int
    ) -> NormParts:
        job = PassJob(tiles, band, wants, self._team.threads)
        by_row, by_column = np.zeros(job.rows(rows)), np.zeros(job.columns(columns))
        across = np.zeros((job.threads, job.width))
        results = np.zeros((job.threads, tile_pass.RESULTS))
        self._run(job, tile_pass.norm_pass, job.want, *job.tiles, across, by_row, by_column, results)
        top = results.view(np.int64)[:, tile_pass.TOP_AT].max().view(np.float64)
        return NormParts(float(top), results[:, :3].sum(axis=0), _total(by_row), _total(by_column))

    def row_column_max(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], rows: int, columns: int
    ) -> tuple[Array, Array]:
        job = PassJob(tiles, band, wants, self._team.threads)
        tops = [np.zeros((job.threads, *shape[1:]), np.int64) for shape in (job.rows(rows), job.columns(columns))]
        self._run(job, exact_sums.maxima, job.want, *job.tiles, *tops)
        by_row, by_column = (copies.max(axis=0).view(np.float64) for copies in tops)
        return by_row, by_column

    def folded_sums(
        self,
        tiles: Sequence[Tile],
        band: Band,
        wants: Collection[str],
        squared: bool,
        sigmas: Sequence[float],
        row_factors: Array,
        column_factors: Array,
    ) -> tuple[Array, Array]:
        job, factors = PassJob(tiles, band, wants, self._team.threads), (row_factors, column_factors)
        by_row, by_column = (np.zeros((job.threads, len(sigmas), len(by_line))) for by_line in factors)
        want = job.want | (int(WANTS["squares"]) if squared else 0)
        folds = exact_sums.Folds(np.array(sigmas), *factors, by_row, by_column)
        self._run(job, exact_sums.folded_sums, want, *job.tiles, folds)
        return by_row.sum(axis=0), by_column.sum(axis=0)  # exact, in any order

    def read_all(self, tiles: Sequence[Tile]) -> None:
        job = PassJob(tiles, WHOLE, ("max",), self._team.threads)
        self._run(job, tile_pass.read_all, job.tiles[0], np.zeros(job.threads * tile_pass.APART, np.uint64))

    def half_powers(self, maxima: Array) -> Array:
        usable = np.isfinite(maxima) & (maxima > 0)
        fraction, e = np.frexp(np.where(usable, maxima, 1.0))  # maximum = fraction·2^e, with fraction in [1/2, 1)
        e = np.where(fraction == 0.5, e - 1, e)
        return np.where(usable, np.ldexp(1.0, -((e + 1) // 2)), 1.0)

    def unfolded(self, folds: Array, factors: Array, maxima: Array, squared: bool) -> Array:
        total = np.zeros(folds.shape[1])
        with np.errstate(all="ignore"):
            for fold in folds[::-1]:  # from the finest fold to the coarsest
                total = total + fold
            values = (np.sqrt(total) if squared else total) / factors / factors
        return np.where(np.isfinite(maxima) & (maxima > 0), values, maxima)

    def empty(self, rows: int, columns: int, dtype: str, order: str) -> Array:
        return np.empty((rows, columns), getattr(ml_dtypes, dtype, dtype), "F" if order == "F" else "C")

    def set_parts(self, target: Array, real: Array, imaginary: Array | None) -> None:
        self._team.run(self._set_part, target, real, imaginary)

    def _set_part(self, tid: int, target: Array, real: Array, imaginary: Array | None) -> None:
        rows, threads = target.shape[0], self._team.threads
        part = slice(rows * tid // threads, rows * (tid + 1) // threads)
        if imaginary is None:
            target[part] = real[part]
        else:
            target.real[part], target.imag[part] = real[part], imaginary[part]

    def extended_pass(self, tiles: Sequence[Tile], band: Band, rows: int, columns: int) -> ExtendedParts:
        job = PassJob(tiles, band, ("rows", "columns"), self._team.threads)
        values = check.values_of(tiles[0].A.dtype) if tiles else np.zeros(0)
        by_row, by_column = np.zeros((job.threads, 2, rows)), np.zeros((job.threads, 2, columns))
        squares = np.zeros((job.threads, 2, check.LANES))
        tops, counts = np.zeros(job.threads), np.zeros(job.threads, np.int64)
        table, buffers = job.tiles
        kind = check.KINDS.get(buffers.dtype, check.BITS)
        sums = check.ExtendedSums(by_row, by_column, tops, squares, counts)
        self._run(job, check.extended_pass, kind, table, buffers.view(np.uint8), values, sums)
        square, row_sums, column_sums = map(self.paired_sum, ([squares.reshape(-1, 1)], list(by_row), list(by_column)))
        return ExtendedParts(float(tops.max()), square, row_sums, column_sums, int(counts.sum()))

    def paired_sum(self, terms: Sequence[Array]) -> Array:
        return check.paired_sum(terms)

    def _run(self, job: PassJob, kernel: Callable[..., None], *arguments: Any) -> None:
        if job.threads == 1:
            kernel(0, 1, *arguments)
        else:
            with self._busy:
                self._team.run(partial(_on_thread, kernel, job), job.threads, *arguments)


def _on_thread(kernel: Callable[..., None], job: PassJob, tid: int, *arguments: Any) -> None:
    """Call the compiled kernel on thread `tid` of a team.

    `job` keeps the arrays alive, because the kernel only has their addresses.
    """
    kernel(tid, *arguments)


def _total(copies: Array) -> Array:
    """Return the sum of the threads' copies of an array."""
    return np.asarray(copies[0] if len(copies) == 1 else copies.sum(axis=0))


def first_use(details: str) -> list[Entry]:
    """Return the entry points that the norms benchmark compiles at its first use, the slowest first.

    `details` is "<type> <structure> [deterministic]". The diagonal of a complex Hermitian matrix is real, so the pass
    over the diagonal is also compiled for the real type.
    """
    name, structure, *options = details.split()
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    both: list[Any] = [COMPILED_TYPES[dtype]]
    if structure == "hermitian" and dtype.kind == "c":
        both.append(dtype.type(0).real.dtype)
    integers, reals = types.int64[::1], types.float64[::1]
    listed = []
    for each in both:
        buffers = from_dtype(each)[:, ::1]
        if options:
            by_line, sums = types.int64[:, ::1], types.float64[:, :, ::1]
            folds = types.NamedTuple((reals, reals, reals, sums, sums), exact_sums.Folds)
            listed.append(Entry("norms.exact_sums", "folded_sums", (INT, INT, INT, TABLE, buffers, folds)))
            listed.append(Entry("norms.exact_sums", "maxima", (INT, INT, INT, TABLE, buffers, by_line, by_line)))
        else:
            sums = (types.float64[:, ::1],) * 4
            listed.append(Entry("norms.tile_pass", "norm_pass", (INT, INT, INT, TABLE, buffers, *sums)))
    pairs = types.float64[:, :, ::1]
    extended = types.NamedTuple((pairs, pairs, reals, pairs, integers), check.ExtendedSums)
    oracle = INT, INT, INT, TABLE, types.uint8[:, ::1], reals, extended
    return [
        *listed,
        Entry("norms.check", "extended_pass", oracle),
        Entry("norms.tile_pass", "read_all", (INT, INT, TABLE, types.uint64[::1])),
    ]


_ready: set[np.dtype[Any]] = set()
_making_ready = Lock()


def _make_ready(dtype: np.dtype[Any]) -> None:
    """Compile `small_norm` for matrices of a type in all layouts, so that no later call has to compile."""
    small.small_norm.disable_compile(False)
    small.small_norm.compile((types.Array(from_dtype(dtype), 2, "A", readonly=True), types.int64))
    small.small_norm.disable_compile()
    _ready.add(dtype)
