"""Validate a user's matrix or vector once, and wrap it as an `Input`."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from mxpeak.errors import UnknownTypeError, UsageError
from mxpeak.library.frameworks import Framework, framework_of, is_sparse, is_traced, torch_tensors
from mxpeak.library.frameworks import device_of as device_by_dlpack

Array = np.ndarray[Any, np.dtype[Any]]

#: The supported floating-point types, by their names in NumPy and torch.
TYPES = ("float64", "float32", "float16", "bfloat16", "complex128", "complex64")
INTEGERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_DTYPES = {name: np.dtype(name) for name in TYPES + INTEGERS if name != "bfloat16"}
_DTYPES["bfloat16"] = np.dtype(ml_dtypes.bfloat16)
#: Number of entries that are examined at a time, so that no temporary array is as large as a matrix.
STRIP = 1 << 24


@dataclass(frozen=True, slots=True)
class Input:
    """A dense matrix or vector that refers to the user's array or tensor without a copy.

    name        the argument name for messages, such as A or b
    array       a NumPy array or a torch tensor
    dtype       the NumPy type of the numbers, in the machine's byte order
    shape       the shape, of any number of dimensions
    device      the torch name of the device, such as cpu or cuda:0; None for Python numbers
    framework   the library of the user's array, if it is neither NumPy nor torch
    """

    name: str
    array: Any
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    device: str | None
    framework: Framework | None = None

    @property
    def is_tensor(self) -> bool:
        """Return whether the numbers are in a torch tensor. Results are then on the same device."""
        return not isinstance(self.array, np.ndarray)

    def on(self, device: Any, dtype: np.dtype[Any] | None = None) -> Any:
        """Return the numbers as an array if `device` is None, otherwise as a tensor.

        Copy the numbers only if necessary.
        """
        dtype = self.dtype if dtype is None else dtype
        if device is not None:
            from mxpeak.kernels.torch.engine.tensors import on_device

            return on_device(self.array, device, dtype)
        return np.asarray(np.require(as_array(self.array), dtype, "A"))

    def result(self, X: Any) -> Any:
        """Convert a result X to the format of this input: an array of its library, on the same device."""
        x = as_tensor(X).to(self.array.device) if self.is_tensor else as_array(X)
        return x if self.framework is None else self.framework.array_of(x)


def read(values: Any, name: str, *, instead: str = "") -> Input:
    """Validate `values` and wrap them as an `Input`; raise a UsageError if they are invalid.

    `instead` is the function that the error suggests for a sparse matrix.
    """
    check_not_traced(values, name)
    tensor = is_tensor(values)
    if tensor:
        check_no_gradient(values, name)
    if is_sparse(values) or (tensor and str(values.layout) != "torch.strided"):
        dense = f"{name}.{'to_dense' if tensor else 'toarray' if hasattr(values, 'toarray') else 'todense'}()"
        raise UsageError(f"{name} is sparse; use {dense}" + f", or {instead}" * bool(instead))
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise UsageError(f"{name} has masked entries, which mxpeak does not support; use {name}.filled(0)")
    if framework := framework_of(values):
        values = framework.native(values)
        tensor = is_tensor(values)
    device = device_of(values)
    try:
        array = values.detach() if tensor else np.asarray(values)
    except (ValueError, TypeError) as error:
        raise UnknownTypeError(f"{name} is not a numeric array: {error}; use an array of numbers") from None
    dtype = _DTYPES.get(str(array.dtype).removeprefix("torch.") if tensor else array.dtype.name)
    if dtype is None:
        raise UnknownTypeError(
            f"{name} has dtype {array.dtype}, which mxpeak does not support; use {', '.join(TYPES)} or "
            f"integers, for example {name}.{'double()' if tensor else 'astype(float)'}"
        )
    return Input(name, array, dtype, tuple(array.shape), device, framework)


def check_not_traced(values: Any, name: str) -> None:
    """Raise a UsageError for a placeholder of JAX, which has no numbers."""
    if is_traced(values):
        raise UsageError(
            f"{name} is a placeholder of jax.jit, jax.grad or jax.vmap, but this function of mxpeak needs numbers; use "
            "jax.pure_callback, or call the function outside the transformation"
        )


def check_no_gradient(tensor: Any, name: str) -> None:
    """Raise a UsageError for a tensor that requires a gradient, for functions that do not compute gradients."""
    if requires_gradient(tensor):
        raise UsageError(
            f"{name} requires a gradient, but this function of mxpeak does not compute gradients; use "
            f"{name}.detach(), or use torch.no_grad()"
        )


def requires_gradient(values: Any) -> bool:
    """Return whether torch tracks the gradient of a tensor."""
    return is_tensor(values) and values.requires_grad and bool(sys.modules["torch"].is_grad_enabled())


def conjugate(x: Any) -> Any:
    """Return the complex conjugate of an array or a tensor."""
    return x.conj().resolve_conj() if is_tensor(x) else x.conj()


def is_tensor(values: Any) -> bool:
    """Return whether the values are a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


