"""LU factors of a matrix on one process, computed by LAPACK, a GPU library or the compiled elimination."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from math import frexp, inf, isfinite, nan, sqrt
from typing import Any, NamedTuple, TypeVar

from mxpeak.distributed.spaces import ArraySpace
from mxpeak.kernels.arrays import is_complex_array, probe_vector, random_signs
from mxpeak.kernels.contract import DenseKernels, Matrix, Vector
from mxpeak.kernels.contract.dense import PART, Block, DType, PivotedLU, Triangle
from mxpeak.precision import PRECISIONS
from mxpeak.solvers.accuracy import SAMPLED, row_errors
from mxpeak.solvers.factorization import (
    DOUBT,
    LAGGED_REMAINDER,
    Convergence,
    Factorization,
    coarser_than_fp32,
    convergence,
    hints_at_singularity,
)
from mxpeak.solvers.refine import Equations, RefinedColumns
from mxpeak.solvers.residual import backward_error
from mxpeak.solvers.scaling import (
    SPREAD,
    Balance,
    balanced,
    balanced_copy,
    ends,
    equilibration,
    lowered,
    powers,
    scale_rows,
)
from mxpeak.spans import Spans

#: fp32 factors are useless if the mean of the pivots falls by this factor within the first eighth of the pivots.
#: Measured at n = 1000: the mean doubles for a random matrix; it changes by factors of 1.0, 0.85, 0.7, 0.5 and 0.35 if
#: the singular values fall steadily by 10^6, 10^7, 10^8, 10^10 and 10^12.
DECAYED = 0.75
#: If the processor multiplies bf16, use it from this order on for diagonally dominant matrices: the sum of the other
#: entries of each row, or of each column, is at most DOMINATED·|a_ii|. Then D^-1 A or A D^-1 has a condition below 20,
#: and no entry of U exceeds twice the largest of A. On a Zen 4 (AVX512-BF16), bf16 takes 1.1 times the time of fp32 at
#: n = 3000, 0.73 to 0.86 times at 4000 and 0.7 times at 8000. AMX has not been measured with BLAS on one thread, which
#: leaves the cores to the bf16 products.
BF16_FROM, DOMINATED = 4000, 0.9
#: Always scale A for formats whose largest number is smaller than SHORT_OF_RANGE: fp16 and fp8. For bf16, which has the
#: exponents of fp32, scale if the sums of rows or columns differ by more than COARSE_SPREAD: columns of sizes 0.1 to 10
#: cost five more steps or prevent convergence (n = 300, condition 1000).
SHORT_OF_RANGE, COARSE_SPREAD = 2.0**64, 2.0**4
#: Number of entries of U that are examined at a time.
STRIP = 1 << 20
#: One of this number of columns is usually enough to show that a row-wise error is small.
FEW_COLUMNS = 16
#: Number of entries of |A| that are computed at a time, on the host and on a device.
ABS_STRIP, DEVICE_ABS_STRIP = 1 << 17, 1 << 24
#: Size of intermediate numbers below which a zero pivot may be the result of underflow.
TINY = 2.0**-900
#: Factor by which the entries of A are multiplied before they are summed, because row sums may overflow in the type of
#: A.
FRACTION = 2.0**-20
#: A, x or b changed after a solve if eta exceeds the recorded eta times this factor, plus one rounding, n·u.
CHANGED = 16.0
#: Fractions of the unknowns, the smallest ones, that a lower bound of |A||x| omits.
SHARES = (0.0, 1 / 64, 1 / 16, 1 / 4)


class DenseBackend(NamedTuple):
    """The kernels, the type of A and the types of its factors.

    `prepare` compiles the kernels for products, and `check` rejects matrices that contain NaN.
    """

    kernels: DenseKernels
    own: DType
    fp32: DType
    fp64: DType
    prepare: Callable[[DenseKernels, DType, str], None]
    check: Callable[[Matrix | Triangle, DenseKernels], None]

    def type_for(self, precision: str) -> DType:
        """Return the type in which factors of this precision are stored."""
        return self.fp64 if precision == "fp64" else self.fp32


class MatrixNorms(NamedTuple):
    """The norms ||A_s||_inf and ||A_s||_1, and max |a_ij| of A_s."""

    inf: float
    one: float
    largest: float


@dataclass(frozen=True, slots=True)
class ScaledMatrix:
    """The matrix A and the scaled matrix A_s = R A C.

    A           an array, or the triangle of a symmetric matrix
    W_is_A      True if the factored matrix W is A_s, False if it is A_s^T; this depends on the memory order
    balance     R and C; None if A is not scaled
    A_inf       ||A||_inf
    norms       norms of A_s
    sums        Σ_j |a_ij| and Σ_i |a_ij| of A_s in the precision of the factors; None if they were not kept
    exponent    A is the given matrix times 2^exponent
    """

    kernels: DenseKernels
    A: Matrix | Triangle
    W_is_A: bool
    balance: Balance | None
    A_inf: float
    norms: MatrixNorms
    sums: tuple[Vector, Vector] | None
    exponent: int = 0

    @property
    def u(self) -> float:
        """Return the unit roundoff of A's type."""
        return float(self.kernels.xp.finfo(self.A.dtype).eps) / 2

    @property
    def is_complex(self) -> bool:
        """Return whether A is complex."""
        return is_complex_array(self.A, self.kernels.xp)

    @property
    def A_one(self) -> float:
        """Return ||A||_1; this takes one pass over A if A is scaled."""
        if isinstance(self.A, Triangle):
            return self.A_inf
        if self.balance is None:
            return self.norms.one
        return _inf_norm(self.kernels, self.A if self.W_is_A else self.A.T, by_rows=not self.W_is_A)

    def one_norm(self) -> tuple[float, int]:
        """Return m and e with ||A||_1 = m·2^e, even if this product overflows."""
        m, e = frexp(self.A_one)
        if isfinite(m):
            return m, e
        A = self.A
        fraction = replace(A, array=A.array * FRACTION) if isinstance(A, Triangle) else A * FRACTION
        m, e = frexp(_norms(self.kernels, fraction, None)[1])
        return m, e - (frexp(FRACTION)[1] - 1)

    def transposed(self) -> ScaledMatrix:
        """Return the matrices A^T and A_s^T; this takes one pass over A if A is scaled."""
        balance, (A_s_inf, A_s_one, largest) = self.balance, self.norms
        return ScaledMatrix(
            self.kernels,
            self.A.T,
            not self.W_is_A,
            _swapped(balance),
            self.A_one,
            MatrixNorms(A_s_one, A_s_inf, largest),
            None if self.sums is None else self.sums[::-1],
            self.exponent,
        )


