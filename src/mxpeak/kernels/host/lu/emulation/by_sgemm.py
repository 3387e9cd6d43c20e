"""Emulate fp64 products by exact products of INT8 residues in SGEMM; `contract.emulation` describes the method.

Processors without a matrix engine for INT8 numbers use it. The threads compute separate blocks of C. For each block, a
thread scales the rows of A and the columns of B, selects the number of moduli, and computes residues, products and
sums. Sums of up to 2^10 products below 2^14 are exact in SGEMM, but 16 such products take about 8 times as long as
DGEMM. AVX512-VNNI would not help: it has 8 times the rate of fp64, so that 16 products take twice as long as DGEMM.
"""

from __future__ import annotations

from math import log2
from typing import Any, NamedTuple

import numpy as np
from numba import types

from mxpeak.kernels.contract.emulation import (
    LEAST,
    NATIVE,
    PART,
    TINY,
    WORD,
    Emulation,
    blocks,
    emulated_with,
    moduli_for,
    part_residues,
    residues,
)
from mxpeak.kernels.host.engine import blas
from mxpeak.kernels.host.engine.jit import INT, INTEGERS, MATRIX, MATRIX32, VECTOR, inner, jit
from mxpeak.kernels.host.engine.vector_ir import nearest, row
from mxpeak.kernels.host.lu.emulation.scaling import NOT_FINITE, power_of_two, scale_line, significant_bits, times_power
from mxpeak.kernels.host.lu.row_moves import copy_block

Array = np.ndarray[Any, np.dtype[Any]]

#: The largest number of rows and columns of a block. At k = DEPTH, a thread needs 0.5 GiB of workspace for a block:
#: operands in fp64 and fp32, and residues in fp32.
BLOCK = 1024
#: The largest k for which SGEMM multiplies residues exactly.
EXACT = 1 << 10
#: 2^PART and 2^(2·PART), and the unit of the first word of a fraction.
ONE_PART, TWO_PARTS, UNIT = 2.0**PART, 2.0 ** (2 * PART), 2.0**-WORD

SUMS, SMALL, SMALLS = types.int32[:, ::1], types.Array(types.int8, 2, "A"), types.int8[:, :, ::1]
WORDS = types.float64[:, ::1]


class SgemmLines(NamedTuple):
    """The rows of A or the columns of B, scaled by powers of two.

    entries     each line with its largest absolute value in [1/2, 1); later, the integers A' or B'
    bounds      absolute values in fp32, with nonzero values of at least TINY
    exponents   the binary logarithms of the scales
    sums        the sums of the absolute values
    """

    entries: Array
    bounds: Array
    exponents: Array
    sums: Array


def subtract_part(tid: int, threads: int, C: Array, A: Array, B: Array, counts: list[Emulation]) -> None:
    """Compute this thread's blocks of C -= A B, and add their counts to counts[tid]."""
    (m, k), n = A.shape, B.shape[1]
    for rows, columns, depths in list(blocks(m, n, k, BLOCK))[tid::threads]:
        for depth in depths:
            counts[tid] += _subtract_block(C[rows, columns], A[rows, depth], B[depth, columns])


def _subtract_block(C: Array, A: Array, B: Array) -> Emulation:
    """Compute C -= A B for one block, by residues if possible, and return how."""
    left, right = _scaled(A), _scaled(B.T)
    if max(left.exponents.max(), right.exponents.max()) < NOT_FINITE:
        p, q, moduli = _bits_and_moduli(left, right)
        if moduli:
            to_integers(left.entries, p)
            to_integers(right.entries, q)
            constants = residues(moduli)
            R = products_by_sgemm(left.entries, right.entries, constants.moduli)
            words, M = np.array(constants.words, np.float64), float(constants.product)
            subtract_restored(C, R, words, M, left.exponents - p, right.exponents - q)
            return emulated_with(moduli)
    blas.gemm(-1.0, A, B, C)
    return NATIVE


def _scaled(A: Array) -> SgemmLines:
    """Return the scaled rows of A."""
    lines = SgemmLines(
        np.empty(A.shape), np.empty(A.shape, np.float32), np.empty(len(A), np.int64), np.empty(len(A), np.float64)
    )
    copy_block(0, 1, A, lines.entries)
    scale_lines(*lines)
    return lines


