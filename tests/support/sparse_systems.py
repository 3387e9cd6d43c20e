"""Create the sparse systems on which `mxpeak.gmres` is tested."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse

from mxpeak.distributed.stencil import weights
from mxpeak.kernels.choose import sparse as sparse_kernels
from mxpeak.layout.stencil import Box
from mxpeak.library.sparse import auto_preconditioner
from tests.support.roundoff import U

PRECISIONS = ("mixed", "fp64", "fp32", "bf16", "fp16")
SWEEPS = ("gs", "sgs", "jacobi", "none")
needs_pyamg = pytest.mark.skipif(not auto_preconditioner.has_pyamg(), reason="PyAMG is not installed")


def line(n: int, off: float = -1.0, middle: float = 2.0) -> Any:
    """Return a tridiagonal matrix; by default the one-dimensional Laplacian."""
    offs = np.full(n - 1, float(off))
    return sparse.csr_array(
        sparse.diags_array([offs, np.full(n, float(middle)), offs], offsets=[-1, 0, 1], shape=(n, n))
    )


def poisson(*sides: int) -> Any:
    """Return the Laplacian on a grid."""
    A = line(sides[0])
    for n in sides[1:]:
        A = sparse.kron(A, sparse.eye_array(n)) + sparse.kron(sparse.eye_array(A.shape[0]), line(n))
    return sparse.csr_array(A)


def stencil(*shape: int, nonsymmetric: bool = False) -> Any:
    """Return the benchmarks' 27-point matrix."""
    rows = sparse_kernels(None, 1).stencil_rows(Box(*shape), weights(nonsymmetric=nonsymmetric))
    return sparse.csr_array((rows.data, rows.indices, rows.indptr))


def random(n: int, seed: int = 1) -> Any:
    """Return a random diagonally dominant matrix."""
    rng = np.random.default_rng(seed)
    A = np.where(rng.random((n, n)) < 4 / n, rng.uniform(-1, 1, (n, n)), 0.0)
    np.fill_diagonal(A, np.abs(A).sum(axis=1) + 1)
    return sparse.csr_array(A)


def flow(m: int, speed: float = 20.0) -> Any:
    """Return upwind convection and diffusion on m² points."""
    along = sparse.diags_array([np.full(m, 1.0), np.full(m - 1, -1.0)], offsets=[0, -1])
    one = sparse.eye_array(m)
    return sparse.csr_array(poisson(m, m) + speed / m * (sparse.kron(along, one) + 0.5 * sparse.kron(one, along)))


def jumps(n: int, contrast: float, seed: int = 1) -> Any:
    """Return -div(k grad u) on an n×n grid, with k either 1 or `contrast` on each edge."""
    k = np.where(np.random.default_rng(seed).random((2, n * n)) < 0.5, contrast, 1.0)
    D = sparse.diags_array([-np.ones(n - 1), np.ones(n)], offsets=[-1, 0], shape=(n, n))
    edges = (sparse.kron(D, sparse.eye_array(n)), sparse.kron(sparse.eye_array(n), D))
    A = sum(E.T @ sparse.diags_array(k_e) @ E for E, k_e in zip(edges, k))
    return sparse.csr_array(A + sparse.diags_array(np.full(n * n, 1e-3)))


def irregular(n: int = 301) -> Any:
    """Return rows of 1 to 40 entries without order or symmetry."""
    rng = np.random.default_rng(5)
    A = random(n).tolil()
    for i in range(0, n, 37):
        A[i, rng.integers(0, n, 40)] = rng.uniform(-1, 1, 40)
        A[i, i] = 50.0
    return sparse.csr_array(A)


def waves(n: int, wavelengths: float = 3.0) -> Any:
    """Return a shifted, indefinite Laplacian."""
    return sparse.csr_array(poisson(n, n) - (2 * np.pi * wavelengths / n) ** 2 * sparse.eye_array(n * n))


def beam(n: int) -> Any:
    """Return fourth differences, as for a beam, with condition (2n/pi)^4 and no isolated eigenvalue."""
    T = sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n))
    return sparse.csr_array(T @ T)


def shuffled(A: Any) -> Any:
    """Permute the unknowns and equations randomly, so that A has no band."""
    order = np.random.default_rng(6).permutation(A.shape[0])
    return sparse.csr_array(A[order][:, order])


def saddle(n: int) -> Any:
    """Return a Laplacian with constraints on sums of neighbors, which have zeros on the diagonal."""
    A, count = poisson(n, n), n * n // 4
    at = np.arange(count)
    B = sparse.coo_array((np.ones(2 * count), (np.tile(at, 2), np.concatenate([4 * at, 4 * at + 1]))), (count, n * n))
    return sparse.csr_array(sparse.block_array([[A, B.T], [B, None]]))


def mixed_units(A: Any, seed: int = 6) -> Any:
    """Scale every row and column by its own factor, as for mixed units."""
    rng = np.random.default_rng(seed)
    rows, columns = (sparse.diags_array(10.0 ** rng.uniform(-3, 3, A.shape[0])) for _ in range(2))
    return sparse.csr_array(rows @ A @ columns)


def wild() -> tuple[Any, Any]:
    """Return the five-point matrix with rows and columns scaled by powers of two, and a matching right-hand side."""
    rng = np.random.default_rng(3)
    rows, columns = (np.ldexp(1.0, rng.integers(-100, 101, 81)) for _ in range(2))
    A = sparse.csr_array(sparse.diags_array(rows) @ poisson(9, 9) @ sparse.diags_array(columns))
    return A, rows * vector(81)


def vector(n: int, seed: int = 2) -> Any:
    return np.random.default_rng(seed).standard_normal(n)


def residual(A: Any, x: Any, b: Any) -> float:
    """Return ||b - A x|| / ||b||."""
    return float(np.linalg.norm(b - A @ x) / np.linalg.norm(b))


def reached(A: Any, x: Any, b: Any, tol: float) -> bool:
    """Return whether the residual is at most tol plus the rounding difference of two summations.

    If tol is near u, a row of A has at most about 30 entries, so that a sum has an error of at most 32 u Σ |a_ij x_j|.
    """
    terms = np.linalg.norm(abs(A) @ np.abs(x) + np.abs(b)) / np.linalg.norm(b)
    return residual(A, x, b) <= tol + 32 * U * terms


def parts(A: Any) -> list[Any]:
    """Return copies of all arrays of a matrix."""
    arrays = [A.data, *(A.coords if hasattr(A, "coords") else (A.indices, A.indptr))]
    return [array.copy() for array in arrays]
