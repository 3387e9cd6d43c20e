"""Test norms of columns and rows, of transposed matrices, of tiles of several sizes, and with NaN and infinity."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mxpeak.bench.norms import matrix as norms_matrix
from mxpeak.bench.norms import special
from mxpeak.bench.norms.check import reference_norms
from mxpeak.bench.norms.config import NormsCase, NormsConfig
from mxpeak.bench.norms.matrix import cut, footprint
from mxpeak.bench.norms.sizes import structure_of, without_effect
from mxpeak.cli import main as cli
from mxpeak.comm.grid import make_grid
from mxpeak.comm.transports.solo import Solo
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.configs.norms import STRUCTURES
from mxpeak.errors import UsageError
from mxpeak.kernels.contract.norms import NormParts
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.kernels.host.norms.norms import HostNorms
from mxpeak.layout.cores import device_groups
from mxpeak.layout.entries import Entries
from mxpeak.layout.grid import ProcessGrid
from mxpeak.layout.structure import structure
from mxpeak.records import document
from mxpeak.report.scoreboard import sweep
from mxpeak.report.text import verdict
from mxpeak.solvers.norms import distributed_norms
from mxpeak.spans import Spans
from tests.support.exact_norms import exact_norms, expanded, rounded, vector_norm
from tests.support.norm_runs import M, N, bare, measured
from tests.support.result_file import VALIDATOR
from tests.support.roundoff import U

GRIDS = [(1, 1), (2, 2), (3, 1), (1, 4)]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Use one timed run per case, and no settings from outside."""
    bare(monkeypatch, tmp_path)


def entries(m: int, n: int) -> Any:
    """Return the matrix of the benchmark, computed from the definition of its entries."""
    e = Entries("lcg", m, seed=100, scale=-1.0, shift=0.5)
    return np.array([[e.value(i, j) for j in range(n)] for i in range(m)])


def largest_vector_norm(sizes: Any, kind: str, scope: str) -> float:
    """Return the largest norm of a column or row, rounded once."""
    vectors = list(zip(*sizes)) if scope == "columns" else sizes
    return rounded(max(vector_norm(kind, vector) for vector in vectors))


# --- columns, rows and transposes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["general", "triangular", "hermitian", "band"])
def test_norms_of_columns_rows_and_transposes_are_those_of_the_matrix(name: str):
    for P, Q in GRIDS:
        results = measured(
            P * Q,
            grid=((P, Q),),
            n=(N,),
            structure=(name,),
            kind=("max", "one", "inf", "fro", "all"),
            scope=("matrix", "columns", "rows"),
            trans=("n", "t", "c"),
            diag=("unit",),
            kl=(2,),
            ku=(3,),
            layout=(("C", "F", "tiles")[P % 3],),
        )
        assert all(r.passed for r in results)
        options = {key: value for key in STRUCTURES[name] if (value := results[0].problem[key]) is not None}
        full = expanded(entries(N, N), name, **options)
        for r in results:
            op = full if r.problem["trans"] == "n" else list(zip(*full))
            VALIDATOR.validate(json.loads(json.dumps(r.as_dict())))
            if r.problem["scope"] == "matrix":
                found = r.result.get("values") or {r.problem["kind"]: r.result["value"]}
                exact = exact_norms(op)
                for kind, value in found.items():  # sums of N·N terms, each rounded
                    assert value == pytest.approx(float(exact[kind]), rel=N * N * U)
            else:
                expected = largest_vector_norm(op, r.problem["kind"], r.problem["scope"])
                assert r.result["vectors"] == N
                assert r.result["value"] == pytest.approx(expected, rel=N * U)
                assert r.problem["deterministic"]
        assert len(results) == 3 * (5 + 3 + 3)  # a vector has no "inf" and no "all"


