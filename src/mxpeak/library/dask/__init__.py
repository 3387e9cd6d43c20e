"""Dense systems on a Dask cluster: `mxpeak.dask.solve(A, b)` for an A in chunks, its workers being the ranks.

    x, info = mxpeak.dask.solve(A, b)
    with mxpeak.dask.lu_factor(A) as F:
        x, info = F.solve(b)

Each worker is a rank.  They connect with each other by plain sockets, and chunks go from where they lie to the ranks of
their blocks; nothing of A passes through the client.
"""

from mxpeak.library.dask.solving import DaskFactors, lu_factor, solve

__all__ = ["DaskFactors", "lu_factor", "solve"]
