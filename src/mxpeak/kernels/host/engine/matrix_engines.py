"""Detect the processor's matrix instructions for 16-bit and 8-bit numbers, and compute tiles of products with them.

A tile has up to 32 rows of A and 32 columns of B, with sums in fp32. AMX, BFMMLA and SME (`arm`) compute T = A B, and
AVX-512 computes C -= A B. A is stored by rows. B is stored as pairs along k: for each p, a row of the 32 pairs (b_2p,j,
b_2p+1,j). All instructions read this layout. AMX reads a block of 16 rows of A and one of 16 columns of B. AVX-512
reads one pair of A, repeated, and 16 pairs of B. For 8-bit numbers, four entries of B along k replace a pair, sums are
in INT32, and A is packed by steps of a tile, so that each block is contiguous.

llvmlite supports no LLVM type for these numbers, so the innermost loops for x86 are written in assembly. All other
parts of a product are ordinary compiled code (`operands`).
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import llvmlite.binding
import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from mxpeak.kernels.host.engine.arm import bfmmla, sme
from mxpeak.kernels.host.engine.jit import inner
from mxpeak.kernels.host.engine.vector_ir import vector_at, widened_bf16

#: The largest number of rows of a tile, the number of columns of a tile, and the multiple to which k is padded with
#: zeros.
ROWS, COLUMNS, DEPTH = 32, 32, 32
#: Bytes of a row of A in one step of a tile, and bytes of a step of A and of B in packed operands.
STEP_BYTES, PACKED = 64, 2048

#: The number by which compiled code selects each matrix engine. SOFTWARE_INT8 selects compiled loops, which compute the
#: same tiles as AMX_INT8 and test its layouts on other processors.
AMX_FP16, AMX_BF16, AVX512_BF16, AMX_INT8, SOFTWARE_INT8, BFMMLA, SME_FP16, SME_BF16 = range(8)


@dataclass(frozen=True, slots=True)
class MatrixEngine:
    """A type of instruction that multiplies 16-bit or 8-bit numbers.

    rows        the rows of A in one tile
    features    the required processor features, by LLVM's names
    faster_on   the prefix of LLVM's names of the processors on which these products are faster than fp32
    unproven    whether no run on a processor with this engine has tested it
    """

    code: int
    name: str
    precision: str
    rows: int
    features: tuple[str, ...]
    faster_on: str = ""
    unproven: bool = False


#: For each precision, the first available engine is used. AMX is 6 times as fast as SGEMM on an Intel Xeon with
#: AMX-FP16. AVX512-BF16 is twice as fast as SGEMM on AMD's Zen 4, and 0.63 times as fast on the Xeon.
ENGINES = (
    MatrixEngine(AMX_FP16, "AMX-FP16", "fp16", 32, ("amx-tile", "amx-fp16", "avx512f")),
    MatrixEngine(AMX_BF16, "AMX-BF16", "bf16", 32, ("amx-tile", "amx-bf16", "avx512f")),
    MatrixEngine(AVX512_BF16, "AVX512-BF16", "bf16", 14, ("avx512bf16", "avx512f"), "znver"),
    MatrixEngine(BFMMLA, "BFMMLA", "bf16", 32, (), unproven=True),
    MatrixEngine(SME_FP16, "SME-FP16", "fp16", 32, (), unproven=True),
    MatrixEngine(SME_BF16, "SME-BF16", "bf16", 32, (), unproven=True),
)
#: The engine that multiplies residues of emulated fp64 products, with sums in INT32. Estimates need its bf16 products.
INT8_ENGINE = MatrixEngine(AMX_INT8, "AMX-INT8", "int8", 32, ("amx-tile", "amx-int8", "amx-bf16", "avx512f"))


@cache
def present() -> tuple[MatrixEngine, ...]:
    """Return the matrix engines for 16-bit numbers that this process may use."""
    return tuple(filter(is_present, ENGINES))


@cache
def is_present(engine: MatrixEngine) -> bool:
    """Return whether this process may use a matrix engine. Numba must compile for this processor."""
    if engine.code in (BFMMLA, SME_FP16, SME_BF16):
        available = bfmmla.is_available if engine.code == BFMMLA else sme.is_available
        return not numba.config.CPU_NAME and available()
    if numba.config.CPU_NAME or platform.machine() != "x86_64":
        return False
    features = llvmlite.binding.get_host_cpu_features()
    has_all = all(features.get(name, False) for name in engine.features)
    return has_all and ("amx-tile" not in engine.features or _may_tile())


def chosen() -> tuple[MatrixEngine, ...]:
    """Return the available matrix engines that were measured to multiply faster than fp32 on this processor."""
    name = llvmlite.binding.get_host_cpu_name()
    return tuple(engine for engine in present() if not engine.unproven and name.startswith(engine.faster_on))


def engine_for(precision: str, among: Sequence[MatrixEngine]) -> MatrixEngine | None:
    """Return the first matrix engine in `among` that multiplies operands of a precision, or None if there is none."""
    return next((engine for engine in among if engine.precision == precision), None)


@cache
def _may_tile() -> bool:
    """Request Linux's permission to use AMX tiles, and return whether it is granted.

    Permission is needed because the tiles add 8 KiB to each thread's registers that the kernel saves.
    """
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return platform.system() == "Linux" and ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0


#: Configuration of eight tiles, each with 16 rows of 64 bytes: the palette 1, the bytes per row, and the rows (Intel
#: SDM, LDTILECFG).
TILE_CONFIG = np.zeros(64, dtype=np.uint8)
TILE_CONFIG[0], TILE_CONFIG[16:32:2], TILE_CONFIG[48:56] = 1, 64, 16


_ZERO = "".join(f"tilezero %tmm{t}\n" for t in range(4))
#: The four blocks of T at address $0, where the rows of T are 128 bytes apart.
_T_BLOCKS = ("(%rsi,%rax,1)", "64(%rsi,%rax,1)", "2048(%rsi,%rax,1)", "2112(%rsi,%rax,1)")
_AT_T = "movq $0, %rsi\nmovl $$128, %eax\n"
_LOAD = _AT_T + "".join(f"tileloadd {block}, %tmm{t}\n" for t, block in enumerate(_T_BLOCKS))
_STORE = _AT_T + "".join(f"tilestored %tmm{t}, {block}\n" for t, block in enumerate(_T_BLOCKS))


def _amx_steps(multiply: str, advance: int, streamed: str) -> str:
    """Return the AMX assembly of steps along k, in 2×2 blocks of 16×16. Each loaded block is used for two products.

    `advance` is the distance of two steps of A in bytes. `streamed` is the operand, "A" or "B", that changes from one
    tile to the next and must not displace the other from the first-level cache. The arguments $1 to $4 are those of
    `tile` after T.
    """
    load_A, load_B = ("tileloaddt1" if operand == streamed else "tileloadd" for operand in "AB")
    return f"""
        movq $1, %rsi
        movq $2, %rdx
        shlq $$4, %rdx
        addq %rsi, %rdx
        movq $3, %rdi
        movq $4, %rcx
        movl $$128, %eax
    1:
        {load_A} (%rsi,$2,1), %tmm4
        {load_B} (%rdi,%rax,1), %tmm6
        {multiply} %tmm6, %tmm4, %tmm0
        {load_B} 64(%rdi,%rax,1), %tmm7
        {multiply} %tmm7, %tmm4, %tmm1
        {load_A} (%rdx,$2,1), %tmm5
        {multiply} %tmm6, %tmm5, %tmm2
        {multiply} %tmm7, %tmm5, %tmm3
        addq $${advance}, %rsi
        addq $${advance}, %rdx
        addq $$2048, %rdi
        decq %rcx
        jnz 1b
    """


def _amx(multiply: str, advance: int = 64) -> str:
    """Return the AMX assembly of T = A B, for successive columns of B."""
    return _ZERO + _amx_steps(multiply, advance, "B") + _STORE


def _avx512() -> str:
    """Return the assembly of C -= A B for 14 rows of C.

    The assembly uses 28 registers for sums, two for pairs of B, and two in alternation for a repeated pair of A. Every
    third row of A has its address in a register, because an x86 address can add the row distance only once or twice.
    Two rows of C are prefetched per four pairs while the first pairs are multiplied. If all rows of C were prefetched
    together, the prefetches would occupy all outstanding misses of the core, and loads of B from the second-level
    cache would wait for memory.

    $3, $4, $5   C, the bytes from row to row of C, and of A
    %rax, %r8    A and B, which advance along k
    %r9          depths; then the number of remaining groups of four pairs
    %r10         three rows of A, then the number of remaining prefetches of C, then a row of C
    %r11         the row of C that is prefetched next: its first two lines, and the line of its last number
    """
    rows, bases = 14, ("%rax", "%rcx", "%rdx", "%rsi", "%rdi")
    begin = ["shlq $$2, %r9", "movq $3, %r11", "leaq ($5,$5,2), %r10"]
    begin += [f"leaq ({left},%r10,1), {right}" for left, right in pairwise(bases)]
    begin += [f"vpxord %zmm{i}, %zmm{i}, %zmm{i}" for i in range(2 * rows)]
    four_pairs = []
    for pair in range(4):
        four_pairs += [f"vmovups {128 * pair + 64 * half}(%r8), %zmm{28 + half}" for half in range(2)]
        for i in range(rows):
            address = ("({})", "({},$5,1)", "({},$5,2)")[i % 3].format(bases[i // 3])
            a = f"%zmm{30 + i % 2}"
            four_pairs += [f"vpbroadcastd {4 * pair}{address}, {a}"]
            four_pairs += [f"vdpbf16ps {a}, %zmm{28 + half}, %zmm{2 * i + half}" for half in range(2)]
    four_pairs += [f"addq $$16, {base}" for base in bases] + ["addq $$512, %r8"]
    ask = ["prefetchw (%r11)", "prefetchw 64(%r11)", "prefetchw 124(%r11)", "addq $4, %r11"]
    first = [f"movl $${rows // 2}, %r10d", "cmpq %r10, %r9", "cmovlq %r9, %r10", "subq %r10, %r9"]
    first += ["1:", *ask, *ask, *four_pairs, "decq %r10", "jnz 1b"]
    others = ["testq %r9, %r9", "jz 3f", "2:", *four_pairs, "decq %r9", "jnz 2b", "3:"]
    subtract = ["movq $3, %r10"]
    for i in range(rows):
        for half in range(2):
            c = f"%zmm{28 + 2 * (i % 2) + half}"
            subtract += [f"vmovups {64 * half}(%r10), {c}", f"vsubps %zmm{2 * i + half}, {c}, {c}"]
            subtract += [f"vmovups {c}, {64 * half}(%r10)"]
        subtract += ["addq $4, %r10"]
    return "\n".join(begin + first + others + subtract)


# Entry points that contain the assembly are translated to machine code later, so the assembler must be initialized.
llvmlite.binding.initialize_native_asmparser()

_I64 = ir.IntType(64)
_MEMORY = ["~{memory}", "~{dirflag}", "~{fpsr}", "~{flags}"]


def _overwritten(*names):
    return [f"~{{{name}}}" for name in names]


_VECTORS = _overwritten(*(f"zmm{i}" for i in range(32)))
_TILE_REGISTERS = _overwritten("rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9")


def _assembled(engine, assembly, arguments, used, moved=()):
    """Return the signature and code of an intrinsic that has integer arguments and consists of `assembly`.

    The intrinsic does nothing if the processor does not have the matrix engine `engine`.

    used     the registers that the assembly overwrites
    moved    registers that receive the last integers and are changed: $0, $1, …; the other integers follow
    """

    def codegen(context, builder, signature, args):
        if is_present(engine):
            constraints = [f"=&{{{name}}}" for name in moved] + ["r"] * (arguments - len(moved))
            constraints += [*map(str, range(len(moved))), *used, *_MEMORY]
            result = ir.LiteralStructType([_I64] * len(moved)) if moved else ir.VoidType()
            function_type = ir.FunctionType(result, [_I64] * arguments)
            builder.call(ir.InlineAsm(function_type, assembly, ",".join(constraints), side_effect=True), args)
        return context.get_dummy_value()

    return types.void(*[types.int64] * arguments), codegen


@intrinsic
def _tile_amx_fp16(typingctx, T, A, lda, B, depths):
    return _assembled(
        ENGINES[AMX_FP16], _amx("tdpfp16ps"), 5, _overwritten("rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9")
    )


@intrinsic
def _tile_amx_bf16(typingctx, T, A, lda, B, depths):
    return _assembled(
        ENGINES[AMX_BF16], _amx("tdpbf16ps"), 5, _overwritten("rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9")
    )


@intrinsic
def _packed_amx_bf16(typingctx, T, A, lda, B, depths):
    return _assembled(INT8_ENGINE, _amx("tdpbf16ps", PACKED), 5, _TILE_REGISTERS)


@intrinsic
def _steps_amx_int8(typingctx, T, A, lda, B, depths):
    return _assembled(INT8_ENGINE, _amx_steps("tdpbssd", PACKED, "A"), 5, _TILE_REGISTERS)


@intrinsic
def _zero_amx(typingctx):
    return _assembled(INT8_ENGINE, _ZERO, 0, [])


@intrinsic
def _load_amx(typingctx, T):
    return _assembled(INT8_ENGINE, _LOAD, 1, _TILE_REGISTERS)


@intrinsic
def _store_amx(typingctx, T):
    return _assembled(INT8_ENGINE, _STORE, 1, _TILE_REGISTERS)


@intrinsic
def subtract_by_avx512(typingctx, C, ldc, lda, A, B, depths):
    """Compute C -= A B by AVX-512 for 14 rows, 32 columns and DEPTH·depths > 0 entries along k.

    The function does nothing if the processor does not have AVX512-BF16. A, B and C are addresses; ldc and lda are in
    bytes.
    """
    used = _overwritten("rcx", "rdx", "rsi", "rdi", "r10", "r11") + _VECTORS
    return _assembled(ENGINES[AVX512_BF16], _avx512(), 6, used, moved=("rax", "r8", "r9"))


@intrinsic
def _load_config(typingctx, address):
    return _assembled(ENGINES[AMX_BF16], "ldtilecfg ($0)", 1, [])


@intrinsic
def _release(typingctx):
    return _assembled(ENGINES[AMX_BF16], "tilerelease", 0, [])


@inner(inline=True)
def begin(engine, config):
    """Configure this thread's AMX tiles from the address of TILE_CONFIG; do nothing for AVX-512."""
    if engine != AVX512_BF16:
        _load_config(config)


