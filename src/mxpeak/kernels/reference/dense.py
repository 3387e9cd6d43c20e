"""Reference kernels of dense solves: each operation written as its definition."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from mxpeak.kernels import arrays
from mxpeak.kernels.contract.dense import PART, PivotedLU, SymmetricFactor, Triangle
from mxpeak.kernels.contract.lu import Fp64Emulation
from mxpeak.kernels.reference import symmetric
from mxpeak.kernels.reference.rounding import Array, quiet, rounded
from mxpeak.spans import HOST

#: Number of columns in a panel of the rounded LU; within a panel, the arithmetic is fp32.
WIDTH = 64


class ReferenceDense:
    """Reference implementation of `DenseKernels` in NumPy."""

    device = None
    stopwatch = HOST
    xp = arrays.xp

    def computing(self) -> AbstractContextManager[Any]:
        return quiet()

    def emulates(self, precision: str, dtype: np.dtype[Any]) -> bool:
        return precision not in ("fp64", "fp32")

    def fp64_emulation(self) -> Fp64Emulation | None:
        return None

    def check_memory(self, n: int, dtype: np.dtype[Any], precision: str, *, copied: bool) -> None:
        """Do nothing, because there is no device."""

    def factor_storage(self, n: int, dtype: np.dtype[Any]) -> Array:
        return np.full((n, n), np.nan, dtype)

    def scaled_copy(self, A: Array, scales: tuple[Array, Array] | None, W: Array) -> tuple[Array, Array, float]:
        with quiet():
            W[:] = A if scales is None else A * (scales[0][:, None] * scales[1])
            sizes = np.abs(W).astype(np.float64)
        return sizes.sum(axis=1), sizes.sum(axis=0), float(sizes.max())

    def largest_entries(self, A: Array, by_row: Array, by_column: Array) -> tuple[Array, Array]:
        sizes = np.abs(A) * by_row[:, None] * by_column
        return sizes.max(axis=1), sizes.max(axis=0)

    def abs_sums(self, A: Array, by_row: Array, by_column: Array) -> None:
        with quiet():
            sizes = np.abs(A).astype(np.float64)
        by_row[:], by_column[:] = sizes.sum(axis=1), sizes.sum(axis=0)

    def factor(self, W: Array, precision: str) -> PivotedLU:
        """Factor W in place with partial pivoting; row i of L U is row `rows[i]` of W."""
        n, width = len(W), len(W) if precision in ("fp64", "fp32") else WIDTH
        rows, singular = np.arange(n), 0
        with quiet():
            for k0 in range(0, n, width):
                k1 = min(k0 + width, n)
                for k in range(k0, k1):
                    p = k + int(np.argmax(np.abs(W[k:, k].real) + np.abs(W[k:, k].imag)))  # LAPACK's IxAMAX
                    W[[k, p]], rows[[k, p]] = W[[p, k]], rows[[p, k]]
                    if W[k, k] == 0:
                        singular = singular or k + 1
                        continue
                    W[k + 1 :, k] /= W[k, k]
                    W[k + 1 :, k + 1 : k1] -= np.outer(W[k + 1 :, k], W[k, k + 1 : k1])
                for k in range(k0, k1):  # U12 = L11^-1 A12
                    W[k + 1 : k1, k1:] -= np.outer(W[k + 1 : k1, k], W[k, k1:])
                W[k1:, k1:] -= _rounded(W[k1:, k0:k1], precision) @ _rounded(W[k0:k1, k1:], precision)
        return PivotedLU(W, rows, transposed=False, singular=singular)

    def factor_with_early_exit(self, should_stop: Callable[[Array], bool], W: Array) -> PivotedLU | None:
        F = self.factor(W, "fp32")
        return None if should_stop(abs(F.LU.diagonal()[: int(PART * len(W))])) else F

    def solve(self, F: PivotedLU, B: Array, *, transposed: bool = False) -> Array:
        X, n = np.array(B), len(B)
        L, U = np.tril(F.LU, -1), np.triu(F.LU)
        with quiet():
            if not transposed:
                X = X[F.rows]
                for i in range(n):
                    X[i] -= L[i] @ X
                for i in reversed(range(n)):
                    X[i] = (X[i] - U[i, i + 1 :] @ X[i + 1 :]) / U[i, i]
                return X
            for i in range(n):
                X[i] = (X[i] - U[:i, i] @ X[:i]) / U[i, i]
            for i in reversed(range(n)):
                X[i] -= L[i + 1 :, i] @ X[i + 1 :]
            X[F.rows] = X.copy()
            return X

    def last_row(self, F: PivotedLU) -> int:
        return int(F.rows[-1])

    def residual(self, B: Array, A: Array | Triangle, X: Array) -> Array:
        with quiet():
            return np.asarray(B - (symmetric.mirrored(A) if isinstance(A, Triangle) else A) @ X)

    def copy_triangle(self, A: Triangle, scales: Array | None, W: Array) -> tuple[Array, float]:
        D = np.ones(len(A)) if scales is None else scales
        with quiet():
            whole = symmetric.mirrored(A) * (D[:, None] * D)
            stored = whole.astype(W.dtype)
            sizes = np.abs(stored).astype(np.float64)
        triangle = np.tri(len(A), dtype=bool) if A.lower else np.tri(len(A), dtype=bool).T
        np.copyto(W, stored, where=triangle)
        return sizes.sum(axis=1), float(sizes.max())

    def cholesky(self, W: Triangle, precision: str, shift: float = 0.0) -> SymmetricFactor:
        """Factor W in place, by columns; within a panel, the arithmetic is that of W."""
        A = symmetric.mirrored(W)
        n, width = len(A), len(A) if precision in ("fp64", "fp32") else WIDTH
        A[np.arange(n), np.arange(n)] *= A.dtype.type(1.0 + shift)
        with quiet():
            for k0 in range(0, n, width):
                k1 = min(k0 + width, n)
                for k in range(k0, k1):
                    if not A[k, k].real > 0:
                        return SymmetricFactor(W, None, transposed=False, breakdown=k + 1)
                    A[k:, k] /= np.sqrt(A[k, k].real)
                    A[k + 1 :, k + 1 : k1] -= np.outer(A[k + 1 :, k], np.conj(A[k + 1 : k1, k]))
                L = _rounded(A[k1:, k0:k1], precision)
                A[k1:, k1:] -= L @ np.conj(L.T)
        L = np.tril(A)
        W.array[:] = L if W.lower else np.conj(L.T)
        return SymmetricFactor(W, None, transposed=False, breakdown=0)

    def ldl(self, W: Triangle) -> SymmetricFactor:
        return symmetric.ldl(W)

    def solve_symmetric(self, F: SymmetricFactor, B: Array) -> Array:
        """Solve with the triangles, one entry of X after another."""
        T = F.W.array
        L = np.tril(T) if F.W.lower else np.conj(np.triu(T).T)
        rows, D = (np.arange(len(L)), np.eye(len(L))) if F.rows is None else F.rows
        across = np.conj(L.T) if F.rows is None or F.W.hermitian else L.T
        X = np.array(B)[rows]
        with quiet():
            for i in range(len(X)):
                X[i] = (X[i] - L[i, :i] @ X[:i]) / L[i, i]
            X[:] = np.linalg.solve(D, X)
            for i in reversed(range(len(X))):
                X[i] = (X[i] - across[i, i + 1 :] @ X[i + 1 :]) / across[i, i]
        X[rows] = X.copy()
        return X

    def largest_pivot(self, F: SymmetricFactor) -> float:
        pivots = np.diag(F.W.array) ** 2 if F.rows is None else F.rows[1]
        return float(np.abs(pivots).max())

    def triangle_of_qr(self, A: Array, by_column: Array, dtype: np.dtype[Any]) -> Array:
        W = (A * by_column).astype(dtype)
        n = W.shape[1]
        with quiet():
            for k in range(n):  # H = I - 2 v v^H / v^H v maps column k to a multiple of e_k
                v = W[k:, k].copy()
                phase = v[0] / abs(v[0]) if v[0] != 0 else 1.0
                v[0] += phase * np.linalg.norm(v)
                if (square := np.vdot(v, v)) != 0:
                    W[k:, k:] -= np.outer(v, 2 / square * (v.conj() @ W[k:, k:]))
        return np.triu(W[:n])

    def solve_triangle(self, R: Array, B: Array, *, adjoint: bool = False) -> Array:
        X, n = np.array(B), len(B)
        T = R.conj().T if adjoint else R
        with quiet():
            for i in range(n) if adjoint else reversed(range(n)):
                X[i] = (X[i] - (T[i, :i] @ X[:i] if adjoint else T[i, i + 1 :] @ X[i + 1 :])) / T[i, i]
        return X

    def solve_by_svd(self, A: Array, B: Array, rcond: float) -> tuple[Array, int, Array]:
        U, s, V_H = np.linalg.svd(A, full_matrices=False)
        rank = int((s > rcond * s.max(initial=0.0)).sum())
        return V_H[:rank].conj().T @ (U[:, :rank].conj().T @ B / s[:rank, None]), rank, s


def _rounded(A: Array, precision: str) -> Array:
    """Return A with each number, or each real and imaginary part, rounded to a precision; the type of A is kept."""
    if precision in ("fp64", "fp32"):
        return A
    if A.dtype.kind == "c":
        return (_rounded(A.real, precision) + 1j * _rounded(A.imag, precision)).astype(A.dtype)
    return rounded(A.astype(np.float64), precision).astype(A.dtype)
