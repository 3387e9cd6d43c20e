"""Test the iterations of HPG-MxP on every grid of virtual ranks, and the results of whole runs."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mxpeak.bench import harness, limits
from mxpeak.bench.hpg_mxp import run as bench
from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
from mxpeak.bench.sparse import SparseBench
from mxpeak.comm.base import Communicator
from mxpeak.comm.transports.solo import DryRunCommunicator, Solo
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.distributed.stencil import make_stencil, weights
from mxpeak.distributed.system import SparseBasis
from mxpeak.errors import Outcome
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.kernels.reference.sparse import ReferenceSparse
from mxpeak.layout.stencil import LEVELS, Box
from mxpeak.perf.sparse_counts import HPG_MXP_MOTIFS, cgs2_bytes, hpg_mxp_flops, stencil_levels
from mxpeak.precision import PRECISIONS
from mxpeak.records import Result, document
from mxpeak.report import sparse_text
from mxpeak.report.hpgmp_text import hpgmp_report
from mxpeak.report.text import verdict
from mxpeak.solvers.krylov import gmres_ir
from mxpeak.spans import Spans
from mxpeak.watch.step_table import StepTable
from tests.support.hpg_mxp_results import check_result, measured
from tests.support.hpg_mxp_solves import (
    DOUBLE,
    TOLERANCE,
    Triple,
    agree,
    error_bound,
    global_matrix,
    mixed_form,
    oracle,
    solve_oracle,
    solved,
    system_of,
)
from tests.support.result_file import VALIDATOR
from tests.support.roundoff import U
from tests.support.sparse_matrices import wide

#: One global problem, distributed in one direction, in another and in all.
WHOLE = (16, 16, 32)
SPLITS = [(1, 1, 1), (1, 2, 1), (1, 1, 4), (2, 2, 2)]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the measurement of the limit, which these tests do not check."""
    monkeypatch.setattr(limits, "MAX_S", 0.0)


# --- the solver -------------------------------------------------------------------------------------------------


@cache
def check_solves(shape: Triple, grid: Triple, kind: str, nonsymmetric: bool) -> tuple[int, int]:
    """Check that double takes the oracle's steps, mixed about as many, x is 1, and ranks agree; return the steps."""
    storage = "rows" if kind in ("natural", "surface_last") else "sell"
    forms = [replace(DOUBLE, storage=storage), mixed_form("bf16", storage=storage)]
    solves_of = run_ranks(math.prod(grid), lambda comm: solved(comm, shape, grid, forms, kind, nonsymmetric))
    assert all(outcome == solves_of[0] for outcome in solves_of), "every rank gets the same numbers"
    double, mixed = solves_of[0]
    problem = oracle(shape, grid, kind, nonsymmetric)
    wanted = solve_oracle(problem, problem.levels[0].A, TOLERANCE)
    agree(double.solve.estimates, wanted.estimates)
    agree(double.solve.history, wanted.history)
    for outcome in solves_of[0]:
        assert outcome.solve.outcome == Outcome.SOLVED
        assert outcome.max_error <= error_bound(shape, outcome.solve.residual, nonsymmetric)
    assert abs(mixed.solve.cycles[0] - double.solve.cycles[0]) <= 1
    assert len(mixed.solve.cycles) == len(double.solve.cycles) + 1, "one more for what fp32 leaves"
    return double.solve.steps, mixed.solve.steps


@pytest.mark.parametrize("grid", SPLITS)
def test_a_problem_takes_the_steps_of_its_matrices_however_it_is_dealt(grid: Triple) -> None:
    check_solves(WHOLE, grid, "greedy", False)


#: Each order on ranks in one and in several directions, once with the symmetric and once with the other matrix.
KEPT: list[tuple[str, Triple, bool]] = [
    ("greedy", (2, 1, 1), False),
    ("greedy", (1, 2, 2), True),
    ("jpl", (1, 1, 3), True),
    ("jpl", (1, 2, 2), False),
    ("levels", (2, 1, 1), True),
    ("levels", (1, 2, 2), False),
    ("natural", (1, 1, 3), False),
    ("natural", (1, 2, 2), True),
    ("surface_last", (2, 1, 1), False),
    ("surface_last", (1, 2, 2), True),
]


@pytest.mark.parametrize(("kind", "grid", "nonsymmetric"), KEPT)
def test_every_order_of_the_sweeps_is_kept_on_every_grid(kind: str, grid: Triple, nonsymmetric: bool) -> None:
    check_solves(tuple(8 * p for p in grid), grid, kind, nonsymmetric)  # type: ignore[arg-type]


def test_boxes_need_not_be_cubes() -> None:
    check_solves((16, 48, 8), (2, 3, 1), "greedy", True)


