"""Test factors of a block, and solves with them, on every backend, with ragged and prime sizes.

Bounds are componentwise, and twice those of the contract; see `blocks.WIDE`.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from mxpeak.kernels.contract.lu import PanelSolve
from mxpeak.precision import PRECISIONS
from tests.support.backends import Backend, backend_named, each
from tests.support.blocks import (
    SHAPES,
    STORED,
    WIDE,
    lower,
    matrix,
    numbers,
    panel,
    poisoned,
    stored,
    unit_lower_triangle,
    upper_triangle,
    vector,
    within,
)
from tests.support.roundoff import U
from tests.support.turns import for_each


def diagonally_heavy(rng: Any, n: int) -> Any:
    return rng.random((n, n)) - 0.5 + n * np.eye(n)


def factored(backend: Backend, values: Any, precision: str = "fp64") -> tuple[Any, float]:
    """Return the factors of a block, and 0 or 1 + the first column whose pivot is zero."""
    D, singular = panel(backend, values, precision), backend.kernels.buffer(1)
    backend.kernels.factor_block(D, singular)
    return numbers(backend, D), singular.tolist()[0]


@for_each("precision", STORED)
def test_factors_of_a_block_multiply_back_to_it(backend: Backend, rng: Any, precision: str) -> None:
    _, u = STORED[precision]
    for n in (0, 1, 2, 7, 16, 33, 64, 97, 192):
        values = stored(diagonally_heavy(rng, n), precision)
        D, singular = factored(backend, values, precision)
        D_ref, singular_ref = factored(backend_named("reference"), values, precision)
        assert singular == singular_ref == 0.0
        L, T = np.tril(D.astype(WIDE), -1) + np.eye(n, dtype=WIDE), np.triu(D.astype(WIDE))
        # n steps of a product and a difference; the quotients may use a reciprocal, which is one more rounding.
        assert within(L @ T, values, 2 * (n + 1) * u * (np.abs(L) @ np.abs(T)))
        # |l_ij| < 0.6/n and |u_ij| < 0.6 off the diagonal, n on it: |L^-1||L| and |U||U^-1| have row sums below 3 and
        # 5, and a change of D below 2·(n+1)·u·(n+1) per entry is magnified at most 15 times; twice that for two
        # eliminations.
        assert within(D, D_ref, 30 * 2 * (n + 1) ** 2 * u)


@for_each("precision", STORED)
def test_the_first_zero_pivot_is_reported_and_its_column_left_as_it_is(
    backend: Backend, rng: Any, precision: str
) -> None:
    for n, j in [(1, 0), (2, 0), (2, 1), (7, 3), (33, 15), (33, 16), (33, 32), (97, 64)]:
        # Factors of small integers with pivots of ±1: every step is exact, in any order.
        L = np.tril(rng.integers(-1, 2, (n, n)), -1) + np.eye(n)
        T = np.triu(rng.integers(-1, 2, (n, n)), 1) + np.diag(rng.choice([-1.0, 1.0], n))
        T[j, j] = 0.0
        below = rng.integers(1, 5, n - j - 1)
        values, expected = L @ T, np.tril(L, -1) + T
        values[j + 1 :, j] += below
        D, singular = factored(backend, values, precision)
        assert singular == 1.0 + j
        if backend.on_gpu:  # a GPU's library may divide by zero and use the result
            continue
        assert np.array_equal(D[:, :j], expected[:, :j])
        assert np.array_equal(D[: j + 1], expected[: j + 1])
        if not backend.on_torch:  # torch's library divides the entries below by zero
            assert np.array_equal(D[j + 1 :, j], below)
    for n in (1, 5, 40):
        assert factored(backend, np.zeros((n, n)), precision)[1] == 1.0


def test_what_is_not_finite_reaches_the_factors_of_a_block(backend: Backend, rng: Any) -> None:
    for precision, value in product(STORED, (np.nan, np.inf)):
        values = diagonally_heavy(rng, 40)
        values[4, 3] = value
        D, singular = factored(backend, values, precision)
        assert singular == 0.0 or backend.on_gpu  # a GPU's library treats NaN as zero
        assert not np.isfinite(D[4, 3:]).any()  # l_43, and all its products


def expected_method(backend: Backend, trsm: str, precision: str) -> str:
    """Return the method that a backend reports: torch may invert fp32 blocks."""
    return "blocked-inverse" if backend.on_torch and trsm == "inverse" and precision == "fp32" else "library"


def test_solves_with_the_diagonal_block_multiply_back(
    backend: Backend, rng: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend.on_torch:
        monkeypatch.setattr("mxpeak.kernels.torch.lu.blas.STRIP", 200)
        for name, size in (("BLOCK", 16), ("SMALL", 4), ("STRIP", 400)):  # several blocks, halved twice, in strips
            monkeypatch.setattr(f"mxpeak.kernels.torch.lu.solves.{name}", size)
    kernels = backend.kernels
    for trsm in each(backend, monkeypatch, "trsm", "library", "inverse"):
        for precision, (m, n) in product(STORED, SHAPES):
            _, u = STORED[precision]
            B, T, L = rng.random((m, n)) - 0.5, upper_triangle(rng, n), unit_lower_triangle(rng, m)
            if backend.on_torch:  # |U^-1||U| and |L^-1||L| have row sums below 3: so have products with the inverse
                T, L = np.triu(T, 1) / (n + 1) + np.diag(T.diagonal()), L / (m + 1)
            B, T, L = (stored(M, precision) for M in (B, T, L))
            times = 8 if trsm == "inverse" else 2

            X = matrix(backend, B, precision)
            how = kernels.solve_right_upper(X, panel(backend, poisoned(T, ~lower(n)), precision), precision)
            assert how.operands == precision
            assert how.method == expected_method(backend, trsm, precision)
            W = numbers(backend, X).astype(WIDE)
            size = 2.5 * np.abs(W).max(initial=0) if backend.on_torch else np.abs(W) @ np.abs(T)
            assert within(W @ T, B, times * (n + 1) * u * size), (trsm, precision, m, n)

            X = matrix(backend, B, precision)
            how = kernels.solve_unit_lower(panel(backend, poisoned(L, lower(m)), precision), X, precision)
            assert how.operands == precision
            assert how.method == expected_method(backend, trsm, precision)
            W, I_L = numbers(backend, X).astype(WIDE), L + np.eye(m, dtype=WIDE)
            size = 1.5 * np.abs(W).max(initial=0) if backend.on_torch else np.abs(I_L) @ np.abs(W)
            assert within(I_L @ W, B, times * (m + 1) * u * size), (trsm, precision, m, n)


@for_each("low", ["fp16", "bf16"])
def test_solves_by_blocks_round_their_sums_as_the_update_does(
    backend: Backend, rng: Any, monkeypatch: pytest.MonkeyPatch, low: str
) -> None:
    """|X U - B| <= 2 u_low |X||U| + c n u |X||U|, the bound of an LU with blocks of that size."""
    if not backend.on_torch:
        pytest.skip("the host's are tested with its units")
    for name, size in (("BLOCK", 16), ("SMALL", 8), ("STRIP", 2000)):
        monkeypatch.setattr(f"mxpeak.kernels.torch.lu.solves.{name}", size)
    kernels, u, u_low = backend.kernels, STORED["fp32"][1], PRECISIONS[low].u
    monkeypatch.setattr(kernels, "trsm", "inverse")
    for n, many in ((16, 40), (17, 1), (70, 131)):
        B, T = rng.random((many, n)) - 0.5, upper_triangle(rng, n)
        L = unit_lower_triangle(rng, n) / (n + 1)
        T = np.triu(T, 1) / (n + 1) + np.diag(T.diagonal())
        B, T, L = (stored(M, "fp32") for M in (B, T, L))

        X = matrix(backend, B, "fp32")
        how = kernels.solve_right_upper(X, panel(backend, poisoned(T, ~lower(n)), "fp32"), low)
        assert how == PanelSolve(low if n > 16 else "fp32", "blocked-inverse")
        W = numbers(backend, X).astype(WIDE)
        block = np.arange(n) // 16
        above = block[:, None] < block  # the rounded blocks are above those of the diagonal
        off = np.abs(W) @ np.abs(np.where(above, T, 0.0))
        assert within(W @ T, B, 2 * u_low * off + 8 * (n + 1) * u * 2.5 * np.abs(W).max(initial=0))
        assert np.abs(W @ T - B).max() > 0.02 * u_low * off.max() or n == 16, "nothing was rounded"

        X = matrix(backend, B.T.copy(), "fp32")
        how = kernels.solve_unit_lower(panel(backend, poisoned(L, lower(n)), "fp32"), X, low)
        assert how == PanelSolve(low if n > 16 else "fp32", "blocked-inverse")
        W = numbers(backend, X).astype(WIDE)
        off = np.abs(np.where(above.T, L, 0.0)) @ np.abs(W)
        bound = 2 * u_low * off + 8 * (n + 1) * u * 1.5 * np.abs(W).max(initial=0)
        assert within((L + np.eye(n, dtype=WIDE)) @ W, B.T, bound)
        rounded = np.abs((L + np.eye(n, dtype=WIDE)) @ W - B.T).max()
        assert rounded > 0.02 * u_low * off.max() or n == 16, "nothing was rounded"


def test_a_zero_on_the_diagonal_makes_a_solution_that_is_not_finite(
    backend: Backend, rng: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    T = diagonally_heavy(rng, 40)
    T[3, 3] = 0.0
    for _ in each(backend, monkeypatch, "trsm", "library", "inverse"):
        for precision in STORED:
            B, x = matrix(backend, np.ones((5, 40)), precision), vector(backend, np.ones(40))
            backend.kernels.solve_right_upper(B, panel(backend, T, precision), precision)
            backend.kernels.solve_upper(matrix(backend, T, precision), x)
            assert not np.isfinite(numbers(backend, B)[:, 3]).any()
            assert not np.isfinite(numbers(backend, x)[3])


@for_each("precision", STORED)
def test_triangular_solves_of_vectors_have_the_error_of_fp64(backend: Backend, rng: Any, precision: str) -> None:
    kernels = backend.kernels
    for n in (0, 1, 2, 7, 33, 97):
        T, L = (stored(M, precision).astype(np.float64) for M in (upper_triangle(rng, n), unit_lower_triangle(rng, n)))
        U_, L_ = poisoned(T, ~lower(n)), poisoned(L, lower(n))
        b = rng.random(n) - 0.5
        x = vector(backend, b)
        kernels.solve_upper(matrix(backend, U_, precision), x)
        x_wide = numbers(backend, x).astype(WIDE)
        assert within(T @ x_wide, b, 2 * n * U * (np.abs(T) @ np.abs(x_wide)))
        for part, op, block in (("upper", T, U_), ("lower", L + np.eye(n), L_)):
            solve = kernels.block_solver(matrix(backend, block, precision), part)
            for transposed, shape in product((False, True), ((n,), (n,), (n, 1), (n, 5))):
                A, b = (op.T if transposed else op), rng.random(shape) - 0.5
                x = vector(backend, b) if b.ndim == 1 else matrix(backend, b, "fp64")
                solve(x, transposed=transposed)
                x_wide, inverse = numbers(backend, x).astype(WIDE), np.abs(np.linalg.inv(A))
                if backend.on_torch:
                    # The contract's 2n·u for the inverse and its product; as much for the rounded solution.
                    exact = np.linalg.solve(A, b)
                    assert within(x_wide, exact, 4 * (n + 1) * U * (inverse @ (np.abs(A) @ (inverse @ np.abs(b)))))
                else:
                    assert within(A @ x_wide, b, 2 * n * U * (np.abs(A) @ np.abs(x_wide)))
