"""Test `solve` with `assume_a` and `cho_factor` over virtual ranks by residuals in plain arrays.

The triangle that is not read contains NaN.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import mxpeak as mx
from mxpeak.comm.grid import make_grid
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.distributed.dense import dist_matrix
from mxpeak.distributed.symmetric import SymmetricMatrix, is_hermitian
from mxpeak.errors import UsageError
from mxpeak.kernels.arrays import xp
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.grid import ProcessGrid
from mxpeak.library.dense import DistributedCholeskyFactors
from mxpeak.library.dense.mirrored import MirroredSource
from mxpeak.library.dense.symmetric import SymmetricKind
from mxpeak.library.outcomes import IllConditionedWarning
from mxpeak.precision import precision as format_of
from mxpeak.precision import stored_as
from mxpeak.solvers.cholesky import factorize
from mxpeak.spans import Spans
from tests.support.distributed_systems import entries, eta, raised
from tests.support.norm_ranks import scalapack_array, scalapack_part
from tests.support.roundoff import U

Array = Any
GRIDS = [(1, 1), (2, 1), (1, 2), (2, 2), (2, 3), (3, 1)]
#: Grids with orders and block sizes: prime, ragged, fewer blocks than ranks, blocks of one row.
CASES = [((1, 1), 97, 8), ((1, 2), 97, None), ((2, 1), 64, 16), ((2, 2), 101, 12), ((2, 3), 89, 7), ((2, 3), 1, 3)]
CASES += [((3, 2), 5, 1), ((2, 2), 37, 64)]


def definite(n: int, *, is_complex: bool = False, condition: float = 100.0) -> Array:
    """Return a Hermitian positive definite matrix with this condition number."""
    rng = np.random.default_rng(n)
    X = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if is_complex else 0.0)
    Q, _ = np.linalg.qr(X)
    A = (Q * np.geomspace(1.0, 1.0 / condition, n)) @ np.conj(Q.T)
    return (A + np.conj(A.T)) / 2


def half(A: Array, *, lower: bool, other: float = np.nan) -> Array:
    """Return one triangle of A, with `other` in the other one, and imaginary parts on the diagonal."""
    half = np.where(np.tri(len(A), dtype=bool) if lower else np.tri(len(A), dtype=bool).T, A, other)
    return half + np.diag(np.full(len(A), 7j)) if A.dtype.kind == "c" else half


def sides(n: int, *, is_complex: bool, k: int = 3) -> Array:
    rng = np.random.default_rng(n + 1)
    return rng.standard_normal((n, k)) + (1j * rng.standard_normal((n, k)) if is_complex else 0.0)


def on_ranks(A: Array, shape: tuple[int, int], nb: int | None, use: Callable[[Any], Any]) -> list[Any]:
    """Return `use(M)` of every rank for a matrix that is computed from an array."""

    def body(comm: Any) -> Any:
        return use(mx.DistributedMatrix.from_function(entries(A), len(A), nb=nb, comm=comm, grid=shape))

    return run_ranks(shape[0] * shape[1], body)


def part(A: Any, values: Array) -> None:
    """Store this rank's entries."""
    rows, cols = (layout.to_global(np.arange(layout.local_size)) for layout in (A.rows, A.cols))
    A.local[:] = values[np.ix_(rows, cols)]


# --- the factorization ---------------------------------------------------------------------------------------------


def factor_on(shape: tuple[int, int], A: Array, nb: int, precision: str) -> tuple[Array, set[int]]:
    """Factor A from one triangle; return L with zeros above it, and the results of `factorize` on the ranks."""
    n = len(A)

    def body(comm: Any) -> tuple[Array, int]:
        kernels = HostKernels(1, poison=True)
        grid = make_grid(ProcessGrid(*shape), comm)
        assert grid is not None
        M = dist_matrix(grid, n, n, nb, kernels, stored_as(precision))
        part(M, np.tril(A))
        minor = factorize(M, precision, kernels, Spans())
        L, rows, cols = np.zeros((n, n)), M.rows, M.cols
        for (i, gi), (j, gj) in product(rows.blocks(), cols.blocks()):
            if gi.start > gj.start:
                L[gi, gj] = M.local[i, j]
            elif gi.start == gj.start:
                L[gi, gj] = np.triu(M.local[i, j]).T
        return L, minor

    parts = run_ranks(shape[0] * shape[1], body)
    return sum(L for L, _ in parts), {minor for _, minor in parts}


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16", "fp16"])
@pytest.mark.parametrize("shape", GRIDS)
def test_the_factor_has_the_backward_error_of_its_bound(shape: tuple[int, int], precision: str) -> None:
    """|A - L L^T| <= (N + 3)·u·|L||L^T| includes one rounding for S, one for the row of D; 2·u_low is for operands."""
    u, u_low = format_of(stored_as(precision)).u, format_of(precision).u
    for n, nb in ((1, 4), (53, 8), (64, 16), (200, 13), (31, 1)):
        A = definite(n).astype(np.float32).astype(np.float64)
        L, minors = factor_on(shape, A, nb, precision)
        assert minors == {0}
        E = np.abs(np.tril(A - L @ L.T))
        bound = ((n + 3) * u + (2.5 * u_low if precision not in ("fp64", "fp32") else 0.0)) * (abs(L) @ abs(L).T)
        assert (bound + 1e-300 >= E).all(), float((E / bound).max())
        assert not np.triu(L, 1).any()
        if precision == "fp64":
            assert np.abs(L - np.linalg.cholesky(A)).max() <= 50 * n * U * np.linalg.cond(A)


