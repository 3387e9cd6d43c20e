"""Estimate |A||B| and compute emulated products by the tiles of a matrix engine.

The sums of a tile are reduced while the engine computes the next tile.
"""

from __future__ import annotations

import numpy as np
from numba import types

from mxpeak.kernels.host.engine.jit import FLAG, INT, INTEGERS, MATRIX, inner, jit
from mxpeak.kernels.host.engine.matrix_engines import (
    COLUMNS,
    PACKED,
    ROWS,
    add_steps_int8,
    begin,
    begin_sums,
    end,
    packed_tile_bf16,
    store_sums,
)
from mxpeak.kernels.host.engine.vector_ir import address_of, atomic_add, nearest, prefetch_far, row, weighted_sums
from mxpeak.kernels.host.lu.emulation.packing import LEFT, TABLE32
from mxpeak.kernels.host.lu.emulation.residue_ir import LANES, store_residues_of_sums, update_extremes
from mxpeak.kernels.host.lu.emulation.scaling import power_of_two, times_power
from mxpeak.kernels.host.lu.operands import STRIPS
from mxpeak.kernels.host.lu.row_moves import part_of

#: Steps of a tile, after which the next tile begins. 32 columns of B with 16·64 entries fit into the first-level cache.
STEPS = 16
#: Steps between which some rows of the previous tile are reduced.
BETWEEN, REDUCED = 2, 4
#: Largest number of rows and columns of a piece of C, and the size of its rows of A in bytes. These rows stay in the
#: second-level cache.
PIECE_ROWS, PIECE_COLUMNS, PIECE_BYTES = 512, 512, 1 << 20
#: Strips of B that are multiplied by a block of rows at a time, to estimate G.
GROUP = 8

CONFIG, WEIGHTS, SUMS = types.uint8[::1], types.float32[::1], types.int32[:, :, ::1]
WORDS = types.float64[:, ::1]


@jit(INT, INT, INT, CONFIG, LEFT, STRIPS, WEIGHTS, WEIGHTS, TABLE32, TABLE32, TABLE32, TABLE32, later=True)
def estimate_extremes(tid, threads, engine, config, left, right, x, y, tiles, by_row, by_column, extremes):
    """Compute the extremes of `_Block._estimate` for this thread's rows of G, as LANES extremes each."""
    b0, b1 = part_of(tid, threads, left.shape[0])
    begin(engine, np.int64(config.ctypes.data))
    T, steps, weights = address_of(tiles, tid, 0), left.shape[1] // ROWS, np.int64(y.ctypes.data)
    for s0 in range(0, right.shape[0], GROUP):
        for b in range(b0, b1):
            A, rows = address_of(left[b], 0, 0), min(ROWS, x.shape[0] - b * ROWS)
            for s in range(s0, min(s0 + GROUP, right.shape[0])):
                packed_tile_bf16(engine, T, A, address_of(right[s], 0, 0), steps)
                for r in range(rows):
                    i = b * ROWS + r
                    for j in range(s * COLUMNS, (s + 1) * COLUMNS, LANES):
                        g = T + (r * COLUMNS + j % COLUMNS) * 4
                        update_extremes(
                            g, x[i], weights + 4 * j, address_of(by_row, i, 0), address_of(by_column, tid, j),
                            address_of(extremes, tid, 0),
                        )  # fmt: skip
    end(engine)


@inner()
def _reduce_rows(T, r0, r1, constants, out):
    """Write the residues of rows r0:r1 of the tile at address T to rows of bytes at address `out`."""
    for r in range(r0, r1):
        for j in range(0, COLUMNS, LANES):
            store_residues_of_sums(T + (r * COLUMNS + j) * 4, out + r * PIECE_COLUMNS + j, constants)


@inner()
def _prefetch(address, size):
    """Prefetch `size` bytes to the second-level cache, and return the address after them."""
    for byte in range(0, size, 64):
        prefetch_far(address + byte)
    return address + size


