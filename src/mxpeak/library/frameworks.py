"""Convert arrays of CuPy and JAX to NumPy arrays and torch tensors, and results back, without importing a library.

An array exists only if the module of its library is imported. Therefore, mxpeak looks for a library in `sys.modules`
and never imports one. DLPack passes the address of the numbers, so arrays are not copied unless a library cannot
represent the other library's strides or alignment.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np

from mxpeak.errors import ResourceError, UsageError
from mxpeak.installation import install_command

#: The names of DLPack's device types: host, CUDA, pinned and managed CUDA memory, and ROCm. torch calls both GPUs cuda.
DEVICES = {1: "cpu", 2: "cuda", 3: "cpu", 10: "cuda", 11: "cpu", 13: "cuda"}
#: Kinds of types that NumPy imports by DLPack. Arrays of other types, such as bfloat16, have an `__array__` method.
KINDS = ("bool", "int", "uint", "float", "complex")

#: The types that JAX uses instead of 64-bit types in its 32-bit mode.
NARROWER = {"float64": "float32", "complex128": "complex64"}


@dataclass(frozen=True, slots=True)
class Framework:
    """A library whose arrays mxpeak accepts.

    name       the name of its module
    array      the attribute of the module that is the type of arrays
    importer   the attribute of the module that converts an object with DLPack methods to an array
    """

    name: str
    array: str
    importer: str

    def owns(self, values: Any) -> bool:
        """Return whether the values are an array of this library."""
        module = sys.modules.get(self.name)
        return module is not None and isinstance(values, getattr(module, self.array, ()))

    def native(self, values: Any) -> Any:
        """Convert an array to a NumPy array if it is in host memory, otherwise to a torch tensor."""
        if device_of(values) == "cpu":
            by_dlpack = re.fullmatch(rf"({'|'.join(KINDS)})(8|16|32|64|128)?", str(values.dtype))
            return np.from_dlpack(values) if by_dlpack else np.asarray(values)
        return torch_tensors("an array on a GPU").from_dlpack(values)

    def array_of(self, x: Any) -> Any:
        """Convert a NumPy array or a torch tensor to an array of this library on the same device.

        Like all functions of JAX, it rounds 64-bit numbers if JAX is in its 32-bit mode.
        """
        module, name = sys.modules[self.name], str(x.dtype).removeprefix("torch.")
        if self.name == "jax" and name in NARROWER and not module.config.jax_enable_x64:
            narrower = NARROWER[name]
            x = x.astype(narrower) if isinstance(x, np.ndarray) else x.to(getattr(sys.modules["torch"], narrower))
        return attrgetter(self.importer)(module)(x)


FRAMEWORKS = (Framework("cupy", "ndarray", "from_dlpack"), Framework("jax", "Array", "dlpack.from_dlpack"))


def framework_of(values: Any) -> Framework | None:
    """Return the library that the array belongs to, or None for NumPy, torch and all other objects."""
    if type(values) is np.ndarray:
        return None
    return next((framework for framework in FRAMEWORKS if framework.owns(values)), None)


def is_sparse(values: Any) -> bool:
    """Return whether the values are a sparse matrix of SciPy, CuPy or JAX."""
    module = sys.modules.get("jax.experimental.sparse")
    return hasattr(values, "tocsr") or (module is not None and isinstance(values, module.JAXSparse))


def is_traced(values: Any) -> bool:
    """Return whether the values are a placeholder that JAX passes to a function that it transforms."""
    jax = sys.modules.get("jax")
    return jax is not None and type(values) is not np.ndarray and isinstance(values, jax.core.Tracer)


def device_of(values: Any) -> str:
    """Return the torch name of the device of an array with DLPack methods, such as cpu or cuda:0."""
    devices = values.devices() if callable(getattr(values, "devices", None)) else ()
    if len(devices) > 1:
        raise UsageError(
            f"an array is distributed over {len(devices)} devices, but mxpeak needs it on one device; use "
            "jax.device_put(array, jax.devices()[0])"
        )
    if any(device.platform == "tpu" for device in devices):  # TPU arrays do not support DLPack
        return "tpu"
    kind, index = values.__dlpack_device__()
    name = DEVICES.get(int(kind), f"device type {int(kind)} of DLPack")
    return f"{name}:{index}" if name == "cuda" else name


def torch_tensors(what: str) -> Any:
    """Return the module of torch's conversions; raise a ResourceError if `what` needs it and PyTorch is missing."""
    try:
        from mxpeak.kernels.torch.engine import tensors
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise ResourceError(f"{what} needs PyTorch, which is not installed; run {install_command('gpu')}") from None
    return tensors
