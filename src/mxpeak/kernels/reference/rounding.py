"""Round numbers to any format by its definition, and list the types of reference arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from mxpeak.precision import PRECISIONS

Array = np.ndarray[Any, np.dtype[Any]]

#: The precisions with a NumPy type of their own; numbers of every other precision are stored in fp32.
TYPES: dict[str, type] = {"fp64": np.float64, "fp32": np.float32}


def quiet() -> np.errstate:
    """Return a context in which overflow and undefined operations give inf and NaN without a warning."""
    return np.errstate(all="ignore")


def rounded(x: Array, precision: str) -> Array:
    """Return x with every number rounded to the nearest number of a format, ties to even.

    Overflow gives inf, or NaN for fp8. With p bits, the spacing of the numbers in [2^e, 2^(e+1)) is 2^(e-p+1). Below
    the smallest normal number, the spacing is the same as just above it. All operations are exact in fp64 except rint,
    so an fp64 number is rounded only once.
    """
    format_ = PRECISIONS[precision]
    _, above = np.frexp(np.maximum(np.abs(x), format_.smallest))  # |x| < 2^above = 2^(e+1)
    spacing = np.ldexp(1.0, above - format_.p)
    nearest: Array = np.rint(x / spacing) * spacing
    overflow = np.nan if precision == "fp8" else np.copysign(np.inf, x)
    return np.where(np.abs(nearest) > format_.largest, overflow, nearest)
