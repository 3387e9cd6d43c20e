"""Subnormal numbers as zeros, for code of other libraries that would spend hundreds of cycles on each of them.

Factors of sparse matrices decay by a power of what couples two points, so that in fp32 many of their entries end below
2^-126; on x86 an operation with such a number takes an assist of the microcode.  Other processors are left as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from platform import machine
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mxpeak.kernels.host.engine.jit import jit

#: Bits of MXCSR: results below the range are zero, and so are operands (Intel, volume 1, section 10.2.3).
FLUSH, AS_ZEROS = 1 << 15, 1 << 6
#: What it is when a thread starts: every exception masked.
DEFAULT = 0x1F80
_WORD = types.int32[::1]


@intrinsic
def _exchange(typingctx, new):
    """Put `new` into MXCSR; what was there."""

    def codegen(context, builder, signature, args):
        word = ir.IntType(32)
        pointer = ir.IntType(8).as_pointer()
        slot = cgutils.alloca_once(builder, word)
        address = builder.bitcast(slot, pointer)
        kind = ir.FunctionType(ir.VoidType(), [pointer])
        for name in ("llvm.x86.sse.stmxcsr", "llvm.x86.sse.ldmxcsr"):
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [address])
            if name.endswith("stmxcsr"):
                old = builder.load(slot)
                builder.store(args[0], slot)
        return old

    return types.int32(types.int32), codegen


def _swap(word):
    """Exchange the thread's MXCSR with word[0]."""
    word[0] = _exchange(word[0])


@cache
def _compiled() -> Any:
    """The exchange, compiled when it is first used: no other processor knows these instructions."""
    return jit(_WORD)(_swap)


@contextmanager
def flushed() -> Iterator[None]:
    """Subnormal numbers are zeros to this thread, inside."""
    if machine() not in ("x86_64", "AMD64"):
        yield
        return
    swap = _compiled()
    word = np.full(1, DEFAULT, np.int32)
    swap(word)
    before = word[0]
    word[0] = before | FLUSH | AS_ZEROS
    swap(word)
    try:
        yield
    finally:
        word[0] = before
        swap(word)
