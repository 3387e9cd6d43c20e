"""Stacks of systems on the host: NumPy's solver, and a check of what it gives.

    [X z] = A^-1 [B s],    eta = ||b - A x|| / ((||A||·||x|| + ||b||)·n·u),    ||A||·||z||·u

for each system of a stack (..., n, n).  s are random numbers: ||A||·||z|| is seldom far below the condition, and costs
one column more.  Where one of the two is large, or A wants scaling, the solver for single systems has to look at it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mxpeak.library.dense.factoring import probe
from mxpeak.library.dense.range_scaling import least
from mxpeak.library.dense.refinement import SAMPLED, plain_lu
from mxpeak.library.types import Array, roundoff
from mxpeak.solvers.condition import PROBED
from mxpeak.solvers.scaling import balanced


@dataclass(frozen=True, slots=True)
class Solved:
    """Solutions of a stack: X (..., n, k), eta (...), and which of them are as good as a stable solver's."""

    X: Array
    eta: Array
    good: Array


def solve_small(A: Array, B: Array) -> Solved | None:
    """Solve A X = B, A (..., n, n) and B (..., n, k) of one type; None if a matrix is singular."""
    n, k = B.shape[-2:]
    u = roundoff(A.dtype)
    with np.errstate(all="ignore"):
        # Of B's stack, which NumPy fits to A's; NumPy 1 takes what has one dimension less than A for vectors.
        both = np.empty((*(1,) * (A.ndim - B.ndim), *B.shape[:-1], k + 1), A.dtype)
        both[..., :k], both[..., k] = B, probe(n)
        try:
            both = np.linalg.solve(A, both)
        except np.linalg.LinAlgError:
            return None
        X, grown = np.ascontiguousarray(both[..., :k]), np.abs(both[..., k]).max(-1)
        sizes = np.abs(A)
        by_row, by_column = sizes.sum(-1), sizes.sum(-2)
        A_inf = by_row.max(-1)
        eta = _worst_backward_error(A, A_inf, X, B, u)
        good = (eta <= plain_lu(n, is_complex=A.dtype.kind == "c")) & (A_inf * grown * u <= PROBED)
        good &= balanced((by_row.min(-1), A_inf), (by_column.min(-1), by_column.max(-1))) & _in_range(B)
    return Solved(X, eta, good)


def _worst_backward_error(A: Array, A_inf: Array, X: Array, B: Array, u: float) -> Array:
    """eta of each system; of many right-hand sides, that of a random combination, each over its own scale."""
    n, k = B.shape[-2:]
    A_inf = A_inf[..., None]
    scale = np.abs(X).max(-2) + np.abs(B).max(-2) / A_inf
    scale[scale == 0.0] = 1.0  # of x = b = 0
    scale[~(scale < np.inf)] = np.nan  # of an x beyond the range: any residual would be small beside it
    if k > SAMPLED:
        w = (probe(k) / scale)[..., None].astype(A.dtype)
        X, B, scale = X @ w, B @ w, 1.5 * np.sqrt(k)
    worst: Array = (np.abs(B - A @ X).max(-2) / A_inf / scale).max(-1) / (n * u)
    return worst


def row_errors_of_stack(A: Array, X: Array, B: Array) -> tuple[Array, Array]:
    """Return the worst row-wise backward error of each system, and its normwise one, both in n·u."""
    n, u, known = A.shape[-1], roundoff(A.dtype), np.finfo(A.dtype)
    with np.errstate(all="ignore"):
        sizes, R = np.abs(A), np.abs(B - A @ X)
        D = sizes @ np.abs(X) + np.abs(B)
        zero = (n + 1) * float(known.smallest_subnormal) >= R
        omega = np.where(zero, 0.0, R) / np.where(zero, 1.0, D)
        A_inf = sizes.sum(-1).max(-1)[..., None]
        scale = np.abs(X).max(-2) + np.abs(B).max(-2) / A_inf
        eta = R.max(-2) / A_inf / np.where(scale == 0.0, 1.0, scale)
    omega[np.isnan(omega)] = np.inf
    eta[np.isnan(eta)] = np.inf
    return omega.max((-1, -2)) / (n * u), eta.max(-1) / (n * u)


def _in_range(B: Array) -> Array:
    """Whether no right-hand side is so tiny that its residual may vanish, or huge."""
    low, b_inf = least(B.dtype), np.abs(B).max(-2)
    suits: Array = ((b_inf == 0.0) | ((b_inf > low) & (b_inf < 1 / low))).all(-1)
    return suits