@pytest.mark.parametrize("shape", GRIDS)
def test_the_first_leading_minor_that_is_not_positive_is_found_on_all_ranks(shape: tuple[int, int]) -> None:
    n, nb = 61, 7
    for k in (0, 1, 6, 7, 30, 59, 60):
        for value in (-1.0, 0.0, np.nan):
            A = definite(n)
            A[k, k] = value if value else np.linalg.cholesky(A)[k, :k] @ np.linalg.cholesky(A)[k, :k] - 1e-3
            assert factor_on(shape, A, nb, "fp64")[1] == {k + 1}, (k, value)


@pytest.mark.parametrize("shape", GRIDS)
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize(("n", "nb"), [(47, 6), (333, 150)])  # blocks with fewer and with more rows than a tile
def test_products_read_one_triangle(shape: tuple[int, int], lower: bool, n: int, nb: int) -> None:
    A = definite(n)
    X = sides(n, is_complex=False, k=5)

    def body(comm: Any) -> None:
        kernels = HostKernels(1, poison=True)
        grid = make_grid(ProcessGrid(*shape), comm)
        assert grid is not None
        stored = half(A, lower=lower)

        def strips(rows: BlockCyclic, cols: BlockCyclic, local: slice) -> Array:
            i, j = (layout.to_global(np.arange(layout.local_size)) for layout in (rows, cols))
            return stored[np.ix_(i[local], j)]

        M = SymmetricMatrix(grid, n, nb, strips, kernels, lower=lower)
        rows, cols = (layout.to_global(np.arange(layout.local_size)) for layout in (M.rows, M.cols))
        for x in (X, X[:, 0], X[:, :2]):
            bound = 2 * n * U * (np.abs(A) @ np.abs(x))
            assert (np.abs(M.multiply(x[cols]) - (A @ x)[rows]) <= bound[rows]).all()
            assert (np.abs(M.multiply_transposed(x[rows]) - (A @ x)[cols]) <= bound[cols]).all()
        copy = dist_matrix(M.grid, n, n, nb, kernels)
        M.store(copy)
        assert np.array_equal(copy.local, np.tril(A)[np.ix_(rows, cols)])

    run_ranks(shape[0] * shape[1], body)


# --- results -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16"])
@pytest.mark.parametrize(("shape", "n", "nb"), CASES)
def test_all_ranks_get_the_solution_from_one_triangle(
    shape: tuple[int, int], n: int, nb: int | None, precision: str
) -> None:
    for is_complex, lower in product((False, True), (False, True)):
        A, b = definite(n, is_complex=is_complex), sides(n, is_complex=is_complex)
        answers = on_ranks(
            half(A, lower=lower),
            shape,
            nb,
            lambda M, b=b, lower=lower: mx.solve(M, b, assume_a="pos", lower=lower, precision=precision),
        )
        x, info = answers[0]
        assert (info.solved, info.factorization, info.precision, info.fallback) == (True, "Cholesky", precision, False)
        assert (info.grid, info.n, info.rhs) == (shape, n, 3)
        assert x.dtype == A.dtype
        assert eta(A, x, b) <= 1 + 2 * max(4 / n, 1)
        assert np.abs(x - np.linalg.solve(A, b)).max() <= 50 * n * U * 100.0 * np.abs(x).max()
        assert all(np.array_equal(x, other) for other, _ in answers)
        assert info.growth <= 1.01


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
@pytest.mark.parametrize("is_complex", [False, True])
def test_results_depend_on_the_grid_only_by_rounding(precision: str, is_complex: bool) -> None:
    n = 73
    A, b = definite(n, is_complex=is_complex), sides(n, is_complex=is_complex)
    solutions = [
        on_ranks(A, shape, 9, lambda M: mx.solve(M, b, assume_a="pos", precision=precision))[0] for shape in GRIDS
    ]
    exact, _ = mx.solve(A, b, assume_a="pos")
    for x, info in solutions:
        assert info.iterations == solutions[0][1].iterations
        assert np.abs(x - exact).max() <= 4 * n * U * 100.0 * np.abs(exact).max()


