"""Solve one small tall least-squares problem with few calls of NumPy and LAPACK, and check the result.

The method, the check and the limits are those of `mxpeak.solvers.least_squares` with R in the type of A: y by the
seminormal equations, r = b - C y, and the backward error of both. If a check fails, the caller uses that module.
"""

from __future__ import annotations

from math import inf, sqrt
from typing import Any, NamedTuple

import numpy as np

from mxpeak.library.dense.lapack_solver import routines
from mxpeak.library.types import Array
from mxpeak.solvers.accuracy import plain_lu
from mxpeak.solvers.extended_residual import extended_residual
from mxpeak.solvers.least_squares import END, FAR, QrFactors, Solved, small_residual
from mxpeak.solvers.refine import CLASSICAL_STEPS, GAIN

#: Number of columns that a step of the blocked QR eliminates.
COLUMNS = 32
#: Largest number of projections of a residual that is small relative to b.
PROJECTIONS = 5
#: Unit roundoff of fp64.
U = 2.0**-53
#: The smallest normal number.
TINY = 2.0**-1022


class SmallSolution(NamedTuple):
    """The solution x, the residual b - A x, and the sensitivity of x to roundings.

    history  the backward errors in m·u at the start and after each correction
    scaled   Y with x = D Y
    """

    x: Array
    residual: Array
    history: list[float]
    sensitivity: float
    scaled: Array

    def solved(self, kernels: Any, A: Array, B: Array) -> Solved:
        """Return the solution for estimates of the condition number and of error bounds, with new factors of A."""
        factors = QrFactors(kernels, A, A.dtype)
        G = np.zeros((A.shape[1], B.shape[1]), A.dtype)
        return Solved(factors, B, G, self.residual, self.scaled, self.history[-1])


def solve_small(A: Array, B: Array, max_condition: float) -> SmallSolution | None:
    """Minimize ||B - A x|| for a tall A in fp64 and B (m, k), or return None if a check fails.

    A check fails if the numbers are not well within the range, if R is too ill-conditioned, or if the backward error
    shows that x needs refinement.
    """
    (m, n), is_complex = A.shape, A.dtype.kind == "c"
    of = routines(A.dtype)
    trtrs, gemm = of.trtrs, of.gemm
    largest, b_largest = np.abs(A).max(axis=0), np.abs(B).max(axis=0)
    # Comparisons with NaN are false.
    if not (largest.min() > 1.0 / END and largest.max() < END and np.all((b_largest < FAR) & (b_largest > 1.0 / FAR))):
        return None
    D = np.ldexp(1.0, -np.frexp(largest)[1])
    C = np.multiply(A, D, order="F")
    QR, _, _, failed = of.geqrf(C, lwork=COLUMNS * n)
    R = np.triu(QR[:n])
    if failed or not np.abs(R.diagonal()).min() > 0.0:
        return None
    squares, sizes_of_R = 1.0, np.abs(R)
    for sizes in (sizes_of_R, np.abs(of.trtri(R)[0])):
        squares *= float(sizes.sum(axis=0).max()) * float(sizes.sum(axis=1).max())
    condition = sqrt(squares) if squares < max_condition**2 else max_condition
    if not condition < max_condition:
        return None
    form = 2 if is_complex else 1

    def correction(F: Array, G: Array) -> tuple[Array, Array]:
        """Return the X and Y with X + C Y = F and C^H X = G, up to the error of R."""
        Y = trtrs(R, trtrs(R, gemm(1.0, C, F, -1.0, G, trans_a=form), trans=form)[0])[0]
        return gemm(-1.0, C, Y, 1.0, F), Y

    def errors(X: Array, Y: Array, f: Array) -> tuple[Array, Array, Array, Array]:
        """Return C^H X, and the errors of f, of C^H X, and of X = 0 for each column, in units of m·u."""
        g, x_norms = gemm(-1.0, C, X, 0.0, zeros, trans_a=form), _norms(X)
        terms = lengths @ np.abs(Y) + x_norms + b_norms
        of_g = (np.abs(g) / np.maximum(lengths[:, None] * x_norms, TINY)).max(axis=0)
        return g, _norms(f) / terms / unit, of_g / unit, x_norms / terms / unit

    lengths, b_norms, zeros = np.sqrt((sizes_of_R**2).sum(axis=0)), _norms(B), np.zeros((n, B.shape[1]), A.dtype)
    target, unit = min(plain_lu(m, B.shape[1], is_complex=is_complex), 4.0 / m), m * U
    X, Y = correction(B, zeros)
    history = list[float]()
    while True:
        f = gemm(-1.0, C, Y, 1.0, B - X)
        g, of_f, of_g, of_x = errors(X, Y, f)
        history.append(float(np.maximum(of_f, np.minimum(of_g, of_x)).max()))
        if history[-1] <= target:
            break
        if len(history) > CLASSICAL_STEPS or not history[-1] * GAIN <= min(history[:-1], default=inf):
            return None
        dX, dY = correction(f * (of_f > target), g)
        X, Y = X + dX, Y + dY
    if (of_x < small_residual(U) / unit).any():
        X = extended_residual(np, B, A, D, Y)
        for _ in range(PROJECTIONS):  # remove the component in the range of C, which is due to the error of Y
            X, dY = correction(X, zeros)
            Y = Y + dY
            f = gemm(-1.0, C, Y, 1.0, B - X)
            _, of_f, of_g, of_x = errors(X, Y, f)
            if (np.minimum(of_g, of_x / U) <= target).all():
                break
        else:
            return None
        history[-1] = float(np.maximum(of_f, np.minimum(of_g, of_x)).max())
    x_norms, Y_abs = _norms(X), np.abs(Y)
    change = _norms(Y) + (b_norms + condition * x_norms) / lengths.max()
    relative = change * D.max() / (D[:, None] * Y_abs).max(axis=0)
    return SmallSolution(D[:, None] * Y, X, history, U * condition * float(relative.max()), Y)


def _norms(V: Array) -> Array:
    """Return the two-norm of each column."""
    norms: Array = np.sqrt((np.abs(V) ** 2).sum(axis=0))
    return norms
