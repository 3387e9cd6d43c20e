"""Rounding to low precisions in software: to nearest, ties to even, with the format's range and subnormals."""

from __future__ import annotations

import numpy as np
from numba.core import types

from mxpeak.kernels.host.engine.jit import INT, MATRIX, MATRIX32, inner, jit
from mxpeak.kernels.host.engine.vector_ir import bits_of, float_of, row
from mxpeak.kernels.host.lu.row_moves import part_of
from mxpeak.precision import PRECISIONS

#: The significand bits of each format, its largest number and its smallest normal one, and what lies beyond it.
FORMATS = {
    name: (f.p, np.float32(f.largest), np.float32(f.smallest), np.float32(np.nan if name == "fp8" else np.inf))
    for name, f in PRECISIONS.items()
    if name not in ("fp64", "fp32")
}
#: These as compiled code takes them.
FORMAT = INT, types.float32, types.float32, types.float32


@inner()
def round_row(a, out, p, largest, smallest, beyond):
    """out = a rounded to p significand bits, 23 at most.

    A normal number: add half of what is cut off (less one where the last kept bit is 0), and cut.  Below `smallest`
    the spacing is fixed: adding and subtracting 1.5·2^23 spacings rounds to it.
    """
    cut = np.uint32(24 - p)
    half, one, sign = np.uint32((1 << (23 - p)) - 1), np.uint32(1), np.uint32(0x80000000)
    keep = np.uint32(0xFFFFFFFF) << cut
    magic = np.float32(1.5 * 2.0**23) * (smallest * np.float32(2.0 ** (1 - p)))
    tiny = smallest > np.float32(2.0**-126)  # a range as wide as FP32's has FP32's subnormals, cut like the others
    for j in range(a.shape[0]):
        x = a[j]
        bits = bits_of(x)
        rounded = float_of(np.uint32((bits + half + ((bits >> cut) & one)) & keep))
        if tiny and abs(x) < smallest:
            rounded = float_of(np.uint32(bits_of(np.float32(np.float32(x + magic) - magic)) | (bits & sign)))
        if abs(rounded) > largest:
            rounded = beyond if x > np.float32(0.0) else -beyond
        out[j] = rounded if x == x else x


@jit(INT, INT, MATRIX32, MATRIX32, *FORMAT)
def round_block(tid, threads, source, target, p, largest, smallest, beyond):
    """target = source rounded to p significand bits."""
    r0, r1 = part_of(tid, threads, source.shape[0])
    for i in range(r0, r1):
        a, out = row(source, i, 0, source.shape[1]), row(target, i, 0, source.shape[1])
        round_row(a, out, p, largest, smallest, beyond)


@jit(INT, INT, MATRIX32, MATRIX32, also=(INT, INT, MATRIX, MATRIX))
def copy_rows(tid, threads, source, target):
    """target = source, both by rows."""
    r0, r1 = part_of(tid, threads, source.shape[0])
    for i in range(r0, r1):
        a, out = row(source, i, 0, source.shape[1]), row(target, i, 0, source.shape[1])
        for j in range(a.shape[0]):
            out[j] = a[j]
