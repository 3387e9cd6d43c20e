"""Copy, factor and multiply symmetric and Hermitian matrices on one torch device, with one triangle read."""

from __future__ import annotations

from typing import Any

import torch

from mxpeak.kernels.contract.dense import SymmetricFactor, Triangle
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.lu import blas, pivoted_lu

Tensor = Any

#: Rows of a strip of a product: few enough that copies of the diagonal blocks take little memory and time.
HEIGHT = 512


def strips(A: Triangle, entries: int) -> list[slice]:
    """Return slices of the rows of A, each with about `entries` entries."""
    n = len(A)
    height = max(1, entries // n)
    return [slice(i, min(i + height, n)) for i in range(0, n, height)]


def outside_and_corner(A: Triangle, rows: slice) -> tuple[slice, Tensor]:
    """Return the columns of some rows outside the diagonal block, and this block with zeros in the other triangle."""
    outside = slice(0, rows.start) if A.lower else slice(rows.stop, len(A))
    corner = A.array[rows, rows].tril() if A.lower else A.array[rows, rows].triu()
    if A.hermitian and corner.is_complex():
        corner.imag.diagonal().zero_()
    return outside, corner


def copied(device: Device, A: Triangle, scales: Tensor | None, W: Tensor, entries: int) -> tuple[Tensor, float]:
    """Write the triangle of D A D, rounded, to W, and return the row sums and the largest entry of |W|."""
    sums, largest = device.zeros(len(A)), device.zeros()
    for rows in strips(A, entries):
        outside, corner = outside_and_corner(A, rows)
        block = A.array[rows, outside]
        if scales is not None:
            block = block * (scales[rows, None] * scales[outside])
            corner = corner * (scales[rows, None] * scales[rows])
        W[rows, outside], W[rows, rows] = block, corner
        sizes, of_corner = W[rows, outside].abs().to(torch.float64), W[rows, rows].abs().to(torch.float64)
        sums[rows] += sizes.sum(1) + of_corner.sum(1) + of_corner.sum(0) - of_corner.diagonal()
        sums[outside] += sizes.sum(0)
        largest = torch.maximum(largest, of_corner.amax())
        if sizes.numel():
            largest = torch.maximum(largest, sizes.amax())
    return sums, float(largest)


def cholesky(device: Device, W: Triangle, precision: str, shift: float, width: int) -> SymmetricFactor:
    """Factor W^T in place; its memory is the column-major one that the library factors without a copy."""
    if shift:
        W.array.diagonal().mul_(1.0 + shift)
    T = W.T
    if precision in ("fp64", "fp32"):
        breakdown = torch.empty((), dtype=torch.int32, device=T.array.device)
        torch.linalg.cholesky_ex(T.array, upper=not T.lower, out=(T.array, breakdown))
        return SymmetricFactor(T, None, transposed=True, breakdown=int(breakdown))
    return SymmetricFactor(T, None, transposed=True, breakdown=_factor_rounded(device, T, precision, width))


def _factor_rounded(device: Device, T: Triangle, precision: str, width: int) -> int:
    """Compute the Cholesky factor of T in place, with the operands of the updates rounded to `precision`.

    Returns 0, or the order of the first leading minor that is not positive.
    """
    # The lower triangle of A is that of T, or of its conjugate transpose, whose factor is the transpose of T's factor.
    A, n = (T.array if T.lower else T.array.T), len(T)
    for j0 in range(0, n, width):
        j1 = min(j0 + width, n)
        C, at = torch.linalg.cholesky_ex(A[j0:j1, j0:j1])
        if int(at):
            return j0 + int(at)
        A[j0:j1, j0:j1] = C
        if j1 == n:
            break
        panel = A[j1:, j0:j1]
        panel.copy_(torch.linalg.solve_triangular(C.mH, panel, upper=True, left=False))
        L = pivoted_lu.rounded_operand(device, panel, precision)
        for k0 in range(j1, n, width):
            k1 = min(k0 + width, n)
            below, U = L[k0 - j1 :], L[k0 - j1 : k1 - j1].T
            update = A[k0:, k0:k1].contiguous()
            blas.subtract_product(device, update, below, U.conj().resolve_conj() if U.is_complex() else U, "library")
            A[k0:, k0:k1] = update
    return 0


def ldl(W: Triangle) -> SymmetricFactor:
    """Factor W or W^T, the one whose lower triangle is read."""
    A = W if W.lower else W.T
    LD, pivots, zero = torch.linalg.ldl_factor_ex(A.array, hermitian=A.hermitian and A.array.is_complex())
    return SymmetricFactor(Triangle(LD, True, A.hermitian), pivots, transposed=not W.lower, breakdown=int(zero))


def solved(F: SymmetricFactor, B: Tensor) -> Tensor:
    """Return W^-1 B as a new tensor; a conjugate is solved for if the factors are those of the conjugate of W."""
    W, is_complex = F.W, F.W.array.is_complex()
    conj = F.transposed and W.hermitian and is_complex
    B = B.conj().resolve_conj() if conj else B
    if F.rows is not None:
        X = torch.linalg.ldl_solve(W.array, F.rows, B, hermitian=W.hermitian and is_complex)
    else:
        solve = torch.linalg.solve_triangular
        lower, upper = (W.array, W.array.mH) if W.lower else (W.array.mH, W.array)
        X = solve(upper, solve(lower, B, upper=False), upper=True)
    return X.conj().resolve_conj() if conj else X


def residual(B: Tensor, A: Triangle, X: Tensor, entries: int) -> Tensor:
    """Return B - A X; each strip of rows is multiplied by X, and its transpose or conjugate transpose also."""
    R = B.clone()
    for rows in strips(A, min(entries, HEIGHT * len(A))):
        outside, corner = outside_and_corner(A, rows)
        block = A.array[rows, outside]
        strict = corner.tril(-1) if A.lower else corner.triu(1)
        R[rows] -= block @ X[outside] + corner @ X[rows] + _across(A, strict) @ X[rows]
        R[outside] -= _across(A, block) @ X[rows]
    return R


def _across(A: Triangle, block: Tensor) -> Tensor:
    """Return the block of the other triangle that a block determines."""
    return block.mH if A.hermitian else block.mT


def largest_pivot(F: SymmetricFactor) -> float:
    """Return max |d_ij|, or max |l_ii|² of a Cholesky factor; LAPACK marks blocks of order 2 by negative indices."""
    diagonal = F.W.array.diagonal().abs()
    if F.rows is None:
        return float(diagonal.amax()) ** 2
    crossing = F.W.array.diagonal(-1).abs()[torch.nonzero(F.rows < 0)[::2, 0]]
    return max(float(diagonal.amax()), float(crossing.amax()) if crossing.numel() else 0.0)