def test_more_ranks_cost_some_steps_and_not_many() -> None:
    """A sweep between ranks is a Jacobi sweep, weaker than Gauss–Seidel: here by up to a third."""
    steps = {grid: check_solves(WHOLE, grid, "greedy", False) for grid in (SPLITS[0], SPLITS[-1])}
    one = steps[1, 1, 1]
    for double, mixed in steps.values():
        assert one[0] <= double <= 4 / 3 * one[0] + 1
        assert double <= mixed
        # The last cycle reduces the fp32 residual, about 1e-6, to 1e-9: a third of all steps at a constant rate.
        assert mixed <= 2 * double


@pytest.mark.parametrize("grid", [(1, 1, 2), (2, 1, 1)])
def test_reference_kernels_take_these_steps_too(grid: Triple) -> None:
    shape: Triple = tuple(8 * p for p in grid)  # type: ignore[assignment]
    (solves, *_) = run_ranks(
        2, lambda comm: solved(comm, shape, grid, [DOUBLE], tolerance=1e-3, kernels=ReferenceSparse())
    )
    problem = oracle(shape, grid)
    wanted = solve_oracle(problem, problem.levels[0].A, 1e-3)
    agree(solves[0].solve.estimates, wanted.estimates)
    agree(solves[0].solve.history, wanted.history)


@pytest.mark.parametrize(("culprit", "bad"), [(0, math.nan), (2, math.inf)])
def test_a_number_on_one_rank_that_is_not_finite_ends_the_solve_on_all(culprit: int, bad: float) -> None:
    def body(comm: Communicator) -> tuple[Any, ...]:
        kernels, box = HostKernels(1).sparse, Box.of(comm.rank, (8, 8, 8), (1, 1, 3))
        problem = make_stencil(kernels, comm, box.levels(LEVELS), [mixed_form("bf16")], "greedy", weights(), Spans())
        if comm.rank == culprit:
            problem.b[17] = bad
        system = system_of(kernels, comm, problem, problem.hierarchies[0], 30)
        done = gmres_ir(system, system.norm_of_b(), restart=30, max_steps=300, tolerance=TOLERANCE)
        return done.outcome, done.steps

    assert run_ranks(3, body) == [(Outcome.NOT_FINITE, 0)] * 3


def test_a_solve_does_not_depend_on_an_earlier_one() -> None:
    """Also if it left NaN, because padding zeros are multiplied by all entries of a vector."""

    def body(comm: Communicator) -> tuple[Any, Any]:
        kernels, box = HostKernels(1).sparse, Box.of(comm.rank, (8, 8, 8), (1, 1, 2))
        forms = [mixed_form("bf16", storage="ell")]
        problem = make_stencil(kernels, comm, box.levels(LEVELS), forms, "greedy", weights(), Spans())

        def solve() -> Any:
            problem.hierarchies[0].clear()
            system = system_of(kernels, comm, problem, problem.hierarchies[0], 30)
            return gmres_ir(system, system.norm_of_b(), restart=30, max_steps=300, tolerance=TOLERANCE)

        first = solve()
        for level in problem.levels(0):
            level.x[:] = math.nan
        return first, solve()

    for first, last in run_ranks(2, body):
        assert first == last
        assert first.outcome == Outcome.SOLVED


# --- whole runs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "values"),
    [
        (1, {}),
        (1, {"nx": 16, "mode": "official", "storage": "auto", "iterations": 300}),
        (2, {"storage": "auto"}),
        (3, {"nonsymmetric": True, "npz": 3, "iterations": 31}),
        (4, {"smoother": "natural", "nz": 16, "storage": "ell"}),
        (4, {"colouring": "jpl", "npx": 4, "npy": 1, "precision": "fp32", "storage": "packed"}),
        (2, {"mg_precision": ("fp16", "fp32", "bf16", "fp8"), "restart": 9, "warmup": "none", "threshold": 1e-5}),
    ],
)
def test_whole_runs_are_valid_and_report_their_work(ranks: int, values: dict[str, Any]) -> None:
    result = measured(ranks, **values)
    check_result(result)
    assert (result.problem["ranks"], result.validation["ranks"]) == (ranks, ranks)
    assert bool(result.result["limit"]) == (values.get("warmup") != "none")
    if limit := result.result["limit"]:
        moved = sum(result.phases[motif]["bytes"] for motif in HPG_MXP_MOTIFS)
        rate = moved / result.result["time_s"]
        assert result.result["fraction_of_limit"] == pytest.approx(rate / limit["rate_bytes"], rel=8 * U)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_speedups_of_precision_and_compression_are_separate(ranks: int) -> None:
    result = measured(ranks, rt=0.01, iterations=4, threshold=1e-3, warmup="none", mode="official", nx=16)
    check_result(result)
    figures, between = result.result, result.result["between"]
    assert set(between) == {"compressed double", "fp32"}
    p, penalty = result.problem, {"compressed double": 1.0, "fp32": result.validation["penalty"]}
    box = Box(p["nx"], p["ny"], p["nz"], p["npx"], p["npy"], p["npz"])
    for name, solver in between.items():
        flops = solver["solves"] * hpg_mxp_flops(stencil_levels(box), [4])["total"]
        assert solver["rate_flops"] == pytest.approx(penalty[name] * flops / solver["time_s"], rel=8 * U)
        assert solver["speedup"] == pytest.approx(figures["rate_flops"] / solver["rate_flops"], rel=8 * U)
        assert solver["over_double"] == pytest.approx(solver["rate_flops"] / figures["double_rate_flops"], rel=8 * U)
    lines = verdict(result, verbose=True).splitlines()
    assert sum("times double with the same stored values" in line for line in lines) == 1


