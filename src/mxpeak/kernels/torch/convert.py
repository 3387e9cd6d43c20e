"""What `mxpeak.gmres` takes of a device beside its sparse kernels: tensors in and out, powers of two, small products.

The same operations as those of arrays on the host (`sparse_solve.arrays`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sparse
import torch

from mxpeak.errors import ResourceError, UsageError
from mxpeak.kernels.host.sparse import HostSparse
from mxpeak.kernels.torch.blas import fp32_products
from mxpeak.kernels.torch.device import Device
from mxpeak.kernels.torch.sparse import TorchSparse
from mxpeak.kernels.torch.tensors import array_of, plain, tensor_of

Tensor = Any
Array = np.ndarray[Any, np.dtype[Any]]

#: Powers of two that bring every fp64 number to zero or beyond the range, and the largest that is a number itself.
FARTHEST, LARGEST = 2200, 1022
#: Below the exponent of every number.
LOWEST = -(2**31)


def as_array(values: Tensor) -> Array:
    """A tensor as an array, of the same memory where that is the host's and NumPy has the type."""
    return np.asarray(array_of(plain(values).cpu()))


def sparse_matrix(A: Tensor) -> Any:
    """A tensor stored by rows, by columns or by coordinates, as SciPy's array of that kind; on the host."""
    A, shape = A.detach(), tuple(A.shape)
    if A.layout == torch.sparse_csr:
        parts = (_known(A.values()), A.col_indices(), A.crow_indices())
        return sparse.csr_array(tuple(map(as_array, parts)), shape=shape)
    if A.layout == torch.sparse_csc:
        parts = (_known(A.values()), A.row_indices(), A.ccol_indices())
        return sparse.csc_array(tuple(map(as_array, parts)), shape=shape)
    if A.layout == torch.sparse_coo and not A.dense_dim():
        return sparse.coo_array((as_array(_known(A._values())), tuple(as_array(A._indices()))), shape=shape)
    what, instead = {
        torch.strided: ("a dense tensor", "to_sparse_csr(), or mxpeak.solve(A, b) for a dense one"),
        torch.sparse_coo: ("a sparse tensor of dense rows", "to_dense().to_sparse_csr()"),
    }.get(A.layout, (f"a tensor of layout {A.layout}", "to_sparse_coo()"))
    raise UsageError(f"A is {what}; gmres takes sparse_csr, sparse_csc and sparse_coo: type A.{instead}")


def _known(values: Tensor) -> Tensor:
    """Values in a type that SciPy computes with."""
    return values.to(torch.float32) if values.dtype in (torch.float16, torch.bfloat16) else values


@dataclass(frozen=True, slots=True)
class DeviceArrays:
    """Tensors on a device: see `sparse_solve.arrays.Arrays`."""

    device: Device

    @property
    def name(self) -> str:
        """See `Arrays`."""
        return str(self.device.where)

    @property
    def stopwatch(self) -> Device:
        """See `Arrays`."""
        return self.device

    @contextmanager
    def careful(self) -> Iterator[None]:
        """See `Arrays`."""
        here = torch.cuda.device(self.device.where) if self.device.is_gpu else nullcontext()
        try:
            with fp32_products("ieee"), here:
                yield
        except torch.OutOfMemoryError as error:
            said = ". ".join(str(error).split(". ")[:2])
            raise ResourceError(
                f'{self.name} has no room left: {said}; give a smaller restart, or solve on the host: device="cpu"'
            ) from error

    def kernels(self, host: HostSparse) -> TorchSparse:
        """See `Arrays`."""
        return TorchSparse(self.device, host)

    def free_bytes(self) -> int:
        """See `Arrays`."""
        return self.device.memory()[1]

    # --- what comes in, what goes out

    def taken(self, values: Any) -> Tensor:
        """See `Arrays`."""
        numbers = plain(values) if isinstance(values, torch.Tensor) else tensor_of(np.asarray(values, np.float64))
        return numbers.to(device=self.device.where, dtype=torch.float64)

    def given_back(self, X: Tensor, given: Any) -> Any:
        """See `Arrays`."""
        return X.to(given.device) if isinstance(given, torch.Tensor) else self.to_host(X)

    def to_host(self, x: Tensor) -> Array:
        """See `Arrays`."""
        return as_array(x)

    def returned(self, z: Any) -> Tensor:
        """See `Arrays`."""
        if isinstance(z, torch.Tensor) and z.device == self.device.where and z.layout == torch.strided:
            return plain(z)
        what = f"a {z.layout} tensor on {z.device}" if isinstance(z, torch.Tensor) else f"{type(z).__name__}, no tensor"
        raise UsageError(
            f"the preconditioner returned {what}; A x = b is solved on {self.name}, where it is given a dense tensor "
            f'and has to return one; for functions of NumPy arrays type device="cpu"'
        )

    def not_finite(self, x: Tensor) -> tuple[tuple[int, ...], int] | None:
        """See `Arrays`."""
        finite = torch.isfinite(x)
        if bool(finite.all()):
            return None
        first = int(torch.argmin(finite.reshape(-1).to(torch.uint8)))
        return tuple(int(i) for i in np.unravel_index(first, tuple(x.shape))), int((~finite).sum())

    def indices(self, numbers: Array) -> Tensor:
        """See `Arrays`."""
        return self.device.tensor(numbers)

    def matrix(self, M: Array, like: Tensor) -> Tensor:
        """See `Arrays`."""
        return self.device.tensor(np.ascontiguousarray(M), like.dtype)

    # --- vectors

    def zeros_like(self, x: Tensor) -> Tensor:
        """See `Arrays`."""
        return torch.zeros_like(x)

    def copied(self, x: Tensor) -> Tensor:
        """See `Arrays`."""
        return x.clone()

    def stacked(self, columns: Sequence[Tensor]) -> Tensor:
        """See `Arrays`."""
        return torch.stack([*columns], dim=1)

    def permuted(self, x: Tensor, places: Tensor) -> Tensor:
        """See `Arrays`."""
        return x.index_select(0, places)

    def ldexp(self, x: Tensor, exponents: Any) -> Tensor:
        """See `Arrays`.

        A power may be no number of its own: then in three factors, the largest last.  Where one before it rounds, what
        comes of the last is zero anyway.
        """
        if isinstance(exponents, int) and abs(exponents) <= LARGEST:
            return x * 2.0**exponents
        left = torch.as_tensor(exponents, dtype=torch.int64, device=x.device).clamp(-FARTHEST, FARTHEST)
        factors = []
        for _ in range(3):
            k = left.clamp(-LARGEST, LARGEST)
            factors.append(((k + 1023) << 52).view(torch.float64))
            left = left - k
        return x * factors[2] * factors[1] * factors[0]

    def largest_exponent(self, v: Tensor, shift: Any) -> int:
        """See `Arrays`."""
        exponents = torch.frexp(v)[1].to(torch.int64) + shift
        return int(torch.where(v != 0, exponents, LOWEST).amax())

    def norm(self, x: Tensor) -> float:
        """See `Arrays`."""
        return float(torch.linalg.vector_norm(x))

    def multiply(self, M: Tensor, b: Tensor, out: Tensor) -> None:
        """See `Arrays`."""
        torch.mv(M, b, out=out)
