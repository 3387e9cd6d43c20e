"""Compute tiles of products of 16-bit numbers with SME, the Scalable Matrix Extension of 64-bit Arm (FEAT_SME).

FMOPA and BFMOPA add outer products to a square of the ZA array, a set of registers. For two vectors of n words that
contain the pairs (x_i, x'_i) and (y_j, y'_j), S_ij += x_i y_j + x'_i y'_j in fp32 (Arm Architecture Reference Manual,
C8.2). The processor determines n, which is between 4 and 64.

SME needs the processor's streaming mode, in which many other vector instructions do not exist. LLVM therefore compiles
each tile as a function that enters and leaves this mode. The function names SME's features itself, because LLVM's model
of the processor may lack them. The attribute `aarch64_new_za` would call a function of the compiler's library, which is
missing here. Instead, the function enables ZA itself, because no caller uses ZA. The operands have the layout of
`matrix_engines`.

No run on Arm hardware has tested these tiles. The tests run them in an emulator, with five vector lengths.
"""

from __future__ import annotations

import ctypes
import platform
from functools import cache

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from mxpeak.kernels.host.engine.arm.bfmmla import AT_HWCAP2, ROW_BYTES

#: The bits of FEAT_SME and of its products of fp16 and bf16 in Linux's second word of processor features. The keys are
#: macOS's names.
HWCAP2 = {"SME": 1 << 23, "SME_F16F32": 1 << 27, "SME_B16F32": 1 << 28}
#: The element type and the instruction of LLVM for each precision.
ELEMENTS = {"fp16": ("half", "nxv8f16"), "bf16": ("bfloat", "nxv8bf16")}
#: The rows and columns of a tile, and the pairs along k per step.
SIDE, PAIRS = 32, 16
#: The squares of the ZA array: sums of the left columns, sums of the right columns, and rows of A that are transposed.
#: ZEROED is the mask of the first two squares for the instruction ZERO.
LEFT, RIGHT, TRANSPOSED = range(3)
ZEROED = 0x11 | 0x22

_I32, _I64, _POINTER = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()


class _Scalable(ir.Type):
    """LLVM's type of vectors whose length is known when they run, which llvmlite lacks."""

    def __init__(self, count, element):
        self.count, self.element = count, element

    def _to_string(self):
        return f"<vscale x {self.count} x {self.element}>"

    def __eq__(self, other):
        return isinstance(other, _Scalable) and str(self) == str(other)

    def __hash__(self):
        return hash(str(self))


_WORDS, _OF_WORDS, _OF_HALVES = _Scalable(4, "i32"), _Scalable(4, "i1"), _Scalable(8, "i1")


class _Attributes(ir.values.FunctionAttributes):
    """Attributes of a function that llvmlite does not know: streaming mode inside, and SME's instructions."""

    _known = frozenset(['"aarch64_pstate_sm_body"', '"target-features"="+sme,+bf16"', "noinline", "nounwind"])


@cache
def is_available() -> bool:
    """Return whether this processor and its operating system have SME with products of fp16 and bf16."""
    if platform.machine() not in ("aarch64", "arm64"):
        return False
    if platform.system() == "Darwin":
        return all(_macos_has(f"hw.optional.arm.{name}") for name in ("FEAT_SME", *list(HWCAP2)[1:]))
    if platform.system() != "Linux":
        return False
    getauxval = ctypes.CDLL(None).getauxval
    getauxval.argtypes, getauxval.restype = [ctypes.c_ulong], ctypes.c_ulong
    return all(getauxval(AT_HWCAP2) & bit for bit in HWCAP2.values())


def _macos_has(name: str) -> bool:
    """Return whether a feature of macOS's sysctl is 1."""
    value, size = ctypes.c_int(0), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    status = ctypes.CDLL(None).sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
    return status == 0 and value.value == 1


