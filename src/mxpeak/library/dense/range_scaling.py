"""Numbers near the ends of a type's range: powers of two bring them to its middle, and the solution back.

    A x = b,    A' = s A,    b' = b p,    A' y = b',    x = y s / p

Below the least normal number there are fewer digits the smaller a number is, and products of such numbers have none;
sums of the largest numbers overflow.  Powers of two round nothing.  Each right-hand side has a p of its own.
"""

from __future__ import annotations

from functools import cache
from math import frexp
from typing import Any

import numpy as np

from mxpeak.kernels.contract import DenseKernels, Matrix, Vector
from mxpeak.kernels.contract.dense import Block
from mxpeak.library.types import Array
from mxpeak.solvers.scaling import powers

#: The largest e for which both 2^e and 2^-e are normal numbers, by the bytes of a real number.
LARGEST = {8: 1022, 4: 126}


@cache
def least(dtype: np.dtype[Any]) -> float:
    """Products of numbers below this with numbers of size u may lose digits; above its reciprocal they may overflow."""
    known = np.finfo(dtype)
    return float(known.tiny) / float(known.eps) ** 2


def raised(kernels: DenseKernels, A: Matrix, dtype: np.dtype[Any]) -> tuple[Matrix, int]:
    """(2^k A, k) where all entries of A are tiny, else (A, 0).  Most often one look at the first row tells."""
    low = least(dtype)
    if not (_largest(kernels, A[:1]) < low and 0.0 < (found := _largest(kernels, A)) < low):
        return A, 0
    exponent = int(_exponents(np.array([found]))[0])
    return _times(kernels, A, np.array(exponent)), exponent


def centred(
    kernels: DenseKernels, B: Block, dtype: np.dtype[Any], rows: Vector | None, *, lower: bool = False
) -> tuple[Block, Array]:
    """Return (2^k_j b_j, k) of the columns b_j; k_j is 0 where b_j lies well within the range.

    Numbers move no farther than they must, so that the small ones of a huge column are not lost.

    rows    the powers of two by which rows will be scaled, after which b_j must lie well within the range too
    lower   bring the largest down to the middle: x has left the range, which may be on the way to an x within it
    """
    of_columns, tiny = _largest_of_columns(kernels, B), least(dtype)
    if rows is None and not lower and all(tiny < size < 1.0 / tiny or size == 0.0 for size in of_columns):
        return B, np.zeros(len(of_columns), int)
    top, found = -frexp(tiny)[1], np.array(of_columns)
    of_b = np.frexp(found)[1]
    of_scaled = of_b if rows is None else _largest_exponents(kernels, B, rows)
    high, low = np.maximum(of_b, of_scaled), np.minimum(of_b, of_scaled)
    most = top // 2 if lower else top
    k = np.where(high > most, most - high, np.where(low < -top, np.maximum(top // 2 - high, 0), 0))
    k = np.where(found == 0.0, 0, k)
    return (_times(kernels, B, k) if k.any() else B), k


def loses(kernels: DenseKernels, B: Block, centred_B: Block, exponents: Array) -> bool:
    """Whether small numbers of a huge column were rounded when it was brought down."""
    if not (exponents < 0).any():
        return False
    return bool(kernels.xp.any(restored(kernels, centred_B, -exponents) != B))


def restored(kernels: DenseKernels, Y: Block, exponents: Array) -> Block:
    """2^e_j y_j of the columns y_j, rounded to their type."""
    return _times(kernels, Y, exponents) if exponents.any() else Y


def _largest(kernels: DenseKernels, X: Matrix) -> float:
    """max |x| over real and imaginary parts."""
    return max(float(kernels.xp.max(sizes)) for sizes in _parts(kernels, X))


def _largest_of_columns(kernels: DenseKernels, X: Block) -> list[float]:
    """max_i |x_ij| over real and imaginary parts."""
    first, *other = (kernels.xp.max(sizes, axis=0).tolist() for sizes in _parts(kernels, X))
    return [max(pair) for pair in zip(first, *other)] if other else first


def _largest_exponents(kernels: DenseKernels, B: Block, rows: Vector) -> Array:
    """The largest e with |r_i b_ij| >= 2^(e-1) in each column, which may be beyond the range; 0 for a zero column."""
    xp, found = kernels.xp, []
    of_rows = xp.frexp(rows)[1]
    for sizes in _parts(kernels, B):
        exponents = xp.frexp(xp.astype(sizes, xp.float64, copy=False))[1] + of_rows[:, None]
        exponents = xp.where(sizes > 0.0, exponents, xp.full_like(exponents, -(1 << 20)))
        found.append(xp.max(exponents, axis=0).tolist())
    top = np.max(found, axis=0)
    return np.where(top < -(1 << 19), 0, top)


def _parts(kernels: DenseKernels, X: Matrix) -> list[Matrix]:
    """|x|, or |Re x| and |Im x|: of a number near the end of the range they may be finite alone."""
    xp = kernels.xp
    if not xp.isdtype(X.dtype, "complex floating"):
        return [xp.abs(X)]
    return [xp.abs(part(X)) for part in (xp.real, xp.imag)]


def _exponents(found: Array) -> Array:
    """The exponents of the powers of two that bring these near 1."""
    made: Array = np.frexp(powers(found, np))[1] - 1
    return made


def _times(kernels: DenseKernels, X: Matrix, exponents: Array) -> Matrix:
    """2^e_j x_j in X's type, rounded once: a power of two may be beyond the range where the product is not."""
    xp, dtype, left = kernels.xp, X.dtype, exponents
    most = LARGEST[xp.finfo(dtype).bits // 8]
    with kernels.computing():
        while left.any():
            part = np.clip(left, -most, most)
            X, left = X * xp.asarray(np.ldexp(1.0, part)), left - part
        return xp.astype(X, dtype, copy=False)
