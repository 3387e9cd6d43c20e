"""Test `solve` with `assume_a="sym"` and `"her"` over virtual ranks by residuals in plain arrays.

The triangle that is not read contains NaN.
"""

from __future__ import annotations

import warnings
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mxpeak as mx
from mxpeak.comm.grid import make_grid
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.distributed.dense import dist_matrix
from mxpeak.distributed.symmetric import fill_upper
from mxpeak.errors import UsageError
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.layout.grid import ProcessGrid
from mxpeak.library.outcomes import IllConditionedWarning
from mxpeak.precision import precision as format_of
from mxpeak.solvers import block_ldl
from mxpeak.solvers.accuracy import plain_lu_by_rows
from mxpeak.solvers.block_ldl import EIGEN_ORDER, factor_diagonal_block, factorize
from mxpeak.spans import Spans
from tests.support.distributed_systems import entries, eta, raised
from tests.support.roundoff import U

Array = Any
GRIDS = [(1, 1), (1, 2), (2, 2), (2, 3)]
#: Grids with orders and block sizes: prime, ragged, fewer blocks than ranks, blocks of one row.
CASES = [((1, 1), 97, 8), ((1, 2), 97, None), ((2, 1), 64, 16), ((2, 2), 101, 12), ((2, 3), 89, 7), ((2, 3), 1, 3)]
CASES += [((3, 2), 5, 1), ((2, 2), 37, 64)]
#: The structures: the name for `assume_a`, and whether the entries are complex.
KINDS = [("sym", False), ("her", True), ("sym", True)]


def indefinite(n: int, name: str = "sym", *, is_complex: bool = False) -> Array:
    """Return a symmetric or Hermitian matrix with Gaussian entries."""
    rng = np.random.default_rng(n)
    X = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if is_complex else 0.0)
    return X + (np.conj(X.T) if name == "her" else X.T)


def sides(n: int, k: int = 2, *, is_complex: bool = False) -> Array:
    rng = np.random.default_rng(n + 1)
    return rng.standard_normal((n, k)) + (1j * rng.standard_normal((n, k)) if is_complex else 0.0)


def half(A: Array, name: str = "sym", *, lower: bool, other: float = np.nan) -> Array:
    """Return a triangle of A with `other` in the other one; a Hermitian diagonal gets imaginary parts."""
    inside = np.tri(len(A), dtype=bool) if lower else np.tri(len(A), dtype=bool).T
    half = np.where(inside, A, other)
    return half + np.diag(np.full(len(A), 7j)) if name == "her" and A.dtype.kind == "c" else half


def of_form(A: Array, form: str) -> Array:
    return {"N": A, "T": A.T, "H": np.conj(A.T)}[form]


def solved_on(A: Array, b: Array, shape: tuple[int, int], nb: int | None, **how: Any) -> list[Any]:
    """Return the results of `solve` on every rank for a matrix that is computed from an array."""

    def body(comm: Any) -> Any:
        return mx.solve(mx.DistributedMatrix.from_function(entries(A), len(A), nb=nb, comm=comm, grid=shape), b, **how)

    return run_ranks(shape[0] * shape[1], body)


# --- the factorization ---------------------------------------------------------------------------------------------


