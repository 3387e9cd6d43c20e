"""What an eliminated system is judged by: sums of A by rows and columns, the largest of X and B, residuals.

A largest number is infinite where NaN is among those that it is of.
"""

from __future__ import annotations

import numpy as np
from numba import types

from mxpeak.kernels.host.dense.small_lu_simd import RANK, products, subtract_product
from mxpeak.kernels.host.engine.jit import forms, inner
from mxpeak.kernels.host.engine.vector_ir import address_of, float_of, gemm_at, piece, row
from mxpeak.kernels.host.norms.magnitude import ordered

#: Squares below this may have lost digits, or lack those of an equal part.
LEAST_WEIGHT = 2.0**-900


# --- sizes of numbers -------------------------------------------------------------------------------------------


def _length(z):
    """|z| in fp64, 0 or inf where squares leave the range: as no entry does by which a balanced matrix is judged."""


def _modulus(z):
    """|z| in fp64, sqrt(a² + b²) without squares that leave the range."""


def _weight(z):
    """What |z| is compared by, in fp64: of a complex number its square."""


def _of_weight(weight, z):
    """The |z| of a weight."""


def _tells(weight, z):
    """Whether the largest weight is that of the largest |z|: squares have not left the range of fp64."""


@forms(_weight)
def _weight_of(z):
    def of_complex(z):
        a, b = np.float64(z.real), np.float64(z.imag)
        return a * a + b * b

    return of_complex if isinstance(z, types.Complex) else lambda z: np.float64(abs(z))


@forms(_of_weight)
def _size_of_weight(weight, z):
    return (lambda weight, z: np.sqrt(weight)) if isinstance(z, types.Complex) else lambda weight, z: weight


@forms(_tells)
def _weight_tells(weight, z):
    return (lambda weight, z: LEAST_WEIGHT < weight < np.inf) if z == types.complex128 else lambda weight, z: True


@forms(_length)
def _length_of(z):
    def of_complex(z):
        a, b = np.float64(z.real), np.float64(z.imag)
        return np.sqrt(a * a + b * b)

    return of_complex if isinstance(z, types.Complex) else lambda z: np.float64(abs(z))


@forms(_modulus)
def _modulus_of(z):
    def of_wide(z):
        a, b = np.float64(abs(z.real)), np.float64(abs(z.imag))
        least, most = (a, b) if a < b else (b, a)
        ratio = least / (most if most > 0 else 1.0)
        return most * np.sqrt(1.0 + ratio * ratio)

    return of_wide if z == types.complex128 else lambda z: _length(z)  # fp64 holds the squares of others


# --- of A -------------------------------------------------------------------------------------------------------


@inner()
def _wider(low, high, value):
    """The least and the largest with one more number; inf for NaN."""
    if not value <= high:
        high = value if value == value else np.inf
    return min(low, value), high


@inner(fastmath={"reassoc", "contract"})
def _sums_of_four(a, b, c, d, down, largest):
    """Sums of four rows' sizes; what they add to those down the columns and to the largest of these."""
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
    """Least and largest Σ_j |r_ij|; down_j = Σ_i |r_ij|, largest_j = max_i |r_ij|.

    Four rows go together, so that what goes down the columns is loaded and stored once for them.
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


@inner()
def ends(x):
    """The least and the largest of numbers not below zero, inf where one is NaN."""
    low, high = np.inf, 0.0
    for i in range(len(x)):
        low, high = _wider(low, high, x[i])
    return low, high


# --- of X and B, and residuals ----------------------------------------------------------------------------------


@inner(fastmath={"contract", "reassoc"})
def _dot(a, x):
    total = a[0] * x[0]
    for j in range(1, len(a)):
        total += a[j] * x[j]
    return total


@inner(fastmath={"contract"})
def _subtract(y, a, x):
    """y -= a x."""
    for j in range(len(a)):
        y[j] -= a[j] * x


@inner()
def _times(by_columns, R, x, y):
    """y -= A x."""
    n = len(R)
    for i in range(n):
        r = row(R, i, 0, n)
        if by_columns:
            _subtract(y, r, x[i])
        else:
            y[i] -= _dot(r, x)


@inner()
def _times_block(by_columns, R, W, C, gemm):
    """C -= A X, X being the columns of W right of U, as many as a row of C has; R is read as it lies, once.

    gemm   the address of the xGEMM that does it where A lies by rows, or 0
    """
    n, m, each = len(R), len(W), np.int64(R.itemsize)
    if gemm and not by_columns:
        x, a, c, minus = address_of(W, 0, m), address_of(R, 0, 0), address_of(C, 0, 0), R.dtype.type(-1)
        gemm_at(gemm, C.shape[1], n, n, minus, x, W.shape[1], a, n, c, C.shape[1])
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
    """max |x_i|, inf where one is NaN."""
    top = np.int64(0)
    for i in range(len(x)):
        top = max(top, ordered(_weight(x[i])))
    weight = float_of(np.uint64(top))
    if _tells(weight, x[0]):
        found = _of_weight(weight, x[0])
        return found if found == found else np.inf
    found = 0.0
    for i in range(len(x)):
        size = _modulus(x[i])
        if not size <= found:
            found = size if size == size else np.inf
    return found


@inner()
def _over(r_inf, A_inf, scale):
    """r_inf / (A_inf·scale) without overflow; r_inf itself for a system of zeros."""
    return r_inf / A_inf / scale if scale else r_inf


@inner()
def residual_of_each(by_columns, R, A_inf, X, B, sizes, x, r, C, W, gemm):
    """The worst ||b - A x|| / (||A||·||x|| + ||b||); the residuals go to W's columns right of U.

    `sizes` are those of each x and b, and room for those of the residuals.  C and r are the same memory.
    """
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
    """Σ_j v_j w_j, w real."""
    total = 0.0 * v[0]
    for j in range(len(v)):
        total += v[j] * weights[j]
    return total


@inner()
def residual_of_all(by_columns, R, A_inf, X, B, of_x, of_b, t, x, r):
    """The same of a combination of the columns by t, each over its own scale."""
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
    """max_i |x_ij| of as many columns, of which NaN is none; whether there is no NaN."""
    n, k, total = len(X), len(largest), 0.0
    largest[:] = 0.0
    for i in range(n):
        x = row(X, i, 0, k)
        for j in range(k):
            weight = _weight(x[j])
            total += weight
            largest[j] = weight if weight > largest[j] else largest[j]
    for j in range(k):
        if _tells(largest[j], X[0, j]):
            largest[j] = _of_weight(largest[j], X[0, j])
            continue
        largest[j] = 0.0
        for i in range(n):
            size = _modulus(X[i, j])
            largest[j] = size if size > largest[j] else largest[j]
    return total == total


@inner()
def sizes_of(X, B, of_x, of_b, facts):
    """The largest |x| and |b| of each column; of all x, and the least and the largest of b's columns but zeros."""
    k = X.shape[1]
    _largest_of_each(X, of_x)
    _largest_of_each(B, of_b)
    facts[7], facts[8], facts[9] = 0.0, np.inf, 0.0
    for j in range(k):
        facts[7] = max(facts[7], of_x[j])
        facts[8] = min(facts[8], of_b[j] if of_b[j] else np.inf)
        facts[9] = max(facts[9], of_b[j])
