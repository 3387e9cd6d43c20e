"""Flush subnormal numbers to zero in library code, because each operation on such a number takes hundreds of cycles.

Entries of sparse factors decay exponentially with distance, so many of them fall below 2^-126 in fp32. On x86, an
operation on a subnormal number needs a microcode assist. On other processors, the functions of this module do nothing.
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

#: Bits of MXCSR that set subnormal results and subnormal operands to zero (Intel, volume 1, section 10.2.3).
FLUSH, AS_ZEROS = 1 << 15, 1 << 6
#: The value of MXCSR when a thread starts, with all exceptions masked.
DEFAULT = 0x1F80
_WORD = types.int32[::1]


@intrinsic
def _exchange(typingctx, new):
    """Write `new` to MXCSR and return its previous value."""

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
    """Exchange the thread's MXCSR register with word[0]."""
    word[0] = _exchange(word[0])


@cache
def _compiled() -> Any:
    """Compile `_swap` and return it. It is compiled at its first use because only x86 has these instructions."""
    return jit(_WORD)(_swap)


@contextmanager
def flushed() -> Iterator[None]:
    """Flush subnormal numbers to zero in the calling thread inside the context, on x86 only."""
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
