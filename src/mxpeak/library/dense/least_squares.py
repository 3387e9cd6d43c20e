"""`lstsq`: least squares by a QR in low precision, refined to the accuracy of the input's type."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from math import inf, isfinite, sqrt
from typing import Any

import numpy as np

from mxpeak.errors import Outcome, UsageError
from mxpeak.kernels import choose
from mxpeak.kernels.arrays import complex_of
from mxpeak.kernels.contract import DenseKernels, Matrix
from mxpeak.kernels.contract.dense import Block
from mxpeak.library.dense.distributed import DistributedMatrix
from mxpeak.library.dense.gradients import lstsq_differentiably
from mxpeak.library.dense.info import Estimates, bound_text, note_of_underflow
from mxpeak.library.dense.inputs import block, columns, lies_well, right_hand_side
from mxpeak.library.dense.small_least_squares import solve_small
from mxpeak.library.dense.solving import kernels_for
from mxpeak.library.gradients import is_differentiated
from mxpeak.library.inputs import Input, check_finite, read
from mxpeak.library.outcomes import SCALED_BY_ONE_FACTOR, Info, warned
from mxpeak.library.policy import choose_qr_precision, max_gmres_steps, qr_on_one_thread, small_lstsq_is_faster
from mxpeak.library.types import own_precision, roundoff, typed, with_precision_of, working_type
from mxpeak.precision import PRECISIONS
from mxpeak.runtime.host_modes import one_thread
from mxpeak.solvers.accuracy import plain_lu, worst
from mxpeak.solvers.extended_residual import extended_residual
from mxpeak.solvers.forward_error import ErrorBound
from mxpeak.solvers.least_squares import (
    QrFactors,
    Sensitivity,
    Solved,
    central_exponent,
    condition_number,
    error_bound,
    pseudoinverse_condition,
    rounding,
    solve_augmented,
    solve_by_svd,
    svd_sensitivity,
    unit_exponents,
)
from mxpeak.solvers.refine import LOST, columns_of
from mxpeak.solvers.scaling import scale_rows, shifted
from mxpeak.spans import Spans

#: R refines x if condition·u of R's type is at most COARSE, and if condition²·u of A's type is at most SQUARED. If the
#: second product were larger, rounding errors of C y could prevent convergence. Otherwise, singular values decide.
COARSE, SQUARED = 0.25, 2.0**7
#: The largest condition number of R if both types are fp64.
MAX_CONDITION = min(COARSE * 2.0**53, sqrt(SQUARED * 2.0**53))


@dataclass(frozen=True, kw_only=True)
class LeastSquaresInfo(Info):
    """Diagnostics for the solution of a least-squares problem.

    Use `info.solved` in conditions, because an info object has no truth value.

    Attributes
    ----------
    outcome : Outcome
        Outcome of the solve.
    solved : bool
        Whether x is as accurate as the result of a stable solver in the precision of the input. If `method` is "svd",
        mxpeak relies on the stability of LAPACK's gelsd, and tests only whether x is finite.
    converged : bool
        Alias for `solved`.
    shape : tuple of int
        Rows and columns of A.
    rhs : int
        Number of right-hand sides.
    rank : int
        Numerical rank of A. If `method` is "svd", singular values of at most max(m, n)·2^-52 times the largest one
        count as zero, as in NumPy. For data in fp32, the limit is at least 2^-23 times the largest one. If `method` is
        "qr", A has full rank after its columns (its rows if m < n) were scaled to similar sizes. NumPy does not scale
        A, so its rank can be smaller.
    method : str
        "qr", or "svd" if LAPACK's gelsd computed x, which is the solution of minimum norm.
    precision : str
        Precision of the triangle R that refined x, or of the singular values.
    why : str
        Reason for the choice of this precision.
    iterations : int
        Largest number of refinement steps for any right-hand side.
    backward_error : float
        Backward error of the worst right-hand side, in units of max(m, n)·u. It bounds the smallest relative change of
        b and of each column of A (of each row if m < n) for which x and `residual` are exact. If `method` is "svd", the
        bound may be far too large for small residuals, and it does not show whether x has minimum norm.
    residual : ndarray or tensor
        Residual b - A x, with the shape of b. If `method` is "qr" and m >= n, it is that of the exact minimizer x. Its
        relative error is then about max(sqrt(u), κ·u) or less for the condition number κ of A. Otherwise, it is that of
        the returned x, with rounding errors of about u·(|b| + |A||x|).
    singular_values : ndarray or None
        Singular values of A in descending order if `method` is "svd", otherwise None.
    condition : float
        Estimated one-norm condition number ||A||_1·||A^+||_1 with the pseudoinverse A^+, or inf if the rank is below
        min(m, n). mxpeak computes the value when you first read this attribute.
    error_bound : ErrorBound or None
        Bounds of the relative forward error of x, as those of `SolveInfo`. mxpeak computes the bounds when you first
        read this attribute. The value is None if `method` is "svd".
    scaled : bool
        Whether mxpeak scaled A by a power of two. Columns are always scaled for the QR.
    fallback : bool
        Whether a QR was not accurate enough, so that mxpeak used a QR in fp64 or an SVD instead.
    ill_conditioned : bool
        Whether x may have no correct digits despite a small backward error.
    message : str
        Notes and advice, one per line, or an empty string.
    u : float
        Unit roundoff of the data type of x.
    times : dict of str to float
        Time of each phase, in seconds.
    history : tuple of float
        Largest backward error at the start and after each step.

    Notes
    -----
    This object keeps A, b and R in memory until you read `condition` and `error_bound`. Both are NaN if A changed after
    the solve.
    """

    outcome: Outcome = Outcome.SOLVED
    shape: tuple[int, int]
    rhs: int
    rank: int
    method: str = "qr"
    precision: str
    why: str = ""
    iterations: int = 0
    backward_error: float = 0.0
    residual: Any = field(repr=False, compare=False)
    singular_values: Any = field(default=None, repr=False, compare=False)
    scaled: bool = False
    fallback: bool = False
    ill_conditioned: bool = False
    message: str = ""
    u: float
    times: dict[str, float] = field(default_factory=dict, repr=False)
    history: tuple[float, ...] = field(default=(), repr=False)
    _condition: Estimates = field(repr=False, compare=False)
    _bounds: Estimates | None = field(default=None, repr=False, compare=False)

    @property
    def solved(self) -> bool:
        """Return whether x is as accurate as the result of a stable solver in the precision of the input."""
        return self.outcome is Outcome.SOLVED

    @property
    def condition(self) -> float:
        """Return the estimated one-norm condition number ||A||_1·||A^+||_1, or inf if A is rank-deficient."""
        value: float = self._condition.values()[0]
        return value

    @property
    def error_bound(self) -> ErrorBound | None:
        """Return bounds of the relative forward error of x, or None if gelsd computed x."""
        return None if self._bounds is None else ErrorBound(*self._bounds.values())

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields for pickling, with computed estimates, because A is not pickled."""
        for estimates in (self._condition, self._bounds):
            if estimates is not None:
                estimates.values()
        return self.__dict__

    def __str__(self) -> str:
        (m, n), unit = self.shape, max(*self.shape, 1) * self.u
        verdict = "solved" if self.solved else "NOT SOLVED"
        verdict += ", but x may have no correct digit" * (self.solved and self.ill_conditioned)
        rhs = "" if self.rhs == 1 else f", {self.rhs} right-hand sides"
        how = f"QR in {self.precision}" if self.method == "qr" else f"SVD in {self.precision}"
        failed = "a coarser one" if self.method == "qr" else "QR"
        again = f", after {failed} failed" if self.fallback else f" ({self.why})" if self.why else ""
        steps = f"{self.iterations} refinement step{'' if self.iterations == 1 else 's'}"
        lines = [
            f"{verdict}: {m} x {n}{rhs}, rank {self.rank}, {how}{again}, {steps}",
            f"  backward error  {self.backward_error * unit:.1e}  ({self.backward_error:.1e} max(m, n)·u)",
        ]
        if (bound := self.error_bound) is not None:
            lines.append(f"  forward error   {bound_text(bound)}")
        lines.append(f"  condition       {self.condition:.2e} (estimate)")
        if times := self._times_as_text():
            lines.append(f"  time            {times}")
        return self._as_text(lines)

    def _outcome_as_text(self) -> str:
        """Return an empty text, because the message contains the reason."""
        return ""

    def _scaling_as_text(self) -> str:
        """Return the text that A was scaled; the columns are always scaled for the QR."""
        return SCALED_BY_ONE_FACTOR


