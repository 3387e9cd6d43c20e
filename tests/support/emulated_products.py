"""Emulate libraries that multiply fp64 matrices with integers, with the reference kernels' operands.

Each row of A and each column of B becomes integers with one exponent. `sliced` adds the products of slices of 7 bits,
and drops those below the last slice, as Ozaki I does; `by_residues` multiplies modulo pairwise coprime numbers and
combines the residues, as Ozaki II does.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from mxpeak.kernels.reference.kernels import ReferenceKernels

#: C -= A B in place.
Product = Callable[[Any, Any, Any], None]

SLICE = 7
#: Pairwise coprime numbers of at most 8 bits, whose product exceeds 2^150.
MODULI = (256, 255, 253, 251, 247, 241, 239, 233, 229, 227, 223, 217, 211, 199, 197, 193, 191, 181, 179, 173)


def integers(A: Any, bits: int) -> tuple[Any, Any]:
    """Return A's entries as integers below 2^bits in absolute value, and the exponent of each row."""
    exponents = np.frexp(np.abs(A).max(axis=1))[1]
    scaled = np.trunc(np.ldexp(A, bits - exponents[:, None]))
    return np.vectorize(int, otypes=[object])(scaled), exponents - bits


def _scaled_back(total: Any, of_rows: Any, of_columns: Any) -> Any:
    rounded = np.array([[float(entry) for entry in row] for row in total])
    return np.ldexp(rounded, of_rows[:, None] + of_columns[None, :])


def by_residues(bits: int) -> Product:
    """Multiply by Ozaki II, with exact products of integers with this many bits."""

    def subtract(C: Any, A: Any, B: Any) -> None:
        if 0 in (*C.shape, A.shape[1]):
            return
        (A_int, of_rows), (B_int, of_columns) = integers(A, bits), integers(B.T, bits)
        M, total = prod(MODULI), 0
        for p in MODULI:
            residues = ((A_int % p).astype(np.int64) @ (B_int % p).astype(np.int64).T) % p
            total = total + residues.astype(object) * (M // p * pow(M // p, -1, p))
        total = total % M
        C -= _scaled_back(np.where(total > M // 2, total - M, total), of_rows, of_columns)

    return subtract


def sliced(slices: int) -> Product:
    """Multiply by Ozaki I, with the products of slices i and j for i + j <= slices + 1."""

    def cut(A_int: Any) -> list[Any]:
        parts, rest = [], A_int
        for k in range(slices):
            unit = 2 ** (SLICE * (slices - 1 - k))
            parts.append(np.vectorize(_quotient, otypes=[object])(rest, unit) * unit)
            rest = rest - parts[-1]
        return parts

    def subtract(C: Any, A: Any, B: Any) -> None:
        (A_int, of_rows), (B_int, of_columns) = (integers(X, SLICE * slices) for X in (A, B.T))
        of_A, of_B = cut(A_int), cut(B_int)
        total = sum(of_A[i] @ of_B[j].T for i in range(slices) for j in range(slices - i))
        C -= _scaled_back(total, of_rows, of_columns)

    return subtract


def _quotient(a: int, unit: int) -> int:
    """Return A divided by a power of two, rounded toward zero."""
    return a // unit if a >= 0 else -(-a // unit)


def native(C: Any, A: Any, B: Any) -> None:
    """Multiply with NumPy's BLAS."""
    C -= A @ B


def exact(C: Any, A: Any, B: Any) -> None:
    """Multiply with more bits than any exponent needs, so that each sum is rounded once."""
    from fractions import Fraction

    rows, columns = ([[Fraction(x) for x in row] for row in X.tolist()] for X in (A, B.T))
    C -= np.array([[float(sum(map(Fraction.__mul__, row, column))) for column in columns] for row in rows])


def below(rows: int, emulated: Product) -> Product:
    """Use native products for fewer rows than this, as a library for which emulation is slower or lacks workspace."""

    def subtract(C: Any, A: Any, B: Any) -> None:
        (native if A.shape[0] < rows else emulated)(C, A, B)

    return subtract


def unless_wide(bits: int, emulated: Product) -> Product:
    """Use native products if a row or a column spans more exponents, as with automatic dynamic precision."""

    def spans(X: Any) -> int:
        exponents = np.where(X == 0, 10**6, np.frexp(np.where(X == 0, 1, X))[1])
        return int((np.frexp(np.abs(X).max(axis=1))[1] - exponents.min(axis=1)).max())

    def subtract(C: Any, A: Any, B: Any) -> None:
        (native if max(spans(A), spans(B.T)) > bits else emulated)(C, A, B)

    return subtract


def shuffled(seed: int) -> Product:
    """Use native products that add in a new order at each call, as atomic additions do."""
    random = np.random.default_rng(seed)

    def subtract(C: Any, A: Any, B: Any) -> None:
        order = random.permutation(A.shape[1])
        C -= A[:, order] @ B[order]

    return subtract


class Emulating(ReferenceKernels):
    """Reference kernels with another product of fp64 matrices."""

    def __init__(self, product: Product):
        self._product = product

    def subtract_product(self, C: Any, A: Any, B: Any) -> None:
        self._product(C, A, B)