def test_a_rectangular_matrix_and_its_transpose_have_their_own_columns():
    results = measured(m=(M,), n=(N,), kind=("one",), scope=("columns", "rows"), trans=("n", "t"))
    assert [(r.problem["trans"], r.problem["scope"], r.result["vectors"]) for r in results] == [
        ("n", "columns", N), ("n", "rows", M), ("t", "columns", M), ("t", "rows", N),
    ]  # fmt: skip
    assert all(r.passed for r in results)
    assert results[0].result["value"] == results[3].result["value"], "a column of A is a row of its transpose"
    assert results[0].validation["formula"].endswith("* eps ) over all columns")
    assert "op(A)" in results[2].validation["formula"]


def test_the_error_of_a_transposed_norm_is_scaled_by_the_terms_that_it_adds():
    sizes: dict[str, Any] = {"m": 4, "n": 9, "nb": 4, "P": 1, "Q": 1}
    assert NormsCase(**sizes).terms == {"max": 1, "one": 4, "inf": 9, "fro": 36}
    assert NormsCase(**sizes, trans="t").terms == {"max": 1, "one": 9, "inf": 4, "fro": 36}
    assert NormsCase(**sizes, scope="columns").terms == {"max": 1, "one": 4, "fro": 4}
    assert NormsCase(**sizes, scope="columns", trans="c").terms == {"max": 1, "one": 9, "fro": 9}


def test_a_wrong_norm_of_one_column_fails_the_check(monkeypatch: pytest.MonkeyPatch):
    original = HostNorms.folded_sums

    def spoiled(self: HostNorms, *arguments: Any) -> Any:
        by_row, by_column = original(self, *arguments)
        by_column[:, 5:6] *= 1.0 + 1e-10
        return by_row, by_column

    assert measured(kind=("one",), scope=("columns",))[0].passed
    monkeypatch.setattr(HostNorms, "folded_sums", spoiled)
    (result,) = measured(kind=("one",), scope=("columns",))
    assert result.status == "invalid"
    assert result.validation["residual"] > 10.0


def test_kinds_that_no_vector_has_are_refused_alone_and_left_out_among_others():
    with pytest.raises(UsageError, match="--kind inf,all does not apply to --scope rows; use max, one or fro"):
        list(NormsConfig(n=(4,), kind=("inf", "all"), scope=("rows",)).cases(1))
    cases = NormsConfig(n=(4,), kind=("inf", "one"), scope=("matrix", "rows")).cases(1)
    assert [(case.scope, case.kind) for case in cases] == [("matrix", "inf"), ("matrix", "one"), ("rows", "one")]


# --- tiles of several sizes ---------------------------------------------------------------------------------------


def test_blocks_cover_all_indices_once():
    for size in (1, 2, 7, 30):
        for sizes in ((1,), (3,), (4, 1), (2, 5, 100)):
            blocks = cut(size, sizes)
            assert [first + k for first, length in blocks for k in range(length)] == list(range(size))
            assert all(length == sizes[b % len(sizes)] for b, (_, length) in enumerate(blocks[:-1]))


def test_tiles_of_several_sizes_have_the_entries_of_the_matrix_on_every_grid():
    exact = entries(M, N)
    for P, Q in GRIDS:

        def body(comm: Any, P: int = P, Q: int = Q) -> list[tuple[int, int, float]]:
            case = NormsCase(m=M, n=N, nb=5, P=P, Q=Q, layout="tiles", tiles=(2, 5, 1))
            grid, kernels = make_grid(ProcessGrid(P, Q), comm), HostKernels(1)
            assert grid is not None
            A = norms_matrix.empty_matrix(case, grid, [kernels.norms])
            norms_matrix.generate(A, case, kernels, Spans())
            stored = sum(tile.A.nbytes for tile in A.tiles)
            assert P * Q * stored <= footprint(case, square=False, threads=1)(N, 5, P, Q)["matrix"]
            return [
                (tile.rows.to_global(a), tile.cols.to_global(b), float(tile.A[a, b]))
                for tile in A.tiles
                for a, b in np.ndindex(tile.A.shape)
            ]

        whole = np.full((M, N), np.nan)
        for i, j, x in (entry for part in run_ranks(P * Q, body) for entry in part):
            assert np.isnan(whole[i, j]), "every entry lies on one rank"
            whole[i, j] = x
        np.testing.assert_array_equal(whole, exact)