def test_separate_speedups_are_not_always_measured() -> None:
    others = ({"krylov_precision": name} for name in ("fp64", "bf16"))
    for values in ({"rt": 0.0}, {"quick": True}, {"precision": "fp64"}, *others):
        settings = {
            "rt": 0.01,
            "iterations": 2,
            "threshold": 1e-3,
            "warmup": "none",
            "mode": "official",
            "nx": 16,
            **values,
        }
        assert set(measured(1, **settings).result["between"]) == ({"fp32"} if "precision" in values else set())


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("basis", ["bf16", "fp16"])
def test_a_basis_in_16_bits_reaches_the_threshold_and_is_labelled(ranks: int, basis: str) -> None:
    result = measured(ranks, rt=0.01, iterations=5, warmup="none", nx=16, krylov_precision=basis)
    check_result(result)
    p, check = result.problem, result.validation
    assert p["precision"] == {"mg": ["fp8"] * 4, "krylov": "fp8", "vectors": "fp32", "basis": basis}
    assert check["threshold"] == 1e-9
    assert "vectors" in [violation["rule"] for violation in result.rules["violations"]]
    rows = p["gnx"] * p["gny"] * p["gnz"]
    ortho = result.result["solves"] * sum(cgs2_bytes(rows, k, 4, 2) for k in range(1, 6))
    assert result.phases["ortho"]["bytes"] == ortho
    fp32 = measured(ranks, rt=0.01, iterations=5, warmup="none", nx=16)
    max_steps = 1.25 * fp32.validation["mixed_iterations"]
    assert check["mixed_iterations"] <= max_steps, "a cycle ends where rounding would hide its further steps"
    saved = fp32.problem["memory_bytes"]["mixed"] - p["memory_bytes"]["mixed"]
    assert saved == (31 * 2 - 4) * rows, "half of 31 vectors, less one more in fp32"


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("mg_vectors", ["bf16", "fp16"])
def test_multigrid_vectors_in_16_bits_cost_no_iterations_and_are_labelled(ranks: int, mg_vectors: str) -> None:
    result = measured(ranks, rt=0.01, iterations=5, warmup="none", nx=16, mg_vectors=mg_vectors)
    check_result(result)
    p, check = result.problem, result.validation
    assert p["precision"] == {"mg": ["fp8"] * 4, "krylov": "fp8", "vectors": "fp32", "mg_vectors": mg_vectors}
    assert check["threshold"] == 1e-9
    assert "vectors" in [violation["rule"] for violation in result.rules["violations"]]
    fp32 = measured(ranks, rt=0.01, iterations=5, warmup="none", nx=16)
    assert check["mixed_iterations"] <= fp32.validation["mixed_iterations"] + 1
    for motif in ("gs", "restriction", "prolongation", "spmv"):
        calls = [each.phases[motif]["calls"] / each.result["solves"] for each in (result, fp32)]
        moved = [each.phases[motif]["bytes"] / each.phases[motif]["calls"] for each in (result, fp32)]
        assert moved[0] < moved[1], motif
        assert calls[0] < calls[1] or motif == "spmv", "an update adds stored corrections"
    assert {"basis": "fp16", **measured(ranks, nx=16, mg_vectors=mg_vectors, krylov_precision="fp16").problem[
        "precision"
    ]}["mg_vectors"] == mg_vectors  # fmt: skip


