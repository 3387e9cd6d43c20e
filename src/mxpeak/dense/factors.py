"""The factors of a scaled copy of A: equilibration, the cast, and the LU."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any

import numpy as np

from mxpeak.dense.inputs import (
    Array,
    by_rows,
    check_finite,
    typed,
)
from mxpeak.errors import SingularError
from mxpeak.kernels.host import blas, lapack
from mxpeak.precision import PRECISIONS
from mxpeak.spans import Spans

#: Entries that are worked on at a time: their copies stay in the second-level cache.
CACHED = 1 << 17
#: Bytes from which the factors lie in pages of their own, first written by several threads.
LARGE = 1 << 25
#: A is scaled if the sums of its rows, or of its columns, spread by more, or lie farther from 1, than this.
SPREAD, RANGE = 2.0**10, 2.0**60
#: Beyond this condition·u, u the factors' roundoff, 50 steps of GMRES were never enough (experiments with n = 300).
HOPELESS = 2.0**10
#: Signs of an ill-conditioned matrix, upon which the condition is estimated at once: pivots of so different size, or
#: corrections so large beside the solution.
DOUBT = 2.0**-16


@dataclass(frozen=True, slots=True)
class Scaling:
    """D_r and D_c: powers of two that bring the largest entry of each row and column near 1; ||A||_inf without them."""

    rows: Array
    columns: Array
    A_inf: float


@dataclass(frozen=True)
class Factors:
    """P A_s = L U, or P A_s^T = L U where A lies by rows; singular: the first zero pivot, from 1."""

    precision: str
    LU: Array
    pivots: Array
    transposed: bool
    scaling: Scaling | None
    sizes: Sizes  # of A_s^T
    singular: int

    @property
    def A_inf(self) -> float:
        """||A_s||_inf."""
        return self.sizes.norms[0 if self.transposed else 1]

    @cached_property
    def condition(self) -> float:
        """||A_s||_1·||A_s^-1||_1, the latter estimated by a few solves."""
        if self.singular:
            return float("inf")
        A_one = self.sizes.norms[1 if self.transposed else 0]
        return A_one * lapack.inverse_norm(self.LU, self.pivots, infinity=self.transposed)

    @cached_property
    def growth(self) -> float:
        """max |u_ij| / max |a_ij|."""
        return _largest_of_upper(self.LU) / self.sizes.largest if self.sizes.largest else 1.0

    @property
    def fit(self) -> bool:
        """Whether GMRES has a chance with them."""
        return self.condition * PRECISIONS[self.precision].u <= HOPELESS

    @property
    def even(self) -> bool:
        """Whether U's diagonal shows no sign of singularity; not all singular matrices show one there."""
        diagonal = np.abs(self.LU.diagonal())
        return bool(diagonal.min() >= DOUBT * diagonal.max())

    def apply(self, R: Array) -> Array:
        """A_s^-1 R, each column brought near 1 for the factors' range; a new block of R's type."""
        low = np.empty(R.shape, self.LU.dtype, order="F")
        with np.errstate(all="ignore"):
            if low.dtype == R.dtype:
                low[:] = R
                lapack.getrs(self.LU, self.pivots, low, b"T" if self.transposed else b"N")
                return low
            scale = _power(np.abs(R).max(axis=0))
            np.multiply(R, scale, out=low, casting="same_kind")
            lapack.getrs(self.LU, self.pivots, low, b"T" if self.transposed else b"N")
            return np.asfortranarray(np.divide(low, scale, dtype=R.dtype))


class Estimates:
    """Condition and growth of factors, which are let go once these are known."""

    def __init__(self, factors: Factors):
        self._factors: Factors | None = factors
        self._values = (0.0, 0.0)

    def values(self) -> tuple[float, float]:
        """Condition and growth."""
        factors = self._factors
        if factors is not None:
            self._values = factors.condition, factors.growth
            self._factors = None
        return self._values


def factor_in_fp64(A: Array, spans: Spans) -> Factors:
    """A's factors in fp64, beyond which there is nothing to fall back to."""
    factors = factor(A, "fp64", spans)
    if factors.singular:
        raise SingularError(
            f"A is singular: pivot {factors.singular} of {A.shape[0]} is exactly zero; "
            "check the matrix, or solve in the sense of least squares (numpy.linalg.lstsq)"
        )
    return factors


def factor(A: Array, name: str, spans: Spans) -> Factors:
    """Scale if need be, copy once into the factors' type, and factor."""
    R = A if by_rows(A) else A.T
    transposed = R is A
    wide = name == "fp64"
    low = typed(A.dtype.kind == "c", wide=wide)
    W = _room(R.shape, low)
    with spans("equilibrate"):
        scaling = None
        sizes = _fill(W, R, None)
        if PRECISIONS[name].bytes < 4 or not sizes.balanced:
            check_finite(A, "A")
            scales = _equilibration(R)
            scaling = Scaling(*(scales if transposed else scales[::-1]), _inf_norm(R, transposed))
            sizes = _fill(W, R, scales)
    LU, pivots = W.T, np.empty(A.shape[0], np.int32)
    with spans("factor"):
        rounding = name not in ("fp64", "fp32")
        singular = lapack.getrf_rounded(LU, pivots, name) if rounding else lapack.getrf(LU, pivots)
    return Factors(name, LU, pivots, transposed, scaling, sizes, singular)


