"""Implement `gmres`: validate its arguments, select the preconditioner, and build the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from time import perf_counter
from typing import Any

import numpy as np

from mxpeak.comm.base import Communicator
from mxpeak.distributed.csr import Csr
from mxpeak.distributed.rank_group import SERIAL, RankGroup
from mxpeak.errors import Outcome, SingularError, UsageError
from mxpeak.kernels.choose import sparse as sparse_kernels
from mxpeak.kernels.contract.sparse import SparseKernels
from mxpeak.kernels.host.engine.blas import one_thread, set_threads
from mxpeak.library.communicators import communicator
from mxpeak.library.inputs import device_for, device_of
from mxpeak.library.outcomes import SingularMatrixError, warned
from mxpeak.library.sparse import inputs
from mxpeak.library.sparse.auto_preconditioner import choose_preconditioner
from mxpeak.library.sparse.info import GmresInfo, ill_conditioned_note
from mxpeak.library.sparse.inputs import checked_options
from mxpeak.library.sparse.ranks import Share, joined, norm, read, threads_per_rank
from mxpeak.precision import PRECISIONS
from mxpeak.runtime.calls import TURN, threads_for
from mxpeak.solvers.gmres_driver import GmresDriver, GmresOptions, SolveResult

#: Number of entries above which several threads are faster: starting a parallel region takes about 10 µs per kernel.
MANY = 200_000


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

    def options() -> GmresOptions:
        M_or_name = _preconditioner(M, preconditioner)
        return checked_options(
            GmresOptions(precision, rtol, atol, restart, maxiter, M_or_name, storage, smoother, threads, callback)
        )

    def device_of_rank() -> Any:
        operands = (A, b) if x0 is None else (A, b, x0)
        return device_for(device, *(device_of(operand) or "cpu" for operand in operands))

    if comm is None:
        checked = options()
        return warned(*solve_on(device_of_rank(), A, b, x0, checked))
    ranks = communicator(comm)
    checked, where = RankGroup(ranks).collectively(lambda: (options(), device_of_rank()))
    return warned(*solve_rows(ranks, where, A, b, x0, checked))


def _preconditioner(M: Any, preconditioner: Any) -> Any:
    """Return M as a function, or `preconditioner` if M is None; raise a UsageError for both or an invalid M."""
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


def solve_on(device: Any, A: Any, b: Any, x0: Any, options: GmresOptions) -> tuple[Any, GmresInfo]:
    """Solve A x = b in one process, and return x and the diagnostics.

    `device` is a `kernels.torch.engine.device.Device`, or None for the host.
    """
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


def solve_rows(
    comm: Communicator, device: Any, A: Any, b: Any, x0: Any, options: GmresOptions
) -> tuple[Any, GmresInfo]:
    """Solve a system in which each rank passes some rows of A and b, and return this rank's x and diagnostics.

    Collective.
    """
    group, cores = RankGroup(comm), threads_per_rank(comm)
    threads = group.collectively(lambda: _threads_of_rank(device, A, options, cores))
    kernels = sparse_kernels(device, threads, own=comm.name == "threads")
    with _own_threads(threads) if comm.name != "threads" else nullcontext(), kernels.computing():
        share = group.collectively(lambda: read(A, b, x0, kernels))
        group, rows = joined(comm, share, _must_match(share, x0, options))
        return _solved(kernels, rows, share, options, group)


@contextmanager
def _own_threads(threads: int) -> Iterator[None]:
    """Serialize the calls of this process, and limit BLAS to `threads` threads inside the context."""
    with TURN, one_thread():  # `one_thread` restores the number of threads
        set_threads(threads)
        yield


def _threads_of_rank(device: Any, A: Any, options: GmresOptions, cores: int) -> int:
    """Return the number of threads of this rank; raise a UsageError if A is on a device."""
    if device is not None:
        raise UsageError(f"mxpeak solves distributed systems on CPUs, but A is on {device.where}; use A.cpu()")
    return threads_for(options.threads, default=cores if getattr(A, "nnz", 0) >= MANY else 1)


def _must_match(share: Share, x0: Any, options: GmresOptions) -> dict[str, str]:
    """Return the arguments that must be equal on all ranks, as text by name."""
    names = ("precision", "rtol", "atol", "restart", "maxiter", "preconditioner", "storage", "smoother")
    values = {name: getattr(options, name) for name in names}
    if callable(options.preconditioner):
        values["preconditioner"] = "a function"
    types = {"A.dtype": share.A_dtype, "b.dtype": share.right_side.dtype}
    return {key: str(value) for key, value in {**types, "x0": "none" if x0 is None else "given", **values}.items()}


def _solved(
    kernels: SparseKernels, A: Csr, share: Share, options: GmresOptions, group: RankGroup
) -> tuple[Any, GmresInfo]:
    """Solve for all right-hand sides, and return x in the layout of b and the diagnostics. Collective."""
    n = int(group.sum(A.shape[0]))
    if not (n and all(share.right_side.shape[1:])):
        return _empty(kernels, share, options, n, group)
    try:
        begin = perf_counter()
        choice = choose_preconditioner(kernels, A, options.preconditioner, group)
        driver = GmresDriver(kernels, A, choice, options, group)
        setup_s = perf_counter() - begin
        B, X0 = share.b, share.x0
        columns, starts = ([V] if V.ndim == 1 else list(V.T) for V in (B, X0))
        tols = [_tolerance(options, b, kernels.xp, group) for b in columns]
        results = [driver.solve(b, x0, tol) for b, x0, tol in zip(columns, starts, tols)]
        condition = driver.condition()
    except SingularError as error:
        raise SingularMatrixError(str(error)) from None
    X = kernels.xp.stack([result.x for result in results], axis=1).reshape(B.shape)
    return share.right_side.result(X), _info(driver, results, tols, condition, setup_s)


def _tolerance(options: GmresOptions, b: Any, xp: Any, group: RankGroup) -> float:
    """Return the larger of rtol and atol / ||b||, the relative residual at which b counts as solved. Collective."""
    if not options.atol:
        return float(options.rtol)
    size = norm(group, b, xp)
    return max(float(options.rtol), float(options.atol) / size) if size else float(options.rtol)


def _empty(
    kernels: SparseKernels, share: Share, options: GmresOptions, n: int, group: RankGroup
) -> tuple[Any, GmresInfo]:
    """Return an empty x and its diagnostics for an empty matrix or no right-hand side. Collective."""
    info = GmresInfo(
        outcome=Outcome.SOLVED,
        n=n,
        nnz=int(group.sum(share.A.nnz)),
        rhs=int(np.prod(share.right_side.shape[1:], dtype=int)),
        tol=float(options.rtol),
        reason="there is nothing to solve",
        device="cpu" if kernels.device is None else str(kernels.device.where),
        ranks=group.comm.size,
    )
    return share.right_side.result(kernels.xp.zeros(share.right_side.shape, dtype=kernels.xp.float64)), info


def _outcome(results: list[SolveResult], tols: list[float]) -> Outcome:
    """Return the outcome of all right-hand sides: NOT_FINITE if any x is not finite, SOLVED if all are solved.

    Otherwise, the outcome is UNREACHED.
    """
    if not all(result.finite for result in results):
        return Outcome.NOT_FINITE
    solved = all(result.residual <= tol for result, tol in zip(results, tols))
    return Outcome.SOLVED if solved else Outcome.UNREACHED


def _info(
    driver: GmresDriver, results: list[SolveResult], tols: list[float], condition: float | None, setup_s: float
) -> GmresInfo:
    """Combine the results of all right-hand sides into the diagnostics. Collective."""
    problem, choice, A = driver.problem, driver.plan.choice, driver.problem.matrix.inner.A
    colours = problem.colours  # None on all ranks or on none of them
    longest = max(results, key=lambda result: result.steps)
    residual = float(np.max([result.residual for result in results]))  # NaN if any is NaN, which max may ignore
    notes = dict.fromkeys([*driver.notes, *(result.note for result in results if result.note)])
    outcome, singular = _outcome(results, tols), condition is not None and condition * PRECISIONS["fp64"].u >= 1.0
    if condition is not None and singular:
        notes[ill_conditioned_note(condition, solved=outcome is Outcome.SOLVED)] = None
    return GmresInfo(
        outcome=outcome,
        n=driver.n,
        nnz=driver.nnz,
        rhs=len(results),
        tol=max(tols),
        residual=residual,
        iterations=longest.steps,
        cycles=longest.cycles,
        values=A.values,
        vectors=A.vectors,
        preconditioner=choice.name,
        reason=choice.reason,
        levels=problem.levels,
        storage=A.storage,
        colours=None if colours is None else int(driver.group.largest(colours)),
        scaled=driver.plan.scaling.active,
        fallback=driver.fallback,
        message="\n".join(notes),
        bytes=int(driver.group.largest(problem.bytes)),
        device=driver.device,
        ranks=driver.group.comm.size,
        setup_s=setup_s,
        times=driver.spans.times,
        history=tuple(longest.history),
        condition=condition,
        ill_conditioned=singular,
    )
