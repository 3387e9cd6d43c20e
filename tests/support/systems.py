"""Create dense systems, measure their solutions, and provide the host's and torch's kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from mxpeak.kernels.contract import DenseKernels
from mxpeak.kernels.host.dense.dense import HostDense
from mxpeak.library.dense.factors import LUFactors
from mxpeak.library.dense.info import SolveInfo
from mxpeak.library.dense.inputs import matrix, right_hand_side
from mxpeak.library.dense.solving import lu_factor_by, solve_by

U = 2.0**-53
TYPES = (np.float64, np.float32, np.complex128, np.complex64)
#: Kernels that solve the systems. torch uses the CPU, or a GPU with TEST_DEVICE=cuda.
KERNELS = ("host", "torch")


def dense_kernels(name: str, width: int = 16) -> DenseKernels:
    """Return the host's kernels, or torch's with narrow panels, so that small matrices have several panels."""
    if name == "host":
        return HostDense()
    from mxpeak.kernels.torch.dense.dense import TorchDense
    from tests.support.torch_devices import ON_GPU, torch_device

    return TorchDense(torch_device(triton=ON_GPU), width)


def solve_on(kernels: DenseKernels, A: Any, b: Any, precision: str = "auto") -> tuple[Any, SolveInfo]:
    """Run `mxpeak.solve` with these kernels."""
    of_A = matrix(A)
    return solve_by(kernels, of_A, right_hand_side(b, of_A.shape[0]), precision)


def lu_factor_on(kernels: DenseKernels, A: Any, precision: str = "auto") -> LUFactors:
    """Run `mxpeak.lu_factor` with these kernels."""
    return lu_factor_by(kernels, matrix(A), precision)


def random(shape: Any, dtype: Any = np.float64, seed: int = 1) -> Any:
    """Return normally distributed numbers."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


def definite(n: int, dtype: Any = np.float64, condition: float = 100.0, seed: int = 1) -> Any:
    """Return a Hermitian positive definite matrix with this condition number."""
    Q, _ = np.linalg.qr(random((n, n), np.complex128 if np.dtype(dtype).kind == "c" else np.float64, seed))
    A = (Q * np.geomspace(1.0, 1.0 / condition, n)) @ np.conj(Q.T)
    A = (A + np.conj(A.T)) / 2
    return A.astype(dtype)


def one_triangle(A: Any, *, lower: bool) -> Any:
    """Return a copy of A with NaN in the other triangle."""
    half = A.copy()
    half[np.triu_indices(len(A), 1) if lower else np.tril_indices(len(A), -1)] = np.nan
    return half


def eta(A: Any, x: Any, b: Any) -> float:
    """Return the backward error in units of the input's u, with an fp64 residual, which adds no error."""
    wide = np.complex128 if A.dtype.kind == "c" else np.float64
    A_, x_, b_ = A.astype(wide), x.astype(wide), b.astype(wide)
    scale = np.abs(A_).sum(axis=1).max() * np.abs(x_).max() + np.abs(b_).max()
    return float(np.abs(b_ - A_ @ x_).max() / (scale * len(A) * np.finfo(A.dtype).eps / 2))


def enough(n: int) -> float:
    """Return the bound of the backward error: about that of plain LU, 2^-7 at large n, a few roundings at small n.

    It is three times the solver's own bound, because the residual here uses exact products.
    """
    return 3 * max(4 / n, 2**-7)


def layouts(A: Any) -> dict[str, Any]:
    """Return the same numbers in every memory layout."""
    n = len(A)
    padded = np.zeros((n, n + 3), A.dtype)
    padded[:, :n] = A
    strided = np.zeros((2 * n, 3 * n), A.dtype)
    strided[::2, ::3] = A
    read_only = A.copy()
    read_only.flags.writeable = False
    odd = np.zeros(A.nbytes + 1, np.uint8)[1:].view(A.dtype).reshape(n, n)
    odd[:] = A
    return {
        "C": np.ascontiguousarray(A),
        "F": np.asfortranarray(A),
        "padded rows": padded[:, :n],
        "padded columns": padded[:, :n].T.copy().T,
        "strided": strided[::2, ::3],
        "unaligned": odd,
        "negative": A[::-1, ::-1].copy()[::-1, ::-1],
        "read-only": read_only,
        "foreign byte order": A.astype(A.dtype.newbyteorder()),
    }


# --- hard matrices


def hilbert(n: int) -> Any:
    """Return the Hilbert matrix, which is numerically singular for n >= 12."""
    i = np.arange(n)
    return 1.0 / (i[:, None] + i + 1)


def kahan(n: int, angle: float = 1.2) -> Any:
    """Return Kahan's matrix, which is ill-conditioned without a small pivot."""
    s, c = np.sin(angle), np.cos(angle)
    return np.diag(s ** np.arange(n)) @ (np.eye(n) - c * np.triu(np.ones((n, n)), 1))


def wilkinson(n: int) -> Any:
    """Return Wilkinson's matrix; partial pivoting doubles its last column in each step, with growth 2^(n-1)."""
    W = np.tril(-np.ones((n, n)), -1) + np.eye(n)
    W[:, -1] = 1
    return W


def spectrum(n: int, condition: float, seed: int = 1) -> Any:
    """Return a matrix with singular values from 1 down to 1/condition."""
    Q, _ = np.linalg.qr(random((n, n), seed=seed))
    P, _ = np.linalg.qr(random((n, n), seed=seed + 1))
    return (Q * np.logspace(0, -np.log10(condition), n)) @ P
