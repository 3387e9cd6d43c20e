"""Solve dense systems A x = b: LU in low precision, refined to the accuracy of the input's type.

    x, info = mxpeak.solve(A, b)
    F = mxpeak.lu_factor(A)
    x, info = F.solve(b)
    x, info = mxpeak.solve(A, b, assume_a="pos")
    F = mxpeak.cho_factor(A)
    x, info = mxpeak.refine(A, b, x)

P A = L U is computed in the precision in which the hardware is fast (Carson, Higham 2018). Classical refinement,
x = x + U^-1 L^-1 (b - A x), then removes the errors of the factors as long as each step gains digits. GMRES,
preconditioned with the factors, solves the remaining right-hand sides. If neither converges, A is factored again in
fp64. If the range or the spread of A requires it, rows and columns are scaled by powers of two (Higham, Pranesh,
Zounon 2019). Factorization and refinement then use the scaled system

    A_s y = b_s,   A_s = D_r A D_c,   b_s = D_r b,   x = D_c y.

If factors in the input's own type are the fastest, LAPACK or a compiled elimination solves the system. NumPy solves
stacks of systems. Both results are checked. The ranks of a `DistributedMatrix` use the same method. Symmetric matrices
have Cholesky or L D L^T factors instead of L and U, with the same refinement.
"""

from mxpeak.library.dense.distributed import DistributedMatrix
from mxpeak.library.dense.distributed_cholesky import DistributedCholeskyFactors
from mxpeak.library.dense.distributed_solving import DistributedFactors
from mxpeak.library.dense.factors import LUFactors
from mxpeak.library.dense.info import SolveInfo
from mxpeak.library.dense.refining import refine
from mxpeak.library.dense.solving import cho_factor, lu_factor, solve
from mxpeak.library.dense.symmetric import CholeskyFactors
from mxpeak.solvers.forward_error import ErrorBound

__all__ = [
    "CholeskyFactors",
    "DistributedCholeskyFactors",
    "DistributedFactors",
    "DistributedMatrix",
    "ErrorBound",
    "LUFactors",
    "SolveInfo",
    "cho_factor",
    "lu_factor",
    "refine",
    "solve",
]