def lstsq(A: Any, b: Any, *, precision: str = "auto", device: str = "auto") -> tuple[Any, LeastSquaresInfo]:
    """Solve min ||b - A x|| for a matrix A of any shape.

    If A has full rank, `lstsq` computes a QR in the fastest suitable precision and refines x together with the
    residual. If A has more columns than rows, x is the solution of A x = b with the smallest norm. If A does not
    have full rank, LAPACK's gelsd computes the x of minimum norm that minimizes ||b - A x||.

    Parameters
    ----------
    A : array_like or tensor
        Matrix of shape (m, n), in any memory order. `lstsq` does not modify A.
    b : array_like or tensor
        Right-hand side of shape (m,), or k right-hand sides as an array of shape (m, k).
    precision : {"auto", "fp64", "fp32"}, default "auto"
        Precision of the QR.
    device : str, default "auto"
        Use "auto" to solve on the device of the tensors (the CPU for other arrays), or specify a device such as "cpu",
        "cuda" or "cuda:0".

    Returns
    -------
    x : ndarray or tensor
        Solution of shape (n,) or (n, k) in the common data type of A and b, as an array of the library of b. With torch
        and JAX, x is differentiable with respect to b, and to A if A has full rank.
    info : LeastSquaresInfo
        Diagnostics: outcome, rank, residual, backward error, precision, iterations, condition number and times. In
        `jax.jit` and `jax.vmap`, info is None.

    Raises
    ------
    UsageError
        An argument is invalid, for example because A is not a matrix, not finite or not numeric.
    ResourceError
        The device does not exist.
    MemoryError
        This process has too little memory on the host.

    Warns
    -----
    IllConditionedWarning
        The solution x may have no correct digits.
    NotSolvedWarning
        The solution x is not finite, or it is less accurate than the result of a stable solver.

    Examples
    --------
    >>> import mxpeak as mx
    >>> x, info = mx.lstsq([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], [1.0, 2.0, 4.0])
    >>> x, info.rank, info.residual
    (array([1., 3.]), 2, array([ 0., -1.,  1.]))
    """
    if precision == device == "auto" and (result := _solve_small(A, b)):
        return result
    if is_differentiated(A, b):
        return lstsq_differentiably(A, b, partial(lstsq, precision=precision, device=device))
    if isinstance(A, DistributedMatrix):
        raise UsageError("A is distributed, but lstsq needs an array; use mxpeak.solve(A, b)")
    of_A = read(A, "A", instead="scipy.sparse.linalg.lsqr(A, b)")
    if len(of_A.shape) != 2:
        raise UsageError(f"A has shape {of_A.shape}, but lstsq needs a matrix; use shape (m, n)")
    if precision not in ("auto", "fp64", "fp32"):
        raise UsageError(f"lstsq does not support precision {precision!r}; use one of auto, fp64, fp32")
    of_b = right_hand_side(b, *of_A.shape)
    return warned(*lstsq_by(kernels_for(device, of_A, of_b), of_A, of_b, precision))


