"""Scale rows and columns of A, and right-hand sides near the limits of the range, by powers of two, without rounding.

    A_s = R A C,    b_s = R b p,    A_s y = b_s,    x = C y / p

Numbers below the smallest normal number have fewer digits, and their products underflow. Sums of the largest numbers
overflow. R and C are diagonal matrices of powers of two. Each right-hand side has its own power of two p.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import frexp
from typing import Any

from mxpeak.distributed.dense import DistMatrix
from mxpeak.kernels.arrays import is_complex_array
from mxpeak.kernels.contract import DenseKernels, Kernels, Matrix, Vector
from mxpeak.kernels.contract.dense import Triangle
from mxpeak.solvers.transformations import Transformation

#: Scale a matrix if its row or column sums differ by more than SPREAD, or are outside 1/RANGE to RANGE.
SPREAD, RANGE = 2.0**10, 2.0**60
#: Numbers below this value are multiplied by its reciprocal.
LEAST = 2.0**-1000
#: Products of two scales are computed only while they and their reciprocals are smaller than this value.
FARTHEST = 2.0**1000
#: The largest e for which 2^e and 2^-e are normal numbers, by the bytes of a real number.
LARGEST = {8: 1022, 4: 126}
#: The smallest and the largest of several numbers.
Ends = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class Balance(Transformation):
    """The powers of two that scale the rows (R) and the columns (C) of a matrix: S = R and T = C."""

    R: Vector
    C: Vector

    def left(self, r: Vector) -> Vector:
        """Return R r."""
        return self.R * r

    def right(self, y: Vector) -> Vector:
        """Return C y."""
        return self.C * y

    def left_transposed(self, r: Vector) -> Vector:
        """Return R r."""
        return self.R * r

    def right_transposed(self, c: Vector) -> Vector:
        """Return C c."""
        return self.C * c


def balanced(rows: Ends, columns: Ends, spread: float = SPREAD) -> Any:
    """Return whether the sums of absolute values in the rows and columns of A show that A needs no scaling.

    `rows` and `columns` are the pairs of the smallest and the largest sum, as numbers or arrays. A needs scaling if the
    quotient of the largest and the smallest sum exceeds `spread`. It also needs scaling if a sum is outside 1/RANGE to
    RANGE, NaN or infinite.
    """
    suits: Any = True
    for low, high in (rows, columns):
        suits = suits & (high <= spread * low) & (high > 1 / RANGE) & (high < RANGE)
    return suits


def ends(sums: Vector) -> tuple[float, float]:
    """Return the smallest and the largest entry."""
    return float(sums.min()), float(sums.max())


def powers(largest: Vector, xp: Any) -> Vector:
    """Return the power of two, at most 2^1000, that scales each x >= 0 to [1/2, 1), and 1 for x = 0.

    With x = m·2^e and m in [1/2, 1), the power is 2^-e = m / x, without rounding.
    """
    x = xp.astype(largest, xp.float64, copy=False)
    m, zero = xp.frexp(x)[0], x == 0.0
    return (m + zero) / xp.where(x < LEAST, m * LEAST + zero, x)


def spread(largest: Vector, xp: Any) -> int:
    """Return the difference between the largest and the smallest binary exponent of the nonzero entries."""
    exponents = xp.frexp(largest[largest > 0])[1]
    return int(xp.max(exponents)) - int(xp.min(exponents)) if exponents.shape[0] else 0


def balance(A: DistMatrix, kernels: Kernels) -> Balance:
    """Scale the rows of A and then its columns by powers of two, so that their largest entries are in (1/2, 1].

    Overwrite A with R A C, which is exact except for underflow and overflow. Collective over the grid; 4·N² flops.
    """
    xp, (m, n) = kernels.xp, A.local.shape
    rows, columns = xp.zeros(m), xp.zeros(n)
    kernels.row_max(A.local, rows)
    A.grid.row.allreduce(rows, "max")
    R = _reciprocal_powers(rows, kernels)
    kernels.scale_rows_columns(A.local, R, xp.ones(n))
    kernels.column_max(A.local, columns)
    A.grid.column.allreduce(columns, "max")
    C = _reciprocal_powers(columns, kernels)
    kernels.scale_rows_columns(A.local, xp.ones(m), C)
    return Balance(R, C)


def _reciprocal_powers(largest: Vector, kernels: Kernels) -> Vector:
    """Return 2^-ceil(log2 x) of each entry x, and 1 for zeros and non-finite entries."""
    scales = kernels.xp.zeros(len(largest))
    kernels.reciprocal_powers(scales, largest)
    return scales


def equilibration(kernels: DenseKernels, A: Matrix) -> Balance:
    """Return powers of two that scale the rows and columns of A.

    The dimension whose largest entries differ more is scaled first. If rows of different scale were scaled by columns
    first, the largest row would determine the scale of every column, and the other rows could underflow.
    """
    xp = kernels.xp
    R, C = xp.ones(A.shape[0], dtype=xp.float64), xp.ones(A.shape[1], dtype=xp.float64)
    row_max, column_max = kernels.largest_entries(A, R, C)
    if spread(row_max, xp) >= spread(column_max, xp):
        R = powers(row_max, xp)
        return Balance(R, powers(kernels.largest_entries(A, R, C)[1], xp))
    C = powers(column_max, xp)
    return Balance(powers(kernels.largest_entries(A, R, C)[0], xp), C)


def balanced_copy(kernels: DenseKernels, A: Matrix, scales: Balance, W: Matrix) -> tuple[Vector, Vector, float]:
    """Set W = R A C and return the results of `scaled_copy`, even if products of two scales are beyond the range.

    If a product is beyond the range, A is scaled twice, each time with half of every exponent. The intermediate values
    are between those of A and W.
    """
    (R_min, R_max), (C_min, C_max) = ends(scales.R), ends(scales.C)
    if R_max * C_max < FARTHEST and R_min * C_min > 1.0 / FARTHEST:
        return kernels.scaled_copy(A, (scales.R, scales.C), W)
    xp = kernels.xp
    exponents = [[frexp(scale)[1] - 1 for scale in diagonal.tolist()] for diagonal in (scales.R, scales.C)]
    R, C = (xp.asarray([2.0 ** (e // 2) for e in diagonal]) for diagonal in exponents)
    rest = tuple(xp.asarray([2.0 ** (e - e // 2) for e in diagonal]) for diagonal in exponents)
    return kernels.scaled_copy(xp.astype(A * (R[:, None] * C), A.dtype, copy=False), rest, W)


def scale_rows(xp: Any, diagonal: Vector, X: Matrix) -> Matrix:
    """Return D X in the type of X, where D has the given diagonal and X is a vector or a matrix."""
    return xp.astype((diagonal if X.ndim == 1 else diagonal[:, None]) * X, X.dtype, copy=False)


@cache
def safe_minimum(xp: Any, dtype: Any) -> float:
    """Return s = m / ε², where m is the smallest normal number of the type and ε its machine epsilon.

    A number with an absolute value between s and 1/s can be multiplied or divided by ε without underflow or overflow.
    """
    info = xp.finfo(dtype)
    return float(info.smallest_normal) / float(info.eps) ** 2


def raised(xp: Any, A: Matrix) -> tuple[Matrix, int]:
    """Return 2^k A and k if all entries of A are tiny, otherwise A and 0; usually only the first row is examined."""
    tiny = safe_minimum(xp, A.dtype)
    if not (max(_largest_of_columns(xp, A[:1])) < tiny and 0.0 < (largest := max(_largest_of_columns(xp, A))) < tiny):
        return A, 0
    exponent = min(-frexp(largest)[1], 1000)
    return shifted(xp, A, [exponent]), exponent


def lowered(xp: Any, A: Matrix) -> tuple[Matrix, int] | None:
    """Return 2^k A and k < 0 with row and column sums in the range, or None if small entries would be rounded.

    The parts of a complex entry, which are finite, have a modulus that may overflow.
    """
    exponent = -(max(A.shape).bit_length() + 1)
    low = shifted(xp, A, [exponent])
    return (low, exponent) if bool(xp.all(shifted(xp, low, [-exponent]) == A)) else None


def lowered_triangle(xp: Any, A: Triangle) -> tuple[Triangle, int] | None:
    """Return 2^k A and k < 0 with row sums in the range, or None; see `lowered`."""
    diagonal = _diagonal(xp, A)
    strict = xp.tril(A.array, k=-1) if A.lower else xp.triu(A.array, k=1)
    low = lowered(xp, strict + xp.astype(xp.eye(len(A)), A.dtype) * diagonal)
    return None if low is None else (Triangle(low[0], A.lower, A.hermitian), low[1])


def _diagonal(xp: Any, A: Triangle) -> Vector:
    """Return the diagonal; the imaginary parts of a Hermitian matrix are not read."""
    diagonal = A.array.diagonal()
    return xp.real(diagonal) if A.hermitian and is_complex_array(A, xp) else diagonal


def raised_triangle(xp: Any, A: Triangle) -> tuple[Triangle, int]:
    """Return 2^k A and k if all entries of the triangle are tiny, otherwise A and 0; see `raised`."""
    tiny, diagonal = safe_minimum(xp, A.dtype), _diagonal(xp, A)
    diagonal_max = float(xp.max(xp.abs(diagonal)))
    if not diagonal_max < tiny:
        return A, 0
    strict = xp.tril(A.array, k=-1) if A.lower else xp.triu(A.array, k=1)
    if not 0.0 < (largest := max(diagonal_max, *_largest_of_columns(xp, strict))) < tiny:
        return A, 0
    exponent = min(-frexp(largest)[1], 1000)
    half = strict + xp.astype(xp.eye(len(A)), A.dtype) * diagonal
    return Triangle(shifted(xp, half, [exponent]), A.lower, A.hermitian), exponent


def centered(xp: Any, B: Matrix, R: Vector | None, *, lower: bool = False) -> tuple[Matrix, list[int]]:
    """Return 2^k_j b_j for the columns b_j, and k; k_j is 0 if b_j is well within the range.

    The exponents are as small as possible, so that small entries of a huge column are not lost. R scales the rows
    afterwards, so R b_j must also be well within the range. `lower` scales the largest columns down further, to the
    middle of the range; use it if x overflowed.
    """
    sizes, tiny = _largest_of_columns(xp, B), safe_minimum(xp, B.dtype)
    if R is None and not lower and all(tiny < size < 1.0 / tiny or size == 0.0 for size in sizes):
        return B, [0] * len(sizes)
    top = -frexp(tiny)[1]
    highest = top // 2 if lower else top
    exponents = [frexp(size)[1] for size in sizes]
    after_scaling = exponents if R is None else _largest_exponents(xp, B, R)
    shifts = []
    for size, before, after in zip(sizes, exponents, after_scaling):
        high, low = max(before, after), min(before, after)
        shift = highest - high if high > highest else max(top // 2 - high, 0) if low < -top else 0
        shifts.append(shift if size else 0)
    return shifted(xp, B, shifts), shifts


def loses_digits(xp: Any, B: Matrix, centered_B: Matrix, exponents: Sequence[int]) -> bool:
    """Return whether small entries of a huge column were rounded when the column was scaled down."""
    if not any(e < 0 for e in exponents):
        return False
    return bool(xp.any(shifted(xp, centered_B, [-e for e in exponents]) != B))


def shifted(xp: Any, X: Matrix, exponents: Sequence[int]) -> Matrix:
    """Return 2^e_j x_j for the columns x_j, rounded once; 2^e_j itself may be outside the range of the type."""
    dtype, remaining = X.dtype, list(exponents)
    largest = LARGEST[xp.finfo(dtype).bits // 8]
    while any(remaining):
        part = [max(-largest, min(e, largest)) for e in remaining]
        X = X * xp.asarray([2.0**e for e in part])
        remaining = [e - p for e, p in zip(remaining, part)]
    return xp.astype(X, dtype, copy=False)


def _largest_of_columns(xp: Any, X: Matrix) -> list[float]:
    """Return the largest absolute value of each column, over real and imaginary parts."""
    first, *imaginary = (xp.max(sizes, axis=0).tolist() for sizes in _absolute_parts(xp, X))
    return [max(pair) for pair in zip(first, *imaginary)] if imaginary else first


def _largest_exponents(xp: Any, B: Matrix, R: Vector) -> list[int]:
    """Return an exponent e for each column j, such that |r_i b_ij| < 2^e for all i.

    The products may be outside the range of fp64, because only their exponents are computed. Real and imaginary parts
    are examined individually. The exponent of a column of zeros is 0.
    """
    columns, lowest = [], -(1 << 20)
    for sizes in _absolute_parts(xp, B):
        exponents = xp.frexp(xp.astype(sizes, xp.float64, copy=False))[1] + xp.frexp(R)[1][:, None]
        exponents = xp.where(sizes > 0.0, exponents, xp.full_like(exponents, lowest))
        columns.append(xp.max(exponents, axis=0).tolist())
    largest = [max(of_parts) for of_parts in zip(*columns)]
    return [0 if e < lowest // 2 else e for e in largest]


def _absolute_parts(xp: Any, X: Matrix) -> list[Matrix]:
    """Return [|X|] for real X, and [|Re X|, |Im X|] for complex X.

    The modulus of a complex entry may overflow near the end of the range.
    """
    if not is_complex_array(X, xp):
        return [xp.abs(X)]
    return [xp.abs(part(X)) for part in (xp.real, xp.imag)]
