"""HPG-MxP on a matrix from a file: rows over virtual ranks, halos of any pattern, whole runs, every refusal."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.linalg import spsolve_triangular

from mxpeak.bench import sparse
from mxpeak.bench.hpg_mxp import input
from mxpeak.bench.hpg_mxp import run as bench
from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
from mxpeak.bench.hpg_mxp.input import FILLING_BYTES, MatrixFile, filled_entries
from mxpeak.bench.stencil_sizes import Hierarchy as Held
from mxpeak.comm.base import Communicator
from mxpeak.comm.solo import Solo
from mxpeak.comm.threads import run_ranks
from mxpeak.distributed.general import cuts, distribute, exchange, localised, make_general
from mxpeak.distributed.stencil import Form
from mxpeak.errors import Outcome, ResourceError, UsageError
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.kernels.reference.sparse import ReferenceSparse
from mxpeak.options import Setting
from mxpeak.perf.sparse_counts import Levels, hpg_mxp_flops
from mxpeak.records import Result, document
from mxpeak.report.hpgmp_text import hpgmp_report
from mxpeak.report.html import html_report
from mxpeak.report.sparse_text import problem_text, sparse_case_text
from mxpeak.spans import Spans
from tests.support.hpg_mxp_solves import agree, solve_oracle
from tests.support.result_file import VALIDATOR
from tests.support.roundoff import U

Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time for the limit, which is not looked at here."""
    monkeypatch.setattr(sparse, "LIMIT_S", 0.0)


# --- matrices ---------------------------------------------------------------------------------------------------


def tridiagonal(n: int, diagonal: float = 2.5, below: float = -1.0, above: float = -1.0) -> Any:
    return sp.diags_array([below, diagonal, above], offsets=[-1, 0, 1], shape=(n, n))


def convection(m: int) -> Any:
    """Upwind convection and diffusion on m×m points, in numbers that fp32 does not hold."""
    T, C = tridiagonal(m, 2.1), tridiagonal(m, 2.4, -1.3, -0.9)
    return sp.csr_array(sp.kron(sp.eye_array(m), C) + sp.kron(T, sp.eye_array(m)))


def random_matrix(n: int, density: float, seed: int, *, whole_numbers: bool = False) -> Any:
    """Any pattern, with a diagonal."""
    rng = np.random.default_rng(seed)
    dense = np.where(rng.random((n, n)) < density, rng.standard_normal((n, n)), 0.0)
    dense = np.round(8 * dense) if whole_numbers else dense
    return sp.csr_array(dense + np.diag(np.full(n, 1.0 + 4 * n)))


def write(folder: Path, A: Any, name: str = "A.mtx") -> str:
    path = folder / name
    scipy.io.mmwrite(path, sp.coo_array(A), precision=17)
    return str(path)


# --- rows over ranks --------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=40), data=st.data())
def test_every_rank_has_rows_and_nearly_its_share_of_the_entries(lengths: list[int], data: st.DataObject) -> None:
    ranks = data.draw(st.integers(1, len(lengths)))
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    starts = cuts(indptr, ranks)
    assert (starts[0], starts[-1], len(starts)) == (0, len(lengths), ranks + 1)
    assert all(begin < end for begin, end in pairwise(starts))
    if ranks * max(lengths) <= len(lengths):  # rows are short enough that nobody is pushed on to the next one
        shares = np.diff(indptr[starts])
        assert np.all(abs(shares - sum(lengths) / ranks) <= max(lengths))


