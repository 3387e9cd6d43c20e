"""Convert complex systems to real systems of twice the order, with a 2×2 block for each entry of A.

    [ Re a_ij  -Im a_ij ] [ Re x_j ]   [ Re b_i ]
    [ Im a_ij   Re a_ij ] [ Im x_j ] = [ Im b_i ]

Both rows of a block have the same sum of absolute values, and so do both columns. Therefore, scaling treats the real
and imaginary parts equally. The transpose is the real form of A^H.

If A is complex symmetric, another real form is symmetric:

    [ Re a_ij   Im a_ij ] [  Re x_j ]   [ Re b_i ]
    [ Im a_ij  -Re a_ij ] [ -Im x_j ] = [ Im b_i ]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mxpeak.distributed.sources import Strips
from mxpeak.kernels.arrays import complex_of, xp
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.library.dense.matrix_source import Source
from mxpeak.library.types import Array


def real_form(source: Source, *, symmetric: bool = False) -> Strips:
    """Return a function that computes strips of the real form of a complex matrix, in blocks of order 2·NB.

    The blocks are on the same ranks as those of the complex matrix. If `symmetric`, it is the form that is symmetric if
    the complex matrix is symmetric.
    """

    def strips(rows: BlockCyclic, cols: BlockCyclic, local: slice) -> Array:
        """Return the local rows of the real form in row-major order. `local` must start with a whole 2×2 block."""
        Z = source(_halved(rows), _halved(cols), slice(local.start // 2, local.stop // 2))
        A = np.empty((2 * Z.shape[0], 2 * Z.shape[1]))
        A[0::2, 0::2] = A[1::2, 1::2] = Z.real
        A[1::2, 0::2] = A[0::2, 1::2] = Z.imag
        minus = A[1::2, 1::2] if symmetric else A[0::2, 1::2]
        np.negative(minus, out=minus)
        return A

    return strips


def moduli(V: Array, of_A: np.dtype[Any]) -> Array:
    """Return the absolute values |v_ij| of vectors of the real system.

    For a complex A, two rows are one complex number.
    """
    return np.hypot(V[0::2], V[1::2]) if of_A.kind == "c" else np.abs(V)


def _halved(layout: BlockCyclic) -> BlockCyclic:
    """Return the layout of the complex numbers, given the layout of their real and imaginary parts."""
    return BlockCyclic(layout.n // 2, layout.nb // 2, layout.p, layout.P)


def real_columns(k: int, of_A: np.dtype[Any], of_b: np.dtype[Any]) -> int:
    """Return the number of right-hand sides of the real system: 2k if A is real and b is complex, otherwise k."""
    return 2 * k if of_b.kind == "c" != of_A.kind else k


def real_rhs(B: Array, of_A: np.dtype[Any], *, conjugated: bool) -> Array:
    """Return B (n, k) as right-hand sides of the real system. If A is real, real parts precede imaginary parts.

    For a complex A, `conjugated` selects conj(B). The system A^T x = b is solved as conj(A^T) conj(x) = conj(b), whose
    matrix is the transpose of the real form.
    """
    if of_A.kind == "c":
        return np.stack((B.real, -B.imag if conjugated else B.imag), axis=1).reshape(2 * len(B), -1)
    return np.concatenate((B.real, B.imag), axis=1) if B.dtype.kind == "c" else B


def solutions(X: Array, of_A: np.dtype[Any], of_b: np.dtype[Any], *, conjugated: bool) -> Array:
    """Convert the solutions X of the real system to the real or complex solutions of the user's system."""
    x = X
    if of_A.kind == "c":
        x = complex_of(X[0::2], -X[1::2] if conjugated else X[1::2], xp)
    elif of_b.kind == "c":
        k = X.shape[1] // 2
        x = complex_of(X[:, :k], X[:, k:], xp)
    return x
