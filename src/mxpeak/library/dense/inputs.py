"""Systems that can be solved: A square, b with as many rows, both finite, in a type that is solved in."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from mxpeak.errors import UsageError
from mxpeak.library.dense.arrays import Array, Arrays, type_of
from mxpeak.library.inputs import Input, read


def matrix(values: Any) -> Input:
    """A, square and not empty."""
    A = read(values, "A", instead="mxpeak.gmres(A, b)")
    if len(A.shape) != 2 or A.shape[0] != A.shape[1]:
        raise UsageError(f"A has shape {A.shape}; solve takes square matrices (for least squares: numpy.linalg.lstsq)")
    if prod(A.shape) == 0:
        raise UsageError("A is empty, of shape (0, 0): there is nothing to solve")
    return A


def right_hand_side(values: Any) -> Input:
    """b as (n,) or (n, k)."""
    b = read(values, "b")
    if len(b.shape) not in (1, 2):
        raise UsageError(f"b has shape {b.shape}; give one right-hand side as (n,), k of them as (n, k)")
    return b


def check_shapes(A: Any, b: Input) -> None:
    """Stop where A and b do not fit together."""
    n = A.shape[0]
    if b.shape[0] != n:
        raise UsageError(f"A is {n}x{n}, but b has shape {b.shape}: it needs {n} rows")
    if prod(b.shape) == 0:
        raise UsageError(f"b is empty, of shape {b.shape}: there is nothing to solve")


def working_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which numbers of a type are solved with: their own, fp64 for integers, fp32 for 16-bit numbers."""
    if dtype.kind in "biu":
        return np.dtype(np.float64)
    return np.dtype(np.float32) if dtype.itemsize < 4 else dtype


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
