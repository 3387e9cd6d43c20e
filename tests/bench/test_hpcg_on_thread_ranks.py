"""Test the results, the checks and the rules of HPCG on virtual ranks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from importlib.resources import files
from math import nan
from typing import Any

import jsonschema
import numpy as np
import pytest

from mxpeak.bench.hpcg import run as hpcg
from mxpeak.bench.hpcg.check import (
    SetResiduals,
    Spectral,
    Symmetry,
    _random,
    special_rows,
    spectral_test,
    symmetry_test,
    with_large_diagonal,
)
from mxpeak.bench.hpcg.config import HpcgConfig
from mxpeak.bench.hpcg.rules import foreseen, form, storages
from mxpeak.comm.transports.solo import Solo
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.distributed.stencil import StencilProblem, make_stencil, weights
from mxpeak.distributed.system import CgSystem
from mxpeak.errors import Outcome, StoppedError, UsageError
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.layout.stencil import Box
from mxpeak.perf.sparse_counts import HPCG_MOTIFS, hpcg_flops, stencil_levels
from mxpeak.records import Result, document
from mxpeak.report.hpcg_text import hpcg_report
from mxpeak.report.text import verdict
from mxpeak.solvers.cg import CgSolve, conjugate_gradients
from mxpeak.solvers.multigrid import cycle
from mxpeak.spans import Spans

Triple = tuple[int, int, int]
SCHEMA = json.loads((files("mxpeak") / "schema" / "result-1.json").read_text(encoding="utf-8"))

#: Results of HPCG 3.1 for boxes of 16³: the grid, the residual after 50 iterations of the reference, and the steps of
#: its spectral test.
PUBLISHED: list[tuple[Triple, float, int, int]] = [((2, 1, 1), 7.53688e-32, 11, 2), ((2, 2, 2), 1.75736e-19, 11, 2)]


class OnRank:
    """The problem on this rank, with all arguments of the checks."""

    def __init__(
        self,
        comm: Any,
        shape: Triple,
        grid: Triple,
        *,
        order: str = "greedy",
        storage: str = "sell",
        threads: int = 1,
        symmetric: bool = True,
        nonsymmetric: bool = False,
    ):
        self.comm, self.kernels, self.order = comm, HostKernels(threads).sparse, order
        storage = "rows" if order in ("natural", "surface_last") else storage
        self.box = Box.of(comm.rank, shape, grid)
        rounded = replace(form(storage), symmetric=symmetric)
        stencil = weights(nonsymmetric=nonsymmetric)
        self.problem: StencilProblem = make_stencil(
            self.kernels, comm, self.box.levels(4), [rounded], order, stencil, Spans()
        )
        self.top = self.problem.hierarchies[0].top
        self.cycle = partial(cycle, self.top)

    def system(self, preconditioned: bool = True) -> CgSystem:
        precondition = self.cycle if preconditioned else None
        return CgSystem(self.kernels, self.comm, self.top.A, self.problem.b, precondition, Spans())

    def symmetry(self) -> Symmetry:
        return symmetry_test(self.kernels, self.comm, self.top.A, self.cycle)

    def spectral(self) -> Spectral:
        return spectral_test(self.kernels, self.comm, self.top, self.box, self.order, Spans())


def on_ranks(body: Callable[[OnRank], Any], shape: Triple, grid: Triple, **how: Any) -> Any:
    """Return the result of the ranks, which must be the same on all of them."""
    found = run_ranks(grid[0] * grid[1] * grid[2], lambda comm: body(OnRank(comm, shape, grid, **how)))
    assert all(one == found[0] for one in found)
    return found[0]


def solved(max_steps: int = 500, tolerance: float = 0.0, preconditioned: bool = True) -> Callable[[OnRank], Any]:
    def body(rank: OnRank) -> tuple[CgSolve, float]:
        system = rank.system(preconditioned)
        return conjugate_gradients(system, max_steps=max_steps, tolerance=tolerance), system.max_error(1.0)

    return body


def cube(n: int) -> Triple:
    return n, n, n


# --- results of HPCG itself -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("grid", "residual", "unpreconditioned", "preconditioned"), PUBLISHED)
def test_the_natural_order_is_the_reference(
    grid: Triple, residual: float, unpreconditioned: int, preconditioned: int
) -> None:
    def body(rank: OnRank) -> tuple[float, Spectral]:
        return solved(max_steps=50)(rank)[0].residual, rank.spectral()

    actual, spectral = on_ranks(body, cube(16), grid, order="natural")
    # The last of the 50 steps are below the rounding of the first: from there on the order of sums is seen, in the
    # second digit.  At 104³ on one rank, where the residual is 4.99963e-08, all six digits are HPCG's.
    assert actual == pytest.approx(residual, rel=0.05)
    assert spectral == Spectral(unpreconditioned, preconditioned)


@pytest.mark.parametrize("order", ["natural", "surface_last", "greedy", "jpl"])
@pytest.mark.parametrize(("grid", "preconditioned"), [((1, 1, 1), 1), ((1, 1, 2), 2), ((1, 2, 2), 2)])
def test_a_large_diagonal_takes_few_steps(grid: Triple, preconditioned: int, order: str) -> None:
    spectral = on_ranks(OnRank.spectral, cube(8), grid, order=order)
    assert spectral.passed
    assert spectral.preconditioned <= preconditioned


@pytest.mark.parametrize("storage", ["ell", "sell", "packed"])
def test_the_large_diagonal_is_that_of_the_finest_matrix_alone(storage: str) -> None:
    def body(rank: OnRank) -> None:
        k, A = rank.kernels, rank.top.A
        level, b = with_large_diagonal(k, rank.top, rank.box, rank.order)
        assert level.coarser is rank.top.coarser
        new_to_old = k.order(k.stencil_rows(rank.box, weights()), rank.order).new_to_old
        factors = np.full(rank.box.rows, 1e6)
        for row, number in special_rows(rank.box):
            factors[row] = (number + 2) * 1e6
        x, before, after = A.halo_vector(), np.empty(A.n), np.empty(A.n)
        A.own(x)[:] = np.arange(A.n) % 7 - 3.0
        A.multiply(x, before)
        level.A.multiply(x, after)
        added = 26.0 * (factors[new_to_old] - 1.0) * A.own(x)
        assert np.allclose(after - before, added, rtol=1e-12, atol=1e-8)  # 1e-8: 27 roundings of terms below 3e8
        assert np.array_equal(b, rank.problem.b * factors[new_to_old])

    run_ranks(2, lambda comm: body(OnRank(comm, (8, 16, 8), (1, 1, 2), storage=storage)))


@pytest.mark.parametrize(
    ("shape", "grid"), [(cube(16), (1, 1, 1)), (cube(8), (1, 1, 1)), (cube(8), (2, 2, 1)), ((4, 8, 8), (1, 2, 1))]
)
def test_the_first_nine_rows_of_the_matrix_are_found_wherever_they_are(shape: Triple, grid: Triple) -> None:
    size = grid[0] * grid[1] * grid[2]
    numbers = []
    for rank in range(size):
        box = Box.of(rank, shape, grid)
        for row, number in special_rows(box):
            local = row % box.nx, row // box.nx % box.ny, row // (box.nx * box.ny)
            x, y, z = (at + first for at, first in zip(local, box.origin))
            assert (z * box.gny + y) * box.gnx + x == number
            numbers.append(number)
    assert sorted(numbers) == list(range(9))


# --- symmetry ---------------------------------------------------------------------------------------------------


def test_its_vectors_are_random_and_each_their_own() -> None:
    x, y = (_random(HostKernels(1).xp, 1000, first=number << 40) for number in (3, 4))
    assert x.min() >= 1.0
    assert x.max() < 2.0
    assert abs(x.mean() - 1.5) < 0.05
    assert abs(np.corrcoef(x, y)[0, 1]) < 0.1
    assert abs(np.corrcoef(x[1:], x[:-1])[0, 1]) < 0.1


@pytest.mark.parametrize("order", ["natural", "surface_last", "greedy", "jpl"])
@pytest.mark.parametrize("grid", [(1, 1, 1), (1, 1, 2), (1, 2, 2)])
def test_products_and_multigrid_are_symmetric(grid: Triple, order: str) -> None:
    symmetry = on_ranks(OnRank.symmetry, cube(8), grid, order=order)
    assert symmetry.passed
    assert max(symmetry.spmv, symmetry.mg) < 1e-3  # only rounding, far below the limit


def test_multigrid_with_forward_sweeps_only_is_found_not_to_be_symmetric() -> None:
    symmetry = on_ranks(OnRank.symmetry, cube(16), (1, 1, 2), symmetric=False)
    assert symmetry.spmv <= 1.0 < symmetry.mg
    assert not symmetry.passed


def test_a_matrix_that_is_not_symmetric_is_found() -> None:
    symmetry = on_ranks(OnRank.symmetry, cube(8), (1, 1, 2), nonsymmetric=True)
    assert symmetry.spmv > 1.0
    assert not symmetry.passed


def test_nan_passes_no_test() -> None:
    assert not Symmetry(nan, 0.0).passed
    assert not Symmetry(0.0, nan).passed
    assert not SetResiduals([1e-8, nan]).passed


def test_norms_pass_where_their_variance_is_small() -> None:
    same, other = SetResiduals([3e-4] * 5), SetResiduals([0.0, 0.004])
    assert same.passed
    assert same.mean == pytest.approx(3e-4, rel=1e-15)  # two roundings
    assert not other.passed
    assert other.variance == pytest.approx(4e-6, rel=1e-15)


# --- conjugate gradients ----------------------------------------------------------------------------------------


def test_without_a_preconditioner_every_grid_takes_the_same_iterations() -> None:
    """A preconditioner sweeps on each rank alone, so its iterations depend on the grid, as in HPCG."""
    grids = [((16, 16, 16), (1, 1, 1)), ((16, 16, 8), (1, 1, 2)), ((16, 8, 8), (1, 2, 2)), ((8, 8, 8), (2, 2, 2))]
    steps = [on_ranks(solved(tolerance=1e-9, preconditioned=False), *one)[0].steps for one in grids]
    assert max(steps) <= 1.02 * min(steps)


@pytest.mark.parametrize("storage", ["ell", "sell", "packed"])
@pytest.mark.parametrize("grid", [(1, 1, 1), (1, 2, 2)])
def test_the_solution_is_one(grid: Triple, storage: str) -> None:
    done, error = on_ranks(solved(tolerance=1e-12), cube(16), grid, storage=storage)
    assert done.outcome == Outcome.SOLVED
    assert error < 1e-9


def test_threads_do_not_change_the_iterations() -> None:
    one, three = (on_ranks(solved(max_steps=40), cube(16), (1, 1, 1), threads=threads)[0] for threads in (1, 3))
    # Each thread computes its part of a dot product, so the residuals agree until rounding errors matter.
    assert one.history[:10] == pytest.approx(three.history[:10], rel=1e-4)


def test_a_second_solve_with_the_same_system_is_the_first_one_again() -> None:
    def body(rank: OnRank) -> None:
        system = rank.system()
        first = conjugate_gradients(system, max_steps=12, tolerance=0.0)
        system.restart_from_zero()
        assert conjugate_gradients(system, max_steps=12, tolerance=0.0) == first

    run_ranks(2, lambda comm: body(OnRank(comm, cube(8), (1, 1, 2))))


# --- the benchmark ----------------------------------------------------------------------------------------------


def run(comm: Any = None, observers: Sequence[Any] = (), **config: Any) -> Result:
    settings = {"nx": 16, "rt": 0.0, "threads": 1, "warmup": "none", "storage": "sell", **config}
    return hpcg.run(HpcgConfig(**settings), comm or Solo(), observers=observers)[0]


@pytest.fixture(scope="module")
def plain() -> Result:
    return run(storage="auto", warmup="gemm")


def test_a_run_passes_and_its_result_is_what_the_schema_says(plain: Result) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(document([plain]))
    assert plain.passed
    check = plain.validation
    assert all(check[name]["passed"] for name in ("cg", "symmetry", "norms"))
    assert check["residual"] <= check["threshold"] == check["reference_residual"] * (1.0 + 1e-6)
    assert check["max_error"] < 1e-12
    assert len(check["history"]["reference"]) == 51
    assert "Final Summary::HPCG result is VALID" in hpcg_report(plain, datetime(2026, 11, 21))


def test_the_rating_credits_fifty_iterations_a_set_and_a_tenth_of_the_set_up() -> None:
    coloured = run(storage="sell")
    figures, problem = coloured.result, coloured.problem
    sets, steps, time_s = figures["sets"], figures["optimized_iterations_per_set"], figures["time_s"]
    flops = hpcg_flops(stencil_levels(Box(16, 16, 16)), sets * steps, sets)["total"]
    assert steps > 50
    assert time_s == sum(coloured.samples_s)
    assert figures["raw_rate_flops"] == flops / time_s
    credited, tenth = flops * 50 / steps, sets / 10
    assert figures["rate_flops_with_convergence"] == credited / time_s
    optimised = time_s + tenth * problem["optimize_s"]
    rounding = {"rel": 1e-14}  # a few dozen roundings
    assert figures["rate_flops_2_4"] == pytest.approx(credited / optimised, **rounding)
    assert figures["rate_flops"] == pytest.approx(credited / (optimised + tenth * problem["setup_s"]), **rounding)


def test_the_result_so_far_is_available_after_each_set() -> None:
    partial_results: list[Result] = []
    config = HpcgConfig(nx=16, rt=0.2, threads=1, warmup="none", storage="sell")
    result = hpcg.run(config, Solo(), benchmark="hpcg", on_sample=lambda by_then: partial_results.append(by_then()))[0]
    jsonschema.Draft202012Validator(SCHEMA).validate(document(partial_results, several=True))
    finished = [one.telemetry["aborted"]["finished"] for one in partial_results]
    assert [one["solves"] for one in finished] == list(range(1, result.result["sets"] + 1))
    assert (partial_results[-1].status, partial_results[-1].samples_s) == ("aborted", result.samples_s)
    assert finished[-1]["rate_flops"] == result.result["rate_flops"]
    assert finished[-1]["passed"]
    assert f"{len(finished)} solve" in verdict(partial_results[-1])
    assert "the validation passed" in verdict(partial_results[-1])


def test_the_phases_share_the_time_and_multigrid_is_its_parts(plain: Result) -> None:
    phases, parts = plain.phases, plain.result["mg_phases"]
    assert set(phases) == {*HPCG_MOTIFS, "halo"}
    assert 0.0 < sum(phases[name]["time_s"] for name in HPCG_MOTIFS) <= plain.result["time_s"]
    assert sum(part["time_s"] for part in parts.values()) <= phases["mg"]["time_s"]
    for key in ("flops", "bytes"):
        assert phases["mg"][key] == sum(part[key] for part in parts.values()) > 0.0
    steps = plain.result["total_optimized_iterations"]
    assert [phases[name]["calls"] for name in HPCG_MOTIFS] == [3 * steps, 3 * steps + 1, steps + 1, steps]
    assert plain.result["limit"]["rate_bytes"] > 0.0
    assert phases["spmv"]["share_of_limit"] > 0.0


def test_the_additional_figure_is_that_of_the_other_storage(plain: Result) -> None:
    assert (plain.problem["storage"], plain.problem["smoother"]) == ("rows", "natural")
    (beside,) = plain.result["beside"]
    assert (beside["label"], beside["storage"], beside["passed"]) == ("explore", "packed", True)
    assert plain.result["optimized_iterations_per_set"] == 50
    assert beside["optimized_iterations_per_set"] <= 52, "rounding steers what so small a box has left"
    assert "also measured, explore, packed" in verdict(plain, verbose=True)


def test_the_natural_order_takes_the_references_iterations() -> None:
    natural = run(storage="rows")
    assert natural.passed
    assert natural.validation["residual"] == natural.validation["reference_residual"]
    assert natural.result["optimized_iterations_per_set"] == 50
    assert natural.result["rate_flops_with_convergence"] == natural.result["raw_rate_flops"]


def test_every_rank_has_the_same_result_of_a_run() -> None:
    results = run_ranks(2, lambda comm: run(comm))
    assert results[0] == results[1]
    assert results[0].passed
    assert results[0].problem["rows"] == 2 * 16**3
    assert results[0].phases["halo"]["calls"] > 0


def test_a_target_that_set_up_puts_out_of_reach_stops_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the setup time counts, and all ranks must know this, not only rank 0."""

    def slow(*settings: Any) -> StencilProblem:
        return replace(make_stencil(*settings), optimize_s=1e6)

    monkeypatch.setattr("mxpeak.bench.sparse.make_stencil", slow)

    def body(comm: Any) -> None:
        with pytest.raises(StoppedError, match=r"3 solves reach .* but --target is"):
            run(comm, target=1e-4, rt=0.5, repeat=20)

    run_ranks(2, body)


