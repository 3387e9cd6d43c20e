"""Apply FP32 or FP64 matrices and triangles to FP64 vectors in FP64, and compute their sums and maxima.

torch operations widen one strip of rows at a time, because the matrix may fill the memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from mxpeak.kernels.contract.lu import BlockSolver
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.engine.lcg_tables import global_indices
from mxpeak.kernels.torch.lu import solves
from mxpeak.layout.block_cyclic import BlockCyclic

Tensor = Any

#: Entries of a widened strip.
STRIP = 1 << 22


def _kernels() -> Any:
    """Import the Triton kernels on first use."""
    from mxpeak.kernels.torch.triton import triangle

    return triangle


def _strips(A: Tensor) -> Iterator[slice]:
    """Yield A's rows in strips."""
    height = max(1, STRIP // max(A.shape[1], 1))
    for begin in range(0, A.shape[0], height):
        yield slice(begin, min(begin + height, A.shape[0]))


def add_matvec(device: Device, y: Tensor, A: Tensor, x: Tensor, *, transposed: bool) -> None:
    """Compute y += A x or y += A^T x, for one vector x or several."""
    if A.numel() == 0:
        return
    if device.triton and y.ndim == 1:  # also for FP64, because libraries may count entries in 32 bits
        if transposed:
            _kernels().launch_columns(device, A, x, y, "plain", add=True)
        else:
            _kernels().launch_rows(device, A, x, y, "plain", add=True)
        return
    add = torch.Tensor.addmv_ if y.ndim == 1 else torch.Tensor.addmm_
    for part in _strips(A):
        wide = A[part].to(torch.float64)
        if transposed:
            add(y, wide.T, x[part])
        else:
            add(y[part], wide, x)


def add_triangle_matvec(
    device: Device, y: Tensor, A: Tensor, x: Tensor, rows: BlockCyclic, cols: BlockCyclic, part: str, form: str
) -> None:
    """Compute y += T x, |T| x or (T∘T) x for the strictly lower or the upper triangle T."""
    if A.numel() == 0:
        return
    if device.triton:
        _kernels().launch_rows(device, A, x, y, form, part, _distribution(rows, cols), add=True)
        return
    for strip, inside in _triangle(device, A, rows, cols, part):
        T = torch.where(inside, A[strip].to(torch.float64), 0.0)
        T = {"plain": T, "absolute": T.abs(), "squared": T.square()}[form]
        y[strip].addmv_(T, x)


def solve_upper(U: Tensor, x: Tensor) -> None:
    """Compute x = U^-1 x for a diagonal block U, which is widened as a whole."""
    x.copy_(torch.linalg.solve_triangular(U.to(torch.float64), x[:, None], upper=True)[:, 0])


def block_solver(T: Tensor, part: str) -> BlockSolver:
    """Return the fp64 inverse of a triangle, because a product needs one launch but a solve needs one step per row."""
    inverse = solves.inverse(T.to(torch.float64), upper=part == "upper")

    def solve(x: Tensor, *, transposed: bool = False) -> None:
        x.copy_((inverse.T if transposed else inverse) @ x)

    return solve


def _distribution(rows: BlockCyclic, cols: BlockCyclic) -> tuple[int, ...]:
    return rows.nb, rows.p, rows.P, cols.nb, cols.p, cols.P


def _triangle(
    device: Device, A: Tensor, rows: BlockCyclic, cols: BlockCyclic, part: str
) -> Iterator[tuple[slice, Tensor]]:
    """Yield A's strips with masks of the entries in a triangle."""
    i, j = global_indices(rows, device), global_indices(cols, device)
    for strip in _strips(A):
        below = j < i[strip, None]
        yield strip, below if part == "lower" else ~below


def max_abs_upper(device: Device, A: Tensor, rows: BlockCyclic, cols: BlockCyclic) -> float:
    """Return max |a_ij| over j >= i."""
    if A.numel() == 0:
        return 0.0
    by_row = device.empty(A.shape[0])
    if device.triton:
        _kernels().launch_rows(device, A, None, by_row, "largest", "upper", _distribution(rows, cols))
    else:
        for strip, inside in _triangle(device, A, rows, cols, "upper"):
            by_row[strip] = torch.where(inside, A[strip].abs(), 0.0).amax(dim=1)
    return float(by_row.amax())


def row_max(device: Device, A: Tensor, by_row: Tensor) -> None:
    """Set by_row_i = max_j |a_ij|."""
    by_row.zero_()
    if A.numel() == 0:
        return
    if device.triton:
        _kernels().launch_rows(device, A, None, by_row, "largest")
        return
    for strip in _strips(A):
        by_row[strip] = A[strip].abs().amax(dim=1)


def column_max(device: Device, A: Tensor, by_column: Tensor) -> None:
    """Set by_column_j = max_i |a_ij|."""
    by_column.zero_()
    if A.numel() == 0:
        return
    if device.triton:
        _kernels().launch_columns(device, A, None, by_column, "largest")
        return
    for strip in _strips(A):
        torch.maximum(by_column, A[strip].abs().amax(dim=0).to(torch.float64), out=by_column)


def abs_sums(device: Device, A: Tensor, by_row: Tensor, by_column: Tensor) -> None:
    """Compute Σ_j |a_ij| and Σ_i |a_ij| in two passes over A, because their summation orders differ."""
    by_row.zero_()
    by_column.zero_()
    if A.numel() == 0:
        return
    if device.triton:
        _kernels().launch_rows(device, A, None, by_row, "absolute")
        _kernels().launch_columns(device, A, None, by_column, "absolute")
        return
    for strip in _strips(A):
        size = A[strip].to(torch.float64).abs()
        by_row[strip] = size.sum(dim=1)
        by_column += size.sum(dim=0)


def scale_rows_columns(device: Device, A: Tensor, by_row: Tensor, by_column: Tensor) -> None:
    """Set a_ij = by_row_i · a_ij · by_column_j, computed in fp64 and rounded once to A's type."""
    if A.numel() == 0:
        return
    if device.triton:
        _kernels().launch_scale(A, by_row, by_column)
        return
    for strip in _strips(A):
        A[strip] = A[strip].to(torch.float64) * by_row[strip, None] * by_column


def reciprocal_powers(powers: Tensor, x: Tensor) -> None:
    """Set powers_i = 2^-k with 2^(k-1) < x_i <= 2^k, or 1 if x_i is 0, inf or NaN."""
    fraction, k = torch.frexp(x)  # x = fraction·2^k, fraction in [1/2, 1)
    k = -torch.where(fraction == 0.5, k - 1, k).to(torch.int64)
    half = k // 2  # two factors in range, although their product may not be
    power = _power_of_two(half) * _power_of_two(k - half)
    powers.copy_(torch.where(torch.isfinite(x) & (x > 0), power, 1.0))


def _power_of_two(k: Tensor) -> Tensor:
    """Return 2^k from its bit pattern."""
    return ((k + 1023) << 52).view(torch.float64)