@inner()
def _residues_of_piece(engine, left, right, next_left, steps, shape, constants, sums, out):
    """Write the residues of a piece of A'B' to `out`. The operands are addresses; `shape` is in tiles.

    Sums over more than STEPS steps are stored between the parts. The rows of a tile are reduced between the steps of
    the next one, which the engine computes at the same time. The next strip of B and the rows of A modulo the next
    modulus, at the address `next_left`, are prefetched.
    """
    down, across = shape
    R, last, reduced, ahead = address_of(out, 0, 0), np.int64(0), np.int64(0), next_left
    of_left, of_right = PACKED * BETWEEN // across // 64 * 64, PACKED * BETWEEN // down // 64 * 64
    for s in range(across):
        B = right + s * steps * PACKED
        next_right = B + steps * PACKED
        for first in range(0, steps, STEPS):
            last_step = min(first + STEPS, steps)
            for i in range(down):
                slot = s % 2 * down + i if steps > STEPS else (s * down + i) % 2
                T, A, r = address_of(sums, slot, 0), left + i * steps * PACKED, 0
                begin_sums(engine, T, first > 0)
                for step in range(first, last_step, BETWEEN):
                    ahead, next_right = _prefetch(ahead, of_left), _prefetch(next_right, of_right)
                    add_steps_int8(engine, T, A + step * PACKED, B + step * PACKED, min(BETWEEN, last_step - step))
                    if last != 0 and r < ROWS:
                        _reduce_rows(last, r, r + REDUCED, constants, reduced)
                        r += REDUCED
                if last != 0:
                    _reduce_rows(last, r, ROWS, constants, reduced)
                store_sums(engine, T)
                last = T if last_step == steps else np.int64(0)
                reduced = R + i * ROWS * PIECE_COLUMNS + s * COLUMNS
    _reduce_rows(last, 0, ROWS, constants, reduced)


@inner()
def _subtract_row(c, R, moduli, words, M, e_i, by_column, power, powers, usual, sums):
    """Subtract a row of the piece, whose residues begin at address R, from c."""
    n = c.shape[0]
    fraction = row(sums, 0, 0, n)
    for w in range(0, words.shape[0], 2):
        W = address_of(words, w, 0)
        for j in range(0, n, 16):
            weighted_sums(R + j, PIECE_ROWS * PIECE_COLUMNS, moduli, W, address_of(sums, 1 + w, j), PIECE_COLUMNS * 8)
    first, second = row(sums, 1, 0, n), row(sums, 2, 0, n)
    for j in range(n):
        fraction[j] = first[j] - nearest(first[j]) + second[j]
    for w in range(2, words.shape[0]):
        following = row(sums, 1 + w, 0, n)
        for j in range(n):
            fraction[j] += following[j]
    if usual:
        for j in range(n):
            c[j] -= fraction[j] * M * power * powers[j]
    else:
        for j in range(n):
            c[j] -= times_power(fraction[j] * M, e_i + by_column[j])


@jit(
    INT, INT, INT, CONFIG, MATRIX, LEFT, STRIPS, TABLE32, SUMS, LEFT, WORDS,
    types.float64, INTEGERS, INTEGERS, FLAG, INTEGERS, allocates=True, later=True,
)  # fmt: skip
def multiply(
    tid, threads, engine, config, C, left, right, constants, sums, R, words, M, by_row, by_column, usual, taken
):
    """Compute pieces of C until all are taken; `taken` counts the pieces that threads have begun."""
    (m, n), moduli = C.shape, constants.shape[0]
    blocks, strips, steps = left.shape[0] // moduli, right.shape[0] // moduli, left.shape[1] // ROWS
    rows = max(ROWS, min(PIECE_ROWS, PIECE_BYTES // (steps * PACKED) * ROWS))
    down, across = (m + rows - 1) // rows, (n + PIECE_COLUMNS - 1) // PIECE_COLUMNS
    workspace, powers = np.empty((1 + words.shape[0], PIECE_COLUMNS)), np.empty(n)
    for j in range(n):
        powers[j] = power_of_two(max(min(by_column[j], 1000), -1000))
    begin(engine, np.int64(config.ctypes.data))
    while True:  # a thread takes the next piece, because cores may have different speeds
        piece = atomic_add(taken, 0, 1)
        if piece >= down * across:
            break
        i0, j0 = piece % down * rows, piece // down * PIECE_COLUMNS
        i1, j1 = min(i0 + rows, m), min(j0 + PIECE_COLUMNS, n)
        shape = (i1 - i0 + ROWS - 1) // ROWS, (j1 - j0 + COLUMNS - 1) // COLUMNS
        for t in range(moduli):
            A = address_of(left[t * blocks + i0 // ROWS], 0, 0)
            B = address_of(right[t * strips + j0 // COLUMNS], 0, 0)
            _residues_of_piece(
                engine,
                A,
                B,
                address_of(left[min(t + 1, moduli - 1) * blocks + i0 // ROWS], 0, 0),
                steps,
                shape,
                address_of(constants, t, 0),
                sums[tid],
                R[tid * moduli + t],
            )
        for i in range(i0, i1):
            power = power_of_two(max(min(by_row[i], 1000), -1000))
            _subtract_row(
                row(C, i, j0, j1), address_of(R[tid * moduli], i - i0, 0), moduli, words, M, by_row[i],
                by_column[j0:j1], power, powers[j0:j1], usual, workspace,
            )  # fmt: skip
    end(engine)
