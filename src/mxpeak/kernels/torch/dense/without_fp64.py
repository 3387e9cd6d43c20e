"""Solve dense systems with an accelerator that has no fp64, such as MPS: LU in fp32, and residuals of fp64 accuracy.

Matrices and blocks are tensors of the CPU, which also computes norms and fp64 factors. The accelerator computes the
fp32 factors, their solves, and the products of a residual. It multiplies digits of the fp64 numbers (Ozaki, Ogita,
Oishi, Rump 2012):

    A = D_r (Σ_s 2^-7s A_s) D_c,    X = D_c^-1 (Σ_t 2^-7t X_t) D_x,    A X = D_r (Σ_st 2^-7(s+t) A_s X_t) D_x

The entries of A_s and X_t are integers of at most 64. Therefore, all sums of A_s X_t are exact in fp32, in any order,
and also if the accelerator rounds operands to bf16 or TF32. The CPU subtracts the products from B in fp64, the largest
ones first.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from mxpeak.kernels.contract.dense import PivotedLU, Triangle
from mxpeak.kernels.torch.dense.dense import STRIP, TorchDense
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.engine.tensors import strips
from mxpeak.kernels.torch.lu.pivoted_lu import moves

Tensor = Any

#: Bits per digit, and the largest number of digits. Each scaled row has an entry of at least 1/4, so that DIGITS digits
#: leave an error of at most 2^-55 times the largest entry of the row.
BITS, DIGITS = 7, 8
#: Terms of a product whose sum is exact in fp32: 64·64·DEPTH = 2^24.
DEPTH = 4096
#: Entries of A that are divided into digits at a time, so that they stay in the cache.
CACHED = 1 << 17
#: Exponent of a zero, far below that of any number.
NONE = -1 << 20


class AcceleratorRows(NamedTuple):
    """The row interchanges of factors, and the factors in the memory of the accelerator.

    order    row i of L U is row order[i] of W
    LU       L and U
    """

    order: Tensor
    LU: Tensor


class Digits(NamedTuple):
    """A matrix A as scaled digits in the memory of the accelerator.

    rows, columns    exponents of the scales D_r and D_c
    parts            the digits A_1, A_2, … as 8-bit integers
    """

    rows: Tensor
    columns: Tensor
    parts: list[Tensor]

    @property
    def T(self) -> Digits:
        """Return the digits of the transpose, which share the memory of these digits."""
        return Digits(self.columns, self.rows, [part.T for part in self.parts])


class DenseWithoutFp64(TorchDense):
    """`DenseKernels` of a CPU with an accelerator that has no fp64, for real matrices."""

    def __init__(self, device: Device):
        super().__init__(device)
        assert device.without_fp64 is not None
        self._accelerator = device.without_fp64
        self._depth = 0
        self._digits: tuple[Tensor, Digits] | None = None  # a matrix and its digits

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Return a context that keeps the digits of a matrix until its end, because A may change later."""
        self._depth += 1
        try:
            with super().computing():
                yield
        finally:
            self._depth -= 1
            if not self._depth:
                self._digits = None

    def factor(self, W: Tensor, precision: str) -> PivotedLU:
        """Factor W in fp32 on the accelerator, or in fp64 on the CPU."""
        if precision == "fp64":
            return super().factor(W, precision)
        LU, pivots, _ = torch.linalg.lu_factor_ex(W.to(self._accelerator))
        W.copy_(LU)
        order = torch.arange(len(W))
        targets, sources = moves(pivots.to("cpu", torch.int32), len(W))
        order = order.index_copy(0, targets, order[sources])
        zeros = (W.diagonal() == 0.0).nonzero()
        singular = int(zeros[0, 0]) + 1 if len(zeros) else 0
        return PivotedLU(W, AcceleratorRows(order, LU), transposed=False, singular=singular)

    def solve(self, F: PivotedLU, B: Tensor, *, transposed: bool = False) -> Tensor:
        if not isinstance(F.rows, AcceleratorRows):
            return super().solve(F, B, transposed=transposed)
        order, LU = F.rows
        LU[-1, -1].fill_(F.LU[-1, -1].item())  # a solver may have changed the last pivot
        return (
            super()
            .solve(
                PivotedLU(LU, order.to(LU.device), transposed=False, singular=F.singular),
                B.to(LU.device),
                transposed=transposed,
            )
            .to(B.device)
        )

    def last_row(self, F: PivotedLU) -> int:
        return int((F.rows.order if isinstance(F.rows, AcceleratorRows) else F.rows)[-1])

    def residual(self, B: Tensor, A: Tensor | Triangle, X: Tensor) -> Tensor:
        """Return B - A X, computed on the accelerator if A is the first square matrix of a `computing` context."""
        if isinstance(A, Triangle) or not self._depth or not bool(X.isfinite().all()):
            return super().residual(B, A, X)
        if self._digits is None and A.shape[0] == A.shape[1]:
            self._digits = A, _digits(self.xp, A, self._accelerator)
        if self._digits is None:
            return super().residual(B, A, X)
        of, digits = self._digits
        if _same(of, A):
            return _residual(self.xp, B, digits, X)
        return _residual(self.xp, B, digits.T, X) if _same(of.T, A) else super().residual(B, A, X)


