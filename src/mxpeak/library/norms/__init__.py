"""Compute max, one, infinity and Frobenius norms of matrices of any structure, type, strides and distribution.

    mxpeak.norm(A, "one")                                  # NumPy array, never copied
    mxpeak.norm(A, "fro", structure="hermitian", uplo="lower")
    mxpeak.norms(A)                                        # all four in one pass over memory
    mxpeak.column_norms(A, "max"); mxpeak.row_norms(A, "fro")

The matrix can also be a collection of tiles (`from_tiles`), a distributed matrix in ScaLAPACK's layout
(`from_scalapack`), or a matrix in LAPACK's band storage (`from_band`). If a matrix is distributed, all ranks must call
these functions, and all ranks get the same number.
"""

from mxpeak.library.norms.forms import from_band, from_scalapack, from_tiles
from mxpeak.library.norms.functions import Norms, column_norms, norm, norms, row_norms

__all__ = ["Norms", "column_norms", "from_band", "from_scalapack", "from_tiles", "norm", "norms", "row_norms"]
