"""Solve with a panel's diagonal block for many right-hand sides, by products and inverted diagonal blocks.

On an H100, the library solves for L21 at a quarter of the rate of its fp32 products, and for U12 at a third. fp16
products are nine times as fast as fp32 products. The solves use blocks of 256: columns for X = B U^-1, rows for X =
L^-1 B:

    X_j = (B_j - Σ_(i<j) X_i U_ij) U_jj^-1                X_j = L_jj^-1 (B_j - Σ_(i<j) L_ji X_i)

The sums are products of the LU's operands, which round X_i and U_ij. An LU with blocks of 256 rounds in the same way
in its trailing updates, so the error bound of the LU is unchanged. Products with the inverses are in full fp32. In
TF32 they would be four times as fast, with rounding errors like those of fp16. However, the error would be multiplied
by the condition of U_jj, and the proof of the LU's error bound would fail.
"""

from __future__ import annotations

from typing import Any

import torch

from mxpeak.kernels.contract.lu import BLOCKED_INVERSE, PanelSolve
from mxpeak.kernels.torch.engine.tensors import strips
from mxpeak.kernels.torch.lu import blas

Tensor = Any

#: Order of the inverted blocks, and of the blocks that the library inverts in one batch.
BLOCK, SMALL = 256, 64
#: Entries of a strip of X as an operand.
STRIP = 1 << 26


def solve_right_upper(lu: Any, B: Tensor, U: Tensor, low: str) -> PanelSolve:
    """Compute B = B U^-1 in place, block by block; the sums are products of operands in the precision `low`."""
    nb = U.shape[0]
    inverses = inverse_blocks(U, upper=True)
    U_low = _operand(lu, nb, nb, low, "right")
    lu.cast(U, U_low, low)
    for strip in strips(B.shape, STRIP):
        part = B[strip]
        X_low = _operand(lu, part.shape[0], nb, low, "left")
        for W_jj, j0 in zip(inverses, range(0, nb, BLOCK)):
            j1 = min(j0 + BLOCK, nb)
            B_j = part[:, j0:j1]
            if j0:
                lu.subtract_product(B_j, X_low[:, :j0], U_low[:j0, j0:j1])
            with blas.fp32_products("ieee"):
                X_j = B_j @ W_jj[: j1 - j0, : j1 - j0]
            B_j.copy_(X_j)
            if j1 < nb:
                lu.cast(X_j, X_low[:, j0:j1], low)
    return _done(nb, low)


def solve_unit_lower(lu: Any, L: Tensor, B: Tensor, low: str) -> PanelSolve:
    """Compute B = L^-1 B in place, block by block; the sums are products of operands in the precision `low`."""
    nb = L.shape[0]
    inverses = inverse_blocks(L, upper=False)
    L_low = _operand(lu, nb, nb, low, "left")
    lu.cast(L, L_low, low)
    for strip in strips(B.T.shape, STRIP):
        part = B[:, strip]
        X_low = _operand(lu, nb, part.shape[1], low, "right")
        for W_jj, j0 in zip(inverses, range(0, nb, BLOCK)):
            j1 = min(j0 + BLOCK, nb)
            B_j = part[j0:j1]
            if j0:
                lu.subtract_product(B_j, L_low[j0:j1, :j0], X_low[:j0])
            with blas.fp32_products("ieee"):
                X_j = W_jj[: j1 - j0, : j1 - j0] @ B_j
            B_j.copy_(X_j)
            if j1 < nb:
                lu.cast(X_j, X_low[j0:j1], low)
    return _done(nb, low)


def _done(nb: int, low: str) -> PanelSolve:
    """Return the method and the operands' precision of a solve with a triangle of order nb.

    A solve with a single block is one fp32 product with the inverse.
    """
    return PanelSolve(low if nb > BLOCK else "fp32", BLOCKED_INVERSE)


def _operand(lu: Any, rows: int, columns: int, low: str, side: str) -> Tensor:
    return lu.operand_matrix(lu.operand_buffer(rows, columns, low, side), rows, columns, low, side)


def inverse(T: Tensor, *, upper: bool) -> Tensor:
    """Return the inverse of an upper or unit lower triangular matrix, computed mostly by products."""
    n, size = T.shape[0], SMALL
    while size < n:
        size *= 2
    with blas.fp32_products("ieee"):
        return _inverses(_padded(T, size), size, upper=upper)[0, :n, :n].clone()  # the inverse without the padding


def inverse_blocks(T: Tensor, *, upper: bool) -> Tensor:
    """Return the inverses of the diagonal blocks of order BLOCK of an upper or unit lower triangular matrix.

    The last block is padded by an identity.
    """
    with blas.fp32_products("ieee"):
        return _inverses(_padded(T, -(-T.shape[0] // BLOCK) * BLOCK), BLOCK, upper=upper)


def _padded(T: Tensor, n: int) -> Tensor:
    """Return T extended to order n by an identity."""
    padded = torch.eye(n, dtype=T.dtype, device=T.device)
    padded[: T.shape[0], : T.shape[0]] = T
    return padded


def _inverses(T: Tensor, size: int, *, upper: bool) -> Tensor:
    """Return the inverses of T's diagonal blocks of order `size`, with shape [k, size, size].

    The inverse of a block follows from the inverses of its two diagonal halves:

        [[A, C], [0, D]]^-1 = [[A^-1, -A^-1 C D^-1], [0, D^-1]]
    """
    blocks = [T[j0 : j0 + size, j0 : j0 + size] for j0 in range(0, len(T), size)]
    diagonal = torch.stack(blocks) if blocks else T.new_empty(0, size, size)
    if size == SMALL:
        identity = torch.eye(size, dtype=T.dtype, device=T.device).expand_as(diagonal)
        return torch.linalg.solve_triangular(diagonal, identity, upper=upper, unitriangular=not upper)
    h = size // 2
    halves = _inverses(T, h, upper=upper)
    A, D, inverses = halves[0::2], halves[1::2], torch.zeros_like(diagonal)
    inverses[:, :h, :h], inverses[:, h:, h:] = A, D
    if upper:
        inverses[:, :h, h:] = -(A @ diagonal[:, :h, h:] @ D)
    else:
        inverses[:, h:, :h] = -(D @ diagonal[:, h:, :h] @ A)
    return inverses
