"""Factor panels (FACT): with the device's library if one rank has the whole panel, otherwise with host kernels.

The ranks of a distributed panel exchange one pivot row per column, which a device cannot do. Therefore, a distributed
panel is copied to the host, factored there by all threads while the device updates (rocHPL §III-A), and copied back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from mxpeak.kernels.contract.lu import Exchange, Panel, PanelOutcome
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.lu.blas import by_cusolver

if TYPE_CHECKING:
    from mxpeak.kernels.host.sparse.sparse import HostSparse

Tensor = Any
#: The library function that factors panels on the device.
LIBRARY = "torch.linalg.lu_factor_ex"


class Host(Protocol):
    """The kernels of the host to which a device leaves panels of several ranks and a user's sparse rows."""

    threads: int

    @property
    def sparse(self) -> HostSparse:
        """Return the host's sparse kernels, which build matrices from a user's rows."""

    def factor_panel(self, work: Panel, exchange: Exchange | None) -> PanelOutcome:
        """Factor a panel in host memory; `exchange` selects pivots among the ranks of the process column."""


def factor_here(panel: Panel) -> None:
    """Factor P A = L U on the device, and store L1, L21 and the pivots in the panel; the plan's variants are ignored.

    The library may choose any entry of the largest magnitude as the pivot, and any entry if the column contains NaN.
    """
    jb, rows = panel.L1.shape[0], panel.rows
    with by_cusolver(panel.A):
        LU, pivots, info = torch.linalg.lu_factor_ex(panel.A)
    panel.L1.copy_(LU[:jb])
    panel.A[jb:] = LU[jb:]
    local = panel.il0 - 1 + pivots.to(torch.int64)  # LAPACK counts from 1
    panel.pivots[:jb] = (local // rows.nb * rows.P + rows.p) * rows.nb + local % rows.nb
    panel.pivots[jb] = info


@dataclass(frozen=True, slots=True)
class Brought(Panel):
    """A panel of a device, with host copies of A, L1 and the pivots; the copying may still be in progress."""

    copies: tuple[Tensor, ...]


def brought(device: Device, panel: Panel) -> Panel:
    """Start to copy a panel from a GPU to host memory, and return the panel with the copies.

    A panel of a CPU is returned unchanged.
    """
    if not device.is_gpu:
        return panel
    copies = []
    for part in _parts(panel):
        copies.append(torch.empty(_flat(part).shape, dtype=part.dtype, pin_memory=True))
        copies[-1].copy_(_flat(part), non_blocking=True)
    return Brought(**{field.name: getattr(panel, field.name) for field in fields(panel)}, copies=tuple(copies))


def factor_on_host(device: Device, host: Host, panel: Panel, exchange: Exchange | None) -> PanelOutcome:
    """Factor a panel with the host's kernels, and copy the result back to the device.

    The ranks of the process column cooperate through `exchange`.
    """
    if not device.is_gpu:
        return _factored(host, _in_memory(panel, (part.numpy() for part in _parts(panel))), exchange)
    if not isinstance(panel, Brought):
        return factor_on_host(device, host, brought(device, panel), exchange)
    there = list(zip(_parts(panel), panel.copies))
    torch.cuda.current_stream(device.where).synchronize()
    outcome = _factored(host, _in_memory(panel, (_shaped_like(*pair) for pair in there)), exchange)
    begin = device.mark()
    for part, copy in there:
        _flat(part).copy_(copy, non_blocking=True)
    return replace(outcome, copied=(begin, device.mark()))


def _factored(host: Host, panel: Panel, exchange: Exchange | None) -> PanelOutcome:
    """Factor a panel in host memory, and return the outcome with a copy of the pivots."""
    outcome = host.factor_panel(panel, exchange)
    return replace(outcome, pivots=np.array(panel.pivots, np.float64))


def _parts(panel: Panel) -> tuple[Tensor, Tensor, Tensor]:
    """Return the parts of a panel that are copied: A, L1 and the pivots."""
    return panel.A, panel.L1, panel.pivots


def _in_memory(panel: Panel, arrays: Iterable[Any]) -> Panel:
    """Return the panel with A, L1 and the pivots replaced by these arrays."""
    A, L1, pivots = arrays
    return replace(panel, A=A, L1=L1, pivots=pivots)


def _flat(part: Tensor) -> Tensor:
    """Return a one-dimensional view of a column-major part that includes the gaps between columns.

    One contiguous copy then suffices.
    """
    if part.dim() == 1 or part.numel() == 0:
        return part.reshape(-1)
    return part.as_strided((part.stride(1) * (part.shape[1] - 1) + part.shape[0],), (1,))


def _shaped_like(part: Tensor, piece: Tensor) -> Any:
    """Return the host copy `piece` as an array with the shape and strides of the panel's `part`."""
    return piece.as_strided(part.shape, part.stride(), 0).numpy()