def test_tiles_of_several_sizes_have_the_norms_of_the_matrix():
    forms = ((2, 5, 1), (100,))
    structures = ("general", "symmetric", "trapezoid", "hermitian-band")
    for P, Q in GRIDS:
        asked: dict[str, Any] = {"structure": structures, "kind": ("all", "one"), "scope": ("matrix", "rows")}
        results = measured(P * Q, grid=((P, Q),), layout=("tiles",), tiles=forms, kl=(3,), **asked)
        plain = measured(1, kl=(3,), **asked)
        for r, same in zip(results, plain * len(forms), strict=True):
            assert r.passed
            assert (r.problem["nb"], r.problem["structure"]) == (None, same.problem["structure"])
            for key in ("value", "values"):
                if key in same.result:  # sums of N·N terms, each rounded
                    assert r.result[key] == pytest.approx(same.result[key], rel=N * N * U)
        assert {r.problem["tiles"] for r in results} == set(forms)
        VALIDATOR.validate(json.loads(json.dumps(document(results), allow_nan=False)))
        assert f"NB=2+5+1 {P}×{Q}".replace("×", "x") in verdict(results[0]).replace("NB ", "NB=")
        assert "2+5+1" in sweep(results)


def test_a_request_for_tiles_or_devices_says_what_else_it_needs():
    for values, says in (
        ({"tiles": ((3, 1),)}, "--tiles needs tiles, but --layout is C; use --layout tiles"),
        ({"devices_per_rank": 2}, "--devices-per-rank 2 needs tiles, but --layout is C; use --layout tiles"),
    ):
        with pytest.raises(UsageError) as caught:
            list(NormsConfig(n=(4,), **values).cases(1))  # type: ignore[arg-type]
        assert str(caught.value) == says
    with pytest.raises(UsageError, match="needs 2 GPUs per rank, but the device is cpu"):
        measured(2, layout=("tiles",), devices_per_rank=2, device="cpu")
    tiled = NormsConfig(tiles=((3,),), nb=(7,))
    assert [caution.text for caution in without_effect(tiled, {"nb": "flag"})] == [
        "--nb has no effect with --tiles, which sets the sizes of the blocks"
    ]
    assert without_effect(tiled, {"nb": "tuned"}) == []


def test_each_rank_gets_devices_of_its_own():
    assert device_groups([0], 4, 4) == [[0, 1, 2, 3]]
    assert device_groups([2], 4, 3) == [[2, 0, 1]]
    assert device_groups([1, 0], 4, 2) == [[1, 2], [0, 3]]
    for first, devices, each in (([0, 4], 8, 4), ([3, 1, 0], 9, 3)):
        groups = device_groups(first, devices, each)
        given = [device for group in groups for device in group]
        assert len(set(given)) == len(given) == each * len(first)
        assert [group[0] for group in groups] == first


# --- NaN and infinity ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "complex64", "bfloat16"])
def test_special_values_reach_every_norm_of_every_structure(dtype: str):
    part = ("float64", "complex64", "bfloat16").index(dtype)  # each structure with one type
    for P, Q in [(1, 1), (2, 2)]:
        results = measured(
            P * Q,
            grid=((P, Q),),
            structure=tuple(STRUCTURES)[part::3],
            dtype=(dtype,),
            kind=("all", "one"),
            scope=("matrix", "columns"),
            trans=("n", "t"),
            diag=("unit",),
            kl=(2,),
            ku=(3,),
            extended=True,
            layout=(("C", "F", "tiles")[(P + Q) % 3],),
        )
        for r in results:
            checks = r.validation["extended"]
            assert r.passed, r.problem
            assert all(check["passed"] for check in checks)
            assert {"nan", "inf"} <= {str(check["expected"])[:3] for check in checks}, "some entries are read"
            VALIDATOR.validate(json.loads(json.dumps(r.as_dict(), allow_nan=False)))