@pytest.mark.parametrize("lower", [False, True])
def test_the_factor_solves_transposes_and_many_right_hand_sides(lower: bool) -> None:
    n = 59
    for is_complex, precision in product((False, True), ("fp64", "fp32", "fp16")):
        A = definite(n, is_complex=is_complex)
        B = {k: sides(n, is_complex=is_complex, k=k) for k in (1, 9)}

        def use(M: Any, precision: str = precision, B: Any = B) -> Any:
            F = mx.cho_factor(M, lower=lower, precision=precision)
            assert isinstance(F, DistributedCholeskyFactors)
            assert repr(F).startswith(f"DistributedCholeskyFactors(DistributedMatrix({n}x{n}")
            solved = {(k, form): F.solve(B[k], transposed=form) for k in B for form in ("N", "T", "H")}
            rows = slice(M.own_rows.start, M.own_rows.stop)
            return solved, F.condition, F.solve(B[9][rows], local=True)[0], F.precision

        answers = on_ranks(half(A, lower=lower), (2, 2), 8, use)
        for solved, condition, _, used in answers:
            assert used == precision
            cond = np.linalg.cond(A, 1)
            assert cond / 3 <= condition <= (2.0 if is_complex else 1.1) * cond
            for (k, form), (X, info) in solved.items():
                assert info.solved
                assert eta({"N": A, "T": A.T, "H": np.conj(A.T)}[form], X, B[k]) <= 1 + 2 * max(4 / n, 1)
        local = np.concatenate([x for _, _, x, _ in answers])
        assert np.array_equal(local, answers[0][0][9, "N"][0])


@pytest.mark.parametrize("source", ["rows", "root", "pieces", "file", "scalapack"])
@pytest.mark.parametrize("is_complex", [False, True])
def test_wherever_the_entries_lie_only_one_triangle_counts(source: str, is_complex: bool, tmp_path: Any) -> None:
    n = 23
    A, b = definite(n, is_complex=is_complex), sides(n, is_complex=is_complex)
    for lower in (False, True):
        stored = half(A, lower=lower, other=1e3)
        np.save(tmp_path / "A.npy", np.asfortranarray(stored))

        def body(comm: Any, stored: Array = stored, lower: bool = lower) -> Any:
            first = comm.rank == 0
            if source == "rows":
                M = mx.DistributedMatrix.from_rows(stored[:9] if first else stored[9:], comm=comm, nb=4)
            elif source == "root":
                M = mx.DistributedMatrix.from_root(stored if first else None, comm=comm, nb=4)
            elif source == "pieces":
                mine = {(0, 0): stored[:, :11]} if first else {(0, 11): stored[:, 11:]}
                M = mx.DistributedMatrix.from_pieces(mine, n, comm=comm, nb=4)
            elif source == "file":
                M = mx.DistributedMatrix.from_file(tmp_path / "A.npy", comm=comm, nb=4)
            else:
                desc = [1, 0, n, n, 4, 4, 0, 0, n]
                local = scalapack_array(scalapack_part(stored, desc, (2, 1), comm.rank, 0), n, flat=False)
                local = np.asfortranarray(np.nan_to_num(local).astype(stored.dtype))
                M = mx.DistributedMatrix.from_blocks(mx.from_scalapack(local, desc, grid=(2, 1), comm=comm))
            before = stored.copy()
            done = [mx.solve(M, b, assume_a="pos", lower=lower, precision=how) for how in ("fp64", "fp32")]
            assert np.array_equal(stored, before)
            return done

        for x, info in run_ranks(2, body)[0]:
            assert info.solved
            assert not info.fallback
            assert eta(A, x, b) <= 1 + 2 * max(4 / n, 1)


