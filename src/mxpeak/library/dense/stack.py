"""Solve stacks of systems, A (..., n, n) and b (..., n, k), together, and individually if a check fails.

    [X z] = A^-1 [B s],    eta = ||b - A x|| / ((||A||·||x|| + ||b||)·n·u),    ||A||·||z||·u

The entries of s are random numbers. ||A||·||z|| is rarely far below the condition number and costs one more column. If
eta or ||A||·||z||·u is large for a system, or its matrix needs scaling, the solver for single systems solves this
system again. Many small real systems are solved by the compiled stacked LU, all others by NumPy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import nan, sqrt
from typing import Any

import numpy as np

from mxpeak.errors import Outcome, UsageError
from mxpeak.kernels.arrays import probe_vector
from mxpeak.library.dense.info import Estimates, SolveInfo
from mxpeak.library.dense.stacked_lu import solve_by_stacked_lu, suits_stacked_lu
from mxpeak.library.inputs import Input, device_for, read
from mxpeak.library.outcomes import NotPositiveDefiniteError, SingularMatrixError
from mxpeak.library.types import Array, own_precision, roundoff, working_type
from mxpeak.precision import PRECISIONS
from mxpeak.solvers.accuracy import SAMPLED, plain_lu, row_errors
from mxpeak.solvers.array_factors import CHANGED
from mxpeak.solvers.condition import PROBED
from mxpeak.solvers.scaling import balanced, safe_minimum

#: Largest number of failed systems that the message lists.
LISTED = 5
#: Number of entries of matrices that are inverted at a time.
PART = 1 << 20

Indices = tuple[int, ...]


def stack_of(values: Any) -> Input | None:
    """Wrap A as a stack of square matrices, or return None if A has fewer than three dimensions."""
    if getattr(values, "ndim", 0) < 3 and not (isinstance(values, list | tuple) and _depth(values) > 2):
        return None
    A = read(values, "A", instead="mxpeak.gmres(A, b)")
    if A.shape[-1] != A.shape[-2]:
        raise UsageError(
            f"A has shape {A.shape}, but solve needs a square matrix or a stack of shape (..., n, n); use "
            "mxpeak.lstsq for least squares"
        )
    return A


def _depth(values: Any) -> int:
    """Return the nesting depth of lists, or 0 for irregular lists, which `read` rejects later."""
    try:
        return int(np.ndim(values))
    except (ValueError, TypeError):
        return 0


def solve_stack(
    A: Input,
    b: Input,
    device: str,
    precision: str,
    solve_single: Callable[[Input, Input], tuple[Any, SolveInfo]],
    *,
    together: bool = True,
) -> tuple[Any, SolveInfo]:
    """Solve all systems of a stack together. Solve the systems that fail the check again with `solve_single`.

    If a precision is requested, or `together` is False, `solve_single` solves all systems.
    """
    if device_for(device, A.device, b.device) is not None:
        raise UsageError("mxpeak solves stacks only on the host; use A.cpu() and b.cpu(), or use solve for each matrix")
    dtype = np.result_type(working_type(A.dtype), working_type(b.dtype))
    M, rhs = A.on(None, dtype), b.on(None, dtype)
    B = as_columns(A.shape, rhs)
    shape = np.broadcast_shapes(M.shape[:-2], B.shape[:-2])
    begin = time.perf_counter()
    empty = 0 in (*shape, *B.shape[-2:])
    own = not empty and (precision == "auto" or (precision == "fp64" and roundoff(dtype) == PRECISIONS["fp64"].u))
    solution = solve_together(M, B) if own and together else None
    if solution is None:
        solution = np.empty((*shape, *B.shape[-2:]), dtype), np.zeros(shape), np.full(shape, empty)
    X, eta, accurate = solution
    if empty or not accurate.all():  # the checks of the solution detect NaN and Inf
        for name, V in (("A", M), ("b", rhs)):
            _check_finite(V, name)
    M, B = (np.broadcast_to(V, (*shape, *V.shape[-2:])) for V in (M, B))
    middle = time.perf_counter()
    infos: dict[Indices, SolveInfo] = {}
    for index in map(tuple, np.argwhere(~accurate).tolist()):
        single_A, single_b = (Input(name, V[index], dtype, V[index].shape, "cpu") for name, V in (("A", M), ("b", B)))
        try:
            X[index], infos[index] = solve_single(single_A, single_b)
        except (SingularMatrixError, NotPositiveDefiniteError) as error:
            raise type(error)(f"in the stack, A[{', '.join(map(str, index))}]: {error}") from None
        eta[index] = infos[index].backward_error
    times = {"all at once": middle - begin, "one by one": time.perf_counter() - middle}
    kept = M, X.copy(), B.copy(), eta.copy(), infos  # the user may change x and b
    info = _info(infos, eta, X, times, _row_error(*kept), _inverse_facts(*kept))
    return b.result(X[..., 0] if len(b.shape) == 1 else X), info


def solve_together(A: Array, B: Array) -> tuple[Array, Array, Array] | None:
    """Solve A X = B with the stacked LU or NumPy, for A (..., n, n) and B (..., n, k) of one type.

    Returns X, the backward errors eta (...), and a mask of the systems that are solved accurately. Returns None if
    NumPy finds a singular matrix, because NumPy does not return the solutions of the other systems.
    """
    if suits_stacked_lu(A, B):
        return solve_by_stacked_lu(A, B)
    n, k = B.shape[-2:]
    u = roundoff(A.dtype)
    with np.errstate(all="ignore"):
        # NumPy 2 broadcasts the stack of B. NumPy 1 interprets a B with one dimension less than A as vectors.
        both = np.empty((*(1,) * (A.ndim - B.ndim), *B.shape[:-1], k + 1), A.dtype)
        both[..., :k], both[..., k] = B, probe_vector(n)
        try:
            both = np.linalg.solve(A, both)
        except np.linalg.LinAlgError:
            return None
        X, z_inf = np.ascontiguousarray(both[..., :k]), np.abs(both[..., k]).max(-1)
        sizes = np.abs(A)
        by_row, by_column = sizes.sum(-1), sizes.sum(-2)
        A_inf = by_row.max(-1)
        eta = _worst_backward_error(A, A_inf, X, B, u)
        good = (eta <= plain_lu(n, is_complex=A.dtype.kind == "c")) & (A_inf * z_inf * u <= PROBED)
        good &= balanced((by_row.min(-1), A_inf), (by_column.min(-1), by_column.max(-1))) & _in_range(B)
    return X, eta, good


def _worst_backward_error(A: Array, A_inf: Array, X: Array, B: Array, u: float) -> Array:
    """Return the largest backward error eta of each system, in units of n·u.

    For many right-hand sides, eta is that of a random combination of the scaled columns.
    """
    n, k = B.shape[-2:]
    A_inf = A_inf[..., None]
    scale = np.abs(X).max(-2) + np.abs(B).max(-2) / A_inf
    scale[scale == 0.0] = 1.0  # x = b = 0
    scale[~(scale < np.inf)] = np.nan  # x overflowed: relative to x, every residual would be small
    if k > SAMPLED:
        w = (probe_vector(k) / scale)[..., None].astype(A.dtype)
        X, B, scale = X @ w, B @ w, 1.5 * np.sqrt(k)
    worst: Array = (np.abs(B - A @ X).max(-2) / A_inf / scale).max(-1) / (n * u)
    return worst


def _in_range(B: Array) -> Array:
    """Return for each system whether no right-hand side is too large, or so small that the residual may underflow."""
    low, b_inf = safe_minimum(np, B.dtype), np.abs(B).max(-2)
    suits: Array = ((b_inf == 0.0) | ((b_inf > low) & (b_inf < 1 / low))).all(-1)
    return suits


def _errors(A: Array, X: Array, B: Array) -> tuple[Array, Array]:
    """Return the largest row-wise and normwise backward errors of each system, in units of n·u."""
    n, u = A.shape[-1], roundoff(A.dtype)
    with np.errstate(all="ignore"):
        sizes, R = np.abs(A), np.abs(B - A @ X)
        omega = row_errors(np, R, sizes @ np.abs(X) + np.abs(B), n)
        A_inf = sizes.sum(-1).max(-1)[..., None]
        scale = np.abs(X).max(-2) + np.abs(B).max(-2) / A_inf
        eta = R.max(-2) / A_inf / np.where(scale == 0.0, 1.0, scale)
    omega[np.isnan(omega)] = np.inf
    eta[np.isnan(eta)] = np.inf
    return omega.max((-1, -2)) / (n * u), eta.max(-1) / (n * u)


def _row_error(A: Array, X: Array, B: Array, eta: Array, infos: dict[Indices, SolveInfo]) -> Estimates:
    """Return an `Estimates` object that computes the largest row-wise error of all systems on first use.

    X, B and eta are copies. The error is NaN if A has changed.
    """
    if not X.size:
        return Estimates.from_values((0.0,))

    def compute() -> tuple[float]:
        omega, now = _errors(A, X, B)
        for index, info in infos.items():  # `solve_single` may have solved these in another range
            omega[index], now[index] = info.componentwise_error, eta[index]
        unchanged = bool((now <= CHANGED * (eta + 1.0)).all())
        return (float(omega.max()) if unchanged else nan,)

    return Estimates(compute)


def _inverse_facts(A: Array, X: Array, B: Array, eta: Array, infos: dict[Indices, SolveInfo]) -> Estimates:
    """Return an `Estimates` object that computes the largest condition number and forward error bounds on first use.

    The values of the individually solved systems are in `infos`. The inverses of all other matrices are computed in
    parts. X, B and eta are copies. The values are NaN if A has changed.
    """
    if not X.size:
        return Estimates.from_values((0.0, 0.0, 0.0))

    def compute() -> tuple[float, float, float]:
        condition, normwise, componentwise = (np.zeros(eta.shape) for _ in range(3))
        together = np.ones(eta.shape, bool)
        for index, info in infos.items():
            together[index], condition[index] = False, info.condition
            assert info.error_bound is not None
            normwise[index], componentwise[index] = info.error_bound
        systems, n = np.argwhere(together), max(A.shape[-1], 1)
        height = max(1, PART // (n * n))
        for i in range(0, len(systems), height):
            part = tuple(systems[i : i + height].T)
            condition[part], normwise[part], componentwise[part] = _bounds(A[part], X[part], B[part], eta[part])
        return tuple(float(values.max(initial=0.0)) for values in (condition, normwise, componentwise))  # type: ignore[return-value]

    return Estimates(compute)


def _bounds(A: Array, X: Array, B: Array, eta: Array) -> Array:
    """Return the condition number, and the normwise and the componentwise forward error bound, of each system.

    The bounds are those of `solvers.forward_error` with the inverse matrix instead of an estimate.
    """
    rounding = (A.shape[-1] + 1) * roundoff(A.dtype) * (2.0 * sqrt(2.0) if A.dtype.kind == "c" else 1.0)
    with np.errstate(all="ignore"):
        try:
            inverse = np.abs(np.linalg.inv(A))
        except np.linalg.LinAlgError:  # A has changed
            return np.full((3, len(A)), nan)
        sizes, R, X_abs = np.abs(A), np.abs(B - A @ X), np.abs(X)
        error = inverse @ (R + rounding * (sizes @ X_abs + np.abs(B)))
        worst = error.max(-2)
        normwise = np.where(worst == 0.0, 0.0, worst / X_abs.max(-2)).max(-1)
        componentwise = np.where(error == 0.0, 0.0, error / X_abs).max((-1, -2))
        certain = np.where(normwise < 1.0, 1.0 - normwise, 0.0)
        normwise, componentwise = normwise / certain, np.maximum(normwise, componentwise) / certain
        scale = sizes.sum(-1).max(-1)[:, None] * X_abs.max(-2) + np.abs(B).max(-2)
        now = np.where(scale == 0.0, 0.0, R.max(-2) / scale).max(-1) / (A.shape[-1] * roundoff(A.dtype))
        facts = np.stack([sizes.sum(-2).max(-1) * inverse.sum(-2).max(-1), normwise, componentwise])
    facts[:, ~(now <= CHANGED * (eta + 1.0))] = nan
    return facts


def _info(
    infos: dict[Indices, SolveInfo],
    eta: Array,
    X: Array,
    times: dict[str, float],
    row_error: Estimates,
    inverse_facts: Estimates,
) -> SolveInfo:
    """Return the diagnostics of the stack, with a message that lists the first failed systems."""
    failed = [(index, info) for index, info in infos.items() if not info.solved or info.ill_conditioned]
    lines = [f"A[{', '.join(map(str, index))}]: {info.message or info.outcome}" for index, info in failed[:LISTED]]
    if len(failed) > LISTED:
        lines.insert(0, f"{len(failed)} of {eta.size} systems are not solved, or numerically singular; the last lines")
    singles = infos.values()
    together = {own_precision(X.dtype)} if len(infos) < eta.size or not infos else set[str]()
    growth = Estimates(lambda: (max((info.growth for info in singles), default=None),))
    return SolveInfo(
        outcome=next((info.outcome for _, info in failed if not info.solved), Outcome.SOLVED),
        systems=eta.size,
        n=X.shape[-2],
        rhs=X.shape[-1],
        precision=max(together.union(info.precision for info in singles), key=lambda name: PRECISIONS[name].u),
        emulated=any(info.emulated for info in singles),
        fallback=any(info.fallback for info in singles),
        factorization=" and ".join(sorted({info.factorization for info in singles})) or "LU",
        iterations=max((info.iterations for info in singles), default=0),
        backward_error=float(eta.max(initial=0.0)),
        scaled=any(info.scaled for info in singles),
        ill_conditioned=any(info.ill_conditioned for info in singles),
        message="\n".join(lines),
        u=roundoff(X.dtype),
        individual=infos,
        times=times,
        history=(),
        _estimates=Estimates(lambda: (inverse_facts.values()[0], *growth.values())),
        _row_error=row_error,
        _bounds=Estimates(lambda: inverse_facts.values()[1:]),
    )


def as_columns(A: tuple[int, ...], b: Array) -> Array:
    """Return b as (..., n, k) by NumPy's rules; raise a UsageError if its shape does not match the stack A.

    A one-dimensional b is one vector for all systems.
    """
    n = A[-1]
    B = b[:, None] if b.ndim == 1 else b
    if b.ndim == 0 or B.shape[-2] != n:
        raise UsageError(
            f"A is a stack of {n}x{n} matrices, but b has shape {b.shape}; use shape ({n},) for one vector, "
            f"or (..., {n}, k)"
        )
    try:
        np.broadcast_shapes(A[:-2], B.shape[:-2])
    except ValueError:
        raise UsageError(
            f"the stack dimensions {A[:-2]} of A and {B.shape[:-2]} of b do not match; use equal dimensions "
            f"or 1, or b[..., None] of shape {(*b.shape, 1)} for one vector per matrix"
        ) from None
    return B


def _check_finite(X: Array, name: str) -> None:
    """Raise a UsageError if any entry of the stack X is NaN or Inf."""
    finite = np.isfinite(X)
    if not finite.all():
        index = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise UsageError(
            f"{name}[{', '.join(map(str, index))}] is {X[index].item()}: {int((~finite).sum())} of {X.size} "
            f"entries of {name} are not finite; use only finite entries"
        )
