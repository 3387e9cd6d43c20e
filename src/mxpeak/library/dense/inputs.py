"""Validate the input of `solve`: A is square, b has as many rows as A, and both are finite."""

from __future__ import annotations

from typing import Any

import numpy as np

from mxpeak.errors import UsageError
from mxpeak.kernels.contract import DenseKernels, Matrix
from mxpeak.kernels.contract.dense import Block
from mxpeak.library.inputs import Input, check_finite, read
from mxpeak.library.types import roundoff, working_type
from mxpeak.solvers.array_factors import by_rows

#: The values that `transposed` accepts in addition to booleans.
FORMS = ("N", "T", "H")


def form_of(transposed: Any) -> str:
    """Return "N" for A x = b, "T" for A^T x = b or "H" for A^H x = b; raise a UsageError for other values."""
    if transposed is False:
        return "N"
    if isinstance(transposed, bool | np.bool_):
        return "T" if transposed else "N"
    if isinstance(transposed, str) and transposed in FORMS:
        return transposed
    raise UsageError(
        f'transposed = {transposed!r} is unknown; use False or "N" for A x = b, True or "T" for A^T x = b, '
        'or "H" for A^H x = b'
    )


def matrix(values: Any) -> Input:
    """Wrap A as an `Input`; raise a UsageError if A is a stack or not square."""
    A = read(values, "A", instead="mxpeak.gmres(A, b)")
    if len(A.shape) > 2 and A.shape[-1] == A.shape[-2]:
        raise UsageError(
            f"A is a stack of matrices of shape {A.shape}, but only mxpeak.solve supports stacks; use "
            "mxpeak.solve(A, b), or pass each matrix individually"
        )
    if len(A.shape) != 2 or A.shape[0] != A.shape[1]:
        raise UsageError(f"A has shape {A.shape}, but solve needs a square matrix; use mxpeak.lstsq for least squares")
    return A


def right_hand_side(values: Any, n: int, columns: int | None = None) -> Input:
    """Wrap b as an `Input`; raise a UsageError if its shape is not (n,) or (n, k).

    A has n rows and as many columns, unless `columns` is given.
    """
    b = read(values, "b")
    check_rows(b, n, columns)
    return b


def check_rows(b: Input, n: int, columns: int | None = None) -> None:
    """Raise a UsageError if the shape of b is not (n,) or (n, k)."""
    if len(b.shape) not in (1, 2):
        raise UsageError(
            f"b has shape {b.shape}; use shape (n,) for one right-hand side, or (n, k) for k right-hand sides"
        )
    if b.shape[0] != n:
        shape = f"{n}x{n if columns is None else columns}"
        raise UsageError(f"A is {shape}, but b has shape {b.shape}; use a b with {n} rows")


def check_blocks(shape: tuple[int, ...], n: int) -> None:
    """Raise a UsageError if the shape of a stack of right-hand sides is not (..., n, k)."""
    if shape[-2] != n:
        raise UsageError(f"A is {n}x{n}, but b has shape {shape}; use shape (..., {n}, k)")


def on_kernels(A: Input, dtype: np.dtype[Any], precision: str, kernels: DenseKernels) -> Matrix:
    """Convert A to `dtype` on the device of the kernels, after a check that a copy and the factors fit into memory."""
    copied = A.device != ("cpu" if kernels.device is None else str(kernels.device.where))
    copied = copied or A.dtype != dtype or not lies_well(A.array)
    kernels.check_memory(A.shape[0], dtype, precision, copied=copied)
    M = A.on(kernels.device, dtype)
    return M if lies_well(M) else kernels.xp.asarray(M, copy=True)


def block(b: Input, of_A: np.dtype[Any], kernels: DenseKernels) -> Block:
    """Copy b to a matrix in the type of A on the device of the kernels; raise a UsageError if b is not finite.

    If A is real and b is complex, the imaginary parts of b become additional columns.
    """
    xp = kernels.xp
    if b.device is not None and b.device.startswith("mps") and roundoff(of_A) < 2.0**-24:
        raise UsageError(f"x is in fp64, but b is on {b.device}, which has no fp64; use b.cpu()")
    B = b.on(kernels.device, working_type(b.dtype))
    check_finite(B, "b", xp)
    columns = xp.reshape(B, (b.shape[0], -1))
    if of_A.kind != "c" and b.dtype.kind == "c":
        columns = xp.concat([xp.real(columns), xp.imag(columns)], axis=1)
    return xp.asarray(columns, dtype=getattr(xp, of_A.name), copy=True)


def lies_well(A: Any) -> bool:
    """Return whether matrix products can read A without copying it."""
    return by_rows(A) or by_rows(A.T)


def columns(b: Input) -> int:
    """Return the number of right-hand sides in b."""
    return 1 if len(b.shape) == 1 else b.shape[1]
