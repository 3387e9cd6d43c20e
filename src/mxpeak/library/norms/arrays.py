"""What a user hands in: arrays of types that the kernels read, and whole numbers."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np

from mxpeak.errors import UsageError
from mxpeak.library.inputs import as_array, is_tensor

#: The types whose entries are read as they lie; integers are copied to float64.
TYPES = ("float64", "float32", "float16", "bfloat16", "complex128", "complex64")


def two_dimensional(A: Any) -> Any:
    """A as two-dimensional array: a vector is a column."""
    array = numbers(A, "A")
    if array.ndim == 1:
        return array[:, None]
    if array.ndim != 2:
        raise UsageError(f"A has {array.ndim} dimensions; norms are of matrices, and of vectors as columns")
    return array


def type_name(numbers: Any) -> str:
    """The name of the type of an array or a tensor."""
    return str(numbers.dtype).removeprefix("torch.")


def numbers(values: Any, name: str) -> Any:
    """An array or a tensor of a type that the kernels read, not copied unless it holds integers or lies askew."""
    return _tensor(values, name) if is_tensor(values) else _array(values, name)


def _tensor(values: Any, name: str) -> Any:
    from mxpeak.kernels.torch.given import plain

    if str(values.layout) != "torch.strided":
        raise UsageError(f"{name} is sparse; norms are of dense matrices: {name}.to_dense()")
    if not values.is_floating_point() and not values.is_complex():
        return values.double()
    if type_name(values) not in TYPES:
        raise UsageError(
            f"{name} has dtype {values.dtype}; norms are of {', '.join(TYPES)} and integers; convert it, for example "
            f"{name}.float()"
        )
    return plain(values)


def _array(values: Any, name: str) -> Any:
    array = as_array(values, name, sparse="scipy.sparse.linalg.norm", masked="of which no norm is known")
    if array.dtype.name in TYPES and array.dtype.isnative and array.flags.aligned:
        return array
    if array.dtype.kind in "biu":
        return array.astype(np.float64)
    native = array.dtype.newbyteorder("=")
    if native.name not in TYPES:
        raise UsageError(
            f"{name} has dtype {array.dtype}; norms are of {', '.join(TYPES)} and integers; convert it, for example "
            f"{name}.astype(float)"
        )
    return np.asarray(np.require(array, native, "A"))


def integers(values: Sequence[Any], name: str) -> list[int]:
    """Values as Python integers."""
    try:
        return [index(value) for value in values]
    except TypeError:
        raise UsageError(f"{name} = {values!r}: give whole numbers") from None


def whole_numbers(values: Sequence[Any], name: str) -> list[int]:
    """Sizes as Python integers, 0 or more."""
    found = integers(values, name)
    if any(value < 0 for value in found):
        raise UsageError(f"{name} = {values!r}: a size is 0 or more")
    return found