def test_rt_is_obeyed() -> None:
    long = run(rt=0.3)
    assert long.result["time_s"] >= 0.3
    assert long.result["sets"] == len(long.samples_s) == len(long.validation["norms"]["samples"]) > 1
    assert long.result["total_reference_iterations"] == 50 * long.result["sets"]


def test_repeat_is_the_least_number_of_sets_and_a_run_that_fails_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(rt=0.0, repeat=3).result["sets"] == 3
    monkeypatch.setattr(hpcg, "MAX_STEPS", 20)
    assert run(rt=0.0, repeat=3).result["sets"] == 1


# --- runs that fail ---------------------------------------------------------------------------------------------


def test_a_preconditioner_that_is_not_symmetric_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hpcg, "form", lambda storage: replace(form(storage), symmetric=False))
    failed = run()
    assert failed.status == "invalid"
    assert not failed.validation["symmetry"]["passed"]
    assert "symmetry FAILED" in verdict(failed)
    jsonschema.Draft202012Validator(SCHEMA).validate(document([failed]))


def test_a_residual_that_is_not_reached_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hpcg, "MAX_STEPS", 20)
    failed = run(rt=60.0)
    assert failed.status == "invalid"
    assert failed.result["sets"] == 1  # the measurement does not continue
    assert failed.validation["outcome"] == Outcome.UNREACHED
    assert failed.validation["iterations"] == 20
    assert all(failed.validation[name]["passed"] for name in ("cg", "symmetry", "norms"))
    assert "is not within threshold" in verdict(failed)


