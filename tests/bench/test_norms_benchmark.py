"""Test that every structure, type and layout of norms is measured and checked, and that a wrong norm is detected."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mxpeak.bench import limits
from mxpeak.bench.norms import matrix as norms_matrix
from mxpeak.bench.norms import run as bench
from mxpeak.bench.norms.check import Reference, eps, scaled_error, threshold
from mxpeak.bench.norms.config import NormsCase, NormsConfig
from mxpeak.bench.norms.result import TimedNorms, check_runs
from mxpeak.bench.norms.sizes import structure_of
from mxpeak.cli import main as cli
from mxpeak.comm.grid import make_grid
from mxpeak.comm.transports.solo import Solo
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.configs.norms import DTYPES, KINDS, STRUCTURES
from mxpeak.errors import ResourceError
from mxpeak.kernels.contract.norms import NormParts
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.kernels.host.norms.norms import HostNorms
from mxpeak.kernels.reference.kernels import ReferenceKernels
from mxpeak.layout.entries import Entries
from mxpeak.layout.grid import ProcessGrid
from mxpeak.layout.structure import structure
from mxpeak.records import document
from mxpeak.report.text import verdict
from mxpeak.spans import Spans, Step
from tests.support.norm_runs import NB, M, N, bare, measured, value
from tests.support.result_file import VALIDATOR
from tests.support.roundoff import U

LAYOUTS = ("C", "F", "tiles")
GRIDS = [(1, 1), (2, 2), (3, 1), (1, 4)]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Use one timed run per case, and no settings from outside."""
    bare(monkeypatch, tmp_path)


def test_an_error_between_two_cases_is_none_of_the_one_that_has_ended(monkeypatch: pytest.MonkeyPatch):
    """The generation of the second matrix fails."""
    generate, cases = bench.generate, []

    def failing(A: Any, case: Any, *rest: Any) -> None:
        if case.n == N + 1:
            raise ResourceError("no room for the second")
        generate(A, case, *rest)

    monkeypatch.setattr(bench, "generate", failing)
    config = NormsConfig(n=(N, N + 1), nb=(NB,), threads=1)
    with pytest.raises(ResourceError, match="the second"):
        bench.run(config, Solo(), on_case=lambda case, result: cases.append((case.n, result.status)))
    assert set(cases) == {(N, "valid")}


# --- measured norms are correct ---------------------------------------------------------------------------------