def product(comm: Communicator, kernels: Any, A: Any, x: Array) -> tuple[int, Array]:
    """This rank's first row, and its part of A x, by the kernels, the halo and an order."""
    block = distribute(comm, A if comm.rank == 0 else None)
    rows, partners = localised(kernels, comm, block)
    order = kernels.order(rows, "greedy")
    stored = kernels.store(rows, order, "fp64", "fp64", "sell")
    halo = exchange(kernels, comm, partners, order, "fp64")
    whole, y = kernels.halo_vector(stored), np.empty(block.n)
    own, received = whole[: block.n], whole[block.n : block.n + stored.halo]
    own[:] = x[block.first : block.first + block.n][order.new_to_old]
    if (travel := halo.begin(own, received)) is not None:
        travel.wait()
    kernels.matvec(y, stored, whole)
    found = np.empty(block.n)
    found[order.new_to_old] = y
    return block.first, found


def gathered(parts: list[tuple[int, Array]]) -> Array:
    assert [first for first, _ in parts] == sorted(first for first, _ in parts)
    return np.concatenate([part for _, part in parts])


KERNELS = {"host": lambda: HostKernels(1).sparse, "reference": ReferenceSparse}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("density", [0.02, 0.1, 0.6])
def test_products_over_ranks_are_scipys_whatever_the_pattern(name: str, ranks: int, density: float) -> None:
    """Of whole numbers to the last bit, which no missing or doubled entry would leave; of others to rounding."""
    n = 37
    for seed in range(2):
        for whole_numbers in (True, False):
            A = random_matrix(n, density, seed, whole_numbers=whole_numbers)
            x = np.arange(1.0, n + 1.0) if whole_numbers else np.random.default_rng(seed).standard_normal(n)
            y = gathered(run_ranks(ranks, lambda comm, A=A, x=x: product(comm, KERNELS[name](), A, x)))
            if whole_numbers:
                assert np.array_equal(y, A @ x)
            else:  # two sums of n products, in two orders
                assert np.all(abs(y - A @ x) <= 2 * n * U * (abs(A) @ abs(x)))


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ranks_may_need_rows_of_those_that_need_none_of_theirs(ranks: int) -> None:
    n = 15
    first_column, last_row = sp.lil_array((n, n)), sp.lil_array((n, n))
    first_column[:, 0], last_row[n - 1, :] = 3.0, 5.0
    for one in (first_column, last_row, tridiagonal(n, 0.0, 1.0, 0.0), tridiagonal(n, 0.0, 0.0, 2.0), 0 * first_column):
        A = sp.csr_array(one + 7.0 * sp.eye_array(n))
        y = gathered(run_ranks(ranks, lambda comm, A=A: product(comm, KERNELS["host"](), A, np.arange(n) + 1.0)))
        assert np.array_equal(y, A @ (np.arange(n) + 1.0))


def test_a_rank_without_neighbours_has_no_halo_and_others_are_asked_once_for_each_row() -> None:
    def body(comm: Communicator) -> list[tuple[int, list[int], int, int]]:
        block = distribute(comm, A if comm.rank == 0 else None)
        _, partners = localised(KERNELS["host"](), comm, block)
        return [(one.rank, one.rows.tolist(), one.offset, one.received) for one in partners]

    pair = np.ones((2, 2))
    A = sp.lil_array(sp.block_diag([pair, pair, sp.eye_array(2)]))
    A[4, 2] = A[5, 3] = 1.0
    A = sp.csr_array(A)
    assert run_ranks(3, body) == [[], [(2, [0, 1], 0, 0)], [(1, [], 0, 2)]]


