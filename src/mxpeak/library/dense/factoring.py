"""A in a low precision, scaled where that needs it, and its factors: what is decided, wherever the arrays are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mxpeak.errors import SingularError
from mxpeak.library.dense.arrays import LU, Array, Arrays, Block, Matrix, type_of, typed
from mxpeak.library.dense.factors import power
from mxpeak.library.dense.inputs import check_finite
from mxpeak.precision import PRECISIONS
from mxpeak.spans import Spans

#: A is scaled if the sums of its rows, or of its columns, spread by more, or lie farther from 1, than this.
SPREAD, RANGE = 2.0**10, 2.0**60
#: Beyond this condition·u, u the factors' roundoff, 50 steps of GMRES were never enough (experiments with n = 300).
HOPELESS = 2.0**10
#: Signs of an ill-conditioned matrix, upon which the condition is estimated at once: pivots of so different size, or
#: corrections so large beside the solution.
DOUBT = 2.0**-16


@dataclass(frozen=True, slots=True)
class Scaling:
    """D_r and D_c: powers of two that bring the largest entry of each row and column near 1; ||A||_inf without them."""

    rows: Array
    columns: Array
    A_inf: float


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sums of absolute values along rows and columns of R, that is A or A^T, and its largest."""

    row_sums: Array
    column_sums: Array
    largest: float

    @property
    def norms(self) -> tuple[float, float]:
        """The infinity-norm and the one-norm."""
        return float(self.row_sums.max()), float(self.column_sums.max())

    @property
    def balanced(self) -> bool:
        """Whether range and spread suit the LU as they are; NaN and Inf do not."""
        sums = (self.row_sums, self.column_sums)
        most, least = max(float(s.max()) for s in sums), min(float(s.max()) for s in sums)
        if not 1 / RANGE < least <= most < RANGE:
            return False
        return all(float(s.max()) <= SPREAD * float(s.min()) for s in sums)


@dataclass(frozen=True)
class Factors:
    """The factors of A_s in a precision; sizes: of R, which is A_s if A lies by rows, else A_s^T."""

    precision: str
    emulated: bool
    lu: LU
    by_rows: bool
    scaling: Scaling | None
    sizes: Sizes

    @property
    def singular(self) -> int:
        """The first zero pivot, from 1; 0 if there is none."""
        return self.lu.singular

    @property
    def A_inf(self) -> float:
        """||A_s||_inf."""
        return self.sizes.norms[0 if self.by_rows else 1]

    @cached_property
    def condition(self) -> float:
        """||A_s||_1·||A_s^-1||_1, the latter estimated by a few solves."""
        if self.singular:
            return float("inf")
        return self.sizes.norms[1 if self.by_rows else 0] * self.lu.inverse_one_norm()

    @cached_property
    def growth(self) -> float:
        """max |u_ij| / max |a_ij|."""
        return self.lu.largest_of_upper() / self.sizes.largest if self.sizes.largest else 1.0

    @property
    def fit(self) -> bool:
        """Whether GMRES has a chance with them."""
        return self.condition * PRECISIONS[self.precision].u <= HOPELESS

    @property
    def even(self) -> bool:
        """Whether U's diagonal shows no sign of singularity; not all singular matrices show one there."""
        diagonal = self.lu.diagonal
        return bool(diagonal.min() >= DOUBT * diagonal.max())

    def apply(self, R: Block) -> Block:
        """A_s^-1 R, a new block of R's type."""
        return self.lu.apply(R)


class Estimates:
    """Condition and growth of factors, which are let go once these are known."""

    def __init__(self, factors: Factors):
        self._factors: Factors | None = factors
        self._values = (0.0, 0.0)

    def values(self) -> tuple[float, float]:
        """Condition and growth."""
        factors = self._factors
        if factors is not None:
            self._values = factors.condition, factors.growth
            self._factors = None
        return self._values


def factor_in_fp64(arrays: Arrays, A: Matrix, spans: Spans) -> Factors:
    """A's factors in fp64, beyond which there is nothing to fall back to."""
    factors = factor(arrays, A, "fp64", spans)
    if factors.singular:
        raise SingularError(
            f"A is singular: pivot {factors.singular} of {A.shape[0]} is exactly zero; "
            "check the matrix, or solve in the sense of least squares (numpy.linalg.lstsq)"
        )
    return factors


def factor(arrays: Arrays, A: Matrix, name: str, spans: Spans) -> Factors:
    """Scale if need be, copy once into the factors' type, and factor."""
    by_rows = arrays.by_rows(A)
    R = A if by_rows else A.T
    dtype = type_of(A)
    W = arrays.room(A.shape[0], typed(dtype.kind == "c", wide=name == "fp64"), name)
    with arrays.careful():
        with spans("equilibrate"):
            scaling = None
            sizes = Sizes(*arrays.fill(W, R, None))
            if PRECISIONS[name].bytes < 4 or not sizes.balanced:
                check_finite(arrays, A, "A")
                scales = _equilibration(arrays, R)
                scaling = Scaling(*(scales if by_rows else scales[::-1]), arrays.inf_norm(R, by_rows))
                sizes = Sizes(*arrays.fill(W, R, scales))
        with spans("factor"):
            lu = arrays.lu(W, name, by_rows)
    return Factors(name, arrays.emulates(name, dtype), lu, by_rows, scaling, sizes)


def _equilibration(arrays: Arrays, R: Matrix) -> tuple[Array, Array]:
    """Powers of two for R's rows and columns: one kind by its largest entries, then the other by what that leaves.

    First comes the kind whose largest entries spread more.  Were rows of different scale dealt with by columns first,
    the one largest row would set every column's scale, and the others could underflow.
    """
    by_row, by_column = np.ones(R.shape[0]), np.ones(R.shape[1])
    row_max, column_max = arrays.largest_entries(R, by_row, by_column)
    if _spread(row_max) >= _spread(column_max):
        by_row = power(row_max)
        return by_row, power(arrays.largest_entries(R, by_row, by_column)[1])
    by_column = power(column_max)
    return power(arrays.largest_entries(R, by_row, by_column)[0]), by_column


def _spread(largest: Array) -> int:
    """How many powers of two lie between the numbers other than zero."""
    exponents = np.frexp(largest[largest > 0])[1]
    return int(np.ptp(exponents)) if exponents.size else 0
