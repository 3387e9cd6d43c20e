"""Bound the forward error of x, and estimate the condition number of A, with factors of any precision.

    |x* - x| <= |A^-1| w,    w = |r| + (n + 1)·u·(|A||x| + |b|),    r = b - A x

The second term of w bounds the rounding errors of r. The normwise and the componentwise bound are

    || |A^-1| w ||_inf / ||x||_inf    and    max_i (|A^-1| w)_i / |x_i|.

Both are infinity norms of D A^-1 diag(w), with D = I / ||x||_inf and D = diag(1 / |x_i|). They are the one-norms of
diag(w) A^-H D, which `inverse_one_norm` estimates from a few solves. LAPACK's gerfs and gesvx use the same method
(Higham 2002, section 7.1 and chapter 15). Factors that are coarser than A, or that belong to another matrix, solve with
A by refinement.
"""

from __future__ import annotations

from collections.abc import Callable
from math import frexp, inf, ldexp, nan, sqrt
from typing import Any, NamedTuple

from mxpeak.kernels.contract import Vector
from mxpeak.kernels.contract.dense import Block, DType
from mxpeak.precision import PRECISIONS
from mxpeak.solvers.accuracy import plain_lu
from mxpeak.solvers.array_factors import ArrayFactors, residual_if_unchanged, sizes_of_terms
from mxpeak.solvers.condition import inverse_one_norm
from mxpeak.solvers.refine import MAX_STEPS, gmres_columns, refine_columns
from mxpeak.solvers.scaling import powers


class ErrorBound(NamedTuple):
    """Bounds of the relative forward error of x. The values are those of the worst right-hand side.

    The exact solution is x*. A bound of inf means that x may have no correct digit.

    Attributes
    ----------
    normwise : float
        Bound of ||x* - x|| / ||x|| in the infinity norm.
    componentwise : float
        Bound of max_i |x*_i - x_i| / |x_i|. The value is inf if an entry of x is zero.
    """

    normwise: float
    componentwise: float


#: The bounds if x may have no correct digit, and the bounds if A, b or x changed.
NO_BOUND, UNKNOWN = ErrorBound(inf, inf), ErrorBound(nan, nan)


def condition_number(factors: ArrayFactors) -> float:
    """Return ||A||_1·||A^-1||_1 of A itself, without scaling, with an estimate of ||A^-1||_1.

    The value is inf if a pivot is zero, or if refinement with the factors does not converge.
    """
    if factors.condition_of_A is None:
        adjoint = None if factors.singular or not _refines(factors) else factors.transposed()
        if adjoint is None:
            return factors.condition
        with factors.computing():
            inverse, inverse_adjoint, n = _inverse(factors), _inverse_adjoint(adjoint), factors.n
            norm = inverse_one_norm(inverse, inverse_adjoint, factors.row_indices, n, _wide(factors), factors.xp)
            A_one, exponent = factors.matrix.one_norm()
            factors.condition_of_A = max(1.0, _scaled(norm * A_one, _shift(factors) + exponent))
    return factors.condition_of_A


def condition_if_unchanged(factors: ArrayFactors, X: Block, B: Block, eta: float) -> float:
    """Return the condition number, or NaN if it depends on A and A, X or B changed since eta was computed."""
    if X.shape[1] and factors.condition_of_A is None and _refines(factors) and eta < inf:
        with factors.computing():
            if residual_if_unchanged(factors.kernels, factors.matrix.A, X, B, eta) is None:
                return nan
    return condition_number(factors)


def error_bound(factors: ArrayFactors, X: Block, B: Block, eta: float, rhs: int) -> ErrorBound:
    """Return bounds of the forward error of X, or NaN if A, X or B changed since the backward error eta was computed.

    Several right-hand sides share one estimate with w = max_j w_j / ||x_j||, which bounds each of them. The bound is
    divided by 1 - bound, because the factors apply A^-1 with a relative error of up to the bound. If X has 2·rhs
    columns, they are the real and imaginary parts of rhs columns, and |x| and w consist of the moduli of both parts.
    """
    kernels, xp, matrix = factors.kernels, factors.xp, factors.matrix
    if not X.shape[1]:
        return ErrorBound(0.0, 0.0)
    if not eta < inf:
        return NO_BOUND
    with factors.computing():
        R = residual_if_unchanged(kernels, matrix.A, X, B, eta)
        if R is None:
            return UNKNOWN
        rounding = (factors.n + 1) * matrix.u * (2.0 * sqrt(2.0) if matrix.is_complex else 1.0)
        W = xp.abs(R) + rounding * sizes_of_terms(kernels, matrix.A, X, B)
        adjoint = factors.transposed()
        if adjoint is None:
            return NO_BOUND
        sizes = xp.abs(X)
        if X.shape[1] == 2 * rhs:
            W, sizes = (xp.hypot(V[:, :rhs], V[:, rhs:]) for V in (W, sizes))
        inverse, inverse_adjoint = _inverse(factors), _inverse_adjoint(adjoint)
        return bounds_of(xp, inverse, inverse_adjoint, W, sizes, _wide(factors), shift=_shift(factors))


