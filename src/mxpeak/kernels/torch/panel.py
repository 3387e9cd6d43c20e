"""FACT: on the device by its library where one rank has the whole panel, else by the host's kernels.

A panel of several ranks exchanges a pivot's row once a column, of which a device knows nothing: the panel travels to
the host's memory, is factored there by all its threads while the device updates (rocHPL §III-A), and travels back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from mxpeak.kernels.contract.lu import Exchange, Panel, PanelOutcome
from mxpeak.kernels.torch.blas import by_cusolver
from mxpeak.kernels.torch.device import Device

if TYPE_CHECKING:
    from mxpeak.kernels.host.lu import HostLu

Tensor = Any
#: What factors a panel on the device.
LIBRARY = "torch.linalg.lu_factor_ex"


def factor_here(panel: Panel) -> None:
    """P A = L U on the device; the plan's variants are the library's business.

    Among entries of one size, and where a NaN stands, the library chooses as it likes.
    """
    jb, rows = panel.L1.shape[0], panel.rows
    with by_cusolver(panel.A):
        LU, pivots, info = torch.linalg.lu_factor_ex(panel.A)
    panel.L1.copy_(LU[:jb])
    panel.A[jb:] = LU[jb:]
    local = panel.il0 - 1 + pivots.to(torch.int64)  # LAPACK counts from 1
    panel.pivots[:jb] = (local // rows.nb * rows.P + rows.p) * rows.nb + local % rows.nb
    panel.pivots[jb] = info


def factor_on_host(device: Device, host: HostLu, panel: Panel, exchange: Exchange | None) -> PanelOutcome:
    """The same by the host's kernels, in step with the other ranks of the process column."""
    parts = (panel.A, panel.L1, panel.pivots)
    if not device.is_gpu:
        A, L1, pivots = (part.numpy() for part in parts)
        return host.factor_panel(replace(panel, A=A, L1=L1, pivots=pivots), exchange)
    buffers = [torch.empty(_flat(part).shape, dtype=part.dtype, pin_memory=True) for part in parts]
    for part, buffer in zip(parts, buffers):
        buffer.copy_(_flat(part), non_blocking=True)
    torch.cuda.current_stream(device.where).synchronize()
    A, L1, pivots = (_shaped_like(part, buffer) for part, buffer in zip(parts, buffers))
    outcome = host.factor_panel(replace(panel, A=A, L1=L1, pivots=pivots), exchange)
    for part, buffer in zip(parts, buffers):
        _flat(part).copy_(buffer, non_blocking=True)
    return outcome


def _flat(part: Tensor) -> Tensor:
    """A column-major panel with all that lies between its columns: one piece, which is copied at full speed."""
    if part.dim() == 1 or part.numel() == 0:
        return part.reshape(-1)
    return part.as_strided((part.stride(1) * (part.shape[1] - 1) + part.shape[0],), (1,))


def _shaped_like(part: Tensor, piece: Tensor) -> Any:
    """A piece of the host's memory as an array of a panel's shape and strides."""
    return piece.as_strided(part.shape, part.stride(), 0).numpy()
