"""gmres: which precision and preconditioner, what to do where they fail, and what to tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from mxpeak.comm.base import Communicator
from mxpeak.errors import Outcome, UsageError
from mxpeak.kernels.choose import sparse as sparse_kernels
from mxpeak.kernels.contract.sparse import SparseKernels
from mxpeak.kernels.host.blas import one_thread, set_threads
from mxpeak.library.communicators import communicator
from mxpeak.library.inputs import device_for, device_of
from mxpeak.library.outcomes import warned
from mxpeak.library.sparse import inputs
from mxpeak.library.sparse.condition import warning_of
from mxpeak.library.sparse.everybody import ALONE, Everybody
from mxpeak.library.sparse.formats import PRECISION_NAMES
from mxpeak.library.sparse.info import GmresInfo
from mxpeak.library.sparse.inputs import Csr
from mxpeak.library.sparse.ranks import Share, joined, norm, read, threads_each
from mxpeak.library.sparse.solver import Column, Solver
from mxpeak.precision import PRECISIONS
from mxpeak.runtime.calls import TURN, threads_for

STORAGES = ("auto", "rows", "ell", "sell", "packed")
SMOOTHERS = ("auto", "coloured", "natural")
#: Entries from which on more than one thread is quicker: waking a team costs some ten microseconds a kernel.
MANY = 200_000


@dataclass(frozen=True, slots=True)
class Options:
    """How a system is to be solved: what `gmres` takes beside the system and the device."""

    precision: str = "mixed"
    rtol: float = 1e-9
    atol: float = 0.0
    restart: int | None = None
    maxiter: int = 10_000
    preconditioner: Any = "auto"
    storage: str = "auto"
    smoother: str = "auto"
    threads: int | None = None
    callback: Callable[[float], object] | None = None

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("precision", self.precision, PRECISION_NAMES),
            ("storage", self.storage, STORAGES),
            ("smoother", self.smoother, SMOOTHERS),
        ):
            if value not in choices:
                raise UsageError(f"unknown {name} {value!r}; use one of {', '.join(choices)}")
        for name, count in (("restart", 1 if self.restart is None else self.restart), ("maxiter", self.maxiter)):
            if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
                raise UsageError(f"{name}={count!r}: use a whole number of at least 1")
        for name, tolerance in (("rtol", self.rtol), ("atol", self.atol)):
            if not isinstance(tolerance, Real) or isinstance(tolerance, bool) or not tolerance >= 0.0:
                what = "||b - A x|| / ||b||" if name == "rtol" else "||b - A x||"
                raise UsageError(f"{name}={tolerance!r}: use a number of at least 0, the largest {what} to accept")
        if self.callback is not None and not callable(self.callback):
            raise UsageError(f"callback={self.callback!r}: use a function of the relative residual, or None")


def gmres(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-9,
    atol: float = 0.0,
    restart: int | None = None,
    maxiter: int = 10_000,
    M: Any = None,
    callback: Callable[[float], object] | None = None,
    precision: str = "mixed",
    preconditioner: Any = "auto",
    storage: str = "auto",
    smoother: str = "auto",
    threads: int | None = None,
    device: str = "auto",
    comm: Any = None,
) -> tuple[Any, GmresInfo]:
    """Solve A x = b for a sparse A with mixed-precision GMRES.

    The inner iteration uses low precision. Residuals and x use fp64. If low precision stops converging, fp64 continues.

    Parameters
    ----------
    A : sparse matrix, sparse array or sparse tensor
        Square matrix of any real type. With `comm`, the consecutive rows of this rank. `gmres` never changes A.
    b : array_like or tensor
        Right-hand side (n,), or several as (n, k).
    x0 : array_like, optional
        Initial guess, of the shape of b.
    rtol, atol : float
        The iteration stops if ||b - A x|| <= max(rtol * ||b||, atol), as in SciPy. The defaults are 1e-9 and 0.
    restart : int, optional
        Iterations per cycle. The default is 30, or 50 with the preconditioner "sgs".
    maxiter : int, default 10000
        Largest total number of iterations.
    M : sparse matrix, LinearOperator or callable, optional
        Approximation of the inverse of A.
    callback : callable, optional
        Function that receives the relative residual after each cycle.
    precision : {"mixed", "fp64", "fp32", "bf16", "fp16"}, default "mixed"
        Format of the matrix values in the inner iteration. "mixed" is the narrowest of bf16, fp16 and fp32 that is
        exact. If none is exact, "mixed" is fp32, or fp64 with complete factors.
    preconditioner : str or callable, default "auto"
        "auto", "stencil", "lu", "amg", "gs", "sgs", "jacobi", "none", or a function that approximates the inverse of A.
    storage : {"auto", "packed", "sell", "ell", "rows"}, default "auto"
        Storage format of the matrix.
    smoother : {"auto", "coloured", "natural"}, default "auto"
        Order of the rows in the sweeps of the preconditioner.
    threads : int, optional
        Number of threads. The default is one per core, or one for fewer than 200,000 entries.
    device : str, default "auto"
        "auto" solves on the device of the tensors, or on the CPU. Other values are "cpu", "cuda" and "cuda:0".
    comm : communicator or "world", optional
        Communicator of mpi4py, or "world" for all ranks of the launcher. These ranks share the rows and must all call
        `gmres`.

    Returns
    -------
    x : ndarray or tensor
        Solution in fp64. x is a tensor if b is one.
    info : GmresInfo
        Outcome, residual, iterations, preconditioner and the reason for it, formats and times.

    Raises
    ------
    UsageError
        An argument is invalid. For example, A is not square, not sparse, not real or not finite.
    SingularMatrixError
        A is singular. SingularMatrixError is also a numpy.linalg.LinAlgError.
    ResourceError
        The device does not exist, or memory is too small.

    Warns
    -----
    IllConditionedWarning
        A is singular to working precision. Only solves with complete factors detect this.
    NotSolvedWarning
        x is not finite.

    Examples
    --------
    >>> import mxpeak as mx, numpy as np, scipy.sparse
    >>> A = scipy.sparse.diags_array([-1.0, 4.0, -1.0], offsets=[-1, 0, 1], shape=(64, 64), format="csr")
    >>> x, info = mx.gmres(A, A @ np.ones(64))
    >>> info.converged, bool(np.allclose(x, 1.0))
    (True, True)
    """
    if isinstance(x0, str):
        raise UsageError(f"x0={x0!r} is not a vector; for a precision use precision={x0!r}")

    def options() -> Options:
        before = _before(M, preconditioner)
        return Options(precision, rtol, atol, restart, maxiter, before, storage, smoother, threads, callback)

    def where() -> Any:
        operands = (A, b) if x0 is None else (A, b, x0)
        return device_for(device, *(device_of(one) or "cpu" for one in operands))

    if comm is None:
        asked = options()
        return warned(*solve_on(where(), A, b, x0, asked))
    group = communicator(comm)
    asked, device_of_rank = Everybody(group).alike(lambda: (options(), where()))
    return warned(*solve_rows(group, device_of_rank, A, b, x0, asked))


def _before(M: Any, preconditioner: Any) -> Any:
    """What stands before the matrix: M as a function, or the preconditioner by its name."""
    if M is None:
        return preconditioner
    if preconditioner != "auto":
        raise UsageError("M and preconditioner both set the preconditioner; remove one of them")
    if callable(M) and not hasattr(M, "matvec"):
        return M
    if not hasattr(M, "shape"):
        raise UsageError(f"M is {type(M).__name__}; use a matrix, a LinearOperator, or a function r -> M^-1 r")
    if hasattr(M, "solve") and not hasattr(M, "__matmul__"):
        raise UsageError(f"M is {type(M).__name__}, a factorization; use its method, M=….solve")
    return lambda r: M @ r


def solve_on(device: Any, A: Any, b: Any, x0: Any, options: Options) -> tuple[Any, GmresInfo]:
    """`gmres` on a `kernels.torch.device.Device`, or on the host (None)."""
    whole = inputs.matrix(A)
    right_side = inputs.vectors(b, "b", whole.shape[0])
    if options.storage == "rows" and device is not None:
        raise UsageError('storage="rows" needs a CPU, because a device computes many rows at once; use storage="auto"')
    threads = threads_for(options.threads, default=None if whole.nnz >= MANY else 1)
    kernels = sparse_kernels(device, threads)
    with TURN, kernels.computing():
        B = inputs.on_kernels(right_side, kernels)
        share = Share(whole, A.dtype, right_side, B, inputs.start(x0, right_side, kernels))
        return _solved(kernels, whole, share, options, ALONE)


def solve_rows(comm: Communicator, device: Any, A: Any, b: Any, x0: Any, options: Options) -> tuple[Any, GmresInfo]:
    """`gmres` on the rows of A and b that each rank hands over.  Collective over comm."""
    everybody, most = Everybody(comm), threads_each(comm)
    threads = everybody.alike(lambda: _threads_of_rank(device, A, options, most))
    kernels = sparse_kernels(device, threads, own=comm.name == "threads")
    with _turn(threads) if comm.name != "threads" else nullcontext(), kernels.computing():
        share = everybody.alike(lambda: read(A, b, x0, kernels))
        everybody, rows = joined(comm, share, _said(share, x0, options))
        return _solved(kernels, rows, share, options, everybody)


@contextmanager
def _turn(threads: int) -> Iterator[None]:
    """Alone in this process, and BLAS on this rank's threads: more would take the cores of other ranks."""
    with TURN, one_thread():  # which remembers how many there were
        set_threads(threads)
        yield


