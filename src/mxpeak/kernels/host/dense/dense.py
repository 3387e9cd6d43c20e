"""Dense solves on the host: LAPACK's LU of a scaled copy, on BLAS's own threads."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from mxpeak.kernels import arrays
from mxpeak.kernels.contract.dense import PART, PivotedLU, SymmetricFactor, Triangle
from mxpeak.kernels.contract.lu import EmulatedProducts, Fp64Emulation
from mxpeak.kernels.host.dense import symmetric
from mxpeak.kernels.host.engine import blas, lapack
from mxpeak.spans import HOST

if TYPE_CHECKING:
    from mxpeak.kernels.host.engine.matrix_engines import MatrixEngine

Array = np.ndarray[Any, np.dtype[Any]]
#: The row sums, the column sums and the largest entry.
Sums = tuple[Array, Array, float]

#: Entries that are processed at a time, so that their copies stay in the second-level cache.
CACHED = 1 << 17
#: Columns of a panel of an LU with emulated products (an estimate): the cost of their residues is proportional to 1/NB.
EMULATED_NB = 256
#: Size in bytes from which the factors get separate pages, which several threads touch first.
LARGE = 1 << 25


class HostDense:
    """`DenseKernels` on NumPy arrays with SciPy's BLAS and LAPACK; blocks are column-major, as LAPACK requires.

    `emulation` multiplies fp64 matrices in the updates of an LU; None selects LAPACK's LU.
    """

    device = None
    stopwatch = HOST
    xp = arrays.xp

    def __init__(self, emulation: EmulatedProducts | None = None):
        self._emulation = emulation

    def computing(self) -> AbstractContextManager[Any]:
        return np.errstate(all="ignore")

    def emulates(self, precision: str, dtype: np.dtype[Any]) -> bool:
        return precision not in ("fp64", "fp32") and _engine(precision, dtype) is None

    def fp64_emulation(self) -> Fp64Emulation | None:
        return None if self._emulation is None else self._emulation.record()

    def check_memory(self, n: int, dtype: np.dtype[Any], precision: str, *, copied: bool) -> None:
        """Do nothing, because the operating system reports exhausted host memory."""

    def factor_storage(self, n: int, dtype: np.dtype[Any]) -> Array:
        return _pages(n, n, dtype)

    def scaled_copy(self, A: Array, scales: tuple[Array, Array] | None, W: Array) -> Sums:
        """Write D_r A D_c, or A without scales, to W, and return the sums and the largest entry of |W|."""

        def part(rows: slice) -> Sums:
            return _scaled_rows(A[rows], None if scales is None else (scales[0][rows], scales[1]), W[rows])

        parts = _in_parts(A.shape[0], W.nbytes, part)
        if len(parts) == 1:
            return parts[0]
        by_row, by_column, largest = zip(*parts)
        return np.concatenate(by_row), np.sum(by_column, axis=0), max(largest)

    def largest_entries(self, A: Array, by_row: Array, by_column: Array) -> tuple[Array, Array]:
        row_max, column_max = np.empty(A.shape[0]), np.zeros(A.shape[1])
        for piece in _pieces(A):
            sizes = np.abs(A[piece]) * by_row[piece, None] * by_column
            row_max[piece] = sizes.max(axis=1)
            np.maximum(column_max, sizes.max(axis=0), out=column_max)
        return row_max, column_max

    def abs_sums(self, A: Array, by_row: Array, by_column: Array) -> None:
        by_column[:] = 0.0
        with np.errstate(over="ignore"):
            for piece in _pieces(A):
                sizes = np.abs(A[piece])
                sizes.sum(axis=1, dtype=np.float64, out=by_row[piece])
                by_column += sizes.sum(axis=0, dtype=np.float64)

    def factor(self, W: Array, precision: str) -> PivotedLU:
        """Factor W^T with partial pivoting, in place.

        The memory of a row-major W is that of the column-major matrix W^T, which LAPACK can factor without a copy. In
        the result, `rows` contains LAPACK's pivot indices, which count from 1.
        """
        LU, pivots = W.T, np.empty(W.shape[0], np.int32)
        if self._emulation is not None and W.dtype == np.float64:
            with blas.one_thread():  # the emulation has its own threads
                singular = lapack.getrf_blocked(LU, pivots, EMULATED_NB, self._emulation.subtract_product)
        elif precision in ("fp64", "fp32"):
            singular = lapack.getrf(LU, pivots)
        elif engine := _engine(precision, W.dtype):
            from mxpeak.kernels.host.lu.engine_products import (
                EngineLU,
            )  # imports compiled code that other solves do not need

            singular = EngineLU(engine, len(W)).factor(LU, pivots)
        else:
            singular = lapack.getrf_blocked(LU, pivots, lapack.NB, lapack.subtract_rounded(precision))
        return PivotedLU(LU, pivots, transposed=True, singular=singular)

    def factor_with_early_exit(self, should_stop: Callable[[Array], bool], W: Array) -> PivotedLU | None:
        LU, pivots, m = W.T, np.empty(len(W), np.int32), int(PART * len(W))
        singular = lapack.getrf(LU[:, :m], pivots[:m])
        if should_stop(abs(LU.diagonal()[:m])):
            return None
        singular = lapack.getrf_rest(LU, pivots, m, singular)
        return PivotedLU(LU, pivots, transposed=True, singular=singular)

    def solve(self, F: PivotedLU, B: Array, *, transposed: bool = False) -> Array:
        X = np.array(B, order="F")
        lapack.getrs(F.LU, F.rows, X, b"N" if transposed == F.transposed else b"T")
        return X

    def last_row(self, F: PivotedLU) -> int:
        """Return the index of the row of the factored matrix that the row interchanges move to the end."""
        at = len(F.rows) - 1
        for k in range(at, -1, -1):
            swapped = int(F.rows[k]) - 1
            at = swapped if at == k else k if at == swapped else at
        return at

    def residual(self, B: Array, A: Array | Triangle, X: Array) -> Array:
        """Return B - A X, computed by SciPy's BLAS.

        NumPy's BLAS is not used, because its threads would keep spinning after the product and slow down SciPy's BLAS.
        """
        if isinstance(A, Triangle):
            return symmetric.residual(B, A, X)
        R = np.array(B, order="F")
        lapack.subtract_product(R, A, np.asfortranarray(X))
        return R

    def copy_triangle(self, A: Triangle, scales: Array | None, W: Array) -> tuple[Array, float]:
        """Write the triangle of D A D, or of A without scales, to W, and return the sums and the largest entry."""
        return symmetric.copied(A, scales, W, _rows_at_a_time(A.array), parallel=W.nbytes >= LARGE)

    def cholesky(self, W: Triangle, precision: str, shift: float = 0.0) -> SymmetricFactor:
        """Factor W^T in place, by the processor's matrix engine if it multiplies numbers of this precision."""
        if engine := _engine(precision, W.dtype):
            from mxpeak.kernels.host.lu.engine_products import (
                EngineLU,
            )  # imports compiled code that other solves do not need

            T = symmetric.shifted(W.T, shift)
            breakdown = EngineLU(engine, len(W)).factor_symmetric(T.array, lower=T.lower)
            return SymmetricFactor(T, None, transposed=True, breakdown=breakdown)
        return symmetric.cholesky(W, precision, shift)

    def ldl(self, W: Triangle) -> SymmetricFactor:
        return symmetric.ldl(W)

    def solve_symmetric(self, F: SymmetricFactor, B: Array) -> Array:
        return symmetric.solved(F, B)

    def largest_pivot(self, F: SymmetricFactor) -> float:
        return symmetric.largest_pivot(F)

    def triangle_of_qr(self, A: Array, by_column: Array, dtype: np.dtype[Any]) -> Array:
        """Return R, computed by LAPACK's xGEQRF in a column-major copy of A D."""
        m, n = A.shape
        W = _pages(n, m, dtype)
        _in_parts(n, W.nbytes, lambda columns: _scaled_columns(A, by_column, W, columns))
        lapack.geqrf(W.T)
        return np.asfortranarray(np.triu(W.T[:n]))

    def solve_triangle(self, R: Array, B: Array, *, adjoint: bool = False) -> Array:
        X = np.array(B, order="F")
        lapack.solve_upper(R, X, b"C" if adjoint else b"N")
        return X

    def solve_by_svd(self, A: Array, B: Array, rcond: float) -> tuple[Array, int, Array]:
        """Return the least-squares solutions, computed by LAPACK's xGELSD."""
        from scipy.linalg import lstsq

        X, _, rank, s = lstsq(A, B, cond=rcond, lapack_driver="gelsd", check_finite=False)
        return np.asfortranarray(X), int(rank), s


