"""Where norms are computed: by the host's kernels, on a device, or, for tiles that lie apart, on several."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mxpeak.distributed.tiles import CyclicMatrix, TileMatrix
from mxpeak.kernels.contract.norms import NormKernels
from mxpeak.library.inputs import device_for, device_of, is_tensor
from mxpeak.library.norms.arrays import numbers

Matrix = TileMatrix | CyclicMatrix


@dataclass(frozen=True, slots=True)
class OnDevice:
    """A matrix in the form that these kernels take, and how their vectors are given back to the user."""

    matrix: Matrix
    kernels: NormKernels
    given_back: Callable[[Any], Any]


def on_host(A: Any) -> Any:
    """A tensor on the CPU as an array of the same memory; one on a device as it is."""
    return _as_array(numbers(A, "A")) if A.device.type == "cpu" else A


def placed(M: Matrix, device: str, host: Callable[[], NormKernels]) -> OnDevice:
    """The matrix where it is to be computed with: nothing is copied unless a device is named on which it does not lie.

    Tensors on the CPU are arrays of the same memory to the host's kernels.  Who gives tensors gets tensors.
    """
    arrays = [tile.A for tile in M.tiles]
    tensors = any(map(is_tensor, arrays))
    places = dict.fromkeys(str(device_of(A)) for A in arrays) if tensors else {}
    if device == "auto" and len(places) > 1:
        for place in places:
            device_for(device, place)
        return _on_several(M, sorted(places, key=lambda place: place == "cpu"))
    where = device_for(device, *map(device_of, arrays if device != "auto" else arrays[:1]))
    if where is not None:
        return _on_device(M, where, tensors)
    if tensors:
        return OnDevice(_changed(M, _as_array), host(), _as_tensor)
    return OnDevice(M, host(), np.asarray)


def _on_device(M: Matrix, where: Any, tensors: bool) -> OnDevice:
    from mxpeak.kernels.torch.norms import TorchNorms

    kernels = TorchNorms(where)
    there = _changed(M, lambda A: kernels.here(_as_tensor(A)))
    return OnDevice(_with_transport(there, where), kernels, _itself if tensors else lambda x: x.cpu().numpy())


def _on_several(M: Matrix, places: Sequence[str]) -> OnDevice:
    """Each tile where it lies; vectors on the first of these places."""
    from mxpeak.kernels.torch.norm_devices import SeveralNorms
    from mxpeak.kernels.torch.tensors import device_at

    devices = {place: device_at(place) for place in places}
    there = _changed(M, _as_tensor)
    return OnDevice(_with_transport(there, devices[places[0]]), SeveralNorms(devices, device_of), _itself)


def _changed(M: Matrix, change: Callable[[Any], Any]) -> Matrix:
    """The matrix with other arrays of the same numbers."""
    if isinstance(M, CyclicMatrix):
        return replace(M, local=change(M.local))
    return replace(M, tiles=[replace(tile, A=change(tile.A)) for tile in M.tiles])


def _with_transport(M: Matrix, where: Any) -> Matrix:
    """The matrix among whose ranks a device's vectors are summed up."""
    from mxpeak.kernels.torch.messages import tensor_transport

    if M.everybody.size == 1:
        return M
    transport = tensor_transport(where)
    if isinstance(M, TileMatrix):
        return replace(M, everybody=M.everybody.with_transport(transport))
    grid = M.grid
    return replace(M, grid=replace(grid, all=grid.all.with_transport(transport), row=grid.row.with_transport(transport),
                                   column=grid.column.with_transport(transport)))  # fmt: skip


def _itself(x: Any) -> Any:
    return x


def _as_array(A: Any) -> Any:
    if not is_tensor(A):
        return A
    from mxpeak.kernels.torch.tensors import array_of

    return array_of(A)


def _as_tensor(A: Any) -> Any:
    from mxpeak.kernels.torch.tensors import tensor_of

    return A if is_tensor(A) else tensor_of(A)
