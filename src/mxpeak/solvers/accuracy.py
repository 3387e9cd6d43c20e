"""Backward errors of plain LU, and the row-wise backward error.

    omega = max_i |b - A x|_i / (|A||x| + |b|)_i

omega is the smallest relative change of the entries of A and b for which x is the exact solution (Oettli and Prager
1964). Unlike the normwise error, it does not depend on the scale of the rows.
"""

from __future__ import annotations

from math import inf, isfinite, sqrt
from typing import Any, NamedTuple

#: Normwise and row-wise backward errors that plain LU rarely exceeds; the limits are 4/n and 16/n if those are larger.
PLAIN_LU, PLAIN_LU_BY_ROWS = 2.0**-7, 2.0**-4
#: If there are more right-hand sides, a random combination of them is checked, because a residual for each column
#: would cost as much as the solves.
SAMPLED = 8


class Accuracy(NamedTuple):
    """The backward errors at which refinement stops.

    target  normwise error at which classical refinement stops
    enough  largest normwise error of a solved system; GMRES refines columns with larger errors
    rows    largest row-wise error of a solved system
    """

    target: float
    enough: float
    rows: float


def plain_lu(n: int, rhs: int = 1, *, is_complex: bool) -> float:
    """Return the backward error that plain LU rarely exceeds: max(4/n, 2^-7), times 2·sqrt(2) for a complex matrix.

    To first order, the rounding error of a complex product is up to 2·sqrt(2)·u and that of a real product u (Higham
    2002, section 3.6). The bound is twice as large for many right-hand sides, because their worst error varies more.
    """
    bound = max(4.0 / n, PLAIN_LU) * (2.0 * sqrt(2.0) if is_complex else 1.0)
    return bound * (2.0 if rhs > SAMPLED else 1.0)


def plain_lu_by_rows(n: int, *, is_complex: bool) -> float:
    """Return the row-wise backward error that plain LU rarely exceeds, in n·u: max(16/n, 1/16).

    Measured for n = 200 to 2000: 2 to 80 roundings u for dense matrices, up to 500 for sparse matrices.
    """
    return max(16.0 / n, PLAIN_LU_BY_ROWS) * (2.0 * sqrt(2.0) if is_complex else 1.0)


def row_errors(xp: Any, R: Any, D: Any, n: int) -> Any:
    """Return |r_ij| / d_ij for residuals R and the sizes D of their terms.

    A residual counts as zero if it is at most n + 1 roundings of subnormal numbers, where n is the order of the
    matrix.
    """
    info = xp.finfo(R.dtype)
    floor = (n + 1) * float(info.smallest_normal) * float(info.eps)
    sizes = xp.abs(R)
    zero = sizes <= floor
    return xp.where(zero, xp.zeros_like(sizes), sizes) / xp.where(zero, xp.ones_like(D), D)


def worst(errors: Any) -> float:
    """Return the largest error, or inf if any error is not finite."""
    return max(errors, default=0.0) if all(map(isfinite, errors)) else inf
