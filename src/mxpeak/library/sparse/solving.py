"""gmres: which precision and preconditioner, what to do where they fail, and what to tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np

from mxpeak.errors import Outcome, UsageError
from mxpeak.kernels.choose import sparse as sparse_kernels
from mxpeak.library.inputs import device_for, device_of
from mxpeak.library.outcomes import Info
from mxpeak.library.sparse import choosing, inputs
from mxpeak.library.sparse.solver import Column, Solver
from mxpeak.runtime.calls import TURN, threads_for

STORAGES = ("auto", "rows", "ell", "sell", "packed")
SMOOTHERS = ("coloured", "natural")
#: Entries from which on more than one thread is quicker: waking a team costs some ten microseconds a kernel.
MANY = 200_000
#: A relative residual of 1 is that of x = 0.
LEAST_ASKED = 0.5


@dataclass(frozen=True, slots=True)
class GmresInfo(Info):
    """How a solve went, and how far its result can be trusted.

    tol             the relative residual that was asked for: rtol, or atol / ||b|| where that is more
    residual        ||b - A x|| / ||b|| of what was returned, in fp64; the worst right-hand side
    iterations      steps of GMRES, of the right-hand side that took most, as are cycles and history
    history         the relative residual at the start and after each cycle, of the scaled system if there is one
    values          the format of the matrix in the inner iteration in the end; `vectors` that of its vectors
    reason          why this preconditioner
    levels          of multigrid, else 1
    colours         groups of rows that a sweep takes one after the other; None where it takes single rows
    scaled          rows and columns were scaled by powers of two
    fallback        the precision asked for did not do, and fp64 took over
    bytes           of matrices, preconditioner and basis
    device          where it was solved: cpu, cuda:0 …
    setup_s, times  seconds before the first step, and seconds by phase
    """

    outcome: Outcome
    n: int
    nnz: int
    rhs: int
    tol: float
    residual: float
    iterations: int
    cycles: int
    values: str
    vectors: str
    preconditioner: str
    reason: str
    levels: int
    storage: str
    colours: int | None
    scaled: bool
    fallback: bool
    message: str
    bytes: int
    device: str
    setup_s: float
    times: dict[str, float] = field(repr=False)
    history: tuple[float, ...] = field(repr=False)

    @property
    def converged(self) -> bool:
        """Whether the residual is as small as was asked for."""
        return self.outcome is Outcome.SOLVED

    def __str__(self) -> str:
        verdict = "converged" if self.converged else "NOT CONVERGED"
        sides = "" if self.rhs == 1 else f", {self.rhs} right-hand sides"
        levels = f", {self.levels} levels" if self.levels > 1 else ""
        where = "" if self.device == "cpu" else f" on {self.device}"
        order = "row after row" if self.colours is None else _count(self.colours, "colour")
        times = ", ".join(f"{name} {time_s:.3g} s" for name, time_s in self.times.items())
        lines = [
            f"{verdict}: n = {self.n}, {self.nnz} entries{sides}, {_count(self.iterations, 'iteration')} "
            f"in {_count(self.cycles, 'cycle')}",
            f"  residual        {self.residual:.2e} (asked for: {self.tol:.0e})",
            f"  precision       values {self.values}, vectors {self.vectors}, residuals fp64",
            f"  preconditioner  {self.preconditioner}{levels} ({self.reason})",
            f"  storage         {self.storage}, {order}, {self.bytes / 2**20:.3g} MiB{where}",
            f"  time            set-up {self.setup_s:.3g} s; {times}",
        ]
        if self.scaled:
            lines.append("  rows and columns were scaled by powers of two")
        if not self.converged:
            lines.append(f"  {self.outcome}")
        return "\n".join([*lines, *(f"  {line}" for line in self.message.splitlines())])


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'' if number == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class Options:
    """How a system is to be solved: what `gmres` takes beside the system and the device."""

    precision: str = "mixed"
    rtol: float = 1e-9
    atol: float = 0.0
    restart: int = 30
    maxiter: int = 10_000
    preconditioner: Any = "auto"
    storage: str = "auto"
    smoother: str = "coloured"
    threads: int | None = None
    callback: Callable[[float], object] | None = None

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("precision", self.precision, choosing.PRECISION_NAMES),
            ("storage", self.storage, STORAGES),
            ("smoother", self.smoother, SMOOTHERS),
        ):
            if value not in choices:
                raise UsageError(f"unknown {name} {value!r}; choose one of {', '.join(choices)}")
        for name, count in (("restart", self.restart), ("maxiter", self.maxiter)):
            if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
                raise UsageError(f"{name}={count!r}: give a whole number from 1 on")
        if not isinstance(self.rtol, Real) or not 0.0 < self.rtol < 1.0:
            raise UsageError(f"rtol={self.rtol!r}: give a relative residual between 0 and 1, such as 1e-9")
        if not isinstance(self.atol, Real) or not 0.0 <= self.atol < np.inf:
            raise UsageError(f"atol={self.atol!r}: give a norm of b - A x from 0 on")
        if self.callback is not None and not callable(self.callback):
            raise UsageError(f"callback={self.callback!r}: give a function of the relative residual, or None")


def gmres(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-9,
    atol: float = 0.0,
    restart: int = 30,
    maxiter: int = 10_000,
    M: Any = None,
    callback: Callable[[float], object] | None = None,
    precision: str = "mixed",
    preconditioner: Any = "auto",
    storage: str = "auto",
    smoother: str = "coloured",
    threads: int | None = None,
    device: str = "auto",
) -> tuple[Any, GmresInfo]:
    """Solve A x = b to ||b - A x|| <= max(rtol·||b||, atol); A is sparse, and neither A nor b is changed.

    A: n×n, any sparse matrix or array of SciPy or a sparse tensor of torch, of any real type; b: (n,) or (n, k), an
    array or a tensor, and x is one as b is, where b is.  Arguments are named as in `scipy.sparse.linalg.gmres`: `x0`,
    `rtol`, `atol`, `restart`, `maxiter` (steps in all, not cycles), `M` (what approximates A^-1: a matrix, a
    LinearOperator or a function), and `callback`, which hears the relative residual after each cycle.

    `precision` is that of the inner iteration: mixed (the narrowest format that holds every value exactly), fp64, fp32,
    bf16 or fp16; residuals and x are fp64.  `preconditioner`: auto, stencil, amg, lu, gs, sgs, jacobi, none, or a
    function r -> M^-1 r.  `device`: auto (that of the tensors, else the host), cpu, cuda or cuda:0 …
    Where the inner iteration's precision does not do, fp64 takes over, and `info` says so; it also holds outcome,
    residual, iterations, history and times: print(info).  What does not converge is no error: x is the best so far.

    Raises UsageError, a ValueError, for what is not square, finite or real, SingularMatrixError, a LinAlgError, for a
    row or column of zeros, and ResourceError where the device does not exist or has too little memory.  docs/gmres.md
    explains the rest.

    >>> import mxpeak as mx, scipy.sparse as sp
    >>> x, info = mx.gmres(sp.csr_array([[2.0, 0.0], [0.0, 4.0]]), [2.0, 4.0])
    >>> x, info.converged
    (array([1., 1.]), True)
    """
    if isinstance(x0, str):
        raise UsageError(f"x0={x0!r} is no vector; a precision is given by its name: precision={x0!r}")
    before = _before(M, preconditioner)
    options = Options(precision, rtol, atol, restart, maxiter, before, storage, smoother, threads, callback)
    operands = (A, b) if x0 is None else (A, b, x0)
    where = device_for(device, *(device_of(one) or "cpu" for one in operands))
    return solve_on(where, A, b, x0, options)


def _before(M: Any, preconditioner: Any) -> Any:
    """What stands before the matrix: M as a function, or the preconditioner by its name."""
    if M is None:
        return preconditioner
    if preconditioner != "auto":
        raise UsageError("M and preconditioner were both given, but one of them stands before A; leave one out")
    if callable(M) and not hasattr(M, "matvec"):
        return M
    if not hasattr(M, "shape"):
        raise UsageError(f"M is {type(M).__name__}; give a matrix, a LinearOperator, or a function r -> M^-1 r")
    return lambda r: M @ r


def solve_on(device: Any, A: Any, b: Any, x0: Any, options: Options) -> tuple[Any, GmresInfo]:
    """`gmres` on a `kernels.torch.device.Device`, or on the host (None)."""
    whole = inputs.matrix(A)
    right_side = inputs.vectors(b, "b", whole.shape[0])
    if options.storage == "rows" and device is not None:
        raise UsageError(
            'storage="rows" is for CPUs, where a core takes one row after the other; a device takes many at a time: '
            'type storage="auto"'
        )
    threads = threads_for(options.threads, default=None if whole.nnz >= MANY else 1)
    kernels = sparse_kernels(device, threads)
    with TURN, kernels.computing():
        B = inputs.on_kernels(right_side, kernels)
        X0 = inputs.start(x0, right_side, kernels)
        solver = Solver(
            kernels,
            whole,
            options.precision,
            options.preconditioner,
            options.storage,
            options.smoother,
            min(options.restart, whole.shape[0]),
        )
        sides = B.reshape(len(B), -1).T
        tols = [_tolerance(options, side, kernels.xp) for side in sides]
        heard = options.callback or (lambda residual: None)
        done = [
            solver.solve(side, start, tol, options.maxiter, heard)
            for side, start, tol in zip(sides, X0.reshape(len(B), -1).T, tols)
        ]
        X = kernels.xp.stack([one.x for one in done], axis=1).reshape(B.shape)
        return right_side.result(X), _info(solver, done, tols)


def _tolerance(options: Options, b: Any, xp: Any) -> float:
    """The relative residual that is asked for of one right-hand side; one of 1 would ask for nothing."""
    if not options.atol:
        return options.rtol
    largest = float(xp.max(xp.abs(b)))
    norm = largest * float(xp.linalg.vector_norm(b / largest)) if largest else 0.0
    return max(options.rtol, min(options.atol / norm, LEAST_ASKED)) if norm else options.rtol


def _info(solver: Solver, done: list[Column], tols: list[float]) -> GmresInfo:
    problem, choice = solver.problem, solver.plan.choice
    longest = max(done, key=lambda one: one.steps)
    residual = float(np.max([one.residual for one in done]))  # NaN where one is, which max would pass over
    notes = dict.fromkeys([*solver.notes, *(one.note for one in done if one.note)])
    return GmresInfo(
        outcome=Outcome.SOLVED if all(one.residual <= tol for one, tol in zip(done, tols)) else Outcome.UNREACHED,
        n=problem.inner.n,
        nnz=solver.nnz,
        rhs=len(done),
        tol=max(tols),
        residual=residual,
        iterations=longest.steps,
        cycles=longest.cycles,
        values=problem.inner.A.values,
        vectors=problem.inner.A.vectors,
        preconditioner=choice.name,
        reason=choice.reason,
        levels=problem.levels,
        storage=problem.inner.A.storage,
        colours=problem.colours,
        scaled=solver.plan.scaling.active,
        fallback=solver.fallback,
        message="\n".join(notes),
        bytes=problem.bytes,
        device=solver.device,
        setup_s=solver.setup_s,
        times={name: phase.time_s for name, phase in solver.spans.phases.items()},
        history=tuple(longest.history),
    )