@pytest.mark.parametrize("storage", ["rows", "sell", "packed"])
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_sweeps_go_row_by_row_also_while_the_halo_travels_and_the_pattern_is_not_symmetric(
    ranks: int, storage: str
) -> None:
    """Rows of other ranks as they were before, one's own in their natural order."""
    A, n = random_matrix(60, 0.05, 3), 60
    x, b = np.arange(n) % 7.0, A.sum(axis=1)

    def body(comm: Communicator) -> tuple[int, Array]:
        kernels, block = KERNELS["host"](), distribute(comm, A if comm.rank == 0 else None)
        kind = "natural" if storage == "rows" else "levels"
        made = make_general(kernels, comm, block, [Form(("fp64",), "fp64", storage)], kind, Spans())
        order = kernels.order(localised(kernels, comm, block)[0], kind)
        matrix, swept = made.hierarchies[0].outer, np.empty(block.n)
        whole = matrix.halo_vector()
        matrix.own(whole)[:] = x[block.first : block.first + block.n][order.new_to_old]
        matrix.relax(made.b, whole)
        swept[order.new_to_old] = matrix.own(whole)
        return block.first, swept

    parts = run_ranks(ranks, body)
    for first, swept in parts:
        y = x.copy()
        for i in range(first, first + swept.size):
            y[i] += (b[i] - A[[i]] @ y)[0] / A[i, i]
        assert swept == pytest.approx(y[first : first + swept.size], abs=n * U * 7)  # |x| <= 7, rows are dominated


# --- whole runs -------------------------------------------------------------------------------------------------


def measured(path: str, ranks: int = 1, **values: Any) -> Result:
    """The result of a run on a file, the same on all ranks."""
    short = {"rt": 0.0, "iterations": 7, "storage": "sell", "threads": 1, "warmup": "none"}
    config = HpgMxpConfig(matrix=path, **{**short, **values})
    found = [bench.run(config, Solo())] if ranks == 1 else run_ranks(ranks, lambda comm: bench.run(config, comm))
    assert all(results[0].problem == found[0][0].problem for results in found), "all ranks hear of it"
    (result,) = found[0]
    return result  # type: ignore[no-any-return]


