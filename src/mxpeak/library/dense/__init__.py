"""Dense systems A x = b of one's own: LU in a low precision, refined to the accuracy of the input's type.

    x, info = mxpeak.solve(A, b)
    F = mxpeak.lu_factor(A); x, info = F.solve(b)

P A = L U is computed where arithmetic is fast (Carson, Higham 2018).  Its errors are then removed by classical
refinement, x = x + U^-1 L^-1 (b - A x), as long as that gains digits, else by GMRES preconditioned with the factors;
what neither can solve is factored again in fp64.  Rows and columns are scaled by powers of two where the range or the
spread of A asks for it (Higham, Pranesh, Zounon 2019), and all below runs on the scaled system

    A_s y = b_s,   A_s = D_r A D_c,   b_s = D_r b,   x = D_c y.

Where a type's own factors are the quickest LAPACK solves, and stacks of systems are NumPy's; both are checked.  A
`DistributedMatrix` goes the same way over many ranks, its factors in fp32 or fp64.
"""

from mxpeak.library.dense.distributed import DistributedMatrix
from mxpeak.library.dense.distributed_info import DistributedInfo
from mxpeak.library.dense.distributed_solving import DistributedFactors
from mxpeak.library.dense.info import SolveInfo
from mxpeak.library.dense.solving import LUFactors, lu_factor, solve
from mxpeak.library.dense.stack import StackInfo

__all__ = [
    "DistributedFactors",
    "DistributedInfo",
    "DistributedMatrix",
    "LUFactors",
    "SolveInfo",
    "StackInfo",
    "lu_factor",
    "solve",
]
