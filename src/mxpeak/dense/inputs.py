"""What a user hands in, as LAPACK can take it: checked, and copied only where it must be."""

from __future__ import annotations

from typing import Any

import numpy as np

from mxpeak.errors import UsageError
from mxpeak.inputs import as_array
from mxpeak.kernels.host import lapack

Array = np.ndarray[Any, np.dtype[Any]]


def matrix(values: Any) -> Array:
    """A as it lies, if BLAS can take it so, else a copy; square and not empty."""
    A = _numbers(values, "A")
    if A.ndim != 2 or A.shape[0] != A.shape[1]:
        raise UsageError(f"A has shape {A.shape}; solve takes square matrices (for least squares: numpy.linalg.lstsq)")
    if A.size == 0:
        raise UsageError("A is empty, of shape (0, 0): there is nothing to solve")
    # Rows or columns must be contiguous and go upwards, as BLAS needs them; anything else is copied.
    return A if by_rows(A) or by_rows(A.T) else np.ascontiguousarray(A)


def right_hand_side(values: Any) -> Array:
    """b, finite, as (n,) or (n, k)."""
    b = _numbers(values, "b")
    if b.ndim not in (1, 2):
        raise UsageError(f"b has shape {b.shape}; give one right-hand side as (n,), k of them as (n, k)")
    check_finite(b, "b")
    return b


def check_shapes(A: Array, b: Array) -> None:
    """Stop where A and b do not fit together."""
    if b.shape[0] != A.shape[0]:
        raise UsageError(f"A is {A.shape[0]}x{A.shape[1]}, but b has shape {b.shape}: it needs {A.shape[0]} rows")
    if b.size == 0:
        raise UsageError(f"b is empty, of shape {b.shape}: there is nothing to solve")


def _numbers(values: Any, name: str) -> Array:
    """An array of one of the four types that LAPACK knows; copied only where the type changes."""
    array = as_array(values, name, sparse="scipy.sparse.linalg.spsolve", masked="which no system can be solved with")
    if array.dtype.kind in "biu":
        return array.astype(np.float64)
    if array.dtype.name in ("float16", "bfloat16"):
        return array.astype(np.float32)
    native = array.dtype.newbyteorder("=")
    if native not in lapack.LETTERS:
        raise UsageError(
            f"{name} has dtype {array.dtype}; solve takes float16 to float64, bfloat16, complex64, complex128 and "
            f"integers; convert it, for example {name}.astype(float)"
        )
    return np.asarray(np.require(array, native, "A"))


def check_finite(array: Array, name: str) -> None:
    """Stop at NaN and Inf, and say where the first is."""
    finite = np.isfinite(array)
    if finite.all():
        return
    index = tuple(int(i) for i in np.unravel_index(int(np.argmin(finite)), array.shape))
    where = ", ".join(map(str, index))
    raise UsageError(f"{name}[{where}] is {array[index]}: {array.size - int(finite.sum())} of {array.size} entries of "
                     f"{name} are not finite")  # fmt: skip


def by_rows(A: Array) -> bool:
    """Whether BLAS can take A as it lies: contiguous rows, one after the other with or without a gap."""
    down, across = A.strides
    n = A.shape[1]
    return n == 1 or (across == A.itemsize and down >= n * A.itemsize and down % A.itemsize == 0)


def columns(b: Array) -> int:
    """How many right-hand sides b holds."""
    return 1 if b.ndim == 1 else b.shape[1]


def only_b_is_complex(A: Array, b: Array) -> bool:
    """Whether b must be solved for in two real parts."""
    return b.dtype.kind == "c" and A.dtype.kind != "c"


def block(b: Array, dtype: np.dtype[Any]) -> Array:
    """b as a column-major block of A's type; for a real A, real and imaginary parts are columns of their own."""
    columns = b.reshape(b.shape[0], -1)
    if columns.dtype.kind == "c" and dtype.kind != "c":
        columns = np.concatenate([columns.real, columns.imag], axis=1)
    return np.asarray(columns, dtype=dtype, order="F")


def with_precision_of(dtype: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any]:
    """dtype's field, real or complex, in the other's precision."""
    return typed(dtype.kind == "c", wide=roundoff(other) < 2.0**-24)


def typed(is_complex: bool, *, wide: bool) -> np.dtype[Any]:
    """The type of this field, of 64-bit parts if wide, else of 32-bit ones."""
    if is_complex:
        return np.dtype(np.complex128 if wide else np.complex64)
    return np.dtype(np.float64 if wide else np.float32)


def roundoff(dtype: np.dtype[Any]) -> float:
    """Unit roundoff of a type."""
    return float(np.finfo(dtype).eps) / 2
