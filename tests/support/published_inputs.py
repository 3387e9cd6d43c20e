"""Define matrices and right-hand sides of SciPy's tests of iterative methods."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sparse

Array = np.ndarray[Any, np.dtype[Any]]


def bands(n: int, *offsets: int) -> Any:
    values = [np.full(n - abs(k), 2.0 if k == 0 else -1.0) for k in offsets]
    return sparse.diags_array(values, offsets=offsets, shape=(n, n)).tocsr()


def incidence() -> Any:
    """Return an indefinite matrix with zeros on half of the diagonal, which makes methods break down."""
    weights, one = np.array([[1.0, 2, 2, 2, 1]]), -np.eye(5)
    return sparse.block_array([[None, weights.T, one], [weights, None, None], [one, None, one]]).tocsr()


def uniform(n: int, *, symmetric: bool = False, definite: bool = False) -> Any:
    A = np.random.RandomState(1234).rand(n, n)
    A = A + A.T if symmetric else A @ A.T if definite else A
    return sparse.csr_array(A)


POISSON = bands(40, -1, 0, 1)
CASES: dict[str, Any] = {
    "Poisson in one dimension": POISSON,
    "its negative": -POISSON,
    "Poisson in two dimensions": sparse.kronsum(POISSON, POISSON),
    "a diagonal of both signs": sparse.diags_array([6.0, -5, 2, 7, -1, 10, 4, -3, -8, 9]).tocsr(),
    "random": uniform(4),
    "random symmetric": uniform(4, symmetric=True),
    "random definite": uniform(9, definite=True),
    "lower bidiagonal": bands(10, -1, 0),
    "symmetric, not definite": incidence(),
}


def right_hand_side(name: str, n: int) -> Array:
    return np.eye(n)[5] if name == "symmetric, not definite" else np.arange(n, dtype=float)
