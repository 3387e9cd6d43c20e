"""Compare the steps of a multigrid cycle with the matrix of the paper."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from mxpeak.comm.transports.solo import Solo
from mxpeak.distributed.stencil import Form, make_stencil, weights
from mxpeak.kernels.reference.sparse import ReferenceSparse
from mxpeak.layout.stencil import Box
from mxpeak.solvers.multigrid import cycle
from mxpeak.spans import Spans
from tests.support.roundoff import U

Array = np.ndarray[Any, np.dtype[Any]]


class Recorder:
    """A level that computes nothing and records the calls."""

    def __init__(self, depth: int, levels: int, calls: list[str]):
        self.name, self._said = f"level {depth}", calls
        self.x, self.r = f"x of level {depth}", f"r of level {depth}"
        self.coarser = Recorder(depth + 1, levels, calls) if depth + 1 < levels else None

    def presmooth(self, b: str) -> None:
        self._said.append(f"{self.name}: smooth from zero, {b}")

    def restrict(self, b: str) -> None:
        self._said.append(f"{self.name}: restrict, {b}")

    def correct(self, coarse: Recorder) -> None:
        self._said.append(f"{self.name}: add {coarse.x}")

    def postsmooth(self, b: str) -> None:
        self._said.append(f"{self.name}: smooth, {b}")


class DenseLevel:
    """A level with dense matrices A and M: x += M^-1 (b - A x); every second point belongs to the coarser level."""

    def __init__(self, A: Array, M: Array, coarser: DenseLevel | None = None):
        self.A, self.M, self.coarser = A, M, coarser
        self.points = np.arange(0, len(A), 2)
        self.x, self.r = np.full(len(A), np.nan), np.full(len(self.points), np.nan)

    def presmooth(self, b: Array) -> None:
        self.x[:] = np.linalg.solve(self.M, b)

    def restrict(self, b: Array) -> None:
        self.r[:] = (b - self.A @ self.x)[self.points]

    def correct(self, coarse: DenseLevel) -> None:
        self.x[self.points] += coarse.x

    def postsmooth(self, b: Array) -> None:
        self.x += np.linalg.solve(self.M, b - self.A @ self.x)


def advection(n: int) -> Array:
    """Return a non-symmetric tridiagonal matrix that is diagonally dominant."""
    return 4.0 * np.eye(n) - 1.5 * np.eye(n, k=-1) - 0.5 * np.eye(n, k=1)


def cycle_matrix(A: Array, M: Array, points: Array, coarse: Array) -> Array:
    """Return B of x = B b: 1 - B A = (1 - M^-1 A) (1 - R^T C R A) (1 - M^-1 A), C the coarser B, R its points."""
    one, R = np.eye(len(A)), np.eye(len(A))[points]
    smooth = one - np.linalg.solve(M, A)
    return (one - smooth @ (one - R.T @ coarse @ R @ A) @ smooth) @ np.linalg.inv(A)


def applied(level: Any, n: int) -> Array:
    """Return B, computed column by column."""
    return np.array([cycle(level, e).copy() for e in np.eye(n)]).T


# --- the order of operations ------------------------------------------------------------------------------------


def test_four_levels_go_down_and_up_once() -> None:
    calls: list[str] = []
    x = cycle(Recorder(0, 4, calls), "b")
    assert x == "x of level 0"
    assert calls == [
        "level 0: smooth from zero, b",
        "level 0: restrict, b",
        "level 1: smooth from zero, r of level 0",
        "level 1: restrict, r of level 0",
        "level 2: smooth from zero, r of level 1",
        "level 2: restrict, r of level 1",
        "level 3: smooth from zero, r of level 2",
        "level 2: add x of level 3",
        "level 2: smooth, r of level 1",
        "level 1: add x of level 2",
        "level 1: smooth, r of level 0",
        "level 0: add x of level 1",
        "level 0: smooth, b",
    ]


def test_one_level_is_one_sweep() -> None:
    said: list[str] = []
    cycle(Recorder(0, 1, said), "b")
    assert said == ["level 0: smooth from zero, b"]


# --- results ----------------------------------------------------------------------------------------------------


def test_two_grids_are_the_matrix_of_the_formula() -> None:
    A, coarse = advection(14), advection(7)
    M, Mc = np.tril(A), np.tril(coarse)
    B = cycle_matrix(A, M, np.arange(0, 14, 2), np.linalg.inv(Mc))
    found = applied(DenseLevel(A, M, DenseLevel(coarse, Mc)), 14)
    # Both compute about ten products and solves of 14 numbers, all of norm about 1 or less.
    assert found == pytest.approx(B, abs=10 * 14 * U)


def test_three_grids_are_two_whose_coarser_one_is_a_cycle() -> None:
    levels = [advection(n) for n in (28, 14, 7)]
    M = [np.tril(A) for A in levels]
    B = cycle_matrix(levels[1], M[1], np.arange(0, 14, 2), np.linalg.inv(M[2]))
    B = cycle_matrix(levels[0], M[0], np.arange(0, 28, 2), B)
    top = DenseLevel(levels[0], M[0], DenseLevel(levels[1], M[1], DenseLevel(levels[2], M[2])))
    assert applied(top, 28) == pytest.approx(B, abs=20 * 28 * U)  # as above, twice as deep


def test_a_cycle_forgets_what_the_one_before_left(rng: Any) -> None:
    A, coarse = advection(14), advection(7)
    level = DenseLevel(A, np.tril(A), DenseLevel(coarse, np.tril(coarse)))
    b = rng.standard_normal(14)
    first = cycle(level, b).copy()
    cycle(level, rng.standard_normal(14))
    assert cycle(level, b).tolist() == first.tolist()


# --- the 27-point problem's levels ------------------------------------------------------------------------------


def stencil_matrix(shape: tuple[int, int, int], nonsymmetric: bool) -> Array:
    """Return the 27-point matrix of a box, dense, computed point by point."""
    nx, ny, nz = shape
    number = {(x, y, z): (z * ny + y) * nx + x for x, y, z in product(range(nx), range(ny), range(nz))}
    A = np.zeros((len(number), len(number)))
    for (x, y, z), i in number.items():
        for step in product((-1, 0, 1), repeat=3):
            j = number.get((x + step[0], y + step[1], z + step[2]))
            if j is not None:
                A[i, j] = 26.0 if step == (0, 0, 0) else -1.0
                A[i, j] += {(0, 0, -1): -0.5, (0, 0, 1): 0.5}.get(step, 0.0) if nonsymmetric else 0.0
    return A


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("nonsymmetric", [False, True])
def test_levels_of_the_27_point_problem_are_the_matrix_of_the_formula(symmetric: bool, nonsymmetric: bool) -> None:
    """On 8x4x4 points and 4x2x2, in the natural order; a symmetric sweep is M = (D + L) D^-1 (D + U)."""
    kernels, box = ReferenceSparse(), Box(8, 4, 4)
    form = Form(("fp64", "fp64"), "fp64", "ell", symmetric=symmetric)
    stencil = weights(nonsymmetric=nonsymmetric)
    problem = make_stencil(kernels, Solo(), box.levels(2), [form], "natural", stencil, Spans())
    new_to_old = kernels.order(kernels.stencil_rows(box, stencil), "natural").new_to_old

    def smoother(A: Array) -> Array:
        D = np.diag(np.diag(A))
        return np.tril(A) @ np.linalg.solve(D, np.triu(A)) if symmetric else np.tril(A)

    A, coarse = (stencil_matrix(one.shape, nonsymmetric) for one in box.levels(2))
    points = np.array([(2 * z * 4 + 2 * y) * 8 + 2 * x for z, y, x in product(range(2), range(2), range(4))])
    B = cycle_matrix(A, smoother(A), points, np.linalg.inv(smoother(coarse)))
    found = applied(problem.hierarchies[0].top, box.rows)
    natural = np.zeros_like(found)
    natural[np.ix_(new_to_old, new_to_old)] = found
    # B's entries are below 0.1, and each results from a few sweeps, each with 27 products and a quotient per row.
    assert natural == pytest.approx(B, abs=4 * 27 * U)
    assert problem.b.tolist() == A.sum(1)[new_to_old].tolist(), "small integers and halves: exact"