@pytest.mark.parametrize("kind", ["greedy", "jpl", "levels"])
@pytest.mark.parametrize("mg_vectors", ["bf16", "fp16"])
def test_multigrid_vectors_in_16_bits_solve_the_same_system_in_every_order(mg_vectors: str, kind: str) -> None:
    shape, grid = (16, 16, 32), (1, 1, 2)
    forms = [mixed_form("bf16"), mixed_form("bf16", mg_vectors=mg_vectors)]
    everybody = run_ranks(2, lambda comm: solved(comm, shape, grid, forms, kind, True))
    assert all(found == everybody[0] for found in everybody), "every rank gets the same numbers"
    wide, narrow = everybody[0]
    assert (wide.vectors, narrow.vectors) == ("fp32", mg_vectors)
    assert narrow.solve.outcome == Outcome.SOLVED
    assert narrow.solve.steps <= 1.1 * wide.solve.steps
    assert narrow.max_error <= error_bound(shape, narrow.solve.residual, True)


@pytest.mark.parametrize("mg_vectors", ["bf16", "fp16"])
def test_stored_corrections_are_exactly_those_that_were_multiplied(mg_vectors: str) -> None:
    """A Z = Q H up to fp32, although M^-1 is rounded to 16 bits; so a cycle reduces the residual as far as in fp32."""
    kernels, box = HostKernels(1).sparse, Box(24, 16, 16)
    problem = make_stencil(
        kernels, Solo(), box.levels(LEVELS), [mixed_form("bf16", mg_vectors=mg_vectors)], "greedy", weights(), Spans()
    )
    system = system_of(kernels, Solo(), problem, problem.hierarchies[0], 30)
    first = system.residual()
    solve = gmres_ir(system, system.norm_of_b(), restart=30, max_steps=30, tolerance=1e-5)
    assert system.reduction == 0.0
    assert solve.outcome == Outcome.SOLVED
    assert len(solve.cycles) == 1
    assert solve.residual == pytest.approx(solve.estimates[-1], rel=0.05)
    assert first > 0.0


@pytest.mark.parametrize("basis", ["bf16", "fp16"])
def test_stored_vectors_span_the_krylov_space_up_to_one_rounding_of_each(basis: str) -> None:
    """B Q = Q H + E with |E e_k| <= c u h_{k+1,k}, and |Q^T Q - 1| <= c u, u that of the stored vectors."""
    kernels, box, u = HostKernels(1).sparse, Box(24, 16, 16), PRECISIONS[basis].u
    form = mixed_form("bf16", basis=basis)
    made = make_stencil(kernels, Solo(), box.levels(LEVELS), [form], "greedy", weights(), Spans())
    system = system_of(kernels, Solo(), made, made.hierarchies[0], 12)
    system.residual()
    Q, _ = system.basis()
    scale = 2.0**15 if basis == "fp16" else 1.0
    vectors = [Q.last.astype(float)]
    for k in range(1, 12):
        product = system.step(Q.last).astype(float)
        h, below = Q.orthogonalize(Q.next)
        vectors.append(Q.last.astype(float))
        assert (wide(Q._Q[k]) / scale).tolist() == vectors[-1].tolist(), "the last vector is the stored one"
        left = product - np.array(h) @ vectors[:-1] - below * vectors[-1]
        # a rounding of q_{k+1}, and 2 k + 4 roundings of a vector of the norm of B q in fp32
        assert np.linalg.norm(left) <= u * below + (2 * k + 4) * 2.0**-24 * np.linalg.norm(product)
    products = np.array(vectors) @ np.array(vectors).T
    # each vector is orthogonal to the others before it is rounded; its rounding has the norm u at most
    assert np.abs(products - np.eye(12)).max() <= 3 * u


def test_a_vector_of_any_length_is_stored_without_loss_in_fp16() -> None:
    """Norm 1 over 2^40 rows leaves numbers of about 2^-20, which are subnormal in fp16 without a scale."""
    n = 4096
    Q = SparseBasis(HostKernels(1).sparse, Solo(), n, 2, "fp32", Spans(), stored="fp16")
    numbers = np.random.default_rng(1).uniform(1, 2, n) * 2.0 ** np.random.default_rng(2).integers(-29, -18, n)
    w = numbers.astype(np.float32)
    w[0] = 1.0
    Q.append(w, 1.0)
    assert (np.abs(Q.last - w) <= PRECISIONS["fp16"].u * w).all()
    assert (Q.last.astype(np.float16)[1:] != Q.last[1:]).any(), "fp16 alone loses some of these numbers"


@pytest.mark.parametrize("ranks", [1, 4])
def test_sweeps_book_the_flops_of_the_entries_that_they_read(ranks: int) -> None:
    """Sweeps from zero count 2 flops per entry of L and D, without halo entries; sweeps from x count 2·nnz."""
    result = measured(ranks, iterations=5, threshold=1e-3, warmup="none")
    p = result.problem
    problem = oracle((p["gnx"], p["gny"], p["gnz"]), (p["npx"], p["npy"], p["npz"]))
    last = problem.levels[-1]
    cycle_flops = sum(2 * level.lower + 2 * level.A.nnz for level in problem.levels) - 2 * last.A.nnz
    # Padding zeros count equally to L and U, which is nearly correct.
    assert result.phases["gs"]["flops"] == pytest.approx(6 * cycle_flops, rel=0.01)


