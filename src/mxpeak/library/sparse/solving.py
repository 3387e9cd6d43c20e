"""Implement `gmres`: validate its arguments, select the preconditioner, and build the result."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import validate_on_all
from mxpeak.distributed.csr import Csr
from mxpeak.distributed.rank_group import SERIAL, RankGroup
from mxpeak.errors import UsageError
from mxpeak.kernels.choose import sparse as sparse_kernels
from mxpeak.kernels.contract.sparse import SparseKernels
from mxpeak.library.communicators import communicator
from mxpeak.library.inputs import check_not_traced, device_for, device_of
from mxpeak.library.outcomes import warned
from mxpeak.library.sparse import inputs
from mxpeak.library.sparse.auto_preconditioner import PRECONDITIONERS, choose_for_recurrence, choose_preconditioner
from mxpeak.library.sparse.gradients import differentiates, gmres_differentiably
from mxpeak.library.sparse.info import GmresInfo
from mxpeak.library.sparse.inputs import checked_options, outside_turns
from mxpeak.library.sparse.operators import GivenOperator, operator_of, solve_operator
from mxpeak.library.sparse.ranks import Share, joined, own_threads, read, threads_per_rank
from mxpeak.library.sparse.results import solved
from mxpeak.runtime.calls import TURN, threads_for
from mxpeak.solvers.gmres_driver import GmresDriver, GmresOptions
from mxpeak.solvers.recurrence_driver import RecurrenceDriver

#: Number of entries above which several threads are faster: starting a parallel region takes about 10 µs per kernel.
MANY = 200_000
#: The values of options that complex matrices support.
OF_COMPLEX = {"precision": ("mixed", "fp64", "fp32"), "storage": ("auto", "rows"), "smoother": ("auto", "natural")}


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
    A : sparse matrix, sparse array, sparse tensor, LinearOperator, callable or DistributedMatrix
        Square matrix of SciPy, torch, JAX or CuPy with any real or complex data type. A can also be a LinearOperator,
        or a function that returns A x for a vector x. If you pass `comm`, A contains only the consecutive rows of this
        rank. `gmres` does not modify A.
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
        factors. If one process factors a small band, "mixed" also selects
        fp64 for the vectors.
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
        Solution in fp64, which is complex if A, b or x0 is complex. The type of the array is that of b. With torch and
        JAX, x is differentiable with respect to b and the stored entries of A.
    info : GmresInfo
        Diagnostics of the solve: outcome, residual, iterations, preconditioner and the reason for its choice, formats
        and times. In `jax.jit` and `jax.vmap`, info is None.

    Raises
    ------
    UsageError
        An argument is invalid, for example because A is not square, not sparse or not finite.
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
    if comm is None and differentiates(A, b):
        named = preconditioner if isinstance(preconditioner, str) else "auto"
        solve_again = partial(
            gmres, rtol=rtol, atol=atol, restart=restart, maxiter=maxiter, precision=precision, preconditioner=named,
            storage=storage, smoother=smoother, threads=threads, device=device,
        )  # fmt: skip
        first = {"x0": x0, "M": M, "callback": callback, "preconditioner": preconditioner}
        return gmres_differentiably(A, b, solve_again, first)

    def options() -> GmresOptions:
        if isinstance(x0, str):
            raise UsageError(f"x0={x0!r} is not a vector; use precision={x0!r} to set a precision")
        M_or_name = preconditioner_of(M, preconditioner)
        return checked_options(
            GmresOptions(precision, rtol, atol, restart, maxiter, M_or_name, storage, smoother, threads, callback)
        )

    return warned(*solve_any(A, b, x0, options, device, comm))


def solve_any(
    A: Any, b: Any, x0: Any, options: Callable[[], GmresOptions], device: str, comm: Any
) -> tuple[Any, GmresInfo]:
    """Solve A x = b for a matrix or an operator, in one process or over ranks. Collective.

    `options` returns the checked options.
    """
    for name, values in (("A", getattr(A, "data", None)), ("b", b), ("x0", x0)):
        check_not_traced(values, name)
    ranks = None if comm is None else communicator(comm)
    operator = operator_of(A) if ranks is None else validate_on_all(ranks, lambda: operator_of(A), _kind_of)
    if operator is not None:
        return solve_operator(operator, b, x0, options, device, comm)

    def device_of_rank() -> Any:
        operands = (A, b) if x0 is None else (A, b, x0)
        return device_for(device, *(device_of(operand) or "cpu" for operand in operands))

    if ranks is None:
        checked = options()
        return solve_on(device_of_rank(), A, b, x0, checked)
    checked, where = RankGroup(ranks).collectively(lambda: (options(), device_of_rank()))
    return solve_rows(ranks, where, A, b, x0, checked)


def _kind_of(operator: GivenOperator | None) -> str:
    """Return the form of A that all ranks must use, as text."""
    return f"A as a {'matrix' if operator is None else operator.kind}"


def preconditioner_of(M: Any, preconditioner: Any) -> Any:
    """Return M as a function, or `preconditioner` if M is None; raise a UsageError for both or an invalid M."""
    if M is None:
        return preconditioner
    if preconditioner != "auto":
        raise UsageError("M conflicts with preconditioner, because both set the preconditioner; use only one of them")
    if callable(M) and not hasattr(M, "matvec"):
        return M
    if isinstance(M, str):
        known = f'="{M}"' if M in PRECONDITIONERS else f" with one of {', '.join(PRECONDITIONERS)}"
        raise UsageError(
            f'M is str "{M}", but M must be a matrix, a LinearOperator, or a function r -> M^-1 r; use the argument '
            f"preconditioner{known}"
        )
    if not hasattr(M, "shape"):
        raise UsageError(
            f"M is {type(M).__name__}, which is not a preconditioner; use a matrix, a LinearOperator, or a "
            "function r -> M^-1 r"
        )
    if hasattr(M, "solve") and not hasattr(M, "__matmul__"):
        raise UsageError(f"M is {type(M).__name__}, which is a factorization; use its solve method, M=….solve")
    return partial(_multiplied, M)


def _multiplied(M: Any, r: Any) -> Any:
    """Return M r; raise a UsageError if the shapes do not match."""
    if tuple(M.shape) != (len(r), len(r)):
        raise UsageError(f"M has shape {tuple(M.shape)}, but r has {len(r)} rows; use a square M of this order")
    return M @ r


def solve_on(device: Any, A: Any, b: Any, x0: Any, options: GmresOptions) -> tuple[Any, GmresInfo]:
    """Solve A x = b in one process, and return x and the diagnostics.

    `device` is a `kernels.torch.engine.device.Device`, or None for the host.
    """
    whole = inputs.matrix(A)
    right_side = inputs.vectors(b, "b", whole.shape[0])
    kernels = kernels_for(device, whole, options)
    with TURN, kernels.computing():
        B = inputs.on_kernels(right_side, kernels)
        X0 = inputs.start(x0, right_side, kernels)
        set_up = driver_for(kernels, whole, options, SERIAL)
        return solved(kernels, set_up, right_side, (B, X0), options, SERIAL, whole.nnz)


def kernels_for(device: Any, A: Csr, options: GmresOptions) -> SparseKernels:
    """Return the kernels for a matrix in one process; raise a UsageError if an option needs another device."""
    if options.storage == "rows" and device is not None:
        raise UsageError(
            'storage="rows" needs a CPU, because a device computes many rows at the same time; use storage="auto"'
        )
    threads = threads_for(options.threads, default=None if A.nnz >= MANY else 1)
    return sparse_kernels(device, threads, parts=_parts(device, A, options))


def solve_rows(
    comm: Communicator, device: Any, A: Any, b: Any, x0: Any, options: GmresOptions
) -> tuple[Any, GmresInfo]:
    """Solve a system in which each rank passes some rows of A and b, and return this rank's x and diagnostics.

    Collective.
    """
    group, cores = RankGroup(comm), threads_per_rank(comm)
    threads = group.collectively(lambda: _threads_of_rank(device, A, options, cores))
    parts = int(group.largest(group.collectively(lambda: _parts(device, A, options) if _has_rows(A) else 1)))
    kernels = sparse_kernels(device, threads, own=comm.name == "threads", parts=parts)
    with own_threads(threads) if comm.name != "threads" else nullcontext(), kernels.computing():
        share = group.collectively(lambda: read(A, b, x0, kernels))
        group, rows = joined(comm, share, _must_match(share, x0, options))
        set_up = driver_for(kernels, rows, options, group)
        return solved(kernels, set_up, share.right_side, (share.b, share.x0), options, group, rows.nnz)


def driver_for(kernels: SparseKernels, A: Csr, options: GmresOptions, group: RankGroup) -> Callable[[], GmresDriver]:
    """Return the function that selects the preconditioner and sets up the solver. The function is collective."""

    options = outside_turns(options) if kernels.device is None else options

    def set_up() -> GmresDriver:
        if options.method == "gmres":
            choice = choose_preconditioner(kernels, A, options.preconditioner, group)
            return GmresDriver(kernels, A, choice, options, group)
        choice = choose_for_recurrence(kernels, A, options, group)
        return RecurrenceDriver(kernels, A, choice, options, group)

    return set_up


def _has_rows(A: Any) -> bool:
    """Return whether this rank has rows of A, so that their type counts."""
    return bool(getattr(A, "shape", (0,))[0])


def _parts(device: Any, A: Any, options: GmresOptions) -> int:
    """Return the number of real values per entry: 2 for a complex A. Raise a UsageError for its limits."""
    if not inputs.is_complex(A):
        return 1
    if device is not None:
        raise UsageError(
            f'A is complex, but mxpeak solves complex sparse systems on CPUs, not on {device.where}; use device="cpu"'
        )
    for name, allowed in OF_COMPLEX.items():
        if (value := getattr(options, name)) not in allowed:
            raise UsageError(
                f'{name}="{value}" supports only real matrices, but A is complex; use {name}="{allowed[0]}"'
            )
    return 2


def _threads_of_rank(device: Any, A: Any, options: GmresOptions, cores: int) -> int:
    """Return the number of threads of this rank; raise a UsageError if A is on a device."""
    if device is not None:
        raise UsageError(f"mxpeak solves distributed systems on CPUs, but A is on {device.where}; use A.cpu()")
    return threads_for(options.threads, default=cores if getattr(A, "nnz", 0) >= MANY else 1)


def _must_match(share: Share, x0: Any, options: GmresOptions) -> dict[str, str]:
    """Return the arguments that must be equal on all ranks, as text by name."""
    names = ("method", "precision", "rtol", "atol", "restart", "maxiter", "preconditioner", "storage", "smoother")
    values = {name: getattr(options, name) for name in names}
    if callable(options.preconditioner):
        values["preconditioner"] = "a function"
    types = {"A.dtype": share.A_dtype, "b.dtype": share.right_side.dtype}
    return {key: str(value) for key, value in {**types, "x0": "none" if x0 is None else "given", **values}.items()}
