"""Define structures of matrices entry by entry."""

from __future__ import annotations

from collections.abc import Callable

Inside = Callable[[int, int], bool]


def definition(name: str, uplo: str, k: int, l: int) -> Inside:
    """Return the mask of the stored entries of a structure, including the diagonal."""
    lower = uplo == "lower"
    return {
        "general": lambda i, j: True,
        "trapezoid": lambda i, j: j <= i if lower else j >= i,
        "triangular": lambda i, j: j <= i if lower else j >= i,
        "symmetric": lambda i, j: j <= i if lower else j >= i,
        "hermitian": lambda i, j: j <= i if lower else j >= i,
        "band": lambda i, j: i - k <= j <= i + l,
        "hermitian-band": lambda i, j: i - k <= j <= i if lower else i <= j <= i + k,
        "hessenberg": lambda i, j: j >= i - 1,
    }[name]  # type: ignore[return-value]
