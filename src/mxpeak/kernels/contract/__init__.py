"""The operations of every backend, by subject: signature, overwritten arguments, error bound, flops.

Matrices are row-major blocks of a backend's own arrays, cut by slicing (`A[i0:i1, j0:j1]` is a view): pivoting moves
rows, and a row-major row is one contiguous piece.  Panels are column-major, because the factorization works down their
columns.  Vectors are contiguous.  The precision of an array is that of its storage, fp64 unless specified.  An operand
is an argument of products: stored in its precision if products of it exist, otherwise rounded to it and stored in a
wider one.
Solvers only slice arrays and pass them on, so the same solver runs on NumPy arrays and on a device's tensors.  On a
device, operations start in order and run in the background; an operation that returns Python numbers waits for its
inputs.  u is the unit roundoff of the type; bounds are to first order and normwise.
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
    """All operations of one backend, on one device and one pool of threads."""

    @property
    def dense(self) -> DenseKernels:
        """The operations of dense solves, on the threads of BLAS."""

    @property
    def norms(self) -> NormKernels:
        """The operations of norms, on the same threads."""

    @property
    def sparse(self) -> SparseKernels:
        """The operations of sparse solvers, on the same threads."""
