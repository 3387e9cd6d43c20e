"""Imitate CuPy with numbers in host memory: DLPack, and no implicit conversion to NumPy."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import scipy.sparse


class Ndarray:
    """What mxpeak needs of `cupy.ndarray`. As in CuPy, `numpy.asarray` of it is an error."""

    def __init__(self, numbers: Any):
        self.numbers = np.asarray(numbers)
        self.dtype, self.shape, self.ndim = self.numbers.dtype, self.numbers.shape, self.numbers.ndim

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`.")

    def __dlpack__(self, **options: Any) -> Any:
        return self.numbers.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def get(self) -> Any:
        return self.numbers.copy()

    def conj(self) -> Ndarray:
        return Ndarray(self.numbers.conj())


class SparseMatrix:
    """What mxpeak needs of `cupyx.scipy.sparse.csr_matrix`."""

    def __init__(self, A: Any):
        self._A = scipy.sparse.csr_array(A)
        self.data, self.dtype, self.shape, self.nnz = Ndarray(self._A.data), self._A.dtype, self._A.shape, self._A.nnz

    def tocsr(self) -> SparseMatrix:
        return self

    def toarray(self) -> Ndarray:
        return Ndarray(self._A.toarray())

    def get(self) -> Any:
        return self._A


def from_dlpack(values: Any) -> Ndarray:
    """Import an array or a tensor without a copy."""
    return Ndarray(np.from_dlpack(values))


def module() -> ModuleType:
    """Return the module, for `sys.modules`."""
    cupy: Any = ModuleType("cupy")
    cupy.ndarray, cupy.from_dlpack = Ndarray, from_dlpack
    return cupy  # type: ignore[no-any-return]
