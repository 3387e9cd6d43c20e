"""What a user hands in as a matrix or a vector: an array of numbers on a device that is there, or a clear refusal."""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np

from mxpeak.errors import ResourceError, UsageError

Array = np.ndarray[Any, np.dtype[Any]]


def is_tensor(values: Any) -> bool:
    """Whether these are a tensor of torch, which is not imported to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


def device_for(name: str, *operands: Any) -> Any:
    """Where to compute with these operands: a `kernels.torch.device.Device`, or None for NumPy's memory, the host.

    auto       where the tensors among them are; the host for those on the CPU, and where there are none
    cpu        the host; a tensor on a GPU is not copied there unasked
    cuda       the GPU that the tensors among them are on, else torch's current one; what is elsewhere is to be copied
    cuda:N     that GPU

    Arrays and tensors in two places, of which the name tells none, are an error; so is a device that is not there.
    """
    if name not in ("auto", "cpu") and not re.fullmatch(r"cuda(:\d+)?", name):
        raise UsageError(f'unknown device "{name}"; choose one of auto, cpu, cuda, cuda:0, cuda:1 …')
    tensors = [operand for operand in operands if is_tensor(operand)]
    places = list(dict.fromkeys(str(tensor.device) for tensor in tensors))
    on_gpus = [place for place in places if place.startswith("cuda")]
    if odd := [place for place in places if place != "cpu" and place not in on_gpus]:
        raise UsageError(f"a tensor lies on {odd[0]}; kernels compute on cpu and cuda: copy it with .cpu()")
    if name == "cpu":
        if on_gpus:
            raise UsageError(f'device="cpu", but a tensor lies on {on_gpus[0]}; copy it with .cpu(), or say "auto"')
        return None
    if len(on_gpus) > 1:
        raise UsageError(f"tensors lie on {' and '.join(on_gpus)}; copy them to one device with .to(...)")
    if name == "auto" and on_gpus and (len(places) > 1 or any(type(x) is np.ndarray for x in operands)):
        raise UsageError(f'one operand lies on {on_gpus[0]}, another on the CPU; say device="{on_gpus[0]}" to copy it')
    if on_gpus and name not in ("auto", "cuda", on_gpus[0]):
        raise UsageError(f'device="{name}", but a tensor lies on {on_gpus[0]}; copy it with .to("{name}")')
    if name == "auto" and not on_gpus:
        return None
    return _opened(on_gpus[0] if on_gpus else name)


def _opened(name: str) -> Any:
    """The GPU of this name."""
    try:
        from mxpeak.kernels.torch.given import device_named
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        raise ResourceError(f"device=\"{name}\": torch is not installed; type: pip install 'mxpeak[gpu]'") from None
    return device_named(name)


def as_array(values: Any, name: str, *, sparse: str, masked: str) -> Array:
    """The values as an array, not copied if they are one; `sparse` and `masked` say what to use instead."""
    if hasattr(values, "tocsr"):
        raise UsageError(f"{name} is sparse; use {sparse}, or {name}.toarray()")
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise UsageError(f"{name} has masked entries, {masked}; fill them: {name}.filled(0)")
    try:
        return np.asarray(values)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{name} is no array of numbers: {error}") from None
