"""Round to low precisions in software: to nearest, ties to even, with the range and subnormals of the format."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import types

from mxpeak.kernels.host.engine.jit import INT, MATRIX, MATRIX32, inner, jit
from mxpeak.kernels.host.engine.vector_ir import bits_of, float_of, row
from mxpeak.kernels.host.lu.row_moves import part_of
from mxpeak.precision import PRECISIONS


class FloatFormat(NamedTuple):
    """The constants of a floating-point format, as compiled code uses them.

    p           bits of the significand
    largest     the largest number
    smallest    the smallest normal number
    beyond      the result of rounding a larger number: inf, or NaN for fp8
    """

    p: int
    largest: np.float32
    smallest: np.float32
    beyond: np.float32


FORMATS = {
    name: FloatFormat(f.p, *map(np.float32, (f.largest, f.smallest, np.nan if name == "fp8" else np.inf)))
    for name, f in PRECISIONS.items()
    if name not in ("fp64", "fp32")
}
#: The Numba type of a `FloatFormat`.
FORMAT = types.NamedTuple((INT, types.float32, types.float32, types.float32), FloatFormat)


@inner()
def round_row(a, out, to):
    """Round the row `a` to the format `to`, which has at most 23 bits of significand, and write the result to `out`.

    For a normal number, add half of the part to be cut off (minus one bit if the last kept bit is 0), and cut. Below
    `smallest`, the spacing of numbers is fixed. Adding and subtracting 1.5·2^23 spacings rounds to a multiple of the
    spacing.
    """
    p, largest, smallest, beyond = to.p, to.largest, to.smallest, to.beyond
    cut = np.uint32(24 - p)
    half, one, sign = np.uint32((1 << (23 - p)) - 1), np.uint32(1), np.uint32(0x80000000)
    keep = np.uint32(0xFFFFFFFF) << cut
    magic = np.float32(1.5 * 2.0**23) * (smallest * np.float32(2.0 ** (1 - p)))
    # A format with the range of fp32 has the same subnormals, which are cut like normal numbers.
    tiny = smallest > np.float32(2.0**-126)
    for j in range(a.shape[0]):
        x = a[j]
        bits = bits_of(x)
        rounded = float_of(np.uint32((bits + half + ((bits >> cut) & one)) & keep))
        if tiny and abs(x) < smallest:
            rounded = float_of(np.uint32(bits_of(np.float32(np.float32(x + magic) - magic)) | (bits & sign)))
        if abs(rounded) > largest:
            rounded = beyond if x > np.float32(0.0) else -beyond
        out[j] = rounded if x == x else x


@jit(INT, INT, MATRIX32, MATRIX32, FORMAT, later=True)
def round_block(tid, threads, source, target, to):
    """Round this thread's rows of `source` to the format `to`, and write them to `target`."""
    r0, r1 = part_of(tid, threads, source.shape[0])
    for i in range(r0, r1):
        a, out = row(source, i, 0, source.shape[1]), row(target, i, 0, source.shape[1])
        round_row(a, out, to)


@jit(INT, INT, MATRIX32, MATRIX32, also=(INT, INT, MATRIX, MATRIX), later=True)
def copy_rows(tid, threads, source, target):
    """Copy this thread's rows of `source` to `target`, both row-major."""
    r0, r1 = part_of(tid, threads, source.shape[0])
    for i in range(r0, r1):
        a, out = row(source, i, 0, source.shape[1]), row(target, i, 0, source.shape[1])
        for j in range(a.shape[0]):
            out[j] = a[j]
