"""Factor a matrix with a small bandwidth by LAPACK's band LU with partial pivoting."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import get_lapack_funcs

from mxpeak.distributed.csr import Csr, rows_of_entries
from mxpeak.distributed.rows import Array

#: Largest bandwidth at which factors in fp64 are as fast as in fp32, because they take less time than the steps that
#: fp64 saves.
SMALL_BAND = 8
#: LAPACK's numbers of the systems A x = b and A^H x = b.
_SYSTEMS = {"N": 0, "H": 2}


def bandwidth(A: Csr) -> int:
    """Return the largest |i - j| of all entries."""
    return int(np.abs(rows_of_entries(A) - A.indices).max(initial=0))


def fills_band(A: Csr) -> bool:
    """Return whether A has a small bandwidth and at least half of the entries of its band."""
    half_width = bandwidth(A)
    return half_width <= SMALL_BAND and 2 * A.nnz >= (2 * half_width + 1) * A.shape[0]


class BandFactors:
    """The factors of a band, with the methods of SuperLU's factors.

    Column j of the array has the entries of column j of the band below `lower` rows for the fill-in of U. Raises a
    RuntimeError if a pivot is exactly zero, as SuperLU does.
    """

    def __init__(self, A: Csr, dtype: np.dtype[Any]):
        above = A.indices - rows_of_entries(A)
        self._lower, self._upper = int(-above.min(initial=0)), int(above.max(initial=0))
        height = 2 * self._lower + self._upper + 1
        columns = np.zeros((A.shape[0], height), dtype)
        columns[A.indices, self._lower + self._upper - above] = A.data
        factor, self._solve = get_lapack_funcs(("gbtrf", "gbtrs"), dtype=dtype)
        self._factors, self._pivots, zero = factor(columns.T, self._lower, self._upper, overwrite_ab=True)
        if zero:
            raise RuntimeError(f"factor is exactly singular: pivot {zero} is zero")

    @property
    def nnz(self) -> int:
        """Return the number of stored entries of L and U."""
        return int(self._factors.size)

    def solve(self, b: Array, trans: str = "N") -> Array:
        """Return the solution of A x = b, or of A^H x = b if `trans` is H, for one or several right-hand sides."""
        x, _ = self._solve(self._factors, self._lower, self._upper, b, self._pivots, trans=_SYSTEMS[trans])
        return np.asarray(x)