@dataclass(frozen=True, slots=True)
class Sizes:
    """A matrix's sums of absolute values along rows and columns, and its largest."""

    row_sums: Array
    column_sums: Array
    largest: float

    @property
    def norms(self) -> tuple[float, float]:
        """The infinity-norm and the one-norm."""
        return float(self.row_sums.max()), float(self.column_sums.max())

    @property
    def balanced(self) -> bool:
        """Whether range and spread suit the LU as they are; NaN and Inf do not."""
        sums = (self.row_sums, self.column_sums)
        most, least = max(float(s.max()) for s in sums), min(float(s.max()) for s in sums)
        if not 1 / RANGE < least <= most < RANGE:
            return False
        return all(float(s.max()) <= SPREAD * float(s.min()) for s in sums)


def _room(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An uninitialised matrix; a large one in ordinary pages.

    NumPy asks for huge ones.  On virtual machines whose host reclaims free memory these are rarely at hand: a first
    touch then took 0.6 s for 256 MB, more than a third of the LU, against 0.09 s in the pages that others just freed.
    """
    size = int(np.prod(shape)) * dtype.itemsize
    if size < LARGE or not hasattr(mmap, "MAP_ANONYMOUS"):
        return np.empty(shape, dtype)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, dtype).reshape(shape)


def _fill(W: Array, R: Array, scales: tuple[Array, Array] | None) -> Sizes:
    """W = R, scaled and cast; where W is large by BLAS's number of threads, since the system clears its pages."""
    threads = (blas.blas_facts()["threads"] or 1) if W.nbytes >= LARGE else 1
    if threads == 1:
        return _fill_rows(W, R, scales)

    def fill(rows: slice) -> Sizes:
        return _fill_rows(W[rows], R[rows], None if scales is None else (scales[0][rows], scales[1]))

    n = R.shape[0]
    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(fill, [slice(n * t // threads, n * (t + 1) // threads) for t in range(threads)]))
    return Sizes(
        np.concatenate([part.row_sums for part in parts]),
        np.sum([part.column_sums for part in parts], axis=0),
        max(part.largest for part in parts),
    )


def _fill_rows(W: Array, R: Array, scales: tuple[Array, Array] | None) -> Sizes:
    """W = R, scaled and cast; summed up while each piece is in the cache, so that R is read once."""
    row_sums, column_sums, largest = np.empty(R.shape[0]), np.zeros(R.shape[1]), 0.0
    room = np.empty((_rows_at_a_time(R), R.shape[1]), W.real.dtype)
    with np.errstate(all="ignore"):  # what overflows is seen in the sums
        for piece in _pieces(R):
            if scales is None:
                W[piece] = R[piece]
            else:
                W[piece] = R[piece] * (scales[0][piece, None] * scales[1])
            found = np.abs(W[piece], out=room[: len(W[piece])])
            row_sums[piece] = found.sum(axis=1)
            column_sums += found.sum(axis=0)
            largest = max(largest, float(found.max()))
    return Sizes(row_sums, column_sums, largest)


def _equilibration(R: Array) -> tuple[Array, Array]:
    """Powers of two for R's rows and columns: one kind by its largest entries, then the other by what that leaves.

    First comes the kind whose largest entries spread more.  Were rows of different scale dealt with by columns first,
    the one largest row would set every column's scale, and the others could underflow.
    """
    by_row, by_column = np.ones(R.shape[0]), np.ones(R.shape[1])
    row_max, column_max = _largest(R, by_row, by_column)
    if _spread(row_max) >= _spread(column_max):
        by_row = _power(row_max)
        return by_row, _power(_largest(R, by_row, by_column)[1])
    by_column = _power(column_max)
    return _power(_largest(R, by_row, by_column)[0]), by_column


def _largest(R: Array, by_row: Array, by_column: Array) -> tuple[Array, Array]:
    """The largest entries of the rows and of the columns of |R|, scaled."""
    row_max, column_max = np.empty(R.shape[0]), np.zeros(R.shape[1])
    for piece in _pieces(R):
        sizes = np.abs(R[piece]) * by_row[piece, None] * by_column
        row_max[piece] = sizes.max(axis=1)
        np.maximum(column_max, sizes.max(axis=0), out=column_max)
    return row_max, column_max


def _spread(largest: Array) -> int:
    """How many powers of two lie between the numbers other than zero."""
    exponents = np.frexp(largest[largest > 0])[1]
    return int(np.ptp(exponents)) if exponents.size else 0


def _inf_norm(R: Array, by_rows: bool) -> float:
    """||R||_inf, or that of R^T."""
    sums = np.zeros(R.shape[0])
    with np.errstate(over="ignore"):
        for piece in _pieces(R):
            if by_rows:
                sums[piece] = np.abs(R[piece]).sum(axis=1)
            else:
                sums += np.abs(R[piece]).sum(axis=0)
    return float(sums.max())


def _power(largest: Array) -> Array:
    """The power of two that brings each number to [1/2, 1); 1 for a zero."""
    return np.asarray(np.ldexp(1.0, np.clip(-np.frexp(largest)[1], -1000, 1000)))


def _rows_at_a_time(A: Array) -> int:
    return int(min(max(1, CACHED // A.shape[1]), A.shape[0]))


def _pieces(A: Array) -> Iterator[slice]:
    rows = _rows_at_a_time(A)
    return (slice(i, i + rows) for i in range(0, A.shape[0], rows))


def _largest_of_upper(LU: Array) -> float:
    """max |u_ij|, inf if one is not finite: the numbers above the diagonal, and few below it."""
    largest, n = 0.0, LU.shape[0]
    width = max(1, CACHED // n)
    for j0 in range(0, n, width):
        j1 = min(j0 + width, n)
        above, block = LU[:j0, j0:j1], np.triu(LU[j0:j1, j0:j1])
        found = max(float(np.abs(part).max(initial=0.0)) for part in (above, block))
        if not isfinite(found):
            return float("inf")
        largest = max(largest, found)
    return largest