class ArrayEquations(Equations):
    """The equations A X = B, or A_s Y = B_s, for matrices that are arrays of one process."""

    def __init__(self, factors: ArrayFactors, *, scaled: bool):
        matrix = factors.matrix
        self._factors, self._matrix, self._kernels = factors, matrix, matrix.kernels
        super().__init__(matrix.kernels.xp, matrix.balance, self._product, self._inverse, scaled=scaled)
        self.n, self.u = len(matrix.A), matrix.u
        self.A_inf = matrix.norms.inf if scaled or matrix.balance is None else matrix.A_inf
        self.unknowns = self.equations = ArraySpace(self.xp, self.xp.empty((self.n, 1), dtype=matrix.A.dtype))

    def _product(self, X: Block) -> Block:
        """Return A X."""
        return -self._kernels.residual(self.xp.zeros(X.shape, dtype=X.dtype), self._matrix.A, X)

    def residual(self, B: Block, X: Block) -> Block:
        """Return B - A X."""
        return self._kernels.residual(B, self._matrix.A, X) if self._of_A_s is None else super().residual(B, X)

    def _inverse(self, R: Block) -> Block:
        """Return A_s^-1 R as a new block in the type of R; columns are scaled to fit the range of the factors."""
        xp, factors = self.xp, self._factors
        if R.dtype == factors.dtype:
            return factors.solve(R)
        scale = powers(xp.max(xp.abs(R), axis=0), xp)
        return xp.astype(factors.solve(xp.astype(R * scale, factors.dtype)) / scale, R.dtype, copy=False)

    def column(self, V: Block, j: int) -> Vector:
        """Return column j as a block of one column, in the layout that the kernels multiply."""
        return V[:, j : j + 1]

    def sampled_error(self, B: Block, X: Block) -> float | None:
        """Return eta of B w = A (X w) for random weights w, divided by the scales of the columns.

        The result is about the root mean square of the errors of the columns, at the cost of one column. The weights
        make ||A||·||x|| + ||b|| equal to 1 to 2 times ||A|| for each column. Return None if there are few columns, or
        if the factors are coarser than A, because each column then needs its own residual.
        """
        k, xp, space = B.shape[1], self.xp, self.unknowns
        if k <= SAMPLED or self._factors.dtype != B.dtype:
            return None
        A_inf = self.A_inf or 1.0
        scales = [x + b / A_inf for x, b in zip(space.max_abs_of_each(X), space.max_abs_of_each(B))]
        scales = [scale if scale > 0 else 1.0 for scale in scales]
        w = xp.asarray(probe_vector(k) / scales, dtype=X.dtype)[:, None]
        zeros = xp.zeros((self.n, 1), dtype=X.dtype)
        b, x = (-self._kernels.residual(zeros, V, w) for V in (B, X))
        return backward_error(space.max_abs(self.residual(b, x)), A_inf, 1.5 * sqrt(k), 0.0, self.n, self.u)

    def row_errors(self, X: Block, R: Block, B: Block) -> list[float]:
        """Return the row-wise backward error of each column, in n·u, with one pass over A."""
        return self._worst_rows(R, sizes_of_terms(self._kernels, self._matrix.A, X, B))

    def row_error_bounds(self, X: Block, R: Block, B: Block) -> list[float]:
        """Return upper bounds of the row-wise errors, computed from the row sums of A_s and its largest entry.

        If the row sums are unknown, the bounds are computed from a part of the columns of A.
        """
        balance = self._matrix.balance
        if self._matrix.sums is None and not isinstance(self._matrix.A, Triangle):
            return self._worst_rows(R, _sizes_of_few_terms(self._kernels, self._matrix.A, X, R, B))
        if balance is not None:
            X = scale_rows(self.xp, 1.0 / balance.C, X)
            R, B = (scale_rows(self.xp, balance.R, V) for V in (R, B))
        return self._worst_rows(R, least_sizes_of_terms(self._matrix, X, R, B))

    def random_signs(self, columns: int) -> tuple[Vector, Block]:
        """Return random signs as one column over the unknowns, and as a block over the equations."""
        signs = random_signs(self.n, 1 + columns)
        of_x, of_rows = (self.xp.asarray(s.copy(), dtype=self._matrix.A.dtype) for s in (signs[:, :1], signs[:, 1:]))
        return of_x, of_rows

    def _worst_rows(self, R: Block, D: Block) -> list[float]:
        errors = self.unknowns.max_abs_of_each(row_errors(self.xp, R, D, self.n))
        return [error / (self.n * self.u) if isfinite(error) else inf for error in errors]


