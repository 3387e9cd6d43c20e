"""Select the engine and the precision for `solve`, `lu_factor` and the distributed solver, by the order of A.

An engine factors A. `small_lu` is the compiled elimination for moderate orders, `lapack` the host's LU in fp64, `ranks`
the LU over ranks, and `cholesky` and `ldl` the factorizations of symmetric matrices. The crossovers of LU were measured
with one and two threads. Those of `cholesky`, `ldl` and QR are estimates.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from mxpeak.errors import UsageError
from mxpeak.kernels.choose import can_emulate_fp64
from mxpeak.library.types import own_precision, roundoff
from mxpeak.precision import PRECISIONS
from mxpeak.solvers.refine import MAX_STEPS


class Crossover(NamedTuple):
    """The orders from which one method is faster than another, for one right-hand side and for several."""

    single: int
    several: int

    def order(self, rhs: int) -> int:
        """Return the crossover order for this number of right-hand sides."""
        return self.single if rhs <= 1 else self.several


#: The reasons for the fastest precision on the host. Elimination does not scale A, so the fastest precision of a matrix
#: that needs scaling is that of LAPACK's factors.
FASTEST, FASTEST_SCALED = "fastest at this order", "fastest at this order with scaling"
#: The order from which fp32 factors with refinement are faster than the fp64 factors of an engine. fp32 saves half the
#: time of 2/3·n³ flops, and each step of refinement reads A and the factors once. Measured speed of fp32 relative to
#: `small_lu`, with AVX-512 and with AVX2:
#:
#:                                 n = 500       700         800         1000        1200–1400
#:     real, 1 right-hand side                               0.7–1.1     0.8–1.1     0.9–1.4
#:     real, 8 right-hand sides                                          0.7–0.9     0.9–1.1 (1400)
#:     complex, 1 right-hand side  0.8–1.0       1.0–1.3
#:     complex, 8 right-hand sides               0.7–0.9
FP32_FROM = {
    ("small_lu", "real"): Crossover(1024, 1400),
    ("small_lu", "complex"): Crossover(600, 1000),
    ("lapack", "real"): Crossover(640, 768),
    ("lapack", "complex"): Crossover(600, 768),
    ("ranks", "real"): Crossover(1000, 1000),
    ("cholesky", "real"): Crossover(1200, 2000),
    ("cholesky", "complex"): Crossover(800, 1200),
    ("ldl", "real"): Crossover(800, 1000),
    ("ldl", "complex"): Crossover(600, 800),
}
#: The smaller dimension of A from which a QR in fp32 with refinement is faster than one in fp64.
FP32_QR_FROM = 512
#: The largest m·n·(min(m, n) + rhs) of a QR and its solves on one thread; complex numbers count four times. Waking the
#: other threads takes long if other processes use their cores.
ONE_THREAD_QR = 4e7
#: The largest number of entries of the augmented system and its right-hand sides for a solve with few calls.
SMALL_LSTSQ_ENTRIES = 1 << 17
#: fp32 is faster for at most n / ORDERS_PER_RHS right-hand sides. Refining one right-hand side takes about 9·n² flops,
#: most of which are slow.
ORDERS_PER_RHS = 128
#: If fp32 factors exist, new fp64 factors take less time for at least n / ORDERS_PER_REFACTORING right-hand sides.
#: Measured: n/16 at n = 500, n/10 at 1000, n/32 at 2000.
ORDERS_PER_REFACTORING = 16
#: A step of GMRES takes about as long as an fp64 LU divided by (n / ORDERS_PER_GMRES_STEP).
ORDERS_PER_GMRES_STEP = 64
#: From this order on, several threads copy and scale A, and `solve` does not try the type of the input first.
OWN_PRECISION_BELOW = 2048
#: The order from which `small_lu` saves enough time to import its compiler, which takes 0.6 s.
SMALL_LU_FROM = 32
#: Largest number of columns of [A B], with those of A counted twice, for which `small_lu` is faster than LAPACK. Its
#: panels use one core. For complex128 at n = 1000, it is 1.0 to 1.1 times as fast as NumPy, and LAPACK with the check
#: 0.9 times.
SMALL_LU_COLUMNS, SMALL_LU_COLUMNS_COMPLEX128 = 4500, 2200
#: Largest order for which the compiled Cholesky factorization, which uses one core, is faster than LAPACK's.
SMALL_CHOLESKY_ORDER = 512

#: The stacked LU solves one system per vector lane. It needs this many systems to save the time to import its compiler,
#: and it suits systems whose columns [A B] stay in the second-level cache.
STACKED_LU_FROM_SYSTEMS, STACKED_LU_ORDER, STACKED_LU_COLUMNS = 256, 64, 128


class FactorPrecision(NamedTuple):
    """The precision of the factors, and the reason for this choice."""

    name: str
    reason: str


def choose_precision(
    n: int, dtype: np.dtype[Any], requested: str, rhs: int, device: Any = None, engine: str = "lapack"
) -> FactorPrecision:
    """Return the precision of the factors and the reason. "auto" selects the lowest one that is faster than fp64.

    On a device (`kernels.torch.engine.device.Device`), "auto" is fp32 if fp64 products are slower. If fp64 products are
    equally fast, only 16-bit formats could be faster, but they are not. On an H100 at n = 24,576, fp16 takes 0.76 s,
    and the library's fp64 LU takes 0.37 s.
    """
    if requested != "auto":
        check_precision(requested)
    if device is not None and device.without_fp64 is not None:
        if requested not in ("auto", "fp32"):
            raise UsageError(
                f'the device {device.without_fp64} factors only in fp32, not in {requested}; use precision="fp32", or '
                'device="cpu"'
            )
        return FactorPrecision("fp32", "the device has no fp64")
    if requested != "auto":
        return FactorPrecision(requested, "requested")
    return _fastest(n, dtype, rhs, None if device is None else bool(device.has_fast_fp64), engine)


@lru_cache(maxsize=256)  # small systems are solved in less than 100 µs
def _fastest(n: int, dtype: np.dtype[Any], rhs: int, fast_fp64: bool | None, engine: str) -> FactorPrecision:
    """Return the precision that "auto" selects, and the reason.

    `fast_fp64` is whether the device multiplies in fp64 as fast as in fp32. It is None on the host.
    """
    if roundoff(dtype) == 2.0**-24:
        return FactorPrecision("fp32", "A's own")
    fastest = FASTEST if fast_fp64 is None else "expected to be fastest"
    fp32_from = FP32_FROM[engine, _kind(dtype)].order(rhs)
    if rhs * ORDERS_PER_RHS > n:
        return FactorPrecision("fp64", "fastest for this number of right-hand sides" if n >= fp32_from else fastest)
    if fast_fp64 is not None:
        return FactorPrecision("fp64" if fast_fp64 else "fp32", fastest)
    return FactorPrecision("fp32" if n >= fp32_from else "fp64", fastest)


def choose_qr_precision(n: int, dtype: np.dtype[Any], requested: str, rhs: int, device: Any = None) -> FactorPrecision:
    """Return the precision of the QR of a matrix whose smaller dimension is n, and the reason.

    fp32 saves half the time of 2·m·n² flops, and each step of refinement reads A four times.
    """
    if requested != "auto":
        return FactorPrecision(requested, "requested")
    if own_precision(dtype) == "fp32":
        return FactorPrecision("fp32", "A's own")
    slow_fp64 = device is None or not device.has_fast_fp64
    if slow_fp64 and n >= FP32_QR_FROM and rhs * ORDERS_PER_RHS <= n:
        return FactorPrecision("fp32", "fastest at this size")
    return FactorPrecision("fp64", "fastest at this size")


def qr_on_one_thread(m: int, n: int, rhs: int, dtype: np.dtype[Any]) -> bool:
    """Return whether a QR of an m by n matrix and its solves are so small that one thread of BLAS is enough."""
    return m * n * (min(m, n) + rhs) * (4 if dtype.kind == "c" else 1) <= ONE_THREAD_QR


def small_lstsq_is_faster(m: int, n: int, rhs: int, dtype: np.dtype[Any]) -> bool:
    """Return whether the least-squares problem is so small that the number of calls determines its time."""
    return m >= n > 0 and dtype in (np.float64, np.complex128) and (m + n) * (n + rhs) <= SMALL_LSTSQ_ENTRIES


def check_precision(requested: Any) -> None:
    """Raise a UsageError if `requested` is not the name of a precision."""
    if not isinstance(requested, str) or requested not in ("auto", *PRECISIONS):
        raise UsageError(f"unknown precision {requested!r}; use one of auto, {', '.join(PRECISIONS)}")


@lru_cache(maxsize=256)
def own_precision_is_fastest(
    n: int, rhs: int, dtype: np.dtype[Any], requested: str = "auto", engine: str = "small_lu"
) -> bool:
    """Return whether it is fastest to factor A on the host in its own type, without copies and refinement."""
    if rhs < 1 or n >= OWN_PRECISION_BELOW:
        return False
    own = own_precision(dtype)
    if requested != "auto":
        return requested == own
    return own == "fp32" or rhs * ORDERS_PER_RHS > n or n < FP32_FROM[engine, _kind(dtype)].order(rhs)


def small_lu_is_faster(n: int, rhs: int, dtype: np.dtype[Any]) -> bool:
    """Return whether `small_lu` is faster than LAPACK for order n and `rhs` right-hand sides."""
    limit = SMALL_LU_COLUMNS_COMPLEX128 if dtype == np.complex128 else SMALL_LU_COLUMNS
    return n >= SMALL_LU_FROM and 2 * n + rhs <= limit


def small_cholesky_is_faster(n: int) -> bool:
    """Return whether the compiled Cholesky factorization is faster than LAPACK's for one to a few right-hand sides."""
    return SMALL_LU_FROM <= n <= SMALL_CHOLESKY_ORDER