def as_array(x: Any) -> Any:
    """Convert a tensor to an array; return an array unchanged. The array shares the memory of a CPU tensor."""
    if isinstance(x, np.ndarray):
        return x
    from mxpeak.kernels.torch.engine.tensors import array_of

    return array_of(x)


def as_tensor(x: Any) -> Any:
    """Convert an array to a tensor; return a tensor unchanged. Memory is shared if torch supports the strides."""
    if not isinstance(x, np.ndarray):
        return x
    from mxpeak.kernels.torch.engine.tensors import tensor_of

    return tensor_of(x)


def device_of(values: Any) -> str | None:
    """Return the torch name of the device of an array, tensor or sparse matrix, or None for Python numbers."""
    if is_tensor(values):
        return str(values.device)
    if type(values) is not np.ndarray:
        numbers = getattr(values, "data", None) if is_sparse(values) else values
        if framework_of(numbers):
            return device_by_dlpack(numbers)
    return "cpu" if hasattr(values, "dtype") else None


def device_for(name: str, *devices: str | None, without_fp64: bool = False) -> Any:
    """Return the device that `name` selects for operands on `devices`, or None for the host.

    auto       the device of the tensors; the host if there are none
    cpu        the host; the user must copy tensors from a GPU
    cuda       the GPU of the tensors, otherwise torch's current GPU; other operands are copied
    cuda:N     GPU number N
    mps        Apple's GPU, if the caller supports devices `without_fp64`

    Raise an error for operands on several devices, and for a device that does not exist.
    """
    if not isinstance(name, str) or not re.fullmatch(r"auto|cpu|cuda(:\d{1,9})?|mps(:0)?", name):
        text = f'"{name}"' if isinstance(name, str) else repr(name)
        raise UsageError(f"unknown device {text}; use one of the strings auto, cpu, cuda, cuda:0, cuda:1, …, mps")
    kinds = ("cuda", "mps") if without_fp64 else ("cuda",)
    if name.startswith("mps") and not without_fp64:
        raise UsageError(
            f'device="{name}" has no fp64, and mxpeak supports such a device only for LU factors; use device="cpu"'
        )
    places = [device for device in dict.fromkeys(devices) if device is not None]
    gpus = [device for device in places if device.startswith(kinds)]
    if others := [device for device in places if device != "cpu" and device not in gpus]:
        supported = ", ".join(("cpu", *kinds[:-1])) + f" and {kinds[-1]}"
        raise UsageError(
            f"a tensor is on {others[0]}, but mxpeak supports only {supported} here; use .cpu() to copy it"
        )
    if name == "cpu":
        if gpus:
            raise UsageError(
                f'device="cpu" conflicts with a tensor on {gpus[0]}; use .cpu() to copy the tensor, or use '
                'device="auto"'
            )
        return None
    if len(gpus) > 1:
        raise UsageError(
            f"tensors are on {' and '.join(gpus)}, but all must be on the same device; use .to(...) to copy them"
        )
    if name == "auto" and gpus and len(places) > 1:
        raise UsageError(
            f'one operand is on {gpus[0]} and another is on the CPU; use device="{gpus[0]}" to copy both to the GPU'
        )
    if gpus and name not in ("auto", gpus[0], gpus[0].partition(":")[0]):
        raise UsageError(f'device="{name}" conflicts with a tensor on {gpus[0]}; use .to("{name}") to copy the tensor')
    if name == "auto" and not gpus:
        return None
    return opened(gpus[0] if gpus else name)


def opened(name: str) -> Any:
    """Return the torch device with this name; raise an error if PyTorch or the device is missing."""
    return torch_tensors(f'device="{name}"').device_named(name)


def check_finite(x: Any, name: str, xp: Any) -> None:
    """Raise a UsageError with the position of the first NaN or Inf if an array or tensor contains one."""
    rows = x if x.ndim == 2 else x[:, None]
    count, first = 0, ""
    height = max(1, STRIP // max(rows.shape[1], 1))
    for i0 in range(0, rows.shape[0], height):
        finite = xp.isfinite(rows[i0 : i0 + height])
        if bool(xp.all(finite)):
            continue
        flat = xp.reshape(xp.asarray(finite, dtype=xp.int8), (-1,))  # NumPy 1 has no astype function
        i, j = divmod(int(xp.argmin(flat)), rows.shape[1])
        index = (i0 + i, j)[: x.ndim]
        first = first or f"{name}[{', '.join(map(str, index))}] is {x[index].item()}"
        count += flat.shape[0] - int(xp.sum(flat, dtype=xp.int64))
    if first:
        size = rows.shape[0] * rows.shape[1]
        raise UsageError(f"{first}: {count} of {size} entries of {name} are not finite; use only finite entries")