def _threads_of_rank(device: Any, A: Any, options: Options, most: int) -> int:
    if device is not None:
        raise UsageError(f"systems over ranks are solved on CPUs, but A is on {device.where}; copy it with .cpu()")
    return threads_for(options.threads, default=most if getattr(A, "nnz", 0) >= MANY else 1)


def _said(share: Share, x0: Any, options: Options) -> dict[str, str]:
    """What all ranks have to say alike."""
    names = ("precision", "rtol", "atol", "restart", "maxiter", "preconditioner", "storage", "smoother")
    values = {name: getattr(options, name) for name in names}
    if callable(options.preconditioner):
        values["preconditioner"] = "a function"
    types = {"A.dtype": share.A_dtype, "b.dtype": share.right_side.dtype}
    return {key: str(value) for key, value in {**types, "x0": "none" if x0 is None else "given", **values}.items()}


def _solved(
    kernels: SparseKernels, A: Csr, share: Share, options: Options, everybody: Everybody
) -> tuple[Any, GmresInfo]:
    """x in the layout of b.  Collective."""
    n = int(everybody.sum(A.shape[0]))
    if not (n and all(share.right_side.shape[1:])):
        return _empty(kernels, share, options, n, everybody)
    solver = Solver(
        kernels,
        A,
        options.precision,
        options.preconditioner,
        options.storage,
        options.smoother,
        options.restart,
        everybody,
    )
    B, X0 = share.b, share.x0
    sides, starts = ([V] if V.ndim == 1 else list(V.T) for V in (B, X0))
    tols = [_tolerance(options, side, kernels.xp, everybody) for side in sides]
    heard = options.callback or (lambda residual: None)
    done = [solver.solve(side, start, tol, options.maxiter, heard) for side, start, tol in zip(sides, starts, tols)]
    condition = solver.condition()
    X = kernels.xp.stack([one.x for one in done], axis=1).reshape(B.shape)
    return share.right_side.result(X), _info(solver, done, tols, condition)