@pytest.mark.parametrize(
    ("part", "value", "key"),
    [
        ("spectral", Spectral(13, 1), "cg"),
        ("spectral", Spectral(11, 3), "cg"),
        ("symmetry", Symmetry(1.5, 0.0), "symmetry"),
    ],
)
def test_each_test_that_fails_fails_the_run(monkeypatch: pytest.MonkeyPatch, part: str, value: Any, key: str) -> None:
    monkeypatch.setattr(hpcg, f"{part}_test", lambda *args: value)
    failed = run()
    assert failed.status == "invalid"
    assert not failed.validation[key]["passed"]


def test_sets_that_differ_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hpcg, "SetResiduals", lambda samples: SetResiduals([0.0, 0.01]))
    assert not run().validation["norms"]["passed"]


def test_a_failure_of_the_additional_figure_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    tests = iter([Symmetry(0.0, 0.0), Symmetry(0.0, 2.0)])
    monkeypatch.setattr(hpcg.Hpcg, "_use", lambda self, made: None)
    monkeypatch.setattr(hpcg, "symmetry_test", lambda *args: next(tests))
    result = run(storage="auto")
    assert result.passed
    assert not result.result["beside"][0]["passed"]
    assert [caution.code for caution in result.warnings].count("beside") == 1


# --- rules ------------------------------------------------------------------------------------------------------


