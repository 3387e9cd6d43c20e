"""Call SciPy's LAPACK through the function pointers that SciPy exports for Cython, and factor with rounded operands.

Matrices to be factored are column-major. A row-major A is passed as the column-major A^T, so nothing is transposed.
The types s, d, c and z are supported. Each call releases the GIL and uses BLAS's own threads.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

from mxpeak.kernels.contract.dense import FEW_COLUMNS
from mxpeak.kernels.host.engine import blas
from mxpeak.kernels.host.engine.blas import Array

#: The LAPACK letter of each type.
LETTERS = {
    np.dtype(np.float32): "s",
    np.dtype(np.float64): "d",
    np.dtype(np.complex64): "c",
    np.dtype(np.complex128): "z",
}
#: Number of columns of a panel of the LU with rounded operands. The arithmetic within a panel is fp32.
NB = 64

cython_lapack = blas.pointers("cython_lapack")
_call = partial(blas.call, interface=cython_lapack)


def _columns(A: Array) -> int:
    """Return the leading dimension of a column-major block, in numbers."""
    assert A.shape[0] <= 1 or A.strides[0] == A.itemsize, f"strides {A.strides}: not column-major"
    return max(A.strides[1] // A.itemsize, 1) if A.shape[1] > 1 else max(A.shape[0], 1)


def getrf(A: Array, pivots: Array) -> int:
    """Factor P A = L U in place by xGETRF with pivots counted from 1; 2/3·n³ flops.

    Returns 0, or 1 + the index of the first column with a zero pivot.
    """
    info = ctypes.c_int(0)
    _call(f"{LETTERS[A.dtype]}getrf", *A.shape, A, _columns(A), pivots, info)
    return info.value


def getrs(LU: Array, pivots: Array, B: Array, form: bytes) -> None:
    """Overwrite B with A^-1 B (form N), A^-T B (T) or A^-H B (C) by xGETRS; 2·n²·k flops.

    LU and `pivots` are the factors of A. B is column-major and has k columns.
    """
    n, k = B.shape
    _call(f"{LETTERS[LU.dtype]}getrs", form, n, k, LU, _columns(LU), pivots, B, _columns(B), ctypes.c_int(0))


def geqrf(A: Array) -> None:
    """Overwrite A with the triangle R of A = Q R and the Householder vectors below it, by xGEQRF.

    A is column-major. For real numbers, the factorization takes 2·n²·(m - n/3) flops.
    """
    (m, n), letter, work = A.shape, LETTERS[A.dtype], np.empty(1, A.dtype)
    tau, lead = np.empty(max(1, min(m, n)), A.dtype), _columns(A)
    _call(f"{letter}geqrf", m, n, A, lead, tau, work, -1, ctypes.c_int(0))
    work = np.empty(max(1, int(work[0].real)), A.dtype)
    _call(f"{letter}geqrf", m, n, A, lead, tau, work, len(work), ctypes.c_int(0))


def solve_upper(R: Array, B: Array, form: bytes) -> None:
    """Overwrite B with R^-1 B (form N) or R^-H B (C) for an upper triangle R; n²·k flops.

    R and B are column-major, and B has k columns.
    """
    n, k = B.shape
    letter, one = LETTERS[R.dtype], np.ones(1, R.dtype)
    if k == 1:
        blas.call(f"{letter}trsv", b"U", form, b"N", n, R, _columns(R), B, 1)
    else:
        blas.call(f"{letter}trsm", b"L", b"U", form, b"N", n, k, one, R, _columns(R), B, _columns(B))


def subtract_product(R: Array, A: Array, X: Array) -> None:
    """Subtract A X from R in place; 2·n²·k flops.

    A is row-major or column-major, and X and R are column-major.
    """
    (n, k), m, letter = X.shape, len(A), LETTERS[A.dtype]
    # `blas.order` describes the transpose of A, and this call needs A itself.
    of_transpose, lda = blas.order(A)
    form = b"T" if of_transpose == b"N" else b"N"
    minus, one = np.array([-1.0], A.dtype), np.array([1.0], A.dtype)
    if k == 1:
        rows, columns = (n, m) if form == b"T" else (m, n)
        blas.call(f"{letter}gemv", form, rows, columns, minus, A, lda, X, 1, one, R, 1)
    else:
        blas.call(f"{letter}gemm", form, b"N", m, k, n, minus, A, lda, X, _columns(X), one, R, _columns(R))


def _laswp(A: Array, pivots: Array) -> None:
    """Swap row i with row pivots[i] - 1 of a column-major A, for all i in ascending order."""
    if A.shape[1]:
        _call(f"{LETTERS[A.dtype]}laswp", A.shape[1], A, _columns(A), 1, len(pivots), pivots, 1)


def solve_unit_lower(L: Array, B: Array) -> None:
    """Compute B = L^-1 B in place with the unit lower triangle L of a column-major block."""
    left_lower_plain_unit, one = (b"L", b"L", b"N", b"U"), np.ones(1, B.dtype)
    blas.call(f"{LETTERS[B.dtype]}trsm", *left_lower_plain_unit, *B.shape, one, L, _columns(L), B, _columns(B))


def getrf_rest(A: Array, pivots: Array, m: int, singular: int) -> int:
    """Complete the LU factorization of a square A after its first m columns have been factored by `getrf`.

    `singular` is the result of that first `getrf`. Returns 0, or 1 + the index of the first column with a zero pivot.
    """
    _laswp(A[:, m:], pivots[:m])
    solve_unit_lower(A[:m, :m], A[:m, m:])
    subtract_product(A[m:, m:], A[m:, :m], A[:m, m:])
    at = getrf(A[m:, m:], pivots[m:])
    _laswp(A[m:, :m], pivots[m:])
    pivots[m:] += np.int32(m)
    return singular or (m + at if at else 0)


def getrf_blocked(
    A: Array,
    pivots: Array,
    NB: int,
    subtract: Callable[[Array, Array, Array], None],
    solve: Callable[[Array, Array], None] = solve_unit_lower,
) -> int:
    """Factor P A = L U in place by a right-looking LU with panels of NB columns; `subtract` computes C -= L U.

    A and the accumulators are fp32 (or complex fp32), as with hardware for 16-bit and 8-bit products. `solve` computes
    U = L^-1 U for the rows of U. Pivots and result are those of `getrf`.
    """
    n, singular = A.shape[0], 0
    for j0 in range(0, n, NB):
        j1 = min(j0 + NB, n)
        at = getrf(A[j0:, j0:j1], pivots[j0:j1])
        singular = singular or (j0 + at if at else 0)
        _laswp(A[j0:, :j0], pivots[j0:j1])
        if j1 < n:
            _laswp(A[j0:, j1:], pivots[j0:j1])
            solve(A[j0:j1, j0:j1], A[j0:j1, j1:])
            subtract(A[j1:, j1:], A[j1:, j0:j1], A[j0:j1, j1:])
        pivots[j0:j1] += j0
    return singular


def potrf(A: Array, *, lower: bool) -> int:
    """Compute the Cholesky factor of a triangle in place by xPOTRF; n³/3 flops.

    Returns 0, or the order of the first leading minor that is not positive.
    """
    info = ctypes.c_int(0)
    _call(f"{LETTERS[A.dtype]}potrf", _triangle(lower), len(A), A, _columns(A), info)
    return info.value


def potrs(C: Array, B: Array, *, lower: bool) -> None:
    """Overwrite B with A^-1 B by xPOTRS, or a few columns by xTRSV, with the Cholesky factor C of A; 2·n²·k flops."""
    n, k = B.shape
    if k <= FEW_COLUMNS:
        across = b"C" if C.dtype.kind == "c" else b"T"
        for j in range(k):
            for form in (b"N", across) if lower else (across, b"N"):
                blas.call(f"{LETTERS[C.dtype]}trsv", _triangle(lower), form, b"N", n, C, _columns(C), B[:, j], 1)
        return
    _call(f"{LETTERS[C.dtype]}potrs", _triangle(lower), n, k, C, _columns(C), B, _columns(B), ctypes.c_int(0))


def potrf_blocked(A: Array, NB: int, subtract: Callable[[Array, Array, Array], None], *, lower: bool) -> int:
    """Compute the Cholesky factor of a triangle in place, with panels of NB columns; `subtract` computes C -= L U.

    The update of the other triangle is omitted, except within blocks of the diagonal. The result is that of `potrf`.
    """
    n = len(A)
    for j0 in range(0, n, NB):
        j1 = min(j0 + NB, n)
        if at := potrf(A[j0:j1, j0:j1], lower=lower):
            return j0 + at
        panel = A[j1:, j0:j1] if lower else A[j0:j1, j1:]
        _solve_panel(A[j0:j1, j0:j1], panel, lower=lower)
        L = panel if lower else np.array(np.conj(panel.T), order="F")
        for k0 in range(j1, n, NB):
            k1 = min(k0 + NB, n)
            U = np.array(np.conj(L[k0 - j1 : k1 - j1].T), order="F")
            rows, L_rows = (slice(k0, n), L[k0 - j1 :]) if lower else (slice(j1, k1), L[: k1 - j1])
            subtract(A[rows, k0:k1], L_rows, U)
    return 0


def _solve_panel(C: Array, panel: Array, *, lower: bool) -> None:
    """Compute L21 = A21 L11^-H in place if `lower`, otherwise U12 = U11^-H A12."""
    one, form = np.ones(1, C.dtype), b"C" if C.dtype.kind == "c" else b"T"
    side = b"R" if lower else b"L"
    flags = side, _triangle(lower), form, b"N"
    blas.call(f"{LETTERS[C.dtype]}trsm", *flags, *panel.shape, one, C, _columns(C), panel, _columns(panel))


def sytrf(A: Array, pivots: Array, *, lower: bool, hermitian: bool) -> int:
    """Factor A = L D L^T, or L D L^H, in place by xSYTRF or xHETRF; n³/3 flops.

    Returns 0, or 1 + the index of the first zero block of D.
    """
    routine, n, info = f"{LETTERS[A.dtype]}{_kind(A, hermitian)}trf", len(A), ctypes.c_int(0)
    size = np.empty(1, A.dtype)
    _call(routine, _triangle(lower), n, A, _columns(A), pivots, size, -1, info)
    work = np.empty(max(1, int(size[0].real)), A.dtype)
    _call(routine, _triangle(lower), n, A, _columns(A), pivots, work, len(work), info)
    return info.value


def sytrs(C: Array, pivots: Array, B: Array, *, lower: bool, hermitian: bool) -> None:
    """Overwrite B with A^-1 B by xSYTRS or xHETRS, where C and `pivots` are the factors of A; 2·n²·k flops."""
    (n, k), routine = B.shape, f"{LETTERS[C.dtype]}{_kind(C, hermitian)}trs"
    _call(routine, _triangle(lower), n, k, C, _columns(C), pivots, B, _columns(B), ctypes.c_int(0))


def subtract_symmetric_product(R: Array, A: Array, X: Array, *, lower: bool, hermitian: bool) -> None:
    """Subtract A X from R in place, where one triangle of the column-major A is read; 2·n²·k flops."""
    (n, k), letter, kind = X.shape, LETTERS[A.dtype], _kind(A, hermitian)
    minus, one = np.array([-1.0], A.dtype), np.array([1.0], A.dtype)
    if k == 1 and (A.dtype.kind != "c" or hermitian):
        blas.call(f"{letter}{kind}mv", _triangle(lower), n, minus, A, _columns(A), X, 1, one, R, 1)
    else:
        sizes = b"L", _triangle(lower), n, k
        blas.call(f"{letter}{kind}mm", *sizes, minus, A, _columns(A), X, _columns(X), one, R, _columns(R))


def _triangle(lower: bool) -> bytes:
    return b"L" if lower else b"U"


def _kind(A: Array, hermitian: bool) -> str:
    return "he" if hermitian and A.dtype.kind == "c" else "sy"


def subtract_rounded(precision: str) -> Callable[[Array, Array, Array], None]:
    """Return a function that computes R -= A X in fp32 after rounding A and X to a precision.

    The function emulates hardware that multiplies operands of this precision.
    """
    return lambda R, A, X: subtract_product(R, rounded(A, precision), rounded(X, precision))


def rounded(A: Array, precision: str) -> Array:
    """Return a copy of A with each real and imaginary part rounded to a precision, ties to even."""
    parts = np.array(A, order="F").T.view(A.real.dtype)
    return _ROUNDINGS[precision](parts).view(A.dtype).T


def _through(narrow: Any) -> Callable[[Array], Array]:
    def rounding(A: Array) -> Array:
        with np.errstate(over="ignore"):
            return A.astype(narrow).astype(A.dtype)

    return rounding


def _to_tf32(A: Array) -> Array:
    """Round fp32 numbers in place to the 11 significant bits of TF32, with ties to even, and return the array.

    The function adds 0x0FFF plus the last kept bit to the bits of each number, and then clears the 13 lowest bits.
    """
    bits = A.view(np.uint32)
    bits += np.uint32(0x0FFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    bits &= np.uint32(0xFFFFE000)
    return A


_ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "tf32": _to_tf32,
    "bf16": _through(ml_dtypes.bfloat16),
    "fp16": _through(np.float16),
    "fp8": _through(ml_dtypes.float8_e4m3fn),
}