@pytest.mark.parametrize("ranks", [1, 2])
def test_whole_runs_with_reference_kernels_agree_with_the_host(ranks: int) -> None:
    asked: dict[str, Any] = {"iterations": 2, "threshold": 1e-3, "warmup": "none", "precision": "fp32"}
    slow, fast = (measured(ranks, kernels=name, **asked) for name in ("reference", "host"))
    check_result(slow)
    # Sums of 27 terms in fp64 and fp32: the first residuals agree to 27 times fp32's roundoff per step.
    assert slow.validation["history"]["double"] == pytest.approx(fast.validation["history"]["double"], abs=27 * 20 * U)
    assert slow.validation["history"]["mixed"] == pytest.approx(fast.validation["history"]["mixed"], abs=27 * 2.0**-24)
    assert slow.validation["double_iterations"] == fast.validation["double_iterations"]


def test_counts_and_residuals_are_those_of_the_matrices() -> None:
    result = measured(2, nx=8, nz=16, npx=2, npz=1, npy=1, nonsymmetric=True)
    problem = oracle((16, 8, 16), (2, 1, 1), "greedy", True)
    wanted = solve_oracle(problem, problem.levels[0].A, TOLERANCE)
    assert result.validation["double_iterations"] == wanted.count
    agree(result.validation["history"]["double"], wanted.history)


def test_an_iteration_is_one_step_and_300_are_300() -> None:
    for iterations, restart in ((1, 30), (300, 40)):
        result = measured(iterations=iterations, restart=restart)
        check_result(result)
        assert result.phases["ortho"]["calls"] == iterations


def test_every_timed_solve_begins_with_zero_and_a_cycle_before_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[Any] = []

    def watched(*args: Any, **options: Any) -> Any:
        done = gmres_ir(*args, **options)
        if options["tolerance"] == 0.0 and options["restart"] == 6:  # not the first use of everything
            timed.append(done)
        return done

    monkeypatch.setattr(harness, "time", Clock())
    monkeypatch.setattr(bench, "gmres_ir", watched)
    result = measured(rt=0.5, restart=6, iterations=8)
    assert (result.result["solves"], result.result["double_solves"]) == (2, 2)
    between = result.result["between"].values()
    assert [one["solves"] for one in between] == [1, 1]
    first, solve = [6], [6, 2]
    assert [done.cycles for done in timed] == [first, solve, solve] * 2 + [first, solve] * 2
    assert {done.initial for done in timed} == {result.validation["double_initial"]}


# --- duration of the measurement --------------------------------------------------------------------------------


class Clock:
    """A clock that advances by a quarter of a second per read, which fp64 adds without rounding."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 0.25
        return self.now


@pytest.mark.parametrize("rt", [0.0, 0.25, 0.3, 1.5])
def test_solves_are_repeated_until_the_time_limit(monkeypatch: pytest.MonkeyPatch, rt: float) -> None:
    monkeypatch.setattr(harness, "time", Clock())
    result = measured(rt=rt, storage="auto", iterations=3)
    figures = result.result
    assert figures["time_s"] >= rt
    assert figures["time_s"] - result.samples_s[-1] < rt or len(result.samples_s) == 1
    assert result.samples_s == [0.25] * max(1, math.ceil(rt / 0.25))
    assert figures["double_solves"] == figures["solves"]
    (beside,) = figures["beside"]
    assert beside["solves"] == max(1, math.ceil(bench.ADDITIONAL_SHARE * rt / 0.25))
    assert result.problem["rt_s"] == rt


def test_repeat_is_the_least_number_of_solves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "time", Clock())
    result = measured(rt=0.0, storage="auto", iterations=3, repeat=3)
    assert result.samples_s == [0.25] * 3
    assert result.result["double_solves"] == 3
    assert [one["solves"] for one in result.result["beside"]] == [1]


def test_ranks_measure_the_time_of_the_slowest(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks run the same number of solves."""
    clock = Clock()
    monkeypatch.setattr(harness, "time", SimpleNamespace(perf_counter=clock.perf_counter))
    result = measured(3, rt=3.0, iterations=2)
    check_result(result)
    assert result.result["time_s"] >= 3.0 > result.result["time_s"] - result.samples_s[-1]


# --- validation -------------------------------------------------------------------------------------------------


