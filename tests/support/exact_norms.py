"""Compute norms in exact arithmetic, and create matrices with NaN in entries that must not be read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise, product
from typing import Any

import numpy as np

from mxpeak.configs.norms import DIAGS, UPLOS
from mxpeak.layout.structure import WITH_DIAG, WITH_UPLO
from tests.support.roundoff import U
from tests.support.structures import definition

KINDS = ("max", "one", "inf", "fro")
LEAST = 2.0**-1074

#: Magnitudes are integers in units of 2^-1174: every fp64 is exact, and roots of squares have 100 more bits.
FINE = 1174


def counted(x: float) -> int:
    """Return a finite fp64 in units of 2^-1074."""
    numerator, denominator = x.as_integer_ratio()
    return numerator * 2**1074 // denominator


def size_of(x: complex) -> Any:
    """Return |x| in units; NaN if a part is NaN, otherwise infinity if a part is infinite."""
    parts = (x.real, x.imag)
    if not all(map(math.isfinite, parts)):
        return math.nan if any(map(math.isnan, parts)) else math.inf
    re, im = map(counted, parts)
    return math.isqrt(re * re + im * im << 2 * (FINE - 1074))


def vector_norm(kind: str, sizes: Sequence[Any]) -> Any:
    """Return a vector's norm in units, from the magnitudes of its entries."""
    strange = [x for x in sizes if isinstance(x, float)]
    if strange:
        return math.nan if any(map(math.isnan, strange)) else math.inf
    if kind == "fro":
        return math.isqrt(sum(x * x for x in sizes))
    return sum(sizes) if kind == "one" else max(sizes, default=0)


def rounded(x: Any) -> float:
    """Return the fp64 that is nearest to a number of units."""
    if isinstance(x, float):
        return x
    try:
        return float(x / 2**FINE)
    except OverflowError:
        return math.inf


def expanded(A: Any, name: str, **options: Any) -> list[list[Any]]:
    """Return the magnitudes of all entries of the matrix that a structure defines from A."""
    uplo, unit = options.get("uplo", "lower"), options.get("diag") == "unit"
    kl, ku = options.get("kl"), options.get("ku")
    inside = definition(name, uplo, ku if kl is None else kl, ku)  # type: ignore[arg-type]
    mirrored, real = name in ("symmetric", "hermitian", "hermitian-band"), name.startswith("hermitian")

    def entry(i: int, j: int) -> complex:
        if i == j and unit:
            return 1.0
        if i == j and real:
            return complex(A[i, j]).real
        if inside(i, j):
            return complex(A[i, j])
        return complex(A[j, i]) if mirrored and inside(j, i) else 0.0

    return [[size_of(entry(i, j)) for j in range(A.shape[1])] for i in range(A.shape[0])]


def exact_norms(sizes: Sequence[Sequence[Any]]) -> dict[str, float]:
    """Return the four norms, each rounded once."""
    everything, columns = [x for row in sizes for x in row], list(zip(*sizes))
    return {
        "max": rounded(vector_norm("max", everything)),
        "one": rounded(vector_norm("max", [vector_norm("one", column) for column in columns])),
        "inf": rounded(vector_norm("max", [vector_norm("one", row) for row in sizes])),
        "fro": rounded(vector_norm("fro", everything)),
    }


def agree(actual: float, exact: float, kind: str, A: Any) -> None:
    """Check a bound of m + n + 8 roundings, which holds for m or n (under a root m·n) additions in any order.

    The largest real entry is exact. Results near the smallest number have an error of half of it per entry.
    """
    m, n = A.shape
    if kind == "max" and A.dtype.kind != "c":
        np.testing.assert_equal(actual, exact)
        return
    bound = (m + n + 8) * U * exact + (m + n) * LEAST if math.isfinite(exact) else 0.0
    assert actual == exact or abs(actual - exact) <= bound or (math.isnan(actual) and math.isnan(exact)), (
        actual,
        exact,
    )


def cases(name: str) -> list[dict[str, Any]]:
    """Return all options of a structure."""
    if name == "band":
        return [{"kl": kl, "ku": ku} for kl, ku in ((0, 0), (2, 1), (0, 3), (5, 0), (40, 40))]
    if name not in WITH_UPLO:
        return [{}]
    if name in WITH_DIAG:
        return [{"uplo": uplo, "diag": diag} for uplo, diag in product(UPLOS, DIAGS)]
    widths = [{"kl": 0}, {"ku": 2}, {"kl": 40, "ku": 40}] if name == "hermitian-band" else [{}]
    return [{"uplo": uplo, **width} for uplo, width in product(UPLOS, widths)]


def shapes(name: str) -> list[tuple[int, int]]:
    squares = [(11, 11), (1, 1)]
    return squares if name in ("triangular", "symmetric", "hermitian", "hermitian-band") else [(13, 7), (5, 11), (1, 1)]


def unread(m: int, n: int, name: str, **options: Any) -> list[tuple[int, int]]:
    """Return the mask of the entries that a structure never reads."""
    kl, ku = options.get("kl"), options.get("ku")
    inside = definition(name, options.get("uplo", "lower"), ku if kl is None else kl, ku)  # type: ignore[arg-type]
    unit = options.get("diag") == "unit"
    return [(i, j) for i, j in product(range(m), range(n)) if not inside(i, j) or (unit and i == j)]


def poisoned(A: Any, name: str, **options: Any) -> Any:
    """Return A with NaN in unread entries: other triangle, outside the band, unit diagonal, imaginary diagonal."""
    A = A.copy()
    for entry in unread(*A.shape, name, **options):
        A[entry] = np.nan
    if name.startswith("hermitian") and A.dtype.kind == "c":
        for i in range(len(A)):
            A[i, i] = complex(A[i, i].real, np.nan)
    return A


def tiles_of(A: Any, heights: Sequence[int], widths: Sequence[int]) -> list[list[Any]]:
    """Return A in separate tiles; every other tile is column-major."""
    downs, rights = pairwise([0, *accumulate(heights)]), list(pairwise([0, *accumulate(widths)]))
    return [[np.array(A[i:i1, j:j1], order="CF"[(i + j) % 2]) for j, j1 in rights] for i, i1 in downs]
