"""Compare backward error and growth with the theory, and test that they do not depend on the grid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mxpeak.layout.grid import ProcessGrid
from mxpeak.solvers.lu.pivoted_lu import PivotedLuOptions
from tests.support.hpl_ranks import solve, system
from tests.support.roundoff import U


@pytest.mark.parametrize("n", [17, 101, 251])
def test_the_backward_error_is_that_of_a_stable_solver(n: int) -> None:
    """|b - Ax| <= c·n·u·(|A||x| + |b|), where c is about the growth of partial pivoting, n^(2/3) on average."""
    x, norms, _ = solve(n, 16, ProcessGrid(1, 1), PivotedLuOptions())
    A, b = system(n)
    residual = np.abs(b - A @ np.array(x)).max()
    assert residual <= n ** (2 / 3) * n * U * (np.abs(A).sum(axis=1).max() * np.abs(x).max() + np.abs(b).max())
    # The check's own residual is the same quantity, computed elsewhere: both are rounding errors of size n·u·|A||x|.
    assert norms.residual <= residual + 2 * n * U * (norms.A_inf * norms.x_inf + norms.b_inf)


@pytest.mark.parametrize("n", [101, 251])
def test_the_residual_is_as_small_as_lapacks(n: int) -> None:
    _, norms, _ = solve(n, 16, ProcessGrid(1, 1), PivotedLuOptions())
    A, b = system(n)
    y = np.linalg.solve(A, b)
    scale = U * n * (np.abs(A).sum(axis=1).max() * np.abs(y).max() + np.abs(b).max())
    # Both are random sums of rounding errors; a factor of 10, or a twentieth of HPL's unit, is no difference.
    assert norms.scaled(n, U) <= max(10 * np.abs(b - A @ y).max() / scale, 0.05)


def test_the_norms_are_those_of_the_matrix() -> None:
    n = 67
    x, norms, _ = solve(n, 8, ProcessGrid(2, 3), PivotedLuOptions())
    A, b = system(n)
    assert norms.A_inf == pytest.approx(np.abs(A).sum(axis=1).max(), rel=n * U)
    assert norms.A_one == pytest.approx(np.abs(A).sum(axis=0).max(), rel=n * U)
    assert norms.b_inf == np.abs(b).max()
    assert norms.x_inf == np.abs(x).max()
    assert norms.x_one == pytest.approx(np.abs(x).sum(), rel=n * U)


def test_the_grid_changes_rounding_only() -> None:
    n = 97
    A, _ = system(n)
    plain, _, _ = solve(n, 8, ProcessGrid(1, 1), PivotedLuOptions(lookahead=0))
    bound: Any = 20 * n * U * np.linalg.cond(A) * np.abs(plain).max()
    for P, Q in ((1, 4), (4, 1), (2, 3), (3, 2)):
        x, _, _ = solve(n, 8, ProcessGrid(P, Q), PivotedLuOptions(split=0.4))
        assert np.abs(np.array(x) - plain).max() <= bound
