"""Rounding to the types that products take, and copies between row-major and column-major blocks."""

from __future__ import annotations

from typing import Any

import torch

from mxpeak.kernels.torch.engine.device import TYPES, Device

Tensor = Any

#: The type of operands that are multiplied as TF32: FP32's bits under another name.  Products are told their operands
#: and nothing else; with FP32's own type, FP32 operands could not be told from these.
TF32 = torch.int32
#: What operands of a precision are stored in.
OPERANDS = {**TYPES, "tf32": TF32}
#: Halfway between FP8's largest number, 448, and the next that there would be: a tie, whose even neighbour is 448.
FP8_EDGE = 464.0


def cast(device: Device, source: Tensor, target: Tensor, precision: str) -> None:
    """target = source rounded to nearest even."""
    bits = _bits(target)
    by_rows = source.stride(1) == 1 or source.shape[1] == 1
    if device.triton and source.numel() and target.dtype == OPERANDS[precision] and by_rows:
        from mxpeak.kernels.torch.triton.cast import launch_cast

        launch_cast(source, bits if precision == "tf32" else target, precision)
    elif target.dtype == TF32:
        bits.copy_(rounded(source, precision))
    else:
        target.copy_(rounded(source, precision))


def _bits(target: Tensor) -> Tensor:
    """The FP32 numbers of an operand that is multiplied as TF32."""
    return target.view(torch.float32) if target.dtype == TF32 else target


def rounded(x: Tensor, precision: str) -> Tensor:
    """The numbers of x in a precision, in its type."""
    if precision == "fp8":
        # Conversions disagree about what is too large: some give the largest number, some NaN.
        return x.masked_fill(x.abs() > FP8_EDGE, torch.nan).to(TYPES[precision])
    if precision == "tf32":
        return _rounded_to_tf32(x.to(torch.float32))
    return x.to(TYPES[precision])


def _rounded_to_tf32(x: Tensor) -> Tensor:
    """13 bits off: half of the last place kept is added before, less one where that place is 0."""
    bits = x.view(torch.int32)
    nearest = (bits + 0x0FFF + ((bits >> 13) & 1)) & ~0x1FFF
    return torch.where(torch.isnan(x), x, nearest.view(torch.float32))


def copy(device: Device, source: Tensor, target: Tensor) -> None:
    """target = source, in whatever orders they lie."""
    if device.triton and _crossed(source, target):
        from mxpeak.kernels.torch.triton.cast import launch_copy

        launch_copy(source, target)
    else:
        target.copy_(source)


def _crossed(source: Tensor, target: Tensor) -> bool:
    """Whether one lies by rows and the other by columns: then the library's copy uses up a line for one number."""
    if source.dim() != 2 or min(source.shape) < 2:
        return False
    return {source.stride().index(1), target.stride().index(1)} == {0, 1}