class ArrayFactors(Factorization):
    """The factors of W, which is A_s or A_s^T.

    emulated    whether the operands of products were rounded in software
    fp64        arithmetic of the products of fp64 factors: native or emulated
    may_lag     whether the factors can precondition systems with other matrices
    """

    may_lag = True
    fp64 = "native"

    def __init__(
        self, matrix: ScaledMatrix, lu: PivotedLU, precision: str, *, emulated: bool = False, fp64: str = "native"
    ):
        self.matrix, self.lu, self.precision, self.emulated, self.fp64 = matrix, lu, precision, emulated, fp64
        self.kernels, self.n, self.dtype = matrix.kernels, len(matrix.A), lu.LU.dtype
        self.A_inf, self.A_one, _ = matrix.norms
        self.singular, self.scaled = lu.singular, matrix.balance is not None

    @property
    def row_indices(self) -> Vector:
        """Return the indices of all rows."""
        return self.xp.arange(self.n)

    def computing(self) -> AbstractContextManager[Any]:
        """Return the context manager in which the kernels compute."""
        context: AbstractContextManager[Any] = self.kernels.computing()
        return context

    def equations(self, *, scaled: bool) -> ArrayEquations:
        """Return the equations A X = B or, if `scaled`, A_s Y = B_s."""
        return ArrayEquations(self, scaled=scaled)

    def solve(self, B: Block) -> Block:
        """Return A_s^-1 B in the precision of the factors."""
        return self._solve(B, transposed=not self.matrix.W_is_A)

    def solve_transposed(self, B: Block) -> Block:
        """Return A_s^-T B in the precision of the factors."""
        return self._solve(B, transposed=self.matrix.W_is_A)

    def _solve(self, B: Block, *, transposed: bool) -> Block:
        if B.ndim == 1:
            return self.kernels.solve(self.lu, B[:, None], transposed=transposed)[:, 0]
        return self.kernels.solve(self.lu, B, transposed=transposed)

    def random(self) -> Vector:
        """Return a random vector with entries of either sign and size 1 to 2, in the type of A and exact in fp32."""
        xp = self.xp
        return xp.asarray(xp.asarray(probe_vector(self.n), dtype=xp.float32), dtype=self.matrix.A.dtype)

    def transposed(self) -> ArrayFactors | None:
        """Return the factors of A^T, which use the same arrays, or None if they are less accurate than plain LU."""
        twin = ArrayFactors(self.matrix.transposed(), self.lu, self.precision, emulated=self.emulated, fp64=self.fp64)
        twin.lagged = self.lagged
        return twin

    @cached_property
    def growth(self) -> float:
        """Return max |u_ij| / max |a_ij|, or inf if an entry is not finite."""
        LU, xp, largest = self.lu.LU, self.xp, 0.0
        rows, height = by_rows(LU), max(1, STRIP // self.n)
        for i in range(0, self.n, height):
            part = xp.triu(LU[i : i + height], k=i) if rows else xp.tril(LU.T[i : i + height], k=i)
            size = float(xp.max(xp.abs(part)))
            if not isfinite(size):
                return inf
            largest = max(largest, size)
        return largest / self.matrix.norms.largest if self.matrix.norms.largest else 1.0

    @cached_property
    def convergence(self) -> Convergence:
        """Return the convergence of refinement with these factors for a random right-hand side."""
        with self.computing():
            return convergence(self, self.equations(scaled=True))

    @property
    def pivots_balanced(self) -> bool:
        """Return whether the diagonal of U shows no sign of singularity."""
        diagonal = abs(self.lu.LU.diagonal())
        return bool(diagonal.min() >= DOUBT * diagonal.max())

    def is_doubtful(self, equations: Any, columns: RefinedColumns, enough: float) -> bool:
        """Return whether A may be singular to working precision after refinement.

        If the factors are coarser than A, refinement to a residual of one roundoff proves that condition·u is far below
        1. If the factors have the precision of A, one correction proves it. Finer factors always reach such a residual.
        Lagged factors must also reduce the residual of a random right-hand side.
        """
        if self.lagged:
            return not self.convergence.contraction <= LAGGED_REMAINDER
        if self.dtype == self.matrix.A.dtype:
            return hints_at_singularity(self, equations, columns)
        finer = PRECISIONS[self.precision].u < self.matrix.u
        return finer or any(not eta <= enough for eta in columns.etas)

    def least_size(self) -> float:
        """Return the smallest nonzero |lu_ij| of the eliminated rows, but at most 1."""
        return min(1.0, _least_size(self.xp, self.lu.LU, self.singular))


#: Factors of any kind.
SomeFactors = TypeVar("SomeFactors", bound=ArrayFactors)


def factor(
    backend: DenseBackend,
    A: Matrix,
    precision: str,
    spans: Spans,
    *,
    unless_decayed: bool = False,
    scale: bool = True,
    across: bool = False,
) -> ArrayFactors | None:
    """Factor A, scaled if necessary, in one array of the factors' type, and return the factors.

    If sums of |a_ij| overflow, the factors are those of 2^k A, unless this would round entries.

    Return None if the pivots decay and `unless_decayed` is set.

    unless_decayed  stop if the pivots of fp32 factors decay; use bf16 instead of fp32 if that is fast and accurate
    scale           False: never scale A
    across          factor the transpose of the matrix that suits the memory order
    """
    kernels, xp = backend.kernels, backend.kernels.xp
    n, rows = A.shape[0], by_rows(A) != across
    R = A if rows else A.T
    low = backend.type_for(precision)
    emulated = kernels.emulates(precision, backend.own)
    if coarser_than_fp32(precision) and kernels.device is None and not emulated:
        backend.prepare(kernels, low, precision)
    kernels.check_memory(n, low, precision, copied=False)
    W = kernels.factor_storage(n, low)
    with kernels.computing():
        with spans("equilibrate"):
            balance, A_inf, low_A = None, None, None
            row_sums, column_sums, largest = kernels.scaled_copy(R, None, W)
            before = ends(row_sums), ends(column_sums)
            if scale and not needs_no_scaling(precision, *before):
                backend.check(A, kernels)
                largest_sums = _largest_sums(kernels, R)
                low_A = lowered(xp, A) if inf in largest_sums else None
                if low_A is None:
                    scales = equilibration(kernels, R)
                    balance = scales if rows else Balance(scales.C, scales.R)
                    A_inf = largest_sums[0 if rows else 1]
                    row_sums, column_sums, largest = balanced_copy(kernels, R, scales, W)
        if low_A is not None:
            del W
            again = factor(backend, low_A[0], precision, spans, unless_decayed=unless_decayed, across=across)
            return None if again is None else with_exponent(again, low_A[1])
        native = unless_decayed and n >= BF16_FROM and not kernels.emulates("bf16", backend.own)
        if native and needs_no_scaling("bf16", *before) and _dominates(xp, W, row_sums, column_sums):
            precision, emulated, unless_decayed = "bf16", False, False
            backend.prepare(kernels, low, precision)
        kernels.fp64_emulation()  # forget the products of a factorization that failed
        with spans("factor"):
            if unless_decayed:
                lu = kernels.factor_with_early_exit(_pivots_decay(_largest_of_first_rows(W, xp), xp), W)
            else:
                lu = kernels.factor(W, precision)
    record = kernels.fp64_emulation()
    fp64 = "emulated" if record is not None and record.products > record.native else "native"
    if lu is None:
        return None
    sums = (row_sums, column_sums) if rows else (column_sums, row_sums)
    norms = MatrixNorms(float(sums[0].max()), float(sums[1].max()), largest)
    matrix = ScaledMatrix(kernels, A, rows, balance, norms.inf if A_inf is None else A_inf, norms, sums)
    return ArrayFactors(matrix, lu, precision, emulated=emulated, fp64=fp64)


def with_exponent(factors: SomeFactors, exponent: int) -> SomeFactors:
    """Record that the matrix of these factors is the given matrix times 2^exponent, and return the factors."""
    factors.matrix = replace(factors.matrix, exponent=exponent)
    return factors


def factor_in_fp64(backend: DenseBackend, A: Matrix, spans: Spans) -> ArrayFactors:
    """Return fp64 factors of A.

    If the factors of the scaled A have a zero pivot, which may be due to underflow, factor A and then A^T without
    scaling.
    """
    factors = factor(backend, A, "fp64", spans)
    assert factors is not None  # fp64 factorizations never stop early
    if factors.singular and _may_underflow(factors.matrix):
        for across in (False, True):
            plain = factor(backend, A, "fp64", spans, scale=False, across=across)
            if plain is not None and not plain.singular and isfinite(plain.A_inf):
                return plain
    return factors


def lagged_factors(factors: ArrayFactors, A: Matrix | Triangle, *, exact_norms: bool) -> ArrayFactors:
    """Return factors of A that consist of the factors of an earlier matrix; if that matrix was scaled, so is A.

    Exact norms take a pass over A. Otherwise, the norms are lower bounds, which are close if A is close to the earlier
    matrix: the sums of the row and of the column that were the largest ones. Backward errors are then overestimated.
    """
    kernels, old, twin = factors.kernels, factors.matrix, copy(factors)

    def norms_of(balance: Balance | None) -> tuple[float, float]:
        if exact_norms or old.sums is None:
            return _norms(kernels, A, balance)
        return _norms_of_largest(kernels, A, balance, old.sums)

    plain = of_scaled = norms_of(None)
    if old.balance is not None:
        of_scaled = norms_of(old.balance)
    norms = MatrixNorms(*of_scaled, of_scaled[0])  # no entry is larger than a row sum
    twin.matrix = replace(old, A=A, A_inf=plain[0], norms=norms, sums=None)
    twin.A_inf, twin.A_one = of_scaled
    twin.lagged = True
    _forget_estimates(twin)
    return twin


def factors_of_wider(factors: ArrayFactors, A: Matrix | Triangle) -> ArrayFactors:
    """Return the same factors for the same matrix in a wider type, so that refinement uses this type."""
    twin = copy(factors)
    twin.matrix = replace(factors.matrix, A=A)
    _forget_estimates(twin)
    return twin


def _forget_estimates(factors: ArrayFactors) -> None:
    """Remove the cached estimates, which depend on the matrix and its type."""
    factors._condition, factors._probe, factors._by_gmres, factors.condition_of_A = None, None, None, None
    for cached in ("growth", "convergence"):
        factors.__dict__.pop(cached, None)


def _norms(kernels: DenseKernels, A: Matrix | Triangle, balance: Balance | None) -> tuple[float, float]:
    """Return the infinity norm and the one-norm of R A C, or of A without a balance."""
    xp, n = kernels.xp, len(A)
    if balance is None and not isinstance(A, Triangle):
        by_row, by_column = xp.empty(n, dtype=xp.float64), xp.empty(n, dtype=xp.float64)
        kernels.abs_sums(A, by_row, by_column)
        return float(xp.max(by_row)), float(xp.max(by_column))
    ones = xp.ones(n, dtype=xp.float64)
    R, C = (ones, ones) if balance is None else (balance.R, balance.C)

    def largest_sum(A: Matrix | Triangle, R: Vector, C: Vector) -> float:
        X = xp.astype(C, A.dtype)[:, None]
        return float(xp.max(R[:, None] * sizes_of_terms(kernels, A, X, xp.zeros_like(X))))

    inf_norm = largest_sum(A, R, C)
    return inf_norm, inf_norm if isinstance(A, Triangle) else largest_sum(A.T, C, R)


def _norms_of_largest(
    kernels: DenseKernels, A: Matrix | Triangle, balance: Balance | None, sums: tuple[Vector, Vector]
) -> tuple[float, float]:
    """Return the sums of the row and of the column of R A C with the largest sums of the earlier matrix."""
    row, column = (int(kernels.xp.argmax(sizes)) for sizes in sums)
    return _row_sum(kernels, A, row, balance), _row_sum(kernels, A.T, column, _swapped(balance))


def _row_sum(kernels: DenseKernels, A: Matrix | Triangle, i: int, balance: Balance | None) -> float:
    """Return Σ_j |a_ij| of one row of R A C, or of A without a balance."""
    xp = kernels.xp
    if isinstance(A, Triangle):
        parts = (A.array[i, : i + 1], A.array[i + 1 :, i]) if A.lower else (A.array[:i, i], A.array[i, i:])
        row = xp.concat(parts)
        if A.hermitian and is_complex_array(A, xp):
            row[i] = float(xp.real(row[i]))  # the imaginary part is not read
    else:
        row = A[i]
    sizes = xp.astype(xp.abs(row), xp.float64)
    return float(xp.sum(sizes if balance is None else sizes * balance.R[i] * balance.C))


def _swapped(balance: Balance | None) -> Balance | None:
    """Return the balance of the transpose."""
    return None if balance is None else Balance(balance.C, balance.R)


def by_rows(A: Any) -> bool:
    """Return whether the rows of A are contiguous and ascending, with or without gaps between them."""
    down, across = A.stride() if hasattr(A, "stride") else (stride / A.itemsize for stride in A.strides)
    m, n = A.shape
    return bool(m == n == 1 or ((n == 1 or across == 1) and down >= n and down == int(down)))


def sizes_of_terms(kernels: DenseKernels, A: Matrix | Triangle, X: Block, B: Block) -> Block:
    """Return |A||X| + |B|, the sizes of the terms of a residual, with one pass over A."""
    xp, rows = kernels.xp, isinstance(A, Triangle) or by_rows(A)
    D, Y = -xp.abs(B), xp.abs(X)
    count, length = A.shape if rows else A.shape[::-1]
    height = max(1, (ABS_STRIP if kernels.device is None else DEVICE_ABS_STRIP) // length)
    if isinstance(A, Triangle):
        return -_minus_sizes(kernels, A, D, Y, height)
    for i in range(0, count, height):
        part = slice(i, i + height)
        if rows:
            D[part] = kernels.residual(D[part], xp.abs(A[part]), Y)
        else:
            D = kernels.residual(D, xp.abs(A[:, part]), Y[part])
    return -D


def _minus_sizes(kernels: DenseKernels, A: Triangle, D: Block, Y: Block, height: int) -> Block:
    """Subtract |A| Y from D in place, and return D; each entry of the triangle is read once."""
    xp, n = kernels.xp, len(A)
    for i in range(0, n, height):
        rows = slice(i, min(i + height, n))
        others = slice(0, i) if A.lower else slice(rows.stop, n)
        block, corner = xp.abs(A.array[rows, others]), A.array[rows, rows]
        diagonal = xp.abs(xp.real(corner.diagonal()) if A.hermitian and is_complex_array(A, xp) else corner.diagonal())
        strict = xp.abs(xp.tril(corner, k=-1) if A.lower else xp.triu(corner, k=1))
        D[rows] -= diagonal[:, None] * Y[rows]
        D[rows] = kernels.residual(D[rows], strict, Y[rows])
        D[rows] = kernels.residual(D[rows], strict.T, Y[rows])
        if others.start < others.stop:
            D[rows] = kernels.residual(D[rows], block, Y[others])
            D[others] = kernels.residual(D[others], block.T, Y[rows])
    return D


def residual_if_unchanged(kernels: DenseKernels, A: Matrix | Triangle, X: Block, B: Block, eta: float) -> Block | None:
    """Return B - A X, or None if its backward error shows that A, X or B changed since eta was computed."""
    xp, n = kernels.xp, len(A)
    R, u, zeros = kernels.residual(B, A, X), float(xp.finfo(X.dtype).eps) / 2, xp.zeros_like(X[:, :1])
    A_inf = float(xp.max(sizes_of_terms(kernels, A, zeros + FRACTION, zeros))) / FRACTION
    norms = (xp.max(xp.abs(V), axis=0).tolist() for V in (R, X, B))
    now = max(backward_error(r, A_inf, x, b, n, u) for r, x, b in zip(*norms))
    return R if now <= CHANGED * (eta + 1.0) else None


def row_error_if_unchanged(kernels: DenseKernels, A: Matrix | Triangle, X: Block, B: Block, eta: float) -> float:
    """Return the worst row-wise error of A X = B in n·u, or NaN if A, X or B changed since eta was computed."""
    xp, n = kernels.xp, len(A)
    if not isinstance(A, Triangle) and not by_rows(A) and not by_rows(A.T):
        A = xp.asarray(A, copy=True)
    X, B = xp.reshape(X, (n, -1)), xp.reshape(B, (n, -1))
    with kernels.computing():
        R = residual_if_unchanged(kernels, A, X, B, eta)
        if R is None:
            return nan
        u = float(xp.finfo(X.dtype).eps) / 2
        omega = float(xp.max(row_errors(xp, R, sizes_of_terms(kernels, A, X, B), n))) / (n * u)
        return omega if isfinite(omega) else inf


def _sizes_of_few_terms(kernels: DenseKernels, A: Matrix, X: Block, R: Block, B: Block) -> Block:
    """Return a lower bound of |A||X| + |B| from the columns of A next to the largest |x_j|, and from |A x|_i."""
    xp, n = kernels.xp, len(A)
    count = max(1, n // FEW_COLUMNS)
    largest = int(xp.argmax(xp.sum(xp.abs(X), axis=1)))
    first = min(max(0, largest - count // 2), n - count)
    part = slice(first, first + count)
    return xp.maximum(sizes_of_terms(kernels, A[:, part], X[part], B), xp.abs(B) + xp.abs(B - R))


def least_sizes_of_terms(matrix: ScaledMatrix, Y: Block, R: Block, B: Block) -> Block:
    """Return a lower bound of |A_s||Y| + |B_s| from the row sums of A_s and its largest entry.

    Let t be the m-th smallest |y_j|. All but m entries of a row are multiplied by |y_j| >= t, and each of the m
    entries is at most max |a_ij|. Therefore, (|A||y|)_i >= t·(Σ_j |a_ij| - m·max |a_ij|). It is also at least |A y|_i
    = |b - r|_i.
    """
    xp = matrix.kernels.xp
    size, least = xp.abs(B), xp.abs(B - R)
    if matrix.sums is None:
        return size + least
    y = xp.sort(xp.abs(Y), axis=0)
    sums = xp.astype(matrix.sums[0], y.dtype, copy=False)[:, None]
    for m in sorted({int(share * len(size)) for share in SHARES}):
        least = xp.maximum(least, y[m : m + 1] * (sums - m * matrix.norms.largest))
    return least + size


def needs_no_scaling(precision: str, rows: tuple[float, float], columns: tuple[float, float]) -> bool:
    """Return whether A needs no scaling for a precision, given its smallest and largest row and column sums."""
    spread = COARSE_SPREAD if coarser_than_fp32(precision) else SPREAD
    return PRECISIONS[precision].largest >= SHORT_OF_RANGE and bool(balanced(rows, columns, spread))


def _dominates(xp: Any, W: Matrix, *sums: Vector) -> bool:
    """Return whether every diagonal entry dominates the other entries of its row, or those of its column."""
    size = xp.astype(abs(W.diagonal()), xp.float64)
    return any(bool(xp.all(line_sums - size <= DOMINATED * size)) for line_sums in sums)


def _largest_of_first_rows(W: Matrix, xp: Any) -> Vector:
    """Return max_j |w_ij| of the first rows, one row for each pivot that `_pivots_decay` examines.

    Maxima are used because the row sums of kernel and Toeplitz matrices grow from the border inwards, even if the
    condition number is small.
    """
    count, step = int(PART * W.shape[0]), max(STRIP // W.shape[1], 1)
    return xp.concat([xp.max(abs(W[i : min(i + step, count)]), axis=1) for i in range(0, count, step)])


def _pivots_decay(sizes: Vector, xp: Any) -> Callable[[Vector], bool]:
    """Return a function that tests whether the first pivots, relative to their rows of W, decay.

    It compares means over the first eighth of the pivots. The pivots of random matrices double. They decay if the
    singular values decrease steadily by a factor of 10^8 or more. fp32 factors are useless in this case, and the test
    detects it after 2 % of the flops. A single small singular value appears only in the last pivot.
    """

    def decay(pivots: Vector) -> bool:
        relative = pivots / sizes[: pivots.shape[0]]
        m = pivots.shape[0] // 4
        return float(xp.mean(relative[-m:])) < DECAYED * float(xp.mean(relative[:m]))

    return decay


def _inf_norm(kernels: DenseKernels, R: Matrix, *, by_rows: bool) -> float:
    """Return the largest sum of absolute values over a row of R (`by_rows`), or over a column."""
    return _largest_sums(kernels, R)[0 if by_rows else 1]


def _largest_sums(kernels: DenseKernels, R: Matrix) -> tuple[float, float]:
    """Return the largest sum of absolute values over a row of R, and over a column."""
    xp = kernels.xp
    row_sums, column_sums = xp.empty(R.shape[0], dtype=xp.float64), xp.empty(R.shape[1], dtype=xp.float64)
    kernels.abs_sums(R, row_sums, column_sums)
    return float(row_sums.max()), float(column_sums.max())


def _may_underflow(matrix: ScaledMatrix) -> bool:
    """Return whether scaling may make an entry of A underflow."""
    balance, xp = matrix.balance, matrix.kernels.xp
    if balance is None:
        return False
    least = _least_size(xp, matrix.A, len(matrix.A))
    return least < inf and least * float(xp.min(balance.R)) * float(xp.min(balance.C)) < TINY


def _least_size(xp: Any, A: Matrix, rows: int) -> float:
    """Return the smallest nonzero |a_ij| of the first rows, or inf if all are zero."""
    least, height = inf, max(1, STRIP // A.shape[1])
    for i in range(0, rows, height):
        sizes = abs(A[i : i + height])
        least = min(least, float(xp.min(xp.where(sizes > 0.0, sizes, xp.full_like(sizes, inf)))))
    return least
