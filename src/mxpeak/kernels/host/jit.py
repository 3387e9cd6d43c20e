"""Numba as the host kernels use it: without the interpreter lock, cached on disk in a folder of our own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
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


def jit(
    *signature: Any, also: tuple[Any, ...] = (), fastmath: Any = False, inline: str = "never"
) -> Callable[[Callable[..., Any]], Any]:
    """Compile now for these argument types (an entry point); without any, when compiled code first uses it.

    `also`: the argument types of a second form of the same function.
    """
    types_given = [types.void(*form) for form in (signature, also) if form]

    def compile_(function: Callable[..., Any]) -> Any:
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = str(cache_directory())  # of this function only: the user's own keep theirs
        try:
            return numba.njit(
                *([types_given] if types_given else []),
                nogil=True,
                cache=True,
                fastmath=fastmath,
                inline=inline,
                error_model="numpy",
            )(function)
        finally:
            numba.config.CACHE_DIR = before

    return compile_
