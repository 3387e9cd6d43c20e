"""Test whole runs of HPG-MxP on a matrix from a file, and runs that do not converge, on virtual ranks."""

from __future__ import annotations

import gzip
import json
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import spsolve_triangular

from mxpeak.bench import limits
from mxpeak.bench.hpg_mxp import run as bench
from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
from mxpeak.comm.transports.solo import Solo
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.distributed.rows import cuts
from mxpeak.errors import Outcome
from mxpeak.perf.sparse_counts import Levels, hpg_mxp_flops
from mxpeak.records import Result, document
from mxpeak.report.hpgmp_text import hpgmp_report
from mxpeak.report.html import html_report
from mxpeak.report.sparse_text import problem_text, sparse_case_text
from tests.support.hpg_mxp_solves import agree, solve_oracle
from tests.support.own_matrices import convection, random_matrix, tridiagonal, write
from tests.support.result_file import VALIDATOR
from tests.support.roundoff import U

Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the measurement of the limit, which these tests do not check."""
    monkeypatch.setattr(limits, "MAX_S", 0.0)


def measured(path: str, ranks: int = 1, **values: Any) -> Result:
    """Return the result of a run on a file, and check that all ranks have the same problem."""
    short = {"rt": 0.0, "iterations": 7, "storage": "sell", "threads": 1, "warmup": "none"}
    config = HpgMxpConfig(matrix=path, **{**short, **values})
    found = [bench.run(config, Solo())] if ranks == 1 else run_ranks(ranks, lambda comm: bench.run(config, comm))
    assert all(results[0].problem == found[0][0].problem for results in found), "all ranks hear of it"
    (result,) = found[0]
    return result  # type: ignore[no-any-return]


def check_result(r: Result, A: Any, name: str = "A.mtx") -> None:
    """Check the values of a result against the matrix, and that it follows the schema."""
    VALIDATOR.validate(json.loads(json.dumps(document([r]), allow_nan=False)))
    p, figures, check = r.problem, r.result, r.validation
    (level,) = p["levels"]
    assert (p["rows"], p["nnz"], p["matrix"], p["nx"], p["larger_mesh"]) == (*A.shape[:1], A.nnz, name, None, None)
    assert (level["rows"], level["nnz"]) == (A.shape[0], A.nnz)
    assert p["nonsymmetric"] == ((A - A.T).count_nonzero() > 0)
    assert {"matrix"} <= {one["rule"] for one in r.rules["violations"]}
    flops = hpg_mxp_flops(Levels((A.shape[0],), (A.nnz,), (0,)), [p["max_iterations"]])
    assert figures["flops"] == figures["double_flops"] == flops
    assert figures["speedup"] > 0.0
    assert r.phases["restriction"]["calls"] == r.phases["prolongation"]["calls"] == 0
    assert r.phases["gs"]["calls"] == p["ranks"] * figures["solves"] * (p["max_iterations"] + 1)
    assert check["penalty"] == min(1.0, check["double_iterations"] / check["mixed_iterations"])
    # ||x - 1|| <= ||A^-1||·||b - A x||, and rounding: n products and sums per row.
    inverse, b = np.linalg.norm(np.linalg.inv(A.toarray()), 2), A.sum(axis=1)
    rounding = A.shape[0] * U * np.linalg.norm(abs(A).sum(axis=1))
    assert check["max_error"] <= inverse * (check["residual"] * np.linalg.norm(b) * (1 + 1e-6) + rounding)
    assert sparse_case_text(p).startswith(name)
    assert f"{name}, {A.shape[0]} rows" in problem_text(p, 1.0)
    assert name in html_report(document([r]))
    assert "HPGMP-Benchmark" in hpgmp_report(r, datetime(2026, 11, 21))


@pytest.mark.parametrize("make", [lambda: tridiagonal(60), lambda: convection(8)], ids=["tridiagonal", "convection"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_whole_runs_find_ones_in_the_steps_that_the_matrix_says(tmp_path: Path, make: Any, ranks: int) -> None:
    A = sp.csr_array(make())
    result = measured(write(tmp_path, A), ranks, smoother="natural", storage="rows" if ranks == 2 else "sell")
    assert result.passed
    check_result(result, A)
    assert (result.problem["ranks"], result.validation["ranks"]) == (ranks, ranks)
    wanted = solve_oracle(swept(A, ranks), sp.csr_matrix(A), 1e-9)  # type: ignore[arg-type]
    assert result.validation["double_iterations"] == wanted.count
    agree(result.validation["history"]["double"], wanted.history)
    assert wanted.count <= result.validation["mixed_iterations"] <= 2 * wanted.count


def swept(A: Any, ranks: int) -> SimpleNamespace:
    """Return the oracle's problem: M^-1 is a forward substitution with the lower triangle of each diagonal block.

    Each rank has one block. Its rows keep their order, but rows with entries of other ranks come last.
    """
    A = sp.csr_array(A)
    starts = cuts(A.indptr, ranks)
    rank = np.repeat(np.arange(ranks), np.diff(starts))
    row = np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))
    surface = np.zeros(A.shape[0], bool)
    surface[row[rank[row] != rank[A.indices]]] = True
    order = np.lexsort((surface, rank))
    blocks = [sp.tril(A[order][:, order][a:b, a:b]) for a, b in pairwise(starts)]
    M = sp.csr_array(sp.block_diag(blocks))

    def cycle(r: Array) -> Array:
        z = np.empty_like(r)
        z[order] = spsolve_triangular(M, r[order])
        return z

    return SimpleNamespace(levels=[SimpleNamespace(A=sp.csr_matrix(A))], cycle=cycle)


@pytest.mark.parametrize(
    ("ranks", "values"),
    [
        (1, {"storage": "auto", "mode": "explore"}),
        (2, {"storage": "packed", "colouring": "jpl", "warmup": "gemm"}),
        (4, {"storage": "ell", "validation": "fullscale", "restart": 5, "iterations": 4}),
        (3, {"krylov_precision": "fp64", "kernels": "reference", "iterations": 2, "threshold": 1e-5}),
    ],
)
def test_every_choice_works_with_a_file(tmp_path: Path, ranks: int, values: dict[str, Any]) -> None:
    A = random_matrix(50, 0.08, 1)
    result = measured(write(tmp_path, A), ranks, **values)
    assert result.passed
    check_result(result, A)


def test_more_ranks_cost_some_steps_and_not_many(tmp_path: Path) -> None:
    """Between ranks a sweep is a Jacobi sweep, which is weaker than Gauss–Seidel."""
    path = write(tmp_path, convection(12))
    one, *more = (measured(path, ranks).validation for ranks in (1, 2, 3))
    for other in more:
        assert one["double_iterations"] <= other["double_iterations"] <= 2 * one["double_iterations"]


def test_a_matrix_of_one_row_and_as_many_ranks_as_rows_work(tmp_path: Path) -> None:
    result = measured(write(tmp_path, sp.csr_array([[3.0]])))
    assert result.passed
    assert result.validation["max_error"] == 0.0
    A = sp.csr_array(tridiagonal(3))
    result = measured(write(tmp_path, A), 3)
    assert result.passed
    assert result.validation["max_error"] <= 1e-8


def test_the_result_names_only_the_file_and_compressed_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    A = sp.csr_array(tridiagonal(20))
    plain = Path(write(tmp_path / "deep", A, "line.mtx"))
    packed = plain.with_name("line.mtx.gz")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    check_result(measured(str(plain)), A, "line.mtx")
    check_result(measured(str(packed)), A, "line.mtx.gz")


def test_the_standard_validation_is_on_the_first_ranks(tmp_path: Path) -> None:
    path = write(tmp_path, convection(8))
    few, many = (measured(path, ranks, validation_ranks=2) for ranks in (2, 4))
    assert (few.validation["ranks"], many.validation["ranks"], many.problem["ranks"]) == (2, 2, 4)
    assert many.validation["history"] == few.validation["history"]


# --- formats ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scale", "values", "format_", "vectors"),
    [
        (1.0, {}, "bf16", "fp32"),
        (1.0, {"mode": "explore"}, "fp8", "fp32"),
        (1.0, {"precision": "fp16"}, "fp16", "fp32"),
        (1.0, {"precision": "fp64"}, "fp64", "fp64"),
        (1.0 + 2.0**-9, {}, "fp16", "fp32"),
        (1.1, {}, "fp32", "fp32"),
        (1.1, {"krylov_precision": "fp64"}, "fp32", "fp64"),
        (1.1, {"mode": "explore", "value_tolerance": 0.01}, "bf16", "fp32"),
        (2.0**140, {}, "fp64", "fp64"),
    ],
)
def test_values_are_in_the_narrowest_format_that_is_right_to_fp32(
    tmp_path: Path, scale: float, values: dict[str, Any], format_: str, vectors: str
) -> None:
    """2.5 needs two bits after the first one; 2·(1 + 2^-9) needs nine. bf16 has seven of them and fp16 ten."""
    A = scale * tridiagonal(24, 2.0 if scale == 1.0 + 2.0**-9 else 2.5, -0.5, -0.5)
    result = measured(write(tmp_path, A), **values)
    assert result.passed
    (level,) = result.problem["levels"]
    assert (level["value_precision"], level["vector_precision"]) == (format_, vectors)
    assert result.validation["max_error"] <= 1e-7, "residuals are those of the file's matrix"


def test_a_format_that_is_too_narrow_is_raised_and_said_so(tmp_path: Path) -> None:
    result = measured(write(tmp_path, 1.1 * tridiagonal(24)), precision="bf16")
    assert result.problem["levels"][0]["value_precision"] == "fp32"
    assert [caution.code for caution in result.warnings if caution.code == "raised"] == ["raised"]


# --- matrices without convergence -------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_unsolved_system_is_an_invalid_result_with_history_and_advice(tmp_path: Path, ranks: int) -> None:
    """With a random matrix, two steps reduce the residual only little, and a restart does not help."""
    A = sp.csr_array(np.random.default_rng(5).standard_normal((40, 40)))
    result = measured(write(tmp_path, A), ranks, restart=2)
    assert result.status == "invalid"
    assert result.validation["outcome"]["double"] == str(Outcome.UNREACHED)
    assert len(result.validation["history"]["double"]) > 10
    (caution,) = (one for one in result.warnings if one.code == "unreached")
    assert "--restart" in caution.hint
    VALIDATOR.validate(json.loads(json.dumps(document([result]), allow_nan=False)))


def test_a_mixed_solver_alone_that_fails_is_advised_a_wider_format(tmp_path: Path) -> None:
    """fp8 rounds 1.07 off the diagonal to 1.125, which makes a nearly singular matrix indefinite."""
    A = sp.csr_array(1.07 * tridiagonal(200, 2.01))
    result = measured(write(tmp_path, A), mode="explore", precision="fp8", value_tolerance=0.125)
    assert result.status == "invalid"
    (caution,) = (one for one in result.warnings if one.code == "unreached")
    assert "--precision" in caution.hint
    assert result.validation["outcome"]["double"] == str(Outcome.SOLVED)


def test_at_full_scale_a_file_has_to_be_solved_all_the_same(tmp_path: Path) -> None:
    """The threshold stays 1e-9 although double does not reach it; only for the benchmark's own matrix it is relaxed."""
    A = sp.csr_array(np.random.default_rng(5).standard_normal((40, 40)))
    result = measured(write(tmp_path, A), 2, restart=2, validation="fullscale")
    assert (result.status, result.validation["threshold"]) == ("invalid", 1e-9)
