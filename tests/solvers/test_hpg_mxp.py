"""HPG-MxP's solver against the theory: the same steps as the matrices say, x = 1 as near as it has to be, any format.

The oracle is the same multigrid on sparse matrices of the whole domain: ranks are sets of rows between which a sweep
sees the x of before it (block Jacobi), and in a rank groups of rows follow each other.  It has no kernel, no halo and
no layout in common with the solver.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from mxpeak.comm.base import Communicator
from mxpeak.comm.solo import Solo
from mxpeak.distributed.stencil import Form, Hierarchy, Made, make_stencil, weights
from mxpeak.distributed.system import MixedSystem
from mxpeak.errors import Outcome
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.kernels.reference.sparse import ReferenceSparse
from mxpeak.layout.stencil import LEVELS, Box
from mxpeak.precision import PRECISIONS
from mxpeak.solvers.krylov import Solve, gmres_ir
from mxpeak.solvers.multigrid import cycle
from mxpeak.spans import Spans
from tests.support.roundoff import U

Array = np.ndarray[Any, np.dtype[Any]]
Triple = tuple[int, int, int]
KINDS = ("greedy", "jpl", "natural")
TOLERANCE = 1e-9

# --- the oracle -------------------------------------------------------------------------------------------------


def global_matrix(shape: Triple, nonsymmetric: bool) -> Any:
    """27 - T ⊗ T ⊗ T with T = tridiag(1, 1, 1); non-symmetric: ±1/2 beside the diagonal in z more."""
    one, T = (
        [sp.diags([value] * (2 * k + 1), range(-k, k + 1), shape=(n, n)) for n in reversed(shape)]
        for k, value in ((0, 1.0), (1, 1.0))
    )
    A = 27.0 * reduce(sp.kron, one) - reduce(sp.kron, T)
    if nonsymmetric:
        skew = sp.diags([-0.5, 0.5], [-1, 1], shape=(shape[2],) * 2)
        A = A + sp.kron(sp.kron(skew, one[1]), one[2])
    return A.tocsr()


def local_groups(shape: Triple, kind: str) -> Array:
    """The group of each of a box's points: octants of parity, wavefronts of the natural order, or random colours."""
    z, y, x = np.indices(shape[::-1]).reshape(3, -1)
    if kind == "greedy":
        return x % 2 + 2 * (y % 2) + 4 * (z % 2)
    if kind == "natural":
        return x + 2 * y + 4 * z
    kernels, group = ReferenceSparse(), np.empty(math.prod(shape), int)
    order = kernels.order(kernels.stencil_rows(Box(*shape), weights()), kind)
    for g, (begin, end) in enumerate(zip(order.starts, order.starts[1:])):
        group[order.new_to_old[begin:end]] = g
    return group


