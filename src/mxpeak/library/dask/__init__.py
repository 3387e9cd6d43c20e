"""Solve dense systems on a Dask cluster, for a matrix A in chunks.

    x, info = mxpeak.dask.solve(A, b)
    with mxpeak.dask.lu_factor(A) as F:
        x, info = F.solve(b)

Each worker is a rank. The workers connect with plain sockets. Each worker sends the entries of its chunks directly to
the ranks that own the blocks. The client never receives A.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mxpeak.errors import UsageError
from mxpeak.installation import install_command

if TYPE_CHECKING:
    from mxpeak.library.dask.solving import DaskFactors as DaskFactors
    from mxpeak.library.dask.solving import lu_factor as lu_factor
    from mxpeak.library.dask.solving import solve as solve

__all__ = ["DaskFactors", "lu_factor", "solve"]


def __getattr__(name: str) -> Any:
    """Import Dask on first use; if Dask is not installed, raise an error with the command that installs it."""
    if name not in __all__:
        raise AttributeError(f"module 'mxpeak.dask' has no attribute {name!r}")
    try:
        return getattr(import_module("mxpeak.library.dask.solving"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("dask", "distributed"):
            raise
        raise UsageError(
            f"mxpeak.dask needs {error.name}, which is not installed; run {install_command('dask')}"
        ) from None