def bounds_of(
    xp: Any,
    inverse: Callable[[Vector], Vector],
    inverse_adjoint: Callable[[Vector], Vector],
    W: Block,
    X: Block,
    dtype: DType,
    *,
    shift: int = 0,
) -> ErrorBound:
    """Return the worst bounds of |e_j| <= 2^shift·|T| w_j relative to x_j, for non-negative columns of W and X.

    T maps vectors like w to vectors like x. `inverse` and `inverse_adjoint` are T and T^H for vectors of `dtype`.
    """
    W, X = (xp.astype(V, xp.float64, copy=False) for V in (W, X))
    sizes = xp.max(X, axis=0)
    exact = (sizes == 0.0) & (xp.max(W, axis=0) == 0.0)  # columns of zeros
    sizes = xp.where(exact, xp.ones_like(sizes), sizes)
    w, least = xp.max(W / sizes, axis=1), xp.min(xp.where(exact, xp.ones_like(X), X / sizes), axis=1)
    w_max, smallest = float(xp.max(w)), float(xp.min(least))
    if w_max == 0.0:
        return ErrorBound(0.0, 0.0)
    if not w_max < inf:
        return NO_BOUND
    w, n = w / w_max, X.shape[0]

    def inf_norm(left: Vector) -> float:
        """Return the largest entry of diag(left) 2^shift·|T| w."""
        norm = inverse_one_norm(
            lambda v: w * inverse_adjoint(left * v), lambda v: left * inverse(w * v), xp.arange(n), n, dtype, xp
        )
        return _scaled(norm * w_max, shift)

    bound = inf_norm(xp.ones_like(least))
    if not bound < 1.0:
        return NO_BOUND
    by_component = inf_norm(smallest / least) / smallest if smallest else inf
    return ErrorBound(bound / (1.0 - bound), max(by_component, bound) / (1.0 - bound))


def _wide(factors: ArrayFactors) -> Any:
    return factors.xp.complex128 if factors.matrix.is_complex else factors.xp.float64


def _refines(factors: ArrayFactors) -> bool:
    """Return whether solves with A need the scales of A, or refinement."""
    return factors.scaled or _coarse(factors)


def _coarse(factors: ArrayFactors) -> bool:
    return factors.lagged or PRECISIONS[factors.precision].u > factors.matrix.u


def _shift(factors: ArrayFactors) -> int:
    """Return the exponent of the power of two by which `_inverse` divides A^-1."""
    balance, xp = factors.matrix.balance, factors.xp
    return 0 if balance is None else sum(frexp(float(xp.max(D)))[1] for D in (balance.R, balance.C))


def _inverse(factors: ArrayFactors) -> Callable[[Vector], Vector]:
    """Return the function v -> A^-1 v / 2^shift for vectors of the widest type.

    The result is NaN if refinement does not converge.
    """
    xp, matrix, wide = factors.xp, factors.matrix, _wide(factors)
    equations, enough = factors.equations(scaled=True), plain_lu(factors.n, is_complex=matrix.is_complex)
    R = C = xp.ones(factors.n, dtype=xp.float64)
    middle = 1.0  # with this size of B, C Y and A C Y are equally far from the limits of the range
    if matrix.balance is not None:
        of_R, of_C = (frexp(float(xp.max(D)))[1] for D in (matrix.balance.R, matrix.balance.C))
        R, C, middle = matrix.balance.R * 2.0**-of_R, matrix.balance.C * 2.0**-of_C, 2.0 ** ((of_R - of_C) // 2)

    def apply(v: Vector) -> Vector:
        v = R * v
        scale = powers(xp.max(xp.abs(v)), xp)
        B = xp.astype(v * scale * middle, matrix.A.dtype, copy=False)[:, None]
        Y = equations.solve(B)
        if _coarse(factors):
            columns = refine_columns(equations, B, Y, enough)
            if not columns.etas[0] <= enough:
                gmres_columns(equations, B, columns, enough, MAX_STEPS, all_columns=True)
            Y = columns.X if columns.etas[0] <= enough else xp.full_like(Y, nan)
        return C * (xp.astype(Y[:, 0], wide, copy=False) / middle / scale)

    return apply


def _inverse_adjoint(transposed: ArrayFactors) -> Callable[[Vector], Vector]:
    """Return the function v -> A^-H v / 2^shift, given the factors of A^T."""
    inverse = _inverse(transposed)
    if not transposed.matrix.is_complex:
        return inverse
    conj = transposed.xp.conj
    return lambda v: conj(inverse(conj(v)))


def _scaled(norm: float, exponent: int) -> float:
    """Return norm · 2^exponent, or inf if the product overflows."""
    try:
        return ldexp(norm, exponent)
    except OverflowError:
        return inf
