"""Multiply and solve with the device's libraries, and factor without pivoting on CPUs, whose library always pivots.

The library's products accept any leading dimension, so products accumulate in place. The library's triangular solves
do not, so a block is copied through a buffer in strips. The buffer is small, because a matrix may fill the memory of
the device.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.engine.tensors import strips
from mxpeak.kernels.torch.lu.cast import TF32

Tensor = Any

#: Entries of a strip in the buffer.
STRIP = 1 << 25
#: Columns of a strip of the LU without pivoting.
NARROW = 32
#: Operand types below FP32.
HALF, EIGHTH = (torch.float16, torch.bfloat16), torch.float8_e4m3fn


@contextmanager
def fp32_products(how: str) -> Iterator[None]:
    """Set fp32 products to full precision (ieee) or to TF32 tensor cores (tf32), and restore the setting afterwards."""
    setting = torch.backends.cuda.matmul
    before = setting.fp32_precision
    setting.fp32_precision = how
    try:
        yield
    finally:
        setting.fp32_precision = before


@contextmanager
def by_cusolver(A: Tensor) -> Iterator[None]:
    """Select cuSOLVER for LU factorizations within the context.

    By default, torch treats a tall panel as many small matrices.
    """
    if not A.is_cuda or torch.version.hip is not None:
        yield
        return
    prefer = torch.backends.cuda.preferred_linalg_library
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the selection is experimental
        before = prefer()
        prefer("cusolver")
        try:
            yield
        finally:
            prefer(before)


def subtract_product(device: Device, C: Tensor, A: Tensor, B: Tensor, gemm: str) -> None:
    """Compute C -= A B in place with the library, or with Triton if `gemm` selects it or the operands are fp8."""
    if A.dtype == TF32:
        _subtract(C, A.view(C.dtype), B.view(C.dtype), "tf32")
    elif A.dtype not in (*HALF, EIGHTH):
        _subtract(C, A, B, "ieee")
    elif (
        C.numel() and A.shape[1] and device.triton and (gemm == "triton" or A.dtype == EIGHTH) and _supports(device, A)
    ):
        from mxpeak.kernels.torch.triton.gemm import launch_subtract_product

        launch_subtract_product(C, A, B)
    elif device.is_gpu and torch.version.hip is None:
        if A.dtype == EIGHTH:  # every FP8 number is an FP16 number
            A, B = A.to(torch.float16), B.to(torch.float16)
        torch.addmm(C, A, B, out_dtype=torch.float32, alpha=-1, out=C)
    else:  # CPUs and ROCm's library cannot accumulate FP16 products in FP32
        _subtract(C, A.to(C.dtype), B.to(C.dtype), "ieee")


def _supports(device: Device, A: Tensor) -> bool:
    """Return whether Triton supports products of A's type on the device; fp8 needs sm_89 or later on NVIDIA GPUs."""
    if A.dtype != EIGHTH or not device.is_gpu or torch.version.hip is not None:
        return True
    major, minor = torch.cuda.get_device_capability(device.where)
    return (int(major), int(minor)) >= (8, 9)


def _subtract(C: Tensor, A: Tensor, B: Tensor, how: str) -> None:
    with fp32_products(how):
        torch.addmm(C, A, B, alpha=-1, out=C)


def solve_right_upper(B: Tensor, U: Tensor) -> None:
    """Compute B = B U^-1 in place, in strips of rows, with an upper triangular U."""
    for strip in strips(B.shape, STRIP):
        part = B[strip]
        solved = torch.empty(part.shape, dtype=B.dtype, device=B.device)
        with fp32_products("ieee"):
            torch.linalg.solve_triangular(U, part, upper=True, left=False, out=solved)
        part.copy_(solved)


def solve_unit_lower(L: Tensor, B: Tensor) -> None:
    """Compute B = L^-1 B in place, in strips of columns, with a unit lower triangular L."""
    for strip in strips(B.T.shape, STRIP):
        part = B[:, strip]
        solved = torch.empty(part.shape, dtype=B.dtype, device=B.device)
        with fp32_products("ieee"):
            torch.linalg.solve_triangular(L, part, upper=False, unitriangular=True, out=solved)
        part.copy_(solved)


def factor_block(device: Device, D: Tensor, singular: Tensor) -> None:
    """Factor D = L U without pivoting, in place; set `singular` to 1 + the first column with a zero pivot, or to 0."""
    if D.shape[0] == 0:
        singular.zero_()
    elif device.is_gpu:
        # The library replaces NaN by 0. Therefore, all factors are set to NaN here if the input was not finite.
        spoilt = (D * 0.0).sum()
        LU, _, info = torch.linalg.lu_factor_ex(D, pivot=False)
        torch.add(LU, spoilt, out=D)
        singular.copy_(info)
    else:
        _factor_blocked(D, singular)


def _factor_blocked(D: Tensor, singular: Tensor) -> None:
    """Factor D = L U without pivoting, in place, from left to right in strips of columns; set `singular`."""
    n = D.shape[0]
    singular.zero_()
    for j0 in range(0, n, NARROW):
        j1 = min(j0 + NARROW, n)
        _factor_strip(D[j0:, j0:j1], singular, j0)
        if j1 < n:
            U12 = D[j0:j1, j1:]
            U12.copy_(torch.linalg.solve_triangular(D[j0:j1, j0:j1], U12, upper=False, unitriangular=True))
            torch.addmm(D[j1:, j1:], D[j1:, j0:j1], U12, alpha=-1, out=D[j1:, j1:])


def _factor_strip(S: Tensor, singular: Tensor, j0: int) -> None:
    """Factor a strip column by column, and update `singular`; a column with a zero pivot is not scaled.

    The strip begins at column j0 of the matrix.
    """
    for j in range(S.shape[1]):
        pivot = S[j, j]
        is_zero = pivot == 0
        singular.copy_(torch.where(is_zero & (singular == 0), j0 + j + 1, singular))
        below = S[j + 1 :, j]
        below /= torch.where(is_zero, 1.0, pivot)
        S[j + 1 :, j + 1 :].addr_(below, S[j, j + 1 :], alpha=-1)
