"""Test that HPL-MxP has the same matrix, factors and solution on every grid of virtual ranks, in every precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest

from mxpeak.comm.grid import make_grid
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.distributed.dense import dist_matrix
from mxpeak.distributed.sources import GeneratedSystem
from mxpeak.errors import Outcome
from mxpeak.kernels.contract import Kernels
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.kernels.reference.kernels import ReferenceKernels
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.generators import generator
from mxpeak.layout.grid import ProcessGrid
from mxpeak.precision import precision as format_of
from mxpeak.precision import stored_as
from mxpeak.solvers import krylov
from mxpeak.solvers.difficulty import condition_estimate, unpreconditioned_factor, unpreconditioned_steps
from mxpeak.solvers.lu.lu import MixedLuOptions, factorize
from mxpeak.solvers.lu.proof import PROBES, SIGMAS, Proof, prove
from mxpeak.solvers.mxp_system import MxpSystem
from mxpeak.solvers.refine import backward_error, refine_solution
from mxpeak.solvers.scaling import balance
from mxpeak.spans import Spans
from mxpeak.verbs.study.run import full_gmres_on_arrays

GRIDS = [(1, 1), (1, 3), (2, 2), (2, 3), (3, 5)]
SIZES = [(1, 4), (3, 8), (37, 4), (61, 8), (30, 64), (83, 16)]
Edit = Callable[[Any, Any], None]


@dataclass
class Solved:
    """Results of a solve, with A and LU assembled from the parts of all ranks."""

    A: Any
    LU: Any
    x: Any
    done: krylov.Solve
    eta: float
    proof: Proof
    singular: int
    condition: float | None
    factor: float | None


def host() -> Kernels:
    return HostKernels(1, poison=True)


def solve(
    n: int,
    nb: int,
    shape: tuple[int, int],
    low: str = "fp32",
    name: str = "sqrt-n",
    *,
    options: dict[str, Any] | None = None,
    make: Callable[[], Kernels] = host,
    method: str = "gmres",
    scaling: bool = False,
    restart: int = 50,
    seed: int = 100,
    scale: float | None = None,
    spoil_before: Edit | None = None,
    spoil_after: Edit | None = None,
    difficulty: bool = False,
) -> Solved:
    """Solve a generated system on thread ranks; `spoil_before` and `spoil_after` change A and LU between the phases.

    With `difficulty`, also estimate the condition number and the steps of GMRES without factors.
    """

    def body(comm: Any) -> Any:
        kernels = make()
        grid = make_grid(ProcessGrid(*shape, "row", None), comm)
        assert grid is not None
        system = GeneratedSystem(grid, n, nb, generator(name, n, seed=seed, scale=scale), kernels)
        A = dist_matrix(grid, n, n, nb, kernels, stored_as(low))
        system.store(A)
        before = A.local.copy()
        balanced = [balance(A, kernels)] if scaling else []
        if spoil_before is not None:
            spoil_before(A, kernels)
        singular = factorize(A, MixedLuOptions(low, **(options or {})), kernels, Spans())
        if spoil_after is not None:
            spoil_after(A, kernels)
        sums = system.row_sums()
        mxp = MxpSystem(system, A, 1.0, kernels, Spans(), balanced)
        mxp.A_inf = mxp.equations.max_abs(sums)
        x, done = refine_solution(mxp, method, restart=restart)
        eta = backward_error(mxp, mxp.equations.max_abs(mxp.residual(x)), x)
        proof = prove(system, A, low, kernels, balanced, 77)
        condition = condition_estimate(mxp) if difficulty else None
        factor = unpreconditioned_factor(system, mxp) if difficulty else None
        return A, before, x, done, eta, proof, singular, condition, factor

    results = run_ranks(shape[0] * shape[1], body)
    whole, LU, x = np.full((n, n), np.nan), np.full((n, n), np.nan), np.full(n, np.nan)
    for A, before, x_local, done, eta, proof, singular, condition, factor in results:
        rows = [A.rows.to_global(il) for il in range(A.rows.local_size)]
        cols = [A.cols.to_global(jl) for jl in range(A.cols.local_size)]
        whole[np.ix_(rows, cols)], LU[np.ix_(rows, cols)] = before, A.local
        x[cols] = x_local
        first = results[0]
        assert done.by_step() == first[3].by_step() or np.isnan(done.residual), "all ranks must take the same branches"
        assert (eta, proof, singular, condition, factor) == first[4:] or np.isnan(eta)
    *_, done, eta, proof, singular, condition, factor = results[0]
    return Solved(whole, LU, x, done, eta, proof, singular, condition, factor)


@cache
def dense(name: str, n: int, **more: Any) -> tuple[Any, Any]:
    """Return A and b, computed entry by entry from their definition in fp64."""
    system = generator(name, n, **more)
    A = np.array([[system.entries.value(i, j) for j in range(n)] for i in range(n)]).reshape(n, n)
    if system.row_sum is not None:
        np.fill_diagonal(A, 0.0)
        np.fill_diagonal(A, system.row_sum * np.abs(A).sum(axis=1))
    elif system.diagonal is not None:
        np.fill_diagonal(A, system.diagonal)
    return A, np.array([system.right_side.value(i, 0) for i in range(n)])


def factors(LU: Any) -> tuple[Any, Any]:
    """Return L and U in fp64."""
    return np.tril(LU.astype(float), -1) + np.eye(len(LU)), np.triu(LU.astype(float))


@pytest.mark.parametrize(("n", "nb"), SIZES)
def test_every_grid_factors_and_solves_the_same_system(n: int, nb: int) -> None:
    """Run on one rank, and alternately on two of the other grids."""
    A, b = dense("sqrt-n", n)
    at = SIZES.index((n, nb))
    for shape in (GRIDS[0], GRIDS[1 + at % 4], GRIDS[1 + (at + 1) % 4]):
        check_solved(solve(n, nb, shape, difficulty=True), A, b)
    check_solved(solve(n, nb, (2, 3), make=ReferenceKernels), A, b)


def check_solved(solved: Solved, A: Any, b: Any) -> None:
    """Check that A is as generated, A = L U to the rounding of fp32, and A x = b to that of fp64."""
    n = len(b)
    assert np.array_equal(solved.A, A.astype(np.float32))
    L, U = factors(solved.LU)
    # Each entry of A is the sum of at most n products, each rounded in FP32, and A itself was rounded once.
    assert np.abs(A - L @ U).max() <= (n + 2) * 2.0**-24 * (np.abs(L) @ np.abs(U)).max()
    assert solved.singular == 0
    assert solved.done.outcome == Outcome.SOLVED
    assert solved.eta <= 1.0
    assert solved.proof.passed
    scale = np.abs(A).sum(axis=1).max() * np.abs(solved.x).max() + np.abs(b).max()
    assert np.abs(b - A @ solved.x).max() <= 16 * n * 2.0**-53 * scale


@pytest.mark.parametrize("low", ["fp64", "fp32", "tf32", "bf16", "fp16", "fp8"])
def test_every_precision_refines_to_fp64_and_is_proven(low: str) -> None:
    solved = solve(211, 16, (2, 3), low)
    assert solved.done.outcome == Outcome.SOLVED
    assert solved.eta <= 1.0
    assert solved.proof.passed
    L, U = factors(solved.LU)
    A, _ = dense("sqrt-n", 211)
    u = format_of(low).u + (212 * 2.0**-24 if low != "fp64" else 212 * 2.0**-53)
    assert np.abs(A - L @ U).max() <= 2.5 * u * (np.abs(L) @ np.abs(U)).max()  # two operands of relative error u each


GENERATORS = ["sqrt-n", "ddd", "fasi-higham", "gaussian", "dominant-n", "icl"]


@pytest.mark.parametrize("name", GENERATORS)
def test_every_generator_makes_the_same_system_on_every_grid(name: str) -> None:
    n, nb = 97, 8
    A, b = dense(name, n)
    at = GENERATORS.index(name)
    for shape in (GRIDS[0], GRIDS[1 + at % 4]):  # one rank, and one of the other grids in rotation
        solved = solve(n, nb, shape, name=name)
        # Gaussian numbers come from logarithms and cosines that libraries round differently, in the last place.
        assert np.abs(solved.A - A.astype(np.float32)).max() <= 2.0**-23 * np.abs(A).max()
        assert solved.done.outcome == Outcome.SOLVED
        assert solved.proof.passed
        scale = np.abs(A).sum(axis=1).max() * np.abs(solved.x).max() + np.abs(b).max()
        assert np.abs(b - A @ solved.x).max() <= 16 * n * 2.0**-53 * scale


@pytest.mark.parametrize(("name", "n"), [("fasi-higham", 97), ("icl", 97), ("sqrt-n", 97), ("sqrt-n", 23)])
def test_steps_without_the_factors_are_those_of_gmres_until_the_check_passes(name: str, n: int) -> None:
    expected = full_gmres_on_arrays(*dense(name, n)).steps
    assert expected is not None
    for most, shape in ((50, (2, 3)), (expected, (1, 1)), (expected, (2, 3)), (expected - 1, (1, 1))):
        found = steps_without_factors(name, n, shape, most)
        assert found == (expected if expected <= most else None)


def steps_without_factors(name: str, n: int, shape: tuple[int, int], limit: int) -> int | None:
    """Return the steps of GMRES without factors, on which all ranks agree."""

    def body(comm: Any) -> int | None:
        kernels = host()
        grid = make_grid(ProcessGrid(*shape, "row", None), comm)
        assert grid is not None
        system = GeneratedSystem(grid, n, 8, generator(name, n), kernels)
        A = dist_matrix(grid, n, n, 8, kernels, "fp32")
        system.store(A)
        mxp = MxpSystem(system, A, 1.0, kernels, Spans())
        mxp.A_inf = mxp.equations.max_abs(system.row_sums())
        return unpreconditioned_steps(system, mxp, limit, 16.0)

    (found,) = set(run_ranks(shape[0] * shape[1], body))
    return found


@cache
def plainly(n: int, nb: int) -> Solved:
    """Solve a system with the default options on a 2x3 grid."""
    return solve(n, nb, (2, 3))


@pytest.mark.parametrize("options", [{"lookahead": 0}, {"forwards": False}, {"bcast": "longM"}, {"bcast": "ilib"}])
def test_what_only_orders_the_work_changes_nothing_beyond_rounding(options: dict[str, Any]) -> None:
    n, nb = 83, 8
    plain, other = plainly(n, nb), solve(n, nb, (2, 3), options=options)
    assert np.abs(plain.LU - other.LU).max() <= n * 2.0**-24 * np.abs(plain.LU).max()
    assert other.proof.passed


@pytest.mark.parametrize("method", ["gmres", "classical"])
@pytest.mark.parametrize("scaling", [False, True])
def test_balancing_and_both_refinements_reach_the_same_solution(method: str, scaling: bool) -> None:
    solved = solve(127, 8, (2, 2), "fp16", method=method, scaling=scaling)
    A, b = dense("sqrt-n", 127)
    assert solved.done.outcome == Outcome.SOLVED
    assert solved.proof.passed
    # eta <= 1 bounds the relative error by n·u times the condition number
    assert (
        np.abs(solved.x - np.linalg.solve(A, b)).max()
        <= 127 * 2.0**-53 * np.linalg.cond(A, np.inf) * np.abs(solved.x).max()
    )


def test_a_short_restart_only_costs_steps() -> None:
    plain, short = solve(127, 16, (2, 2), "fp8"), solve(127, 16, (2, 2), "fp8", restart=2)
    assert short.done.outcome == Outcome.SOLVED
    assert short.done.steps >= plain.done.steps


def test_the_history_ends_with_the_error_that_the_check_finds() -> None:
    solved = solve(127, 16, (2, 2), "bf16")
    assert len(solved.done.by_step()) == solved.done.steps + 1
    assert solved.done.by_step()[-1] == solved.done.residual == solved.eta
    assert solved.done.by_step()[0] > 1e6 * solved.eta


def test_the_difficulty_is_what_dense_linear_algebra_says() -> None:
    solved = solve(211, 16, (2, 3), difficulty=True)
    A, _ = dense("sqrt-n", 211)
    true = np.linalg.cond(A, np.inf)
    assert solved.condition is not None
    assert (
        0.3 * true <= solved.condition <= 1.001 * true
    )  # Hager's estimator is a lower bound, mostly within a factor 3
    assert solved.factor is not None
    assert abs(solved.factor - 3**-0.5 / 0.625) < 0.1  # the circular law: radius sqrt(n/3) around 0.625·sqrt(n)
    dominant = solve(211, 16, (1, 1), name="dominant-n", difficulty=True)
    assert dominant.factor is not None
    assert dominant.factor < 0.1


def test_a_system_that_cannot_converge_ends_with_its_history_and_no_exception() -> None:
    found = solve(127, 16, (2, 2), "fp8", scale=0.3, method="classical")
    assert found.done.outcome in (Outcome.NOT_CONVERGED, Outcome.NOT_FINITE)
    assert len(found.done.by_step()) == found.done.steps + 1


def test_a_zero_pivot_is_named_and_ends_in_a_failed_check() -> None:
    def zero_pivot(A: Any, kernels: Any) -> None:
        if A.grid.p == A.rows.owner(16):
            A.local[A.rows.to_local(16), :] = 0.0

    found = solve(61, 16, (2, 2), spoil_before=zero_pivot)
    assert found.singular == 17
    assert not found.proof.passed


def global_entry(A: Any, i: int, j: int) -> tuple[int, int] | None:
    """Return the local indices of entry (i, j), or None if another rank owns it."""
    if A.grid.p != A.rows.owner(i) or A.grid.q != A.cols.owner(j):
        return None
    return A.rows.to_local(i), A.cols.to_local(j)


def zero_factors(A: Any, kernels: Any) -> None:
    A.local[:] = 0.0


def wrong_block(A: Any, kernels: Any) -> None:
    place = global_entry(A, 64, 32)
    if place:
        A.local[place[0] : place[0] + 16, place[1] : place[1] + 16] *= -1.0


def flipped_exponent(A: Any, kernels: Any) -> None:
    place = global_entry(A, 100, 100)
    if place:
        A.local.view(np.int32 if A.local.itemsize == 4 else np.int64)[place] ^= 1 << (A.local.itemsize * 8 - 8)


def nan_in_the_factors(A: Any, kernels: Any) -> None:
    place = global_entry(A, 50, 60)
    if place:
        A.local[place] = np.nan


LOW = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8")
SPOILS = (zero_factors, wrong_block, flipped_exponent, nan_in_the_factors)


@pytest.mark.parametrize("low", LOW)
def test_the_proof_finds_spoilt_factors(low: str) -> None:
    """Run each precision with each way to spoil the factors, alternately on one rank and on four."""
    for turn, spoil in enumerate(SPOILS, start=LOW.index(low)):
        with np.errstate(all="ignore"):
            found = solve(127, 16, ((1, 1), (2, 2))[turn % 2], low, spoil_after=spoil)
        assert not found.proof.passed, spoil


def test_the_proof_allows_what_rounding_explains_and_no_more() -> None:
    """Compare the bound with its formula, which contains the roundings and spacings of the formats as numbers."""
    n, nb, u_32, u_64 = 61, 8, 2.0**-24, 2.0**-53
    formats = {"fp16": (2.0**-11, 2.0**-24), "bf16": (2.0**-8, 2.0**-133), "fp32": (0.0, 0.0)}
    for (low, (u, q)), name in product(formats.items(), ("sqrt-n", "fasi-higham")):
        solved = solve(n, nb, (2, 2), low, name)
        L, U = np.tril(solved.LU, -1), np.triu(solved.LU)
        t = (U**2).sum(axis=1)
        if name == "fasi-higham":  # equal entries have equal errors
            s, roundings = (abs(L) @ np.sqrt(t)) ** 2, (nb**2 + (n / nb) ** 2) / 3
        else:
            s, roundings = L**2 @ t, nb / 6 + n / (3 * nb)
        variance = u**2 / 3 * s + q**2 / 12 * t.sum() + (u_32**2 * roundings + u_64**2 * n) * (s + t)
        bounds = []
        for k in range(PROBES):
            v = np.zeros(n)
            ReferenceKernels().signs(v, BlockCyclic(n, nb, 0, 1), 77 + k)
            bounds.append(SIGMAS * np.sqrt(variance.sum()) / np.linalg.norm(solved.A @ v))
        nearest = min(bounds, key=lambda bound: abs(bound - solved.proof.bound))  # of the probe with the largest error
        assert solved.proof.bound == pytest.approx(nearest, rel=1e-5), (low, name)  # A here is rounded to fp32


@pytest.mark.parametrize("low", ["fp64", "fp32", "tf32", "bf16", "fp16", "fp8"])
def test_the_proof_finds_a_skipped_lu(low: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.bench.test_hpl_mxp_on_thread_ranks.factorize", lambda *args: 0)
    assert not solve(211, 16, (1, 1), low).proof.passed


class SkipsOneUpdate(HostKernels):
    """Kernels that omit the update of one step: the largest product of step 2."""

    def __init__(self) -> None:
        super().__init__(1, poison=True)
        self.calls = 0

    def subtract_product(self, C: Any, A: Any, B: Any) -> None:
        self.calls += 1
        if self.calls != 9:  # three products per step: block column, block row, the rest
            super().subtract_product(C, A, B)


@pytest.mark.parametrize("low", ["fp64", "fp32", "tf32", "bf16", "fp16", "fp8"])
def test_the_proof_finds_one_unapplied_update(low: str) -> None:
    assert not solve(211, 16, (1, 1), low, make=SkipsOneUpdate).proof.passed


@pytest.mark.parametrize(("low", "n", "condition"), [("bf16", 500, 1e5), ("fp16", 500, 1e6), ("fp32", 300, 1e12)])
def test_the_proof_accepts_ill_conditioned_factors_that_are_all_alike(low: str, n: int, condition: float) -> None:
    assert solve_lu_only(n, 32, low, "fasi-higham", 3, condition).passed


@pytest.mark.parametrize("nb", [64, 320, 512])
@pytest.mark.parametrize("condition", [2.0, 12.0, 1000.0, 1e6])
def test_the_proof_accepts_sums_that_err_in_one_direction(nb: int, condition: float) -> None:
    """In a large block, hundreds of updates subtract the same small number from the diagonal, which is near 1."""
    for n in (600, 850):
        assert solve_lu_only(n, nb, "fp32", "fasi-higham", 1, condition).passed


def test_the_proof_is_not_fooled_by_factors_that_fit_other_vectors() -> None:
    """U = the upper triangle of A, and L such that L U v = A v for three known v: other v see through it."""

    def forge(A: Any, kernels: Any) -> None:
        n = A.rows.n
        matrix, _ = dense("fasi-higham", n)
        drawn = []
        for k in range(3):
            v = kernels.xp.zeros(n)
            kernels.signs(v, A.cols, 12345 + k)
            drawn.append(v)
        V = np.array(drawn).T
        L, U = np.eye(n), np.triu(matrix)
        W = U @ V
        for i in range(3, n):
            want = (matrix[i] @ V) - W[i]
            L[i, :3] = np.linalg.lstsq(W[:3].T, want, rcond=None)[0]
        A.local[:] = np.tril(L, -1) + U

    assert not solve(127, 16, (1, 1), "fp16", name="fasi-higham", spoil_after=forge).proof.passed


@pytest.mark.parametrize("low", ["fp64", "fp32", "tf32", "bf16", "fp16", "fp8"])
def test_the_proof_raises_no_false_alarm(low: str) -> None:
    """Check 9 clean runs for each of 5 generators and 6 precisions: 270 runs."""
    for name, seed in product(("sqrt-n", "ddd", "fasi-higham", "gaussian", "dominant-n"), range(0, 34, 4)):
        n, nb = 40 + 7 * seed, (4, 16, 64)[seed % 3]
        assert solve_lu_only(n, nb, low, name, seed).passed, (name, seed)


def solve_lu_only(n: int, nb: int, low: str, name: str, seed: int, condition: float | None = None) -> Proof:
    """Return the proof for a factorization on one rank, without a solve."""

    def body(comm: Any) -> Proof:
        kernels = HostKernels(1)
        grid = make_grid(ProcessGrid(1, 1, "row", None), comm)
        assert grid is not None
        # With condition 1000, a small LU in fp8 has no correct digits, and the proof reports that it proves nothing.
        usual = 1000.0 if n >= 100 and low != "fp8" else 20.0
        made = generator(name, n, seed=seed, condition=condition or usual)
        system = GeneratedSystem(grid, n, nb, made, kernels)
        A = dist_matrix(grid, n, n, nb, kernels, stored_as(low))
        system.store(A)
        factorize(A, MixedLuOptions(low), kernels, Spans())
        return prove(system, A, low, kernels, [], 1000 + seed)

    return run_ranks(1, body)[0]


def test_vectors_over_rows_and_columns_hold_the_same_numbers() -> None:
    def body(comm: Any) -> bool:
        kernels = host()
        grid = make_grid(ProcessGrid(2, 3, "row", None), comm)
        assert grid is not None
        system = GeneratedSystem(grid, 61, 8, generator("sqrt-n", 61), kernels)
        r = np.array([float(system.rows.to_global(il)) for il in range(system.rows.local_size)])
        x = system.on_columns(r)
        return all(x[jl] == system.cols.to_global(jl) for jl in range(system.cols.local_size))

    assert all(run_ranks(6, body))


#: Steps of refinement at n = 1000 by precision, for c = 0.75 and 0.625.
STEPS = {"fp32": (1, 1), "fp16": (3, 3), "bf16": (4, 4), "fp8": (7, 9)}


@pytest.mark.parametrize("low", list(STEPS))
@pytest.mark.parametrize(("scale", "which"), [(0.75, 0), (0.625, 1)])
def test_steps_at_a_thousand_unknowns_are_those_of_the_format(low: str, scale: float, which: int) -> None:
    found = solve(1000, 128, (1, 1), low, scale=scale)
    assert abs(found.done.steps - STEPS[low][which]) <= 1
    growth = np.abs(factors(found.LU)[1]).max() / np.abs(found.A).max()
    assert growth < 1.3