def test_the_standard_validation_is_on_a_few_ranks() -> None:
    result = measured(4, iterations=2, validation_ranks=2)
    check_result(result)
    assert (result.problem["ranks"], result.validation["ranks"], result.validation["type"]) == (4, 2, "standard")
    problem = oracle((8, 8, 16), (1, 1, 2))
    wanted = solve_oracle(problem, problem.levels[0].A, TOLERANCE)
    assert result.validation["double_iterations"] == wanted.count
    agree(result.validation["history"]["double"], wanted.history)


def test_an_explicit_grid_allows_the_validation_on_fewer_ranks() -> None:
    result = measured(4, iterations=2, npx=1, npy=1, npz=4, validation_ranks=2)
    check_result(result)
    assert result.validation["ranks"] == 2


def test_the_validation_on_fewer_ranks_has_boxes_of_the_runs_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if memory determines the size."""
    boxes: list[Triple] = []
    make = SparseBench.make

    def watched(self: SparseBench, box: Box, *args: Any) -> Any:
        boxes.append(box.shape)
        return make(self, box, *args)

    monkeypatch.setattr(SparseBench, "make", watched)
    result = measured(2, nx=None, quick=True, mem="20MB", iterations=2, threshold=1e-5, validation_ranks=1)
    assert 8 < result.problem["nx"] < 32
    assert set(boxes) == {(8, 8, 8), (result.problem["nx"],) * 3}


def test_the_fullscale_validation_is_on_all_ranks() -> None:
    result = measured(2, iterations=2, validation="fullscale", validation_ranks=1)
    check_result(result)
    assert (result.validation["ranks"], result.validation["type"]) == (2, "fullscale")


def test_both_validations_are_those_of_separate_runs() -> None:
    """The standard one is of boxes on one rank, the other of all three ranks; the first determines the penalty."""
    settings: dict[str, Any] = {"iterations": 2, "validation_ranks": 1}
    both = measured(3, validation="both", **settings)
    check_result(both)
    standard, fullscale = (measured(3, validation=kind, **settings).validation for kind in ("standard", "fullscale"))
    assert {**both.validation, "fullscale": None} == standard
    assert {**both.validation["fullscale"], "fullscale": None} == fullscale
    assert (standard["ranks"], fullscale["ranks"]) == (1, 3)
    assert fullscale["ratio"] == fullscale["double_iterations"] / fullscale["mixed_iterations"]
    assert {"validation"} <= {each["rule"] for each in both.rules["violations"]}, "the reference code uses more ranks"
    shown = [line for line in verdict(both).splitlines() if "validation on" in line]
    assert [line.split("(")[-1] for line in shown] == [
        "standard validation on 1 rank)",
        "fullscale validation on 3 ranks)",
    ]


@pytest.mark.parametrize(("kind", "few", "solves"), [("both", 1, 4), ("both", 3, 2), ("standard", 1, 2)])
def test_a_second_validation_is_announced_with_its_own_parts(kind: str, few: int, solves: int) -> None:
    """The labels of the parts and the dry run count the solves of both validations."""
    seen = SimpleNamespace(labels=[], start=lambda label, flops: seen.labels.append(label))
    seen.step, seen.finish = (lambda step: None), (lambda label, elapsed_s: None)
    small: dict[str, Any] = {"nx": 8, "mode": "explore", "rt": 0.0, "iterations": 2, "storage": "sell", "threads": 1}
    config = HpgMxpConfig(**small, validation=kind, validation_ranks=few)
    (result,) = run_ranks(3, lambda comm: bench.run(config, comm, observers=[seen]))[0]
    assert result.status == "valid"
    parts = list(dict.fromkeys(label.removesuffix(", not counted yet") for label in seen.labels))
    assert [label.split(": ")[0] for label in parts] == [f"phase {k} of {solves + 2}" for k in range(1, solves + 3)]
    assert f"{solves} solves to 1e-09 and" in bench.dry_run(config, DryRunCommunicator(3)).text


def test_the_table_of_steps_has_rows_for_each_part_of_a_run() -> None:
    """Also for the uncounted restart cycle, which takes less time than the interval between two rows."""
    stream = io.StringIO()
    small: dict[str, Any] = {"nx": 8, "mode": "explore", "rt": 0.0, "iterations": 2, "storage": "sell", "threads": 1}
    table = StepTable(stream, {}, interval_s=60.0)
    run_ranks(1, lambda comm: bench.run(HpgMxpConfig(**small), comm, observers=[table]))
    lines = stream.getvalue().splitlines()
    parts = [k for k, line in enumerate(lines) if line.startswith("phase ")]
    assert sum("not counted yet" in lines[k] for k in parts) == 2
    for k in parts:
        assert lines[k + 1].split()[:2] == ["step", "done"], lines[k]
        assert "100 %" in lines[k + 2], lines[k]


def test_validation_ranks_of_a_node_are_all_ranks_here() -> None:
    result = measured(3, iterations=2, threshold=1e-3, validation_ranks="node")
    assert (result.validation["ranks"], result.validation["type"]) == (3, "standard")


def test_a_failed_fullscale_validation_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 12 iterations at most, one rank reaches 1e-3 and three ranks do not, at 1e-5 neither."""
    monkeypatch.setattr(bench, "MAX_STEPS", 5)
    monkeypatch.setattr(bench, "MAX_FULLSCALE_STEPS", 1)
    result = measured(2, iterations=2, validation="both", validation_ranks=1, threshold=3e-3)
    assert result.validation["double_residual"] <= 3e-3
    assert result.validation["fullscale"]["passed"] is False
    assert result.status == "invalid"


