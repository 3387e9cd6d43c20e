"""Numba as the host kernels use it: without the interpreter lock, cached on disk in a folder of our own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import types

from mxpeak.kernels.host.compiled import cache_directory

MATRIX = types.Array(types.float64, 2, "A")
MATRIX32 = types.Array(types.float32, 2, "A")
VECTOR = types.float64[::1]
INTEGERS = types.int64[::1]
TABLE = types.int64[:, ::1]
WORDS = types.uint64[::1]
INT = types.int64
FLAG = types.boolean

#: Arguments with a type: for a literal Numba would compile the function that takes it once more.
ZERO, ONE = np.int64(0), np.int64(1)
FALSE, TRUE = np.bool_(False), np.bool_(True)


def jit(
    *signature: Any, also: tuple[Any, ...] = (), fastmath: Any = False, allocates: bool = False
) -> Callable[[Callable[..., Any]], Any]:
    """An entry point: compile now for these argument types; without any, when it is first called.

    `also`: the argument types of a second form of the same function.  What neither allocates nor calls what returns new
    arrays need not count references: atomic operations, and calls before which the vector registers are cleared.
    """
    types_given = [types.void(*form) for form in (signature, also) if form]
    return _njit(*([types_given] if types_given else []), fastmath=fastmath, _nrt=allocates)


def inner(
    *, fastmath: Any = False, inline: bool = False, allocates: bool = False
) -> Callable[[Callable[..., Any]], Any]:
    """A function that compiled code alone calls: the way in from Python can take as long to compile as the function.

    `inline`: LLVM puts it into its callers.  Numba could too, but types it anew in each.
    """
    return _njit(fastmath=fastmath, forceinline=inline, no_cpython_wrapper=True, _nrt=allocates)


def _njit(*types_given: Any, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Without a way in from C, of which there is no use."""

    def compile_(function: Callable[..., Any]) -> Any:
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = str(cache_directory())  # of this function only: the user's own keep theirs
        try:
            return numba.njit(
                *types_given, nogil=True, cache=True, error_model="numpy", no_cfunc_wrapper=True, **options
            )(function)
        finally:
            numba.config.CACHE_DIR = before

    return compile_
