"""Norms of one's own matrices: max, one, inf and fro, of any structure, type, strides and distribution.

    mxpeak.norm(A, "one")                                  # NumPy array, never copied
    mxpeak.norm(A, "fro", structure="hermitian", uplo="lower")
    mxpeak.norms(A)                                        # all four in one pass over memory
    mxpeak.column_norms(A, "max"); mxpeak.row_norms(A, "fro")

The matrix may also be a collection of tiles (`from_tiles`), a distributed matrix in ScaLAPACK's layout
(`from_scalapack`), or in LAPACK's band storage (`from_band`).  Norms of distributed matrices are collective, and every
rank gets the same number.
"""

from mxpeak.library.norms.forms import from_band, from_scalapack, from_tiles
from mxpeak.library.norms.functions import Norms, column_norms, norm, norms, row_norms

__all__ = ["Norms", "column_norms", "from_band", "from_scalapack", "from_tiles", "norm", "norms", "row_norms"]
