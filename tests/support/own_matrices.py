"""Create sparse matrices other than the benchmarks' stencils, and files of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse as sp

Array = np.ndarray[Any, np.dtype[Any]]


def tridiagonal(n: int, diagonal: float = 2.5, below: float = -1.0, above: float = -1.0) -> Any:
    return sp.diags_array([below, diagonal, above], offsets=[-1, 0, 1], shape=(n, n))


def convection(m: int) -> Any:
    """Return upwind convection and diffusion on m×m points, with entries that fp32 cannot represent."""
    T, C = tridiagonal(m, 2.1), tridiagonal(m, 2.4, -1.3, -0.9)
    return sp.csr_array(sp.kron(sp.eye_array(m), C) + sp.kron(T, sp.eye_array(m)))


def random_matrix(n: int, density: float, seed: int, *, whole_numbers: bool = False) -> Any:
    """Return a matrix with a random pattern and a full diagonal."""
    rng = np.random.default_rng(seed)
    dense = np.where(rng.random((n, n)) < density, rng.standard_normal((n, n)), 0.0)
    dense = np.round(8 * dense) if whole_numbers else dense
    return sp.csr_array(dense + np.diag(np.full(n, 1.0 + 4 * n)))


def write(folder: Path, A: Any, name: str = "A.mtx") -> str:
    path = folder / name
    scipy.io.mmwrite(path, sp.coo_array(A), precision=17)
    return str(path)
