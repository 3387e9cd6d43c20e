"""Reference implementation of emulated fp64 products: exact integers and the definition of each step."""

from __future__ import annotations

from math import log2

import numpy as np

from mxpeak.kernels.contract.emulation import (
    BITS,
    LEAST,
    NATIVE,
    SLACK,
    SUBNORMAL,
    TINY,
    Emulation,
    emulated_with,
    moduli_for,
    residues,
)
from mxpeak.kernels.reference.rounding import Array, quiet


def subtract_emulated_product(C: Array, A: Array, B: Array) -> Emulation:
    """Compute C -= A B in place from residues, as one block, and return the number of moduli or NATIVE."""
    (m, k), n = A.shape, B.shape[1]
    if 0 in (m, n, k):
        return Emulation()
    if np.isfinite(A).all() and np.isfinite(B).all():
        A_scaled, e = scaled(A)
        B_scaled, f = (M.T for M in scaled(B.T))
        p, q, bits = significant_bits(np.abs(A_scaled), np.abs(B_scaled))
        moduli = moduli_for(bits)
        if moduli:
            X = integer_product(integers(A_scaled, p[:, None]), integers(B_scaled, q), moduli)
            with quiet():
                C -= np.ldexp(X.astype(np.float64), (e - p[:, None]) + (f - q))
            return emulated_with(moduli)
    with quiet():
        C -= A @ B
    return NATIVE


def scaled(A: Array) -> tuple[Array, Array]:
    """Return the rows of A, scaled by powers of two to a maximum in [1/2, 1), and the exponents as a column.

    Entries other than zero remain different from zero.
    """
    e = np.frexp(np.abs(A).max(axis=1, keepdims=True))[1].astype(np.int64)
    A_scaled = np.ldexp(A, -e)
    return np.where((A_scaled == 0) & (A != 0), np.copysign(SUBNORMAL, A), A_scaled), e


def significant_bits(A: Array, B: Array) -> tuple[Array, Array, float]:
    """Return the bits p of the rows of A, the bits q of the columns of B, and those of the largest entry of A'B'.

    A and B are scaled and nonnegative. The bits of A'B' are infinite if a term of |A||B| is too small for the estimate.
    """
    G = np.where(A > 0, np.maximum(A, TINY), 0) @ np.where(B > 0, np.maximum(B, TINY), 0)
    least = A.shape[1] * LEAST
    if np.any((G > 0) & (least > G)):
        return np.zeros(len(A), np.int64), np.zeros(B.shape[1], np.int64), np.inf
    inverse = np.where(G > 0, 1 / np.where(G > 0, G, 1), 0)
    p = BITS + np.frexp(SLACK * (inverse * B.sum(axis=0)).max(axis=1))[1].astype(np.int64)
    q = BITS + np.frexp(SLACK * (inverse * A.sum(axis=1)[:, None]).max(axis=0))[1].astype(np.int64)
    largest = np.ldexp(G, p[:, None] + q).max()
    return p, q, log2(largest) if largest > 0 else 0.0


def integers(scaled: Array, bits: Array) -> Array:
    """Return the entries times 2^bits, rounded to nearest even, as exact Python integers."""
    exact: Array = np.vectorize(int, otypes=[object])(np.rint(np.ldexp(scaled, bits)))
    return exact


def integer_product(A: Array, B: Array, count: int) -> Array:
    """Return A B of two matrices of integers, restored from its residues modulo `count` moduli."""
    constants, total = residues(count), np.zeros((A.shape[0], B.shape[1]), object)
    M = constants.product
    for m in constants.moduli:
        R = (A % m).astype(np.int64) @ (B % m).astype(np.int64) % m
        total += R.astype(object) * (M // m * pow(M // m, -1, m))
    total %= M
    restored: Array = np.where(total > M // 2, total - M, total)
    return restored
