"""Stacks of systems, A (..., n, n) and b (..., n, k): all at once, and by themselves those that need a second look."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import nan
from typing import Any

import numpy as np

from mxpeak.errors import Outcome, UsageError
from mxpeak.library.dense.batched import row_errors_of_stack, solve_small
from mxpeak.library.dense.factoring import Estimates
from mxpeak.library.dense.info import SolveInfo, line_of_error, line_of_row_error, line_of_times
from mxpeak.library.dense.row_errors import CHANGED
from mxpeak.library.inputs import Input, device_for, read
from mxpeak.library.outcomes import Info, SingularMatrixError
from mxpeak.library.types import Array, roundoff, working_type
from mxpeak.precision import PRECISIONS

#: Of systems that were not solved, so many are told of.
TOLD = 5


@dataclass(frozen=True, slots=True)
class StackInfo(Info):
    """Diagnostics for the solution of a stack of dense systems.

    `solve` first solves all systems together with NumPy. If a system fails a check, `solve` then solves this system
    again individually. Use `info.solved` in conditions, because an info object has no truth value.

    Attributes
    ----------
    outcome : Outcome
        Outcome of the solve. If some systems were not solved, this is the outcome of the first of them.
    solved : bool
        Whether every x is as accurate as the result of a stable solver in the precision of the input.
    converged : bool
        Alias for `solved`.
    systems : int
        Number of systems in the stack.
    n : int
        Order of each matrix in the stack.
    rhs : int
        Number of right-hand sides for each system.
    iterations : int
        Largest number of refinement steps among all systems.
    backward_error : float
        Normwise backward error ||b - A x|| / ((||A||·||x|| + ||b||)·n·u) of the worst system, in the infinity norm.
    componentwise_error : float
        Row-wise backward error max_i |b - A x|_i / ((|A||x| + |b|)_i·n·u) of the worst system. mxpeak computes the
        value when you first read this attribute.
    condition : float or None
        Largest estimated condition number of the individually solved systems, or None if there are no such systems.
    scaled : bool
        Whether mxpeak scaled the rows and columns of at least one system.
    ill_conditioned : bool
        Whether at least one solution may have no correct digits. The `message` lists the affected systems and the
        reasons.
    message : str
        Notes and advice, one per line, or an empty string.
    u : float
        Unit roundoff of the data type of x.
    one_by_one : dict of tuple of int to SolveInfo
        Diagnostics of the individually solved systems, keyed by their indices in the stack.
    times : dict of str to float
        Time in seconds for the joint solve (`"all at once"`) and for the individual solves (`"one by one"`).
    """

    outcome: Outcome
    systems: int
    n: int
    rhs: int
    backward_error: float
    scaled: bool
    ill_conditioned: bool
    message: str
    u: float
    one_by_one: dict[tuple[int, ...], SolveInfo] = field(repr=False)
    times: dict[str, float] = field(repr=False)
    _row_error: Estimates = field(repr=False, compare=False)

    @property
    def componentwise_error(self) -> float:
        """Return the largest row-wise backward error, in units of n·u.

        The value is NaN if A changed after the solve.
        """
        return self._row_error.values()[0]

    @property
    def condition(self) -> float | None:
        """Return the largest estimated condition number of the individually solved systems, or None."""
        return max((one.condition for one in self.one_by_one.values()), default=None)

    @property
    def iterations(self) -> int:
        """Return the largest number of refinement steps among all systems.

        Systems that NumPy solved together need no refinement steps.
        """
        return max((one.iterations for one in self.one_by_one.values()), default=0)

    @property
    def solved(self) -> bool:
        """Return whether every x is as accurate as the result of a stable solver in the precision of the input."""
        return self.outcome is Outcome.SOLVED

    def __str__(self) -> str:
        verdict = "solved" if self.solved else "NOT SOLVED"
        verdict += ", but some x may have no correct digit" if self.solved and self.ill_conditioned else ""
        sides = "" if self.rhs == 1 else f" with {self.rhs} right-hand sides each"
        return self._told(
            [
                f"{verdict}: {self.systems} systems, n = {self.n}{sides}",
                line_of_error(self.backward_error, self.n, self.u) + ", the worst",
                line_of_row_error(self.componentwise_error, self.n, self.u) + ", the worst",
                f"  one by one      {len(self.one_by_one)}",
                line_of_times(self.times),
            ]
        )


def stack_of(values: Any) -> Input | None:
    """A as a stack of square matrices; None where it has fewer than three dimensions."""
    if getattr(values, "ndim", 0) < 3 and not (isinstance(values, list | tuple) and _depth(values) > 2):
        return None
    A = read(values, "A", instead="mxpeak.gmres(A, b)")
    if A.shape[-1] != A.shape[-2]:
        raise UsageError(
            f"A has shape {A.shape}, but solve needs a square matrix or a stack of shape (..., n, n); use "
            "numpy.linalg.lstsq for least squares"
        )
    return A


def _depth(values: Any) -> int:
    """Of nested lists; 0 where they are no array, of which `read` tells."""
    try:
        return int(np.ndim(values))
    except (ValueError, TypeError):
        return 0


def solve_stack(
    A: Input, b: Input, device: str, precision: str, solve_one: Callable[[Input, Input], tuple[Any, SolveInfo]]
) -> tuple[Any, StackInfo]:
    """Solve all systems; `solve_one` solves those that NumPy's solver does not, and all in a precision of its own."""
    if device_for(device, A.device, b.device) is not None:
        raise UsageError("mxpeak solves stacks only on the host; use A.cpu() and b.cpu(), or use solve for each matrix")
    of_A, of_b = working_type(A.dtype), working_type(b.dtype)
    dtype = np.result_type(of_A, of_b)
    M, side = A.on(None, dtype), b.on(None, dtype)
    B = _sides(A.shape, side)
    shape = np.broadcast_shapes(M.shape[:-2], B.shape[:-2])
    for name, X in (("A", M), ("b", side)):
        _check_finite(X, name)
    begin = time.perf_counter()
    empty = 0 in (*shape, *B.shape[-2:])
    own = not empty and (precision == "auto" or (precision == "fp64" and roundoff(dtype) == PRECISIONS["fp64"].u))
    found = solve_small(M, B) if own else None
    X = np.empty((*shape, *B.shape[-2:]), dtype) if found is None else found.X
    eta = np.zeros(shape) if found is None else found.eta
    left = np.full(shape, not empty) if found is None else ~found.good
    M, B = (np.broadcast_to(each, (*shape, *each.shape[-2:])) for each in (M, B))
    middle = time.perf_counter()
    infos = {}
    for index in map(tuple, np.argwhere(left).tolist()):
        one_A, one_b = (Input(name, x, dtype, x.shape, "cpu") for name, x in (("A", M[index]), ("b", B[index])))
        try:
            X[index], infos[index] = solve_one(one_A, one_b)
        except SingularMatrixError as error:
            raise SingularMatrixError(f"in the stack, A[{', '.join(map(str, index))}]: {error}") from None
        eta[index] = infos[index].backward_error
    times = {"all at once": middle - begin, "one by one": time.perf_counter() - middle}
    info = _info(infos, eta, B.shape[-2:], roundoff(dtype), times, _row_error(M, X, B, eta, infos))
    return b.result(X[..., 0] if len(b.shape) == 1 else X), info


