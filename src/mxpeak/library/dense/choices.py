"""Which precision the factors have, and who solves systems of moderate order: by that and the number of sides."""

from __future__ import annotations

from typing import Any

import numpy as np

from mxpeak.errors import UsageError
from mxpeak.library.dense.direct import LETTERS
from mxpeak.library.dense.refinement import ORDERS_PER_SIDE
from mxpeak.library.dense.types import own_precision, roundoff
from mxpeak.precision import PRECISIONS

#: From this order on factors in fp32, refined, beat LAPACK's in fp64 on the host, with one right-hand side and with
#: several: they save half of 2/3·n³ flops, and each step of refinement reads A and the factors once.  Complex
#: numbers with one right-hand side: from COMPLEX_ELIMINATED_BELOW on.
FP32_FROM, FP32_FROM_SEVERAL = 640, 768
#: Below this order they do not beat the elimination, with one right-hand side and with several.  Their speed over the
#: elimination's, one and two threads, AVX-512 and AVX2: with one side 0.7 to 1.1 at n = 800, 0.8 to 1.1 at 1000, 0.9 to
#: 1.4 at 1200 to 1400; with 8 0.7 to 0.9 at 1000, 0.9 to 1.1 at 1400.
ELIMINATED_BELOW, ELIMINATED_BELOW_SEVERAL = 1024, 1400
#: The same of complex numbers: 0.8 to 1.0 at n = 500 and 1.0 to 1.3 at 700; with 8 0.7 to 0.9 at 700, 1.0 to 1.2 at
#: 1000.
COMPLEX_ELIMINATED_BELOW, COMPLEX_ELIMINATED_BELOW_SEVERAL = 600, 1000
#: From this order on A is copied and scaled by several threads, and first written in pages of its own.
DIRECT_BELOW = 2048


def chosen_precision(n: int, dtype: np.dtype[Any], name: str, sides: int, device: Any = None) -> str:
    """The precision of the factors; auto: the coarsest that pays, which is fp32 where the input is fp32 anyway.

    On a device (`kernels.torch.device.Device`) that is fp32 where fp64's products are slower.  Where they are as quick,
    only 16 bits could gain, and did not: on an H100 with n = 24,576 fp16 took 0.76 s, fp64 by the library 0.37 s.
    """
    if name != "auto":
        if not isinstance(name, str) or name not in PRECISIONS:
            raise UsageError(f"unknown precision {name!r}; use one of auto, {', '.join(PRECISIONS)}")
        return name
    if roundoff(dtype) == 2.0**-24:
        return "fp32"
    if sides * ORDERS_PER_SIDE > n:
        return "fp64"
    if device is not None:
        return "fp64" if device.has_fast_fp64 else "fp32"
    return "fp32" if n >= _fp32_from(sides, dtype) else "fp64"


def _fp32_from(sides: int, dtype: np.dtype[Any]) -> int:
    """The order from which on fp32 beats LAPACK on the host."""
    if sides > 1:
        return FP32_FROM_SEVERAL
    return FP32_FROM if dtype.kind == "f" else COMPLEX_ELIMINATED_BELOW


def reason(n: int, dtype: np.dtype[Any], name: str, sides: int, device: Any = None) -> str:
    """Why `chosen_precision` is what it is."""
    if name != "auto":
        return "requested"
    if roundoff(dtype) == 2.0**-24:
        return "A's own"
    if sides * ORDERS_PER_SIDE > n >= _fp32_from(sides, dtype):
        return "fastest for this number of right-hand sides"
    return "expected to be fastest" if device is not None else "fastest at this order"


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
    own = own_precision(dtype)
    if precision != "auto":
        return precision == own
    return own == "fp32" or sides * ORDERS_PER_SIDE > n or n < _eliminated_below(sides, dtype)


def _eliminated_below(sides: int, dtype: np.dtype[Any]) -> int:
    """The order from which on fp32 beats the elimination."""
    if dtype.kind == "c":
        return COMPLEX_ELIMINATED_BELOW if sides == 1 else COMPLEX_ELIMINATED_BELOW_SEVERAL
    return ELIMINATED_BELOW if sides == 1 else ELIMINATED_BELOW_SEVERAL
