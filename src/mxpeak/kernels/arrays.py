"""NumPy as an array namespace, and random vectors that solvers use to test factors.

NumPy 2.1 and later follow the array API. For earlier versions, array-api-compat wraps NumPy. The wrapper takes longer
to load than NumPy itself, because it reads all attributes that NumPy loads lazily.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

xp: Any = np
if not hasattr(np, "unstack"):  # the last function that NumPy lacked
    import array_api_compat.numpy

    xp = array_api_compat.numpy


def without_warnings() -> Any:
    """Return a context in which NumPy does not warn of overflow, because solvers find numbers that are not finite."""
    return np.errstate(all="ignore")


def complex_of(real: Any, imaginary: Any, xp: Any) -> Any:
    """Return real + i·imaginary, also for infinite parts; the product of i and infinity has a real part of NaN."""
    z = xp.empty_like(real, dtype=xp.complex128 if real.dtype == xp.float64 else xp.complex64)
    z.real[...], z.imag[...] = real, imaginary
    return z


def is_complex_array(v: Any, xp: Any) -> bool:
    """Return whether the entries of v are complex."""
    return bool(xp.isdtype(v.dtype, "complex floating"))


def is_in_fp32(v: Any, xp: Any) -> bool:
    """Return whether fp32 represents all numbers of an fp64 or complex128 array exactly."""
    low = xp.complex64 if xp.isdtype(v.dtype, "complex floating") else xp.float32
    with without_warnings():
        return bool(xp.all(xp.asarray(v, dtype=low) == v))


#: Seed of the random numbers with which solvers probe factors.
PROBE_SEED = 1961


@lru_cache(maxsize=64)
def probe_vector(n: int) -> Any:
    """Return a vector of n random numbers with random signs and magnitudes from 1 to 2.

    A vector of ±1 would not be sufficient: if half of its entries are negative, it is orthogonal to (1, ..., 1), the
    null vector of a Laplacian.
    """
    rng = np.random.default_rng(PROBE_SEED)
    return rng.choice((-1.0, 1.0), n) * rng.uniform(1.0, 2.0, n)


def random_signs(n: int, columns: int) -> Any:
    """Return an n×columns array of random signs, +1 or -1."""
    return np.random.default_rng(PROBE_SEED).choice((-1.0, 1.0), (n, columns))