def test_diagonals_of_any_scale_are_solved() -> None:
    n = 61
    D = np.ldexp(1.0, np.arange(n) * 4 - 120)
    A = definite(n) * D[:, None] * D
    b = A @ np.ones(n)
    for precision, shape in product(("fp64", "fp32"), ((2, 2), (1, 2))):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IllConditionedWarning)
            x, info = on_ranks(A, shape, 8, lambda M, how=precision: mx.solve(M, b, assume_a="pos", precision=how))[0]
        assert info.solved
        assert info.scaled
        assert eta(A, x, b) <= 2


# --- breakdowns and fallbacks --------------------------------------------------------------------------------------


def test_insufficient_fp32_factors_are_recomputed_in_fp64() -> None:
    n = 60
    for why, A in (
        ("leading minor", definite(n, condition=1e10)),
        ("||A||_inf is inf", 1e40 * definite(n)),
        ("||A||_inf is", 1e-40 * definite(n)),
    ):
        b = A @ np.ones(n)
        for shape in ((1, 1), (2, 2)):
            for x, info in on_ranks(A, shape, 8, lambda M, b=b: mx.solve(M, b, assume_a="pos", precision="fp32")):
                assert (info.solved, info.precision, info.fallback) == (True, "fp64", True), why
                assert why in info.message
                assert "the Cholesky in fp32" in info.message
                assert eta(A, x, b) <= 2, why


def test_too_coarse_factors_are_made_again_and_the_lower_ones_are_kept() -> None:
    n, fallbacks = 80, 0
    for condition in np.geomspace(1e2, 1e9, 8):
        A = definite(n, condition=condition)
        b = A @ np.ones(n)
        for precision in ("fp32", "bf16", "fp16"):
            x, info = on_ranks(
                A, (2, 1), 8, lambda M, b=b, how=precision: mx.solve(M, b, assume_a="pos", precision=how)
            )[0]
            assert info.solved
            assert eta(A, x, b) <= 2
            assert (info.precision == precision) != info.fallback
            fallbacks += info.fallback
    assert 0 < fallbacks < 24


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("lower", [False, True])
def test_an_indefinite_matrix_is_one_error_that_names_the_leading_minor_on_all_ranks(
    is_complex: bool, lower: bool
) -> None:
    n = 41
    for k, precision in product((0, 7, 20, 40), ("auto", "fp32", "fp16")):
        A = definite(n, is_complex=is_complex)
        A[k, k] -= 3.0
        stored = half(A, lower=lower)

        def fail(comm: Any, stored: Array = stored, precision: str = precision) -> None:
            M = mx.DistributedMatrix.from_function(entries(stored), n, nb=5, comm=comm)
            mx.solve(M, np.ones(n), assume_a="pos", lower=lower, precision=precision)

        texts = raised(4, fail)
        assert len(set(texts)) == 1
        at = k + 1 if lower else 1 + next(m for m in range(n) if np.linalg.eigvalsh(A[: m + 1, : m + 1])[0] <= 0)
        assert texts[0].startswith(
            f"NotPositiveDefiniteError: A is not positive definite: the leading minor of order {at}"
        )
        assert "mxpeak.lu_factor(A)" in texts[0]


@pytest.mark.parametrize("shape", [(1, 1), (2, 2)])
def test_a_pivot_whose_square_overflows_is_not_positive(shape: tuple[int, int]) -> None:
    A, b = np.array([[1.0, 1e100], [1e100, 1.0]]), np.array([1e100, 1.0])

    def matrix(comm: Any) -> Any:
        return mx.DistributedMatrix.from_function(entries(A), 2, nb=1, comm=comm, grid=shape)

    texts = raised(shape[0] * shape[1], lambda comm: mx.solve(matrix(comm), b, assume_a="pos"))
    assert len(set(texts)) == 1
    assert texts[0].startswith("NotPositiveDefiniteError: A is not positive definite: the leading minor of order 2")
    for x, info in on_ranks(A, shape, 1, lambda M: mx.solve(M, b, assume_a="auto")):
        assert info.factorization == "LU"
        assert "cholesky" in info.times
        assert eta(A, x, b) <= 3


@pytest.mark.parametrize("shape", [(1, 1), (2, 2)])
def test_sums_of_rows_and_columns_do_not_count_the_diagonal_twice(shape: tuple[int, int]) -> None:
    A, b = np.diag([1e308, 1e308]), np.array([1e308, 5e307])
    for x, info in on_ranks(A, shape, 1, lambda M: mx.solve(M, b, assume_a="pos")):
        assert info.solved
        assert np.allclose(x, [1.0, 0.5], rtol=1e-15)