def _tolerance(options: Options, b: Any, xp: Any, everybody: Everybody) -> float:
    """Return the relative residual that is to be reached for one right-hand side; at 1 or more x0 = 0 has it."""
    if not options.atol:
        return float(options.rtol)
    size = norm(everybody, b, xp)
    return max(float(options.rtol), float(options.atol) / size) if size else float(options.rtol)


def _colours(solver: Solver) -> int | None:
    """The most that any rank has, one with few rows or none having fewer; None where rows are taken singly."""
    mine = solver.problem.colours  # None on all ranks or on none
    return None if mine is None else int(solver.everybody.largest(mine))


def _empty(
    kernels: SparseKernels, share: Share, options: Options, n: int, everybody: Everybody
) -> tuple[Any, GmresInfo]:
    """Return an x without entries, for a matrix without rows or no right-hand side, as NumPy and SciPy do."""
    info = GmresInfo(
        outcome=Outcome.SOLVED,
        n=n,
        nnz=int(everybody.sum(share.A.nnz)),
        rhs=int(np.prod(share.right_side.shape[1:], dtype=int)),
        tol=float(options.rtol),
        residual=0.0,
        iterations=0,
        cycles=0,
        values="fp64",
        vectors="fp64",
        preconditioner="none",
        reason="there is nothing to solve",
        levels=1,
        storage="none",
        colours=None,
        scaled=False,
        fallback=False,
        message="",
        bytes=0,
        device="cpu" if kernels.device is None else str(kernels.device.where),
        ranks=everybody.comm.size,
        setup_s=0.0,
        times={},
        history=(),
    )
    return share.right_side.result(kernels.xp.zeros(share.right_side.shape, dtype=kernels.xp.float64)), info


def _outcome(done: list[Column], tols: list[float]) -> Outcome:
    """Return how all right-hand sides ended: not finite if one did, and solved only if all were."""
    if not all(one.finite for one in done):
        return Outcome.NOT_FINITE
    return Outcome.SOLVED if all(one.residual <= tol for one, tol in zip(done, tols)) else Outcome.UNREACHED


def _info(solver: Solver, done: list[Column], tols: list[float], condition: float | None) -> GmresInfo:
    problem, choice = solver.problem, solver.plan.choice
    longest = max(done, key=lambda one: one.steps)
    residual = float(np.max([one.residual for one in done]))  # NaN where one is, which max would pass over
    notes = dict.fromkeys([*solver.notes, *(one.note for one in done if one.note)])
    outcome, singular = _outcome(done, tols), condition is not None and condition * PRECISIONS["fp64"].u >= 1.0
    if condition is not None and singular:
        notes[warning_of(condition, outcome is Outcome.SOLVED)] = None
    return GmresInfo(
        outcome=outcome,
        n=solver.n,
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
        colours=_colours(solver),
        scaled=solver.plan.scaling.active,
        fallback=solver.fallback,
        message="\n".join(notes),
        bytes=int(solver.everybody.largest(problem.bytes)),
        device=solver.device,
        ranks=solver.everybody.comm.size,
        setup_s=solver.setup_s,
        times={name: phase.time_s for name, phase in solver.spans.phases.items()},
        history=tuple(longest.history),
        condition=condition,
        ill_conditioned=singular,
    )