def on_grid(shape: tuple[int, int], A: Array, nb: int, precision: str, use: Any) -> list[Any]:
    """Return `use(M, kernels)`, rows and columns of every rank for the lower triangle of A on a grid."""
    n = len(A)

    def body(comm: Any) -> Any:
        kernels = HostKernels(1, poison=True)
        grid = make_grid(ProcessGrid(*shape), comm)
        assert grid is not None
        M = dist_matrix(grid, n, n, nb, kernels, precision)
        rows, cols = (layout.to_global(np.arange(layout.local_size)) for layout in (M.rows, M.cols))
        M.local[:] = np.tril(A)[np.ix_(rows, cols)]
        return M, rows, cols, use(M, kernels)

    return run_ranks(shape[0] * shape[1], body)


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
@pytest.mark.parametrize("shape", [*GRIDS, (3, 1)])
def test_the_factors_have_the_backward_error_of_their_bound(
    shape: tuple[int, int], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check |A + V Δ V^T - L S L^T| <= 2·N·u·max |L||L^T|, and growth by its definition."""
    monkeypatch.setattr(block_ldl, "EIGEN_ORDER", 8)  # blocks of order 13 are split
    u = format_of(precision).u
    for n, nb in ((1, 4), (53, 8), (64, 16), (120, 13), (31, 1)):
        A = indefinite(n).astype(np.float32).astype(np.float64)
        A_max = np.abs(A).max()
        parts = on_grid(shape, A, nb, precision, lambda M, k, m=A_max: factorize(M, m, 1e6, k, Spans()))
        L, V = np.zeros((n, n)), np.zeros((n, len(parts[0][3].Δ)))
        for M, rows, _, result in parts:
            assert result.breakdown == 0
            V[rows] = result.V
            for (i, gi), (j, gj) in product(M.rows.blocks(), M.cols.blocks()):
                if gi.start > gj.start:
                    L[gi, gj] = M.local[i, j]
                elif gi.start == gj.start:
                    L[gi, gj] = np.linalg.inv(M.local[i, j].astype(np.float64))
        signs, Δ, largest = parts[0][3].signs, parts[0][3].Δ, parts[0][3].largest
        assert set(np.abs(signs)) == {1.0}
        assert all(np.array_equal(signs, other.signs) and largest == other.largest for *_, other in parts)
        error = np.abs(A + (V * Δ) @ V.T - (L * signs) @ L.T).max()
        assert error <= 2 * max(n, 8) * u * largest, (n, error / (u * largest))
        assert largest == pytest.approx(np.square(L).sum(axis=1).max(), rel=1e-3)
        assert (np.count_nonzero(V, axis=0) <= nb).all()
        assert np.abs(V.T @ V - np.eye(len(Δ))).max(initial=0.0) <= 1e-12


def test_small_eigenvalues_are_replaced_unless_there_are_many_or_the_block_is_the_last_one() -> None:
    n, nb = 192, 96
    Q, _ = np.linalg.qr(indefinite(nb))
    for small, replaced in ((1, 1), (2, 2), (3, 0)):
        eigenvalues = np.where(np.arange(nb) < small, 1e-9, 1.0) * np.where(np.arange(nb) % 2, 1.0, -1.0)
        block = (Q * eigenvalues) @ Q.T
        A = np.block([[block, np.eye(nb)], [np.eye(nb), block]])
        for shape in ((1, 1), (2, 2)):
            for *_, result in on_grid(shape, A, nb, "fp64", lambda M, k: factorize(M, 1.0, 1e12, k, Spans())):
                assert len(result.Δ) == replaced
                assert result.breakdown == 0
                assert (result.largest < 10.0) == (replaced > 0)
        assert len(A) == n


def test_singular_blocks_and_growth_end_the_factorization_on_all_ranks() -> None:
    n, nb = 40, 4
    singular, large = indefinite(n), indefinite(n)
    singular[8:12, :] = singular[:, 8:12] = 0.0
    large[:4, :4] = np.diag([1e-9, 1e-9, 1e-9, 1e-9])
    nan = indefinite(n)
    nan[17, 17] = np.nan
    for A, column in ((singular, 9), (large, 5), (nan, 17)):
        for shape in GRIDS:
            results = on_grid(shape, A, nb, "fp64", lambda M, k: factorize(M, 4.0, 1e6, k, Spans()))
            assert {(result.breakdown, result.largest) for *_, result in results} == {(column, np.inf)}


def test_a_block_without_eigenvalues_ends_the_factorization_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the library on one rank would leave the others waiting."""
    n = 40
    A, b = indefinite(n), sides(n)

    def fail(_: Any) -> Any:
        raise np.linalg.LinAlgError("Eigenvalues did not converge")

    monkeypatch.setattr(np.linalg, "eigh", fail)
    for x, info in solved_on(half(A, lower=False), b, (2, 2), 8, assume_a="sym"):
        assert (info.solved, info.factorization) == (True, "LU")
        assert "a diagonal block is singular" in info.message
        assert eta(A, x, b) <= 2


def test_a_large_block_is_factored_in_halves() -> None:
    n = 2 * EIGEN_ORDER + 37
    A = indefinite(n)
    block = factor_diagonal_block(A, np.abs(A).max(), np)
    M = (block.L * block.signs) @ block.L.T
    assert np.abs(M - A - (block.V * block.Δ) @ block.V.T).max() <= 1e-16 * n * np.square(block.L).sum(axis=1).max()
    assert np.abs(block.inverse @ block.L - np.eye(n)).max() <= 1e-10
    with np.errstate(all="ignore"):
        assert not np.isfinite(factor_diagonal_block(A * np.nan, 1.0, np).inverse).any()
        assert not np.isfinite(factor_diagonal_block(np.zeros((n, n)), 1.0, np).inverse).any()


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
@pytest.mark.parametrize("shape", [*GRIDS, (3, 2)])
def test_the_upper_triangle_is_filled_on_any_grid(shape: tuple[int, int], precision: str) -> None:
    for n, nb in ((1, 2), (23, 4), (30, 5), (7, 1)):
        A = indefinite(n).astype(np.float32)
        for M, rows, cols, _ in on_grid(shape, A, nb, precision, fill_upper):
            assert np.array_equal(M.local, A[np.ix_(rows, cols)])


# --- results -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
@pytest.mark.parametrize(("shape", "n", "nb"), CASES)
def test_all_ranks_get_the_solution_from_one_triangle(
    shape: tuple[int, int], n: int, nb: int | None, precision: str
) -> None:
    for number, ((name, is_complex), lower) in enumerate(product(KINDS, (False, True))):
        A, b = indefinite(n, name, is_complex=is_complex), sides(n, is_complex=is_complex)
        form = "NTH"[number % 3]
        how = {"assume_a": name, "lower": lower, "precision": precision, "transposed": form}
        answers = solved_on(half(A, name, lower=lower), b, shape, nb, **how)
        x, info = answers[0]
        assert (info.solved, info.factorization, info.precision, info.fallback) == (True, "LDL^T", precision, False)
        assert (info.grid, info.n, info.rhs, info.message) == (shape, n, 2, "")
        assert x.dtype == A.dtype
        M = of_form(A, form)
        assert eta(M, x, b) <= 1 + 2 * max(4 / n, 1)
        assert abs(eta(M, x, b) - info.backward_error) <= (1.5 if is_complex else 0.5) * max(1, 4 / n)
        assert np.abs(x - np.linalg.solve(M, b)).max() <= 1e-14 * n * np.linalg.cond(M) * np.abs(x).max()
        assert all(np.array_equal(x, other) for other, _ in answers)
        assert info.growth < 1e5


@pytest.mark.parametrize(("name", "is_complex"), KINDS)
def test_a_solver_keeps_the_factors_for_transposes_and_many_right_hand_sides(name: str, is_complex: bool) -> None:
    n = 59
    A = indefinite(n, name, is_complex=is_complex)
    B = {k: sides(n, k, is_complex=True) for k in (1, 9)}

    def body(comm: Any) -> Any:
        def matrix(M: Array) -> Any:
            return mx.DistributedMatrix.from_function(entries(half(M, name, lower=True)), n, nb=8, comm=comm)

        solver = mx.Solver(matrix(A), assume_a=name, lower=True, precision="fp32")
        done = {(k, form): solver.solve(B[k], transposed=form) for k in B for form in "NTH"}
        assert "factor" in done[1, "N"][1].times
        assert not any("factor" in info.times for key, (_, info) in done.items() if key != (1, "N"))
        solver.update(matrix(2 * A))
        return done, solver.solve(B[9])[0]

    for done, halved in run_ranks(4, body):
        for (k, form), (X, info) in done.items():
            assert (info.solved, info.factorization, info.precision) == (True, "LDL^T", "fp32")
            assert eta(of_form(A, form), X, B[k]) <= 3
        assert np.allclose(2 * halved, done[9, "N"][0], rtol=1e-9)


def test_replaced_eigenvalues_do_not_change_the_solution() -> None:
    """The blocks have a few small eigenvalues after the transformation."""
    n, counted = 600, []
    A, b = indefinite(n), sides(n)
    original = block_ldl._BlockLDL.replaced

    def counting(self: Any) -> Any:
        V, Δ = original(self)
        counted.append(len(Δ))
        return V, Δ

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_ldl._BlockLDL, "replaced", counting)
        x, info = solved_on(A, b, (2, 2), 48, assume_a="sym", precision="fp32")[0]
    assert min(counted) > 0
    assert info.factorization == "LDL^T"
    assert eta(A, x, b) <= 2
    assert info.iterations <= 6


