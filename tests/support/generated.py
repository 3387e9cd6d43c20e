"""Generate matrices by their definition, with bounds of the differences of a backend."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from mxpeak.layout.entries import Entries
from mxpeak.layout.generators import generator
from tests.support.roundoff import U

KINDS = {
    "HPL's": Entries("lcg", 0, seed=100, scale=-1.0, shift=0.5),
    "another lcg": Entries("lcg", 0, seed=2**31 - 1, first=10**12 + 7, scale=1.7, shift=-0.85),
    "gaussian": Entries("gaussian", 0, seed=3, scale=0.6),
    "unit-factors": Entries("unit-factors", 0, alpha=0.013, beta=0.27),
}


def entries_of(kind: str, n: int) -> Entries:
    return replace(KINDS[kind], n=n)


@lru_cache(maxsize=64)
def whole(entries: Entries, columns: int) -> Any:
    """The generated matrix by its definition."""
    values = [entries.value(i, j) for i in range(entries.n) for j in range(columns)]
    return np.array(values).reshape((entries.n, columns))


def slack(entries: Entries) -> float:
    """How far two correct evaluations of an entry may lie apart.

    The others are made of few roundings in a fixed order and agree bit for bit.  A Gaussian is scale·r·cos(2 pi v) with
    r = sqrt(-2 ln u) <= sqrt(66 ln 2) < 6.77.  Per evaluation: r has 4u (2u of the logarithm halved, a product, a root,
    an ulp to spare), the cosine 2u of its own and up to 2·2 pi·u < 13u from the rounding of 2 pi v, the products 2u;
    that is 21u·r·scale, and twice that for the two of them.
    """
    return 42 * U * 6.77 * abs(entries.scale) if entries.kind == "gaussian" else 0.0


def drawn_system(name: str, n: int) -> tuple[Any, Any]:
    """A and b of a generator, entry by entry from their definition, in fp64."""
    system = generator(name, n)
    A = np.array([[system.entries.value(i, j) for j in range(n)] for i in range(n)])
    if system.diagonal is not None:
        np.fill_diagonal(A, system.diagonal)
    if system.row_sum is not None:
        np.fill_diagonal(A, 0.0)
        np.fill_diagonal(A, system.row_sum * np.abs(A).sum(axis=1))
    return A, np.array([system.right_side.value(i, 0) for i in range(n)])
