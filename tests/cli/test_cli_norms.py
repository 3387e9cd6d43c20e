"""`mxpeak run norms`: every structure, type and layout is measured and checked, and a wrong norm is caught."""

from __future__ import annotations

import io
import json
import math
import os
import re
import subprocess
import sys
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import mxpeak as mx
from mxpeak.bench.norms import matrix as norms_matrix
from mxpeak.bench.norms import run as bench
from mxpeak.bench.norms.check import Reference, eps, scaled_error, threshold
from mxpeak.bench.norms.config import NormsCase, NormsConfig
from mxpeak.bench.norms.result import Runs, check_runs
from mxpeak.bench.norms.sizes import structure_of
from mxpeak.cli import main as cli
from mxpeak.cli.display import PlainProgress
from mxpeak.cli.request import requests
from mxpeak.comm.grid import make_grid
from mxpeak.comm.solo import Solo
from mxpeak.comm.threads import run_ranks
from mxpeak.configs.norms import DTYPES, NORM_KINDS, STRUCTURES
from mxpeak.errors import UsageError
from mxpeak.kernels.contract.norms import NormParts
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.kernels.host.norms import HostNorms
from mxpeak.kernels.reference.kernels import ReferenceKernels
from mxpeak.layout.entries import Entries
from mxpeak.layout.grid import ProcessGrid
from mxpeak.layout.structure import structure
from mxpeak.records import Result, bytes_rate_text, document
from mxpeak.report.html import html_report
from mxpeak.report.scoreboard import scoreboard, sweep
from mxpeak.report.text import verdict
from mxpeak.spans import Spans, Step
from tests.support.cli import only_folder
from tests.support.notes import told
from tests.support.result_file import VALIDATOR
from tests.support.roundoff import U

M, N, NB = 11, 14, 4
LAYOUTS = ("C", "F", "tiles")
GRIDS = [(1, 1), (2, 2), (3, 1), (1, 4)]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty folder, no settings from outside, and one timed run a case."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("MXPEAK_") and name != "MXPEAK_CACHE_DIR"]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    monkeypatch.setattr(bench, "NORM_S", 0.0)
    monkeypatch.setattr(bench, "LIMIT_S", 0.0)
    monkeypatch.setattr("mxpeak.runtime.compile.SILENT_S", 1e3)


def measured(ranks: int = 1, **values: Any) -> list[Result]:
    """The results of a configuration, on virtual ranks where there are several."""
    config = NormsConfig(**{"n": (N,), "nb": (NB,), "threads": 1, **values})
    if ranks == 1:
        return bench.run(config, Solo())
    return run_ranks(ranks, lambda comm: bench.run(config, comm))[0]  # type: ignore[no-any-return]


def value(result: Result, kind: str) -> float:
    """A norm of a result."""
    found = result.result.get("values") or {result.problem["kind"]: result.result["value"]}
    return float(found[kind])


# --- what is measured is right ----------------------------------------------------------------------------------


