"""Copy, factor and multiply symmetric and Hermitian matrices on the host, with one triangle read.

LAPACK and BLAS read the memory of a row-major matrix W as W^T. The other triangle then contains the entries. If W is
Hermitian and complex, W^T is the conjugate of W, and W x = b is solved as W^T conj(x) = conj(b).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from mxpeak.kernels.contract.dense import SymmetricFactor, Triangle
from mxpeak.kernels.host.engine import blas, lapack
from mxpeak.kernels.host.engine.blas import Array


def copied(A: Triangle, scales: Array | None, W: Array, height: int, *, parallel: bool) -> tuple[Array, float]:
    """Write the triangle of D A D, rounded, to W, and return the row sums and the largest entry of |W|.

    Each piece of `height` rows is summed while it is in the cache. If `parallel`, as many threads as BLAS has share the
    rows, because the system clears pages at the first write.
    """
    n, threads = len(A), blas.own_threads() if parallel else 1
    pieces = [slice(i, min(i + height, n)) for i in range(0, n, height)]

    def part(thread: int) -> tuple[Array, float]:
        sums, largest = np.zeros(n), 0.0
        with np.errstate(all="ignore"):  # an overflow is visible in the sums
            for rows in pieces[thread::threads]:
                largest = max(largest, _copied_rows(A, scales, W, rows, sums))
        return sums, largest

    if threads == 1:
        return part(0)
    with ThreadPoolExecutor(threads) as pool:
        sums, largest = zip(*pool.map(part, range(threads)))
    return np.sum(sums, axis=0), max(largest)


def _copied_rows(A: Triangle, scales: Array | None, W: Array, rows: slice, sums: Array) -> float:
    """Copy some rows of the triangle to W, add their absolute values to the sums, and return the largest of them."""
    outside = slice(0, rows.start) if A.lower else slice(rows.stop, len(A))
    block, corner = A.array[rows, outside], A.array[rows, rows]
    corner = np.tril(corner) if A.lower else np.triu(corner)
    if A.hermitian:
        np.fill_diagonal(corner, corner.diagonal().real)
    if scales is not None:
        block = block * (scales[rows, None] * scales[outside])
        corner = corner * (scales[rows, None] * scales[rows])
    W[rows, outside], W[rows, rows] = block, corner
    sizes, of_corner = np.abs(W[rows, outside]), np.abs(W[rows, rows])
    sums[rows] += sizes.sum(1) + of_corner.sum(1) + of_corner.sum(0) - of_corner.diagonal()
    sums[outside] += sizes.sum(0)
    # NumPy's maximum returns NaN if an entry is NaN.
    return float(np.maximum(sizes.max(initial=0.0), of_corner.max()))


def shifted(T: Triangle, shift: float) -> Triangle:
    """Add shift·diag(T) to T in place, and return T."""
    if shift:
        diagonal = np.einsum("ii->i", T.array)  # a view that can be written
        diagonal *= diagonal.dtype.type(1.0 + shift)
    return T


def cholesky(W: Triangle, precision: str, shift: float) -> SymmetricFactor:
    """Factor W^T in place. Panels are fp32 if the operands of the updates are rounded to `precision`."""
    T = shifted(W.T, shift)
    if precision in ("fp64", "fp32"):
        breakdown = lapack.potrf(T.array, lower=T.lower)
    else:
        breakdown = lapack.potrf_blocked(T.array, lapack.NB, lapack.subtract_rounded(precision), lower=T.lower)
    return SymmetricFactor(T, None, transposed=True, breakdown=breakdown)


def ldl(W: Triangle) -> SymmetricFactor:
    """Factor W^T in place by xSYTRF or xHETRF."""
    T, pivots = W.T, np.empty(len(W), np.int32)
    zero = lapack.sytrf(T.array, pivots, lower=T.lower, hermitian=T.hermitian)
    return SymmetricFactor(T, pivots, transposed=True, breakdown=zero)


def solved(F: SymmetricFactor, B: Array) -> Array:
    """Return W^-1 B as a new block."""
    W, conj = F.W, F.W.hermitian and F.W.dtype.kind == "c"
    X = np.array(np.conj(B) if conj else B, order="F")
    if F.rows is None:
        lapack.potrs(W.array, X, lower=W.lower)
    else:
        lapack.sytrs(W.array, F.rows, X, lower=W.lower, hermitian=W.hermitian)
    return np.conj(X, out=X) if conj else X


def residual(B: Array, A: Triangle, X: Array) -> Array:
    """Return B - A X, and read the triangle of A once."""
    R, T = np.array(B, order="F"), A
    by_rows = A.array.strides[1] == A.dtype.itemsize and len(A) > 1
    conj = by_rows and A.hermitian and A.dtype.kind == "c"
    if by_rows:
        T = A.T
    if conj:
        np.conj(R, out=R)
        X = np.conj(X)
    lapack.subtract_symmetric_product(R, T.array, np.asfortranarray(X), lower=T.lower, hermitian=T.hermitian)
    return np.conj(R, out=R) if conj else R


def largest_pivot(F: SymmetricFactor) -> float:
    """Return max |d_ij|, or max |l_ii|² of a Cholesky factor; LAPACK marks blocks of order 2 by negative indices."""
    W, diagonal = F.W.array, np.abs(F.W.array.diagonal())
    if F.rows is None:
        return float(diagonal.max()) ** 2
    pairs = np.nonzero(F.rows < 0)[0][::2]
    crossing = np.abs(W.diagonal(-1 if F.W.lower else 1)[pairs])
    return float(np.maximum(diagonal.max(), crossing.max(initial=0.0)))