def _pages(rows: int, columns: int, dtype: np.dtype[Any]) -> Array:
    """Return an uninitialized row-major matrix, in ordinary pages if it is large.

    NumPy requests huge pages, which are rarely available on virtual machines whose host reclaims free memory. There,
    the first touch of 256 MB took 0.6 s, more than a third of the LU, compared with 0.09 s in recently freed pages.
    """
    size = rows * columns * dtype.itemsize
    if size < LARGE or not hasattr(mmap, "MAP_ANONYMOUS"):
        return np.empty((rows, columns), dtype)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, dtype).reshape((rows, columns))


def _in_parts(count: int, size: int, work: Callable[[slice], Any]) -> list[Any]:
    """Return the results of `work` for slices of range(count), one per thread of BLAS if `size` bytes are large.

    Several threads write a large matrix, because the system clears pages at the first write.
    """
    threads = blas.own_threads() if size >= LARGE else 1
    parts = [slice(count * t // threads, count * (t + 1) // threads) for t in range(threads)]
    if threads == 1:
        return [work(parts[0])]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, parts))


def _scaled_columns(A: Array, by_column: Array, W: Array, columns: slice) -> None:
    """Write the columns of A D, rounded, to the rows of W, in pieces that stay in the cache."""
    width = max(1, CACHED // max(1, len(A)))
    with np.errstate(all="ignore"):
        for j in range(columns.start, columns.stop, width):
            piece = slice(j, min(j + width, columns.stop))
            W[piece] = (A[:, piece] * by_column[piece]).T


def _scaled_rows(A: Array, scales: tuple[Array, Array] | None, W: Array) -> Sums:
    """Write D_r A D_c, rounded, to W, and return the row sums, the column sums and the largest entry of |W|.

    Each piece of rows is summed while it is in the cache.
    """
    row_sums, column_sums, largest = np.empty(A.shape[0]), np.zeros(A.shape[1]), 0.0
    sizes = np.empty((_rows_at_a_time(A), A.shape[1]), W.real.dtype)
    with np.errstate(all="ignore"):  # an overflow is visible in the sums
        for piece in _pieces(A):
            if scales is None:
                W[piece] = A[piece]
            else:
                W[piece] = A[piece] * (scales[0][piece, None] * scales[1])
            magnitudes = np.abs(W[piece], out=sizes[: len(W[piece])])
            row_sums[piece] = magnitudes.sum(axis=1)
            column_sums += magnitudes.sum(axis=0)
            largest = max(largest, float(magnitudes.max()))
    return row_sums, column_sums, largest


def _rows_at_a_time(A: Array) -> int:
    """Return the number of rows of A for which copies stay in the cache, at least one."""
    return int(min(max(1, CACHED // A.shape[1]), A.shape[0]))


def _engine(precision: str, dtype: np.dtype[Any]) -> MatrixEngine | None:
    """Return the processor's matrix engine for real operands of a precision, or None if no engine is used.

    Engines multiply only real bf16 or fp16 numbers.
    """
    if precision not in ("bf16", "fp16") or dtype.kind == "c":
        return None
    # This import loads the compiler, which other solves do not need.
    from mxpeak.kernels.host.engine.matrix_engines import chosen, engine_for

    return engine_for(precision, chosen())


def _pieces(A: Array) -> Iterator[slice]:
    """Return slices that divide the rows of A into pieces whose copies stay in the cache."""
    rows = _rows_at_a_time(A)
    return (slice(i, i + rows) for i in range(0, A.shape[0], rows))