def test_every_structure_type_and_layout_passes_and_its_file_is_as_promised():
    results = []
    for turn, dtype in enumerate(DTYPES):
        results += measured(
            structure=tuple(STRUCTURES),
            dtype=(dtype,),
            layout=(LAYOUTS[turn % 3], LAYOUTS[(turn + 1 + turn // 3) % 3]),  # two of three
            kind=("all",),
            kl=(2,),
            ku=(3,),
            uplo=("lower", "upper"),
            diag=("nonunit", "unit"),
        )
    assert len(results) == len(DTYPES) * 2 * (1 + 4 + 4 + 2 + 2 + 1 + 2 + 1)
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
    for kind in NORM_KINDS:
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
            A = norms_matrix.empty_matrix(case, grid, kernels.norms)
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
    found = [
        measured(
            P * Q,
            grid=((P, Q),),
            structure=structures,
            kind=("all",),
            dtype=(dtype,),
            layout=LAYOUTS if P * Q == 1 else (LAYOUTS[(k + len(dtype)) % 3],),  # on several ranks by turns
            diag=("unit",),
            kl=(2,),
        )
        for k, (P, Q) in enumerate(GRIDS)
    ]
    for results in found:
        assert all(r.passed for r in results)
        for k, r in enumerate(results):
            first = found[0][k % len(structures)]
            assert r.problem["structure"] == first.problem["structure"]
            for kind in NORM_KINDS:  # sums of up to N·N terms, each rounded
                assert value(r, kind) == pytest.approx(value(first, kind), rel=N * N * U)
            assert value(r, "max") == value(first, "max") or dtype.startswith("c")


def test_a_deterministic_norm_has_the_same_bits_on_every_grid_in_every_layout_with_any_number_of_threads():
    structures = ("general", "symmetric")
    found = [
        measured(
            P * Q,
            grid=((P, Q),),
            structure=structures,
            kind=("one", "inf", "fro"),
            layout=LAYOUTS,
            deterministic=True,
            threads=threads,
        )
        for (P, Q), threads in zip(GRIDS, (1, 3, 1, 2))
    ]
    for name in structures:
        for kind in ("one", "inf", "fro"):
            bits = {
                value(r, kind).hex()
                for results in found
                for r in results
                if (r.problem["structure"], r.problem["kind"]) == (name, kind)
            }
            assert len(bits) == 1


def test_the_reference_kernels_measure_the_same():
    fast, slow = (measured(m=(M,), kind=("all",), kernels=name)[0] for name in ("host", "reference"))
    assert slow.passed
    for kind in NORM_KINDS:
        assert value(slow, kind) == pytest.approx(value(fast, kind), rel=M * N * U)


def test_several_threads_measure_what_one_does():
    asked: dict[str, Any] = {
        "n": (420,),
        "nb": (64,),
        "structure": ("general", "hermitian"),
        "kind": ("all",),
        "layout": LAYOUTS,
    }
    for one, many in zip(measured(**asked), measured(**asked, threads=3), strict=True):  # 1.4 MB: enough for threads
        assert many.passed
        for kind in NORM_KINDS:
            assert value(many, kind) == pytest.approx(value(one, kind), rel=420 * 420 * U)


def test_every_run_is_kept_and_the_best_counts():
    (found,) = measured(kind=("one",), repeat=5)
    assert len(found.samples_s) == 5
    assert found.result["time_s"] == min(found.samples_s)


def test_a_norm_is_repeated_until_it_has_been_timed_long_enough(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bench, "NORM_S", 1e-2)
    (found,) = measured(kind=("one",))
    assert sum(found.samples_s) >= 1e-2 or len(found.samples_s) == bench.MOST_RUNS


def test_without_a_warmup_no_limit_is_measured():
    (found,) = measured(kind=("one",), warmup="none")
    assert found.passed
    assert (found.result["limit"], found.result["fraction_of_limit"]) == (None, None)
    assert "limit" not in found.phases


@pytest.mark.parametrize(("cache", "code"), [(2**20, "cached"), (100, "drift")])
def test_a_rate_above_the_limit_is_explained(monkeypatch: pytest.MonkeyPatch, cache: int, code: str):
    monkeypatch.setattr(bench.NormBench, "_bandwidth", lambda *asked: [1.0])
    monkeypatch.setattr("mxpeak.runtime.facts.host_facts", lambda **asked: {"l3_bytes": cache})
    (found,) = measured(kind=("one",))
    assert found.passed
    assert [w.code for w in found.warnings] == [code]


def test_ranks_without_a_block_are_said():
    (found,) = measured(2, nb=(64,), kind=("one",))
    assert found.passed
    (warning,) = (w for w in found.warnings if w.code == "idle")
    assert "is 1x1 blocks for 1x2 ranks: some have none" in warning.text
    assert warning.hint == f"use --nb {N // 2} or less"
    assert not [w for w in measured(2, nb=(N // 2,), kind=("one",))[0].warnings if w.code == "idle"]


def test_what_cases_share_is_booked_once():
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

    alive: list[Any] = []
    original = HostNorms.empty

    def empty(self: HostNorms, *shape: Any) -> Any:
        gc.collect()
        assert all(known() is None for known in alive), "the matrix before is still there"
        A = original(self, *shape)
        if A.shape == (N, N):
            alive.append(weakref.ref(A))
        return A

    monkeypatch.setattr(HostNorms, "empty", empty)
    measured(kind=("one",), dtype=("float64", "float32"), layout=("C", "F"))
    assert len(alive) == 4


# --- what is wrong is caught ------------------------------------------------------------------------------------


def spoiled(parts: NormParts, what: str) -> NormParts:
    """The parts of a pass, one of them wrong by little."""
    factor = 1.0 + 1e-12  # the check allows 10·sqrt(N)·eps = 1e-14 for sums; more than one part in 10^15 of the max
    return NormParts(
        parts.top * factor if what == "max" else parts.top,
        parts.squares * factor if what == "fro" else parts.squares,
        parts.by_row * factor if what == "inf" else parts.by_row,
        parts.by_column * factor if what == "one" else parts.by_column,
    )


@pytest.mark.parametrize("kind", NORM_KINDS)
def test_a_kernel_that_computes_wrongly_fails_the_check_and_exits_with_three(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
):
    original = HostNorms.norm_pass
    monkeypatch.setattr(HostNorms, "norm_pass", lambda self, *asked: spoiled(original(self, *asked), kind))
    for asked in (kind, "all"):
        check_that_it_fails(asked, kind, capsys)


def check_that_it_fails(asked: str, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A run of which a kind of norm is wrong."""
    assert cli.main(["run", "norms", "-N", "100", "--kind", asked, "--json", f"{asked}.json", "--threads", "1"]) == 3
    result = json.loads(Path(f"{asked}.json").read_text())
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
    S, reference = structure_of(case), Reference(dict.fromkeys(NORM_KINDS, Decimal(2)), 16)
    good, bad = {"one": 2.0}, {"one": 2.0000001}
    assert check_runs(case, S, Runs([1.0, 1.0], [good, good], 0.0, 0.0), reference).passed
    assert not check_runs(case, S, Runs([1.0, 1.0, 1.0], [good, bad, good], 0.0, 0.0), reference).passed


def test_a_pass_that_read_other_entries_than_the_structure_has_fails_the_check():
    case = NormsCase(m=4, n=4, nb=4, P=1, Q=1, kind="one")
    runs = Runs([1.0], [{"one": 2.0}], 0.0, 0.0)
    assert not check_runs(case, structure_of(case), runs, Reference({"one": Decimal(2)}, 15)).passed


def test_errors_are_scaled_as_slate_scales_them():
    case = NormsCase(m=4, n=9, nb=4, P=1, Q=1)
    one_off = 1.0 + 2.0**-52
    errors = {kind: scaled_error(case, kind, one_off, Decimal(1)) for kind in NORM_KINDS}
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
        A = norms_matrix.empty_matrix(case, grid, host)
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
        A = norms_matrix.empty_matrix(case, grid, kernels.norms)
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


# --- the command line -------------------------------------------------------------------------------------------


def test_the_verdict_has_rate_share_accuracy_and_case(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "norms", "-N", "300", "--kind", "one,max", "--threads", "1"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert re.fullmatch(r"PASSED  norms  \S+ GB/s  \(\S+ % of read bandwidth at \S+ GB/s\)", lines[0])
    assert re.fullmatch(r"  scaled error \S+ <= 10\.0 eps; one 8\d\.\d+", lines[1])
    assert re.fullmatch(r"  one general float64 C 300x300, time \S+ s", lines[2])
    assert re.fullmatch(r"  exact; max 0\.4\d+", lines[4])
    assert re.search(r"^  kind .*\n  one  .* PASSED\n  max  .* PASSED\n", out, re.MULTILINE)
    assert err.endswith(f"results in {only_folder()}/\n")
    assert sorted(p.name for p in only_folder().iterdir()) == ["report.html", "result.json"]


def test_verbose_shows_where_the_time_went_in_bytes(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "norms", "-N", "300", "--kind", "one", "-v", "--threads", "1"]) == 0
    out = capsys.readouterr().out
    for phase in ("generate", "check", "limit", "norm"):
        assert re.search(rf"^  {phase} .* [MG]B/s ", out, re.MULTILINE)
    shares = [float(share) for share in re.findall(r"(\S+) %  ", out)]
    assert sum(shares) == pytest.approx(100.0, abs=0.5), "shares are of all phases: a norm is taken many times"


def test_quiet_is_one_line_a_norm(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "norms", "-N", "50", "--kind", "one,fro", "--layout", "C,tiles", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert [line.split("GB/s)  ")[1] for line in out.splitlines()] == [
        "one general float64 C 50x50",
        "fro general float64 C 50x50",
        "one general float64 tiles 50x50 NB=512 1x1",
        "fro general float64 tiles 50x50 NB=512 1x1",
    ]
    assert err == ""


def test_json_on_stdout_is_alone_there_and_several_cases_are_a_list(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "norms", "-N", "50", "--kind", "one", "--json", "-", "--threads", "1"]) == 0
    body = json.loads(capsys.readouterr().out)
    VALIDATOR.validate(body)
    assert (body["schema"], body["config"]["kind"]) == ("mxpeak.results/1", {"value": ["one"], "origin": "flag"})
    assert set(body["telemetry"]) == {"energy"}
    assert cli.main(["run", "norms", "-N", "50", "--json", "-", "--threads", "1"]) == 0
    assert len(json.loads(capsys.readouterr().out)["results"]) == 5


def test_a_dry_run_shows_cases_sizes_and_memory_and_runs_nothing(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "norms", "-N", "2048", "--structure", "general,band", "--kind", "one", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "2048x2048 float64 C  NB 512  grid 1x1: matrix 32 MiB" in out
    assert "  one general float64 C: 32 MiB to be read" in out
    assert "  one band kl=20 ku=100 float64 C: 1.85 MiB to be read" in out
    assert not Path("mxpeak-out").exists()


def test_help_shows_an_example_in_plain_ascii(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "norms", "--help"]) == 0
    out = capsys.readouterr().out
    assert out.isascii()
    assert "example:\n  mxpeak run norms " in out
    for flag in ("-m M,...", "--kind", "--structure", "--dtype", "--layout", "--uplo", "--diag", "--kl", "--ku"):
        assert flag in out
    assert "--dat FILE" not in out
    assert "--bcast" not in out


#: Mistakes on the command line, and what the error says.
MISTAKES = [
    (["-N", "100", "--min-gflops", "3"], "but norms are measured in GB/s; leave it out"),
    (["-N", "100", "-m", "50", "--structure", "general,symmetric"], "a symmetric matrix is square, but this one "
     "is 50x100; structure 'general' takes any shape; or leave -m out"),
    (["-N", "100", "-m", "50", "--structure", "hermitian-band"], "structure 'band' takes any shape"),
    (["-N", "100", "--dtype", "int8"], "--dtype: 'int8' is unknown; choose one of float64"),
    (["-N", "100", "--kind", "two"], "--kind: 'two' is unknown"),
    (["-N", "100", "--dat", "HPL.dat"], "mxpeak run norms does not know --dat HPL.dat"),
    (["-N", "100", "--format", "hpl"], "run norms has no --format hpl; choose text"),
    (["-N", "100", "--grid", "2x2"], "grid 2x2 needs 2*2 = 4 ranks, but there is 1"),
    (["-N", "100", "--bcast", "lib"], "mxpeak run norms does not know --bcast lib"),
]  # fmt: skip


def test_a_mistake_is_named_before_anything_runs_and_exits_with_two(capsys: pytest.CaptureFixture[str]):
    for argv, says in MISTAKES:
        with told(argv=argv):
            assert cli.main(["run", "norms", *argv]) == 2
            out, err = capsys.readouterr()
            assert out == ""
            assert says in err
            assert not Path("mxpeak-out").exists()


def test_a_mistake_raises_on_every_rank():
    def body(comm: Any) -> str:
        with pytest.raises(UsageError) as caught:
            bench.run(NormsConfig(n=(9,), m=(8,), structure=("hermitian",)), comm)
        return str(caught.value)

    assert len(set(run_ranks(2, body))) == 1


def test_an_option_without_effect_is_noted_and_does_no_harm(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "norms", "-N", "50", "--kind", "one", "--uplo", "lower,upper", "--threads", "1"]) == 0
    out, err = capsys.readouterr()
    assert out.count("PASSED") == 1
    assert "note: --uplo has no effect on general matrices; it applies to trapezoid, triangular" in err


def test_a_matrix_that_does_not_fit_exits_with_five_and_says_what_would(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "norms", "-N", "5000", "--mem", "100MB"]) == 5
    err = capsys.readouterr().err
    most = re.search(r"the largest N that fits is (\d+): type -N \1", err)
    assert most
    assert cli.main(["run", "norms", "-N", most[1], "--mem", "100MB", "--dry-run"]) == 0
    assert "does NOT fit" not in capsys.readouterr().out
    assert cli.main(["run", "norms", "-m", "9000", "-N", "5000", "--mem", "100MB"]) == 5
    assert "a 9000x5000 float64 matrix takes 343 MiB" in capsys.readouterr().err


def test_matrices_that_do_not_fit_are_skipped_and_said(capsys: pytest.CaptureFixture[str]):
    argv = ["run", "norms", "-N", "5000,50", "--kind", "one", "--mem", "100MB", "--threads", "1"]
    assert cli.main(argv) == 5
    out, err = capsys.readouterr()
    assert out.count("one general float64 C 50x50,") == 1
    assert "skipped one general float64 C M=5000 N=5000 NB=512 1x1: it does not fit into memory" in err


def test_an_open_size_is_what_memory_holds_and_says_so(capsys: pytest.CaptureFixture[str]):
    assert cli.main(["run", "norms", "--kind", "max", "--mem", "20MB", "--json", "x.json", "--threads", "1"]) == 0
    n = json.loads(Path("x.json").read_text())["problem"]["n"]
    assert n < 1600
    assert f"N = {n} instead [size]" in capsys.readouterr().err


def test_quick_is_a_quarter_of_a_gigabyte_of_the_widest_type(capsys: pytest.CaptureFixture[str]):
    for dtypes, n in (("float64", 5632), ("float32", 7680), ("float32,complex128", 3584)):
        assert cli.main(["run", "norms", "--quick", "--dtype", dtypes, "--dry-run"]) == 0
        assert f"{n}x{n} {dtypes.split(',')[0]} C" in capsys.readouterr().out


def test_a_floor_in_gflops_is_for_the_other_benchmarks_of_run_all():
    made = requests(cli.parsed(["run", "all", "--min-gflops", "5"]), {})
    floors = {one.benchmark.name: one.config.min_gflops for one in made}
    assert floors.pop("norms") is None
    assert set(floors.values()) == {5.0}
    assert made[-1].settings["min_gflops"].origin == "default"


def test_an_input_file_of_hpl_that_a_variable_names_is_not_for_norms():
    (made,) = requests(cli.parsed(["run", "norms"]), {"MXPEAK_DAT": "there/is/none.dat"})
    assert not made.from_dat


def test_the_function_mirrors_the_command():
    result = mx.run.norms(n=40, m=30, kind="one", dtype="bf16", deterministic=True, threads=1)
    assert isinstance(result, Result)
    assert result.passed
    assert (result.problem["m"], result.problem["n"], result.problem["dtype"]) == (30, 40, "bfloat16")
    assert result.problem["deterministic"]
    assert repr(result).startswith("Result(norms, valid, ")
    assert "kind=one" in repr(result)
    assert Result.from_dict(result.as_dict()).as_dict() == result.as_dict()
    with pytest.raises(UsageError, match="no setting 'bcast'"):
        mx.run.norms(bcast="lib")


def test_the_module_runs_norms_as_the_command_does():
    command = [sys.executable, "-m", "mxpeak", "run", "norms", "-N", "40", "--kind", "fro", "--quiet", "--threads", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("PASSED  norms  ")


def test_progress_says_how_far_and_how_long_still_and_no_flops():
    stream = io.StringIO()
    progress = PlainProgress(stream, {}, "always")
    spans = Spans([progress], clock=iter([0.0, 4.0, 8.0, 16.0]).__next__)
    spans.start("generating 9x9 float64", 10.0)
    spans.step(1, 2, 2.5)
    spans.step(2, 2, 5.0)
    spans.finish()
    assert stream.getvalue().splitlines() == [
        "generating 9x9 float64   25 %  12.0 s left  4.00 s of ~16.0 s",
        "generating 9x9 float64   50 %  8.00 s left  8.00 s of ~16.0 s",
    ]


# --- reports ----------------------------------------------------------------------------------------------------


def norms_result(**values: Any) -> Result:
    sections: dict[str, Any] = {
        "benchmark": "norms",
        "status": "valid",
        "problem": {
            "kind": "one",
            "structure": "band",
            "dtype": "float64",
            "layout": "C",
            "m": 300,
            "n": 400,
            "nb": 64,
            "P": 1,
            "Q": 1,
            "uplo": None,
            "diag": None,
            "kl": 20,
            "ku": 100,
            "entries": 9,
        },
        "result": {
            "rate_bytes": 41.2e9,
            "time_s": 0.02,
            "fraction_of_limit": 0.913,
            "limit": {"name": "read bandwidth", "rate_bytes": 45.1e9},
            "emulated": False,
            "value": 2.5,
        },
        "validation": {
            "passed": True,
            "residual": 0.0104,
            "threshold": 10.0,
            "formula": "f",
            "iterations": None,
            "value": 2.5,
            "expected": 2.5,
            "entries": 9,
        },
        "samples_s": [0.02],
    }
    return Result(**{**sections, **values})


def test_a_result_for_people_is_three_lines():
    assert verdict(norms_result()).splitlines() == [
        "PASSED  norms  41.2 GB/s  (91.3 % of read bandwidth at 45.1 GB/s)",
        "  scaled error 0.0104 <= 10.0 eps; one 2.5",
        "  one band kl 20 ku 100 float64 C 300x400, time 0.0200 s",
    ]


def test_entries_that_were_not_read_are_said():
    check = {**norms_result().validation, "entries": 8}
    assert "8 entries were read of 9" in verdict(norms_result(status="invalid", validation=check))


def test_rates_of_bytes_are_in_si_units():
    for rate, text in (
        (41.23e9, "41.2 GB/s"),
        (9.999e11, "1.00 TB/s"),
        (2.5e12, "2.50 TB/s"),
        (3e15, "3.00 PB/s"),
        (5e6, "0.00500 GB/s"),
        (None, "no rate"),
    ):
        assert bytes_rate_text(rate) == text


def test_the_scoreboard_and_the_page_have_rates_in_bytes():
    row = scoreboard([norms_result()]).splitlines()[2]
    assert row.startswith("norms ")
    assert "41.2 GB/s    91 % of memory       45.1 GB/s  PASSED" in row
    assert "41.2 GB/s    91.3 %" in sweep([norms_result()]).splitlines()[1]
    page = html_report(document([norms_result()]))
    assert "41.2 GB/s" in page
    assert "measured at 45.1 GB/s in this process" in page
    assert "one band kl=20 ku=100 float64 C 300x400" in page
    assert "FLOP/s" not in page


#: Keys of results that files promise.
PROMISED = [
    "problem.kind", "problem.structure", "problem.dtype", "problem.layout", "problem.m", "problem.n",
    "result.rate_bytes", "result.time_s", "result.fraction_of_limit", "result.limit", "result.limit.name",
    "result.limit.rate_bytes", "validation.passed", "validation.residual", "validation.threshold",
    "validation.formula", "validation.iterations", "validation.expected",
]  # fmt: skip


def test_a_promised_key_of_norms_must_be_there():
    for path in PROMISED:
        body = json.loads(json.dumps(norms_result().as_dict()))
        VALIDATOR.validate(body)
        *way, last = path.split(".")
        section = body
        for name in way:
            section = section[name]
        del section[last]
        with told(path=path), pytest.raises(jsonschema.ValidationError):
            VALIDATOR.validate(body)
