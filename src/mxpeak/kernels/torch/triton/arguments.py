"""Group the arguments of kernels, and describe the specializations that are compiled without a GPU."""

from __future__ import annotations

from typing import Any, NamedTuple

#: A tensor or an integer; in a `Form`, its type.
Tensor = Any
Integer = Any
#: A specialization: a kernel, the types of its arguments by name, and its compile-time constants.
Form = tuple[Any, dict[str, Any], dict[Any, Any]]


class Matrix(NamedTuple):
    """A row-major matrix as a kernel argument: its entries and its leading dimension."""

    entries: Tensor
    ld: Integer


def matrix(A: Tensor) -> Matrix:
    """Return a row-major tensor as a kernel argument."""
    return Matrix(A, A.stride(0))


def form_of(kernel: Any, *types: Any, **constants: Any) -> Form:
    """Return a specialization of a kernel; `types` are the types of the arguments that are not constants, in order."""
    remaining = iter(types)
    signature = {name: "constexpr" if name in constants else next(remaining) for name in kernel.arg_names}
    return kernel, signature, constants
