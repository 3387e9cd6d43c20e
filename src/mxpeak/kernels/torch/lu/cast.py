"""Round blocks to the types of operands, and copy between row-major and column-major blocks."""

from __future__ import annotations

from typing import Any

import torch

from mxpeak.kernels.torch.engine.device import TYPES, Device

Tensor = Any

#: Type of TF32 operands: the bits of FP32 under another name, because a product distinguishes TF32 from FP32 operands
#: only by their type.
TF32 = torch.int32
#: Storage type of the operands of each precision.
OPERANDS = {**TYPES, "tf32": TF32}
#: Midpoint of 448, FP8's largest number, and 480, which would be the next number. The midpoint rounds to 448, the even
#: one.
FP8_EDGE = 464.0


def cast(device: Device, source: Tensor, target: Tensor, precision: str) -> None:
    """Set target = source, rounded to nearest even to the precision of the target."""
    bits = target.view(torch.float32) if target.dtype == TF32 else target
    by_rows = source.stride(1) == 1 or source.shape[1] == 1
    if device.triton and source.numel() and target.dtype == OPERANDS[precision] and by_rows:
        from mxpeak.kernels.torch.triton.cast import launch_cast

        launch_cast(source, bits if precision == "tf32" else target, precision)
    elif target.dtype == TF32:
        bits.copy_(rounded(source, precision))
    else:
        target.copy_(rounded(source, precision))


def rounded(x: Tensor, precision: str) -> Tensor:
    """Return x rounded to a precision, in the torch type of that precision; numbers too large for fp8 become NaN."""
    if precision == "fp8":
        # Conversions of numbers that are too large differ: some return the largest number, others NaN.
        return x.masked_fill(x.abs() > FP8_EDGE, torch.nan).to(TYPES[precision])
    if precision == "tf32":
        return _rounded_to_tf32(x.to(torch.float32))
    return x.to(TYPES[precision])


def _rounded_to_tf32(x: Tensor) -> Tensor:
    """Return an fp32 x rounded to nearest even to TF32, which has 13 bits less.

    The code adds half a unit of the last kept bit, minus one if that bit is 0, and drops 13 bits.
    """
    bits = x.view(torch.int32)
    nearest = (bits + 0x0FFF + ((bits >> 13) & 1)) & ~0x1FFF
    return torch.where(torch.isnan(x), x, nearest.view(torch.float32))


def copy(device: Device, source: Tensor, target: Tensor) -> None:
    """Set target = source for two tensors that may be row-major or column-major."""
    if device.triton and _crossed(source, target):
        from mxpeak.kernels.torch.triton.cast import launch_copy

        launch_copy(source, target)
    else:
        target.copy_(source)


def _crossed(source: Tensor, target: Tensor) -> bool:
    """Return whether one tensor is row-major and the other column-major.

    A library copy between these orders would use one cache line per entry.
    """
    if source.dim() != 2 or min(source.shape) < 2:
        return False
    return {source.stride().index(1), target.stride().index(1)} == {0, 1}
