"""Compute tiles of products of bf16 numbers with BFMMLA, an instruction of 64-bit Arm (FEAT_BF16).

BFMMLA computes S += X Y^T for a 2×2 block S in fp32 and two 2×4 blocks X and Y in bf16. Each block is one register and
is stored by rows (Arm Architecture Reference Manual, C7.2, BFMMLA). A tile has 32 rows and 32 columns, and its operands
have the layout of `matrix_engines`.

No run on Arm hardware has tested these tiles. The tests run them in an emulator, and on any processor with another
function in place of the instruction.
"""

from __future__ import annotations

import ctypes
import platform
from itertools import product

from llvmlite import ir
from llvmlite.binding import get_host_cpu_name
from numba.core import cgutils, types
from numba.extending import intrinsic

#: The entry of Linux's auxiliary vector with the second word of processor features, and the bit of FEAT_BF16 in this
#: word (arch/arm64/include/uapi/asm/hwcap.h).
AT_HWCAP2, HWCAP2_BF16 = 26, 1 << 14
#: Processors whose models in LLVM have BFMMLA. LLVM cannot select the instruction for other processors.
PROCESSORS = ("neoverse-v1", "neoverse-v2", "neoverse-v3", "neoverse-n2", "neoverse-n3")

#: The rows and columns of a block of T that fits into registers, and the entries along k of one step.
SIDE, STEP = 8, 8
#: Bytes of a row of T, and of a row of pairs of B.
ROW_BYTES = 128

_I16, _I32, _I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
_SUMS, _HALVES, _WORDS = ir.VectorType(ir.FloatType(), 4), ir.VectorType(_I16, 8), ir.VectorType(_I32, 4)


class _Bfloat(ir.Type):
    """LLVM's type of bf16 numbers, which llvmlite lacks."""

    def _to_string(self):
        return "bfloat"

    def __eq__(self, other):
        return isinstance(other, _Bfloat)

    def __hash__(self):
        return hash(_Bfloat)


def is_available() -> bool:
    """Return whether this processor has BFMMLA, and LLVM compiles it."""
    if platform.system() != "Linux" or platform.machine() != "aarch64" or get_host_cpu_name() not in PROCESSORS:
        return False
    getauxval = ctypes.CDLL(None).getauxval
    getauxval.argtypes, getauxval.restype = [ctypes.c_ulong], ctypes.c_ulong
    return bool(getauxval(AT_HWCAP2) & HWCAP2_BF16)


def _by_instruction(builder, S, X, Y):
    """Emit BFMMLA and return S + X Y^T."""
    blocks = ir.VectorType(_Bfloat(), 8)
    function_type = ir.FunctionType(_SUMS, [_SUMS, blocks, blocks])
    function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.aarch64.neon.bfmmla")
    return builder.call(function, [S, *(builder.bitcast(block, blocks) for block in (X, Y))])


def lanes_of(builder, low, high, lanes):
    """Return the given lanes of two vectors that are numbered consecutively."""
    return builder.shuffle_vector(low, high, ir.Constant(ir.VectorType(_I32, len(lanes)), lanes))


def _load(builder, address, offset):
    """Load the 16 bytes at address + offset as four words."""
    pointer = builder.inttoptr(builder.add(address, _I64(offset)), _WORDS.as_pointer())
    return builder.load(pointer, align=4)


def _blocks_of_rows(builder, A, lda):
    """Load eight entries along k of eight rows of A, and return four 2×4 blocks for each half of the entries."""
    rows = [_load(builder, builder.add(A, builder.mul(lda, _I64(i))), 0) for i in range(SIDE)]
    halves = ([0, 1, 4, 5], [2, 3, 6, 7])
    return [[lanes_of(builder, rows[i], rows[i + 1], half) for i in range(0, SIDE, 2)] for half in halves]


def _blocks_of_columns(builder, B):
    """Load eight entries along k of eight columns of B, and return four 2×4 blocks of B^T for each half."""
    blocks = []
    for p in range(0, STEP // 2, 2):
        pairs = [[_load(builder, B, ROW_BYTES * q + 16 * part) for q in (p, p + 1)] for part in range(2)]
        columns = ([0, 4, 1, 5], [2, 6, 3, 7])
        blocks.append([lanes_of(builder, even, odd, lanes) for even, odd in pairs for lanes in columns])
    return blocks


def _emit_block(builder, multiply, T, A, lda, B, depths):
    """Emit the product of eight rows of A and eight columns of B, and store it in T."""
    sums = [cgutils.alloca_once(builder, _SUMS) for _ in range(SIDE * SIDE // 4)]
    for s in sums:
        builder.store(ir.Constant(_SUMS, [0.0] * 4), s)
    with cgutils.for_range(builder, builder.mul(depths, _I64(32 // STEP))) as loop:
        A_k = builder.add(A, builder.mul(loop.index, _I64(2 * STEP)))
        B_k = builder.add(B, builder.mul(loop.index, _I64(ROW_BYTES * STEP // 2)))
        for X, Y in zip(_blocks_of_rows(builder, A_k, lda), _blocks_of_columns(builder, B_k)):
            for (i, x), (j, y) in product(enumerate(X), enumerate(Y)):
                x_y = (builder.bitcast(block, _HALVES) for block in (x, y))
                builder.store(multiply(builder, builder.load(sums[4 * i + j]), *x_y), sums[4 * i + j])
    for i, row, part in product(range(4), range(2), range(2)):
        left, right = (builder.load(sums[4 * i + 2 * part + side]) for side in range(2))
        lanes = lanes_of(builder, left, right, [2 * row, 2 * row + 1, 4 + 2 * row, 5 + 2 * row])
        at = builder.add(T, _I64(ROW_BYTES * (2 * i + row) + 16 * part))
        builder.store(lanes, builder.inttoptr(at, _SUMS.as_pointer()), align=4)


def tile_by(multiply):
    """Return the signature and code of an intrinsic that computes a tile T = A B by `multiply`, in 8×8 blocks."""

    def codegen(context, builder, signature, args):
        T, A, lda, B, depths = args
        with cgutils.for_range(builder, _I64(4)) as rows:
            A_i = builder.add(A, builder.mul(builder.mul(rows.index, _I64(SIDE)), lda))
            T_i = builder.add(T, builder.mul(rows.index, _I64(SIDE * ROW_BYTES)))
            with cgutils.for_range(builder, _I64(4)) as columns:
                offset = builder.mul(columns.index, _I64(4 * SIDE))
                _emit_block(builder, multiply, builder.add(T_i, offset), A_i, lda, builder.add(B, offset), depths)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), codegen


def _nothing(context, builder, signature, args):
    return context.get_dummy_value()


@intrinsic
def tile_bfmmla(typingctx, T, A, lda, B, depths):
    """Compute T = A B by BFMMLA, with the arguments of `matrix_engines.tile`. Do nothing on other processors."""
    signature, codegen = tile_by(_by_instruction)
    return signature, codegen if is_available() else _nothing
