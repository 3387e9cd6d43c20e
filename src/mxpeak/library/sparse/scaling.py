"""Powers of two for rows and columns: nothing is rounded by them, and all that follows stays in range.

Save what falls below 2^-1022, where fp64 has fewer digits and then none: entries of A that are by so much smaller than
the largest of their column when all are scaled, and likewise of b and x.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mxpeak.kernels.contract.sparse import Vector
from mxpeak.library.inputs import Array
from mxpeak.library.sparse.inputs import Csr, rows_of_entries
from mxpeak.library.sparse.rank_group import SERIAL, RankGroup
from mxpeak.solvers import scaling

#: Rounds of means over rows and columns at most, and the change, in powers of two, at which they end.
ROUNDS, CHANGE = 50, 0.5
#: Below the exponent of every number.
LOWEST = -(2**31)


@dataclass(frozen=True, slots=True)
class Scaling:
    """The exponents of D_r and D_c, an entry a row and a column; two zeros where nothing is scaled.

    Matrices are scaled on the host, vectors by the array namespace xp, in whose memory the exponents lie.  As made, of
    ranks that share a matrix, columns are own ones and halo; of those vectors only have the own.
    """

    rows: Any = 0
    columns: Any = 0
    xp: Any = np
    everybody: RankGroup = SERIAL

    def on(self, xp: Any) -> Scaling:
        """The same for the vectors of an array namespace."""
        if not self.active:
            return replace(self, xp=xp)
        own = self.columns[: len(self.rows)]
        return replace(self, rows=xp.asarray(self.rows), columns=xp.asarray(own), xp=xp)

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

    def right_hand_side(self, b: Vector) -> tuple[Vector, int]:
        """2^k D_r b with its largest entry in [1/2, 1), and k; b is not zero.  Collective."""
        k = -self._largest_exponent(b, self.rows)
        return self.xp.ldexp(b, self.rows + k), k

    def start(self, x: Vector, k: int) -> Vector:
        """y = 2^k D_c^-1 x, which may be beyond fp64: its residual then tells."""
        with np.errstate(over="ignore"):
            return self.xp.ldexp(x, k - self.columns)

    def solution(self, y: Vector, k: int) -> Vector:
        """x = 2^-k D_c y."""
        return self.xp.ldexp(y, self.columns - k)

    def relative(self, r: Vector, b: Vector) -> float:
        """||D_r^-1 r|| / ||D_r^-1 b||: what a residual of the scaled system is to the unscaled one.  Collective."""
        xp = self.xp
        shift = -self._largest_exponent(b, -self.rows)
        with np.errstate(over="ignore"):
            norms = [self.everybody.norm(xp.ldexp(v, shift - self.rows), xp) for v in (r, b)]
        return norms[0] / norms[1]

    def _largest_exponent(self, v: Vector, shift: Any) -> int:
        return int(self.everybody.largest(largest_exponent(v, shift, self.xp)))

    @property
    def range(self) -> int:
        """How many powers of two the factors of the rows spread over, or those of the columns.  Collective."""
        largest = self.everybody.largest
        ends = ((e.max(initial=LOWEST), (-e).max(initial=LOWEST)) for e in (self.rows, self.columns))
        return max(int(largest(high) + largest(minus_low)) for high, minus_low in ends)


def largest_exponent(v: Vector, shift: Any, xp: Any) -> int:
    """The least e with |v_i|·2^shift_i < 2^e for all i; LOWEST where v has no entry but zeros."""
    if not len(v):
        return LOWEST
    exponents = xp.frexp(v)[1] + shift
    return int(xp.max(xp.where(v != 0, exponents, LOWEST)))


def balanced(A: Csr, everybody: RankGroup = SERIAL) -> bool:
    """Whether range and spread suit the solver as they are.  Collective."""
    size = np.abs(A.data)
    with np.errstate(over="ignore"):
        by_row, by_column = np.add.reduceat(size, A.indptr[:-1]), np.bincount(A.indices, size, A.shape[1])
        by_column = everybody.gathered(by_column, np.add)[: A.shape[0]]
    return bool(scaling.balanced(_ends(by_row, everybody), _ends(by_column, everybody)))


def _ends(sums: Array, everybody: RankGroup) -> scaling.Ends:
    """The least and the largest of all ranks."""
    sums = sums.astype(np.float64)  # bincount's are integers where there are none
    return -everybody.largest((-sums).max(initial=-np.inf)), everybody.largest(sums.max(initial=-np.inf))


def equilibration(A: Csr, everybody: RankGroup = SERIAL) -> Scaling:
    """Bring entries near 1 in the geometric mean of every row and column, then the largest of each to 1 or below.

    Rows and columns alternate, as in Curtis and Reid's scaling (1972), which finds D_r and D_c even where both are
    wild: maxima alone would let the largest column set the scale of all rows.  Collective.
    """
    (n, width), add = A.shape, np.add
    there = A.data != 0
    i, j = rows_of_entries(A)[there], A.indices[there]
    exponents = np.frexp(A.data[there])[1]
    by_row, by_column = np.zeros(n), np.zeros(width)
    counts = _counts(i, n), everybody.gathered(_counts(j, width), add)
    for _ in range(ROUNDS):
        before, by_row = by_row, np.bincount(i, exponents - by_column[j], n) / counts[0]
        if everybody.max_abs(by_row - before, np) < CHANGE:
            break
        by_column = everybody.gathered(np.bincount(j, exponents - by_row[i], width), add) / counts[1]
    rows, columns = (np.rint(means).astype(np.int64) for means in (by_row, by_column))
    rows += _largest(exponents - rows[i] - columns[j], i, n)
    columns += everybody.gathered(_largest(exponents - rows[i] - columns[j], j, width), np.maximum)
    return Scaling(-rows, -columns, everybody=everybody)


def _counts(lines: Array, n: int) -> Array:
    """How many entries each row or column has; `lines` says of which each entry is."""
    return np.bincount(lines, minlength=n).astype(np.float64)


def _largest(exponents: Array, lines: Array, n: int) -> Array:
    """The largest exponent of each row or column."""
    largest = np.full(n, np.iinfo(np.int64).min)
    np.maximum.at(largest, lines, exponents)
    return largest
