"""What every backend provides, by subject: signature, what is overwritten, error bound, flops.

Matrices are row-major blocks of a backend's own arrays, cut by slicing (`A[i0:i1, j0:j1]` is a view): pivoting moves
rows, and a row-major row is one contiguous piece.  Panels are column-major: the factorization goes down their columns.
Vectors are contiguous.  A precision is that in which an array is stored, fp64 unless said; an operand is what products
take: stored in its precision where products of it exist, else rounded to it and stored in a wider one.
Solvers slice arrays and pass them on, and know nothing else about them: so the same solver runs on NumPy
arrays and on a device's tensors.  On a device operations are begun in order and go on in the background; one that
returns Python numbers waits for what these depend on.  u is the unit roundoff of the type; bounds are to first order
and normwise.
"""

from __future__ import annotations

from typing import Protocol

from mxpeak.kernels.contract.backend import Backend, Indices, Matrix, Vector
from mxpeak.kernels.contract.dense import DenseKernels
from mxpeak.kernels.contract.generated import GeneratedKernels
from mxpeak.kernels.contract.lu import LuKernels
from mxpeak.kernels.contract.norms import NormKernels
from mxpeak.kernels.contract.sparse import SparseKernels

__all__ = [
    "Backend",
    "DenseKernels",
    "GeneratedKernels",
    "Indices",
    "Kernels",
    "LuKernels",
    "Matrix",
    "NormKernels",
    "SparseKernels",
    "Vector",
]


class Kernels(LuKernels, GeneratedKernels, Protocol):
    """All that one backend computes, on one device and one pool of threads."""

    @property
    def dense(self) -> DenseKernels:
        """The operations of dense solves, on as many threads as BLAS has."""

    @property
    def norms(self) -> NormKernels:
        """The operations of norms, on the same threads."""

    @property
    def sparse(self) -> SparseKernels:
        """The operations of sparse solvers, on the same threads."""
