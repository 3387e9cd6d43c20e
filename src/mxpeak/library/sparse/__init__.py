"""Solve sparse systems A x = b: GMRES in low precision, refined to the requested accuracy.

    x, info = mxpeak.gmres(A, b)

The method is GMRES-IR (Kashi et al., algorithm 3). Residuals b - A x and x are in fp64. The inner iteration uses a
lower precision and a preconditioner on the right. If the low-precision iteration stops converging, the solve continues
in fp64. If the range or the spread of A requires it, rows and columns are scaled by powers of two (Higham, Pranesh,
Zounon 2019). The iteration then uses the scaled system

    A_s y = b_s,   A_s = D_r A D_c,   b_s = 2^k D_r b,   x = 2^-k D_c y.
"""

from mxpeak.library.sparse.files import rows_from_file
from mxpeak.library.sparse.info import GmresInfo, KrylovInfo
from mxpeak.library.sparse.recurrences import bicgstab, cg, minres
from mxpeak.library.sparse.solving import gmres

__all__ = ["GmresInfo", "KrylovInfo", "bicgstab", "cg", "gmres", "minres", "rows_from_file"]
