"""A in a low precision, scaled where that needs it, and its factors: what is decided, wherever the arrays are."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import inf, isfinite
from typing import Any

import numpy as np

from mxpeak.kernels.contract import DenseKernels, Matrix, Vector
from mxpeak.kernels.contract.dense import PART, Block, PivotedLU
from mxpeak.library.dense.inputs import by_rows
from mxpeak.library.inputs import check_finite
from mxpeak.library.outcomes import SingularMatrixError
from mxpeak.library.types import Array, typed
from mxpeak.precision import PRECISIONS
from mxpeak.runtime.calls import compile_once
from mxpeak.solvers.condition import PROBE_SEED, PROBED, inverse_one_norm
from mxpeak.solvers.scaling import SPREAD, balanced, powers, spread
from mxpeak.spans import Spans

#: Beyond this condition·u, u the factors' roundoff, 50 steps of GMRES were never enough (experiments with n = 300).
HOPELESS = 2.0**10
#: Signs of an ill-conditioned matrix, upon which the condition is estimated at once: pivots of so different size, or
#: corrections so large compared with the solution.
DOUBT = 2.0**-16
#: By how much the first eighth of the pivots has to fade.  Measured at n = 1000: growth to 2 of a random matrix, 1.0,
#: 0.85, 0.7, 0.5 and 0.35 where singular values fall steadily by 10^6, 7, 8, 10 and 12.
FADED = 0.75
#: Where the processor multiplies bf16, it is taken from this order on for matrices whose diagonal dominates: the rest
#: of each row, or of each column, is at most this share of |a_ii|.  So D^-1 A, or A D^-1, has a condition below 20, and
#: no entry of U exceeds twice the largest of A.  On a Zen 4 (AVX512-BF16) it takes 1.1 of fp32's time at n = 3000, 0.73
#: to 0.86 at 4000 and 0.7 at 8000.  With AMX nothing was measured since BLAS leaves it the cores.
BF16_FROM, DOMINATED = 4000, 0.9
#: The order of a matrix upon which all that a factorization needs is compiled: of several panels.
COMPILED_BY = 100
#: A is scaled in any case for formats whose largest number is smaller than this: fp16 and fp8.  For bf16, which has the
#: exponents of fp32, it is where sums of rows or columns differ by more than that factor: columns by 10^-1 to 10 cost
#: such factors five more steps, or all (n = 300, condition 1000).
SHORT_OF_RANGE, COARSE_SPREAD = 2.0**64, 2.0**4
#: Entries of U that are looked at together.
STRIP = 1 << 20
#: Products of two scales are formed while they are smaller than this, and larger than its reciprocal.
FARTHEST = 2.0**1000
#: Where an elimination meets numbers below this, a pivot of zero may be one that underflowed.
TINY = 2.0**-900


def most_condition(precision: str) -> float:
    """Of matrices for which factors in a precision are of use to GMRES."""
    return HOPELESS / PRECISIONS[precision].u


def coarse(precision: str) -> bool:
    """Whether it is coarser than fp32, so that one solve with such factors does not show a large condition."""
    return PRECISIONS[precision].u > PRECISIONS["fp32"].u


@lru_cache(maxsize=64)
def probe(n: int) -> Array:
    """n random numbers of either sign, 1 to 2 in size: a null vector of regular numbers is at no right angle to them.

    Signs alone are to (1, …, 1), a Laplacian's, wherever as many are positive as negative.
    """
    rng = np.random.default_rng(PROBE_SEED)
    found: Array = rng.choice((-1.0, 1.0), n) * rng.uniform(1.0, 2.0, n)
    return found


@dataclass(frozen=True, slots=True)
class Scaling:
    """D_r and D_c: powers of two that bring the largest entry of each row and column near 1; ||A||_inf without them."""

    rows: Vector
    columns: Vector
    A_inf: float


@dataclass(frozen=True)
class Factors:
    """The factors of A_s in a precision.

    lu           of W, which is A_s if A lies by rows, else A_s^T
    by_rows      whether A lies so
    A_inf, A_one, A_max    ||A_s||_inf, ||A_s||_1 and the largest |a_ij| of A_s
    sums         Σ_j |a_ij| and Σ_i |a_ij| of A_s, to the factors' precision; None where they were not kept
    """

    kernels: DenseKernels
    precision: str
    emulated: bool
    lu: PivotedLU
    by_rows: bool
    scaling: Scaling | None
    A_inf: float
    A_one: float
    A_max: float
    sums: tuple[Vector, Vector] | None

    @property
    def singular(self) -> int:
        """The first zero pivot, from 1; 0 if there is none."""
        return self.lu.singular

    @cached_property
    def condition(self) -> float:
        """||A_s||_1·||A_s^-1||_1, the latter estimated by a few solves."""
        if self.singular:
            return float("inf")
        kernels, LU = self.kernels, self.lu.LU
        xp, n = kernels.xp, LU.shape[0]
        conj: Any = xp.conj if xp.isdtype(LU.dtype, "complex floating") else lambda x: x

        def solve(b: Vector) -> Vector:
            return self._solve(b[:, None])[:, 0]

        def solve_adjoint(b: Vector) -> Vector:
            return conj(self._solve(conj(b)[:, None], transposed=True)[:, 0])

        with kernels.computing():
            return self.A_one * inverse_one_norm(solve, solve_adjoint, xp.arange(n), n, LU.dtype, xp)

    def _solve(self, B: Block, *, transposed: bool = False) -> Block:
        """A_s^-1 B or A_s^-T B in the factors' precision."""
        return self.kernels.solve(self.lu, B, transposed=transposed == self.by_rows)

    def of_transpose(self, A: Matrix) -> Factors | None:
        """The same numbers as the factors of A_s^T, A being what they were made of; None where they do not do."""
        scaling = None
        if self.scaling is not None:
            R = A if self.by_rows else A.T
            A_one = _inf_norm(self.kernels, R, not self.by_rows)
            scaling = Scaling(self.scaling.columns, self.scaling.rows, A_one)
        return replace(
            self,
            by_rows=not self.by_rows,
            scaling=scaling,
            A_inf=self.A_one,
            A_one=self.A_inf,
            sums=None if self.sums is None else self.sums[::-1],
        )

    @cached_property
    def growth(self) -> float:
        """max |u_ij| / max |a_ij|; inf if one is not finite."""
        largest = self._largest_of_upper()
        return largest / self.A_max if self.A_max else 1.0

    def _largest_of_upper(self) -> float:
        """max |u_ij|, a few rows of U or U^T at a time."""
        LU, xp, largest = self.lu.LU, self.kernels.xp, 0.0
        n, rows = LU.shape[0], by_rows(LU)
        height = max(1, STRIP // n)
        for i in range(0, n, height):
            part = xp.triu(LU[i : i + height], k=i) if rows else xp.tril(LU.T[i : i + height], k=i)
            found = float(xp.max(xp.abs(part)))
            if not isfinite(found):
                return float("inf")
            largest = max(largest, found)
        return largest

    @property
    def fit(self) -> bool:
        """Whether GMRES has a chance with them."""
        return self.condition <= most_condition(self.precision)

    @cached_property
    def hide_singularity(self) -> bool:
        """Whether they are in fp32 and cannot tell A from a singular matrix.

        Where A is singular and b fits to it, neither residual nor correction shows that x may be anything.  One solve
        for random numbers does, and calls for an estimate of the condition.
        """
        return self.precision == "fp32" and self.singular_to(PRECISIONS["fp32"].u)

    def singular_to(self, u: float) -> bool:
        """Whether the condition is 1/u or more; it is estimated only where one solve for random numbers has grown."""
        return not self.probed * u <= PROBED / 2.0 and (self.probed * u >= 1.0 or self.condition * u >= 1.0)

    @cached_property
    def probed(self) -> float:
        """||A_s||·||z|| / 2 <= ||A_s||·||A_s^-1||, z being A_s^-1 times numbers of size 1 to 2; infinity norms."""
        kernels, n = self.kernels, self.lu.LU.shape[0]
        with kernels.computing(), np.errstate(all="ignore"):
            s = kernels.xp.asarray(probe(n)[:, None].astype(np.float32), dtype=self.lu.LU.dtype)
            return self.A_inf * float(kernels.xp.max(abs(self._solve(s)))) / 2.0

    @property
    def even(self) -> bool:
        """Whether U's diagonal shows no sign of singularity; not all singular matrices show one there."""
        diagonal = abs(self.lu.LU.diagonal())
        return bool(diagonal.min() >= DOUBT * diagonal.max())

    def apply(self, R: Block) -> Block:
        """A_s^-1 R, a new block of R's type; each column is brought near 1 for the factors' range."""
        xp, dtype = self.kernels.xp, self.lu.LU.dtype
        if R.dtype == dtype:
            return self._solve(R)
        scale = powers(xp.max(xp.abs(R), axis=0), xp)
        Z = self._solve(xp.astype(R * scale, dtype))
        return xp.astype(Z / scale, R.dtype, copy=False)


class Estimates:
    """Numbers that `make` computes on first use; its data, such as the factors, is then released.

    Pickling computes them first, so that only numbers are stored.

    time_s   how long that took
    """

    __slots__ = ("_make", "_values", "time_s")

    def __init__(self, make: Callable[[], tuple[float, ...]]):
        self._make: Callable[[], tuple[float, ...]] | None = make
        self._values: tuple[float, ...] = ()
        self.time_s = 0.0

    @classmethod
    def known(cls, values: tuple[float, ...], time_s: float = 0.0) -> Estimates:
        """Return numbers that are there already."""
        made = cls(lambda: values)
        made._values, made._make, made.time_s = values, None, time_s
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Estimates.known, (self.values(), self.time_s)

    def values(self) -> tuple[float, ...]:
        """Return the numbers, for instance condition and growth."""
        if self._make is not None:
            begin = time.perf_counter()
            self._values, self._make = self._make(), None
            self.time_s = time.perf_counter() - begin
        return self._values


def factor_in_fp64(kernels: DenseKernels, A: Matrix, dtype: np.dtype[Any], spans: Spans) -> Factors:
    """A's factors in fp64, beyond which there is nothing to fall back to.

    Where scaling may have made entries, and so a pivot, underflow, A and then A^T are factored as they are.
    """
    factors = factor(kernels, A, dtype, "fp64", spans)
    if factors is not None and factors.singular and _may_underflow(kernels, A, factors.scaling):
        for turned in (False, True):
            plain = factor(kernels, A, dtype, "fp64", spans, scale=False, turned=turned)
            if plain is not None and not plain.singular and isfinite(plain.A_inf):
                return plain
    assert factors is not None  # fading pivots are not looked at
    if factors.singular:
        raise SingularMatrixError(
            f"A is singular: pivot {factors.singular} of {A.shape[0]} is {_how_small(factors)}; check A, or "
            "use numpy.linalg.lstsq for a least-squares solution"
        )
    return factors


def _may_underflow(kernels: DenseKernels, A: Matrix, scaling: Scaling | None) -> bool:
    """Whether scaling may bring an entry of A below the range."""
    if scaling is None:
        return False
    xp, least = kernels.xp, inf
    for row in A:
        sizes = abs(row)
        least = min(least, float(xp.min(xp.where(sizes > 0.0, sizes, xp.full_like(sizes, inf)))))
    return least < inf and least * float(xp.min(scaling.rows)) * float(xp.min(scaling.columns)) < TINY


def _how_small(factors: Factors) -> str:
    """Say whether a pivot is zero itself, or may have underflowed among numbers so small."""
    xp, LU, least = factors.kernels.xp, factors.lu.LU, 1.0
    height = max(1, STRIP // len(LU))
    for i in range(0, factors.singular, height):
        sizes = abs(LU[i : i + height])
        least = min(least, float(xp.min(xp.where(sizes > 0.0, sizes, xp.ones_like(sizes)))))
    if least >= TINY:
        return "exactly zero"
    return f"zero in fp64, exactly or by underflow, because the elimination produced numbers as small as {least:.1e}"


def factor(
    kernels: DenseKernels,
    A: Matrix,
    dtype: np.dtype[Any],
    precision: str,
    spans: Spans,
    *,
    unless_fading: bool = False,
    scale: bool = True,
    turned: bool = False,
) -> Factors | None:
    """Scale A, of a type, if need be, copy it once into the factors' type, and factor; None where pivots fade.

    unless_fading   whether that is looked into: the precision, left open, is fp32 then, or bf16 where that will do
    scale           False: A is factored as it is, in any case
    turned          factor what lies across the memory's order: A, where it lies by rows
    """
    n, rows, xp = A.shape[0], by_rows(A) != turned, kernels.xp
    R = A if rows else A.T
    low, emulated = typed(dtype.kind == "c", wide=precision == "fp64"), kernels.emulates(precision, dtype)
    if coarse(precision) and kernels.device is None and not emulated:
        _make_ready(kernels, low, precision)
    kernels.check_memory(n, low, precision, copied=False)
    W = kernels.factor_storage(n, low)
    with kernels.computing():
        with spans("equilibrate"):
            scaling = None
            row_sums, column_sums, largest = kernels.scaled_copy(R, None, W)
            ends = _ends(row_sums), _ends(column_sums)
            if scale and not _suits(precision, *ends):
                check_finite(A, "A", xp)
                scales = _equilibration(kernels, R)
                scaling = Scaling(*(scales if rows else scales[::-1]), _inf_norm(kernels, R, rows))
                row_sums, column_sums, largest = _scaled_copy(kernels, R, scales, W)
        native = unless_fading and n >= BF16_FROM and not kernels.emulates("bf16", dtype)
        if native and _suits("bf16", *ends) and _dominates(W, row_sums, column_sums):
            precision, emulated, unless_fading = "bf16", False, False
            _make_ready(kernels, low, precision)
        with spans("factor"):
            if unless_fading:
                lu = kernels.factor_with_early_exit(_fade(_largest_of_first_rows(W, xp), xp), W)
            else:
                lu = kernels.factor(W, precision)
    if lu is None:
        return None
    sums = (row_sums, column_sums) if rows else (column_sums, row_sums)
    A_inf, A_one = (float(one.max()) for one in sums)
    return Factors(kernels, precision, emulated, lu, rows, scaling, A_inf, A_one, largest, sums)


def _scaled_copy(
    kernels: DenseKernels, R: Matrix, scales: tuple[Vector, Vector], W: Matrix
) -> tuple[Vector, Vector, float]:
    """Set W = D_r R D_c, also where products of the two scales are beyond the range.

    Then half of the exponents are applied first: what is between is between an entry and the scaled entry.
    """
    (low, high), (least, most) = _ends(scales[0]), _ends(scales[1])
    if not (high * most < FARTHEST and low * least > 1.0 / FARTHEST):
        xp, wide = kernels.xp, R.dtype
        exponents = [np.frexp(np.array(one.tolist()))[1] - 1 for one in scales]
        halves = [xp.asarray(np.ldexp(1.0, e // 2)) for e in exponents]
        of_rows, of_columns = (xp.asarray(np.ldexp(1.0, e - e // 2)) for e in exponents)
        scales = of_rows, of_columns
        R = xp.astype(R * (halves[0][:, None] * halves[1]), wide, copy=False)
    return kernels.scaled_copy(R, scales, W)


def _suits(precision: str, rows: tuple[float, float], columns: tuple[float, float]) -> bool:
    """Whether A needs no scaling for a precision, by the least and the largest sum of its rows and of its columns."""
    most = COARSE_SPREAD if coarse(precision) else SPREAD
    return PRECISIONS[precision].largest >= SHORT_OF_RANGE and bool(balanced(rows, columns, most))


def _make_ready(kernels: DenseKernels, low: np.dtype[Any], precision: str) -> None:
    """Have the host's products of such numbers compiled."""
    what = f"mxpeak.solve, first products of {precision} numbers"
    compile_once(what, ("units", precision), lambda: kernels.factor(np.eye(COMPILED_BY, dtype=low), precision))


def _dominates(W: Matrix, *sums: Vector) -> bool:
    """Whether all entries of the diagonal exceed the others of their row, or all those of their column, by enough."""
    size = abs(W.diagonal()).astype(np.float64)
    return any(bool((of_lines - size <= DOMINATED * size).all()) for of_lines in sums)


def _largest_of_first_rows(W: Matrix, xp: Any) -> Vector:
    """max_j |w_ij| of as many rows as there are pivots to look at.

    Not their sums: those of kernel and Toeplitz matrices grow from the border inwards, however good the condition is.
    """
    count, step = int(PART * W.shape[0]), max(STRIP // W.shape[1], 1)
    return xp.concat([xp.max(abs(W[i : min(i + step, count)]), axis=1) for i in range(0, count, step)])


def _fade(sizes: Vector, xp: Any) -> Callable[[Vector], bool]:
    """Whether the first eighth of the pivots, each over the largest entry of its row of W, falls from its first quarter
    to the last.

    Those of random matrices double.  They fall where singular values do so steadily, by 10^8 or more, and fp32 is in
    vain then: that is seen after 2 % of the flops.  A single small one is seen in the last pivot alone.
    """

    def of_pivots(pivots: Vector) -> bool:
        relative = pivots / sizes[: pivots.shape[0]]
        m = pivots.shape[0] // 4
        return float(xp.mean(relative[-m:])) < FADED * float(xp.mean(relative[:m]))

    return of_pivots


def _ends(sums: Vector) -> tuple[float, float]:
    return float(sums.min()), float(sums.max())


def _equilibration(kernels: DenseKernels, R: Matrix) -> tuple[Vector, Vector]:
    """Powers of two for R's rows and columns: one kind by its largest entries, then the other by what that leaves.

    First comes the kind whose largest entries spread more.  If rows of different scale were scaled by columns first,
    the one largest row would set every column's scale, and the others could underflow.
    """
    xp = kernels.xp
    by_row, by_column = xp.ones(R.shape[0], dtype=xp.float64), xp.ones(R.shape[1], dtype=xp.float64)
    row_max, column_max = kernels.largest_entries(R, by_row, by_column)
    if spread(row_max, xp) >= spread(column_max, xp):
        by_row = powers(row_max, xp)
        return by_row, powers(kernels.largest_entries(R, by_row, by_column)[1], xp)
    by_column = powers(column_max, xp)
    return powers(kernels.largest_entries(R, by_row, by_column)[0], xp), by_column


def _inf_norm(kernels: DenseKernels, R: Matrix, rows: bool) -> float:
    """||A||_inf, that of R or of R^T."""
    xp = kernels.xp
    by_row, by_column = xp.empty(R.shape[0], dtype=xp.float64), xp.empty(R.shape[1], dtype=xp.float64)
    kernels.abs_sums(R, by_row, by_column)
    return float((by_row if rows else by_column).max())