def test_auto_uses_cholesky_if_it_exists_and_otherwise_lu() -> None:
    n = 45
    A, Z = definite(n), definite(n, is_complex=True)
    skewed, zero, negative, shifted = A.copy(), A.copy(), A.copy(), Z.copy()
    skewed[3, 40] = np.nextafter(skewed[3, 40], 9.0)
    zero[2, 2], negative[44, 44] = 0.0, -1.0
    shifted[5, 5] += 1e-20j
    indefinite = A - 0.5 * np.eye(n)
    indefinite[np.arange(n), np.arange(n)] = 1e-3
    for M, expected in (
        (A, "Cholesky"), (Z, "Cholesky"), (Z.T.copy(), "Cholesky"), (skewed, "LU"), (zero, "LU"), (negative, "LU"),
        (shifted, "LU"), (Z + Z.T, "Cholesky"), (Z - 0.5j * Z.T, "LU"), (indefinite, "LU"), (-A, "LU"),
    ):  # fmt: skip
        b = M @ np.ones(n)
        for shape in ((1, 1), (2, 2), (2, 3)):
            for x, info in on_ranks(M, shape, 6, lambda M, b=b: mx.solve(M, b, assume_a="auto")):
                assert info.factorization == expected
                assert eta(M, x, b) <= 3
                assert ("A is symmetric or Hermitian, but not positive definite" in info.message) == (M is indefinite)
                assert ("cholesky" in info.times) == (M is indefinite)


def test_one_changed_entry_is_found_by_the_test_for_symmetry() -> None:
    """Entries with few bits, of which only the highest ones differ, are the hardest for the hash."""
    n, rng = 26, np.random.default_rng(8)
    S = rng.integers(-2, 3, (n, n)).astype(np.float64)
    S = S + S.T + 20 * np.eye(n)
    S[0, 1], S[1, 0] = 0.0, -0.0

    def hermitian(A: Array, shape: tuple[int, int]) -> set[bool]:
        def use(M: Any) -> bool:
            g = M.grid
            return is_hermitian(g, (BlockCyclic(n, M.nb, g.p, g.P), BlockCyclic(n, M.nb, g.q, g.Q)), M.source, xp)

        return set(on_ranks(A, shape, 5, use))

    for shape in GRIDS:
        assert hermitian(S, shape) == {True}
        for i, j in rng.integers(0, n, (12, 2)):
            if i != j:
                for value in (S[i, j] + 1.0, -S[i, j] or 1.0, 2.0 * S[i, j] or 4.0):
                    A = S.copy()
                    A[i, j] = value
                    assert hermitian(A, shape) == {False}
        A = S.copy()
        A[3, 4], A[5, 6] = S[5, 6] + 1.0, S[3, 4] + 1.0
        assert hermitian(A, shape) == {False}


def test_a_function_computes_each_entry_about_once() -> None:
    n, nb, counted = 96, 8, []

    def body(comm: Any) -> Any:
        A = definite(n)

        def fn(i: Any, j: Any) -> Any:
            counted.append(np.broadcast(i, j).size)
            return A[i, j]

        M = mx.DistributedMatrix.from_function(fn, n, nb=nb, comm=comm)
        strip = MirroredSource(M.source, SymmetricKind(lower=True, hermitian=False, definite=False))
        rows, columns = BlockCyclic(n, nb, 0, 1), BlockCyclic(n, nb, 0, 1)
        counted.clear()
        whole = np.concatenate([strip(rows, columns, slice(i, i + nb)) for i in range(0, n, nb)])
        assert np.array_equal(whole, np.tril(A) + np.tril(A, -1).T)
        return sum(counted)

    assert run_ranks(1, body) == [n * (n + nb)]


def test_a_solver_keeps_the_factors_of_a_distributed_matrix() -> None:
    A = definite(30)

    def body(comm: Any) -> Any:
        solver = mx.Solver(held(comm, A), assume_a="pos")
        assert "not factored" in repr(solver)
        first, second = solver.solve(np.ones(30)), solver.solve(np.arange(30.0), transposed=True)
        assert "factor" in first[1].times
        assert "factor" not in second[1].times
        assert {first[1].factorization, second[1].factorization} == {"Cholesky"}
        solver.update(held(comm, 2 * A))
        halved = solver.solve(np.ones(30))[0]
        assert np.allclose(2 * halved, first[0])
        automatic = mx.Solver(held(comm, A - 0.5 * np.eye(30)), assume_a="auto").solve(np.ones(30))[1]
        assert automatic.factorization == "LU"
        solver.close()
        with pytest.raises(UsageError, match="use a new Solver"):
            solver.update(held(comm, definite(12)))
        with pytest.raises(UsageError, match="the earlier A is a DistributedMatrix"):
            solver.update(A)
        with pytest.raises(UsageError, match="cannot be pickled"):
            pickle.dumps(solver)
        with pytest.raises(UsageError, match="rtol is not an option of a Solver for a distributed matrix"):
            mx.Solver(held(comm, A), rtol=1e-9)
        return second[0]

    for x in run_ranks(2, body):
        assert eta(A, x, np.arange(30.0)) <= 3
    with pytest.raises(UsageError, match="the new A is a DistributedMatrix"):
        mx.Solver(A).update(mx.DistributedMatrix.from_rows(A))


