"""What a user hands in as a matrix or a vector: an array of numbers on a device that is there, or a clear refusal."""

from __future__ import annotations

from typing import Any

import numpy as np

from mxpeak.errors import ResourceError, UsageError

Array = np.ndarray[Any, np.dtype[Any]]


def check_device(device: str) -> None:
    """Stop at a device that is not there."""
    if device in ("auto", "cpu"):
        return
    if device.split(":")[0] == "cuda":
        raise ResourceError(f'device="{device}": there are no kernels for GPUs yet; say device="cpu"')
    raise UsageError(f'unknown device "{device}"; choose one of auto, cpu')


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