# --- one solver alone -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ranks", "solver"), [(1, "mixed"), (2, "mixed"), (3, "double")])
def test_a_standalone_solver_has_its_raw_rate_and_no_rating(ranks: int, solver: str) -> None:
    result = measured(ranks, run_type=solver, storage="auto", repeat=2)
    VALIDATOR.validate(json.loads(json.dumps(document([result]), allow_nan=False)))
    figures, check = result.result, result.validation
    p = result.problem
    levels = stencil_levels(Box(p["nx"], p["ny"], p["nz"], p["npx"], p["npy"], p["npz"]))
    ran, other = ("raw", "double") if solver == "mixed" else ("double", "raw")
    for counting, suffix in (("reference", ""), ("ornl", "_ornl")):
        flops = 2 * hpg_mxp_flops(levels, [7], counting)["total"]
        assert figures[f"{ran}_rate_flops{suffix}"] == pytest.approx(flops / sum(result.samples_s), rel=4 * U)
        assert figures[f"{other}_rate_flops{suffix}"] is None
    unrated = ("rate_flops", "rate_flops_reference", "rate_flops_ornl", "speedup", "speedup_by_motif")
    assert {name: figures[name] for name in unrated} == dict.fromkeys(unrated)
    assert (check["type"], check["penalty"], check["double_iterations"], check["mixed_iterations"]) == (
        *("none", None, None),
        None,
    )
    assert "outcome" not in check, "there is no tolerance to reach"
    assert check["history"][solver][0] == 1.0
    assert 0.0 < check["residual"] == check["history"][solver][-1] < 1.0
    memory = result.problem["memory_bytes"]
    assert {name for name in ("mixed", "double") if memory[name] is not None} == {solver}
    assert (result.status, result.mark) == ("valid", "UNRATED")
    assert "run type" in {each["rule"] for each in result.rules["violations"]}
    assert "standalone" in {warning.code for warning in result.warnings}
    first, second, *_ = verdict(result).splitlines()
    assert re.match(r"UNRATED  hpg-mxp  raw \S+ GFLOP/s .* NOT ADMISSIBLE", first)
    assert f"standalone {solver} solver: no validation, penalty, speed-up or rating" in second
    report = hpgmp_report(result, datetime(2026, 11, 29))
    assert f"Final Summary::HPGMP result has no rating=standalone {solver} solver" in report
    assert "VALID" not in report
    assert "Convergence tolerance" not in report
    assert "Results are valid" not in report


def test_a_standalone_solve_that_is_not_finite_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoil(comm: Communicator, made: Any) -> None:
        made.b[3] = math.nan

    with_values(monkeypatch, spoil)
    result = measured(2, run_type="mixed")
    assert (result.status, result.mark) == ("invalid", "FAILED")
    assert result.validation["outcome"] == {"mixed": str(Outcome.NOT_FINITE)}
    VALIDATOR.validate(json.loads(json.dumps(document([result]), allow_nan=False)))


# --- optimizations that are off ---------------------------------------------------------------------------------

OFF = {"overlap": "off", "zero_guess": "off", "fused_restriction": "off"}


@pytest.mark.parametrize(
    ("ranks", "values", "ran"),
    [
        (1, {"zero_guess": "off"}, (None, False, True)),
        (2, {"overlap": "off"}, (False, True, True)),
        (2, {"fused_restriction": "off", "nonsymmetric": True}, (True, True, False)),
        (3, {**OFF, "storage": "rows", "smoother": "reference", "precision": "fp32"}, (False, False, False)),
        (3, {**OFF, "mg_precision": ("fp32", "fp64", "fp32", "fp32")}, (False, False, False)),
    ],
)
def test_without_an_optimization_a_run_takes_the_same_steps(
    ranks: int, values: dict[str, Any], ran: tuple[Any, ...]
) -> None:
    without = measured(ranks, **values)
    check_result(without)
    assert without.problem["optimizations"] == dict(zip(OFF, ran))
    plain = measured(ranks, **{name: value for name, value in values.items() if name not in OFF})
    agree(without.validation["history"]["double"], plain.validation["history"]["double"])
    assert without.validation["double_iterations"] == plain.validation["double_iterations"]
    off = [text for name, text in sparse_text.OFF.items() if without.problem["optimizations"][name] is False]
    assert all(text in verdict(without) for text in off)


