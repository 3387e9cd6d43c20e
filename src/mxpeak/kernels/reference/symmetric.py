"""Reference kernels of symmetric and Hermitian matrices: each operation written as its definition."""

from __future__ import annotations

from math import sqrt

import numpy as np

from mxpeak.kernels.contract.dense import SymmetricFactor, Triangle
from mxpeak.kernels.reference.rounding import Array, quiet

#: A diagonal entry is a pivot of order 1 if it is at least BOUND times the largest entry of its column (Bunch, Kaufman
#: 1977).
BOUND = (1.0 + sqrt(17.0)) / 8.0


def mirrored(A: Triangle) -> Array:
    """Return all entries of a symmetric or Hermitian matrix."""
    half = np.tril(A.array) if A.lower else np.triu(A.array)
    strict = np.tril(half, -1) if A.lower else np.triu(half, 1)
    if A.hermitian:
        np.fill_diagonal(half, half.diagonal().real)
        strict = np.conj(strict)
    return np.asarray(half + strict.T)


def bunch_kaufman(W: Array, *, hermitian: bool) -> tuple[Array, Array, Array, int]:
    """Return rows, L and D with W[rows][:, rows] = L D L^T (or L D L^H), and 1 + the index of the first zero pivot."""
    n, A = len(W), W.copy()
    rows, L, D, zero = np.arange(n), np.eye(n, dtype=W.dtype), np.zeros_like(W), 0
    k = 0
    while k < n:
        p, size = k, 1
        below = np.abs(A[k + 1 :, k])
        if max(abs(A[k, k]), below.max(initial=0.0)) == 0.0:
            zero = zero or k + 1
            D[k, k], k = 1.0, k + 1
            continue
        if below.size and abs(A[k, k]) < BOUND * below.max():
            r = k + 1 + int(below.argmax())
            largest = np.delete(np.abs(A[r, k:]), r - k).max()
            if abs(A[k, k]) * largest >= BOUND * below.max() ** 2:
                p, size = k, 1
            elif abs(A[r, r]) >= BOUND * largest:
                p, size = r, 1
            else:
                p, size = r, 2
        at = k + size - 1
        A[[at, p]], L[[at, p], :k], rows[[at, p]] = A[[p, at]], L[[p, at], :k], rows[[p, at]]
        A[:, [at, p]] = A[:, [p, at]]
        e = k + size
        D[k:e, k:e] = A[k:e, k:e]
        L[e:, k:e] = A[e:, k:e] @ np.linalg.inv(D[k:e, k:e])
        across = np.conj(L[e:, k:e]).T if hermitian else L[e:, k:e].T
        A[e:, e:] -= L[e:, k:e] @ D[k:e, k:e] @ across
        k = e
    return rows, L, D, zero


def ldl(W: Triangle) -> SymmetricFactor:
    """Factor W; `rows` contains the order of the rows and D, and the triangle contains L."""
    with quiet():
        rows, L, D, zero = bunch_kaufman(mirrored(W), hermitian=W.hermitian)
    return SymmetricFactor(Triangle(L, True, W.hermitian), (rows, D), transposed=False, breakdown=zero)
