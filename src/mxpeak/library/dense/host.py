"""The arrays of the host, as solving needs them: NumPy's, by SciPy's BLAS and LAPACK."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from mxpeak.kernels.host import lapack
from mxpeak.library.dense import factors
from mxpeak.library.dense.arrays import Array
from mxpeak.library.inputs import is_tensor
from mxpeak.spans import HOST, Stopwatch


class HostArrays:
    """NumPy's arrays; tensors of the CPU share their memory with them."""

    on_device = False
    xp = np

    @property
    def stopwatch(self) -> Stopwatch:
        """The host's clock."""
        return HOST

    def careful(self) -> AbstractContextManager[Any]:
        """No warnings where numbers overflow: who solves looks at what comes out."""
        return np.errstate(all="ignore")

    def emulates(self, precision: str, dtype: np.dtype[Any]) -> bool:
        """Whether operands of a precision are rounded in software."""
        return precision not in ("fp64", "fp32")

    # --- what comes in, what goes out

    def take(self, values: Any, dtype: np.dtype[Any], precision: str = "") -> Array:
        """The values in a type, in an order that BLAS reads: rows or columns contiguous, ascending."""
        if is_tensor(values):
            from mxpeak.kernels.torch.tensors import array_of

            values = array_of(values)
        array = np.asarray(np.require(values, dtype, "A"))
        return array if array.ndim != 2 or by_rows(array) or by_rows(array.T) else np.ascontiguousarray(array)

    def block(self, b: Array, dtype: np.dtype[Any]) -> Array:
        """b as a column-major block of A's type; for a real A, real and imaginary parts are columns of their own."""
        columns = b.reshape(b.shape[0], -1)
        if columns.dtype.kind == "c" and dtype.kind != "c":
            columns = np.concatenate([columns.real, columns.imag], axis=1)
        return np.asarray(columns, dtype=dtype, order="F")

    def not_finite(self, A: Array) -> tuple[tuple[int, ...], int] | None:
        """Where the first entry is that is not finite, and how many there are."""
        finite = np.isfinite(A)
        if finite.all():
            return None
        index = np.unravel_index(int(np.argmin(finite)), A.shape)
        return tuple(int(i) for i in index), A.size - int(finite.sum())

    # --- the factorization

    def by_rows(self, A: Array) -> bool:
        """Whether A's rows are contiguous; else its columns are."""
        return by_rows(A)

    def room(self, n: int, dtype: np.dtype[Any], precision: str) -> Array:
        """An n×n matrix, uninitialised."""
        return factors.room((n, n), dtype)

    def fill(self, W: Array, R: Array, scales: tuple[Array, Array] | None) -> factors.Sums:
        """W = R, scaled and cast; the sums of |w_ij| along rows and columns, and the largest."""
        return factors.fill(W, R, scales)

    def largest_entries(self, R: Array, by_row: Array, by_column: Array) -> tuple[Array, Array]:
        """The largest entries of the rows and of the columns of |R|, scaled."""
        return factors.largest_entries(R, by_row, by_column)

    def inf_norm(self, R: Array, by_rows: bool) -> float:
        """||R||_inf, or that of R^T."""
        return factors.inf_norm(R, by_rows)

    def lu(self, W: Array, precision: str, by_rows: bool) -> factors.HostLU:
        """The factors in W's place: LAPACK takes columns, so it is given W^T."""
        LU, pivots = W.T, np.empty(W.shape[0], np.int32)
        if precision in ("fp64", "fp32"):
            singular = lapack.getrf(LU, pivots)
        else:
            singular = lapack.getrf_rounded(LU, pivots, precision)
        return factors.HostLU(LU, pivots, by_rows, singular)

    # --- blocks

    def largest(self, V: Array) -> Array:
        """max_i |v_ij| of each column, in fp64."""
        return np.asarray(np.abs(V).max(axis=0).astype(np.float64))

    def product(self, A: Array, Y: Array) -> Array:
        """A Y.  Not @: NumPy's BLAS has threads of its own, which go on spinning for a while and hinder SciPy's."""
        zero = np.zeros((A.shape[0], Y.shape[1]), Y.dtype, order="F")
        return np.asarray(-self.minus_product(zero, A, Y))

    def minus_product(self, B: Array, A: Array, Y: Array) -> Array:
        """B - A Y as a new block."""
        R = B.copy(order="F")
        lapack.subtract_product(R, A, np.asfortranarray(Y))
        return R

    def scaled(self, diagonal: Array, X: Array) -> Array:
        """D X as a new block."""
        return np.asarray(np.multiply(X, diagonal[:, None], dtype=X.dtype, casting="same_kind"))

    def combined(self, V: Array, w: Array) -> Array:
        """V w as a block of one column."""
        return self.product(V, w.astype(V.dtype)[:, None])

    def columns(self, V: Array, which: Array) -> Array:
        """Some columns, as a block."""
        return V if len(which) == V.shape[1] else np.asfortranarray(V[:, which])

    def put(self, Y: Array, columns: Array, new: Array, which: Array) -> None:
        """Y's columns become some of the new ones."""
        Y[:, columns] = new[:, which]


def by_rows(A: Array) -> bool:
    """Whether BLAS can take A as it lies: contiguous rows, one after the other with or without a gap."""
    down, across = A.strides
    n = A.shape[1]
    return n == 1 or (across == A.itemsize and down >= n * A.itemsize and down % A.itemsize == 0)
