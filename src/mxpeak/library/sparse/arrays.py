"""What a solve does with vectors beside its kernels, where these are: in NumPy's memory, or on a device as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from mxpeak.kernels.contract.sparse import SparseKernels, Vector
from mxpeak.kernels.host.sparse import HostSparse
from mxpeak.library.inputs import is_tensor
from mxpeak.spans import HOST as HOST_CLOCK
from mxpeak.spans import HostClock, Stopwatch

Array = np.ndarray[Any, np.dtype[Any]]
#: Whole numbers, one for each entry of a vector and where that is; or one for all.
Exponents = Any


class Arrays(Protocol):
    """Vectors of fp64 in one place, and how numbers come there and go back."""

    @property
    def name(self) -> str:
        """What torch calls the place: cpu, cuda:0 …"""

    @property
    def stopwatch(self) -> Stopwatch:
        """The clock of what is done there."""

    def careful(self) -> AbstractContextManager[Any]:
        """Work there, whatever device and precision of products was set."""

    def kernels(self, host: HostSparse) -> SparseKernels:
        """The kernels of the place; the host's set up."""

    def free_bytes(self) -> int | None:
        """Memory that is free there; None where it is the host's."""

    # --- what comes in, what goes out

    def taken(self, values: Any) -> Vector:
        """Numbers there and in fp64, copied only where they must be."""

    def given_back(self, X: Vector, given: Any) -> Any:
        """X as `given` came: a tensor on its device, else an array."""

    def to_host(self, x: Vector) -> Array:
        """A vector as an array."""

    def returned(self, z: Any) -> Any:
        """What a user's function returned, as an array or a tensor of any type."""

    def not_finite(self, x: Any) -> tuple[tuple[int, ...], int] | None:
        """Where the first entry is that is not finite, and how many there are."""

    def indices(self, numbers: Array) -> Exponents:
        """Whole numbers there."""

    def matrix(self, M: Array, like: Vector) -> Any:
        """A small dense matrix for vectors of a type."""

    # --- vectors

    def zeros_like(self, x: Vector) -> Vector:
        """Zeros in x's shape."""

    def copied(self, x: Vector) -> Vector:
        """The same numbers in memory of their own."""

    def stacked(self, columns: Sequence[Vector]) -> Any:
        """Vectors as the columns of a matrix."""

    def permuted(self, x: Vector, places: Any) -> Vector:
        """y_k = x[places_k]."""

    def ldexp(self, x: Vector, exponents: Exponents) -> Vector:
        """x_i · 2^e_i, rounded once."""

    def largest_exponent(self, v: Vector, shift: Exponents) -> int:
        """The least e with |v_i|·2^shift_i < 2^e for all i; v is not zero."""

    def norm(self, x: Vector) -> float:
        """||x||_2."""

    def multiply(self, M: Any, b: Vector, out: Vector) -> None:
        """out = M b, M small and dense."""


@dataclass(frozen=True, slots=True)
class HostArrays:
    """NumPy's: see `Arrays`."""

    name = "cpu"

    @property
    def stopwatch(self) -> HostClock:
        """See `Arrays`."""
        return HOST_CLOCK

    def careful(self) -> AbstractContextManager[Any]:
        """See `Arrays`."""
        return nullcontext()

    def kernels(self, host: HostSparse) -> HostSparse:
        """See `Arrays`."""
        return host

    def free_bytes(self) -> None:
        """See `Arrays`."""

    def taken(self, values: Any) -> Array:
        """See `Arrays`."""
        if is_tensor(values):
            from mxpeak.kernels.torch.convert import as_array

            values = as_array(values)  # of bf16 too, a type that NumPy has from ml_dtypes
        return np.asarray(values.astype(np.float64, copy=False))

    def given_back(self, X: Array, given: Any) -> Any:
        """See `Arrays`."""
        if not is_tensor(given):
            return X
        from mxpeak.kernels.torch.tensors import tensor_of

        return tensor_of(X)

    def to_host(self, x: Array) -> Array:
        """See `Arrays`."""
        return x

    def returned(self, z: Any) -> Array:
        """See `Arrays`."""
        return np.asarray(z)

    def not_finite(self, x: Array) -> tuple[tuple[int, ...], int] | None:
        """See `Arrays`."""
        finite = np.isfinite(x)
        if finite.all():
            return None
        index = np.unravel_index(int(np.argmin(finite)), x.shape)
        return tuple(int(i) for i in index), x.size - int(finite.sum())

    def indices(self, numbers: Array) -> Array:
        """See `Arrays`."""
        return numbers

    def matrix(self, M: Array, like: Array) -> Array:
        """See `Arrays`."""
        return np.ascontiguousarray(M, like.dtype)

    def zeros_like(self, x: Array) -> Array:
        """See `Arrays`."""
        return np.zeros_like(x)

    def copied(self, x: Array) -> Array:
        """See `Arrays`."""
        return x.copy()

    def stacked(self, columns: Sequence[Array]) -> Array:
        """See `Arrays`."""
        return np.stack(columns, axis=1)

    def permuted(self, x: Array, places: Array) -> Array:
        """See `Arrays`."""
        found: Array = x[places]
        return found

    def ldexp(self, x: Array, exponents: Exponents) -> Array:
        """See `Arrays`."""
        return np.asarray(np.ldexp(x, exponents))

    def largest_exponent(self, v: Array, shift: Exponents) -> int:
        """See `Arrays`."""
        there = v != 0
        exponents = np.frexp(v)[1] + shift
        return int(exponents[there].max())

    def norm(self, x: Array) -> float:
        """See `Arrays`."""
        return float(np.linalg.norm(x))

    def multiply(self, M: Array, b: Array, out: Array) -> None:
        """See `Arrays`."""
        np.matmul(M, b, out=out)


HOST = HostArrays()
