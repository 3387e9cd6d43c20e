"""Products and solves by the device's libraries, and an LU without pivoting where they have none.

Products accumulate in place: the library takes any leading dimension.  Its triangular solves take none, so a block goes
through a buffer, in strips: it costs a copy, and little memory compared with a matrix that fills it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.lu.cast import TF32

Tensor = Any

#: Entries of a strip that goes through a buffer.
STRIP = 1 << 25
#: Columns of a strip of the LU without pivoting.
NARROW = 32
#: Operands that are multiplied in less than FP32.
HALF, EIGHTH = (torch.float16, torch.bfloat16), torch.float8_e4m3fn


@contextmanager
def fp32_products(how: str) -> Iterator[None]:
    """Products of FP32 numbers in full (ieee) or by the tensor cores' TF32 (tf32), whatever was set before."""
    setting = torch.backends.cuda.matmul
    before = setting.fp32_precision
    setting.fp32_precision = how
    try:
        yield
    finally:
        setting.fp32_precision = before


@contextmanager
def by_cusolver(A: Tensor) -> Iterator[None]:
    """Factorizations by cuSOLVER: left to itself torch takes a tall panel for many small matrices."""
    if not A.is_cuda or torch.version.hip is not None:
        yield
        return
    prefer = torch.backends.cuda.preferred_linalg_library
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that this is experimental
        before = prefer()
        prefer("cusolver")
        try:
            yield
        finally:
            prefer(before)


# --- products


def subtract_product(device: Device, C: Tensor, A: Tensor, B: Tensor, gemm: str) -> None:
    """C -= A B: by the library, or by Triton's product where `gemm` says so or the library has none."""
    if A.dtype == TF32:
        _subtract(C, A.view(C.dtype), B.view(C.dtype), "tf32")
    elif A.dtype not in (*HALF, EIGHTH):
        _subtract(C, A, B, "ieee")
    elif C.numel() and A.shape[1] and device.triton and (gemm == "triton" or A.dtype == EIGHTH) and _knows(device, A):
        from mxpeak.kernels.torch.triton.gemm import launch_subtract_product

        launch_subtract_product(C, A, B)
    elif device.is_gpu and torch.version.hip is None:
        if A.dtype == EIGHTH:  # every FP8 number is an FP16 one
            A, B = A.to(torch.float16), B.to(torch.float16)
        torch.addmm(C, A, B, out_dtype=torch.float32, alpha=-1, out=C)
    else:  # a CPU, and ROCm's library, multiply no halves into singles
        _subtract(C, A.to(C.dtype), B.to(C.dtype), "ieee")


def _knows(device: Device, A: Tensor) -> bool:
    """Whether Triton compiles products of such numbers for the device: FP8's not for NVIDIA's before sm_89."""
    if A.dtype != EIGHTH or not device.is_gpu or torch.version.hip is not None:
        return True
    major, minor = torch.cuda.get_device_capability(device.where)
    return (int(major), int(minor)) >= (8, 9)


def _subtract(C: Tensor, A: Tensor, B: Tensor, how: str) -> None:
    with fp32_products(how):
        torch.addmm(C, A, B, alpha=-1, out=C)


# --- triangular solves


def solve_right_upper(B: Tensor, U: Tensor) -> None:
    """B = B U^-1."""
    for part in strips(B, B.shape[1]):
        solved = torch.empty(part.shape, dtype=B.dtype, device=B.device)
        with fp32_products("ieee"):
            torch.linalg.solve_triangular(U, part, upper=True, left=False, out=solved)
        part.copy_(solved)


def solve_unit_lower(L: Tensor, B: Tensor) -> None:
    """B = L^-1 B."""
    for turned in strips(B.T, B.shape[0]):
        part = turned.T
        solved = torch.empty(part.shape, dtype=B.dtype, device=B.device)
        with fp32_products("ieee"):
            torch.linalg.solve_triangular(L, part, upper=False, unitriangular=True, out=solved)
        part.copy_(solved)


def strips(B: Tensor, length: int, entries: int = STRIP) -> Iterator[Tensor]:
    """B in strips of so many entries, of rows of this length."""
    rows = max(1, entries // max(length, 1))
    for begin in range(0, B.shape[0], rows):
        yield B[begin : begin + rows]


# --- the diagonal block


def factor_block(device: Device, D: Tensor, singular: Tensor) -> None:
    """D = L U without pivoting, in place; `singular` becomes 0 or 1 + the first column whose pivot is zero."""
    if D.shape[0] == 0:
        singular.zero_()
    elif device.is_gpu:
        # The library turns every NaN into 0.  What was not finite before makes the factors NaN all over.
        spoilt = (D * 0.0).sum()
        LU, _, info = torch.linalg.lu_factor_ex(D, pivot=False)
        torch.add(LU, spoilt, out=D)
        singular.copy_(info)
    else:
        _factor_blocked(D, singular)


def _factor_blocked(D: Tensor, singular: Tensor) -> None:
    """The same from left to right, in strips of columns."""
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
    """The columns of a strip, one by one; that of a zero pivot stays as it is."""
    for j in range(S.shape[1]):
        pivot = S[j, j]
        is_zero = pivot == 0
        singular.copy_(torch.where(is_zero & (singular == 0), j0 + j + 1, singular))
        below = S[j + 1 :, j]
        below /= torch.where(is_zero, 1.0, pivot)
        S[j + 1 :, j + 1 :].addr_(below, S[j, j + 1 :], alpha=-1)