def _bits_and_moduli(left: SgemmLines, right: SgemmLines) -> tuple[Array, Array, int]:
    """Return the bits of the rows of A' and of the columns of B', and the number of moduli: 0 if there are too many."""
    (m, k), n = left.entries.shape, len(right.entries)
    G = np.zeros((m, n), np.float32)
    blas.gemm(1.0, left.bounds, right.bounds.T, G)
    by_row, by_column, extreme = np.empty(m), np.empty(n), np.empty(1)
    largest_ratios(G, left.sums, right.sums, by_row, by_column, extreme)
    p, q = significant_bits(by_row), significant_bits(by_column)
    if extreme[0] < k * LEAST:
        return p, q, 0
    largest_product(G, p, q, extreme)
    return p, q, moduli_for(log2(extreme[0]) if extreme[0] > 0 else 0.0)


def products_by_sgemm(A: Array, B: Array, moduli: tuple[int, ...]) -> Array:
    """Return the residues of A' B' modulo each modulus; the arguments are the rows of A' and the columns of B'."""
    (m, k), n = A.shape, len(B)
    R, left, right = np.empty((len(moduli), m, n), np.int8), np.empty((m, k), np.float32), np.empty((n, k), np.float32)
    P, sums = np.empty((m, n), np.float32), np.empty((m, n), np.int32)
    for R_t, modulus in zip(R, moduli):
        constants = constants_of(modulus)
        to_residues(A, constants, left)
        to_residues(B, constants, right)
        sums.fill(0)
        for k0 in range(0, k, EXACT):
            P.fill(0)
            blas.gemm(1.0, left[:, k0 : k0 + EXACT], right[:, k0 : k0 + EXACT].T, P)
            add_exact(P, sums)
        reduce_sums(sums, modulus, R_t)
    return R


def constants_of(modulus: int) -> Array:
    """Return m and its `part_residues`, for compiled code."""
    return np.array([modulus, *part_residues(modulus)], np.float64)


@jit(MATRIX, MATRIX32, INTEGERS, VECTOR, later=True)
def scale_lines(entries, bounds, exponents, sums):
    """Scale row-major lines in place, and compute the other members of `SgemmLines`."""
    tiny = np.float32(TINY)
    for i in range(entries.shape[0]):
        a, low = row(entries, i, 0, entries.shape[1]), row(bounds, i, 0, entries.shape[1])
        e = scale_line(a)
        exponents[i], total = e, 0.0
        if e == NOT_FINITE:
            continue
        for j in range(a.shape[0]):
            low[j] = max(np.float32(abs(a[j])), tiny) if a[j] != 0.0 else np.float32(0.0)
        for j in range(a.shape[0]):
            total += abs(a[j])
        sums[i] = total


@jit(MATRIX32, VECTOR, VECTOR, VECTOR, VECTOR, VECTOR, later=True)
def largest_ratios(G, left_sums, right_sums, by_row, by_column, smallest):
    """Compute by_row_i = max_l right_sums_l / G_il and by_column_l = max_i left_sums_i / G_il, over positive G_il.

    smallest[0] becomes the smallest positive G_il.
    """
    by_column[:] = 0.0
    least = np.inf
    for i in range(G.shape[0]):
        g, largest, sum_i = row(G, i, 0, G.shape[1]), 0.0, left_sums[i]
        for j in range(g.shape[0]):
            positive = g[j] > np.float32(0.0)
            inverse = 1.0 / np.float64(g[j]) if positive else 0.0
            largest = max(largest, inverse * right_sums[j])
            by_column[j] = max(by_column[j], inverse * sum_i)
            least = min(least, np.float64(g[j]) if positive else np.inf)
        by_row[i] = largest
    smallest[0] = least


@jit(MATRIX32, INTEGERS, INTEGERS, VECTOR, later=True)
def largest_product(G, p, q, largest):
    """Set largest[0] to the maximum of G_il · 2^(p_i + q_l)."""
    maximum = 0.0
    for i in range(G.shape[0]):
        g, scale = row(G, i, 0, G.shape[1]), power_of_two(p[i])
        for j in range(g.shape[0]):
            maximum = max(maximum, np.float64(g[j]) * scale * power_of_two(q[j]))
    largest[0] = maximum


