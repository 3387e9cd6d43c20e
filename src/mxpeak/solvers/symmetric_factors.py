"""Cholesky and L D L^T factors of symmetric and Hermitian matrices on one process, from one triangle.

    A_s = D A D,    A_s = L L^H    or    P A_s P^T = L D L^T (L D L^H if A is Hermitian),    A^-1 = D A_s^-1 D

D is a diagonal matrix of powers of two. The Cholesky factorization in a 16-bit format needs diagonal entries of similar
size, and uses A_s + c·u·diag(A_s), with the roundoff u of the format (Higham and Pranesh 2021, SIAM J. Sci. Comput. 43,
A258). Otherwise, rounding the entries could make a positive definite matrix indefinite.
"""

from __future__ import annotations

from math import inf
from typing import Any

from mxpeak.kernels.arrays import is_complex_array
from mxpeak.kernels.contract import Vector
from mxpeak.kernels.contract.dense import Block, SymmetricFactor, Triangle
from mxpeak.precision import PRECISIONS
from mxpeak.solvers.array_factors import (
    FRACTION,
    ArrayFactors,
    DenseBackend,
    MatrixNorms,
    ScaledMatrix,
    by_rows,
    needs_no_scaling,
    sizes_of_terms,
    with_exponent,
)
from mxpeak.solvers.factorization import DOUBT, coarser_than_fp32
from mxpeak.solvers.scaling import Balance, ends, lowered_triangle, powers, spread
from mxpeak.spans import Spans

#: Multiples of the roundoff that are added to the diagonal, one attempt after another.
SHIFTS = (2.0, 16.0)
#: Maximum number of sweeps of the scaling of an indefinite matrix. Each one divides the logarithm of the spread of the
#: rows by two, and scaled rows have largest entries that differ by at most 2^BALANCED.
SWEEPS, BALANCED = 12, 2
#: Number of entries of |A| that are examined at a time.
STRIP = 1 << 20
CHOLESKY, LDL = "Cholesky", "LDL^T"


class SymmetricFactors(ArrayFactors):
    """The factors of W, which is A_s or A_s^T, for a matrix A that is a `Triangle`."""

    def __init__(self, matrix: ScaledMatrix, F: SymmetricFactor, precision: str, *, emulated: bool = False):
        self.matrix, self.factor, self.precision, self.emulated = matrix, F, precision, emulated
        self.name = CHOLESKY if F.rows is None else LDL
        self.kernels, self.n, self.dtype = matrix.kernels, len(matrix.A), F.W.dtype
        self.A_inf, self.A_one, _ = matrix.norms
        self.singular, self.scaled = F.breakdown, matrix.balance is not None

    def _solve(self, B: Block, *, transposed: bool) -> Block:
        conj: Any = lambda V: V  # noqa: E731
        if transposed and self.factor.W.hermitian and self.matrix.is_complex:
            conj = self.xp.conj  # W^T is the conjugate of W
        X = conj(self.kernels.solve_symmetric(self.factor, conj(B if B.ndim == 2 else B[:, None])))
        return X if B.ndim == 2 else X[:, 0]

    def transposed(self) -> SymmetricFactors:
        """Return the factors of A^T, which use the same arrays."""
        twin = SymmetricFactors(self.matrix.transposed(), self.factor, self.precision, emulated=self.emulated)
        twin.lagged = self.lagged
        return twin

    @property
    def growth(self) -> float:
        """Return max |d_ij| / max |a_ij|, with D of L D L^T, or with d_ii = l_ii² of a Cholesky factor."""
        largest = self.kernels.largest_pivot(self.factor)
        return largest / self.matrix.norms.largest if self.matrix.norms.largest else 1.0

    @property
    def pivots_balanced(self) -> bool:
        """Return whether the diagonal of a Cholesky factor shows no sign of singularity.

        For L D L^T, the result is always False, because blocks of order 2 hide small pivots. The probe then decides.
        """
        if self.factor.rows is not None:
            return False
        diagonal = abs(self.factor.W.array.diagonal())
        return bool(diagonal.min() ** 2 >= DOUBT * diagonal.max() ** 2)


def shifts(precision: str) -> tuple[float, ...]:
    """Return the shifts to try in this order, relative to the diagonal: a single 0 unless operands have 16 bits."""
    return tuple(c * PRECISIONS[precision].u for c in SHIFTS) if coarser_than_fp32(precision) else (0.0,)