class BlockLevel:
    """One level over all ranks: x += M^-1 (b - A x), M block diagonal over the ranks, D + L in each.

    `lower` is how many entries M has, `points` are the next level's.
    """

    def __init__(self, shape: Triple, grid: Triple, kind: str, nonsymmetric: bool, dtype: Any):
        A = global_matrix(shape, nonsymmetric)
        box: Triple = tuple(n // p for n, p in zip(shape, grid))  # type: ignore[assignment]
        z, y, x = np.indices(shape[::-1]).reshape(3, -1)
        rank = (z // box[2] * grid[1] + y // box[1]) * grid[0] + x // box[0]
        group = local_groups(box, kind)[((z % box[2]) * box[1] + y % box[1]) * box[0] + x % box[0]]
        entries = A.tocoo()
        inside = rank[entries.row] == rank[entries.col]
        within = sp.csr_matrix((entries.data * inside, (entries.row, entries.col)), A.shape)
        self.A = A.astype(dtype)
        self._outside, self._D = (A - within).tocsr().astype(dtype), A.diagonal().astype(dtype)
        rows = [np.flatnonzero(group == g) for g in range(group.max() + 1)]
        self._groups = [(g, (within - sp.diags(A.diagonal())).tocsr()[g].astype(dtype)) for g in rows]
        self.lower = int((inside & (group[entries.col] < group[entries.row])).sum()) + A.shape[0]
        self.points = np.flatnonzero((x % 2 == 0) & (y % 2 == 0) & (z % 2 == 0))

    def sweep(self, b: Array, x: Array) -> Array:
        """One forward sweep from x."""
        x, b = x.copy(), b - self._outside @ x
        for rows, A in self._groups:
            x[rows] = (b[rows] - A @ x) / self._D[rows]
        return x


@dataclass(frozen=True)
class Oracle:
    """The problem with its levels, the finest first."""

    levels: tuple[BlockLevel, ...]

    def cycle(self, b: Array, depth: int = 0) -> Array:
        """M^-1 b."""
        level = self.levels[depth]
        x = level.sweep(b, np.zeros_like(b))
        if depth + 1 < len(self.levels):
            x[level.points] += self.cycle((b - level.A @ x)[level.points], depth + 1)
            x = level.sweep(b, x)
        return x


@cache
def oracle(
    shape: Triple, grid: Triple, kind: str = "greedy", nonsymmetric: bool = False, dtype: Any = np.float64
) -> Oracle:
    """All levels of a global problem distributed over a grid of ranks."""
    sides = [tuple(n >> depth for n in shape) for depth in range(LEVELS)]
    return Oracle(tuple(BlockLevel(side, grid, kind, nonsymmetric, dtype) for side in sides))  # type: ignore[arg-type]


@dataclass
class Steps:
    """What the oracle's solve took: estimates and true residuals relative to ||b||."""

    estimates: list[float]
    history: list[float]

    @property
    def count(self) -> int:
        return len(self.estimates)


def solve_oracle(problem: Oracle, A: Any, tolerance: float, restart: int = 30, most: int = 300) -> Steps:
    """GMRES-IR by its definition: residuals with A in fp64, all else in the type of the oracle's levels."""
    inner = problem.levels[0].A
    b, x, found = A.sum(1).A1, np.zeros(A.shape[0]), Steps([], [1.0])
    scale = float(np.linalg.norm(b))
    while found.history[-1] > tolerance and found.count < most:
        r = b - A @ x
        rho = float(np.linalg.norm(r))
        Q, H = [(r / rho).astype(inner.dtype)], np.zeros((restart + 1, restart))
        for k in range(restart):
            w = inner @ problem.cycle(Q[k])
            for _ in range(2):
                h = np.array([float(q.astype(float) @ w.astype(float)) for q in Q])
                w = (w - h @ np.array(Q, float)).astype(inner.dtype)
                H[: k + 1, k] += h
            H[k + 1, k] = np.linalg.norm(w.astype(float))
            Q.append((w / H[k + 1, k]).astype(inner.dtype))
            target = rho * np.eye(k + 2)[0]
            t, *_ = np.linalg.lstsq(H[: k + 2, : k + 1], target)
            found.estimates.append(float(np.linalg.norm(target - H[: k + 2, : k + 1] @ t)) / scale)
            if found.estimates[-1] <= tolerance or found.count == most:
                break
        x = x + problem.cycle((t @ np.array(Q[:-1], float)).astype(inner.dtype))
        found.history.append(float(np.linalg.norm(b - A @ x)) / scale)
    return found


# --- the solver, on as many ranks as there are ------------------------------------------------------------------


@dataclass(frozen=True)
class Solved:
    """One solver's way, and what it ended with."""

    solve: Solve
    max_error: float
    values: tuple[str, ...]
    vectors: str


DOUBLE = Form(("fp64",) * LEVELS, "fp64", "sell")


def mixed_form(
    values: Sequence[str] | str, vectors: str = "fp32", storage: str = "sell", tolerance: float = 0.0
) -> Form:
    """The mixed solver's matrices: one format for all levels or one each."""
    each = (values,) * LEVELS if isinstance(values, str) else tuple(values)
    return Form(each, vectors, storage, mixed=True, tolerance=tolerance)


def system_of(kernels: Any, comm: Communicator, made: Made, hierarchy: Hierarchy, restart: int) -> MixedSystem:
    """A x = b as GMRES-IR takes it."""
    top = hierarchy.top
    return MixedSystem(kernels, comm, hierarchy.outer, top.A, made.b, lambda q: cycle(top, q), restart, Spans())


def solved(
    comm: Communicator,
    shape: Triple,
    grid: Triple,
    forms: Sequence[Form],
    kind: str = "greedy",
    nonsymmetric: bool = False,
    tolerance: float = TOLERANCE,
    restart: int = 30,
    kernels: Any = None,
) -> list[Solved]:
    """This rank's view of the global problem's solves in each form.  Collective."""
    kernels = HostKernels(1).sparse if kernels is None else kernels
    box = Box.of(comm.rank, tuple(n // p for n, p in zip(shape, grid)), grid)  # type: ignore[arg-type]
    made = make_stencil(kernels, comm, box.levels(LEVELS), forms, kind, weights(nonsymmetric=nonsymmetric), Spans())
    found = []
    for k, hierarchy in enumerate(made.hierarchies):
        system = system_of(kernels, comm, made, hierarchy, restart)
        done = gmres_ir(system, system.norm_of_b(), restart=restart, most=300, tolerance=tolerance)
        values = tuple(level.A.A.values for level in made.levels(k))
        found.append(Solved(done, system.max_error(1.0), values, hierarchy.top.A.A.vectors))
    return found


def smallest_eigenvalue(shape: Triple) -> float:
    """Of 27 - T ⊗ T ⊗ T: T's largest is 1 + 2 cos(π/(n + 1)).  Of the non-symmetric matrix' symmetric part, too."""
    return 27.0 - math.prod(1.0 + 2.0 * math.cos(math.pi / (n + 1)) for n in shape)


def error_bound(shape: Triple, residual: float, nonsymmetric: bool = False) -> float:
    """max |x - 1| <= ||A^-1||·||b - A x|| <= residual·||b|| / λ, λ the least eigenvalue of A's symmetric part.

    To that comes what x and the residual themselves are rounded by, 27 products and sums a row.
    """
    b = global_matrix(shape, nonsymmetric).sum(1)
    norm_b, rounding = float(np.linalg.norm(b)), 27 * U * 53 * math.sqrt(math.prod(shape))
    return (residual * norm_b + rounding) / smallest_eigenvalue(shape)


# --- the same steps as the matrices say -------------------------------------------------------------------------


def agree(found: Sequence[float], wanted: Sequence[float]) -> None:
    """As many residuals, each right to what rounding leaves of it: 27 products and sums a row, in every step so far."""
    assert len(found) == len(wanted)
    for k, (one, other) in enumerate(zip(found, wanted), start=1):
        assert one == pytest.approx(other, abs=27 * k * U)


def test_the_oracle_is_the_27_point_matrix_with_its_eigenvalue() -> None:
    A = global_matrix((8, 4, 6), nonsymmetric=False)
    assert A.nnz == math.prod(3 * n - 2 for n in (8, 4, 6))
    assert set(A.data) == {26.0, -1.0}
    least = np.linalg.eigvalsh(A.toarray())[0]
    assert least == pytest.approx(smallest_eigenvalue((8, 4, 6)), rel=192 * U * 53)  # ||A|| <= 53, n = 192
    skewed = global_matrix((8, 4, 6), nonsymmetric=True)
    assert abs(skewed + skewed.T - 2.0 * A).max() == 0.0
    assert (skewed[32, 0], skewed[0, 32], skewed[32, 1]) == (-1.5, -0.5, -1.0)


@pytest.mark.parametrize("nonsymmetric", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(16, 16, 16), (8, 24, 16)])
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


@pytest.mark.parametrize("nonsymmetric", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_mixed_cycle_is_doubles_until_fp32_ends(kind: str, nonsymmetric: bool) -> None:
    """Where it ends is fp32's business, and what is left then is rounding, of which each order of sums has its own."""
    shape = (16, 16, 16)
    double, mixed = solved(Solo(), shape, (1, 1, 1), [DOUBLE, mixed_form("bf16")], kind, nonsymmetric)
    U32 = PRECISIONS["fp32"].u
    together = min(mixed.solve.cycles[0], double.solve.steps)
    for one, other in zip(mixed.solve.estimates[:together], double.solve.estimates):
        # 27 products and sums a row, on seven sweeps of about half as much: 4 times as much as one product's.
        assert one == pytest.approx(other, rel=4 * 27 * U32 * together)
    assert abs(mixed.solve.cycles[0] - double.solve.steps) <= 1
    # ||A||·||x||·u / ||b||, with ||A|| <= 53 and x = 1, and 27 sums that add up in each row at worst.
    floor = 53 * math.sqrt(16**3) * U32 / double.solve.initial
    assert TOLERANCE < mixed.solve.history[1] < 27 * floor
    narrow = oracle(shape, (1, 1, 1), kind, nonsymmetric, np.float32)
    wanted = solve_oracle(narrow, global_matrix(shape, nonsymmetric), TOLERANCE)
    assert len(mixed.solve.cycles) == len(wanted.history) - 1 == 2


# --- any format -------------------------------------------------------------------------------------------------

PER_LEVEL = [("fp32", "bf16", "fp16", "fp8"), ("bf16", "fp32", "fp32", "fp32"), ("fp8", "fp16", "fp64", "fp32")]


@pytest.mark.parametrize("nonsymmetric", [False, True])
@pytest.mark.parametrize("storage", ["ell", "sell", "packed"])
def test_every_format_reaches_the_tolerance_and_x_equal_to_one(storage: str, nonsymmetric: bool) -> None:
    shape = (16, 8, 24)
    forms = [
        mixed_form(values, vectors, storage)
        for values, vectors in product(("fp64", "fp32", "bf16", "fp16", "fp8"), ("fp32", "fp64"))
    ]
    for found in solved(Solo(), shape, (1, 1, 1), forms, nonsymmetric=nonsymmetric):
        assert found.solve.outcome == Outcome.SOLVED
        assert found.solve.residual <= TOLERANCE
        assert found.max_error <= error_bound(shape, found.solve.residual, nonsymmetric)
        assert found.solve.initial == pytest.approx(float(np.linalg.norm(global_matrix(shape, nonsymmetric).sum(1))))


def test_formats_that_hold_every_value_change_no_bit() -> None:
    """26, -1, -1.5 and -0.5 are numbers of fp8 already, and values become what vectors are before they are used."""
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
    for found in (double, mixed):
        assert found.solve.outcome == Outcome.SOLVED
        assert found.solve.residual <= tolerance
        assert found.max_error <= error_bound(shape, found.solve.residual)


@pytest.mark.parametrize(("tolerance", "values"), [(0.0, "fp64"), (1e-7, "fp32"), (1e-2, "bf16"), (0.02, "fp8")])
def test_a_matrix_that_a_format_does_not_hold_is_rounded_as_far_as_was_allowed(tolerance: float, values: str) -> None:
    """Residuals are those of the matrix itself, so x = 1 all the same."""
    stencil = [-0.99] * 27
    stencil[13] = 26.1
    kernels, box = HostKernels(1).sparse, Box(16, 8, 8)
    form = mixed_form("fp8", tolerance=tolerance)
    made = make_stencil(kernels, Solo(), box.levels(LEVELS), [form], "greedy", stencil, Spans())
    (hierarchy,) = made.hierarchies
    assert [level.A.A.values for level in made.levels(0)] == [values] * LEVELS
    assert hierarchy.outer.A.values == "fp64"
    system = system_of(kernels, Solo(), made, hierarchy, 30)
    done = gmres_ir(system, system.norm_of_b(), restart=30, most=300, tolerance=TOLERANCE)
    assert done.outcome == Outcome.SOLVED
    # ||A^-1|| <= 1 / (26.1 - 26·0.99), and a row sum of A is at most 26.1.
    assert system.max_error(1.0) <= TOLERANCE * 26.1 * math.sqrt(box.rows) / (26.1 - 26 * 0.99)


@pytest.mark.parametrize("smoother", ["greedy", "natural"])
def test_reference_kernels_take_the_steps_that_the_matrices_take(smoother: str) -> None:
    kernels, problem = ReferenceSparse(), oracle((8, 8, 8), (1, 1, 1), smoother)
    (double,) = solved(Solo(), (8, 8, 8), (1, 1, 1), [DOUBLE], smoother, tolerance=1e-3, kernels=kernels)
    wanted = solve_oracle(problem, problem.levels[0].A, 1e-3)
    agree(double.solve.estimates, wanted.estimates)
    agree(double.solve.history, wanted.history)