def _solve_small(A: Any, b: Any) -> tuple[Any, LeastSquaresInfo] | None:
    """Solve a small problem with NumPy arrays of one type in fp64, or return None if it needs another method."""
    if not (type(A) is np.ndarray is type(b) and A.dtype == b.dtype and A.ndim == 2 and 1 <= b.ndim <= 2):
        return None
    (m, n), k = A.shape, b.size // max(len(b), 1)
    if not (m == len(b) and k and small_lstsq_is_faster(m, n, k, A.dtype) and lies_well(A)):
        return None
    begin = time.perf_counter()
    B = np.ascontiguousarray(b.reshape(m, k))
    with one_thread(), np.errstate(all="ignore"):  # the checks find infinite and invalid numbers
        solution = solve_small(A, B, MAX_CONDITION)
    if solution is None or not solution.sensitivity < LOST:
        return None
    kernels = choose.dense(None)
    info = LeastSquaresInfo(
        shape=(m, n),
        rhs=k,
        rank=n,
        precision="fp64",
        why=choose_qr_precision(n, A.dtype, "auto", k).reason,
        iterations=len(solution.history) - 1,
        backward_error=solution.history[-1],
        residual=solution.residual.copy().reshape(b.shape),
        u=roundoff(A.dtype),
        times={"solve": time.perf_counter() - begin},
        history=tuple(solution.history),
        _condition=Estimates(lambda: (condition_number(solution.solved(kernels, A, B)),)),
        _bounds=Estimates(lambda: error_bound(solution.solved(kernels, A, B))),
    )
    return solution.x.reshape(n, *b.shape[1:]), info


