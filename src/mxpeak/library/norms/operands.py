"""From a user's matrix to tiles, and to the kernels that read them: the host's, a device's, or those of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any

import numpy as np

from mxpeak.distributed.dense import DistMatrix
from mxpeak.distributed.tiles import CyclicMatrix, TileMatrix, cyclic, whole
from mxpeak.errors import UsageError
from mxpeak.kernels.choose import device_norms, host_norms
from mxpeak.kernels.contract.norms import NormKernels
from mxpeak.library.inputs import TYPES, Input, as_array, as_tensor, device_for, device_of, is_tensor, opened, read

Matrix = TileMatrix | CyclicMatrix


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix whose norms are computed; of a user's array nothing is copied, unless it holds integers.

    matrix    its tiles are arrays or tensors
    devices   those on which tiles lie, as torch calls them: cpu, cuda:0 …
    tensors   whether tiles are tensors; then norms of rows and columns are tensors
    """

    matrix: Matrix
    devices: Sequence[str]
    tensors: bool

    def on(self, device: str, threads: int) -> tuple[Matrix, NormKernels]:
        """The matrix as the kernels that compute on `device` read it; copied only to a device on which it is not.

        CPU tensors are arrays of the same memory to the host's kernels.
        """
        M = self.matrix
        if device == "auto" and len(self.devices) > 1:  # each tile where it is; vectors on a GPU
            names = sorted(self.devices, key=lambda name: name == "cpu")
            kernels = device_norms([device_for(device, name) or opened(name) for name in names])
            return _exchanging(M.mapped(as_tensor), kernels), kernels
        found = device_for(device, *self.devices)
        if found is None:
            return M.mapped(as_array) if self.tensors else M, host_norms(threads)
        kernels = device_norms([found])
        return _exchanging(M.mapped(lambda A: as_tensor(A).to(found.where)), kernels), kernels

    def result(self, x: Any) -> Any:
        """A vector as this operand came."""
        return as_tensor(x) if self.tensors else as_array(x)


def _exchanging(M: Matrix, kernels: NormKernels) -> Matrix:
    """The matrix whose ranks exchange vectors of these kernels."""
    return M if M.comm.size == 1 else M.with_transport(kernels.transport)


def operand(A: Any) -> Operand:
    """A user's matrix: an array, a tensor, what is already read of one, or a matrix in tiles."""
    if isinstance(A, DistMatrix):
        A = cyclic(A)
    if isinstance(A, TileMatrix | CyclicMatrix):
        arrays = [tile.A for tile in A.tiles]
        return Operand(A, tuple(dict.fromkeys(str(device_of(x)) for x in arrays)), any(map(is_tensor, arrays)))
    found = A if isinstance(A, Input) else dense(A, "A")
    if len(found.shape) not in (1, 2):
        raise UsageError(f"A has {len(found.shape)} dimensions, but a norm needs one or two; use a matrix or a vector")
    array = found.array if len(found.shape) == 2 else found.array[:, None]
    return Operand(whole(array), (found.device or "cpu",), found.is_tensor)


def dense(values: Any, name: str) -> Input:
    """An array or a tensor of a type and alignment that kernels read; integers and foreign byte orders are copied.

    Absolute values do not change by conjugation: a conjugate view is read as it is stored.
    """
    found = read(values, name, instead="scipy.sparse.linalg.norm", constant=True)
    known, array = found.dtype.name in TYPES, found.array
    if found.is_tensor:
        array = array.resolve_neg() if known else array.double()
        array = array.conj() if array.is_conj() else array
    elif not (known and array.dtype.isnative and array.flags.aligned):
        array = found.on(None, found.dtype if known else np.dtype(np.float64))
    return replace(found, array=array, dtype=found.dtype if known else np.dtype(np.float64))


def integers(values: Sequence[Any], name: str) -> list[int]:
    """Values as Python integers."""
    try:
        return [index(value) for value in values]
    except TypeError:
        raise UsageError(f"{name} = {values!r} is not valid; use integers") from None


def sizes(values: Sequence[Any], name: str) -> list[int]:
    """Values as Python integers, 0 or more."""
    found = integers(values, name)
    if any(value < 0 for value in found):
        raise UsageError(f"{name} = {values!r} contains a negative size; use sizes of 0 or more")
    return found
