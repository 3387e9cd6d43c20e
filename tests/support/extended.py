"""Solve systems in extended precision for comparisons with fp64."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def solved(A: Array, B: Array) -> Array:
    """Return A^-1 B in long double: LU with partial pivoting, refined once; infinity if a pivot is zero."""
    LU, n, P = A.astype(np.longdouble), len(A), np.arange(len(A))
    for k in range(n):
        p = k + int(np.argmax(np.abs(LU[k:, k])))
        LU[[k, p]], P[[k, p]] = LU[[p, k]], P[[p, k]]
        if LU[k, k] == 0:
            return np.full(B.shape, np.inf, np.longdouble)
        LU[k + 1 :, k] /= LU[k, k]
        LU[k + 1 :, k + 1 :] -= np.outer(LU[k + 1 :, k], LU[k, k + 1 :])

    def both_triangles(R: Array) -> Array:
        Y = R[P].astype(np.longdouble)
        for k in range(n):
            Y[k + 1 :] -= np.multiply.outer(LU[k + 1 :, k], Y[k])
        for k in reversed(range(n)):
            Y[k] /= LU[k, k]
            Y[:k] -= np.multiply.outer(LU[:k, k], Y[k])
        return Y

    X = both_triangles(B)
    return X + both_triangles(B - A.astype(np.longdouble) @ X)
