"""`refine`: refine a solution of a dense system from any solver, with any factors."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from mxpeak.errors import UsageError
from mxpeak.kernels.contract import DenseKernels
from mxpeak.kernels.contract.dense import Block, PivotedLU
from mxpeak.library.dense.distributed import DistributedMatrix
from mxpeak.library.dense.distributed_solving import DistributedFactors
from mxpeak.library.dense.factors import EmptyFactors, LUFactors, backend_of, factors_of
from mxpeak.library.dense.info import SolveInfo
from mxpeak.library.dense.inputs import block, columns, matrix, on_kernels, right_hand_side
from mxpeak.library.dense.solving import kernels_for
from mxpeak.library.inputs import Input, check_finite, is_tensor, read
from mxpeak.library.outcomes import warned
from mxpeak.library.types import own_precision, with_precision_of, working_type
from mxpeak.solvers.array_factors import ArrayFactors, MatrixNorms, ScaledMatrix, lagged_factors
from mxpeak.solvers.condition import PROBED
from mxpeak.solvers.refine import MAX_STEPS
from mxpeak.solvers.scaling import safe_minimum, shifted
from mxpeak.spans import Spans


def refine(A: Any, b: Any, x: Any, F: Any = None) -> tuple[Any, SolveInfo]:
    """Refine a solution x of A x = b, from any solver, to the accuracy of the input's data type.

    `refine` corrects x until its normwise and row-wise backward errors are those of a stable solver. F may be coarse,
    and may belong to another matrix near A, because it is used as a preconditioner. If refinement with F does not
    converge, `refine` factors A as `solve` does and records the reason in `info.message`.

    Parameters
    ----------
    A : array_like or tensor
        Square matrix of shape (n, n).
    b : array_like or tensor
        Right-hand side of shape (n,), or k right-hand sides as an array of shape (n, k).
    x : array_like or tensor
        Solution to refine, with the shape of b. `refine` does not modify x.
    F : LUFactors, CholeskyFactors, tuple of (lu, piv), or None
        Factors of A or of a matrix near A: the result of `mxpeak.lu_factor`, `mxpeak.cho_factor` or
        `scipy.linalg.lu_factor`. If F is None, `refine` factors A as `solve` does.

    Returns
    -------
    x : ndarray or tensor
        Refined solution in the common data type of A and b. If b is a tensor, x is also a tensor.
    info : SolveInfo
        Diagnostics, as those of `solve`. `info.iterations` is 0 if x needs no refinement. `info.error_bound` bounds the
        forward error of x.

    Raises
    ------
    UsageError
        An argument is invalid, for example because x is not finite, or F has another order than A.
    SingularMatrixError
        `refine` had to factor A, and a pivot is exactly zero.

    Warns
    -----
    IllConditionedWarning
        The solution x may have no correct digits, for example because A is singular to working precision.
    NotSolvedWarning
        The solution x is not finite, or it is less accurate than the result of a plain LU factorization.

    Examples
    --------
    >>> import mxpeak as mx
    >>> x, info = mx.refine([[2.0, 0.0], [0.0, 4.0]], [2.0, 4.0], [0.9, 1.1])
    >>> x, info.iterations
    (array([1., 1.]), 1)
    """
    for name, values in (("A", A), ("F", F)):
        if isinstance(values, DistributedMatrix | DistributedFactors):
            raise UsageError(f"{name} is distributed, but refine needs an array; use mxpeak.lu_factor(A).solve(b)")
    of_A = matrix(A)
    of_b, of_x = right_hand_side(b, of_A.shape[0]), read(x, "x")
    if of_x.shape != of_b.shape:
        raise UsageError(f"b has shape {of_b.shape}, but x has shape {of_x.shape}; use an x with the shape of b")
    kernels = kernels_for("auto", of_A, of_b, of_x)
    dtype = with_precision_of(
        working_type(of_A.dtype), np.result_type(working_type(of_A.dtype), working_type(of_b.dtype))
    )
    if not of_A.shape[0]:
        return EmptyFactors(of_A, "auto", dtype, kernels).solve_empty(of_b)
    start = _start(of_x, of_b, dtype, kernels)
    B = block(of_b, dtype, kernels)
    given = None if F is None else _given(F, of_A, dtype, kernels)
    if given is not None and (result := given.block_if_close(B, of_b, start)) and _full_rank(given):
        return warned(*result)
    spans = Spans(stopwatch=kernels.stopwatch)
    factors = factors_of(kernels, of_A, "auto", dtype, columns(of_b), spans, decayed=False)
    if F is not None:
        factors._notes += ("F is not close enough to A, or too coarse; A was factored again",)
    return warned(*factors.solve_block(B, of_b, start))


def _start(x: Input, b: Input, of_A: np.dtype[Any], kernels: DenseKernels) -> Block:
    """Return x as a block that corresponds to the right-hand sides; raise a UsageError if x is not finite."""
    xp, is_complex = kernels.xp, "c" in (of_A.kind, b.dtype.kind)
    if x.dtype.kind == "c" and not is_complex:
        raise UsageError("x is complex, but A and b are real; use x.real")
    values = x.on(kernels.device, working_type(x.dtype))
    check_finite(values, "x", xp)
    X = xp.reshape(values, (x.shape[0], columns(x)))
    if of_A.kind != "c" and b.dtype.kind == "c":  # real and imaginary parts of b are separate right-hand sides
        imaginary = xp.imag(X) if x.dtype.kind == "c" else xp.zeros_like(X)
        X = xp.concat([xp.real(X), imaginary], axis=1)
    return xp.asarray(X, dtype=getattr(xp, of_A.name), copy=True)


def _given(F: Any, A: Input, dtype: np.dtype[Any], kernels: DenseKernels) -> LUFactors | None:
    """Return factors of A that use the user's factors F as a preconditioner, or None if they cannot be used.

    Raise a UsageError if F does not suit A.
    """
    n, exponent = A.shape[0], 0
    if isinstance(F, LUFactors):
        own, exponent = getattr(F, "_factors", None), getattr(F, "_exponent", 0)
    else:
        own = _from_lapack(F, kernels)
    if own is None or own.n != n:
        raise UsageError(f"A is {n}x{n}, but F has order {own.n if own else 0}; use factors of a matrix of order {n}")
    if (own.matrix.is_complex, own.kernels.device) != (dtype.kind == "c", kernels.device):
        place = "cpu" if own.kernels.device is None else own.kernels.device.where
        kind = "complex" if own.matrix.is_complex else "real"
        raise UsageError(
            f"F has {kind} factors on {place}, but A is {dtype} on {A.device or 'cpu'}; use mxpeak.lu_factor(A)"
        )
    if not own.may_lag:
        return None
    M, xp = on_kernels(A, dtype, "fp32", kernels), kernels.xp
    with kernels.computing():
        check_finite(M, "A", xp)
        M = shifted(xp, M, [exponent]) if exponent else M
        factors = lagged_factors(own, M, exact_norms=True)
    if not (safe_minimum(xp, M.dtype) < factors.A_inf < inf and factors.matrix.A_inf < inf):
        return None
    spans = Spans(stopwatch=kernels.stopwatch)
    return LUFactors(backend_of(kernels, dtype), M, factors, spans, own.precision, exponent=exponent, why="given")


def _full_rank(given: LUFactors) -> bool:
    """Return whether GMRES solves A z = s for a random s, which is not possible if A is singular.

    The factors of another matrix do not show whether A is singular, and neither does the residual if b suits A.
    """
    factors = given._factors
    return bool(factors.condition_by_gmres(MAX_STEPS) * factors.matrix.u <= PROBED)


def _from_lapack(F: Any, kernels: DenseKernels) -> ArrayFactors:
    """Return the factors (lu, piv) of `scipy.linalg.lu_factor`; raise a UsageError if F is not such a pair."""
    if not isinstance(F, tuple | list) or len(F) != 2:
        raise UsageError(
            f"F is {type(F).__name__}, which refine does not support; use the result of mxpeak.lu_factor or of "
            "scipy.linalg.lu_factor, or None"
        )
    if kernels.device is not None or any(map(is_tensor, F)):
        raise UsageError("F has tensors, or A is on a device, but (lu, piv) must be arrays; use mxpeak.lu_factor(A)")
    lu, piv = read(F[0], "lu"), read(F[1], "piv")
    n = lu.shape[0] if lu.shape else 0
    if lu.shape != (n, n) or piv.shape != (n,) or piv.dtype.kind not in "iu":
        raise UsageError(
            f"F has lu of shape {lu.shape} and piv of shape {piv.shape} and dtype {piv.dtype}; use shapes (n, n) and "
            "(n,), with integers in piv"
        )
    LU, pivots = np.asfortranarray(lu.on(None, working_type(lu.dtype))), piv.on(None, np.dtype(np.int32))
    check_finite(LU, "lu", np)
    k = np.arange(n)
    if ((pivots < k) | (pivots >= n)).any():
        raise UsageError(
            f"piv has an entry piv[k] outside k to n - 1 = {n - 1}; use the result of scipy.linalg.lu_factor"
        )
    if n and (abs(LU.diagonal()) == 0).any():
        raise UsageError("F has a zero on the diagonal of U, so it has no inverse; use F=None")
    norms = MatrixNorms(1.0, 1.0, 1.0)  # `lagged_factors` computes those of A
    matrix = ScaledMatrix(kernels, LU, False, None, 1.0, norms, None)
    return ArrayFactors(
        matrix, PivotedLU(LU, pivots + np.int32(1), transposed=True, singular=0), own_precision(LU.dtype)
    )
