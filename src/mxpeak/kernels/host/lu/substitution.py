"""Solve with the triangle of a panel's diagonal block for many right-hand sides, by substitution in vector registers.

The DTRSM of OpenBLAS reaches 20 to 35 % of the rate of DGEMM with AVX-512. For U12 and NB from 192, this kernel reaches
80 to 90 %. It divides the right-hand sides into strips of three registers, and computes a strip of X by tiles of ROWS
rows:

    X_i = T_ii^-1 (B_i - Σ_(k<i) T_ik X_k)

The sums stay in registers, the strip in the first- or second-level cache, and the packed triangle in the second-level
cache. For a triangle up to ORDER, the strip and the thread of a column do not change its result.
"""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mxpeak.kernels.host.engine.jit import FLAG, INT, MATRIX, MATRIX32, inner, jit
from mxpeak.kernels.host.engine.vector_ir import HAS_AVX512, Vectors, address_of, prefetch_far
from mxpeak.kernels.host.lu.row_moves import part_of

#: Bytes of a vector register, and the rows and vectors of a tile, whose sums occupy 24 of 32 or 12 of 16 registers.
REGISTER, ROWS, VECTORS = (64, 8, 3) if HAS_AVX512 else (32, 4, 3)
#: Bytes of a row of a strip, and of a cache line.
WIDTH, LINE = REGISTER * VECTORS, 64
#: The largest order of a triangle. For larger triangles, products subtract the contributions of the blocks before.
ORDER = 384

_I64 = ir.IntType(64)


@intrinsic
def _solve_tile(typingctx, of, t, x, b, step, depth):
    """Compute X_i = T_ii^-1 (B_i - Σ_k T_ik X_k) for a tile of ROWS rows, where row `depth` is the first.

    The results are stored in the strip X and over B_i.

    of      a matrix with the type of the numbers
    t       the address of the packed T_ik, which `pack` describes
    x       the address of the strip X
    b       the address of B_i, whose rows are `step` bytes apart
    """
    signature = types.void(of, *[types.int64] * 5)

    def codegen(context, builder, signature, args):
        _, t, x, b, step, depth = args
        vectors = Vectors.of_registers(context, builder, of, REGISTER, REGISTER)
        size, across = vectors.size, [_I64(REGISTER * v) for v in range(VECTORS)]

        def entry(column, r):
            address = builder.add(column, _I64(size * r))
            return vectors.all(vectors.number(address)[0])

        places = [
            [builder.add(builder.add(b, builder.mul(step, _I64(r))), offset) for offset in across] for r in range(ROWS)
        ]
        sums = [[cgutils.alloca_once_value(builder, vectors.load(place)) for place in row] for row in places]
        with cgutils.for_range(builder, depth) as loop:
            x_k = builder.add(x, builder.mul(loop.index, _I64(WIDTH)))
            t_k = builder.add(t, builder.mul(loop.index, _I64(ROWS * size)))
            X_k = [vectors.load(builder.add(x_k, offset)) for offset in across]
            for r, row in enumerate(sums):
                minus_t = entry(t_k, r)
                for value, total in zip(X_k, row):
                    builder.store(vectors.add_product(minus_t, value, builder.load(total)), total)

        x_i = builder.add(x, builder.mul(depth, _I64(WIDTH)))
        t_i = builder.add(t, builder.mul(depth, _I64(ROWS * size)))
        X = [[builder.load(total) for total in row] for row in sums]
        for r in range(ROWS):
            t_r = builder.add(t_i, _I64(ROWS * size * r))
            inverse = entry(t_r, r)
            X[r] = [builder.fmul(inverse, value) for value in X[r]]
            for s in range(r + 1, ROWS):
                minus_t = entry(t_r, s)
                X[s] = [vectors.add_product(minus_t, value, total) for value, total in zip(X[r], X[s])]
            for value, place, offset in zip(X[r], places[r], across):
                vectors.store(value, place)
                vectors.store(value, builder.add(x_i, builder.add(offset, _I64(WIDTH * r))))
        return context.get_dummy_value()

    return signature, codegen


@jit(INT, INT, FLAG, MATRIX, MATRIX, also=(INT, INT, FLAG, MATRIX32, MATRIX32), later=True)
def pack(tid, threads, right, T, packed):
    """Store T in the order in which `substitute` reads it; T is unit lower or, if `right`, upper and transposed.

    Row i of `packed` contains the columns k of T_ik one after another, each with ROWS numbers. The entries are negated.
    The diagonal contains the inverses 1/t_kk, or ones for a unit triangle. Rows after the last row of T are rows of the
    unit matrix.
    """
    n, zero, one = T.shape[0], T.dtype.type(0), T.dtype.type(1)
    for i in range(tid, packed.shape[0], threads):
        for k in range((i + 1) * ROWS):
            for r in range(ROWS):
                row = i * ROWS + r
                if k > row or (row >= n and k < row):
                    value = zero
                elif k == row:
                    value = one / T[k, k] if right and k < n else one
                else:
                    value = -T[k, row] if right else -T[row, k]
                packed[i, k * ROWS + r] = value


@inner()
def _copy_in(right, B, at, count, strips, x):
    """Copy `count` columns of B, or rows if `right`, to the columns of a strip, and set the other columns to zero."""
    n = B.shape[1] if right else B.shape[0]
    for k in range(n):
        for c in range(count):
            strips[x + k, c] = B[at + c, k] if right else B[k, at + c]
        for c in range(count, strips.shape[1]):
            strips[x + k, c] = B.dtype.type(0)


@inner()
def _copy_out(right, B, at, count, strips, x):
    """Copy the solution for `count` rows or columns from a strip to B."""
    n = B.shape[1] if right else B.shape[0]
    for k in range(n):
        for c in range(count):
            if right:
                B[at + c, k] = strips[x + k, c]
            else:
                B[k, at + c] = strips[x + k, c]


@inner()
def _prefetch_tile(B, i, c):
    """Prefetch the tile B[i : i+ROWS, c:] of a strip to the second-level cache."""
    for r in range(ROWS):
        address = address_of(B, i + r, c)
        for offset in range(0, WIDTH, LINE):
            prefetch_far(address + offset)


@jit(INT, INT, FLAG, *[MATRIX] * 3, also=(INT, INT, FLAG, *[MATRIX32] * 3), later=True)
def substitute(tid, threads, right, B, packed, strips):
    """Compute B = T^-1 B, or B = B T^-1 if `right`, in place, for this thread's strips of the row-major B.

    `packed` contains T in the order of `pack`. `strips` is workspace, with rows of WIDTH bytes for each thread.
    """
    n, many = (B.shape[1], B.shape[0]) if right else B.shape
    width, padded = strips.shape[1], strips.shape[0] // threads
    x, whole = tid * padded, n % ROWS == 0 and not right
    first, end = part_of(tid, threads, -(-many // width))
    stop = min(end * width, many)
    for at in range(first * width, stop, width):
        count = min(width, many - at)
        direct = whole and count == width
        if not direct:
            _copy_in(right, B, at, count, strips, x)
        target, row, column = (B, 0, at) if direct else (strips, x, 0)
        step = target.strides[0]
        for i in range(packed.shape[0]):
            k = i * ROWS
            if direct and at + 2 * width <= stop:
                _prefetch_tile(B, k, at + width)
            X, B_i = address_of(strips, x, 0), address_of(target, row + k, column)
            _solve_tile(B, address_of(packed, i, 0), X, B_i, step, k)
        if not direct:
            _copy_out(right, B, at, count, strips, x)


#: The entry points of solves by substitution.
ENTRIES = (pack, substitute)
