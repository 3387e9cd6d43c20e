"""Implement `cg`, `minres` and `bicgstab`, which share the arguments, the set-up and the diagnostics."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mxpeak.library.outcomes import warned
from mxpeak.library.sparse.info import KrylovInfo
from mxpeak.library.sparse.inputs import checked_options
from mxpeak.library.sparse.solving import preconditioner_of, solve_any
from mxpeak.solvers.gmres_driver import GmresOptions


def cg(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-9,
    atol: float = 0.0,
    maxiter: int = 10_000,
    M: Any = None,
    callback: Callable[[Any], object] | None = None,
    precision: str = "mixed",
    preconditioner: Any = "auto",
    threads: int | None = None,
    device: str = "auto",
    comm: Any = None,
) -> tuple[Any, KrylovInfo]:
    """Solve A x = b for a symmetric or Hermitian positive definite A with preconditioned conjugate gradients.

    Products, vectors and residuals are in fp64, and the preconditioner may use a lower precision. At the end, `cg`
    computes b - A x. If the residual of the recurrence is smaller than that of x, the recurrence starts again from x.

    Parameters
    ----------
    A : sparse matrix, sparse array, sparse tensor, LinearOperator, callable or DistributedMatrix
        Symmetric or Hermitian positive definite matrix of any data type. `cg` does not modify it.
        A callable receives a vector and returns A x. If the rows are shared among ranks, every rank passes its
        consecutive rows of A and b.
    b : array_like or tensor
        Right-hand side of shape (n,), or k right-hand sides as an array of shape (n, k).
    x0 : array_like, optional
        Initial guess with the same shape as b.
    rtol, atol : float
        Relative and absolute tolerances. As in SciPy, the iteration stops when ||b - A x|| <= max(rtol * ||b||, atol).
        By default, rtol is 1e-9 and atol is 0.
    maxiter : int, default 10000
        Maximum number of iterations.
    M : sparse matrix, LinearOperator or callable, optional
        Preconditioner that approximates the inverse of A. It must be symmetric and
        positive definite.
    callback : callable, optional
        Function that `cg` calls with the current x after each iteration, as in SciPy. If only b is complex, the
        iterations for the real part precede those for the imaginary part.
    precision : {"mixed", "fp64", "fp32", "bf16", "fp16"}, default "mixed"
        Format of the matrix values in the preconditioner. All other values are in fp64. "mixed" selects the narrowest
        format that represents all values exactly, or otherwise fp32.
    preconditioner : str or callable, default "auto"
        Name of the preconditioner, which is one of "auto", "stencil", "amg", "lu", "sgs", "jacobi" and "none". You can
        also pass a function that approximates the inverse of A.
    threads : int, optional
        Number of CPU threads. By default, `cg` uses one thread per core, or a single thread for small systems.
    device : str, default "auto"
        Use "auto" to solve on the device of the tensors (the CPU for other arrays), or specify a device such as "cpu",
        "cuda" or "cuda:0".
    comm : communicator or "world", optional
        mpi4py communicator, or "world" for all ranks that the launcher started. The ranks share the rows of A, and all
        of them must call `cg`.

    Returns
    -------
    x : ndarray or tensor
        Solution in fp64, which is complex if A, b or x0 is complex. If b is a tensor, x is also a tensor.
    info : KrylovInfo
        Diagnostics of the solve. `info.claimed` is the residual of the recurrence, and `info.residual` that of x.

    Raises
    ------
    UsageError
        An argument is invalid, for example because A is not symmetric, or has a diagonal entry that is not positive.
    SingularMatrixError
        The matrix A is singular. This exception is also a numpy.linalg.LinAlgError.
    ResourceError
        The device does not exist, or there is not enough memory.

    Warns
    -----
    IllConditionedWarning
        The matrix A is singular to working precision. `cg` can detect this only with complete LU factors.
    NotSolvedWarning
        The solution x is not finite.

    Examples
    --------
    >>> import mxpeak as mx, numpy as np, scipy.sparse
    >>> A = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(64, 64), format="csr")
    >>> x, info = mx.cg(A, A @ np.ones(64))
    >>> info.converged, bool(np.allclose(x, 1.0))
    (True, True)
    """

    options = partial(GmresOptions, precision, rtol, atol, None, maxiter, threads=threads, callback=callback)
    return warned(*_solved("cg", options, (M, preconditioner), (A, b, x0), device, comm))


def minres(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-9,
    atol: float = 0.0,
    maxiter: int = 10_000,
    M: Any = None,
    callback: Callable[[Any], object] | None = None,
    precision: str = "mixed",
    preconditioner: Any = "auto",
    threads: int | None = None,
    device: str = "auto",
    comm: Any = None,
) -> tuple[Any, KrylovInfo]:
    """Solve A x = b for a symmetric or Hermitian A, which may be indefinite, with preconditioned MINRES.

    Products, vectors and residuals are in fp64, and the preconditioner may use a lower precision. At the end, `minres`
    computes b - A x. If the residual of the recurrence is smaller than that of x, the recurrence starts again from x.

    Parameters
    ----------
    A : sparse matrix, sparse array, sparse tensor, LinearOperator, callable or DistributedMatrix
        Symmetric or Hermitian matrix of any data type. `minres` does not modify it.
        A callable receives a vector and returns A x. If the rows are shared among ranks, every rank passes its
        consecutive rows of A and b.
    b : array_like or tensor
        Right-hand side of shape (n,), or k right-hand sides as an array of shape (n, k).
    x0 : array_like, optional
        Initial guess with the same shape as b.
    rtol, atol : float
        Relative and absolute tolerances. As in SciPy, the iteration stops when ||b - A x|| <= max(rtol * ||b||, atol).
        By default, rtol is 1e-9 and atol is 0.
    maxiter : int, default 10000
        Maximum number of iterations.
    M : sparse matrix, LinearOperator or callable, optional
        Preconditioner that approximates the inverse of A. It must be symmetric and
        positive definite, even if A is indefinite.
    callback : callable, optional
        Function that `minres` calls with the current x after each iteration, as in SciPy. If only b is complex, the
        iterations for the real part precede those for the imaginary part.
    precision : {"mixed", "fp64", "fp32", "bf16", "fp16"}, default "mixed"
        Format of the matrix values in the preconditioner. All other values are in fp64. "mixed" selects the narrowest
        format that represents all values exactly, or otherwise fp32.
    preconditioner : str or callable, default "auto"
        Name of the preconditioner, which is one of "auto", "stencil", "amg", "sgs", "jacobi" and "none". You can also
        pass a function that approximates the inverse of A.
    threads : int, optional
        Number of CPU threads. By default, `minres` uses one thread per core, or a single thread for small systems.
    device : str, default "auto"
        Use "auto" to solve on the device of the tensors (the CPU for other arrays), or specify a device such as "cpu",
        "cuda" or "cuda:0".
    comm : communicator or "world", optional
        mpi4py communicator, or "world" for all ranks that the launcher started. The ranks share the rows of A, and all
        of them must call `minres`.

    Returns
    -------
    x : ndarray or tensor
        Solution in fp64, which is complex if A, b or x0 is complex. If b is a tensor, x is also a tensor.
    info : KrylovInfo
        Diagnostics of the solve. `info.claimed` is the residual of the recurrence, and `info.residual` that of x.

    Raises
    ------
    UsageError
        An argument is invalid, for example because A is not symmetric.
    SingularMatrixError
        The matrix A is singular. This exception is also a numpy.linalg.LinAlgError.
    ResourceError
        The device does not exist, or there is not enough memory.

    Warns
    -----
    NotSolvedWarning
        The solution x is not finite.

    Examples
    --------
    >>> import mxpeak as mx, numpy as np, scipy.sparse
    >>> A = scipy.sparse.diags_array([-1.0, 0.5, -1.0], offsets=[-1, 0, 1], shape=(64, 64), format="csr")
    >>> x, info = mx.minres(A, A @ np.ones(64))
    >>> info.converged, bool(np.allclose(x, 1.0))
    (True, True)
    """

    options = partial(GmresOptions, precision, rtol, atol, None, maxiter, threads=threads, callback=callback)
    return warned(*_solved("minres", options, (M, preconditioner), (A, b, x0), device, comm))


def bicgstab(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-9,
    atol: float = 0.0,
    maxiter: int = 10_000,
    M: Any = None,
    callback: Callable[[Any], object] | None = None,
    precision: str = "mixed",
    preconditioner: Any = "auto",
    threads: int | None = None,
    device: str = "auto",
    comm: Any = None,
) -> tuple[Any, KrylovInfo]:
    """Solve A x = b for a general A with BiCGStab, which needs less memory than GMRES.

    Products, vectors and residuals are in fp64, and the preconditioner may use a lower precision. One iteration takes
    two products. At the end, or after a breakdown, `bicgstab` computes b - A x, and starts again from x if necessary.

    Parameters
    ----------
    A : sparse matrix, sparse array, sparse tensor, LinearOperator, callable or DistributedMatrix
        Square matrix of any data type. `bicgstab` does not modify it.
        A callable receives a vector and returns A x. If the rows are shared among ranks, every rank passes its
        consecutive rows of A and b.
    b : array_like or tensor
        Right-hand side of shape (n,), or k right-hand sides as an array of shape (n, k).
    x0 : array_like, optional
        Initial guess with the same shape as b.
    rtol, atol : float
        Relative and absolute tolerances. As in SciPy, the iteration stops when ||b - A x|| <= max(rtol * ||b||, atol).
        By default, rtol is 1e-9 and atol is 0.
    maxiter : int, default 10000
        Maximum number of iterations.
    M : sparse matrix, LinearOperator or callable, optional
        Preconditioner that approximates the inverse of A.
    callback : callable, optional
        Function that `bicgstab` calls with the current x after each iteration, as in SciPy. If only b is complex, the
        iterations for the real part precede those for the imaginary part.
    precision : {"mixed", "fp64", "fp32", "bf16", "fp16"}, default "mixed"
        Format of the matrix values in the preconditioner. All other values are in fp64. "mixed" selects the narrowest
        format that represents all values exactly, or otherwise fp32.
    preconditioner : str or callable, default "auto"
        Name of the preconditioner, which is one of "auto", "stencil", "lu", "amg", "gs", "sgs", "jacobi" and "none".
        You can also pass a function that approximates the inverse of A.
    threads : int, optional
        Number of CPU threads. By default, `bicgstab` uses one thread per core, or a single thread for small systems.
    device : str, default "auto"
        Use "auto" to solve on the device of the tensors (the CPU for other arrays), or specify a device such as "cpu",
        "cuda" or "cuda:0".
    comm : communicator or "world", optional
        mpi4py communicator, or "world" for all ranks that the launcher started. The ranks share the rows of A, and all
        of them must call `bicgstab`.

    Returns
    -------
    x : ndarray or tensor
        Solution in fp64, which is complex if A, b or x0 is complex. If b is a tensor, x is also a tensor.
    info : KrylovInfo
        Diagnostics of the solve. `info.claimed` is the residual of the recurrence, and `info.residual` that of x.

    Raises
    ------
    UsageError
        An argument is invalid.
    SingularMatrixError
        The matrix A is singular. This exception is also a numpy.linalg.LinAlgError.
    ResourceError
        The device does not exist, or there is not enough memory.

    Warns
    -----
    IllConditionedWarning
        The matrix A is singular to working precision. `bicgstab` can detect this only with complete LU factors.
    NotSolvedWarning
        The solution x is not finite.

    Examples
    --------
    >>> import mxpeak as mx, numpy as np, scipy.sparse
    >>> A = scipy.sparse.diags_array([-1.0, 4.0, -2.0], offsets=[-1, 0, 1], shape=(64, 64), format="csr")
    >>> x, info = mx.bicgstab(A, A @ np.ones(64))
    >>> info.converged, bool(np.allclose(x, 1.0))
    (True, True)
    """

    options = partial(GmresOptions, precision, rtol, atol, None, maxiter, threads=threads, callback=callback)
    return warned(*_solved("bicgstab", options, (M, preconditioner), (A, b, x0), device, comm))


def _solved(
    method: str,
    options: Callable[..., GmresOptions],
    preconditioners: tuple[Any, Any],
    system: tuple[Any, Any, Any],
    device: str,
    comm: Any,
) -> tuple[Any, KrylovInfo]:
    """Return x and the diagnostics of a short recurrence. Collective.

    `preconditioners` are the arguments M and preconditioner, and `system` is A, b and x0.
    """

    def checked() -> GmresOptions:
        return checked_options(options(preconditioner=preconditioner_of(*preconditioners), method=method))

    x, info = solve_any(*system, checked, device, comm)
    assert isinstance(info, KrylovInfo)
    return x, info
