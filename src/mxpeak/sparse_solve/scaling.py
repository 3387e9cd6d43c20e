"""Powers of two for rows and columns: nothing is rounded by them, and all that follows stays in range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mxpeak.sparse_solve.inputs import Array, Csr, rows_of_entries

#: A is scaled if the sums of its rows, or of its columns, spread by more, or lie farther from 1, than this.
SPREAD, RANGE = 2.0**10, 2.0**60


@dataclass(frozen=True, slots=True)
class Scaling:
    """The exponents of D_r and D_c, an entry a row and a column; two zeros where nothing is scaled."""

    rows: Any = 0
    columns: Any = 0

    @property
    def active(self) -> bool:
        """Whether it changes anything."""
        return not isinstance(self.rows, int)

    def matrix(self, A: Csr) -> Csr:
        """D_r A D_c."""
        if not self.active:
            return A
        exponents = self.rows[rows_of_entries(A)] + self.columns[A.indices]
        return type(A)((np.ldexp(A.data, exponents), A.indices, A.indptr), shape=A.shape)

    def right_hand_side(self, b: Array) -> tuple[Array, int]:
        """2^k D_r b with its largest entry in [1/2, 1), and k; b is not zero."""
        k = -largest_exponent(b, self.rows)
        return np.ldexp(b, self.rows + k), k

    def start(self, x: Array, k: int) -> Array:
        """y = 2^k D_c^-1 x."""
        return np.asarray(np.ldexp(x, k - self.columns))

    def solution(self, y: Array, k: int) -> Array:
        """x = 2^-k D_c y."""
        return np.asarray(np.ldexp(y, self.columns - k))

    def relative(self, r: Array, b: Array) -> float:
        """||D_r^-1 r|| / ||D_r^-1 b||: what a residual of the scaled system is to the unscaled one."""
        shift = -largest_exponent(b, -self.rows)
        r, b = (np.ldexp(v, shift - self.rows) for v in (r, b))
        return float(np.linalg.norm(r) / np.linalg.norm(b))


def largest_exponent(v: Array, shift: Any = 0) -> int:
    """The least e with |v_i|·2^shift_i < 2^e for all i; v is not zero."""
    there = v != 0
    exponents = np.frexp(v)[1] + shift
    return int(exponents[there].max())


def balanced(A: Csr) -> bool:
    """Whether range and spread suit the solver as they are."""
    size = np.abs(A.data)
    with np.errstate(over="ignore"):
        sums = (np.add.reduceat(size, A.indptr[:-1]), np.bincount(A.indices, size, A.shape[1]))
    most, least = max(float(s.max()) for s in sums), min(float(s.max()) for s in sums)
    if not 1 / RANGE < least <= most < RANGE:
        return False
    return all(float(s.max()) <= SPREAD * float(s.min()) for s in sums)


def equilibration(A: Csr) -> Scaling:
    """Bring the largest entry of every row and column near 1: one kind first, then the other by what that leaves.

    First comes the kind whose largest entries spread more.  Were rows of different scale dealt with by columns first,
    the one largest row would set every column's scale, and the others could underflow.
    """
    exponents, i = _exponents(A), rows_of_entries(A)
    by_row, by_column = _largest(exponents, i, A.shape[0]), _largest(exponents, A.indices, A.shape[1])
    if np.ptp(by_row) >= np.ptp(by_column):
        by_column = _largest(exponents - by_row[i], A.indices, A.shape[1])
    else:
        by_row = _largest(exponents - by_column[A.indices], i, A.shape[0])
    return Scaling(-by_row, -by_column)


def _exponents(A: Csr) -> Array:
    """The least e with |a| < 2^e of each entry; far below all others for a zero."""
    exponents: Array = np.frexp(A.data)[1]
    exponents[A.data == 0] = -(2**20)
    return exponents


def _largest(exponents: Array, places: Array, n: int) -> Array:
    largest = np.full(n, -(2**20), exponents.dtype)
    np.maximum.at(largest, places, exponents)
    return largest
