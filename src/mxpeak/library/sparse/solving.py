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
from mxpeak.kernels.host.engine.blas import one_thread, set_threads
from mxpeak.library.communicators import communicator
from mxpeak.library.inputs import device_for, device_of
from mxpeak.library.outcomes import warned
from mxpeak.library.sparse import inputs
from mxpeak.library.sparse.condition import warning_of
from mxpeak.library.sparse.formats import PRECISION_NAMES
from mxpeak.library.sparse.info import GmresInfo
from mxpeak.library.sparse.inputs import Csr
from mxpeak.library.sparse.rank_group import SERIAL, RankGroup
from mxpeak.library.sparse.ranks import Share, joined, norm, read, threads_each
from mxpeak.library.sparse.solver import Solver, SolveResult
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
                raise UsageError(f"{name}={count!r} is not valid; use an integer of at least 1")
        for name, tolerance in (("rtol", self.rtol), ("atol", self.atol)):
            if not isinstance(tolerance, Real) or isinstance(tolerance, bool) or not tolerance >= 0.0:
                what = "||b - A x|| / ||b||" if name == "rtol" else "||b - A x||"
                raise UsageError(
                    f"{name}={tolerance!r} is not valid; use a number of at least 0, the largest {what} to accept"
                )
        if self.callback is not None and not callable(self.callback):
            raise UsageError(
                f"callback={self.callback!r} is not a function; use a function of the relative residual, or None"
            )


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
    """Solve A x = b for a sparse matrix A with mixed-precision GMRES.

    The inner iteration uses low precision, but `gmres` computes residuals and x in fp64. If convergence stalls in low
    precision, `gmres` continues in fp64.

    Parameters
    ----------
    A : sparse matrix, sparse array or sparse tensor
        Square matrix of any real data type. If you pass `comm`, A contains only the consecutive rows of this rank.
        `gmres` does not modify A.
    b : array_like or tensor
        Right-hand side of shape (n,), or k right-hand sides as an array of shape (n, k).
    x0 : array_like, optional
        Initial guess with the same shape as b.
    rtol, atol : float
        Relative and absolute tolerances. As in SciPy, the iteration stops when ||b - A x|| <= max(rtol * ||b||, atol).
        By default, rtol is 1e-9 and atol is 0.
    restart : int, optional
        Number of iterations per restart cycle. The default is 30, or 50 for the preconditioner "sgs".
    maxiter : int, default 10000
        Maximum total number of iterations.
    M : sparse matrix, LinearOperator or callable, optional
        Preconditioner that approximates the inverse of A.
    callback : callable, optional
        Function that `gmres` calls with the relative residual after each restart cycle.
    precision : {"mixed", "fp64", "fp32", "bf16", "fp16"}, default "mixed"
        Format of the matrix values in the inner iteration. "mixed" selects the narrowest of bf16, fp16 and fp32 that
        represents all values exactly. If none of these formats is exact, "mixed" selects fp32, or fp64 for complete LU
        factors.
    preconditioner : str or callable, default "auto"
        Name of the preconditioner, which is one of "auto", "stencil", "lu", "amg", "gs", "sgs", "jacobi" and "none".
        You can also pass a function that approximates the inverse of A.
    storage : {"auto", "packed", "sell", "ell", "rows"}, default "auto"
        Storage format of the matrix.
    smoother : {"auto", "coloured", "natural"}, default "auto"
        Order in which the sweeps of the preconditioner update the rows.
    threads : int, optional
        Number of CPU threads. By default, `gmres` uses one thread per core, or a single thread if A has fewer than
        200,000 entries.
    device : str, default "auto"
        Use "auto" to solve on the device of the tensors (the CPU for other arrays), or specify a device such as "cpu",
        "cuda" or "cuda:0".
    comm : communicator or "world", optional
        mpi4py communicator, or "world" for all ranks that the launcher started. The ranks share the rows of A, and all
        of them must call `gmres`.

    Returns
    -------
    x : ndarray or tensor
        Solution in fp64. If b is a tensor, x is also a tensor.
    info : GmresInfo
        Diagnostics of the solve: outcome, residual, iterations, preconditioner and the reason for its choice, formats
        and times.

    Raises
    ------
    UsageError
        An argument is invalid, for example because A is not square, not sparse, not real or not finite.
    SingularMatrixError
        The matrix A is singular. This exception is also a numpy.linalg.LinAlgError.
    ResourceError
        The device does not exist, or there is not enough memory.

    Warns
    -----
    IllConditionedWarning
        The matrix A is singular to working precision. `gmres` can detect this only with complete LU factors.
    NotSolvedWarning
        The solution x is not finite.

    Examples
    --------
    >>> import mxpeak as mx, numpy as np, scipy.sparse
    >>> A = scipy.sparse.diags_array([-1.0, 4.0, -1.0], offsets=[-1, 0, 1], shape=(64, 64), format="csr")
    >>> x, info = mx.gmres(A, A @ np.ones(64))
    >>> info.converged, bool(np.allclose(x, 1.0))
    (True, True)
    """
    if isinstance(x0, str):
        raise UsageError(f"x0={x0!r} is not a vector; use precision={x0!r} to set a precision")

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
    asked, device_of_rank = RankGroup(group).alike(lambda: (options(), where()))
    return warned(*solve_rows(group, device_of_rank, A, b, x0, asked))


