"""The moduli of emulated fp64 products, the constants that restore an integer from its residues, and the counts.

Ozaki scheme II (Ozaki, Uchino and Imamura, arXiv 2504.08009) computes A B with INT8 products only:

1. Row i of A is scaled by a power of two to |ã_ij| < 1, column l of B to |b̃_jl| < 1, and G = |Ã||B̃| is estimated.
2. Integers A' = round(2^p_i ã_ij) and B' = round(2^q_l b̃_jl) replace both operands.
3. For each of n coprime moduli m, INT8 products give the residues of A'B' modulo m.
4. The Chinese remainder theorem restores A'B', whose absolute value is below half of the product M of the moduli.

Rounding to integers changes entry (i, l) of A B by at most 2^-(p_i+1) Σ_j |b̃_jl| + 2^-(q_l+1) Σ_j |ã_ij|, relative to
the scales. p_i and q_l are the smallest integers for which both terms are at most u·G_il for all entries. Graded rows
and columns therefore get more bits, and the bound 2u·|A||B| holds entry by entry. Restoring in fp64 adds 6u·|A||B|.
Each subtraction from C adds u·(|C| + |A||B|). A product with k > DEPTH is subtracted in ⌈k/DEPTH⌉ parts.

Scheme I multiplies s slices of 7 or 8 bits in s(s+1)/2 products: 28 for 7 slices. Scheme II needs 15 or 16 for the same
accuracy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import gcd, log2, prod

#: Significand bits of an integer A' or B' whose row or column has a uniform |A||B|.
BITS = 52
#: Moduli for rows and columns without large spans, and the largest number of moduli. Blocks that need more moduli are
#: computed in native fp64.
USUAL, MAX_MODULI = 16, 24
#: The largest k of one product. INT32 sums of products of residues allow 2^16. The workspace limits k to less.
DEPTH = 1 << 14
#: Scaled nonzero entries are estimated as at least TINY, so that no term of an estimate of G underflows in fp32.
#: Estimates below k·LEAST may consist of such terms and are too inaccurate.
TINY, LEAST = 2.0**-62, 2.0**-57
#: The smallest positive number. It replaces scaled entries that would be zero, so that they are estimated as TINY.
SUBNORMAL = 2.0**-1074
#: 1 / (1 - 2^-6 - 2^-5), rounded up: the largest ratio of an estimate of G to G. 2^-6 bounds the rounding of both
#: factors to bf16 and the errors of DEPTH additions in fp32. 2^-5 bounds the terms of at least TINY.
SLACK = 1.0625
#: Bits by which the product of the moduli exceeds the largest |A'B'|: the sign, and the error of the estimate of G.
MARGIN = 1.15
#: Bits of each word of the fractions that restore an integer. Sums of MAX_MODULI products with 8-bit numbers are exact.
WORD = 40
#: Bits of each of three parts into which an integer is divided to compute its residues. Sums of three products of a
#: part and a residue of 8 bits are exact in fp64.
PART = 44


def _coprime(count: int) -> tuple[int, ...]:
    """Return the `count` largest pairwise coprime integers up to 256, in decreasing order."""
    moduli: list[int] = []
    candidate = 256
    while len(moduli) < count:
        if all(gcd(candidate, m) == 1 for m in moduli):
            moduli.append(candidate)
        candidate -= 1
    return tuple(moduli)


#: The moduli. Residues in [-m/2, m/2) are INT8 numbers.
MODULI = _coprime(MAX_MODULI)


@dataclass(frozen=True, slots=True)
class Residues:
    """The constants of the first n moduli m_t, with M = Π m_t.

    moduli    m_t
    product   M
    words     words[w][t]: bits WORD·w to WORD·(w+1) behind the binary point of ((M/m_t)^-1 mod m_t) / m_t. An integer
              X with residues r_t satisfies X/M = Σ_t r_t · this fraction, up to an integer.
    """

    moduli: tuple[int, ...]
    product: int
    words: tuple[tuple[int, ...], ...]


def part_residues(modulus: int) -> tuple[int, int]:
    """Return 2^PART and 2^(2·PART) modulo `modulus`, as residues of the smallest absolute value."""
    first, second = (pow(2, PART * part, modulus) for part in (1, 2))
    return first - modulus * (2 * first > modulus), second - modulus * (2 * second > modulus)


@cache
def residues(count: int) -> Residues:
    """Return the constants of the first `count` moduli.

    |A'||B'| is at least 2^(2·BITS-1). The words are sufficient if their unit, M·2^(-WORD·words), times the largest sum
    of residues is below a sixteenth of u·|A'||B'|.
    """
    moduli = MODULI[:count]
    M = prod(moduli)
    length = 1
    while log2(M) - WORD * length + log2(128 * count) > 2 * BITS - 1 - 53 - 4:
        length += 1
    fractions = [(pow(M // m, -1, m) << (WORD * length)) // m for m in moduli]
    shifts = [WORD * (length - 1 - w) for w in range(length)]
    words = tuple(tuple(f >> shift & ((1 << WORD) - 1) for f in fractions) for shift in shifts)
    return Residues(moduli, M, words)


def moduli_for(bits: float) -> int:
    """Return the number of moduli that represent integers of up to 2^bits, or 0 if it exceeds MAX_MODULI."""
    return next((count for count in range(1, MAX_MODULI + 1) if log2(prod(MODULI[:count])) >= bits + MARGIN), 0)


@dataclass(frozen=True, slots=True)
class Emulation:
    """The numbers of blocks of products that were computed in each way. Counts of several products can be added.

    emulated   blocks computed with INT8 residues
    widened    emulated blocks that needed more than USUAL moduli because of the spans of exponents
    native     blocks computed in native fp64, because they contain NaN or infinity or need more than MAX_MODULI moduli
    moduli     the largest number of moduli of a block
    """

    emulated: int = 0
    widened: int = 0
    native: int = 0
    moduli: int = 0

    def __add__(self, other: Emulation) -> Emulation:
        """Return the counts of both products."""
        return Emulation(
            self.emulated + other.emulated,
            self.widened + other.widened,
            self.native + other.native,
            max(self.moduli, other.moduli),
        )


def blocks(m: int, n: int, k: int, side: int) -> Iterator[tuple[slice, slice, list[slice]]]:
    """Yield the rows and columns of each block of an m×n matrix C, and the parts of k, to be subtracted in order."""
    depths = [slice(k0, k0 + DEPTH) for k0 in range(0, k, DEPTH)]
    for i, j in product(range(0, m, side), range(0, n, side)):
        yield slice(i, i + side), slice(j, j + side), depths


#: The largest number of rows and columns of a block of the host, which limits its workspace.
HOST_BLOCK = 8192


def host_workspace_bytes(m: int, n: int, k: int) -> int:
    """Return the workspace of an m×n×k product on the host: scaled operands in fp64, and their residues."""
    return (8 + USUAL) * (min(m, HOST_BLOCK) + min(n, HOST_BLOCK)) * min(k, DEPTH)


def cublas_workspace_bytes(m: int, n: int, k: int) -> int:
    """Return NVIDIA's upper bound of the workspace in which cuBLAS emulates an m×n×k product with slices of 8 bits.

    79 bits, the most that cuBLAS uses, take 10 slices. The bound is 5.5 GiB for m = n = 2^14 and k = 1024.
    """
    slices = 10
    products = min(4 * m * n * slices, 4 << 30) * -(-k // 8192)
    return (products + slices * (m + n) * k) * 5 // 4 + (128 << 20)


#: The counts of a block in native fp64.
NATIVE = Emulation(native=1)


def emulated_with(moduli: int) -> Emulation:
    """Return the counts of a block that was computed with this number of moduli."""
    return Emulation(emulated=1, widened=int(moduli > USUAL), moduli=moduli)