def test_every_structure_type_and_layout_passes_and_its_file_is_as_promised():
    """For each type, run every structure; triangles and diagonals alternate."""
    results = []
    for turn, dtype in enumerate(DTYPES):
        results += measured(
            structure=tuple(STRUCTURES),
            dtype=(dtype,),
            layout=(LAYOUTS[(turn + turn // 3) % 3],),
            kind=("all",),
            kl=(2,),
            ku=(3,),
            uplo=(("lower", "upper")[turn % 2],),
            diag=(("nonunit", "unit")[(turn + turn // 2) % 2],),
        )
    assert len(results) == len(DTYPES) * len(STRUCTURES)
    body = document(results)
    VALIDATOR.validate(json.loads(json.dumps(body, allow_nan=False)))
    for r in results:
        assert r.passed, (r.problem, r.validation)
        assert r.validation["residual"] <= r.validation["threshold"]
        assert r.result["rate_bytes"] == r.problem["bytes"] / r.result["time_s"]
        assert r.result["fraction_of_limit"] == r.result["rate_bytes"] / r.result["limit"]["rate_bytes"]
        assert r.problem["bytes"] == r.problem["entries"] * np.dtype(dtype_of(r.problem["dtype"])).itemsize


def dtype_of(name: str) -> Any:
    import ml_dtypes

    return getattr(ml_dtypes, name, name)


def test_a_single_norm_is_that_of_the_generated_matrix():
    entries = Entries("lcg", M, seed=7, scale=-1.0, shift=0.5)
    A = np.array([[entries.value(i, j) for j in range(N)] for i in range(M)])
    wanted = {
        "max": np.abs(A).max(),
        "one": np.abs(A).sum(0).max(),
        "inf": np.abs(A).sum(1).max(),
        "fro": math.sqrt((A * A).sum()),
    }
    for kind in KINDS:
        (found,) = measured(m=(M,), kind=(kind,), seed=(7,))
        assert value(found, kind) == pytest.approx(wanted[kind], rel=2 * M * N * U)
        assert found.validation["expected"] == pytest.approx(wanted[kind], rel=2 * M * N * U)


@pytest.mark.parametrize("dtype", ["float64", "complex64", "bfloat16"])
def test_the_matrix_is_the_same_on_every_grid_and_in_every_layout(dtype: str):
    def assembled(P: int, Q: int, layout: str) -> Any:
        case = NormsCase(m=M, n=N, nb=NB, P=P, Q=Q, dtype=dtype, layout=layout)

        def body(comm: Any) -> list[Any]:
            grid, kernels = make_grid(ProcessGrid(P, Q), comm), HostKernels(1, poison=True)
            assert grid is not None
            A = norms_matrix.empty_matrix(case, grid, [kernels.norms])
            norms_matrix.generate(A, case, kernels, Spans())
            return [
                (tile.rows.to_global(a), tile.cols.to_global(b), tile.A[a, b])
                for tile in A.tiles
                for a, b in np.ndindex(tile.A.shape)
            ]

        whole = np.full((M, N), np.nan, np.complex128)
        for i, j, x in (entry for part in run_ranks(P * Q, body) for entry in part):
            assert np.isnan(whole[i, j]), "every entry lies on one rank"
            whole[i, j] = x
        return whole

    entries = [Entries("lcg", M, seed=seed, scale=-1.0, shift=0.5) for seed in (100, 100 + 2**31)]
    real, imaginary = (np.array([[e.value(i, j) for j in range(N)] for i in range(M)]) for e in entries)
    exact = (real + 1j * imaginary if dtype.startswith("c") else real).astype(dtype_of(dtype))
    for P, Q in GRIDS:
        for layout in LAYOUTS:
            np.testing.assert_array_equal(assembled(P, Q, layout), exact.astype(np.complex128))


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_a_norm_is_the_same_on_every_grid_and_in_every_layout_up_to_rounding(dtype: str):
    structures = ("general", "hermitian", "triangular", "band")
    results_of = [
        measured(
            P * Q,
            grid=((P, Q),),
            structure=structures,
            kind=("all",),
            dtype=(dtype,),
            layout=LAYOUTS if P * Q == 1 else (LAYOUTS[(k + len(dtype)) % 3],),  # on several ranks alternately
            diag=("unit",),
            kl=(2,),
        )
        for k, (P, Q) in enumerate(GRIDS)
    ]
    for results in results_of:
        assert all(r.passed for r in results)
        for k, r in enumerate(results):
            first = results_of[0][k % len(structures)]
            assert r.problem["structure"] == first.problem["structure"]
            for kind in KINDS:  # sums of up to N·N terms, each rounded
                assert value(r, kind) == pytest.approx(value(first, kind), rel=N * N * U)
            assert value(r, "max") == value(first, "max") or dtype.startswith("c")


def test_a_deterministic_norm_has_the_same_bits_on_every_grid_in_every_layout_with_any_number_of_threads():
    structures = ("general", "symmetric")
    results_of = [
        measured(
            P * Q,
            grid=((P, Q),),
            structure=structures,
            kind=("one", "inf", "fro"),
            layout=LAYOUTS if P * Q == 1 else (LAYOUTS[P % 3],),
            deterministic=True,
            threads=threads,
        )
        for (P, Q), threads in zip(GRIDS, (1, 3, 1, 2))
    ]
    for name in structures:
        for kind in ("one", "inf", "fro"):
            bits = {
                value(r, kind).hex()
                for results in results_of
                for r in results
                if (r.problem["structure"], r.problem["kind"]) == (name, kind)
            }
            assert len(bits) == 1


def test_the_reference_kernels_measure_the_same():
    fast, slow = (measured(m=(M,), kind=("all",), kernels=name)[0] for name in ("host", "reference"))
    assert slow.passed
    for kind in KINDS:
        assert value(slow, kind) == pytest.approx(value(fast, kind), rel=M * N * U)


def test_several_threads_measure_what_one_does():
    for name, layouts in {"general": ("C", "tiles"), "hermitian": ("F", "tiles")}.items():
        asked: dict[str, Any] = {"n": (420,), "nb": (64,), "structure": (name,), "kind": ("all",), "layout": layouts}
        # 1.4 MB: enough for threads
        for single, many in zip(measured(**asked), measured(**asked, threads=3), strict=True):
            assert many.passed
            for kind in KINDS:
                assert value(many, kind) == pytest.approx(value(single, kind), rel=420 * 420 * U)


def test_every_run_is_kept_and_the_best_counts():
    (found,) = measured(kind=("one",), repeat=5)
    assert len(found.samples_s) == 5
    assert found.result["time_s"] == min(found.samples_s)


def test_a_norm_is_repeated_until_it_has_been_timed_long_enough(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bench, "NORM_S", 1e-2)
    (found,) = measured(kind=("one",))
    assert sum(found.samples_s) >= 1e-2 or len(found.samples_s) == bench.MAX_RUNS


def test_without_a_warmup_no_limit_is_measured():
    (result,) = measured(kind=("one",), warmup="none")
    assert result.passed
    assert (result.result["limit"], result.result["fraction_of_limit"]) == (None, None)
    assert "limit" not in result.phases


@pytest.mark.parametrize(
    ("cache", "name", "limit"), [(2**30, "read bandwidth in cache", 2), (100, "read bandwidth", 1)]
)
def test_the_fastest_norm_of_the_same_memory_is_part_of_the_limit(
    monkeypatch: pytest.MonkeyPatch, cache: int, name: str, limit: int
):
    """In memory all norms have the same rate limit; in a cache only norms of the same matrix do."""
    slow = limits.Reading(rate=1.0, burst=2.0, took_s=1.0, ended_s=0.0)
    monkeypatch.setattr(bench.NormBench, "_bandwidth", lambda *asked: slow)
    monkeypatch.setattr("mxpeak.runtime.facts.host_facts", lambda **asked: {"l3_bytes": cache})
    results = measured(n=(N, 2 * N), kind=("max", "one"))
    rates = [one.result for one in results]
    assert {one["limit"]["name"] for one in rates} == {name}
    assert all(0.0 < one["fraction_of_limit"] <= 1.0 for one in rates)
    assert all(one["limit"]["before"] == one["limit"]["after"] == 1.0 for one in rates)
    assert all(one["limit"]["burst"] == 2.0 < one["limit"]["rate"] == one["limit"]["reached"]["rate"] for one in rates)
    groups = [rates[:2], rates[2:]] if limit == 2 else [rates]
    for group in groups:
        assert group[-1]["limit"]["rate"] == max(one["rate_bytes"] for one in group)
    assert [w.code for one in results for w in one.warnings] == ["drift"] * 4


def test_the_limit_reads_as_many_bytes_as_the_structure_has(monkeypatch: pytest.MonkeyPatch):
    """A triangle may stay in a cache that does not hold the whole matrix."""
    amounts: list[float] = []

    def noted(timed: Any, amount: float, run_s: Any, least_s: float) -> limits.Reading:
        amounts.append(amount)
        return limits.reading(timed, amount, run_s, least_s)

    monkeypatch.setattr(bench, "reading", noted)
    for layout in LAYOUTS:
        amounts.clear()
        (result,) = measured(kind=("one",), m=(200,), n=(200,), nb=(64,), structure=("triangular",), layout=(layout,))
        assert result.passed
        assert result.problem["bytes"] == 200 * 201 // 2 * 8
        assert amounts == pytest.approx([result.problem["bytes"]] * 2, rel=0.05), layout


def test_ranks_without_a_block_cause_a_warning():
    (found,) = measured(2, nb=(64,), kind=("one",))
    assert found.passed
    (warning,) = (w for w in found.warnings if w.code == "idle")
    assert "is 1x1 blocks for 1x2 ranks: some ranks have none" in warning.text
    assert warning.hint == f"use --nb {N // 2} or less"
    assert not [w for w in measured(2, nb=(N // 2,), kind=("one",))[0].warnings if w.code == "idle"]


def test_phases_that_cases_share_are_counted_once():
    results = measured(kind=("max", "one"), structure=("general", "symmetric"))
    assert [sorted(r.phases) for r in results] == [
        ["check", "generate", "limit", "norm"],
        ["limit", "norm"],
        ["check", "limit", "norm"],
        ["limit", "norm"],
    ]


def test_one_matrix_lives_at_a_time(monkeypatch: pytest.MonkeyPatch):
    import gc
    import weakref

    gc.collect()
    gc.freeze()  # exclude existing objects from the collections below
    alive: list[Any] = []
    original = HostNorms.empty

    def empty(self: HostNorms, *shape: Any) -> Any:
        if shape[:2] != (N, N):
            return original(self, *shape)
        gc.collect()
        assert all(known() is None for known in alive), "the matrix before is still there"
        A = original(self, *shape)
        alive.append(weakref.ref(A))
        return A

    monkeypatch.setattr(HostNorms, "empty", empty)
    measured(kind=("one",), dtype=("float64", "float32"), layout=("C", "F"))
    assert len(alive) == 4


# --- wrong norms are detected -----------------------------------------------------------------------------------


def spoiled(parts: NormParts, what: str) -> NormParts:
    """Return the parts of a pass with a small error in one of them."""
    factor = 1.0 + 1e-12  # the check allows 10·sqrt(N)·eps = 1e-14 for sums, and one part in 10^15 for the maximum
    return NormParts(
        parts.top * factor if what == "max" else parts.top,
        parts.squares * factor if what == "fro" else parts.squares,
        parts.by_row * factor if what == "inf" else parts.by_row,
        parts.by_column * factor if what == "one" else parts.by_column,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_kernel_that_computes_wrongly_fails_the_check_and_exits_with_three(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
):
    original = HostNorms.norm_pass
    monkeypatch.setattr(HostNorms, "norm_pass", lambda self, *asked: spoiled(original(self, *asked), kind))
    for asked in (kind, "all"):
        check_that_it_fails(asked, kind, capsys)


def check_that_it_fails(selection: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that a run in which a kind of norm is wrong fails."""
    assert (
        cli.main(["run", "norms", "-N", "100", "--kind", selection, "--json", f"{selection}.json", "--threads", "1"])
        == 3
    )
    result = json.loads(Path(f"{selection}.json").read_text())
    VALIDATOR.validate(result)
    assert result["status"] == "invalid"
    assert not result["validation"]["passed"]
    assert result["validation"]["residual"] > result["validation"]["threshold"]
    out = capsys.readouterr().out
    assert out.startswith("FAILED  norms")
    assert ("off by" in out) == (kind == "max")
    assert ("is not within 10.0 eps" in out) == (kind != "max")


def test_a_kernel_that_gives_no_number_fails_the_check(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(
        HostNorms,
        "norm_pass",
        lambda self, tiles, band, wants, rows, columns: NormParts(
            math.nan, np.full(3, math.nan), np.full(rows, math.nan), np.full(columns, math.nan)
        ),
    )
    (result,) = measured(kind=("all",))
    assert result.status == "invalid"
    body = document([result])
    VALIDATOR.validate(json.loads(json.dumps(body, allow_nan=False)))
    assert body["validation"]["residual"] is None
    assert {w["code"] for w in body["warnings"]} >= {"not-finite"}
    assert verdict(result).startswith("FAILED")


def test_one_wrong_run_of_many_fails_the_check():
    case = NormsCase(m=4, n=4, nb=4, P=1, Q=1, kind="one")
    S, reference = structure_of(case), Reference(dict.fromkeys(KINDS, Decimal(2)), 16)
    good, bad = {"one": 2.0}, {"one": 2.0000001}
    assert check_runs(case, S, TimedNorms([1.0, 1.0], [good, good], 0.0, 0.0), reference).passed
    assert not check_runs(case, S, TimedNorms([1.0, 1.0, 1.0], [good, bad, good], 0.0, 0.0), reference).passed


def test_a_pass_that_read_other_entries_than_the_structure_has_fails_the_check():
    case = NormsCase(m=4, n=4, nb=4, P=1, Q=1, kind="one")
    runs = TimedNorms([1.0], [{"one": 2.0}], 0.0, 0.0)
    assert not check_runs(case, structure_of(case), runs, Reference({"one": Decimal(2)}, 15)).passed


def test_errors_are_scaled_as_slate_scales_them():
    case = NormsCase(m=4, n=9, nb=4, P=1, Q=1)
    one_off = 1.0 + 2.0**-52
    errors = {kind: scaled_error(case, kind, one_off, Decimal(1)) for kind in KINDS}
    assert errors == {"max": 1.0, "one": 1 / 2, "inf": 1 / 3, "fro": 1 / 6}
    assert scaled_error(case, "one", math.inf, Decimal(1)) == math.inf
    assert scaled_error(case, "one", 0.0, Decimal(0)) == 0.0


def test_the_largest_of_real_entries_must_be_exact_and_16_bit_types_have_the_bound_of_fp32():
    for dtype, epsilon, of_max in (
        ("float64", 2.0**-52, 0.0),
        ("complex128", 2.0**-52, 10.0),
        ("float32", 2.0**-23, 0.0),
        ("complex64", 2.0**-23, 10.0),
        ("float16", 2.0**-23, 0.0),
        ("bfloat16", 2.0**-23, 0.0),
    ):
        case = NormsCase(m=4, n=4, nb=4, P=1, Q=1, dtype=dtype)
        assert (eps(case), threshold(case, "max"), threshold(case, "fro")) == (epsilon, of_max, 10.0), dtype


# --- the doubled precision of the check ---------------------------------------------------------------------------


def test_the_sums_that_norms_are_checked_against_are_right_to_thirty_digits(rng: np.random.Generator):
    host, reference = HostKernels(3).norms, ReferenceKernels().norms
    for dtype, order in product(DTYPES, "CF"):
        case = NormsCase(m=37, n=29, nb=8, P=1, Q=1, dtype=dtype, layout=order)
        grid = make_grid(ProcessGrid(1, 1), Solo())
        assert grid is not None
        A = norms_matrix.empty_matrix(case, grid, [host])
        real, imaginary = rng.standard_normal((2, 37, 29))
        host.set_parts(A.tiles[0].A, real, imaginary if case.complex else None)
        for name in ("general", "band", "triangular"):
            band = structure(name, 29, 29, kl=3 if name == "band" else None, ku=2 if name == "band" else None).band
            fast, slow = (kernels.extended_pass(A.tiles, band, 37, 29) for kernels in (host, reference))
            assert fast.entries == slow.entries == band.entries(37, 29)
            assert fast.top == slow.top
            for x, y in ((fast.squares, slow.squares), (fast.by_row, slow.by_row), (fast.by_column, slow.by_column)):
                off = np.abs((x[0] - y[0]) + (x[1] - y[1]))
                assert np.all(off <= 100 * U * U * y[0])  # sums of 37·29 terms, each with an error of some u²


def test_strips_are_all_of_a_matrix_once():
    for layout, count in product(LAYOUTS, (1, 3, 50)):
        case = NormsCase(m=M, n=N, nb=2, P=1, Q=1, layout=layout)
        grid, kernels = make_grid(ProcessGrid(1, 1), Solo()), HostKernels(1)
        assert grid is not None
        A = norms_matrix.empty_matrix(case, grid, [kernels.norms])
        parts = norms_matrix.strips(A, count)
        seen = sorted(
            (tile.rows.to_global(a), tile.cols.to_global(b), tile.row0 + a, tile.col0 + b)
            for part in parts
            for tile in part
            for a, b in np.ndindex(tile.A.shape)
        )
        assert seen == [(i, j, i, j) for i in range(M) for j in range(N)]
        assert len(parts) <= count


def test_generating_and_checking_are_watched_and_the_norm_is_not():
    class Watcher:
        def __init__(self) -> None:
            self.labels: list[str] = []
            self.shares: list[float] = []

        def start(self, label: str, total_flops: float) -> None:
            self.labels.append(label)

        def step(self, step: Step) -> None:
            self.shares.append(step.done_flops / step.total_flops)

        def finish(self, label: str, elapsed_s: float) -> None:
            assert self.shares[-1] == pytest.approx(1.0)

    watcher = Watcher()
    bench.run(NormsConfig(n=(N,), nb=(NB,), kind=("one", "all"), threads=1), Solo(), observers=[watcher])
    assert watcher.labels == [f"generating {N}x{N} float64", f"checking general {N}x{N}"]
