"""Compare HPG-MxP's solver with the theory: steps, the distance from x = 1, and any format.

The oracle is the same multigrid on sparse matrices of the whole domain. Ranks are sets of rows between which a sweep
uses the old x (block Jacobi); within a rank, groups of rows are processed in order.  It shares no kernel, halo or
layout with the solver.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from mxpeak.comm.transports.solo import Solo
from mxpeak.distributed.stencil import make_stencil
from mxpeak.errors import Outcome
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.kernels.reference.sparse import ReferenceSparse
from mxpeak.layout.stencil import LEVELS, Box
from mxpeak.precision import PRECISIONS
from mxpeak.solvers.krylov import gmres_ir
from mxpeak.spans import Spans
from tests.support.hpg_mxp_solves import (
    DOUBLE,
    KINDS,
    TOLERANCE,
    Triple,
    agree,
    error_bound,
    global_matrix,
    mixed_form,
    oracle,
    smallest_eigenvalue,
    solve_oracle,
    solved,
    system_of,
)
from tests.support.roundoff import U

# --- the oracle -------------------------------------------------------------------------------------------------


# --- the solver on any number of ranks --------------------------------------------------------------------------


# --- the steps of the oracle ------------------------------------------------------------------------------------


def test_the_oracle_is_the_27_point_matrix_with_its_eigenvalue() -> None:
    A = global_matrix((8, 4, 6), nonsymmetric=False)
    assert A.nnz == math.prod(3 * n - 2 for n in (8, 4, 6))
    assert set(A.data) == {26.0, -1.0}
    least = np.linalg.eigvalsh(A.toarray())[0]
    assert least == pytest.approx(smallest_eigenvalue((8, 4, 6)), rel=192 * U * 53)  # ||A|| <= 53, n = 192
    skewed = global_matrix((8, 4, 6), nonsymmetric=True)
    assert abs(skewed + skewed.T - 2.0 * A).max() == 0.0
    assert (skewed[32, 0], skewed[0, 32], skewed[32, 1]) == (-1.5, -0.5, -1.0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shape", "nonsymmetric"), [((16, 8, 8), False), ((8, 24, 8), True)])
def test_double_takes_the_steps_that_the_matrices_take(shape: Triple, kind: str, nonsymmetric: bool) -> None:
    (double,) = solved(Solo(), shape, (1, 1, 1), [DOUBLE], kind, nonsymmetric)
    problem = oracle(shape, (1, 1, 1), kind, nonsymmetric)
    wanted = solve_oracle(problem, problem.levels[0].A, TOLERANCE)
    agree(double.solve.estimates, wanted.estimates)
    agree(double.solve.history, wanted.history)


@pytest.mark.parametrize("restart", [1, 5])
def test_restarts_are_those_of_the_matrices(restart: int) -> None:
    (double,) = solved(Solo(), (16, 8, 8), (1, 1, 1), [DOUBLE], restart=restart)
    problem = oracle((16, 8, 8), (1, 1, 1))
    wanted = solve_oracle(problem, problem.levels[0].A, TOLERANCE, restart=restart)
    agree(double.solve.estimates, wanted.estimates)
    agree(double.solve.history, wanted.history)
    assert max(double.solve.cycles) == restart


@pytest.mark.parametrize(("kind", "nonsymmetric"), [(kind, turn % 2 == 1) for turn, kind in enumerate(KINDS)])
def test_the_first_mixed_cycle_is_doubles_until_fp32_ends(kind: str, nonsymmetric: bool) -> None:
    """The cycle ends at the accuracy of fp32, where only rounding is left, which depends on the order of sums."""
    shape = (16, 8, 16)
    double, mixed = solved(Solo(), shape, (1, 1, 1), [DOUBLE, mixed_form("bf16")], kind, nonsymmetric)
    U32 = PRECISIONS["fp32"].u
    together = min(mixed.solve.cycles[0], double.solve.steps)
    for one, other in zip(mixed.solve.estimates[:together], double.solve.estimates):
        # 27 products and sums per row, on seven sweeps of about half as much: 4 times as much as one product's.
        assert one == pytest.approx(other, rel=4 * 27 * U32 * together)
    assert abs(mixed.solve.cycles[0] - double.solve.steps) <= 1
    # ||A||·||x||·u / ||b||, with ||A|| <= 53 and x = 1, and at worst 27 sums per row.
    floor = 53 * math.sqrt(math.prod(shape)) * U32 / double.solve.initial
    assert TOLERANCE < mixed.solve.history[1] < 27 * floor
    narrow = oracle(shape, (1, 1, 1), kind, nonsymmetric, np.float32)
    wanted = solve_oracle(narrow, global_matrix(shape, nonsymmetric), TOLERANCE)
    assert len(mixed.solve.cycles) == len(wanted.history) - 1 == 2


# --- any format -------------------------------------------------------------------------------------------------

PER_LEVEL = [("fp32", "bf16", "fp16", "fp8"), ("bf16", "fp32", "fp32", "fp32"), ("fp8", "fp16", "fp64", "fp32")]


@pytest.mark.parametrize(("storage", "nonsymmetric"), [("ell", True), ("sell", False), ("packed", True)])
def test_every_format_reaches_the_tolerance_and_x_equal_to_one(storage: str, nonsymmetric: bool) -> None:
    shape = (16, 8, 24)
    forms = [mixed_form(values, "fp32", storage) for values in ("fp64", "fp32", "bf16", "fp16", "fp8")]
    forms += [mixed_form(values, "fp64", storage) for values in ("fp64", "bf16")]
    for outcome in solved(Solo(), shape, (1, 1, 1), forms, nonsymmetric=nonsymmetric):
        assert outcome.solve.outcome == Outcome.SOLVED
        assert outcome.solve.residual <= TOLERANCE
        assert outcome.max_error <= error_bound(shape, outcome.solve.residual, nonsymmetric)
        assert outcome.solve.initial == pytest.approx(float(np.linalg.norm(global_matrix(shape, nonsymmetric).sum(1))))


def test_formats_that_hold_every_value_change_no_bit() -> None:
    """26, -1, -1.5 and -0.5 are exact in fp8, and values are converted to the type of vectors before use."""
    names = ("fp32", "bf16", "fp16", "fp8", *PER_LEVEL[:2])
    first, *others = solved(Solo(), (16, 8, 8), (1, 1, 1), [mixed_form(one) for one in names], nonsymmetric=True)
    for name, found in zip(names, (first, *others)):
        assert found.solve == first.solve, name
        assert found.values == ((name,) * LEVELS if isinstance(name, str) else name)


def test_fp64_vectors_make_the_mixed_solver_the_double_one() -> None:
    forms = [DOUBLE, mixed_form("fp64"), mixed_form("bf16", "fp64")]
    double, *others = solved(Solo(), (16, 8, 8), (1, 1, 1), forms)
    for found in others:
        assert found.solve == double.solve
        assert found.vectors == "fp64"


@pytest.mark.parametrize("values", PER_LEVEL)
def test_every_level_may_have_a_format_of_its_own(values: tuple[str, ...]) -> None:
    (found,) = solved(Solo(), (16, 16, 16), (1, 1, 1), [mixed_form(values)])
    assert found.values == values
    assert found.solve.outcome == Outcome.SOLVED


@pytest.mark.parametrize("tolerance", [1e-6, 1e-12, 1e-14])
def test_the_mixed_solver_is_as_accurate_as_it_is_asked_to_be(tolerance: float) -> None:
    shape = (16, 8, 8)
    double, mixed = solved(Solo(), shape, (1, 1, 1), [DOUBLE, mixed_form("fp16")], tolerance=tolerance)
    for outcome in (double, mixed):
        assert outcome.solve.outcome == Outcome.SOLVED
        assert outcome.solve.residual <= tolerance
        assert outcome.max_error <= error_bound(shape, outcome.solve.residual)


@pytest.mark.parametrize(("tolerance", "values"), [(0.0, "fp64"), (1e-7, "fp32"), (1e-2, "bf16"), (0.02, "fp8")])
def test_a_matrix_that_a_format_does_not_hold_is_rounded_as_far_as_was_allowed(tolerance: float, values: str) -> None:
    """Residuals use the matrix itself, so the solution is still x = 1."""
    stencil = [-0.99] * 27
    stencil[13] = 26.1
    kernels, box = HostKernels(1).sparse, Box(16, 8, 8)
    form = mixed_form("fp8", tolerance=tolerance)
    problem = make_stencil(kernels, Solo(), box.levels(LEVELS), [form], "greedy", stencil, Spans())
    (hierarchy,) = problem.hierarchies
    assert [level.A.A.values for level in problem.levels(0)] == [values] * LEVELS
    assert hierarchy.outer.A.values == "fp64"
    system = system_of(kernels, Solo(), problem, hierarchy, 30)
    done = gmres_ir(system, system.norm_of_b(), restart=30, max_steps=300, tolerance=TOLERANCE)
    assert done.outcome == Outcome.SOLVED
    # ||A^-1|| <= 1 / (26.1 - 26·0.99), and a row sum of A is at most 26.1.
    assert system.max_error(1.0) <= TOLERANCE * 26.1 * math.sqrt(box.rows) / (26.1 - 26 * 0.99)


@pytest.mark.parametrize("smoother", ["greedy", "levels", "natural"])
def test_reference_kernels_take_the_steps_that_the_matrices_take(smoother: str) -> None:
    kernels, problem = ReferenceSparse(), oracle((8, 8, 8), (1, 1, 1), smoother)
    (double,) = solved(Solo(), (8, 8, 8), (1, 1, 1), [DOUBLE], smoother, tolerance=1e-3, kernels=kernels)
    wanted = solve_oracle(problem, problem.levels[0].A, 1e-3)
    agree(double.solve.estimates, wanted.estimates)
    agree(double.solve.history, wanted.history)
