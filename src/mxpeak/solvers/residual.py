"""Compute the norms for HPL's check, with a newly generated [A | b] that is independent of the factorization."""

from __future__ import annotations

from dataclasses import dataclass
from math import frexp, inf, isfinite, ldexp
from sys import float_info
from typing import Any

from mxpeak.comm.collectives import allreduce_scalars
from mxpeak.distributed.dense import DistMatrix
from mxpeak.distributed.spaces import max_abs
from mxpeak.kernels.contract import Kernels

#: Size of ||x|| + ||b|| / ||A|| below which a residual divided by ||A|| may underflow, and the largest number.
TINY, LARGEST = 2.0**-900, float_info.max


@dataclass(frozen=True, slots=True)
class ResidualNorms:
    """The norm ||Ax-b||_inf, and the norms of A, x and b that scale it. All are NaN if the solution is not finite."""

    residual: float
    A_inf: float
    A_one: float
    x_inf: float
    x_one: float
    b_inf: float

    def scaled(self, n: int, u: float) -> float:
        """Return ||Ax-b|| / (u · (||x|| ||A|| + ||b||) · N) in the infinity norm, or 0 if N = 0."""
        return backward_error(self.residual, self.A_inf, self.x_inf, self.b_inf, n, u)


def backward_error(r_inf: float, A_inf: float, x_inf: float, b_inf: float, n: int, u: float) -> float:
    """Return eta = ||r|| / ((||A||·||x|| + ||b||)·n·u) in the infinity norm, or ||r|| for a system of zeros.

    r_i = b_i - Σ_j a_ij x_j is a sum of n + 1 terms. Rounding to u, in a solver or in its check, causes an error of up
    to about n·u·(||A||·||x|| + ||b||) in r_i, even for the best x of this precision. In these units, the error of a
    stable solver is of order 1 or less for all n and u. A threshold therefore need not depend on n and u.

    All terms are divided by ||A||, because the product of norms may overflow. An ||A|| that overflows counts as the
    largest number. If the quotients may underflow or overflow, they are computed with exponents that have no limit.
    """
    A_inf = A_inf or 1.0
    quotient, scale = r_inf / A_inf, x_inf + b_inf / A_inf
    if TINY <= scale < inf and quotient < inf and A_inf < inf:
        return quotient / (scale * (max(n, 1) * u))
    A_inf = min(A_inf, LARGEST)
    if all(map(isfinite, (r_inf, A_inf, x_inf, b_inf))):
        return _error_by_exponents(r_inf, A_inf, x_inf, b_inf) / (max(n, 1) * u)
    return quotient / (scale * (max(n, 1) * u)) if scale else r_inf


def _error_by_exponents(r_inf: float, A_inf: float, x_inf: float, b_inf: float) -> float:
    """Return ||r|| / (||A||·||x|| + ||b||), or ||r|| for a system of zeros, for products beyond the range."""
    (r, of_r), (A, of_A), (x, of_x), (b, of_b) = map(frexp, (r_inf, A_inf, x_inf, b_inf))
    if not (x or b):
        return r_inf
    largest = max(of_A + of_x if x else of_b, of_b if b else of_A + of_x)
    scale = ldexp(A * x, of_A + of_x - largest) + ldexp(b, of_b - largest)
    try:
        return ldexp(r / scale, of_r - largest)
    except OverflowError:
        return inf


def residual_norms(A: DistMatrix, x: Any, kernels: Kernels) -> ResidualNorms:
    """Return norms of A x - b, A, x and b for the augmented matrix [A | b] and a solution over the columns.

    x has the entries of this rank's own columns, as `triangular.solve_augmented` returns them. No argument is
    overwritten. The computation takes 4·N² flops and two passes over A. Collective.
    """
    grid, N = A.grid, A.rows.n
    own = slice(0, A.cols.local_start(N))
    body = A.local[:, own]
    xp = kernels.xp
    by_row, by_column = xp.zeros(A.rows.local_size), xp.zeros(own.stop)
    kernels.abs_sums(body, by_row, by_column)
    grid.row.allreduce(by_row, "sum")
    grid.column.allreduce(by_column, "sum")

    r = xp.zeros(A.rows.local_size)
    b_inf = 0.0
    if grid.q == A.cols.owner(N):
        b = A.local[:, A.cols.to_local(N)]
        kernels.add_scaled(r, -1.0, b)
        b_inf = max_abs(kernels, b)
    kernels.add_matvec(r, body, x)
    grid.row.allreduce(r, "sum")

    norms = [max_abs(kernels, v) for v in (r, by_row, by_column, x)]
    residual, A_inf, A_one, x_inf, b_inf = allreduce_scalars(grid.all, [*norms, b_inf], "max", kernels.xp)
    x_one = xp.asarray([float(xp.sum(xp.abs(x)))])
    grid.row.allreduce(x_one, "sum")
    return ResidualNorms(residual, A_inf, A_one, x_inf, float(x_one[0]), b_inf)