def factor_triangle(
    backend: DenseBackend, A: Triangle, precision: str, spans: Spans, *, definite: bool
) -> SymmetricFactors:
    """Factor A, scaled if necessary, in one array of the factors' type: by Cholesky if `definite`, otherwise L D L^T.

    If the factorization breaks down, `singular` of the result is not zero. If sums of |a_ij| overflow, the factors are
    those of 2^k A, unless this would round entries.
    """
    kernels = backend.kernels
    n, rows = len(A), by_rows(A.array)
    R = A if rows else A.T
    low, emulated = backend.type_for(precision), kernels.emulates(precision, backend.own)
    if coarser_than_fp32(precision) and kernels.device is None and not emulated:
        backend.prepare(kernels, low, precision)
    kernels.check_memory(n, low, precision, copied=not definite)  # torch's L D L^T does not overwrite W
    W = kernels.factor_storage(n, low)
    with kernels.computing():
        for shift in shifts(precision):
            with spans("equilibrate"):
                D, A_inf, low_A = None, None, None
                sums, largest = kernels.copy_triangle(R, None, W)
                if not needs_no_scaling(precision, ends(sums), ends(sums)):
                    backend.check(A, kernels)
                    A_inf = _inf_norm(kernels, A)
                    low_A = lowered_triangle(kernels.xp, A) if A_inf == inf else None
                    if low_A is None:
                        D = symmetric_scales(kernels, R, definite=definite)
                        sums, largest = kernels.copy_triangle(R, D, W)
            if low_A is not None:
                del W
                return with_exponent(factor_triangle(backend, low_A[0], precision, spans, definite=definite), low_A[1])
            with spans("factor"):
                triangle = Triangle(W, R.lower, R.hermitian)
                if definite:
                    F = kernels.cholesky(triangle, precision, shift)
                else:
                    F = kernels.ldl(triangle)
            if not F.breakdown:
                break
    norms = MatrixNorms(float(sums.max()), float(sums.max()), largest)
    balance = None if D is None else Balance(D, D)
    matrix = ScaledMatrix(kernels, A, rows, balance, norms.inf if A_inf is None else A_inf, norms, (sums, sums))
    return SymmetricFactors(matrix, F, precision, emulated=emulated)


def symmetric_scales(kernels: Any, A: Triangle, *, definite: bool) -> Vector:
    """Return powers of two d that scale the rows and columns of A.

    If A is positive definite, the diagonal entries d_i²·a_ii are in [1/4, 1), and no other entry is larger. Otherwise,
    sweeps bring the largest entry of each row close to 1 (Ruiz 2001).
    """
    xp = kernels.xp
    if definite:
        diagonal = A.array.diagonal()
        diagonal = xp.real(diagonal) if is_complex_array(diagonal, xp) else diagonal
        return powers(xp.sqrt(xp.astype(xp.abs(diagonal), xp.float64)), xp)
    d = xp.ones(len(A), dtype=xp.float64)
    for _ in range(SWEEPS):
        largest = _largest_of_rows(kernels, A, d)
        d = d * powers(xp.sqrt(largest), xp)
        if spread(largest, xp) <= BALANCED:
            break
    return d


def _largest_of_rows(kernels: Any, A: Triangle, d: Vector) -> Vector:
    """Return max_j |d_i·a_ij·d_j| of each row of a symmetric matrix in fp64."""
    xp, n = kernels.xp, len(A)
    largest = xp.zeros(n, dtype=xp.float64)
    height = max(1, STRIP // n)
    for i in range(0, n, height):
        rows, columns = slice(i, min(i + height, n)), slice(0, min(i + height, n)) if A.lower else slice(i, n)
        entries = A.array[rows, columns]
        if A.hermitian and is_complex_array(A, xp):  # the imaginary parts of the diagonal are not read
            entries, at = xp.asarray(entries, copy=True), xp.arange(rows.stop - i)
            on_diagonal = at, at + (i if A.lower else 0)
            entries[on_diagonal] = xp.astype(xp.real(entries[on_diagonal]), entries.dtype)
        sizes = xp.astype(xp.abs(entries), xp.float64) * d[rows, None] * d[columns]
        sizes = xp.tril(sizes, k=i) if A.lower else xp.triu(sizes)
        largest[rows] = xp.maximum(largest[rows], xp.max(sizes, axis=1))
        largest[columns] = xp.maximum(largest[columns], xp.max(sizes, axis=0))
    return largest


def _inf_norm(kernels: Any, A: Triangle) -> float:
    """Return the largest row sum of |a_ij|."""
    xp = kernels.xp
    kind = xp.abs(A.array[:1, :1]).dtype
    zeros = xp.zeros((len(A), 1), dtype=kind)
    return float(xp.max(sizes_of_terms(kernels, A, zeros + FRACTION, zeros))) / FRACTION
