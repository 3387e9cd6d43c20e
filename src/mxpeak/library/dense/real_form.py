"""A complex system as a real one of twice the order: every number of A as a block of 2×2, of b and x as two numbers.

    [ Re a_ij  -Im a_ij ] [ Re x_j ]   [ Re b_i ]
    [ Im a_ij   Re a_ij ] [ Im x_j ] = [ Im b_i ]

Both rows of such a block have one sum of absolute values, and so have its columns: scaling treats them alike.  Its
transpose is the form of A^H.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.library.dense.matrix_source import Source
from mxpeak.library.types import Array


class RealForm:
    """`distributed.given.Strips` of a complex matrix in its real form: blocks of 2·NB, on the ranks where they lie."""

    def __init__(self, source: Source):
        self._source = source

    def __call__(self, rows: BlockCyclic, cols: BlockCyclic, local: slice) -> Array:
        """These local rows of the real form, row-major; they begin with a block."""
        Z = self._source(_halved(rows), _halved(cols), slice(local.start // 2, local.stop // 2))
        A = np.empty((2 * Z.shape[0], 2 * Z.shape[1]))
        A[0::2, 0::2] = A[1::2, 1::2] = Z.real
        A[1::2, 0::2] = Z.imag
        np.negative(Z.imag, out=A[0::2, 1::2])
        return A


class Magnitudes:
    """`distributed.given.Strips` of |a_ij|, of complex numbers their moduli, on the ranks where these lie."""

    def __init__(self, source: Source):
        self._source = source

    def __call__(self, rows: BlockCyclic, cols: BlockCyclic, local: slice) -> Array:
        """These local rows."""
        return np.abs(self._source(rows, cols, local))


def moduli(V: Array, of_A: np.dtype[Any]) -> Array:
    """|v_ij| of vectors of the real system: of pairs of numbers, one below the other, where A is complex."""
    return np.hypot(V[0::2], V[1::2]) if of_A.kind == "c" else np.abs(V)


def _halved(layout: BlockCyclic) -> BlockCyclic:
    """The layout of the complex numbers."""
    return BlockCyclic(layout.n // 2, layout.nb // 2, layout.p, layout.P)


def real_columns(k: int, of_A: np.dtype[Any], of_b: np.dtype[Any]) -> int:
    """How many right-hand sides the real system has for k: two for each complex one beside a real A."""
    return 2 * k if of_b.kind == "c" != of_A.kind else k


def real_sides(B: Array, of_A: np.dtype[Any], *, conjugated: bool) -> Array:
    """B (n, k) as right-hand sides of the real system; beside a real A, its real parts and then its imaginary ones.

    A^T x = b is conj(A^T) conj(x) = conj(b), which is what the real form's transpose solves: it is `conjugated`.
    """
    if of_A.kind == "c":
        return np.stack((B.real, -B.imag if conjugated else B.imag), axis=1).reshape(2 * len(B), -1)
    return np.concatenate((B.real, B.imag), axis=1) if B.dtype.kind == "c" else B


def solutions(X: Array, of_A: np.dtype[Any], of_b: np.dtype[Any], *, conjugated: bool) -> Array:
    """The solutions X of the real system as those of the system that it stands for."""
    if of_A.kind == "c":
        return X[0::2] + (-1j if conjugated else 1j) * X[1::2]
    if of_b.kind == "c":
        k = X.shape[1] // 2
        return X[:, :k] + 1j * X[:, k:]
    return X