def _row_error(A: Array, X: Array, B: Array, eta: Array, infos: dict[tuple[int, ...], SolveInfo]) -> Estimates:
    """Return the worst row-wise error of all systems, to be computed when first asked for; A is not copied."""
    if not X.size:
        return Estimates.known((0.0,))
    X, B, eta = X.copy(), B.copy(), eta.copy()

    def make() -> tuple[float]:
        omega, now = row_errors_of_stack(A, X, B)
        for index, one in infos.items():  # which may have been solved in another range
            omega[index], now[index] = one.componentwise_error, eta[index]
        unchanged = bool((now <= CHANGED * (eta + 1.0)).all())
        return (float(omega.max()) if unchanged else nan,)

    return Estimates(make)


def _info(
    infos: dict[tuple[int, ...], SolveInfo],
    eta: Array,
    sides: tuple[int, ...],
    u: float,
    times: dict[str, float],
    of_rows: Estimates,
) -> StackInfo:
    failed = [(index, one) for index, one in infos.items() if not one.solved or one.ill_conditioned]
    lines = [f"A[{', '.join(map(str, index))}]: {one.message or one.outcome}" for index, one in failed[:TOLD]]
    if len(failed) > TOLD:
        lines.insert(0, f"{len(failed)} of {eta.size} systems are not solved, or numerically singular; the last lines")
    return StackInfo(
        outcome=next((one.outcome for _, one in failed if not one.solved), Outcome.SOLVED),
        systems=eta.size,
        n=sides[0],
        rhs=sides[1],
        backward_error=float(eta.max(initial=0.0)),
        scaled=any(one.scaled for one in infos.values()),
        ill_conditioned=any(one.ill_conditioned for one in infos.values()),
        message="\n".join(lines),
        u=u,
        one_by_one=infos,
        times=times,
        _row_error=of_rows,
    )


def _sides(A: tuple[int, ...], b: Array) -> Array:
    """b as (..., n, k), as NumPy takes it: one dimension is a vector for all systems."""
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
    finite = np.isfinite(X)
    if not finite.all():
        index = tuple(int(i) for i in np.argwhere(~finite)[0])
        raise UsageError(
            f"{name}[{', '.join(map(str, index))}] is {X[index].item()}: {int((~finite).sum())} of {X.size} "
            f"entries of {name} are not finite; use only finite entries"
        )
