"""What a user hands in: numbers of a type and a shape that can be solved with, or a clear refusal."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from mxpeak.errors import UsageError
from mxpeak.kernels.host import lapack
from mxpeak.library.dense.arrays import Array, Arrays, type_of
from mxpeak.library.inputs import as_array, is_tensor


def matrix(values: Any) -> Any:
    """A as an array or a tensor, as it lies; square and not empty."""
    A = _numbers(values, "A")
    shape = tuple(A.shape)
    if len(shape) != 2 or shape[0] != shape[1]:
        raise UsageError(f"A has shape {shape}; solve takes square matrices (for least squares: numpy.linalg.lstsq)")
    if prod(shape) == 0:
        raise UsageError("A is empty, of shape (0, 0): there is nothing to solve")
    return A


def right_hand_side(arrays: Arrays, values: Any) -> Any:
    """b, finite, as (n,) or (n, k), in the type of its own that is solved in."""
    b = _numbers(values, "b")
    if len(b.shape) not in (1, 2):
        raise UsageError(f"b has shape {tuple(b.shape)}; give one right-hand side as (n,), k of them as (n, k)")
    b = arrays.take(b, working_type(b))
    check_finite(arrays, b, "b")
    return b


def check_shapes(A: Any, b: Any) -> None:
    """Stop where A and b do not fit together."""
    n, shape = A.shape[0], tuple(b.shape)
    if shape[0] != n:
        raise UsageError(f"A is {n}x{n}, but b has shape {shape}: it needs {n} rows")
    if prod(shape) == 0:
        raise UsageError(f"b is empty, of shape {shape}: there is nothing to solve")


def _numbers(values: Any, name: str) -> Any:
    """An array or a tensor of numbers that can be solved with, not copied."""
    if is_tensor(values):
        from mxpeak.kernels.torch.solve import numbers_of

        numbers = numbers_of(values, name)
    else:
        numbers = as_array(
            values, name, sparse="scipy.sparse.linalg.spsolve", masked="which no system can be solved with"
        )
    if working_type(numbers) not in lapack.LETTERS:
        raise UsageError(
            f"{name} has dtype {numbers.dtype}; solve takes float16 to float64, bfloat16, complex64, complex128 and "
            f"integers; convert it, for example {name}.{'double()' if is_tensor(values) else 'astype(float)'}"
        )
    return numbers


def working_type(numbers: Any) -> np.dtype[Any]:
    """The type in which these are solved with: their own, fp64 for integers, fp32 for 16-bit numbers."""
    dtype = type_of(numbers)
    if dtype.kind in "biu":
        return np.dtype(np.float64)
    if dtype.name in ("float16", "bfloat16"):
        return np.dtype(np.float32)
    return dtype.newbyteorder("=")


def check_finite(arrays: Arrays, numbers: Any, name: str) -> None:
    """Stop at NaN and Inf, and say where the first is."""
    found = arrays.not_finite(numbers)
    if found is None:
        return
    index, count = found
    where, size = ", ".join(map(str, index)), prod(tuple(numbers.shape))
    raise UsageError(f"{name}[{where}] is {numbers[index].item()}: {count} of {size} entries of {name} are not finite")


def columns(b: Any) -> int:
    """How many right-hand sides b holds."""
    return 1 if len(b.shape) == 1 else int(b.shape[1])


def only_b_is_complex(A: Array, b: Array) -> bool:
    """Whether b must be solved for in two real parts."""
    return type_of(b).kind == "c" and type_of(A).kind != "c"
