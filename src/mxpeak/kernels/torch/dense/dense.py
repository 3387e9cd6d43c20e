"""Solve dense systems on a device with the library's LU, or with a blocked LU that rounds its operands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isqrt
from typing import Any

import numpy as np
import torch

from mxpeak.errors import ResourceError
from mxpeak.kernels.contract.dense import PART, PivotedLU, SymmetricFactor, Triangle
from mxpeak.kernels.contract.emulation import cublas_workspace_bytes
from mxpeak.kernels.contract.lu import EmulatedProducts, Fp64Emulation
from mxpeak.kernels.torch.dense import symmetric
from mxpeak.kernels.torch.engine.array_namespace import Namespace
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.engine.tensors import strips, torch_type
from mxpeak.kernels.torch.lu import pivoted_lu
from mxpeak.kernels.torch.lu.blas import fp32_products
from mxpeak.kernels.torch.lu.cublas import SIDE

Tensor = Any

#: Entries per strip for torch operations that make copies.
STRIP = 1 << 24
#: Bytes of copies per entry of a strip, and bytes of the library's workspace.
COPIES, LIBRARY = 32, 1 << 26


class TorchDense:
    """Dense kernels on one torch device, with row-major matrices.

    `width` is the number of columns per panel of the blocked LU. `emulation` multiplies fp64 matrices in the updates of
    an LU; None selects the LU of the library.
    """

    def __init__(self, device: Device, width: int = pivoted_lu.WIDTH, emulation: EmulatedProducts | None = None):
        self.device, self._width, self._emulation = device, width, emulation
        self.xp = Namespace(device.where)

    @property
    def stopwatch(self) -> Device:
        return self.device

    @contextmanager
    def computing(self) -> Iterator[None]:
        with fp32_products("ieee"):
            if self.device.is_gpu:
                with torch.cuda.device(self.device.where):
                    yield
            else:
                yield

    def emulates(self, precision: str, dtype: np.dtype[Any]) -> bool:
        if precision in ("fp64", "fp32"):
            return False
        return dtype.kind == "c" or not self.device.multiplies(precision)

    def fp64_emulation(self) -> Fp64Emulation | None:
        return None if self._emulation is None else self._emulation.record()

    def check_memory(self, n: int, dtype: np.dtype[Any], precision: str, *, copied: bool) -> None:
        is_complex, copy = dtype.kind == "c", dtype.itemsize if copied else 0
        factors = (8 if precision == "fp64" else 4) * (2 if is_complex else 1)
        by_library = precision in ("fp64", "fp32")
        per_row = 0 if by_library else pivoted_lu.work_per_row(precision, is_complex, min(self._width, n))
        emulates = precision == "fp64" and self._emulation is not None
        side = min(n, SIDE)
        workspace = cublas_workspace_bytes(side, side, min(n, self._width)) if emulates else 0
        work = workspace + per_row * n + COPIES * min(STRIP, n * n) + LIBRARY
        needed = (copy + factors) * n * n + work
        _, free = self.device.memory()
        if needed <= free:
            return
        largest = largest_order(copy + factors, per_row, free - workspace)
        parts = [f"a copy of A {copy}·n²"] * copied + [f"the factors {factors}·n²", f"work {work} bytes"]
        raise ResourceError(
            f"n = {n} needs {needed / 1e9:.3g} GB ({' + '.join(parts)}), but {self.device.where} has only "
            f"{free / 1e9:.3g} GB of free memory; use n = {largest} or less, "
            'free memory on the device, or use device="cpu"'
        )

    def factor_storage(self, n: int, dtype: np.dtype[Any]) -> Tensor:
        """Return uninitialized n×n storage without gaps, because triangular solves copy any other matrix."""
        return self.device.empty(n, n, dtype=torch_type(dtype))

    def scaled_copy(self, A: Tensor, scales: tuple[Tensor, Tensor] | None, W: Tensor) -> tuple[Tensor, Tensor, float]:
        rows, columns = self.device.empty(A.shape[0]), self.device.zeros(A.shape[1])
        largest = self.device.zeros()
        for s in strips(A.shape, STRIP):
            W[s] = A[s] if scales is None else A[s] * (scales[0][s, None] * scales[1])
            size = W[s].abs()
            torch.sum(size, dim=1, dtype=torch.float64, out=rows[s])
            columns += size.sum(dim=0, dtype=torch.float64)
            largest = torch.maximum(largest, size.amax().to(torch.float64))
        return rows, columns, float(largest)

    def largest_entries(self, A: Tensor, by_row: Tensor, by_column: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = self.device.empty(A.shape[0]), self.device.zeros(A.shape[1])
        for s in strips(A.shape, STRIP):
            size = A[s].abs() * by_row[s, None] * by_column
            rows[s] = size.amax(dim=1)
            columns = torch.maximum(columns, size.amax(dim=0))
        return rows, columns

    def abs_sums(self, A: Tensor, by_row: Tensor, by_column: Tensor) -> None:
        by_column.zero_()
        for s in strips(A.shape, STRIP):
            size = A[s].abs()
            by_row[s] = size.sum(dim=1, dtype=torch.float64)
            by_column += size.sum(dim=0, dtype=torch.float64)

    def factor(self, W: Tensor, precision: str) -> PivotedLU:
        """Factor W in place: row i of L U is row `rows[i]` of W, or of W^T if the library factors it.

        The library is column-major and factors W^T. The blocked LU is row-major, because it moves rows.
        """
        if precision == "fp64" and self._emulation is not None and not W.is_complex():
            rows, singular = pivoted_lu.factor_emulated(self.device, W, self._emulation, self._width)
            return PivotedLU(W, rows, transposed=False, singular=int(singular))
        if precision in ("fp64", "fp32"):
            rows, singular = pivoted_lu.factor_whole(W.T)
            return PivotedLU(W.T, rows, transposed=True, singular=int(singular))
        rows, singular = pivoted_lu.factor_rounded(self.device, W, precision, self._width)
        return PivotedLU(W, rows, transposed=False, singular=int(singular))

    def factor_with_early_exit(self, should_stop: Callable[[Tensor], bool], W: Tensor) -> PivotedLU | None:
        """Return the LU factors of W, or None if `should_stop` is true for the first pivots.

        The function factors all of W before it calls `should_stop`, because the library cannot stop early.
        """
        F = self.factor(W, "fp32")
        return None if should_stop(abs(F.LU.diagonal()[: int(PART * len(W))])) else F

    def solve(self, F: PivotedLU, B: Tensor, *, transposed: bool = False) -> Tensor:
        """Return W^-1 B, or W^-T B if `transposed`, from the factors F of W.

        Triangular solves read row-major and column-major factors without copies.
        """
        solve = torch.linalg.solve_triangular
        if transposed == F.transposed:
            Z = solve(F.LU, B.index_select(0, F.rows), upper=False, unitriangular=True)
            return solve(F.LU, Z, upper=True)
        Z = solve(F.LU.T, solve(F.LU.T, B, upper=False), upper=True, unitriangular=True)
        return torch.empty_like(Z).index_copy_(0, F.rows, Z)

    def last_row(self, F: PivotedLU) -> int:
        return int(F.rows[-1])

    def residual(self, B: Tensor, A: Tensor | Triangle, X: Tensor) -> Tensor:
        if isinstance(A, Triangle):
            return symmetric.residual(B, A, X, STRIP)
        if X.shape[1] == 1:
            return torch.addmv(B[:, 0], A, X[:, 0], alpha=-1)[:, None]
        return torch.addmm(B, A, X, alpha=-1)

    def copy_triangle(self, A: Triangle, scales: Tensor | None, W: Tensor) -> tuple[Tensor, float]:
        return symmetric.copied(self.device, A, scales, W, STRIP)

    def cholesky(self, W: Triangle, precision: str, shift: float = 0.0) -> SymmetricFactor:
        return symmetric.cholesky(self.device, W, precision, shift, self._width)

    def ldl(self, W: Triangle) -> SymmetricFactor:
        return symmetric.ldl(W)

    def solve_symmetric(self, F: SymmetricFactor, B: Tensor) -> Tensor:
        return symmetric.solved(F, B)

    def largest_pivot(self, F: SymmetricFactor) -> float:
        return symmetric.largest_pivot(F)

    def triangle_of_qr(self, A: Tensor, by_column: Tensor, dtype: np.dtype[Any]) -> Tensor:
        W = self.device.empty(*A.shape, dtype=torch_type(dtype))
        for s in strips(A.shape, STRIP):
            W[s] = A[s] * by_column
        R: Tensor = torch.linalg.qr(W, mode="r").R
        return R

    def solve_triangle(self, R: Tensor, B: Tensor, *, adjoint: bool = False) -> Tensor:
        return torch.linalg.solve_triangular(R.mH if adjoint else R, B, upper=not adjoint)

    def solve_by_svd(self, A: Tensor, B: Tensor, rcond: float) -> tuple[Tensor, int, Tensor]:
        U, s, V_H = torch.linalg.svd(A, full_matrices=False)
        rank = int((s > rcond * s[0]).sum())
        return V_H[:rank].mH @ ((U[:, :rank].mH @ B) / s[:rank, None]), rank, s


def largest_order(per_entry: int, per_row: int, free: int) -> int:
    """Return the largest n for which copies, factors and workspace fit into `free` bytes."""
    small = min(_root(per_entry + COPIES, per_row, free - LIBRARY), isqrt(STRIP))
    return max(small, _root(per_entry, per_row, free - LIBRARY - COPIES * STRIP))


def _root(a: int, b: int, c: int) -> int:
    """Return the largest integer n with a·n² + b·n <= c, or 0 if c is not positive."""
    return (isqrt(b * b + 4 * a * c) - b) // (2 * a) if c > 0 else 0
