"""Scale rows and columns by powers of two, which causes no rounding and keeps all later numbers in range.

Numbers that fall below 2^-1022 are an exception, because fp64 has fewer digits there. Such numbers are entries of A
that are smaller than the largest entry of their column by this factor after scaling, and similarly entries of b and x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mxpeak.distributed.csr import Csr, rows_of_entries
from mxpeak.distributed.rank_group import SERIAL, RankGroup
from mxpeak.distributed.rows import Array
from mxpeak.kernels import arrays
from mxpeak.kernels.arrays import is_complex_array
from mxpeak.kernels.contract.sparse import Vector
from mxpeak.precision import PRECISIONS
from mxpeak.solvers import scaling

#: Maximum number of rounds of means over rows and columns, and the change in powers of two that ends the iteration.
ROUNDS, CHANGE = 50, 0.5
#: Smaller than the exponent of any number.
LOWEST = -(2**31)


@dataclass(frozen=True, slots=True)
class Equilibration:
    """The exponents of D_r and D_c, one per row and column, or two zeros if there is no scaling.

    Matrices are scaled on the host. Vectors are scaled with the array namespace xp, and the exponents are stored in
    its memory. The column exponents of a new object include the halo; the exponents for vectors include only the own
    columns.
    """

    rows: Any = 0
    columns: Any = 0
    xp: Any = np
    group: RankGroup = SERIAL

    def for_vectors(self, xp: Any) -> Equilibration:
        """Return the scaling for the vectors of an array namespace."""
        if not self.active:
            return replace(self, xp=xp)
        own = self.columns[: len(self.rows)]
        return replace(self, rows=xp.asarray(self.rows), columns=xp.asarray(own), xp=xp)

    @property
    def active(self) -> bool:
        """Return whether the scaling changes anything."""
        return not isinstance(self.rows, int)

    def matrix(self, A: Csr) -> Csr:
        """Return D_r A D_c."""
        if not self.active:
            return A
        exponents = self.rows[rows_of_entries(A)] + self.columns[A.indices]
        return type(A)((ldexp(A.data, exponents, arrays.xp), A.indices, A.indptr), shape=A.shape)

    def right_hand_side(self, b: Vector) -> tuple[Vector, int]:
        """Return 2^k D_r b and k for a nonzero b; k is such that the largest entry is in [1/2, 1). Collective."""
        k = -self._largest_exponent(b, self.rows)
        return ldexp(b, self.rows + k, self.xp), k

    def start(self, x: Vector, k: int) -> Vector:
        """Return y = 2^k D_c^-1 x, which may overflow; the residual of y is then not finite."""
        with np.errstate(over="ignore"):
            return ldexp(x, k - self.columns, self.xp)

    def solution(self, y: Vector, k: int) -> Vector:
        """Return x = 2^-k D_c y, which may overflow."""
        with np.errstate(over="ignore"):
            return ldexp(y, self.columns - k, self.xp)

    def relative(self, r: Vector, b: Vector) -> float:
        """Return ||D_r^-1 r|| / ||D_r^-1 b||, the relative residual of the unscaled system. Collective."""
        xp = self.xp
        shift = -self._largest_exponent(b, -self.rows)
        with np.errstate(over="ignore"):
            norms = [self.group.norm(ldexp(v, shift - self.rows, xp), xp) for v in (r, b)]
            if math.isinf(norms[0]):  # the squares or the scaled numbers may have overflowed
                own = -self._largest_exponent(r, -self.rows)
                size = self.group.norm(ldexp(r, own - self.rows, xp), xp)
                return _times_power(size / norms[1], shift - own)
        return norms[0] / norms[1]

    def relative_terms(self, A: Csr, y: Vector, b: Vector) -> float:
        """Return || |A||y| + |b| || / ||b|| of the unscaled system, the size of the terms of b - A y. Collective."""
        return self.relative(self.xp.asarray(self._terms(A, y, b)), b)

    def row_error(self, A: Csr, y: Vector, b: Vector, r: Vector) -> float:
        """Return the largest |r_i| / (|A||y| + |b|)_i for r = b - A y, which no scaling of rows changes. Collective."""
        terms, size = self._terms(A, y, b), np.abs(host_array(r))
        with np.errstate(all="ignore"):
            return float(self.group.max_abs(np.where(size > 0, size / terms, 0.0), np))

    def _terms(self, A: Csr, y: Vector, b: Vector) -> Array:
        """Return |A||y| + |b| of the scaled system on the host. Collective."""
        with np.errstate(all="ignore"):
            terms: Array = abs(A) @ self.group.with_halo(np.abs(host_array(y))) + np.abs(host_array(b))
        return terms

    def error_of_product(self, A: Csr, z: Vector) -> float:
        """Return a bound of the norm of the rounding errors of D_c^-1 A z in fp64. Collective.

        A row with m entries has an error of at most 2·(m + 2)·u times its part of |A||z|. A sum of m real products in
        any order needs m·u. The factor 2 and the other two roundings are for complex products and terms in u².
        """
        m = self.group.largest(float(np.diff(A.indptr).max(initial=0)))
        with np.errstate(all="ignore"):
            sizes = abs(A) @ self.group.with_halo(np.abs(host_array(z)))
        size = self.group.norm(self.start(self.xp.asarray(sizes), 0), self.xp)
        return 2.0 * (m + 2.0) * PRECISIONS["fp64"].u * size

    def _largest_exponent(self, v: Vector, shift: Any) -> int:
        return int(self.group.largest(largest_exponent(v, shift, self.xp)))

    @property
    def range(self) -> int:
        """Return the larger spread of the exponents of the rows and of the columns. Collective."""
        largest = self.group.largest
        ends = ((e.max(initial=LOWEST), (-e).max(initial=LOWEST)) for e in (self.rows, self.columns))
        return max(int(largest(high) + largest(minus_low)) for high, minus_low in ends)


def _times_power(value: float, exponent: int) -> float:
    """Return value · 2^exponent, or infinity beyond the range of fp64."""
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.inf


def ldexp(v: Vector, exponents: Any, xp: Any) -> Vector:
    """Return the numbers v_i · 2^exponent_i; both parts of a complex number are scaled."""
    if not is_complex_array(v, xp):
        return xp.ldexp(v, exponents)
    scaled = xp.empty_like(v)
    scaled.real[...], scaled.imag[...] = xp.ldexp(v.real, exponents), xp.ldexp(v.imag, exponents)
    return scaled


def host_array(x: Vector) -> Array:
    """Return a NumPy or torch vector as an array on the host, without a copy if it is already on the host."""
    return np.asarray(x.cpu() if hasattr(x, "cpu") else x)


def largest_exponent(v: Vector, shift: Any, xp: Any) -> int:
    """Return the least e with |v_i|·2^shift_i < 2^e for all i, or LOWEST if all entries are zero."""
    if not len(v):
        return LOWEST
    exponents = xp.frexp(_larger_part(v, xp))[1] + shift
    return int(xp.max(xp.where(v != 0, exponents, LOWEST)))


def _larger_part(v: Vector, xp: Any) -> Vector:
    """Return real numbers v unchanged, and the larger of |Re v_i| and |Im v_i| of complex numbers."""
    if not is_complex_array(v, xp):
        return v
    return xp.maximum(xp.abs(v.real), xp.abs(v.imag))


def balanced(A: Csr, group: RankGroup = SERIAL) -> bool:
    """Return whether the solver needs no scaling for the range and spread of A. Collective."""
    size = np.abs(A.data)
    with np.errstate(over="ignore"):
        by_row, by_column = np.add.reduceat(size, A.indptr[:-1]), np.bincount(A.indices, size, A.shape[1])
        by_column = group.combined(by_column, np.add)[: A.shape[0]]
    return bool(scaling.balanced(_ends(by_row, group), _ends(by_column, group)))


def _ends(sums: Array, group: RankGroup) -> scaling.Ends:
    """Return the smallest and the largest sum over all ranks."""
    sums = sums.astype(np.float64)  # bincount returns integers for empty arrays
    return -group.largest(float((-sums).max(initial=-np.inf))), group.largest(float(sums.max(initial=-np.inf)))


def equilibrate(A: Csr, group: RankGroup = SERIAL) -> Equilibration:
    """Return a scaling with geometric means near 1, and a largest entry of at most 1, in every row and column.

    Columns and rows are scaled alternately, as in the method of Curtis and Reid (1972), which finds D_r and D_c even
    if both vary widely. With maxima alone, the largest column would determine the scale of all rows. Columns are first:
    D_r then has the same mean exponent in each connected part of the graph of A, so that the residuals of the parts
    keep their sizes relative to each other. The mean exponent of D_c is 0. Collective.
    """
    (n, width), add = A.shape, np.add
    nonzero = A.data != 0
    i, j = rows_of_entries(A)[nonzero], A.indices[nonzero]
    exponents = np.frexp(_larger_part(A.data[nonzero], arrays.xp))[1]
    by_row, by_column = np.zeros(n), np.zeros(width)
    counts = _counts(i, n), group.combined(_counts(j, width), add)
    for _ in range(ROUNDS):
        before, by_column = by_column, group.combined(np.bincount(j, exponents - by_row[i], width), add) / counts[1]
        if group.max_abs(by_column - before, np) < CHANGE:
            break
        by_row = np.bincount(i, exponents - by_column[j], n) / counts[0]
    mean = group.sum(float(by_column[:n].sum())) / group.sum(n)
    by_row, by_column = by_row + mean, by_column - mean
    rows, columns = (np.rint(means).astype(np.int64) for means in (by_row, by_column))
    rows += _largest(exponents - rows[i] - columns[j], i, n)
    columns += group.combined(_largest(exponents - rows[i] - columns[j], j, width), np.maximum)
    return Equilibration(-rows, -columns, group=group)


def symmetrized(scaling: Equilibration) -> Equilibration:
    """Return a scaling D A D with about the same effect on a symmetric A, to keep it symmetric. Collective."""
    if not scaling.active:
        return scaling
    mean = (scaling.rows + scaling.columns[: len(scaling.rows)]) // 2
    return replace(scaling, rows=mean, columns=scaling.group.with_halo(mean))


def _counts(lines: Array, n: int) -> Array:
    """Return the number of entries of each row or column, given the row or column of each entry."""
    return np.bincount(lines, minlength=n).astype(np.float64)


def _largest(exponents: Array, lines: Array, n: int) -> Array:
    """Return the largest exponent of each row or column."""
    largest = np.full(n, np.iinfo(np.int64).min)
    np.maximum.at(largest, lines, exponents)
    return largest
