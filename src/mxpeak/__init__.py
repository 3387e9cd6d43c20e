"""mxpeak: the supercomputer benchmarks and their mixed-precision solvers, from a laptop to thousands of GPUs.

import mxpeak as mx
result = mx.run.hpl(n=5000, ranks=4, grid=(2, 2))
x, info = mx.solve(A, b)
x, info = mx.gmres(A_sparse, b)
mx.norm(A, "one")
"""

from __future__ import annotations

from importlib import import_module

# Importing typing.TYPE_CHECKING takes a tenth of a second. During this time, Ctrl-C would print a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"
__all__ = [
    "DistributedMatrix",
    "IllConditionedWarning",
    "MxpeakError",
    "NotPositiveDefiniteError",
    "NotSolvedWarning",
    "ResourceError",
    "SingularMatrixError",
    "Solver",
    "UnknownTypeError",
    "UsageError",
    "__version__",
    "bicgstab",
    "cg",
    "cho_factor",
    "column_norms",
    "dask",
    "emulation_error",
    "from_band",
    "from_scalapack",
    "from_tiles",
    "gmres",
    "lstsq",
    "lu_factor",
    "minres",
    "norm",
    "norms",
    "refine",
    "row_norms",
    "rows_from_file",
    "run",
    "solve",
]
#: Module of each public name, except for the names in the module of the norms.
_HOMES = {
    **dict.fromkeys(("DistributedMatrix", "solve", "lu_factor", "cho_factor", "refine"), "mxpeak.library.dense"),
    "lstsq": "mxpeak.library.dense.least_squares",
    "emulation_error": "mxpeak.library.dense.emulation",
    **dict.fromkeys(("bicgstab", "cg", "gmres", "minres", "rows_from_file"), "mxpeak.library.sparse"),
    "Solver": "mxpeak.library.solver",
    **dict.fromkeys(
        ("IllConditionedWarning", "NotPositiveDefiniteError", "NotSolvedWarning", "SingularMatrixError"),
        "mxpeak.library.outcomes",
    ),
    **dict.fromkeys(("MxpeakError", "ResourceError", "UnknownTypeError", "UsageError"), "mxpeak.errors"),
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so that `import mxpeak` loads no array library."""
    if name in ("dask", "run"):
        return import_module(f"mxpeak.library.{name}")
    if name in __all__:
        value = globals()[name] = getattr(import_module(_HOMES.get(name, "mxpeak.library.norms")), name)
        return value
    raise AttributeError(f"module 'mxpeak' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, including the names that have not been imported yet."""
    return __all__
