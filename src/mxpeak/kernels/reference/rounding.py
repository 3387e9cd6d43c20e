"""Rounding to any format by its definition, and the types that reference arrays have."""

from __future__ import annotations

from typing import Any

import numpy as np

from mxpeak.precision import PRECISIONS

Array = np.ndarray[Any, np.dtype[Any]]

#: The types that are stored as they are; every other precision is emulated, its numbers stored in fp32.
TYPES: dict[str, type] = {"fp64": np.float64, "fp32": np.float32}


def quiet() -> np.errstate:
    """What overflows or is no number becomes inf or NaN without a warning: whoever solves tests for that."""
    return np.errstate(all="ignore")


def rounded(x: Array, precision: str) -> Array:
    """Every x to the nearest number of a format, on ties the even one; beyond the largest: inf, or NaN for fp8.

    With p bits the numbers of [2^e, 2^(e+1)) lie 2^(e-p+1) apart; below the smallest normal number they lie as just
    above it.  All of it is exact in fp64 except rint, which is the rounding: so also an fp64 is rounded only once.
    """
    format_ = PRECISIONS[precision]
    _, above = np.frexp(np.maximum(np.abs(x), format_.smallest))  # |x| < 2^above = 2^(e+1)
    spacing = np.ldexp(1.0, above - format_.p)
    nearest: Array = np.rint(x / spacing) * spacing
    overflow = np.nan if precision == "fp8" else np.copysign(np.inf, x)
    return np.where(np.abs(nearest) > format_.largest, overflow, nearest)