@inner(inline=True)
def end(engine):
    """Release this thread's AMX tiles, because the operating system switches threads without tiles faster.

    The function does nothing for AVX-512.
    """
    if engine != AVX512_BF16:
        _release()


@inner(inline=True)
def tile(engine, T, A, lda, B, depths):
    """Compute T = A B by AMX, BFMMLA or SME for 32 rows, 32 columns and DEPTH·depths entries along k.

    T, A and B are addresses, and lda is in bytes. T is row-major with 32 fp32 numbers per row.
    """
    if engine == AMX_BF16:
        _tile_amx_bf16(T, A, lda, B, depths)
    elif engine == BFMMLA:
        bfmmla.tile_bfmmla(T, A, lda, B, depths)
    elif engine == SME_FP16:
        sme.tile_fp16(T, A, lda, B, depths)
    elif engine == SME_BF16:
        sme.tile_bf16(T, A, lda, B, depths)
    else:
        _tile_amx_fp16(T, A, lda, B, depths)


@inner(inline=True)
def begin_sums(engine, T, added):
    """Set this thread's sums to zero or, if `added`, to those at address T, before `add_steps_int8`.

    AMX has the sums in registers. The software model has them at T.
    """
    if engine == AMX_INT8:
        if added:
            _load_amx(T)
        else:
            _zero_amx()
    elif not added:
        sums = vector_at(T, ROWS * COLUMNS, np.int32)
        sums[:] = 0