@jit(MATRIX, INTEGERS, later=True)
def to_integers(entries, bits):
    """Replace each entry of line i with the integer nearest to 2^bits_i times the entry."""
    for i in range(entries.shape[0]):
        a, scale = row(entries, i, 0, entries.shape[1]), power_of_two(bits[i])
        for j in range(a.shape[0]):
            a[j] = nearest(a[j] * scale)


@inner(inline=True)
def residue(x, m, inverse, power, second_power):
    """Return the residue of the integer x modulo m in [-m/2, m/2], exactly, for |x| < 2^(3·PART - 1).

    x is divided into three parts: x = low + 2^PART·middle + 2^(2·PART)·high. power = 2^PART mod m.
    """
    high = nearest(x * (1.0 / TWO_PARTS))
    x -= high * TWO_PARTS
    middle = nearest(x * (1.0 / ONE_PART))
    x -= middle * ONE_PART
    x += middle * power + high * second_power
    return x - nearest(x * inverse) * m


@jit(MATRIX, VECTOR, MATRIX32, later=True)
def to_residues(integers, constants, out):
    """Write the residues of the integers to `out`; `constants` are those of `constants_of`."""
    m, power, second_power = constants[0], constants[1], constants[2]
    inverse = 1.0 / m
    for i in range(integers.shape[0]):
        a, r = row(integers, i, 0, integers.shape[1]), row(out, i, 0, integers.shape[1])
        for j in range(a.shape[0]):
            r[j] = np.float32(residue(a[j], m, inverse, power, second_power))


@jit(MATRIX32, SUMS, later=True)
def add_exact(P, sums):
    """Add the integers in P to `sums`."""
    for i in range(P.shape[0]):
        p, s = row(P, i, 0, P.shape[1]), row(sums, i, 0, P.shape[1])
        for j in range(p.shape[0]):
            s[j] += np.int32(p[j])


@inner()
def reduce_row(sums, modulus, out):
    """Write the residues of the sums modulo `modulus` to `out`. 128 is stored as -128, which is equal modulo 256."""
    m, inverse = np.float64(modulus), 1.0 / np.float64(modulus)
    for j in range(sums.shape[0]):
        x = np.float64(sums[j])
        out[j] = np.int8(np.int32(x - nearest(x * inverse) * m))


@jit(SUMS, INT, SMALL, later=True)
def reduce_sums(sums, modulus, out):
    """Write the residues of the sums modulo `modulus` to `out`."""
    for i in range(sums.shape[0]):
        reduce_row(row(sums, i, 0, sums.shape[1]), modulus, row(out, i, 0, sums.shape[1]))


@jit(MATRIX, SMALLS, WORDS, types.float64, INTEGERS, INTEGERS, allocates=True, later=True)
def subtract_restored(C, R, words, M, by_row, by_column):
    """Subtract X_il · 2^(by_row_i + by_column_l) from C_il, where the integer X has the residues R modulo n moduli.

    The words are those of `contract.emulation.residues`, and M is the product of the moduli. X/M is the fraction of
    Σ_w 2^(-WORD·(w+1)) Σ_t words_wt R_t. The inner sums are exact. The outer sum starts with the largest term, so that
    each addition is exact or has a relative error of u.
    """
    columns = C.shape[1]
    sums = np.empty((words.shape[0], columns))
    for i in range(C.shape[0]):
        for w in range(words.shape[0]):
            s = row(sums, w, 0, columns)
            s[:] = 0.0
            for t in range(R.shape[0]):
                word, r = words[w, t], row(R[t], i, 0, columns)
                for j in range(columns):
                    s[j] += word * np.float64(r[j])
        fraction = row(sums, 0, 0, columns)
        for j in range(columns):
            x = fraction[j] * UNIT
            fraction[j] = x - nearest(x)
        for w in range(1, words.shape[0]):
            s, unit = row(sums, w, 0, columns), power_of_two(-WORD * (w + 1))
            for j in range(columns):
                fraction[j] += s[j] * unit
        c = row(C, i, 0, columns)
        for j in range(columns):
            c[j] -= times_power(fraction[j] * M, by_row[i] + by_column[j])


#: The entry points of products by SGEMM.
BY_SGEMM = (
    scale_lines,
    largest_ratios,
    largest_product,
    to_integers,
    to_residues,
    add_exact,
    reduce_sums,
    subtract_restored,
)
