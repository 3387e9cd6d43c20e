"""`solve` and `lu_factor`: validate the input, select the engine, and build the result."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from mxpeak.comm.collectives import validate_on_all
from mxpeak.errors import UsageError
from mxpeak.kernels import choose
from mxpeak.kernels.contract import DenseKernels, Matrix
from mxpeak.library.dense.distributed import DistributedMatrix
from mxpeak.library.dense.distributed_cholesky import DistributedCholeskyFactors, cho_factored, solve_by_structure
from mxpeak.library.dense.distributed_solving import DistributedFactors, factored
from mxpeak.library.dense.factors import DECAYED, EmptyFactors, LUFactors, backend_of, factors_of, low_precision_factors
from mxpeak.library.dense.gradients import DenseSystem, solve_differentiably
from mxpeak.library.dense.info import SolveInfo
from mxpeak.library.dense.inputs import block, check_blocks, check_rows, columns, form_of, lies_well, matrix
from mxpeak.library.dense.lapack_solver import LETTERS, info_of, solve_by_lapack
from mxpeak.library.dense.small_lu import kernel_for, solve_by_small_lu, suits_small_lu
from mxpeak.library.dense.stack import solve_stack, stack_of
from mxpeak.library.dense.symmetric import (
    CholeskyFactors,
    EmptyCholesky,
    SymmetricKind,
    cholesky_or_lu,
    detected,
    factors_of_triangle,
    mirrored,
    solve_plain,
    solve_structured,
    structure_of,
)
from mxpeak.library.gradients import is_differentiated
from mxpeak.library.inputs import Input, conjugate, device_for, read
from mxpeak.library.outcomes import NotPositiveDefiniteError, warned
from mxpeak.library.policy import check_precision, choose_precision, emulates_fp64, own_precision_is_fastest
from mxpeak.library.types import with_precision_of, working_type
from mxpeak.spans import Spans


def solve(
    A: Any,
    b: Any,
    *,
    transposed: bool | str = False,
    precision: str = "auto",
    device: str = "auto",
    local: bool = False,
    assume_a: str = "gen",
    lower: bool = False,
    fp64: str = "native",
) -> tuple[Any, SolveInfo]:
    """Solve A x = b to the accuracy of the input's data type.

    `solve` factors A in the fastest precision that allows this accuracy, and then refines x. If low-precision factors
    fail, `solve` factors A again in fp64.

    Parameters
    ----------
    A : array_like, tensor or DistributedMatrix
        Square matrix of shape (n, n) in any memory order, or a stack of matrices of shape (..., n, n). `solve` does not
        modify A. Arrays of JAX and CuPy are also allowed.
    b : array_like, tensor or callable
        Right-hand side of shape (n,), or k right-hand sides as an array of shape (n, k) or (..., n, k). If A is a
        stack, use the shape (n,) or (..., n, k). If A is a DistributedMatrix, b can also be a function of the row
        indices.
    transposed : bool or {"N", "T", "H"}, default False
        Use True or "T" to solve A^T x = b, or "H" to solve A^H x = b.
    precision : {"auto", "fp64", "fp32", "tf32", "bf16", "fp16", "fp8"}, default "auto"
        Precision of the factors.
    device : str, default "auto"
        Use "auto" to solve on the device of the tensors (the CPU for other arrays), or specify a device such as "cpu",
        "cuda" or "cuda:0". With "mps", a GPU without fp64 computes LU factors and residuals of real matrices. To get x
        in fp64, pass a b in fp64 in host memory.
    local : bool, default False
        If True, b and x contain only the rows of this rank. This option requires a DistributedMatrix.
    assume_a : {"gen", "pos", "sym", "her", "auto"}, default "gen"
        Structure of A, as in `scipy.linalg.solve`. The default uses an LU factorization. With "pos", `solve` uses the
        Cholesky factorization of a symmetric or Hermitian positive definite matrix. With "sym" or "her", it uses an
        LDL^T or LDL^H factorization. With "auto", `solve` tests whether A is Hermitian with a positive diagonal. If so,
        it tries the Cholesky factorization first, and uses LU if A is not positive definite. For a stack,
        "auto" uses LU. For a DistributedMatrix, "sym" and "her" use LU of the whole matrix if LDL^T factors fail.
    lower : bool, default False
        Triangle of A that "pos", "sym" and "her" read: the lower one if True, otherwise the upper one. The values in
        the other triangle are not used. A DistributedMatrix that stores its entries must have finite values there.
    fp64 : {"native", "emulated", "auto"}, default "native"
        Arithmetic of the matrix products in fp64 LU factors. With "emulated", mxpeak computes them from products of
        integers (Ozaki scheme), which is faster on devices with slow fp64, and the factors are in fp64. With "auto", it
        does so on such devices for factors in fp64. Complex matrices, stacks, distributed matrices, factorizations
        other than LU and other precisions require "native" or "auto".

    Returns
    -------
    x : ndarray or tensor
        Solution in the common data type of A and b, as an array of the library of b. With torch and JAX, x is
        differentiable with respect to A and b.
    info : SolveInfo
        Diagnostics of the solve: outcome, backward errors, precision, iterations, condition number and times. In
        `jax.jit` and `jax.vmap`, info is None.

    Raises
    ------
    UsageError
        An argument is invalid, for example because A is not square, not finite or not numeric. This exception is also a
        ValueError.
    SingularMatrixError
        A pivot is exactly zero. This exception is also a numpy.linalg.LinAlgError.
    NotPositiveDefiniteError
        `assume_a` is "pos", but a leading minor of A is not positive. This exception is also a
        numpy.linalg.LinAlgError.
    ResourceError
        The device does not exist, or a GPU or the ranks of a DistributedMatrix have too little memory.
    MemoryError
        This process has too little memory on the host.

    Warns
    -----
    IllConditionedWarning
        The solution x may have no correct digits, for example because A is singular to working precision.
    NotSolvedWarning
        The solution x is not finite, or it is less accurate than the result of a plain LU factorization.

    Examples
    --------
    >>> import mxpeak as mx
    >>> x, info = mx.solve([[2.0, 0.0], [0.0, 4.0]], [2.0, 4.0])
    >>> x, info.solved
    (array([1., 1.]), True)
    """
    if isinstance(A, DistributedMatrix):
        form, structure = validate_on_all(A.comm, partial(_checked, A, transposed, assume_a, lower=lower, fp64=fp64))
        return warned(*solve_by_structure(A, b, structure, precision, device, form=form, local=local))
    form, structure = _checked(A, transposed, assume_a, lower=lower, fp64=fp64)
    precision = _precision_for(fp64, precision)
    if fp64 == "native" and form != "H" and precision == device == "auto" and not local:
        if structure == "gen" and _is_plain(A, b):
            return warned(*_solve_in_own_precision(A if form == "N" else A.T, b))
        if structure != "gen" and form == "N" and (result := solve_plain(A, b, structure)):
            return warned(*result)
    if local:
        raise UsageError(
            "local=True applies only to a DistributedMatrix, whose rows are distributed over the ranks; "
            "remove local, or use mxpeak.DistributedMatrix.from_rows(A)"
        )
    if is_differentiated(A, b):
        solve_again = partial(solve, precision=precision, device=device, assume_a=assume_a, lower=lower, fp64=fp64)
        factor = _factor_for(structure, precision, device, fp64)
        return solve_differentiably(A, b, form, DenseSystem(solve_again, factor), structure)
    solve_single = partial(_solve_by_structure, structure, precision)
    if stack := stack_of(A):
        together = not isinstance(structure, SymmetricKind)
        if isinstance(structure, SymmetricKind):
            stack = mirrored(stack, structure)
        solve_all = partial(
            solve_stack,
            device=device,
            precision=precision,
            solve_single=partial(solve_single, "N", choose.dense(None)),
            together=together,
        )
        return warned(*_conjugated(form, stack, read(b, "b"), solve_all))
    of_A, of_b = matrix(A), read(b, "b")
    kernels = kernels_for(device, of_A, of_b, fp64=fp64, structure=structure)
    if len(of_b.shape) > 2:
        return warned(*_solve_blocks(partial(solve_single, form), kernels, of_A, of_b))
    check_rows(of_b, of_A.shape[0])
    return warned(*solve_single(form, kernels, of_A, of_b))


def _checked(A: Any, transposed: Any, assume_a: Any, *, lower: Any, fp64: Any) -> tuple[str, SymmetricKind | str]:
    """Return the form of the system and the structure of A; raise a UsageError for invalid arguments of `solve`."""
    form = "N" if transposed is False else form_of(transposed)
    structure = "gen" if assume_a == "gen" else structure_of(assume_a, lower=lower)
    if fp64 != "native":
        check_fp64(fp64, A, structure)
    return form, structure


def _solve_blocks(
    solve_single: Callable[[DenseKernels, Input, Input], tuple[Any, SolveInfo]],
    kernels: DenseKernels,
    A: Input,
    b: Input,
) -> tuple[Any, SolveInfo]:
    """Solve for the blocks (n, k) of a stack b (..., n, k) with one matrix as for n x (... k) right-hand sides."""
    xp, n = kernels.xp, A.shape[0]
    check_blocks(b.shape, n)
    rows = xp.moveaxis(b.on(kernels.device), -2, 0)
    shape = n, prod((*b.shape[:-2], b.shape[-1]))
    x, info = solve_single(kernels, A, replace(b, array=xp.reshape(rows, shape), shape=shape, framework=None))
    return b.result(xp.moveaxis(xp.reshape(x, tuple(rows.shape)), 0, -2)), info


def _factor_for(structure: SymmetricKind | str, precision: str, device: str, fp64: str) -> Callable[[Any], Any] | None:
    """Return the function whose factors the gradient of a solve uses again, or None to solve again."""
    if isinstance(structure, SymmetricKind):
        lower = structure.lower
        return partial(cho_factor, lower=lower, precision=precision, device=device) if structure.definite else None
    return partial(lu_factor, precision=precision, device=device, fp64=fp64) if structure == "gen" else None


def _solve_by_structure(
    structure: SymmetricKind | str, precision: str, form: str, kernels: DenseKernels, A: Input, b: Input
) -> tuple[Any, SolveInfo]:
    """Solve A x = b, A^T x = b or A^H x = b by the factorization that suits the structure of A."""
    if isinstance(structure, SymmetricKind):
        return solve_structured(kernels, A, b, precision, structure, form)
    by_lu = partial(_conjugated, form, A, b, partial(solve_by, kernels, precision=precision))
    if structure == "auto" and has_fp64(kernels) and (detected_structure := detected(kernels, A)):
        return cholesky_or_lu(partial(solve_structured, kernels, A, b, precision, detected_structure, form), by_lu)
    return by_lu()


def _conjugated(
    form: str, A: Input, b: Input, solve_with: Callable[[Input, Input], tuple[Any, SolveInfo]]
) -> tuple[Any, SolveInfo]:
    """Solve A x = b, A^T x = b or A^H x = b by calling `solve_with`. A^H x = b becomes A^T conj(x) = conj(b)."""
    conj = form == "H" and A.dtype.kind == "c"
    if form != "N":
        A = replace(A, array=A.array.swapaxes(-1, -2))
    if conj:
        b = replace(b, array=conjugate(b.array))
    x, info = solve_with(A, b)
    return conjugate(x) if conj else x, info


def lu_factor(
    A: Any, *, precision: str = "auto", device: str = "auto", fp64: str = "native"
) -> LUFactors | DistributedFactors:
    """Factor A once, so that you can solve for many right-hand sides.

    Parameters
    ----------
    A : array_like, tensor or DistributedMatrix
        Square matrix to factor. Do not change A while you use the factors, because they refer to A.
    precision : {"auto", "fp64", "fp32", "tf32", "bf16", "fp16", "fp8"}, default "auto"
        Precision of the factors.
    device : str, default "auto"
        Use "auto" to factor on the device of a tensor (the CPU for other arrays), or specify a device such as "cpu",
        "cuda" or "cuda:0".
    fp64 : {"native", "emulated", "auto"}, default "native"
        Arithmetic of the matrix products in fp64 factors, as in `solve`.

    Returns
    -------
    LUFactors or DistributedFactors
        LU factors with the method `solve(b, transposed=False)` and the attribute `condition`.

    Raises
    ------
    UsageError
        An argument is invalid, for example because A is not square, not finite or not numeric.
    SingularMatrixError
        A pivot is exactly zero.
    ResourceError
        The device does not exist, or a GPU or the ranks of a DistributedMatrix have too little memory.
    MemoryError
        This process has too little memory on the host.

    Examples
    --------
    >>> import mxpeak as mx
    >>> F = mx.lu_factor([[2.0, 0.0], [0.0, 4.0]])
    >>> x, info = F.solve([2.0, 4.0])
    >>> x
    array([1., 1.])
    """
    if isinstance(A, DistributedMatrix):
        validate_on_all(A.comm, partial(check_fp64, fp64, A))
        return factored(A, precision, device)
    check_fp64(fp64, A)
    precision = _precision_for(fp64, precision)
    _check_constant(A, "lu_factor")
    of_A = matrix(A)
    return lu_factor_by(kernels_for(device, of_A, fp64=fp64, structure="gen"), of_A, precision)


def cho_factor(
    A: Any, *, lower: bool = False, precision: str = "auto", device: str = "auto"
) -> CholeskyFactors | DistributedCholeskyFactors:
    """Factor a symmetric or Hermitian positive definite matrix once, so that you can solve for many right-hand sides.

    Parameters
    ----------
    A : array_like, tensor or DistributedMatrix
        Positive definite matrix to factor. Do not change A while you use the factor, because it refers to A.
    lower : bool, default False
        Triangle of A to read: the lower one if True, otherwise the upper one. The values in the other triangle are not
        used. A DistributedMatrix that stores its entries must have finite values there.
    precision : {"auto", "fp64", "fp32", "tf32", "bf16", "fp16", "fp8"}, default "auto"
        Precision of the factor. The diagonal is increased slightly for formats with fewer digits than fp32, because
        rounding could otherwise make the matrix indefinite.
    device : str, default "auto"
        Use "auto" to factor on the device of a tensor (the CPU for other arrays), or specify a device such as "cpu",
        "cuda" or "cuda:0".

    Returns
    -------
    CholeskyFactors or DistributedCholeskyFactors
        Cholesky factor with the method `solve(b, transposed=False)` and the attribute `condition`.

    Raises
    ------
    UsageError
        An argument is invalid, for example because A is not square, not finite or not numeric.
    NotPositiveDefiniteError
        A leading minor of A is not positive. The message contains its order. This exception is also a
        numpy.linalg.LinAlgError.
    ResourceError
        The device does not exist, or a GPU or the ranks of a DistributedMatrix have too little memory.
    MemoryError
        This process has too little memory on the host.

    Examples
    --------
    >>> import mxpeak as mx
    >>> F = mx.cho_factor([[4.0, 2.0], [0.0, 5.0]])  # the zero is not read
    >>> x, info = F.solve([6.0, 7.0])
    >>> x, info.factorization
    (array([1., 1.]), 'Cholesky')
    """
    checked = partial(structure_of, "pos", lower=lower)
    structure = validate_on_all(A.comm, checked) if isinstance(A, DistributedMatrix) else checked()
    assert isinstance(structure, SymmetricKind)
    if isinstance(A, DistributedMatrix):
        return cho_factored(A, structure, precision, device)
    _check_constant(A, "cho_factor")
    of_A = matrix(A)
    kernels = kernels_for(device, of_A)
    factors = _triangle_factors(kernels, of_A, precision, structure)
    assert isinstance(factors, CholeskyFactors)
    return factors


def _check_constant(A: Any, name: str) -> None:
    """Raise a UsageError for a matrix in a computation that torch or JAX differentiates, compiles or vectorizes."""
    if is_differentiated(A):
        raise UsageError(
            f"torch or JAX differentiates or transforms a computation with A, but the factors of {name} have no "
            "gradients; use mxpeak.Solver(A), which keeps factors and has gradients, or a constant such as A.detach()"
        )


def factor_by_structure(kernels: DenseKernels, A: Input, precision: str, structure: SymmetricKind | str) -> LUFactors:
    """Factor the validated matrix A by the factorization that suits its structure."""
    if structure == "auto" and has_fp64(kernels) and (detected_structure := detected(kernels, A)):
        try:
            return _triangle_factors(kernels, A, precision, detected_structure)
        except NotPositiveDefiniteError:
            structure = "gen"
    if isinstance(structure, SymmetricKind):
        return _triangle_factors(kernels, A, precision, structure)
    return lu_factor_by(kernels, A, precision)


def _triangle_factors(kernels: DenseKernels, A: Input, precision: str, structure: SymmetricKind) -> LUFactors:
    """Factor one triangle of A for one right-hand side."""
    dtype, spans = working_type(A.dtype), Spans(stopwatch=kernels.stopwatch)
    if not A.shape[0]:
        empty = EmptyCholesky if structure.definite else EmptyFactors
        return empty(A, precision, dtype, kernels, structure.name)
    return factors_of_triangle(kernels, A, precision, dtype, 1, spans, structure)


def lu_factor_by(kernels: DenseKernels, A: Input, precision: str) -> LUFactors:
    """Factor the validated matrix A with these kernels. `lu_factor` calls this function."""
    dtype = working_type(A.dtype)
    if not A.shape[0]:
        return EmptyFactors(A, precision, dtype, kernels)
    return factors_of(kernels, A, precision, dtype, 1, Spans(stopwatch=kernels.stopwatch), decayed=False)


def check_fp64(fp64: Any, A: Any, structure: SymmetricKind | str = "gen") -> None:
    """Raise a UsageError if `fp64` is not the name of an arithmetic, or if A is not one real matrix for an LU."""
    if fp64 not in ("native", "emulated", "auto"):
        raise UsageError(f"unknown fp64 {fp64!r}; use one of native, emulated, auto")
    if fp64 != "emulated":
        return
    if structure != "gen":
        raise UsageError('fp64="emulated" supports only LU; use assume_a="gen", or fp64="native"')
    if isinstance(A, DistributedMatrix):
        raise UsageError('fp64="emulated" does not support a DistributedMatrix; use fp64="native"')
    dtype, shape = (of := read(A, "A")).dtype, of.shape
    if len(shape) > 2:
        raise UsageError(f'fp64="emulated" supports one matrix, not a stack of shape {shape}; use fp64="native"')
    if dtype.kind == "c":
        raise UsageError(f'fp64="emulated" supports only real matrices, not {dtype}; use fp64="native"')


def _precision_for(fp64: str, precision: str) -> str:
    """Return the precision of the factors for this arithmetic; raise a UsageError if they conflict."""
    if fp64 != "emulated":
        return precision
    check_precision(precision)
    if precision not in ("auto", "fp64"):
        raise UsageError(
            f'fp64="emulated" applies to factors in fp64, not in {precision}; use precision="fp64" or fp64="native"'
        )
    return "fp64"


def _is_plain(A: Any, b: Any) -> bool:
    """Return whether A and b are NumPy arrays of one type and small order, which can be solved without conversion."""
    if not (type(A) is np.ndarray is type(b) and A.ndim == 2 and 1 <= b.ndim <= 2 and A.dtype == b.dtype):
        return False
    n = len(A)
    if not 0 < n == A.shape[1] == len(b) or A.dtype not in LETTERS:
        return False
    return own_precision_is_fastest(n, b.size // n, A.dtype)


def kernels_for(
    device: str, *inputs: Input, fp64: str = "native", structure: SymmetricKind | str | None = None
) -> DenseKernels:
    """Return the kernels for `device`: the host, the named GPU or, with "auto", the device that stores the inputs.

    `structure` is that of A if A is factored. A device without fp64 then computes the LU of a real matrix.
    """
    where = device_for(device, *(values.device for values in inputs), without_fp64=structure in ("gen", "auto"))
    kernels = choose.dense(where, emulated=emulates_fp64(fp64, where))
    if not has_fp64(kernels):
        if fp64 == "emulated":
            raise UsageError(f'fp64="emulated" does not support {where.without_fp64}; use fp64="native"')
        if "c" in (values.dtype.kind for values in inputs):
            raise UsageError(f'{where.without_fp64} supports only real systems; use device="cpu"')
    return kernels


def has_fp64(kernels: DenseKernels) -> bool:
    """Return whether all devices of the kernels compute in fp64."""
    return kernels.device is None or kernels.device.without_fp64 is None


def solve_by(kernels: DenseKernels, A: Input, b: Input, precision: str) -> tuple[Any, SolveInfo]:
    """Solve A x = b for validated inputs with these kernels, and return x and the diagnostics, without warnings."""
    of_A, of_b = working_type(A.dtype), working_type(b.dtype)
    dtype = with_precision_of(of_A, np.result_type(of_A, of_b))
    n, rhs = A.shape[0], columns(b)
    if not n:
        return EmptyFactors(A, precision, dtype, kernels).solve_empty(b)
    on_host = precision == "auto" and kernels.device is None and of_A.kind == of_b.kind
    on_host = on_host and kernels.fp64_emulation() is None
    if on_host and own_precision_is_fastest(n, rhs, dtype):
        x, info = _solve_in_own_precision(A.on(None, dtype), b.on(None, dtype))
        return b.result(x), info
    spans = Spans(stopwatch=kernels.stopwatch)
    B = block(b, dtype, kernels)
    rhs = B.shape[1]
    if on_host and own_precision_is_fastest(n, rhs, dtype, "fp64"):
        factors = low_precision_factors(kernels, A, precision, dtype, rhs, spans)
        if factors is None:
            x, info = _solve_in_own_precision(A.on(None, dtype), b.on(None, dtype), spans)
            return b.result(x), info
    else:
        factors = factors_of(kernels, A, precision, dtype, rhs, spans, decayed=False)
    return factors.solve_block(B, b)


def _solve_in_own_precision(A: Matrix, b: Matrix, decay_spans: Spans | None = None) -> tuple[Any, SolveInfo]:
    """Solve in the type of A and b with the small LU or with LAPACK. Refine x only if a check fails.

    `decay_spans` contains the time of an abandoned factorization in fp32, whose decaying pivots showed that the
    factors would be useless. It is None if no such factorization was attempted.
    """
    by_small_lu, n = suits_small_lu(A, b), len(A)
    if by_small_lu:
        kernel_for(A.dtype)  # compile the kernel, or read it from disk, before the time measurement starts
    begin = time.perf_counter()
    solution = solve_by_small_lu(A, b) if by_small_lu else solve_by_lapack(A, b)
    time_s = time.perf_counter() - begin
    why = DECAYED if decay_spans else choose_precision(n, A.dtype, "auto", b.size // n).reason
    if solution is not None and solution.enough:
        times = {**(decay_spans.times if decay_spans else {}), "solve": time_s}
        return solution.X, info_of(solution, A, b, times, why)
    kernels, of_b = choose.dense(None), Input("b", b, b.dtype, b.shape, "cpu")
    B = block(of_b, A.dtype, kernels)
    spans = decay_spans or Spans(stopwatch=kernels.stopwatch)
    spans.add("solve", time_s)
    if solution is not None:
        backend, A = backend_of(kernels, A.dtype), A if lies_well(A) else np.array(A)
        factors = LUFactors(backend, A, solution.factors(kernels, A), spans, "auto", why=why)
    else:
        of_A = Input("A", A, A.dtype, A.shape, "cpu")
        factors = factors_of(kernels, of_A, "auto", A.dtype, B.shape[1], spans, decayed=bool(decay_spans))
    return factors.solve_block(B, of_b)