@inner(inline=True)
def store_sums(engine, T):
    """Store this thread's sums at address T: row-major, with 32 numbers per row."""
    if engine == AMX_INT8:
        _store_amx(T)


@inner()
def add_steps_int8(engine, T, A, B, steps):
    """Add A B to this thread's sums, for INT8 numbers. B is kept in the first-level cache for the next rows of A.

    T, A and B are addresses. For each step, A has 32 rows of STEP_BYTES adjacent bytes, and B has a table of 16×32
    words with four entries along k.
    """
    if engine == AMX_INT8:
        _steps_amx_int8(T, A, np.int64(STEP_BYTES), B, steps)
        return
    for i in range(ROWS):
        sums = vector_at(T + i * COLUMNS * 4, COLUMNS, np.int32)
        for step in range(steps):
            a = vector_at(A + step * PACKED + i * STEP_BYTES, STEP_BYTES, np.int8)
            for group in range(STEP_BYTES // 4):
                b = vector_at(B + step * PACKED + group * COLUMNS * 4, COLUMNS * 4, np.int8)
                for j in range(COLUMNS):
                    for byte in range(4):
                        sums[j] += np.int32(a[4 * group + byte]) * np.int32(b[4 * j + byte])


@inner()
def packed_tile_bf16(engine, T, A, B, steps):
    """Compute T = A B for bf16 numbers with sums in fp32; the layout is that of `add_steps_int8`."""
    if engine == AMX_INT8:
        _packed_amx_bf16(T, A, np.int64(STEP_BYTES), B, steps)
        return
    for i in range(ROWS):
        sums = vector_at(T + i * COLUMNS * 4, COLUMNS, np.float32)
        sums[:] = 0
        for step in range(steps):
            a = vector_at(A + step * PACKED + i * STEP_BYTES, STEP_BYTES // 2, np.int16)
            for pair in range(STEP_BYTES // 4):
                b = vector_at(B + step * PACKED + pair * COLUMNS * 4, COLUMNS * 2, np.int16)
                for j in range(COLUMNS):
                    for half in range(2):
                        sums[j] += widened_bf16(a[2 * pair + half]) * widened_bf16(b[2 * j + half])


@intrinsic
def subtract_lanes(typingctx, c, t):
    """Compute c -= t for 32 fp32 numbers; c and t are addresses."""

    def codegen(context, builder, signature, args):
        vectors = ir.VectorType(ir.FloatType(), 16).as_pointer()
        c, t = (builder.inttoptr(address, vectors) for address in args)
        for half in range(2):
            at = [builder.gep(vector, [ir.Constant(_I64, half)]) for vector in (c, t)]
            left, right = (builder.load(address, align=4) for address in at)
            builder.store(builder.fsub(left, right), at[0], align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen
