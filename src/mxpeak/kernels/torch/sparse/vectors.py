"""Compute operations on vectors and bases of Krylov methods with torch operations, with sums in fp64.

The functions of `triton.vectors` compute the same results in one pass over memory.
"""

from __future__ import annotations

from typing import Any

import torch

from mxpeak.kernels.torch.engine.device import Device

Tensor = Any
#: Numbers of a vector that are widened at a time.
PIECE = 2**20


def dot(device: Device, x: Tensor, y: Tensor) -> Tensor:
    """Return Σ x_i y_i in fp64, as a tensor without dimensions."""
    total = device.zeros()
    for k in range(0, x.numel(), PIECE):
        total += torch.dot(x[k : k + PIECE].double(), y[k : k + PIECE].double())
    return total


def subtract_from(device: Device, y: Tensor, b: Tensor) -> Tensor:
    """Compute y = b - y and return Σ y_i² of the new y."""
    torch.sub(b, y, out=y)
    return dot(device, y, y)


def scatter_add(device: Device, x: Tensor, rows: Tensor, y: Tensor) -> None:
    """Compute x[rows_k] += y_k."""
    x.index_add_(0, rows, y)


def project(device: Device, Q: Tensor, w: Tensor) -> Tensor:
    """Return the products q_j · w for all rows q_j of Q."""
    products = device.zeros(len(Q))
    for k in range(0, w.numel(), PIECE):
        products += Q[:, k : k + PIECE].double() @ w[k : k + PIECE].double()
    return products


def subtract_and_project(device: Device, Q: Tensor, w: Tensor, h: Tensor) -> Tensor:
    """Compute w -= Σ h_j q_j and return the products q_j · w of the updated w."""
    subtract(device, Q, w, h)
    return project(device, Q, w)


def subtract_and_square(device: Device, Q: Tensor, w: Tensor, h: Tensor) -> Tensor:
    """Compute w -= Σ h_j q_j and return Σ w_i² of the updated w."""
    subtract(device, Q, w, h)
    return dot(device, w, w)


def subtract(device: Device, Q: Tensor, w: Tensor, h: Tensor) -> None:
    """Compute w -= Σ h_j q_j in the type of w."""
    factors = h.to(w.dtype)
    if Q.dtype == w.dtype:
        w.sub_(torch.mv(Q.t(), factors))
        return
    for k in range(0, w.numel(), PIECE):
        w[k : k + PIECE].sub_(torch.mv(Q[:, k : k + PIECE].to(w.dtype).t(), factors))
