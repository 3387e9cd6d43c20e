"""The public names and their homes, for editors and type checkers: `__init__.py` binds them at their first use."""

from mxpeak.errors import MxpeakError as MxpeakError
from mxpeak.errors import ResourceError as ResourceError
from mxpeak.errors import UnknownTypeError as UnknownTypeError
from mxpeak.errors import UsageError as UsageError
from mxpeak.library import dask as dask
from mxpeak.library import run as run
from mxpeak.library.dense import DistributedMatrix as DistributedMatrix
from mxpeak.library.dense import cho_factor as cho_factor
from mxpeak.library.dense import lu_factor as lu_factor
from mxpeak.library.dense import refine as refine
from mxpeak.library.dense import solve as solve
from mxpeak.library.dense.emulation import emulation_error as emulation_error
from mxpeak.library.dense.least_squares import lstsq as lstsq
from mxpeak.library.norms import column_norms as column_norms
from mxpeak.library.norms import from_band as from_band
from mxpeak.library.norms import from_scalapack as from_scalapack
from mxpeak.library.norms import from_tiles as from_tiles
from mxpeak.library.norms import norm as norm
from mxpeak.library.norms import norms as norms
from mxpeak.library.norms import row_norms as row_norms
from mxpeak.library.outcomes import IllConditionedWarning as IllConditionedWarning
from mxpeak.library.outcomes import NotPositiveDefiniteError as NotPositiveDefiniteError
from mxpeak.library.outcomes import NotSolvedWarning as NotSolvedWarning
from mxpeak.library.outcomes import SingularMatrixError as SingularMatrixError
from mxpeak.library.solver import Solver as Solver
from mxpeak.library.sparse import bicgstab as bicgstab
from mxpeak.library.sparse import cg as cg
from mxpeak.library.sparse import gmres as gmres
from mxpeak.library.sparse import minres as minres
from mxpeak.library.sparse import rows_from_file as rows_from_file

__version__: str
__all__: list[str]