def rules(config: HpcgConfig, seconds: float = 1800.0) -> set[str]:
    return {one.rule for one in foreseen(config, seconds, storages(config)[0])}


def test_the_storages_of_figures_are_official_ones_unless_others_were_asked_for() -> None:
    assert storages(HpcgConfig()) == ("rows", "packed")
    assert storages(HpcgConfig(kernels="torch")) == ("sell", "packed")
    assert storages(HpcgConfig(mode="explore")) == ("packed", "rows")
    assert storages(HpcgConfig(mode="explore", quick=True)) == ("packed",)
    assert storages(HpcgConfig(storage="packed")) == ("packed", "rows")
    assert storages(HpcgConfig(storage="ell")) == ("ell",)


def test_each_broken_rule_is_named() -> None:
    assert rules(HpcgConfig()) == set()
    assert rules(HpcgConfig(), 1799.0) == {"time"}
    assert rules(HpcgConfig(storage="packed")) == {"storage"}
    assert rules(HpcgConfig(mode="explore")) == {"mode", "storage"}


def test_a_short_small_run_is_valid_but_not_admissible(plain: Result) -> None:
    assert {one["rule"] for one in plain.rules["violations"]} == {"time", "memory"}
    assert plain.rules["mode"] == "official"
    assert not plain.rules["admissible"]


