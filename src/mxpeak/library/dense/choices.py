"""Which precision the factors have, and who solves small systems: by order and number of right-hand sides."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from mxpeak.errors import UsageError
from mxpeak.library.dense.direct import LETTERS
from mxpeak.library.dense.refinement import ORDERS_PER_SIDE
from mxpeak.library.dense.types import own_precision, roundoff
from mxpeak.perf.host import host_facts
from mxpeak.precision import PRECISIONS

#: From this order on factors in fp32, refined, beat fp64's on the host, with one right-hand side and with several: they
#: save half of 2/3·n³ flops, and each step of refinement reads A and the factors once (measured: as quick as
#: elimination at n = 640 and 1.1 at 700 with one; 0.8 to 0.97 below 700 and 1 to 1.2 at 800 with three to six, and with
#: one of complex numbers).
FP32_FROM, FP32_FROM_SEVERAL = 640, 768
#: With one of complex numbers where vectors are of 32 bytes.  Measured beside NumPy on a Zen 3 with one thread: 0.95 at
#: n = 500, 1.08 at 550, 1.14 at 700, where LAPACK with its check comes to 0.85 to 0.88.
FP32_FROM_ONE_COMPLEX = 512
#: From this order on A is copied and scaled by several threads, and first written in pages of its own.
DIRECT_BELOW = 2048


def chosen_precision(n: int, dtype: np.dtype[Any], name: str, sides: int, device: Any = None) -> str:
    """The precision of the factors; auto: the coarsest that pays, which is fp32 where the input is fp32 anyway.

    On a device (`kernels.torch.device.Device`) that is fp32 where fp64's products are slower.  Where they are as quick,
    only 16 bits could gain, and did not: on an H100 with n = 24,576 fp16 took 0.76 s, fp64 by the library 0.37 s.
    """
    if name != "auto":
        if not isinstance(name, str) or name not in PRECISIONS:
            raise UsageError(f"unknown precision {name!r}; choose one of auto, {', '.join(PRECISIONS)}")
        return name
    if roundoff(dtype) == 2.0**-24:
        return "fp32"
    if sides * ORDERS_PER_SIDE > n:
        return "fp64"
    if device is not None:
        return "fp64" if device.has_fast_fp64 else "fp32"
    return "fp32" if n >= _fp32_from(sides, dtype) else "fp64"


def _fp32_from(sides: int, dtype: np.dtype[Any]) -> int:
    """The order from which on fp32 pays on the host."""
    if sides > 1:
        return FP32_FROM_SEVERAL
    return FP32_FROM if dtype.kind == "f" else FP32_FROM_SEVERAL if wide_vectors() else FP32_FROM_ONE_COMPLEX


@cache
def wide_vectors() -> bool:
    """Whether the processor has vectors of 64 bytes (AVX-512), which BLAS uses."""
    return bool(host_facts()["avx512"])


def reason(n: int, dtype: np.dtype[Any], name: str, sides: int, device: Any = None) -> str:
    """Why `chosen_precision` is what it is."""
    if name != "auto":
        return "asked for"
    if roundoff(dtype) == 2.0**-24:
        return "A's own"
    if sides * ORDERS_PER_SIDE > n >= FP32_FROM:
        return "quickest for so many right-hand sides"
    return "expected to be quickest" if device is not None else "quickest at this order"


def plain(A: Any, b: Any) -> bool:
    """Whether these are arrays of one type that are solved as they are: a small system is asked nothing else."""
    if not (type(A) is np.ndarray is type(b) and A.ndim == 2 and 1 <= b.ndim <= 2 and A.dtype == b.dtype):
        return False
    n = len(A)
    if not 0 < n == A.shape[1] == len(b) or A.dtype not in LETTERS:
        return False
    return suits_directly(n, b.size // n, A.dtype)


def suits_directly(n: int, sides: int, dtype: np.dtype[Any], precision: str = "auto") -> bool:
    """Whether factors in the type itself are the quickest on the host, and small enough for one thread to copy."""
    if sides < 1 or n >= DIRECT_BELOW:
        return False
    return chosen_precision(n, dtype, precision, sides) == own_precision(dtype)