def check_result(r: Result, A: Any, name: str = "A.mtx") -> None:
    """What stands in a result follows from the matrix, and every report can be made of it."""
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
    # ||x - 1|| <= ||A^-1||·||b - A x||, and rounding: n products and sums a row.
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
    """The oracle's problem: M^-1 is a forward substitution with the lower triangle of each rank's diagonal block.

    Its rows stand as they stood, but those with entries of other ranks come last.
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
    """Between ranks a sweep is one of Jacobi's, which is less than Gauss-Seidel's."""
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


def test_a_path_is_told_by_its_name_and_read_compressed(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    A = sp.csr_array(tridiagonal(20))
    plain = Path(write(tmp_path / "deep", A, "line.mtx"))
    packed = plain.with_name("line.mtx.gz")
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    check_result(measured(str(plain)), A, "line.mtx")
    check_result(measured(str(packed)), A, "line.mtx.gz")


def test_the_standard_validation_is_on_the_first_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "FEW", 2)
    path = write(tmp_path, convection(8))
    few, many = measured(path, 2), measured(path, 4)
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
    """Of bits after the first, 2.5 has two; times 1 + 2^-9, 2 has nine, of which bf16 holds seven, and fp16 ten."""
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


# --- what does not converge -------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_gmres_cannot_solve_is_an_invalid_result_with_its_history_and_advice(tmp_path: Path, ranks: int) -> None:
    """Random numbers: two steps gain next to nothing, and the second restart no more than the first."""
    A = sp.csr_array(np.random.default_rng(5).standard_normal((40, 40)))
    result = measured(write(tmp_path, A), ranks, restart=2)
    assert result.status == "invalid"
    assert result.validation["outcome"]["double"] == str(Outcome.NOT_CONVERGED)
    assert len(result.validation["history"]["double"]) > 10
    (caution,) = (one for one in result.warnings if one.code == "unreached")
    assert "--restart" in caution.hint
    VALIDATOR.validate(json.loads(json.dumps(document([result]), allow_nan=False)))


def test_a_mixed_solver_alone_that_fails_is_advised_a_wider_format(tmp_path: Path) -> None:
    """Beside the diagonal fp8 has 1.125 for 1.07, which makes a nearly singular matrix an indefinite one."""
    A = sp.csr_array(1.07 * tridiagonal(200, 2.01))
    result = measured(write(tmp_path, A), mode="explore", precision="fp8", value_tolerance=0.125)
    assert result.status == "invalid"
    (caution,) = (one for one in result.warnings if one.code == "unreached")
    assert "--precision" in caution.hint
    assert result.validation["outcome"]["double"] == str(Outcome.SOLVED)


# --- what is refused --------------------------------------------------------------------------------------------


def refused(ranks: int, config: HpgMxpConfig, error: type[Exception], says: str, action: Callable[..., Any]) -> None:
    """Every rank raises the same."""

    def body(comm: Communicator) -> str:
        with pytest.raises(error, match=says) as caught:
            action(config, comm)
        return str(caught.value)

    assert len(set(run_ranks(ranks, body) if ranks > 1 else [body(Solo())])) == 1


@pytest.mark.parametrize(
    ("values", "says"),
    [({name: 8}, f"--matrix A.mtx and --{name} 8 were both") for name in ("nx", "ny", "nz", "npx", "npy", "npz")]
    + [
        ({"nonsymmetric": True}, "--matrix A.mtx and --nonsymmetric were both"),
        ({"mg_precision": ("fp32",) * 4}, "has 4 formats for 1 level"),
        ({"precision": "fp8"}, "--mode explore"),
    ],
)
def test_what_contradicts_a_file_is_named_with_it(values: dict[str, Any], says: str) -> None:
    refused(2, HpgMxpConfig(matrix="A.mtx", threads=1, **values), UsageError, says, bench.run)


BANNER = "%%MatrixMarket matrix coordinate real general\n"
BAD_FILES = {
    "no banner": ("hello", "not a Matrix Market banner"),
    "dense": ("%%MatrixMarket matrix array real general\n1 1\n1\n", "dense"),
    "rectangular": (BANNER + "2 3 1\n1 1 1\n", "2x3"),
    "complex": ("%%MatrixMarket matrix coordinate complex general\n1 1 1\n1 1 1 0\n", "complex"),
    "empty row": (BANNER + "3 3 2\n1 1 1\n3 3 1\n", "row 2 has no entries"),
    "no diagonal": (BANNER + "2 2 2\n1 2 1\n2 1 1\n", "diagonal entry of row 1"),
    "NaN": (BANNER + "2 2 2\n1 1 1\n2 2 nan\n", "nan"),
    "few rows": (BANNER + "1 1 1\n1 1 1\n", "has 1 rows for 3 ranks"),
    "zero sums": (BANNER + "3 3 6\n1 1 .1\n1 2 -.1\n2 2 .3\n2 3 -.3\n3 3 .7\n3 1 -.7\n", "singular"),
    "too large": (BANNER + "3 3 3\n1 1 1e200\n2 2 1e200\n3 3 1e200\n", "scale the matrix"),
    "overflow": (BANNER + "3 3 4\n1 1 1.5e308\n1 2 1.5e308\n2 2 1\n3 3 1\n", "scale the matrix"),
    "too small": (BANNER + "3 3 3\n1 1 1e-200\n2 2 1e-200\n3 3 1e-200\n", "scale the matrix"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_refused_on_every_rank(tmp_path: Path, name: str) -> None:
    text, says = BAD_FILES[name]
    path = tmp_path / "A.mtx"
    path.write_text(text)
    config = HpgMxpConfig(matrix=str(path), threads=1)
    refused(3, config, UsageError, says, bench.run)
    refused(3, config, UsageError, says, bench.dry_run)


def test_a_missing_file_and_a_folder_are_refused_on_every_rank(tmp_path: Path) -> None:
    refused(2, HpgMxpConfig(matrix=str(tmp_path / "B.mtx"), threads=1), UsageError, "no such file", bench.run)
    refused(2, HpgMxpConfig(matrix=str(tmp_path), threads=1), UsageError, "cannot be read", bench.run)


def test_a_matrix_that_does_not_fit_is_refused_with_the_arithmetic(tmp_path: Path) -> None:
    path = write(tmp_path, tridiagonal(500))
    config, typed = HpgMxpConfig(matrix=path, mem="100kB", threads=1), {"mem": Setting("100kB", "flag")}
    says = "A.mtx with 500 rows and 1498 entries takes matrix .* making .* --mem"
    refused(2, config, ResourceError, says, lambda config, comm: bench.run(config, comm, settings=typed))
    text = bench.dry_run(config, Solo(), typed).text
    assert "does NOT fit" in text


BIDIAGONAL, SCATTERED = tridiagonal(20_000, 2.5, -1.0, 0.0), random_matrix(300, 0.2, 4)


@pytest.mark.parametrize("A", [BIDIAGONAL, SCATTERED], ids=["bidiagonal", "scattered"])
def test_filling_up_a_pattern_takes_no_more_memory_than_is_planned_for(A: Any) -> None:
    """The block that a rank has of the matrix included: columns of 8 bytes and values of 8, and its row pointers."""
    A = sp.csr_array(A)
    A.eliminate_zeros()
    kernels = KERNELS["host"]()

    def fill() -> int:
        block = distribute(Solo(), A)
        rows, _ = localised(kernels, Solo(), block)
        return int(rows.indices.size)

    filled, nnz = fill(), A.nnz
    tracemalloc.start()
    try:
        fill()
        peak = tracemalloc.get_traced_memory()[1] + A.data.nbytes  # other ranks receive what the first has already
    finally:
        tracemalloc.stop()
    assert filled == filled_entries(A) > nnz
    assert peak <= FILLING_BYTES * nnz
    file = MatrixFile("A.mtx", A.shape[0], nnz, filled, nonsymmetric=True)
    parts = file.memory_need([Held((8,), 8)])
    assert parts["matrix"] == 12 * filled
    assert parts["total"] >= parts["filling"] >= peak


def test_a_symmetric_pattern_of_zeros_and_others_is_not_filled_up() -> None:
    A = sp.csr_array(tridiagonal(9, 2.5, -1.0, -0.5))
    A.data[A.data == -0.5] = 0.0  # stored all the same
    assert filled_entries(A) == A.nnz
    assert MatrixFile("A.mtx", 9, A.nnz, A.nnz, nonsymmetric=True).memory_need([Held((8,), 8)])["filling"] == 0


def test_a_dry_run_tells_rows_entries_and_memory(tmp_path: Path) -> None:
    text = bench.dry_run(HpgMxpConfig(matrix=write(tmp_path, tridiagonal(50)), storage="sell"), Solo()).text
    assert "sell: A.mtx  ranks 1: 50 rows, 148 entries; matrices " in text
    assert "matrix:" in text, "the rule that it breaks"
    assert "NOT fit" not in text


def test_at_full_scale_a_file_has_to_be_solved_all_the_same(tmp_path: Path) -> None:
    """What double cannot solve is no aim for the mixed solver, as it is with the benchmark's own matrix."""
    A = sp.csr_array(np.random.default_rng(5).standard_normal((40, 40)))
    result = measured(write(tmp_path, A), 2, restart=2, validation="fullscale")
    assert (result.status, result.validation["threshold"]) == ("invalid", 1e-9)


def test_reading_that_takes_too_much_memory_is_a_matter_of_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str, ranks: int) -> Any:
        raise MemoryError

    monkeypatch.setattr(input, "_read", full)
    refused(2, HpgMxpConfig(matrix="A.mtx", threads=1), ResourceError, "more memory", bench.run)


def test_rows_without_entries_are_found_before_there_is_memory_for_them(tmp_path: Path) -> None:
    """Row pointers alone would take 8 PB."""
    path = tmp_path / "A.mtx"
    path.write_text(BANNER + f"{10**15} {10**15} 1\n1 1 1\n")
    refused(2, HpgMxpConfig(matrix=str(path), threads=1), UsageError, "row 2 has no entries", bench.run)