def test_fullscale_asks_of_the_mixed_solver_what_double_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "MAX_STEPS", 5)
    result = measured(iterations=2, validation="fullscale")
    check = result.validation
    assert result.passed
    assert check["double_iterations"] == 5
    assert check["threshold"] == check["double_residual"] > 1e-9
    assert check["mixed_residual"] <= check["threshold"]
    assert check["outcome"]["double"] == str(Outcome.UNREACHED)


def test_standard_fails_where_double_does_not_converge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "MAX_STEPS", 5)
    check_failed(measured(2, iterations=2), Outcome.UNREACHED)


def check_failed(result: Result, outcome: Outcome) -> None:
    """Check that a result is invalid, has a history, and follows the schema."""
    assert result.status == "invalid"
    assert not result.validation["passed"]
    assert result.validation["outcome"]["mixed"] == str(outcome)
    assert result.validation["history"]["mixed"]
    VALIDATOR.validate(json.loads(json.dumps(document([result]), allow_nan=False)))


def with_values(monkeypatch: pytest.MonkeyPatch, change: Callable[[Communicator, Any], None]) -> None:
    """Change a benchmark's data, except on the tiny boxes of the first use."""
    make = SparseBench.make

    def changed(self: SparseBench, box: Box, forms: Any, stencil: Any, comm: Communicator) -> Any:
        problem = make(self, box, forms, stencil, comm)
        if comm is self.comm:
            change(comm, problem)
        return problem

    monkeypatch.setattr(SparseBench, "make", changed)


@pytest.mark.parametrize(("ranks", "rt"), [(1, 0.05), (3, 0.0)])
def test_nan_in_the_system_is_an_invalid_result_and_no_hang(
    monkeypatch: pytest.MonkeyPatch, ranks: int, rt: float
) -> None:
    def spoil(comm: Communicator, made: Any) -> None:
        if comm.rank == comm.size - 1:
            made.b[3] = math.nan

    with_values(monkeypatch, spoil)
    check_failed(measured(ranks, rt=rt), Outcome.NOT_FINITE)


def test_the_right_hand_side_is_that_of_x_equal_to_one() -> None:
    """A·1 is exact: its entries are integers, or halves for the non-symmetric matrix."""
    for nonsymmetric in (False, True):
        box = Box(8, 8, 8)
        stencil = weights(nonsymmetric=nonsymmetric)
        made = make_stencil(HostKernels(1).sparse, Solo(), box.levels(LEVELS), [DOUBLE], "greedy", stencil, Spans())
        assert sorted(made.b) == sorted(global_matrix((8, 8, 8), nonsymmetric).sum(1).A1)


def test_a_solve_that_stalls_is_an_invalid_result_with_its_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a smooth b, ||A||·||x|| is about 53/0.7 times ||b||, so no x in fp64 has a residual of 9 u."""
    with_values(monkeypatch, lambda comm, made: made.b.fill(1.0 / 3.0))
    result = measured(2, nx=16, threshold=1e-15, iterations=2)
    check_failed(result, Outcome.UNREACHED)
    history = result.validation["history"]["mixed"]
    assert len(history) > 10
    assert history[-1] > 0.999 * history[-11] > 1e-15


def test_the_result_so_far_is_available_after_each_mixed_solve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "time", Clock())
    partial_results: list[Result] = []
    asked = HpgMxpConfig(nx=8, mode="explore", rt=0.75, iterations=7, storage="sell", threads=1)
    result = bench.run(asked, Solo(), benchmark="hpg-mxp", on_sample=lambda by_then: partial_results.append(by_then()))[
        0
    ]
    for partial in partial_results:
        VALIDATOR.validate(json.loads(json.dumps(document([partial]), allow_nan=False)))
    finished = [partial.telemetry["aborted"]["finished"] for partial in partial_results]
    assert [partial["solves"] for partial in finished] == list(range(1, result.result["solves"] + 1)) == [1, 2, 3]
    assert (partial_results[-1].status, partial_results[-1].samples_s) == ("aborted", result.samples_s)
    assert finished[-1]["rate_flops"] == result.result["rate_flops"]
    assert finished[-1]["passed"]
