"""Compare random butterflies U^T A V with their definition, bitwise on every grid, and test orthogonality."""

from __future__ import annotations

from functools import reduce
from itertools import product
from math import exp, sqrt
from typing import Any

import numpy as np
import pytest

from mxpeak.comm.grid import make_grid
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.distributed.dense import dist_matrix
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.kernels.reference.kernels import ReferenceKernels
from mxpeak.layout.entries import Entries
from mxpeak.layout.generators import generator
from mxpeak.layout.grid import ProcessGrid
from mxpeak.solvers import butterfly
from mxpeak.solvers.butterfly import ButterflyPair

U64, U32 = 2.0**-53, 2.0**-24
CASES = [(2, 4, 1), (7, 3, 2), (37, 4, 2), (64, 16, 3), (83, 8, 4), (97, 128, 2)]
GRIDS = [(1, 1), (2, 1), (1, 3), (2, 3), (3, 2)]


def dense_butterfly(n: int, depth: int, seed: int, side: int) -> Any:
    """Return U (side 0) or V (side 1), built entry by entry as the product of its layers, the shortest first."""
    random = Entries("lcg", n, seed=seed, first=1 + n * n + n + side * depth * n, scale=-2.0, shift=1.0)
    shortest = -(-n // 2**depth)
    layers = []
    for k in range(depth):
        h, W = shortest * 2**k, np.eye(n)
        for i in range(n - h):
            if i // h % 2 == 0:
                r, s = (exp(random.value(at, k) / 20.0) / sqrt(2.0) for at in (i, i + h))
                W[i, i], W[i, i + h], W[i + h, i], W[i + h, i + h] = r, s, r, -s
        layers.append(W)
    return reduce(np.matmul, layers)


def entries_of(n: int) -> Any:
    made = generator("hpl", n, seed=100)
    return np.array([[made.entries.value(i, j) for j in range(n)] for i in range(n)])


def transformed(n: int, nb: int, depth: int, shape: tuple[int, int], precision: str, make: Any) -> list[Any]:
    """Return the assembled U^T A V, and U^T r, U r, V y and V^T y for r_i = y_i = i + 1."""

    def body(comm: Any) -> Any:
        kernels, grid = make(), make_grid(ProcessGrid(*shape, "row", None), comm)
        assert grid is not None
        A = dist_matrix(grid, n, n, nb, kernels, precision)
        kernels.generate(A.local, A.rows, A.cols, generator("hpl", n, seed=100).entries)
        pair = ButterflyPair(A, depth, 100, kernels)
        pair.transform(A)
        rows, cols = (line.to_global(np.arange(line.local_size)) for line in (A.rows, A.cols))
        r, y = rows + 1.0, cols + 1.0
        vectors = pair.left(r), pair.left_transposed(r), pair.right(y), pair.right_transposed(y)
        assert np.array_equal(r, rows + 1.0), "the arguments are unchanged"
        return rows, cols, A.local.copy(), vectors

    whole, vectors = np.full((n, n), np.nan), np.full((4, n), np.nan)
    for rows, cols, local, (u, ut, v, vt) in run_ranks(shape[0] * shape[1], body):
        whole[np.ix_(rows, cols)] = local
        vectors[:2, rows], vectors[2:, cols] = (u, ut), (v, vt)
    return [whole, *vectors]


@pytest.mark.parametrize(("n", "nb", "depth"), CASES)
def test_the_transformation_is_that_of_its_definition_on_every_grid(n: int, nb: int, depth: int) -> None:
    A, (U, V) = entries_of(n), (dense_butterfly(n, depth, 100, side) for side in range(2))
    first, x = None, np.arange(1.0, n + 1.0)
    # An entry is the sum of 4^d products; each of 2·d layers rounds it three times. |U|, |V| bound the intermediates.
    size = np.abs(U).T @ np.abs(A) @ np.abs(V)
    for shape in GRIDS:
        results = transformed(n, nb, depth, shape, "fp64", lambda: HostKernels(1, poison=True))
        assert (np.abs(results[0] - U.T @ A @ V) <= (6 * depth + 4 * n) * U64 * size).all()
        for w, W in zip(results[1:], (U.T, U, V, V.T)):
            assert (np.abs(w - W @ x) <= (3 * depth + n) * U64 * (np.abs(W) @ x)).all()
        first = first or results
        assert all(np.array_equal(a, b) for a, b in zip(results, first)), "the same bits on every grid"
    reference = transformed(n, nb, depth, (2, 2), "fp64", ReferenceKernels)
    assert all((np.abs(a - b) <= 8 * depth * U64 * np.abs(a).max()).all() for a, b in zip(first or [], reference))


def test_fp32_matrices_are_rounded_once_per_layer_and_have_the_same_bits_in_strips(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n, nb, depth = 83, 8, 3
    A, (U, V) = entries_of(n), (dense_butterfly(n, depth, 100, side) for side in range(2))
    whole = transformed(n, nb, depth, (2, 3), "fp32", lambda: HostKernels(2))
    size = np.abs(U).T @ np.abs(A) @ np.abs(V)
    assert (np.abs(whole[0] - U.T @ A @ V) <= (2 * depth + 1) * 1.01 * U32 * size).all()
    monkeypatch.setattr(butterfly, "MESSAGE", 100)  # two or three columns at a time
    strips = transformed(n, nb, depth, (2, 3), "fp32", lambda: HostKernels(2))
    assert np.array_equal(whole[0], strips[0])


@pytest.mark.parametrize(
    ("n", "depth"), [(n, depth) for n, depth in product((5, 16, 61, 128), (1, 2, 4)) if 2**depth <= n]
)
def test_butterflies_are_nearly_orthogonal_for_any_order(n: int, depth: int) -> None:
    """Each layer has singular values between exp(-1/20) and exp(1/20)."""
    for seed in (1, 100):
        U, V = (dense_butterfly(n, depth, seed, side) for side in range(2))
        assert not np.array_equal(U, V)
        for W in (U, V):
            values = np.linalg.svd(W, compute_uv=False)
            assert (
                exp(-depth / 20.0) * (1 - n * U64) <= values.min() <= values.max() <= exp(depth / 20.0) * (1 + n * U64)
            )
