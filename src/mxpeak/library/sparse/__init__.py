"""Sparse systems A x = b of one's own: GMRES in a low precision, refined to the accuracy that is asked for.

    x, info = mxpeak.gmres(A, b)

GMRES-IR (Kashi et al., algorithm 3): residuals b - A x and x itself in fp64, everything between in a lower precision,
preconditioned from the right; what that does not solve goes on in fp64.  Rows and columns are scaled by powers of two
where the range or the spread of A asks for it (Higham, Pranesh, Zounon 2019), and all below runs on

    A_s y = b_s,   A_s = D_r A D_c,   b_s = 2^k D_r b,   x = 2^-k D_c y.
"""

from mxpeak.library.sparse.files import rows_from_file
from mxpeak.library.sparse.info import GmresInfo
from mxpeak.library.sparse.solving import gmres

__all__ = ["GmresInfo", "gmres", "rows_from_file"]
