"""`emulation_error`: whether emulated fp64 products are as accurate as native ones for given matrices."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np

from mxpeak.errors import UsageError
from mxpeak.kernels.choose import choose
from mxpeak.kernels.contract import Matrix
from mxpeak.kernels.host.engine.blas import one_thread, own_threads
from mxpeak.library.dense.inputs import lies_well
from mxpeak.library.inputs import Input, check_finite, device_for, read
from mxpeak.solvers import emulation_error as measured
from mxpeak.solvers.emulation_error import EmulationError


def emulation_error(A: Any, B: Any, *, entries: int = 100, device: str = "auto") -> EmulationError:
    """Measure the error of the product A B in emulated fp64 and in native fp64.

    mxpeak computes A B from products of 8-bit integers and with the native instructions of the device. It compares both
    results with exact values, at the entries with the largest differences. Errors are relative to |A||B|.

    Parameters
    ----------
    A : array_like or tensor
        Real matrix of shape (m, k). mxpeak converts it to fp64.
    B : array_like or tensor
        Real matrix of shape (k, n).
    entries : int, default 100
        Number of entries of the product that are compared with exact values.
    device : str, default "auto"
        Use "auto" for the device of A, or specify a device such as "cpu", "cuda" or "cuda:0".

    Returns
    -------
    EmulationError
        Errors of both products, the bound of native products, and the numbers of emulated and native blocks.

    Raises
    ------
    UsageError
        A or B is not a finite real matrix, or their shapes do not match.
    ResourceError
        The device has no products of 8-bit integers, or there is not enough memory.

    Examples
    --------
    >>> import numpy as np
    >>> import mxpeak as mx
    >>> numbers = np.random.default_rng(1)
    >>> A, B = numbers.standard_normal((2, 200, 200))
    >>> error = mx.emulation_error(A, B)
    >>> error.emulated < error.bound
    True
    >>> error.blocks
    Emulation(emulated=1, widened=0, native=0, moduli=15)
    """
    if isinstance(entries, bool) or not isinstance(entries, Integral) or entries < 1:
        raise UsageError(f"entries = {entries!r} is not valid; use an integer of at least 1")
    left, right = _matrix(A, "A"), _matrix(B, "B")
    if left.shape[1] != right.shape[0]:
        raise UsageError(
            f"A has {left.shape[1]} columns, but B has {right.shape[0]} rows; use a B with {left.shape[1]} rows"
        )
    opened = device_for(device, left.device, right.device)
    with one_thread():
        if opened is None:
            kernels = choose("host", "cpu", own_threads())
        else:
            kernels = choose("torch", str(opened.where), 1)
        matrices = [_on_device(M, opened) for M in (left, right)]
        for M, name in zip(matrices, "AB"):
            check_finite(M, name, kernels.xp)
        return measured.measure_emulation_error(kernels, *matrices, int(entries))


def _matrix(values: Any, name: str) -> Input:
    """Wrap a real matrix as an `Input`; raise a UsageError if it is complex or not two-dimensional."""
    matrix = read(values, name)
    if len(matrix.shape) != 2:
        raise UsageError(f"{name} has shape {matrix.shape}; use a matrix")
    if matrix.dtype.kind == "c":
        raise UsageError(f"{name} is complex; use {name}.real and {name}.imag, because emulated products are real")
    return matrix


def _on_device(M: Input, device: Any) -> Matrix:
    """Convert a matrix to fp64 on the device, with contiguous rows or columns. Compiled code needs writable arrays."""
    array = M.on(device, np.dtype(np.float64))
    if device is None:
        return array if lies_well(array) and array.flags.writeable else array.copy()
    return array if lies_well(array) else array.contiguous()