class _Sme:
    """Emits SME's instructions."""

    def __init__(self, builder, precision):
        self.builder, (element, self._suffix) = builder, ELEMENTS[precision]
        self._pairs = _Scalable(8, element)

    def call(self, name, result, *arguments):
        """Call an intrinsic function of LLVM."""
        function_type = ir.FunctionType(result, [argument.type for argument in arguments])
        function = cgutils.get_or_insert_function(self.builder.module, function_type, f"llvm.{name}")
        return self.builder.call(function, arguments)

    def first(self, count, begin=0):
        """Return the words whose index, counted from `begin`, is less than `count`."""
        return self.call("aarch64.sve.whilelt.nxv4i1.i64", _OF_WORDS, *self._limits(count, begin))

    def first_pairs(self, count, begin=0):
        """Return both halves of the words whose index, counted from `begin`, is less than `count`."""
        limits = (self.builder.mul(limit, _I64(2)) for limit in self._limits(count, begin))
        return self.call("aarch64.sve.whilelt.nxv8i1.i64", _OF_HALVES, *limits)

    @staticmethod
    def _limits(count, begin):
        return [limit if isinstance(limit, ir.Value) else _I64(limit) for limit in (begin, count)]

    def load(self, address, words):
        """Load a vector."""
        pointer = self.builder.inttoptr(address, _POINTER)
        return self.call("aarch64.sve.ld1.nxv4i32", _WORDS, words, pointer)

    def move(self, name, address, words, square, row):
        """Load or store a row of a square: `name` is ld1w or st1w."""
        pointer, row = self.builder.inttoptr(address, _POINTER), self.builder.trunc(row, _I32)
        self.call(f"aarch64.sme.{name}.horiz", ir.VoidType(), words, pointer, _I32(square), row)

    def column(self, words, square, column):
        """Return a column of a square."""
        index = self.builder.trunc(column, _I32)
        nothing = ir.Constant(_WORDS, None)
        return self.call("aarch64.sme.read.vert.nxv4i32", _WORDS, nothing, words, _I32(square), index)

    def add_products(self, square, rows, columns, x, y):
        """Add the outer products of two vectors of pairs to a square."""
        x, y = (self.builder.bitcast(vector, self._pairs) for vector in (x, y))
        name = f"aarch64.sme.mopa.wide.{self._suffix}"
        self.call(name, ir.VoidType(), _I32(square), rows, columns, x, y)


def _emit_tile(builder, sme, T, A, lda, B, depths):
    """Emit the loops of a tile: squares of n rows of A and 2·n columns of B, and n pairs of A at a time."""
    n = builder.mul(sme.call("vscale.i64", _I64), _I64(4))
    pairs = builder.mul(depths, _I64(PAIRS))

    def at(address, row, row_bytes, word):
        return builder.add(address, builder.add(builder.mul(row, row_bytes), builder.mul(word, _I64(4))))

    def smaller(a, b):
        return builder.select(builder.icmp_signed("<", a, b), a, b)

    row_bytes, height = _I64(ROW_BYTES), smaller(n, _I64(SIDE))
    with cgutils.for_range_slice(builder, _I64(0), _I64(SIDE), n, inc=True) as (i, _):
        rows = sme.first_pairs(SIDE, i)
        with cgutils.for_range_slice(builder, _I64(0), _I64(SIDE), builder.mul(n, _I64(2)), inc=True) as (j, _):
            halves = ((LEFT, j), (RIGHT, builder.add(j, n)))
            sme.call("aarch64.sme.zero", ir.VoidType(), _I32(ZEROED))
            with cgutils.for_range_slice(builder, _I64(0), pairs, n, inc=True) as (p, _):
                with cgutils.for_range(builder, height) as r:
                    address = at(A, builder.add(i, r.index), lda, p)
                    sme.move("ld1w", address, sme.first(pairs, p), TRANSPOSED, r.index)
                with cgutils.for_range(builder, smaller(n, builder.sub(pairs, p))) as q:
                    x = sme.column(sme.first(SIDE, i), TRANSPOSED, q.index)
                    for square, column in halves:
                        y = sme.load(at(B, builder.add(p, q.index), row_bytes, column), sme.first(SIDE, column))
                        sme.add_products(square, rows, sme.first_pairs(SIDE, column), x, y)
            with cgutils.for_range(builder, height) as r:
                for square, column in halves:
                    address = at(T, builder.add(i, r.index), row_bytes, column)
                    sme.move("st1w", address, sme.first(SIDE, column), square, r.index)


def tile_function(module, precision):
    """Return the function of a module that computes a tile, and define it at the first call."""
    name = f"mxpeak_sme_{precision}"
    if name in module.globals:
        return module.globals[name]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_I64] * 5), name)
    function.linkage, function.attributes = "internal", _Attributes(_Attributes._known)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    sme = _Sme(builder, precision)
    sme.call("aarch64.sme.za.enable", ir.VoidType())
    _emit_tile(builder, sme, *function.args)
    sme.call("aarch64.sme.za.disable", ir.VoidType())
    builder.ret_void()
    return function


def _tile_by(precision):
    """Return the signature and code of an intrinsic that computes a tile, or nothing on other processors."""

    def codegen(context, builder, signature, args):
        if is_available():
            builder.call(tile_function(builder.module, precision), args)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), codegen


@intrinsic
def tile_fp16(typingctx, T, A, lda, B, depths):
    """Compute T = A B for fp16 numbers by FMOPA, with the arguments of `matrix_engines.tile`."""
    return _tile_by("fp16")


@intrinsic
def tile_bf16(typingctx, T, A, lda, B, depths):
    """Compute T = A B for bf16 numbers by BFMOPA, with the arguments of `matrix_engines.tile`."""
    return _tile_by("bf16")
