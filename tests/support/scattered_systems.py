"""Generate small sparse systems of ten kinds, from dominant to structurally singular."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def scattered(rng: np.random.Generator, n: int, each: float = 3.0) -> Array:
    """Return a matrix with about `each` normally distributed entries per row."""
    return np.where(rng.random((n, n)) < each / n, rng.standard_normal((n, n)), 0.0)


def systems() -> Iterator[tuple[str, Array]]:
    """Names and matrices: 500 of them, 2 to 40 rows each."""
    rng = np.random.default_rng(51)
    for k in range(50):
        n = int(rng.integers(2, 41))
        identity, order = np.eye(n), rng.permutation(n)
        S = scattered(rng, n)
        dominant = S + np.diag(1.0 + np.abs(S).sum(axis=1))
        yield "dominant", dominant
        yield "permuted", dominant[order]
        yield "graded", dominant * 2.0 ** rng.integers(-200, 200, (n, 1)) * 2.0 ** rng.integers(-200, 200, n)
        yield "any", S + np.where(identity[order] > 0, rng.uniform(0.5, 2.0, n), 0.0)
        yield "skew", S - S.T + 10.0 ** rng.uniform(-6, 0) * identity
        half = max(1, n // 3)
        B = scattered(rng, n)[:half] + identity[:half]
        yield "saddle", np.block([[dominant + dominant.T, B.T], [B, np.zeros((half, half))]])
        band = np.triu(np.tril(rng.standard_normal((n, n)), 2), -1)
        yield "band", band
        yield "nearly singular", dominant @ np.diag(np.geomspace(1.0, 10.0 ** -rng.uniform(6, 20), n)) @ dominant
        short = dominant.copy()
        total = short[:-1].sum(axis=0)
        short[-1] = total + (k % 4) * np.where(total != 0, np.spacing(np.abs(total)), 0.0)
        yield "short by an ulp", short
        hole = S + identity[order]
        hole[:, 0] = 0.0 if k % 2 else hole[:, 0]
        hole[: n // 2 + 1, n // 2 :] = 0.0  # more rows than columns that they have entries in
        yield "structurally singular", hole