def stacked_lu_is_faster(systems: int, n: int, rhs: int, dtype: np.dtype[Any]) -> bool:
    """Return whether the stacked LU solves a stack of real systems of order n faster than NumPy."""
    small = n <= STACKED_LU_ORDER and n + rhs <= STACKED_LU_COLUMNS
    return small and dtype.kind == "f" and systems >= STACKED_LU_FROM_SYSTEMS


def fp64_refactoring_pays(n: int, rhs: int) -> bool:
    """Return whether new fp64 factors take less time than refining `rhs` solutions with existing fp32 factors."""
    return rhs * ORDERS_PER_REFACTORING > n


def max_lagged_steps(n: int) -> int:
    """Return the number of steps that take about as long as new factors in fp32."""
    return n // (2 * ORDERS_PER_GMRES_STEP)


def max_gmres_steps(n: int, requested: str) -> int:
    """Return the maximum number of GMRES steps. With "auto", the steps take no longer than an fp64 factorization."""
    return MAX_STEPS if requested != "auto" else min(MAX_STEPS, n // ORDERS_PER_GMRES_STEP)


def _kind(dtype: np.dtype[Any]) -> str:
    return "complex" if dtype.kind == "c" else "real"


def emulates_fp64(requested: str, device: Any) -> bool:
    """Return whether to emulate fp64 products; "auto" emulates on devices with slow fp64 that support it."""
    if requested != "auto":
        return requested == "emulated"
    return device is not None and not device.has_fast_fp64 and can_emulate_fp64(device)
