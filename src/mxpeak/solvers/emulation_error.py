"""Measure the componentwise error of emulated fp64 products against exact products, next to that of native fp64.

Native products satisfy |Ĉ - A B| <= (k+1)·u·|A||B| for all A and B, and good emulation satisfies it as well (Schwarz et
al., arXiv 2511.13778). Errors are measured at the entries where the emulated and the native product differ most. At
every other entry, the difference of both errors is at most as large.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import frexp, inf, isfinite
from typing import NamedTuple

from mxpeak.kernels.arrays import without_warnings
from mxpeak.kernels.contract.backend import Matrix
from mxpeak.kernels.contract.emulation import Emulation
from mxpeak.kernels.contract.lu import LuKernels
from mxpeak.precision import PRECISIONS


class EmulationError(NamedTuple):
    """Errors of a product A B in emulated and in native fp64, relative to |A||B|, at the worst of the compared entries.

    Attributes
    ----------
    emulated : float
        Largest |Ĉ - A B| / |A||B| of the emulated product.
    native : float
        Largest |Ĉ - A B| / |A||B| of the library's product, which is native unless the library emulates fp64 by itself.
    bound : float
        (k + 1)·u, the error that native products can have. Emulated fp64 is as accurate as native fp64 for these
        matrices if `emulated` is at most `bound`.
    blocks : Emulation
        Numbers of blocks of the product that were emulated, that needed additional moduli because of their exponents,
        and that were computed natively, and the largest number of moduli.
    """

    emulated: float
    native: float
    bound: float
    blocks: Emulation


def measure_emulation_error(kernels: LuKernels, A: Matrix, B: Matrix, entries: int) -> EmulationError:
    """Compute A B twice, and compare the `entries` entries that differ most with exact values."""
    (m, k), n, xp = A.shape, B.shape[1], kernels.xp
    emulated, native, terms = (kernels.matrix(m, n) for _ in range(3))
    for C in (emulated, native, terms):
        C[:] = 0.0
    blocks = kernels.subtract_emulated_product(emulated, A, B)
    kernels.subtract_product(native, A, B)
    kernels.subtract_product(terms, xp.abs(A), -xp.abs(B))
    with without_warnings():
        difference = xp.reshape(xp.abs(emulated - native) / xp.where(terms > 0.0, terms, 1.0), (-1,))
    order = xp.argsort(-xp.where(xp.isnan(difference), inf, difference))
    errors = []
    for index in order[:entries].tolist():
        i, j = divmod(index, n)
        values = float(emulated[i, j]), float(native[i, j])
        errors.append(_errors(A[i].tolist(), B[:, j].tolist(), values))
    worst = [max(column, default=0.0) for column in zip(*errors)] or [0.0, 0.0]
    return EmulationError(worst[0], worst[1], (k + 1) * PRECISIONS["fp64"].u, blocks)


def _errors(a: Sequence[float], b: Sequence[float], values: Sequence[float]) -> list[float]:
    """Return |c + Σ_j a_j b_j| / Σ_j |a_j b_j| for each value c, in exact integer arithmetic.

    If all terms are zero, the error is 0 for c = 0 and otherwise infinite. The error of NaN and infinity is infinite.
    """
    terms = [(s * t, d + e) for (s, d), (t, e) in zip(map(_integer, a), map(_integer, b)) if s and t]
    finite = [_integer(c) if isfinite(c) else (0, 0) for c in values]
    lowest = min(e for _, e in [*terms, *finite])
    total = sum(term << e - lowest for term, e in terms)
    size = sum(abs(term) << e - lowest for term, e in terms)
    errors = []
    for c, (integer, e) in zip(values, finite):
        error = abs((integer << e - lowest) + total)
        exact = not error and isfinite(c)
        errors.append(0.0 if exact else error / size if size and isfinite(c) else inf)
    return errors


def _integer(x: float) -> tuple[int, int]:
    """Return integers s and e with x = s·2^e and |s| < 2^53."""
    fraction, exponent = frexp(x)
    return int(fraction * 2.0**53), exponent - 53