def _before(M: Any, preconditioner: Any) -> Any:
    """What stands before the matrix: M as a function, or the preconditioner by its name."""
    if M is None:
        return preconditioner
    if preconditioner != "auto":
        raise UsageError("M conflicts with preconditioner, because both set the preconditioner; use only one of them")
    if callable(M) and not hasattr(M, "matvec"):
        return M
    if not hasattr(M, "shape"):
        raise UsageError(
            f"M is {type(M).__name__}, which is not a preconditioner; use a matrix, a LinearOperator, or a "
            "function r -> M^-1 r"
        )
    if hasattr(M, "solve") and not hasattr(M, "__matmul__"):
        raise UsageError(f"M is {type(M).__name__}, which is a factorization; use its solve method, M=….solve")
    return lambda r: M @ r


def solve_on(device: Any, A: Any, b: Any, x0: Any, options: Options) -> tuple[Any, GmresInfo]:
    """`gmres` on a `kernels.torch.device.Device`, or on the host (None)."""
    whole = inputs.matrix(A)
    right_side = inputs.vectors(b, "b", whole.shape[0])
    if options.storage == "rows" and device is not None:
        raise UsageError(
            'storage="rows" needs a CPU, because a device computes many rows at the same time; use storage="auto"'
        )
    threads = threads_for(options.threads, default=None if whole.nnz >= MANY else 1)
    kernels = sparse_kernels(device, threads)
    with TURN, kernels.computing():
        B = inputs.on_kernels(right_side, kernels)
        share = Share(whole, A.dtype, right_side, B, inputs.start(x0, right_side, kernels))
        return _solved(kernels, whole, share, options, SERIAL)


def solve_rows(comm: Communicator, device: Any, A: Any, b: Any, x0: Any, options: Options) -> tuple[Any, GmresInfo]:
    """`gmres` on the rows of A and b that each rank hands over.  Collective over comm."""
    everybody, most = RankGroup(comm), threads_each(comm)
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
        raise UsageError(f"mxpeak solves distributed systems on CPUs, but A is on {device.where}; use A.cpu()")
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
    kernels: SparseKernels, A: Csr, share: Share, options: Options, everybody: RankGroup
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


def _tolerance(options: Options, b: Any, xp: Any, everybody: RankGroup) -> float:
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
    kernels: SparseKernels, share: Share, options: Options, n: int, everybody: RankGroup
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


def _outcome(done: list[SolveResult], tols: list[float]) -> Outcome:
    """Return how all right-hand sides ended: not finite if one did, and solved only if all were."""
    if not all(one.finite for one in done):
        return Outcome.NOT_FINITE
    return Outcome.SOLVED if all(one.residual <= tol for one, tol in zip(done, tols)) else Outcome.UNREACHED


def _info(solver: Solver, done: list[SolveResult], tols: list[float], condition: float | None) -> GmresInfo:
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
