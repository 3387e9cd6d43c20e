"""The types in which systems are solved, as NumPy names them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def working_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which numbers of a type are solved with: their own, fp64 for integers, fp32 for 16-bit numbers."""
    if dtype.kind in "biu":
        return np.dtype(np.float64)
    return np.dtype(np.float32) if dtype.itemsize < 4 else dtype


def with_precision_of(dtype: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any]:
    """dtype's field, real or complex, in the other's precision."""
    return typed(dtype.kind == "c", wide=roundoff(other) < 2.0**-24)


def typed(is_complex: bool, *, wide: bool) -> np.dtype[Any]:
    """The type of this field, of 64-bit parts if wide, else of 32-bit ones."""
    if is_complex:
        return np.dtype(np.complex128 if wide else np.complex64)
    return np.dtype(np.float64 if wide else np.float32)


@cache
def roundoff(dtype: np.dtype[Any]) -> float:
    """Unit roundoff of a type."""
    return float(np.finfo(dtype).eps) / 2


def own_precision(dtype: np.dtype[Any]) -> str:
    """The precision of a type's numbers, or of their parts."""
    return "fp32" if roundoff(dtype) == 2.0**-24 else "fp64"
