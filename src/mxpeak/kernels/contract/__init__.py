"""The operations of every backend, by subject: signature, overwritten arguments, error bound, flops.

Matrices are row-major blocks of a backend's own arrays, selected by slicing (`A[i0:i1, j0:j1]` is a view). Pivoting
moves rows, and a row of a row-major matrix is one contiguous piece. Panels are column-major, because their
factorization reads and writes columns. Vectors are contiguous. The precision of an array is that of its storage, fp64
unless specified. An operand is an argument of products. If the backend has products of its precision, an operand is
stored in this precision. Otherwise, it is rounded to this precision and stored in a wider one.

Solvers only slice arrays and pass them to operations, so the same solver works with NumPy arrays and with tensors of a
device. On a device, operations start in order and run in the background. An operation that returns Python numbers
waits for its inputs. u is the unit roundoff of the type, and bounds are to first order and normwise.
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
    """All operations of one backend, for one device and one pool of threads."""

    @property
    def dense(self) -> DenseKernels:
        """Return the operations of dense solves. They run on the threads of BLAS."""

    @property
    def norms(self) -> NormKernels:
        """Return the operations that compute norms. They run on the threads of this backend."""

    @property
    def sparse(self) -> SparseKernels:
        """Return the operations of sparse solvers. They run on the threads of this backend."""
