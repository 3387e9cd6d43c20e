"""Imitate the functions of libcublas that emulated products need, for matrices in host memory."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tests.support.emulated_products import by_residues

#: Values of cuBLAS's constants.
R_64F, EMULATED, DEFAULT, EAGER = 1, 79, -1, 2
BITS = 60


class FakeCublas:
    """Emulate products of at least `rows` rows with BITS bits; other products are native and keep the bit count."""

    def __init__(self, rows: int = 0):
        self.rows, self.products = rows, 0
        self._bits = 0

    def cublasCreate_v2(self, handle: Any) -> int:
        handle._obj.value = 1
        return 0

    def cublasSetStream_v2(self, handle: Any, stream: Any) -> int:
        assert handle.value == 1
        return 0

    def cublasSetEmulationStrategy(self, handle: Any, strategy: int) -> int:
        assert (handle.value, strategy) == (1, EAGER)
        return 0

    def cublasSetFixedPointEmulationMantissaBitCountPointer(self, handle: Any, bits: Any) -> int:
        self._bits = bits.value
        return 0

    def cublasGemmEx(
        self, handle: Any, of_A: int, of_B: int, m: int, n: int, k: int, alpha: Any, A: Any, type_A: int, lda: int,
        B: Any, type_B: int, ldb: int, beta: Any, C: Any, type_C: int, ldc: int, compute: int, algorithm: int,
    ) -> int:  # fmt: skip
        """Compute C = alpha·op(A) op(B) + beta·C with column-major matrices."""
        if not (type_A == type_B == type_C == R_64F and (compute, algorithm) == (EMULATED, DEFAULT)):
            return 15  # not supported
        A_op = _columns(A, m, k, lda) if of_A == 0 else _columns(A, k, m, lda).T
        B_op = _columns(B, k, n, ldb) if of_B == 0 else _columns(B, n, k, ldb).T
        result, product = _columns(C, m, n, ldc), np.zeros((m, n))
        self.products += 1
        if m < self.rows:
            product -= A_op @ B_op
        else:
            by_residues(BITS)(product, A_op, B_op)
            ctypes.c_int.from_address(self._bits).value = BITS
        result[:] = beta._obj.value * result - alpha._obj.value * product
        return 0


def _columns(address: Any, m: int, n: int, ld: int) -> Any:
    """Return the column-major m×n matrix at an address."""
    assert ld >= max(m, 1)
    entries = np.frombuffer((ctypes.c_double * ((n - 1) * ld + m)).from_address(address.value))
    return np.lib.stride_tricks.as_strided(entries, (m, n), (8, 8 * ld), writeable=True)
