"""Norms on the host: compiled passes over tiles, shared out among a team of threads."""

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
from mxpeak.kernels.host.engine.team import Team
from mxpeak.kernels.host.norms import check, exact_sums, small
from mxpeak.kernels.host.norms import tile_pass as compiled
from mxpeak.kernels.host.norms.tile_table import KNOWN, WANTS, Job
from mxpeak.layout.structure import WHOLE, Band

Array = np.ndarray[Any, np.dtype[Any]]

#: Up to so many bytes one thread by itself is as quick as several that must be woken.
SMALL = 2**22


class HostNorms:
    """The norm kernels on the threads of a team."""

    xp = arrays.xp
    transport = None

    def __init__(self, team: Team):
        self._team = team
        self._busy = Lock()  # a team does one thing at a time

    def small_norm(self, A: Array, want: str) -> float | None:
        dtype = KNOWN.get(A.dtype)
        if dtype is None or A.nbytes > SMALL or not A.flags.aligned or not 1 <= A.ndim <= 2:
            return None
        if dtype not in _ready:
            with _making_ready:
                _make_ready(dtype)
        A = A[:, None] if A.ndim == 1 else A
        found: float = small.small_norm(A if A.dtype is dtype else A.view(dtype), WANTS[want])
        return None if found == small.NEEDS_FULL_PASS else found

    def norm_pass(
        self, tiles: Sequence[Tile], band: Band, wants: Collection[str], rows: int, columns: int
    ) -> NormParts:
        job = Job(tiles, band, wants, self._team.threads)
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
        job = Job(tiles, band, wants, self._team.threads)
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
        job, folds = Job(tiles, band, wants, self._team.threads), len(sigmas)
        by_row = np.zeros((job.threads, folds, len(row_factors)))
        by_column = np.zeros((job.threads, folds, len(column_factors)))
        self._run(
            job,
            exact_sums.folded_sums,
            job.want,
            squared,
            *job.tiles,
            np.array(sigmas),
            row_factors,
            column_factors,
            by_row,
            by_column,
        )
        return by_row.sum(axis=0), by_column.sum(axis=0)  # exact, in any order

    def read_all(self, tiles: Sequence[Tile]) -> None:
        job = Job(tiles, WHOLE, ("max",), self._team.threads)
        _, table, _ = job.tiles
        self._run(job, compiled.read_all, table, np.zeros(job.threads * compiled.APART, np.uint64))

    def half_powers(self, maxima: Array) -> Array:
        usable = np.isfinite(maxima) & (maxima > 0)
        fraction, e = np.frexp(np.where(usable, maxima, 1.0))  # maximum = fraction·2^e, fraction in [1/2, 1)
        e = np.where(fraction == 0.5, e - 1, e)
        return np.where(usable, np.ldexp(1.0, -((e + 1) // 2)), 1.0)

    def unfolded(self, folds: Array, factors: Array, maxima: Array, squared: bool) -> Array:
        total = np.zeros(folds.shape[1])
        with np.errstate(all="ignore"):
            for fold in folds[::-1]:  # the finest first
                total = total + fold
            values = (np.sqrt(total) if squared else total) / factors / factors
        return np.where(np.isfinite(maxima) & (maxima > 0), values, maxima)

    def empty(self, rows: int, columns: int, dtype: str, order: str) -> Array:
        return np.empty((rows, columns), getattr(ml_dtypes, dtype, dtype), "F" if order == "F" else "C")

    def set_parts(self, target: Array, real: Array, imaginary: Array | None) -> None:
        self._team.run(self._set_part, target, real, imaginary)

    def _set_part(self, tid: int, target: Array, real: Array, imaginary: Array | None) -> None:
        rows, threads = target.shape[0], self._team.threads
        mine = slice(rows * tid // threads, rows * (tid + 1) // threads)
        if imaginary is None:
            target[mine] = real[mine]
        else:
            target.real[mine], target.imag[mine] = real[mine], imaginary[mine]

    def extended_pass(self, tiles: Sequence[Tile], band: Band, rows: int, columns: int) -> ExtendedParts:
        job = Job(tiles, band, ("rows", "columns"), self._team.threads)
        values = check.values_of(tiles[0].A.dtype) if tiles else np.zeros(0)
        by_row, by_column = np.zeros((job.threads, 2, rows)), np.zeros((job.threads, 2, columns))
        squares = np.zeros((job.threads, 2, check.LANES))
        tops, counts = np.zeros(job.threads), np.zeros(job.threads, np.int64)
        sample, table, buffers = job.tiles
        what = (check.KINDS.get(sample.dtype, check.BITS), table, buffers.view(np.uint8))
        self._run(job, check.extended_pass, *what, values, by_row, by_column, tops, squares, counts)
        return ExtendedParts(
            float(tops.max()),
            self.paired_sum([squares.reshape(-1, 1)]),
            self.paired_sum(list(by_row)),
            self.paired_sum(list(by_column)),
            int(counts.sum()),
        )

    def paired_sum(self, terms: Sequence[Array]) -> Array:
        return check.paired_sum(terms)

    def _run(self, job: Job, kernel: Callable[..., None], *arguments: Any) -> None:
        if job.threads == 1:
            kernel(0, 1, *arguments)
        else:
            with self._busy:
                self._team.run(partial(_on_thread, kernel, job), job.threads, *arguments)


def _on_thread(kernel: Callable[..., None], job: Job, tid: int, *arguments: Any) -> None:
    """The kernel on one thread; `job` keeps the arrays alive, of which the kernel has only addresses."""
    kernel(tid, *arguments)


def _total(copies: Array) -> Array:
    return np.asarray(copies[0] if len(copies) == 1 else copies.sum(axis=0))


_ready: set[np.dtype[Any]] = set()
_making_ready = Lock()


def _make_ready(dtype: np.dtype[Any]) -> None:
    """Compile for arrays of this type of any layout, once, so that no layout has to be compiled for by itself."""
    small.small_norm.disable_compile(False)
    small.small_norm.compile((types.Array(from_dtype(dtype), 2, "A", readonly=True), types.int64))
    small.small_norm.disable_compile()
    _ready.add(dtype)
