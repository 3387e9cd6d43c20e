"""Generate hard systems for solvers, with solutions and errors in extended precision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.linalg import toeplitz

from tests.support.roundoff import U

Array = np.ndarray[Any, np.dtype[Any]]
Long = np.longdouble


def orthogonal(rng: np.random.Generator, n: int) -> Array:
    return np.linalg.qr(rng.standard_normal((n, n)))[0]


def systems() -> Iterator[tuple[str, Array]]:
    """Return the names and matrices of 504 systems."""
    rng = np.random.default_rng(19)
    for k in range(84):
        n = int(rng.integers(2, 41))
        yield "random", rng.standard_normal((n, n))
        spread = 10.0 ** rng.uniform(-14, 14, n)
        graded = rng.standard_normal((n, n))
        yield "graded", graded * (spread[:, None] if k % 3 else 1.0) * (spread[::-1] if k % 2 else 1.0)
        decades = rng.uniform(6, 20)
        yield "nearly singular", (orthogonal(rng, n) * np.geomspace(1.0, 10.0**-decades, n)) @ orthogonal(rng, n)
        c = np.sinc(rng.uniform(0.02, 0.9) * np.arange(n)) if k % 2 else rng.standard_normal(n)
        yield "Toeplitz", toeplitz(c, c if k % 2 else None)
        yield "Vandermonde", np.vander(np.sort(rng.uniform(-1, 1, min(n, 26))))
        short = rng.standard_normal((n, n))
        short[-1] = short[:-1].sum(axis=0) if n > 1 else short[-1]
        short[-1] += (k % 4) * np.spacing(np.abs(short[-1])) * rng.choice([-1.0, 1.0], n)
        yield "short by an ulp", short


def exactly(A: Array, b: Array) -> Array:
    """Return A^-1 b in long double, by LU with partial pivoting, refined once."""
    LU, n, P = A.astype(Long), len(A), np.arange(len(A))
    for k in range(n):
        p = k + int(np.argmax(np.abs(LU[k:, k])))
        LU[[k, p]], P[[k, p]] = LU[[p, k]], P[[p, k]]
        if LU[k, k] == 0:
            return np.full(n, np.inf, Long)  # singular also in long double
        LU[k + 1 :, k] /= LU[k, k]
        LU[k + 1 :, k + 1 :] -= np.outer(LU[k + 1 :, k], LU[k, k + 1 :])

    def solve(r: Array) -> Array:
        y = r[P].copy()
        for k in range(n):
            y[k + 1 :] -= LU[k + 1 :, k] * y[k]
        for k in reversed(range(n)):
            y[k] /= LU[k, k]
            y[:k] -= LU[:k, k] * y[k]
        return y

    x = solve(b.astype(Long))
    return x + solve(b.astype(Long) - A.astype(Long) @ x)


def true_eta(A: Array, x: Array, b: Array) -> float:
    """Return the backward error in units of n·u, with the residual in long double."""
    A, x, b = (v.astype(Long) for v in (A, x, b))
    size = np.abs(A).sum(1).max() * np.abs(x).max() + np.abs(b).max()
    return float(np.abs(b - A @ x).max() / size / (len(A) * U))


def row_error(A: Array, x: Array, b: Array) -> float:
    """Return the row-wise backward error in units of n·u, with the residuals in long double."""
    wide: Any = np.clongdouble if np.iscomplexobj(A) or np.iscomplexobj(b) else Long
    X, B = (np.reshape(V, (len(A), -1)).astype(wide) for V in (x, b))
    sizes = np.abs(A).astype(Long) @ np.abs(X) + np.abs(B)
    residuals = np.abs(B - A.astype(wide) @ X)
    return float((residuals / np.where(sizes > 0, sizes, 1)).max() / (len(A) * U))
