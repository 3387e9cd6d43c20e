"""The factors of a matrix on the host: a scaled and cast copy, LAPACK's LU of it, and what is done with that."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from mxpeak.kernels.host import blas, lapack
from mxpeak.library.dense.arrays import Array

#: Entries that are worked on at a time: their copies stay in the second-level cache.
CACHED = 1 << 17
#: Bytes from which the factors lie in pages of their own, first written by several threads.
LARGE = 1 << 25
#: Sums along rows, sums along columns, the largest of all.
Sums = tuple[Array, Array, float]


@dataclass(frozen=True, slots=True)
class HostLU:
    """P A = L U, or P A^T = L U if transposed; singular: the first zero pivot, from 1."""

    LU: Array
    pivots: Array
    transposed: bool
    singular: int

    @property
    def dtype(self) -> Any:
        """The type of the factors."""
        return self.LU.dtype

    @property
    def diagonal(self) -> Array:
        """|u_ii|."""
        return np.asarray(np.abs(self.LU.diagonal()))

    def largest_of_upper(self) -> float:
        """max |u_ij|, inf if one is not finite: the numbers above the diagonal, and few below it."""
        largest, n = 0.0, self.LU.shape[0]
        width = max(1, CACHED // n)
        for j0 in range(0, n, width):
            j1 = min(j0 + width, n)
            above, block = self.LU[:j0, j0:j1], np.triu(self.LU[j0:j1, j0:j1])
            found = max(float(np.abs(part).max(initial=0.0)) for part in (above, block))
            if not isfinite(found):
                return float("inf")
            largest = max(largest, found)
        return largest

    def apply(self, R: Array) -> Array:
        """A^-1 R, each column brought near 1 for the factors' range; a new block of R's type."""
        low = np.empty(R.shape, self.LU.dtype, order="F")
        form = b"T" if self.transposed else b"N"
        with np.errstate(all="ignore"):
            if low.dtype == R.dtype:
                low[:] = R
                lapack.getrs(self.LU, self.pivots, low, form)
                return low
            scale = power(np.abs(R).max(axis=0))
            np.multiply(R, scale, out=low, casting="same_kind")
            lapack.getrs(self.LU, self.pivots, low, form)
            return np.asfortranarray(np.divide(low, scale, dtype=R.dtype))

    def inverse_one_norm(self) -> float:
        """Higham's estimate of ||A^-1||_1."""
        return lapack.inverse_norm(self.LU, self.pivots, infinity=self.transposed)


def power(largest: Array) -> Array:
    """The power of two that brings each number to [1/2, 1); 1 for a zero."""
    return np.asarray(np.ldexp(1.0, np.clip(-np.frexp(largest)[1], -1000, 1000)))


def room(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An uninitialised matrix; a large one in ordinary pages.

    NumPy asks for huge ones.  On virtual machines whose host reclaims free memory these are rarely at hand: a first
    touch then took 0.6 s for 256 MB, more than a third of the LU, against 0.09 s in the pages that others just freed.
    """
    size = int(np.prod(shape)) * dtype.itemsize
    if size < LARGE or not hasattr(mmap, "MAP_ANONYMOUS"):
        return np.empty(shape, dtype)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, dtype).reshape(shape)


def fill(W: Array, R: Array, scales: tuple[Array, Array] | None) -> Sums:
    """W = R, scaled and cast; where W is large by BLAS's number of threads, since the system clears its pages."""
    threads = (blas.blas_facts()["threads"] or 1) if W.nbytes >= LARGE else 1
    if threads == 1:
        return _fill_rows(W, R, scales)

    def part(rows: slice) -> Sums:
        return _fill_rows(W[rows], R[rows], None if scales is None else (scales[0][rows], scales[1]))

    n = R.shape[0]
    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(part, [slice(n * t // threads, n * (t + 1) // threads) for t in range(threads)]))
    by_row, by_column, largest = zip(*parts)
    return np.concatenate(by_row), np.sum(by_column, axis=0), max(largest)


def _fill_rows(W: Array, R: Array, scales: tuple[Array, Array] | None) -> Sums:
    """W = R, scaled and cast; summed up while each piece is in the cache, so that R is read once."""
    row_sums, column_sums, largest = np.empty(R.shape[0]), np.zeros(R.shape[1]), 0.0
    sizes = np.empty((_rows_at_a_time(R), R.shape[1]), W.real.dtype)
    with np.errstate(all="ignore"):  # what overflows is seen in the sums
        for piece in _pieces(R):
            if scales is None:
                W[piece] = R[piece]
            else:
                W[piece] = R[piece] * (scales[0][piece, None] * scales[1])
            found = np.abs(W[piece], out=sizes[: len(W[piece])])
            row_sums[piece] = found.sum(axis=1)
            column_sums += found.sum(axis=0)
            largest = max(largest, float(found.max()))
    return row_sums, column_sums, largest


def largest_entries(R: Array, by_row: Array, by_column: Array) -> tuple[Array, Array]:
    """The largest entries of the rows and of the columns of |R|, scaled."""
    row_max, column_max = np.empty(R.shape[0]), np.zeros(R.shape[1])
    for piece in _pieces(R):
        sizes = np.abs(R[piece]) * by_row[piece, None] * by_column
        row_max[piece] = sizes.max(axis=1)
        np.maximum(column_max, sizes.max(axis=0), out=column_max)
    return row_max, column_max


def inf_norm(R: Array, by_rows: bool) -> float:
    """||R||_inf, or that of R^T."""
    sums = np.zeros(R.shape[0])
    with np.errstate(over="ignore"):
        for piece in _pieces(R):
            if by_rows:
                sums[piece] = np.abs(R[piece]).sum(axis=1)
            else:
                sums += np.abs(R[piece]).sum(axis=0)
    return float(sums.max())


def _rows_at_a_time(A: Array) -> int:
    return int(min(max(1, CACHED // A.shape[1]), A.shape[0]))


def _pieces(A: Array) -> Iterator[slice]:
    rows = _rows_at_a_time(A)
    return (slice(i, i + rows) for i in range(0, A.shape[0], rows))
