"""What a user hands in: arrays of types that the kernels read, and whole numbers."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np

from mxpeak.errors import UsageError
from mxpeak.library.inputs import TYPES, read


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
    """An array or a tensor that the kernels read, not copied unless it holds integers or lies askew."""
    found = read(values, name, instead="scipy.sparse.linalg.norm")
    as_it_lies = found.dtype.name in TYPES
    if found.is_tensor:
        from mxpeak.kernels.torch.tensors import plain

        return plain(found.array) if as_it_lies else found.array.double()
    array = found.array
    if as_it_lies and array.dtype.isnative and array.flags.aligned:
        return array
    return found.on(None, found.dtype if as_it_lies else np.dtype(np.float64))


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
