"""The types in which systems are solved, as NumPy dtypes."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def working_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type for the solve: fp64 for integers, fp32 for 16-bit numbers, otherwise the type itself."""
    if dtype.kind in "biu":
        return np.dtype(np.float64)
    return np.dtype(np.float32) if dtype.itemsize < 4 else dtype


def with_precision_of(dtype: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any]:
    """Return a type that is real or complex like `dtype`, in the precision of `other`."""
    return typed(dtype.kind == "c", wide=roundoff(other) < 2.0**-24)


def typed(is_complex: bool, *, wide: bool) -> np.dtype[Any]:
    """Return the real or complex type whose parts have 64 bits (`wide`) or 32 bits."""
    if is_complex:
        return np.dtype(np.complex128 if wide else np.complex64)
    return np.dtype(np.float64 if wide else np.float32)


@cache
def roundoff(dtype: np.dtype[Any]) -> float:
    """Return the unit roundoff of a type."""
    return float(np.finfo(dtype).eps) / 2


def own_precision(dtype: np.dtype[Any]) -> str:
    """Return "fp32" or "fp64", the precision of the numbers of a type or of their real and imaginary parts."""
    return "fp32" if roundoff(dtype) == 2.0**-24 else "fp64"