def held(comm: Any, A: Array) -> Any:
    return mx.DistributedMatrix.from_function(entries(A), len(A), nb=4, comm=comm, grid=(1, 2))


def test_arguments_that_differ_between_ranks_are_one_error() -> None:
    A = definite(12)
    for first, second in (
        ({"assume_a": "pos", "lower": True}, {"assume_a": "pos"}),
        ({"assume_a": "gen"}, {"assume_a": "pos"}),
        ({"assume_a": "auto"}, {"assume_a": "sym"}),
    ):
        texts = raised(2, lambda comm, both=(first, second): mx.solve(held(comm, A), np.ones(12), **both[comm.rank]))
        assert len(set(texts)) == 1
        assert "rank 1: this rank uses assume_a=" in texts[0]
    texts = raised(2, lambda comm: mx.cho_factor(held(comm, A), lower=comm.rank == 1))
    assert "rank 1: this rank uses assume_a='pos', lower=True" in texts[0]


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        (lambda M, **how: mx.solve(M, np.ones(12), **how), {"assume_a": "spd"}),
        (lambda M, **how: mx.solve(M, np.ones(12), **how), {"assume_a": "pos", "lower": 2}),
        (lambda M, **how: mx.solve(M, np.ones(12), **how), {"transposed": "C"}),
        (lambda M, **how: mx.solve(M, np.ones(12), **how), {"fp64": "fast"}),
        (mx.lu_factor, {"fp64": "emulated"}),
        (mx.cho_factor, {"lower": "yes"}),
    ],
)
def test_an_invalid_argument_on_one_rank_is_an_error_on_all(call: Callable[..., Any], wrong: dict[str, Any]) -> None:
    A = definite(12)
    texts = raised(2, lambda comm: call(held(comm, A), **(wrong if comm.rank else {})))
    assert len(set(texts)) == 1
    assert texts[0].startswith("UsageError: rank 1: ")


def test_nan_in_the_triangle_that_is_read_is_one_error() -> None:
    A = definite(20)
    A[13, 4] = np.nan
    for lower in (True, False):

        def solve(comm: Any, lower: bool = lower) -> Any:
            return mx.solve(held(comm, A), np.ones(20), assume_a="pos", lower=lower)

        if lower:
            texts = raised(2, solve)
            assert len(set(texts)) == 1
            assert "A[13, 4] is nan" in texts[0]
            assert texts[0].endswith("in the lower triangle, or read the other one by lower=False")
        else:
            assert all(info.solved for _, info in run_ranks(2, solve))


def test_an_error_of_the_function_is_raised_on_all_ranks_also_in_residuals() -> None:
    A, broken = definite(24), []

    def body(comm: Any) -> str:
        def fn(i: Any, j: Any) -> Any:
            if broken and comm.rank == 1:
                raise OSError("the table is gone")
            return A[i, j]

        F = mx.cho_factor(mx.DistributedMatrix.from_function(fn, 24, nb=4, comm=comm), precision="fp32")
        comm.barrier()
        broken.append(True)
        with pytest.raises(mx.MxpeakError, match="rank 1: fn") as error:
            F.solve(np.ones(24))
        return str(error.value)

    assert len(set(run_ranks(2, body))) == 1


def test_a_singular_definite_matrix_is_reported() -> None:
    n = 40
    A = np.eye(n)
    A[0, -1] = A[-1, 0] = 1.0
    A[-1, -1] += 2 * U  # the last pivot is exactly 2·u, so the factorization succeeds
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _, info = on_ranks(A, (2, 2), 8, lambda M: mx.solve(M, np.ones(n), assume_a="pos"))[0]
    assert info.factorization == "Cholesky"
    assert info.ill_conditioned
    assert any(one.category is IllConditionedWarning for one in caught)