def test_the_matrix_is_restored_after_the_checks():
    plain, checked = (measured(kind=("fro", "one"), extended=extended)[1] for extended in (False, True))
    assert checked.result["value"] == plain.result["value"]
    assert "extended" not in plain.validation


def test_a_norm_that_loses_nan_fails_and_exits_with_three(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    original = HostNorms.norm_pass

    def without_nan(self: HostNorms, *arguments: Any) -> NormParts:
        parts = original(self, *arguments)
        return NormParts(
            0.0 if math.isnan(parts.top) else parts.top,
            *(np.nan_to_num(x, posinf=math.inf) for x in (parts.squares, parts.by_row, parts.by_column)),
        )

    monkeypatch.setattr(HostNorms, "norm_pass", without_nan)
    command = ["run", "norms", "-N", "30", "--kind", "max", "--extended", "--json", "x.json", "--threads", "1"]
    assert cli.main(command) == 3
    result = json.loads(Path("x.json").read_text())
    VALIDATOR.validate(result)
    failed = [check for check in result["validation"]["extended"] if not check["passed"]]
    assert {check["expected"] for check in failed} == {"nan"}
    out = capsys.readouterr().out
    assert out.startswith("FAILED  norms")
    assert "FAILED  nan at (0, 0): max finite, expected nan" in out
    assert "PASSED  inf at (0, 0): max inf, expected inf" in out


def test_a_norm_that_reads_outside_of_its_structure_fails():
    S = structure("triangular", 6, 6, uplo="lower")
    case = NormsCase(m=6, n=6, nb=6, P=1, Q=1, structure="triangular", uplo="lower", kind="max")
    grid, kernels = make_grid(ProcessGrid(1, 1), Solo()), HostKernels(1)
    assert grid is not None
    A = norms_matrix.empty_matrix(case, grid, [kernels.norms])
    norms_matrix.generate(A, case, kernels, Spans())
    reference = reference_norms(A, S, kernels.norms, Spans())
    all_entries = structure("general", 6, 6)
    good = special.check_special(case, A, S, lambda: distributed_norms(A, S, ["max"], kernels.norms), reference)
    bad = special.check_special(
        case, A, S, lambda: distributed_norms(A, all_entries, ["max"], kernels.norms), reference
    )
    assert all(check["passed"] for check in good)
    wrong = [check for check in bad if not check["passed"]]
    assert wrong
    assert {check["expected"] for check in wrong if not check["read"]} == {"finite"}


def test_positions_include_entries_that_are_read_and_entries_that_are_not():
    for name in STRUCTURES:
        case = next(iter(NormsConfig(n=(50,), structure=(name,), kl=(2,), ku=(1,), diag=("unit",)).cases(1)))
        S = structure_of(case)
        reads = {S.reads(entry.i, entry.j) for placed in special.placements(S, 100) for entry in placed}
        assert True in reads
        assert name == "general" or False in reads
    assert len(special.placements(structure("general", 1, 1), 1)) == 2


def test_torch_kernels_compute_and_check_the_same():
    settings: dict[str, Any] = {"scope": ("matrix", "columns"), "trans": ("t",), "kind": ("one",), "extended": True}
    settings |= {"dtype": ("float32",), "structure": ("symmetric",)}
    tiles: dict[str, Any] = {"layout": ("tiles",), "tiles": ((3, 2),)}
    for host, torch in zip(
        measured(**settings), measured(**settings, **tiles, kernels="torch", device="cpu"), strict=True
    ):
        assert torch.passed
        assert torch.software["kernels"] == "torch"
        assert torch.result["value"] == pytest.approx(host.result["value"], rel=N * N * U)
