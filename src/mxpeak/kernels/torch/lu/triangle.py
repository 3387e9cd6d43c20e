"""Compute products with fp64 vectors, sums and maxima of fp32 or fp64 matrices and triangles, in fp64.

torch operations widen one strip of rows at a time, because the matrix may fill the memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from mxpeak.kernels.contract.lu import BlockSolver
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.engine.lcg_tables import global_indices
from mxpeak.kernels.torch.engine.tensors import strips
from mxpeak.kernels.torch.lu import solves
from mxpeak.layout.block_cyclic import BlockCyclic

Tensor = Any

#: Entries of a widened strip.
STRIP = 1 << 22


class TorchProducts:
    """The operations of `TorchLu` in fp64: products and triangular solves with vectors, sums, maxima and scaling.

    `TorchLu` inherits these methods.
    """

    device: Device

    @property
    def _triton(self) -> Any:
        """Return the module of the Triton kernels for matrices and triangles."""
        from mxpeak.kernels.torch.triton import triangle

        return triangle

    def add_matvec(self, y: Tensor, A: Tensor, x: Tensor, *, transposed: bool = False) -> None:
        if A.numel() == 0:
            return
        if self.device.triton and y.ndim == 1:  # also for FP64, because libraries may count entries in 32 bits
            launch = self._triton.launch_columns if transposed else self._triton.launch_rows
            launch(self.device, A, x, y, "plain", add=True)
            return
        add = torch.Tensor.addmv_ if y.ndim == 1 else torch.Tensor.addmm_
        for part in strips(A.shape, STRIP):
            wide = A[part].to(torch.float64)
            if transposed:
                add(y, wide.T, x[part])
            else:
                add(y[part], wide, x)

    def add_two_matvecs(self, y: Tensor, z: Tensor, A: Tensor, u: Tensor, v: Tensor) -> None:
        self.add_matvec(y, A, u)
        self.add_matvec(z, A, v)

    def add_triangle_matvec(
        self, y: Tensor, A: Tensor, x: Tensor, rows: BlockCyclic, cols: BlockCyclic, part: str, form: str = "plain"
    ) -> None:
        if A.numel() == 0:
            return
        if self.device.triton:
            self._triton.launch_rows(self.device, A, x, y, form, part, _distribution(rows, cols), add=True)
            return
        for strip, inside in self._triangle(A, rows, cols, part):
            T = torch.where(inside, A[strip].to(torch.float64), 0.0)
            T = {"plain": T, "absolute": T.abs(), "squared": T.square()}[form]
            y[strip].addmv_(T, x)

    def solve_upper(self, U: Tensor, x: Tensor) -> None:
        x.copy_(torch.linalg.solve_triangular(U.to(torch.float64), x[:, None], upper=True)[:, 0])

    def block_solver(self, T: Tensor, part: str) -> BlockSolver:
        """Invert the triangle T, and return a function that solves T x = b by a product with the inverse.

        A product needs one launch, but a triangular solve needs one step per row.
        """
        inverse = solves.inverse(T.to(torch.float64), upper=part == "upper")

        def solve(x: Tensor, *, transposed: bool = False) -> None:
            x.copy_((inverse.T if transposed else inverse) @ x)

        return solve

    def _triangle(self, A: Tensor, rows: BlockCyclic, cols: BlockCyclic, part: str) -> Iterator[tuple[slice, Tensor]]:
        """Yield strips of A's rows, with masks of the entries in the strictly lower or in the upper triangle."""
        i, j = global_indices(rows, self.device), global_indices(cols, self.device)
        for strip in strips(A.shape, STRIP):
            below = j < i[strip, None]
            yield strip, below if part == "lower" else ~below

    def max_abs_upper(self, A: Tensor, rows: BlockCyclic, cols: BlockCyclic) -> float:
        if A.numel() == 0:
            return 0.0
        by_row = self.device.empty(A.shape[0])
        if self.device.triton:
            self._triton.launch_rows(self.device, A, None, by_row, "largest", "upper", _distribution(rows, cols))
        else:
            for strip, inside in self._triangle(A, rows, cols, "upper"):
                by_row[strip] = torch.where(inside, A[strip].abs(), 0.0).amax(dim=1)
        return float(by_row.amax())

    def row_max(self, A: Tensor, by_row: Tensor) -> None:
        by_row.zero_()
        if A.numel() == 0:
            return
        if self.device.triton:
            self._triton.launch_rows(self.device, A, None, by_row, "largest")
            return
        for strip in strips(A.shape, STRIP):
            by_row[strip] = A[strip].abs().amax(dim=1)

    def column_max(self, A: Tensor, by_column: Tensor) -> None:
        by_column.zero_()
        if A.numel() == 0:
            return
        if self.device.triton:
            self._triton.launch_columns(self.device, A, None, by_column, "largest")
            return
        for strip in strips(A.shape, STRIP):
            torch.maximum(by_column, A[strip].abs().amax(dim=0).to(torch.float64), out=by_column)

    def abs_sums(self, A: Tensor, by_row: Tensor, by_column: Tensor) -> None:
        """Compute the sums of |a_ij| by row and by column.

        Triton needs two passes, because the summation orders of rows and columns differ.
        """
        by_row.zero_()
        by_column.zero_()
        if A.numel() == 0:
            return
        if self.device.triton:
            self._triton.launch_rows(self.device, A, None, by_row, "absolute")
            self._triton.launch_columns(self.device, A, None, by_column, "absolute")
            return
        for strip in strips(A.shape, STRIP):
            size = A[strip].to(torch.float64).abs()
            by_row[strip] = size.sum(dim=1)
            by_column += size.sum(dim=0)

    def scale_rows_columns(self, A: Tensor, by_row: Tensor, by_column: Tensor) -> None:
        if A.numel() == 0:
            return
        if self.device.triton:
            self._triton.launch_scale(A, by_row, by_column)
            return
        for strip in strips(A.shape, STRIP):
            A[strip] = A[strip].to(torch.float64) * by_row[strip, None] * by_column

    def combine_rows(self, X: Tensor, Y: Tensor, r: Tensor, s: Tensor) -> None:
        for strip in strips(X.shape, STRIP):
            x, y = X[strip].to(torch.float64), Y[strip].to(torch.float64)
            X[strip], Y[strip] = (x + y) * r[strip, None], (x - y) * s[strip, None]

    def combine_columns(self, X: Tensor, Y: Tensor, r: Tensor, s: Tensor) -> None:
        for strip in strips(X.shape, STRIP):
            x, y = X[strip].to(torch.float64), Y[strip].to(torch.float64)
            X[strip], Y[strip] = (x + y) * r, (x - y) * s

    def reciprocal_powers(self, powers: Tensor, x: Tensor) -> None:
        fraction, k = torch.frexp(x)  # x = fraction·2^k, fraction in [1/2, 1)
        k = -torch.where(fraction == 0.5, k - 1, k).to(torch.int64)
        half = k // 2  # two factors in range, although their product may not be
        power = _power_of_two(half) * _power_of_two(k - half)
        powers.copy_(torch.where(torch.isfinite(x) & (x > 0), power, 1.0))


def _distribution(rows: BlockCyclic, cols: BlockCyclic) -> tuple[int, ...]:
    return rows.nb, rows.p, rows.P, cols.nb, cols.p, cols.P


def _power_of_two(k: Tensor) -> Tensor:
    """Return 2^k in fp64, built from its bit pattern."""
    return ((k + 1023) << 52).view(torch.float64)