def lstsq_by(kernels: DenseKernels, A: Input, b: Input, precision: str) -> tuple[Any, LeastSquaresInfo]:
    """Solve the validated least-squares problem with these kernels, and return x and the diagnostics."""
    of_A, of_b, (m, n) = working_type(A.dtype), working_type(b.dtype), A.shape
    dtype = with_precision_of(of_A, np.result_type(of_A, of_b))
    if 0 in (m, n):
        return _empty(A, b, dtype)
    xp, spans = kernels.xp, Spans(stopwatch=kernels.stopwatch)
    M = A.on(kernels.device, dtype)
    M = M if lies_well(M) else xp.asarray(M, copy=True)
    B = block(b, dtype, kernels)
    if not (k := columns(b)):  # without right-hand sides, only the rank of A is computed
        B = xp.zeros((m, 1), dtype=M.dtype)
    small = kernels.device is None and qr_on_one_thread(m, n, B.shape[1], dtype)
    with kernels.computing(), one_thread() if small else nullcontext():
        check_finite(M, "A", xp)
        exponent = central_exponent(xp, M)
        M = shifted(xp, M, [exponent]) if exponent else M
        exponents = unit_exponents(xp, B)
        B = shifted(xp, B, exponents)
        problem = _Problem(kernels, M, B, dtype, spans)
        solution = problem.solve(precision)
        shifts = [exponent - e for e in exponents]
        X, R = shifted(xp, solution.x, shifts), shifted(xp, solution.residual, [-e for e in exponents])
        X, R = (xp.astype(V, B.dtype, copy=False) for V in (X, R))
        changes = rounding(xp, solution.x, X, shifts)
        X, R = (V[:, : B.shape[1] if k else 0] for V in (X, R))
        if solution.values is not None and exponent:
            solution.values = shifted(xp, solution.values, [-exponent])
        x, residual = (V if V.shape[1] == k else complex_of(V[:, :k], V[:, k:], xp) for V in (X, R))
    residual = b.result(xp.reshape(residual, b.shape))
    info = problem.info(solution, residual, k, changes, scaled=bool(exponent))
    return b.result(xp.reshape(x, (n, *b.shape[1:]))), info


def _empty(A: Input, b: Input, dtype: np.dtype[Any]) -> tuple[Any, LeastSquaresInfo]:
    """Return x = 0, the solution of minimum norm if A has no rows or no columns."""
    is_complex = "c" in (dtype.kind, working_type(b.dtype).kind)
    type_of_x = typed(is_complex, wide=roundoff(dtype) < 2.0**-24)
    check_finite(b.on(None, working_type(b.dtype)), "b", np)
    info = LeastSquaresInfo(
        shape=(A.shape[0], A.shape[1]),
        rhs=columns(b),
        rank=0,
        precision=own_precision(dtype),
        residual=b.result(np.array(b.on(None, type_of_x))),
        u=roundoff(dtype),
        _condition=Estimates.from_values((0.0,)),
        _bounds=Estimates.from_values((0.0, 0.0)),
    )
    return b.result(np.zeros((A.shape[1], *b.shape[1:]), type_of_x)), info


@dataclass(slots=True)
class _LeastSquaresSolution:
    """A solution: x and the residual b - A x in the range of the kernels, and facts about them."""

    x: Block
    residual: Block
    outcome: Outcome
    rank: int
    method: str
    precision: str
    history: list[float]
    steps: int
    sensitivity: Sensitivity
    condition: Estimates
    bounds: Estimates | None
    values: Any = None


def _with_changes(bounds: Estimates, changes: ErrorBound) -> tuple[float, ...]:
    """Return the bounds of the error of x after its conversion to the range of b, which caused these changes."""
    left = 1.0 - changes.normwise
    return tuple((bound + change) / left if left > 0.0 else inf for bound, change in zip(bounds.values(), changes))


def _note_of_sensitivity(sensitivity: Sensitivity) -> str:
    """Return the note that roundings of A and b may change all digits of x, and the cause."""
    size = sensitivity.largest
    change = f"up to {size:.1g} times its size" if isfinite(size) else "more than its size"
    text = f"x may have no correct digit, because roundings of A and b change it by {change}"
    if sensitivity.of_A < LOST:
        return f"{text}: A x, or its term with the largest entry of x, is tiny relative to b"
    return f"{text}; check A for linearly dependent columns, or use regularization"


