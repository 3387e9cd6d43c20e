"""Check a solved system: row and column sums of |A|, the largest entries of X and B, and residuals.

A maximum is infinite if one of its numbers is NaN.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import types

from mxpeak.kernels.host.dense.small_lu_simd import RANK, products, subtract_product
from mxpeak.kernels.host.engine.jit import by_type, inner
from mxpeak.kernels.host.engine.vector_ir import address_of, float_of, gemm_at, piece, row, row_block
from mxpeak.kernels.host.norms.magnitude import ordered

#: Squares below this bound may have lost digits to underflow.
MIN_WEIGHT = 2.0**-900


class CheckedSystem(NamedTuple):
    """The system A X = B that is checked. A is R, or R^T if `by_columns`.

    A_inf     ||A||_inf
    gemm      the address of the xGEMM, or 0
    """

    by_columns: bool
    R: Any
    X: Any
    B: Any
    A_inf: float
    gemm: int


@inner()
def store_solution(W, m, X, x):
    """Store the solutions for B in X, and the solution for the probe in x. They begin at column m of W."""
    k = X.shape[1]
    for i in range(X.shape[0]):
        for j in range(k):
            X[i, j] = W[i, m + j]
        x[i] = W[i, m + k]


@inner()
def add_correction(W, m, X):
    """Add the corrections to X. They begin at column m of W."""
    for i in range(X.shape[0]):
        for j in range(X.shape[1]):
            X[i, j] += W[i, m + j]


@by_type
def _modulus(z):
    """Return |z| in fp64, computed as sqrt(a² + b²) without overflow or underflow, where a = Re z and b = Im z."""

    def of_wide(z):
        a, b = np.float64(abs(z.real)), np.float64(abs(z.imag))
        smaller, larger = (a, b) if a < b else (b, a)
        ratio = smaller / (larger if larger > 0 else 1.0)
        return larger * np.sqrt(1.0 + ratio * ratio)

    return (
        of_wide if z == types.complex128 else lambda z: _length(z)
    )  # in fp64, the squares of all other types neither overflow nor underflow


@by_type
def _weight(z):
    """Return the fp64 number by which |z| is compared: |z|² for complex z, and |z| for real z."""

    def of_complex(z):
        a, b = np.float64(z.real), np.float64(z.imag)
        return a * a + b * b

    return of_complex if isinstance(z, types.Complex) else lambda z: np.float64(abs(z))


@by_type
def _from_weight(weight, z):
    """Return |z| from the result of `_weight` for z: its square root for complex z, and itself for real z."""
    return (lambda weight, z: np.sqrt(weight)) if isinstance(z, types.Complex) else lambda weight, z: weight


@inner(inline=True)
def _length(z):
    """Return |z| in fp64, computed from the squares of its parts.

    If the squares leave the range of fp64, the result is 0 or inf. This does not occur for balanced matrices.
    """
    return _from_weight(_weight(z), z)


@by_type
def _is_accurate(weight, z):
    """Return whether `weight`, a result of `_weight` for z, lost no digits by overflow or underflow.

    Only the squares of complex128 numbers can leave the range of fp64.
    """
    return (lambda weight, z: MIN_WEIGHT < weight < np.inf) if z == types.complex128 else lambda weight, z: True


@inner()
def _wider(low, high, value):
    """Extend the range low … high to include a value, and return the new range. NaN extends the range to inf."""
    if not value <= high:
        high = value if value == value else np.inf
    return min(low, value), high


@inner(fastmath={"reassoc", "contract"})
def _sums_of_four(a, b, c, d, down, largest):
    """Return Σ |a_j| for each of four rows a, b, c and d.

    The function also adds the absolute values to the column sums `down`, and updates the column maxima `largest`.
    """
    s0 = s1 = s2 = s3 = 0.0
    for j in range(len(a)):
        x0, x1, x2, x3 = _length(a[j]), _length(b[j]), _length(c[j]), _length(d[j])
        s0 += x0
        s1 += x1
        s2 += x2
        s3 += x3
        down[j] += (x0 + x1) + (x2 + x3)
        y0, y1 = x0 if x0 > x1 else x1, x2 if x2 > x3 else x3
        y0 = y0 if y0 > y1 else y1
        largest[j] = y0 if y0 > largest[j] else largest[j]
    return s0, s1, s2, s3


@inner()
def sums(R, down, largest):
    """Return the smallest and the largest row sum Σ_j |r_ij|, and store the column sums and column maxima of |R|.

    down_j = Σ_i |r_ij|, and largest_j = max_i |r_ij|. Four rows are processed together, so that the column sums and
    maxima are loaded and stored once per four rows.
    """
    n = len(R)
    low, high = np.inf, 0.0
    for j in range(n):
        down[j] = largest[j] = 0.0
    whole = n - n % 4
    for i in range(0, whole, 4):
        a, b, c, d = row(R, i, 0, n), row(R, i + 1, 0, n), row(R, i + 2, 0, n), row(R, i + 3, 0, n)
        for total in _sums_of_four(a, b, c, d, down, largest):
            low, high = _wider(low, high, total)
    for i in range(whole, n):
        r, total = row(R, i, 0, n), 0.0
        for j in range(n):
            size = _length(r[j])
            total += size
            down[j] += size
            largest[j] = size if size > largest[j] else largest[j]
        low, high = _wider(low, high, total)
    return low, high


@by_type
def _size_on_diagonal(z):
    """Return |Re z|, the size of a diagonal entry of a Hermitian matrix."""
    return lambda z: np.float64(abs(z.real))


@inner(fastmath={"reassoc", "contract"})
def _sum_of_row(t, first, stop, sums):
    """Return Σ |t_j| for j = first, …, stop - 1, and add the absolute values to `sums`."""
    total = 0.0
    for j in range(first, stop):
        size = _length(t[j])
        total += size
        sums[j] += size
    return total


@inner()
def sums_of_triangle(lower, T, sums):
    """Store the row sums Σ_j |a_ij| of the Hermitian matrix A whose lower or upper triangle is that of T."""
    n = len(T)
    sums[:] = 0.0
    for i in range(n):
        t = row(T, i, 0, n)
        first, stop = (0, i) if lower else (i + 1, n)
        sums[i] += _size_on_diagonal(t[i]) + _sum_of_row(t, first, stop, sums)


@inner()
def ends(x):
    """Return the smallest and the largest of the non-negative numbers x_i. The largest is inf if any x_i is NaN."""
    low, high = np.inf, 0.0
    for i in range(len(x)):
        low, high = _wider(low, high, x[i])
    return low, high


@inner(fastmath={"contract", "reassoc"})
def _dot(a, x):
    """Return the dot product Σ a_j x_j, without conjugation."""
    total = a[0] * x[0]
    for j in range(1, len(a)):
        total += a[j] * x[j]
    return total


@inner(fastmath={"contract"})
def _subtract(y, a, x):
    """Subtract x·a from the vector y in place."""
    for j in range(len(a)):
        y[j] -= a[j] * x


@inner()
def _times(by_columns, R, x, y):
    """Subtract A x from y in place, where A is R, or R^T if `by_columns`."""
    n = len(R)
    for i in range(n):
        r = row(R, i, 0, n)
        if by_columns:
            _subtract(y, r, x[i])
        else:
            y[i] -= _dot(r, x)


@inner()
def _times_block(by_columns, R, W, C, gemm):
    """Compute C -= A X in one pass over R, where A is R, or R^T if `by_columns`.

    X consists of the first columns of W right of U, as many as C has. `gemm` is the address of the xGEMM that computes
    the product if A is row-major, or 0.
    """
    n, m, each = len(R), len(W), np.int64(R.itemsize)
    if gemm and not by_columns:
        X, A, C_all = row_block(W, 0, m), row_block(R, 0, 0), row_block(C, 0, 0)
        gemm_at(gemm, R.dtype.type(-1), (C.shape[1], n, n), X, A, C_all)
        return
    down, right = (each, R.strides[0]) if by_columns else (R.strides[0], each)
    together, first = n if by_columns else RANK, address_of(R, 0, 0)
    for i in range(0, n, together):
        c, l, rows = address_of(C, i, 0), first + i * down, min(together, n - i)
        for p in range(0, n - n % RANK, RANK):
            u = address_of(W, p, m), W.strides[0]
            products(W, (c, C.strides[0]), (l + p * right, down, right), u, rows, C.shape[1])
        for p in range(n - n % RANK, n):
            u = address_of(W, p, m), W.strides[0]
            subtract_product(W, (c, C.strides[0]), (l + p * right, down, right), u, rows, C.shape[1])


@inner()
def largest_of(x):
    """Return max |x_i|, or inf if any x_i is NaN."""
    top = np.int64(0)
    for i in range(len(x)):
        top = max(top, ordered(_weight(x[i])))
    weight = float_of(np.uint64(top))
    if _is_accurate(weight, x[0]):
        largest = _from_weight(weight, x[0])
        return largest if largest == largest else np.inf
    largest = 0.0
    for i in range(len(x)):
        size = _modulus(x[i])
        if not size <= largest:
            largest = size if size == size else np.inf
    return largest


@inner()
def _over(r_inf, A_inf, scale):
    """Return r_inf / (A_inf·scale) without overflow, or r_inf if `scale` is 0, as for a zero right-hand side."""
    return r_inf / A_inf / scale if scale else r_inf


@inner()
def residual_of_each(system, sizes, x, r, C, W):
    """Return the largest ||b - A x|| / (||A||·||x|| + ||b||) over all right-hand sides.

    The function writes the residuals to the columns of W right of U. `sizes` contains the norms of each x and b, and
    workspace for the norms of the residuals. C and r share their memory.
    """
    by_columns, R, X, B, A_inf, gemm = system
    of_x, of_b, of_r = sizes
    m, (n, k) = len(W), X.shape
    if k == 1:
        for i in range(n):
            x[i], r[i] = X[i, 0], B[i, 0]
        _times(by_columns, R, x, r)
        for i in range(n):
            W[i, m] = r[i]
        return _over(largest_of(piece(r, 0, n)), A_inf, of_x[0] + of_b[0] / A_inf)
    for i in range(n):
        for j in range(C.shape[1]):
            C[i, j] = B[i, j] if j < k else 0
        for j in range(k):
            W[i, m + j] = X[i, j]
    _times_block(by_columns, R, W, C, gemm)
    for i in range(n):
        for j in range(k):
            W[i, m + j] = C[i, j]
    if not _largest_of_each(C, of_r):
        return np.inf
    worst = 0.0
    for j in range(k):
        worst = max(worst, _over(of_r[j], A_inf, of_x[j] + of_b[j] / A_inf))
    return worst


@inner(fastmath={"contract", "reassoc"})
def _combined(v, weights):
    """Return Σ_j v_j w_j, where w are the real `weights`."""
    total = 0.0 * v[0]
    for j in range(len(v)):
        total += v[j] * weights[j]
    return total


@inner()
def residual_of_all(system, of_x, of_b, t, x, r):
    """Return the backward error of one random combination of all right-hand sides, with the weights t.

    Each column is divided by its scale, ||x|| + ||b|| / ||A||, before the columns are combined.
    """
    by_columns, R, X, B, A_inf, _ = system
    k = X.shape[1]
    for j in range(k):
        scale = of_x[j] + of_b[j] / A_inf
        of_x[j] = t[j].real / scale if scale > 0 else 0.0
    for i in range(len(X)):
        x[i], r[i] = _combined(row(X, i, 0, k), of_x), _combined(row(B, i, 0, k), of_x)
    _times(by_columns, R, x, r)
    return _over(largest_of(piece(r, 0, len(X))), A_inf, 1.5 * np.sqrt(k))


@inner()
def _largest_of_each(X, largest):
    """Store largest_j = max_i |x_ij|, ignoring NaN, and return whether X contains no NaN."""
    n, k, total = len(X), len(largest), 0.0
    largest[:] = 0.0
    for i in range(n):
        x = row(X, i, 0, k)
        for j in range(k):
            weight = _weight(x[j])
            total += weight
            largest[j] = weight if weight > largest[j] else largest[j]
    for j in range(k):
        if _is_accurate(largest[j], X[0, j]):
            largest[j] = _from_weight(largest[j], X[0, j])
            continue
        largest[j] = 0.0
        for i in range(n):
            size = _modulus(X[i, j])
            largest[j] = size if size > largest[j] else largest[j]
    return total == total


@inner()
def sizes_of(X, B, of_x, of_b, facts):
    """Store max |x| and max |b| of each column, and the diagnostics 7 to 9 of `solve`.

    These diagnostics are the largest |x|, and the smallest and the largest nonzero max |b|.
    """
    k = X.shape[1]
    _largest_of_each(X, of_x)
    _largest_of_each(B, of_b)
    facts[7], facts[8], facts[9] = 0.0, np.inf, 0.0
    for j in range(k):
        facts[7] = max(facts[7], of_x[j])
        facts[8] = min(facts[8], of_b[j] if of_b[j] else np.inf)
        facts[9] = max(facts[9], of_b[j])


@inner(fastmath={"contract", "reassoc"})
def _products_of_row(t, first, stop, x, y, x_i):
    """Return Σ t_j x_j for j = first, …, stop - 1, and subtract x_i·t_j from y_j.

    The conjugate of t replaces t in the second product.
    """
    total = 0 * x_i
    for j in range(first, stop):
        total += t[j] * x[j]
        y[j] -= t[j].conjugate() * x_i
    return total


@inner(fastmath={"contract", "reassoc"})
def _products_of_conjugate(t, first, stop, x, y, x_i):
    """Compute `_products_of_row` for the conjugate of t."""
    total = 0 * x_i
    for j in range(first, stop):
        total += t[j].conjugate() * x[j]
        y[j] -= t[j] * x_i
    return total


@inner()
def residual_by_triangle(system, of_x, of_b, x, r, W):
    """Return the largest ||b - A x|| / (||A||·||x|| + ||b||) over all right-hand sides, with one triangle of A read.

    `system` is (lower, conj, T, X, B, ||A||): A is the Hermitian matrix whose lower or upper triangle is that of T, or
    its conjugate. The residuals are written to the columns of W on the right of its diagonal. `of_x` and `of_b` contain
    the norms of each x and b.
    """
    lower, conj, T, X, B, A_inf = system
    m, (n, k) = len(W), X.shape
    worst = 0.0
    for side in range(k):
        for i in range(n):
            x[i], r[i] = X[i, side], B[i, side]
        for i in range(n):
            t = row(T, i, 0, n)
            first, stop = (0, i) if lower else (i + 1, n)
            if conj:
                total = _products_of_conjugate(t, first, stop, x, r, x[i])
            else:
                total = _products_of_row(t, first, stop, x, r, x[i])
            r[i] -= total + t[i].real * x[i]
        for i in range(n):
            W[i, m + side] = r[i]
        worst = max(worst, _over(largest_of(piece(r, 0, n)), A_inf, of_x[side] + of_b[side] / A_inf))
    return worst