def test_a_dry_run_says_what_will_be_and_which_rules_break() -> None:
    text = hpcg.dry_run(HpcgConfig(nx=32, rt=10.0), Solo()).text
    assert "rows: local 32x32x32" in text
    assert "packed: local 32x32x32" in text
    assert "will not be ADMISSIBLE: time: the sets take 10.0 s" in text
    assert hpcg.forewarnings(HpcgConfig(rt=1800.0), Solo()) == []
    assert hpcg.forewarnings(HpcgConfig(mode="explore"), Solo()) == []


def test_boxes_that_the_rules_do_not_take_are_refused_before_anything_runs() -> None:
    with pytest.raises(UsageError, match="--mode explore"):
        run(nx=8)
    with pytest.raises(UsageError, match="use --nx 16 or --nx 24"):
        run(nx=20)


def test_progress_is_shown_of_every_phase() -> None:
    class Seen:
        def __init__(self) -> None:
            self.labels: list[str] = []
            self.last: dict[str, tuple[int, int]] = {}

        def start(self, label: str, total_flops: float) -> None:
            self.labels.append(label)

        def step(self, step: Any) -> None:
            assert step.index <= step.count
            self.last[step.label] = (step.index, step.count)

        def finish(self, label: str, elapsed_s: float) -> None:
            assert label == self.labels[-1]

    seen = Seen()
    run(observers=[seen])
    first, second, third = seen.labels
    assert first == "phase 1 of 3: reference"
    assert (second, third) == ("phase 2 of 3: sell: convergence", "phase 3 of 3: sell: sets")
    assert seen.last[first] == (50, 50)
    assert seen.last[third][0] == seen.last[third][1]