def _max_condition(name: str, factors: QrFactors) -> float:
    """Return the largest condition number of R in this precision at which refinement converges."""
    return min(COARSE / PRECISIONS[name].u, sqrt(SQUARED / factors.u))


class _Problem:
    """One least-squares problem: QR in low precision, then in fp64, then singular values."""

    def __init__(self, kernels: DenseKernels, A: Matrix, B: Block, dtype: np.dtype[Any], spans: Spans):
        self._kernels, self._A, self._B, self._dtype, self._spans = kernels, A, B, dtype, spans
        self._u, self._notes, self._why = roundoff(dtype), list[str](), ""
        #: Relative size of singular values that count as zero.
        self.rcond = max(2.0 * self._u, max(A.shape) * 2.0**-52)

    def solve(self, requested: str) -> _LeastSquaresSolution:
        """Solve by the first method that is accurate enough."""
        m, n = self._A.shape
        chosen, self._why = choose_qr_precision(
            min(m, n), self._dtype, requested, self._B.shape[1], self._kernels.device
        )
        for name in ("fp32", "fp64") if chosen == "fp32" else ("fp64",):
            if name == "fp64":
                self._widen()
            if (solution := self._by_qr(name, requested)) is not None:
                return solution
        return self._by_svd()

    def info(
        self, solution: _LeastSquaresSolution, residual: Any, rhs: int, changes: ErrorBound, *, scaled: bool
    ) -> LeastSquaresInfo:
        """Return the diagnostics of a solution; `changes` are those of x by its conversion to the range of b."""
        (m, n), fallback = self._A.shape, bool(self._notes)
        outcome, bounds, unit = solution.outcome, solution.bounds, max(m, n) * self._u
        u = float(self._kernels.xp.finfo(self._A.dtype).eps) / 2  # the unit of the errors, maybe of fp64
        history = [eta * u / self._u for eta in solution.history]
        if changes.normwise:
            history[-1] += changes.normwise / unit
            bounds = None if bounds is None else Estimates(partial(_with_changes, bounds, changes))
        if beyond_range := outcome is Outcome.SOLVED and changes.normwise == inf:
            outcome = Outcome.NOT_FINITE
            self._notes.append(f"x is beyond the range of {self._dtype}")
        if underflows := not beyond_range and changes.normwise > LOST:
            self._notes.append(note_of_underflow(self._dtype))
        if lost := not solution.sensitivity.largest < LOST:
            self._notes.append(_note_of_sensitivity(solution.sensitivity))
        if outcome is not Outcome.SOLVED and not (beyond_range or underflows or lost):
            self._notes.append(str(outcome))
        return LeastSquaresInfo(
            outcome=outcome,
            shape=(m, n),
            rhs=rhs,
            rank=solution.rank,
            method=solution.method,
            precision=solution.precision,
            why=self._why if not self._notes else "",
            iterations=solution.steps,
            backward_error=history[-1],
            residual=residual,
            singular_values=solution.values,
            scaled=scaled,
            fallback=fallback,
            ill_conditioned=lost or underflows,
            message="\n".join(self._notes),
            u=self._u,
            times=self._spans.times,
            history=tuple(history),
            _condition=solution.condition,
            _bounds=bounds,
        )

    def _widen(self) -> None:
        """Convert A and B to fp64."""
        xp, wide = self._kernels.xp, typed(self._dtype.kind == "c", wide=True)
        if wide != self._dtype:
            self._A, self._B = (xp.astype(V, getattr(xp, wide.name), copy=False) for V in (self._A, self._B))

    def _by_qr(self, name: str, requested: str) -> _LeastSquaresSolution | None:
        """Solve by a QR in this precision, or return None and add the reason to the notes if it is not safe."""
        kernels, xp, A, B = self._kernels, self._kernels.xp, self._A, self._B
        with self._spans("factor"):
            factors = QrFactors(kernels, A, typed(self._dtype.kind == "c", wide=name == "fp64"))
            condition = factors.condition_bound()
            if not (bounded := condition <= _max_condition(name, factors)):
                condition = factors.condition()
        coarse, m, k = PRECISIONS[name].u > factors.u, factors.m, B.shape[1]
        if not condition <= _max_condition(name, factors):
            found = f"{condition:.1e} or more" if isfinite(condition) else "infinite, or too large to estimate"
            self._note_failure(name, f"the condition of A is {found}")
            return None
        F, G = self._sides(factors)
        enough = plain_lu(m, k, is_complex=factors.is_complex)
        if coarse:  # the first column shows whether A has full rank
            F, G = xp.concat([xp.zeros_like(F[:, :1]), F], axis=1), xp.concat([factors.probe(), G], axis=1)
        with self._spans("refine"):
            target = min(enough, 4.0 / m)
            steps = max_gmres_steps(factors.n, requested if coarse else name)
            done = solve_augmented(factors, F, G, target=target, enough=enough, gmres_steps=steps)
        if done.outcome is not Outcome.SOLVED:
            self._note_failure(name, f"after {done.steps} steps the backward error was {done.eta:.1e}")
            return None
        F, G, X, Y = (V[:, -k:] for V in (F, G, done.X, done.Y))
        if not factors.wide and (small := factors.columns_with_small_residuals(F, X, Y)):
            with self._spans("refine"):
                F_s, G_s, Y_s = (columns_of(xp, V, small) for V in (F, G, Y))
                r = extended_residual(xp, F_s, A, factors.D, Y_s)
                exact = solve_augmented(factors, r, G_s, target=target, enough=enough, gmres_steps=steps)
                if exact.outcome is not Outcome.SOLVED:
                    self._note_failure(name, f"a small residual had a backward error of {exact.eta:.1e}")
                    return None
                for i, j in enumerate(small):
                    X[:, j], Y[:, j] = exact.X[:, i], Y[:, j] + exact.Y[:, i]
                errors = factors.errors(F, G, X, Y, factors.residual(F, G, X, Y))
                done.history[-1] = worst([of.eta for of in errors])
        x = xp.asarray(X, copy=True) if factors.wide else factors.D[:, None] * Y
        residual = kernels.residual(B, A, X) if factors.wide else xp.asarray(X, copy=True)
        solved = Solved(factors, F, G, X, Y, done.eta)
        sensitivity = factors.sensitivity(F, X, Y, condition, self._u)
        if bounded and not sensitivity.largest < LOST:
            sensitivity = factors.sensitivity(F, X, Y, factors.condition(), self._u)
        return _LeastSquaresSolution(
            xp.astype(x, A.dtype, copy=False),
            residual,
            done.outcome,
            factors.n,
            "qr",
            name,
            done.history,
            done.steps,
            sensitivity,
            Estimates(lambda: (condition_number(solved),)),
            Estimates(lambda: error_bound(solved)),
        )

    def _by_svd(self) -> _LeastSquaresSolution:
        """Return the solution of minimum norm by singular values."""
        A, B, kernels = self._A, self._B, self._kernels
        m, n = A.shape
        enough = plain_lu(max(m, n), B.shape[1], is_complex=self._dtype.kind == "c")
        with self._spans("svd"):
            x, residual, history, rank, values = solve_by_svd(kernels, A, B, self.rcond, enough=enough)
            sizes = values.tolist()
            sensitivity = svd_sensitivity(kernels.xp, x, residual, sizes, rank, self._u)
        if not rank:  # the QRs failed for this reason
            self._notes = ["all entries of A are zero, so x = 0 is the solution of minimum norm"]
        elif rank < min(m, n):
            self._notes.append(f"A has rank {rank}, less than {min(m, n)}; x has minimum norm")
        outcome = Outcome.SOLVED if isfinite(history[-1]) else Outcome.NOT_FINITE
        condition = Estimates.from_values((inf,))
        if rank == min(m, n):
            condition = Estimates(lambda: (pseudoinverse_condition(kernels, A, self.rcond, values),))
        return _LeastSquaresSolution(
            x, residual, outcome, rank, "svd", "fp64", history, len(history) - 1, sensitivity, condition, None, values
        )

    def _sides(self, factors: QrFactors) -> tuple[Block, Block]:
        """Return the right-hand sides F and G of the augmented system."""
        xp, B = factors.xp, self._B
        if factors.wide:
            return xp.zeros((factors.m, B.shape[1]), dtype=B.dtype), scale_rows(xp, factors.D, B)
        return B, xp.zeros((factors.n, B.shape[1]), dtype=B.dtype)

    def _note_failure(self, name: str, reason: str) -> None:
        """Add the note that the QR in this precision is not accurate enough."""
        self._notes.append(f"the QR in {name} was too coarse: {reason}")