def _same(A: Tensor, B: Tensor) -> bool:
    """Return whether two tensors are the same part of the same memory."""
    return A.data_ptr() == B.data_ptr() and (A.shape, A.stride(), A.dtype) == (B.shape, B.stride(), B.dtype)


def _exponents(V: Tensor) -> Tensor:
    """Return e with 1/2 <= |v|·2^-e < 1 for each entry, or NONE for zeros."""
    return torch.where(V != 0.0, torch.frexp(V).exponent, NONE)


def _expand(V: Tensor) -> Tensor:
    """Return the digits of numbers of at most 1/2, one more dimension first; V is overwritten."""
    parts = torch.empty((DIGITS, *V.shape), dtype=torch.int8)
    for part in parts:
        V *= 2.0**BITS
        part.copy_(V.round())
        V -= part
    return parts


def _digits(xp: Any, A: Tensor, accelerator: torch.device) -> Digits:
    """Return the digits of A; this takes two passes over A."""
    n = len(A)
    rows, columns = torch.empty(n, dtype=torch.int64), torch.full((n,), NONE)
    parts = torch.empty((DIGITS, n, n), dtype=torch.int8, device=accelerator)
    for s in strips(A.shape, CACHED):
        columns = torch.maximum(columns, _exponents(A[s]).amax(dim=0))
    columns = torch.where(columns > NONE, columns, 0)
    used = 0
    for s in strips(A.shape, CACHED):
        rows[s] = (_exponents(A[s]) - columns).amax(dim=1) + 1
        V = _expand(xp.ldexp(A[s].to(torch.float64), -(rows[s, None] + columns)))
        used = max([used, *(V.flatten(1) != 0).any(dim=1).nonzero().flatten().add(1).tolist()])
        parts[:, s] = V.to(accelerator)
    return Digits(rows, columns, list(parts[:used]))


def _residual(xp: Any, B: Tensor, A: Digits, X: Tensor) -> Tensor:
    """Return B - A X in the type of B, rounded as if the products and their sums were exact in fp64."""
    n, k = X.shape
    exponents = (_exponents(X) + A.columns[:, None]).amax(dim=0) + 1
    V = _expand(xp.ldexp(X.to(torch.float64), A.columns[:, None] - exponents))
    sums = torch.zeros((len(A.parts) + DIGITS - 1, n, k), dtype=torch.float64)
    for s, part in enumerate(A.parts):
        product = _multiply(part, V.permute(1, 0, 2).reshape(n, -1).to(part.device))
        sums[s : s + DIGITS] += product.reshape(n, DIGITS, k).permute(1, 0, 2)
    R = B.to(torch.float64)
    for order, product in enumerate(sums, start=2):  # the largest ones first, so that they cancel exactly
        R = R - xp.ldexp(product, A.rows[:, None] + exponents - BITS * order)
    return R.to(B.dtype)


def _multiply(A: Tensor, X: Tensor) -> Tensor:
    """Return the exact product of two matrices of integer digits as an fp64 tensor on the CPU."""
    total = torch.zeros((A.shape[0], X.shape[1]), dtype=torch.float64)
    for s in strips((A.shape[0], min(DEPTH, A.shape[1])), STRIP):
        for j in range(0, A.shape[1], DEPTH):
            terms = slice(j, j + DEPTH)
            total[s] += (A[s, terms].to(torch.float32) @ X[terms].to(torch.float32)).to("cpu").to(torch.float64)
    return total