@pytest.mark.parametrize("source", ["function", "memory", "file"])
@pytest.mark.parametrize(("name", "is_complex"), KINDS)
def test_wherever_the_entries_are_only_one_triangle_counts(
    name: str, is_complex: bool, source: str, tmp_path: Path
) -> None:
    n = 37
    A, b = indefinite(n, name, is_complex=is_complex), sides(n, is_complex=is_complex)
    for lower in (False, True):
        stored = half(A, name, lower=lower, other=7.0 if source == "memory" else np.nan)
        np.save(tmp_path / "A.npy", stored)

        def body(comm: Any, stored: Array = stored, lower: bool = lower) -> Any:
            how = {"nb": 4, "comm": comm, "grid": (2, comm.size // 2)}
            if source == "memory":
                M = mx.DistributedMatrix.from_root(stored if comm.rank == 0 else None, **how)
            elif source == "file":
                M = mx.DistributedMatrix.from_file(tmp_path / "A.npy", **how)
            else:
                M = mx.DistributedMatrix.from_function(entries(stored), n, **how)
            return mx.solve(M, b, assume_a=name, lower=lower), mx.solve(
                M, b, assume_a=name, lower=lower, precision="bf16"
            )

        for (x, info), (y, by_lu) in run_ranks(4, body):
            assert (info.factorization, info.solved, info.fallback) == ("LDL^T", True, False)
            assert (by_lu.factorization, by_lu.solved, by_lu.fallback) == ("LU", True, by_lu.precision == "fp64")
            assert by_lu.message.startswith(
                "LDL^T factors over ranks are in fp32 or fp64; in bf16, LU factored the whole"
            )
            assert eta(A, x, b) <= 3
            assert eta(A, y, b) <= 3


# --- hard matrices and fallbacks -----------------------------------------------------------------------------------


def hard_matrices(n: int) -> dict[str, Array]:
    """Indefinite matrices in which pivots on the diagonal are zero, small or unsuitable."""
    rng, S, i, m, h = np.random.default_rng(4), indefinite(n), np.arange(n), n // 3, n // 2
    zero, lead, corner, block = (S.copy() for _ in range(4))
    np.fill_diagonal(zero, 0.0)
    lead[: n // 4, : n // 4] *= 1e-12
    corner[0, 0] = 1e-20
    block[:h, :h] = 0.0
    X, B = rng.standard_normal((n - m, n - m)), rng.standard_normal((m, n - m))
    saddle = np.block([[X @ X.T / n + np.eye(n - m), B.T], [B, np.zeros((m, m))]])
    first_zero = np.roll(i, m)
    skew = S[:h, :h] * np.sign(i[:h, None] - i[:h])
    return {
        "zero diagonal": zero, "tiny leading block": lead, "tiny corner": corner, "zero block": block,
        "saddle point": saddle, "saddle point, zero first": saddle[np.ix_(first_zero, first_zero)],
        "skew blocks": np.block([[np.zeros((h, h)), skew], [skew.T, np.zeros((h, h))]]),
        "reversed identity": np.eye(n)[::-1].copy(), "path": np.eye(n, k=1) + np.eye(n, k=-1),
        "distances": np.abs(i[:, None] - i) * 1.0, "identity": np.eye(n), "negative definite": -S @ S,
        "graded": S * np.ldexp(1.0, i % 9 * 8 - 32)[:, None] * np.ldexp(1.0, i % 9 * 8 - 32),
    }  # fmt: skip


@pytest.mark.parametrize(("shape", "nb"), [((1, 1), 64), ((1, 2), 7), ((2, 3), 8)])
@pytest.mark.parametrize("precision", ["fp64", "fp32"])
def test_hard_matrices_end_right_with_the_same_warnings_as_lu(shape: tuple[int, int], nb: int, precision: str) -> None:
    n = 58
    for name, A in hard_matrices(n).items():
        b = A @ np.ones(len(A))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IllConditionedWarning)
            x, info = solved_on(half(A, lower=True), b, shape, nb, assume_a="sym", lower=True, precision=precision)[0]
            _, by_lu = solved_on(A, b, shape, nb, precision=precision)[0]
        assert info.solved, name
        assert eta(A, x, b) <= 2, name
        assert info.ill_conditioned == by_lu.ill_conditioned, name
        assert (info.factorization == "LU") == (info.fallback and "LU" in str(info)), name
        if name in ("reversed identity", "skew blocks"):
            continue  # the butterfly of the first may have zero blocks, and the second may be singular
        if precision == "fp64":
            assert info.factorization == "LDL^T", (name, info)


def test_single_rows_are_refined_also_with_factors_in_fp64() -> None:
    """Without that, growth causes row-wise errors of more than twice the limit of LU with partial pivoting."""
    n = 60
    D = np.ldexp(1.0, np.arange(n) % 9 * 8 - 32)
    A = indefinite(n) * D[:, None] * D
    b = A @ np.ones(n)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IllConditionedWarning)
        x, info = solved_on(A, b, (2, 2), 8, assume_a="sym", precision="fp64")[0]
    residual = np.abs(b - A.astype(np.longdouble) @ x)
    error = float((residual / (np.abs(A) @ np.abs(x) + np.abs(b))).max() / (n * U))
    assert (info.factorization, info.iterations) == ("LDL^T", 1)
    assert error <= plain_lu_by_rows(n, is_complex=False)
    assert info.componentwise_error <= plain_lu_by_rows(n, is_complex=False)


def test_a_breakdown_is_a_note_and_lu_has_the_same_precision() -> None:
    n = 64
    A, b = np.eye(n)[::-1].copy(), sides(n)
    for precision, shape in product(("fp64", "fp32"), ((1, 1), (2, 2))):
        for x, info in solved_on(half(A, lower=False), b, shape, 8, assume_a="sym", precision=precision):
            assert (info.solved, info.factorization, info.precision, info.fallback) == (True, "LU", precision, True)
            assert info.message.startswith(
                f"the LDL^T in {precision} broke down: a diagonal block is singular, or growth exceeds"
            )
            assert info.message.endswith("LU factored the whole matrix")
            assert info.why == "LDL^T factors failed"
            assert "LU in " + precision + ", after LDL^T factors failed" in str(info)
            assert np.abs(x - b[::-1]).max() <= 1e-15


@pytest.mark.parametrize(("name", "is_complex"), KINDS)
def test_insufficient_fp32_factors_are_replaced_by_lu_in_fp64(name: str, is_complex: bool) -> None:
    n = 60
    Q, _ = np.linalg.qr(indefinite(n, is_complex=is_complex))
    signs = np.where(np.arange(n) % 3, 1.0, -1.0)
    across = np.conj(Q.T) if name == "her" else Q.T
    for why, A in (
        ("in fp32", (Q * (signs * np.geomspace(1.0, 1e-11, n))) @ across),
        ("in fp32", (Q * (signs * np.where(np.arange(n) == 5, 1e-9, 1.0))) @ across),
    ):
        A = (A + (np.conj(A.T) if name == "her" else A.T)) / 2
        b = A @ np.ones(n)
        for form, shape in (("N", (1, 1)), ("T", (2, 2)), ("H", (2, 1))):
            M = of_form(A, form)
            how = {"assume_a": name, "precision": "fp32", "transposed": form}
            for x, info in solved_on(half(A, name, lower=False), M @ np.ones(n), shape, 8, **how):
                assert (info.solved, info.precision, info.fallback) == (True, "fp64", True)
                assert info.factorization == "LU"
                assert why in info.message
                assert "LDL^T" in info.message
                assert info.message.endswith("LU factored the whole matrix in fp64")
                assert info.why == "LDL^T factors failed"
                assert eta(M, x, M @ np.ones(n)) <= 3
        assert b.shape == (n,)


def test_matrices_beyond_the_range_of_fp32_have_factors_in_fp64() -> None:
    n = 60
    for why, A in (("||A||_inf is inf", 1e40 * indefinite(n)), ("||A||_inf is", 1e-40 * indefinite(n))):
        b = A @ np.ones(n)
        x, info = solved_on(A, b, (2, 2), 8, assume_a="sym", precision="fp32")[0]
        assert (info.solved, info.precision, info.factorization, info.fallback) == (True, "fp64", "LDL^T", True)
        assert info.why == "coarser ones failed"
        assert why in info.message
        assert eta(A, x, b) <= 2


def test_singular_matrices_have_the_same_error_or_warning_as_lu() -> None:
    n = 40
    one = np.ones((n, n))
    zeros = np.zeros((n, n))
    diagonal = np.diag(np.where(np.arange(n) == 17, 0.0, 1.0 + np.arange(n)))
    for A, precision in product((one, zeros, diagonal), ("fp64", "fp32", "auto")):

        def solve(comm: Any, assume_a: str, A: Array = A, precision: str = precision) -> Any:
            M = mx.DistributedMatrix.from_function(entries(A), n, nb=6, comm=comm)
            return mx.solve(M, np.ones(n), assume_a=assume_a, precision=precision)

        texts = raised(4, lambda comm, solve=solve: solve(comm, "sym"))
        assert len(set(texts)) == 1
        assert texts[0].startswith("SingularMatrixError: A is singular: pivot ")
        assert texts == raised(4, lambda comm, solve=solve: solve(comm, "gen"))
    X = indefinite(n)[:, :-1]
    A = X @ np.diag(np.where(np.arange(n - 1) % 2, 1.0, -1.0)) @ X.T
    A = (A + A.T) / 2
    for precision in ("fp64", "fp32"):
        with pytest.warns(IllConditionedWarning, match="numerically singular"):
            _, info = solved_on(A, A @ np.ones(n), (2, 2), 6, assume_a="sym", precision=precision)[0]
        assert info.ill_conditioned
        assert info.factorization == "LU"
        assert f"the LDL^T in {precision} indicates that A may be singular; LU factored" in info.message


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
def test_a_solver_raises_the_error_of_a_failed_fallback_again(precision: str) -> None:
    def body(comm: Any) -> None:
        M = mx.DistributedMatrix.from_function(lambda i, j: 1.0 + 0 * i * j, 30, nb=4, comm=comm)
        solver = mx.Solver(M, assume_a="sym", precision=precision)
        for _ in range(2):
            with pytest.raises(mx.SingularMatrixError):
                solver.solve(np.ones(30))

    run_ranks(2, body)


# --- errors --------------------------------------------------------------------------------------------------------


def held(comm: Any, A: Array) -> Any:
    return mx.DistributedMatrix.from_function(entries(A), len(A), nb=4, comm=comm, grid=(1, 2))


def test_nan_in_the_triangle_that_is_read_is_one_error() -> None:
    A = indefinite(20)
    A[13, 4] = np.nan
    texts = raised(2, lambda comm: mx.solve(held(comm, A), np.ones(20), assume_a="sym", lower=True))
    assert len(set(texts)) == 1
    assert "A[13, 4] is nan" in texts[0]
    assert all(info.solved for _, info in run_ranks(2, lambda c: mx.solve(held(c, A), np.ones(20), assume_a="sym")))
    with pytest.raises(UsageError, match="unknown assume_a"):
        mx.solve(mx.DistributedMatrix.from_rows(indefinite(12)), np.ones(12), assume_a="spd")


def test_an_error_of_the_function_is_raised_on_all_ranks_also_in_residuals_and_fallbacks() -> None:
    regular, singular = indefinite(24), np.ones((24, 24))
    Q, _ = np.linalg.qr(regular)
    by_lu = (Q * np.where(np.arange(24) == 5, -1e-9, 1.0)) @ Q.T
    for A, calls in ((regular, 1), (singular, 0), ((by_lu + by_lu.T) / 2, 1)):
        broken: list[bool] = []

        def body(comm: Any, A: Array = A, broken: list[bool] = broken, calls: int = calls) -> str:
            def fn(i: Any, j: Any) -> Any:
                if broken and comm.rank == 1:
                    raise OSError("the table is gone")
                return A[i, j]

            M = mx.DistributedMatrix.from_function(fn, 24, nb=4, comm=comm)
            solver = mx.Solver(M, assume_a="sym", precision="fp32")
            if calls:
                assert (solver.solve(np.ones(24))[1].factorization == "LU") == (A is not regular)
            comm.barrier()
            broken.append(True)
            with pytest.raises(mx.MxpeakError, match="rank 1: fn") as error:
                solver.solve(np.ones(24))
            return str(error.value)

        assert len(set(run_ranks(2, body))) == 1


def test_matrices_whose_sums_overflow_are_refused() -> None:
    A = 1.7e308 * np.ones((3, 3))
    texts = raised(2, lambda comm: mx.solve(held(comm, A), np.ones(3), assume_a="sym"))
    assert len(set(texts)) == 1
    assert "row or column sums of A exceed 1.8e308" in texts[0]
