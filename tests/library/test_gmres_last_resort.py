"""Test systems that `mxpeak.gmres` solves with permuted rows, or with factors as the last resort."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse

import mxpeak as mx
from mxpeak.solvers import gmres_driver
from mxpeak.solvers.precond import factors
from mxpeak.solvers.precond.factors import factored, fill_of_any, width
from mxpeak.solvers.precond.transversal import rows_to_diagonal, weak_diagonal
from tests.support.sparse_ranks import even, gmres_on
from tests.support.sparse_systems import needs_pyamg, poisson, reached, saddle, stencil, vector


def permuted(A: Any, seed: int = 1) -> Any:
    return sparse.csr_array(A[np.random.default_rng(seed).permutation(A.shape[0])])


def sprinkled(rng: np.random.Generator, n: int, count: int) -> Any:
    """Return random entries at any position, except the diagonal."""
    i, j = rng.integers(0, n, (2, count))
    A = sparse.csr_array(sparse.coo_array((rng.standard_normal(count), (i, j)), shape=(n, n)))
    return sparse.csr_array(A - sparse.diags_array(A.diagonal()))


def karush_kuhn_tucker(n: int = 300, m: int = 100) -> Any:
    """Return the optimality conditions of a quadratic program: H, constraints B, and zeros."""
    rng = np.random.default_rng(3)
    S = sprinkled(rng, n, 3 * n)
    H = S @ S.T + sparse.eye_array(n)
    B = sprinkled(rng, n, 3 * n)[:m] + sparse.eye_array(m, n)
    return sparse.csr_array(sparse.block_array([[H, B.T], [B, None]]))


def zero_diagonal(n: int = 400) -> Any:
    i = np.arange(n)
    return sparse.csr_array(
        sprinkled(np.random.default_rng(4), n, 4 * n) + sparse.coo_array((np.full(n, 3.0), (i, (i + 1) % n)))
    )


def nearly_skew(n: int = 500, eps: float = 1e-3) -> Any:
    S = sprinkled(np.random.default_rng(5), n, 4 * n)
    chain = sparse.diags_array([np.ones(n - 1), -np.ones(n - 1)], offsets=[1, -1])
    return sparse.csr_array(S - S.T + chain + eps * sparse.eye_array(n))


def circuit(n: int = 1000, sources: int = 20) -> Any:
    """Return a circuit: conductances over six decades between near nodes, three dense rows and columns, and sources."""
    rng = np.random.default_rng(6)
    i = rng.integers(0, n, 3 * n)
    j = np.minimum(i + rng.geometric(0.05, 3 * n), n - 1)
    W = sparse.coo_array((10.0 ** rng.uniform(-4, 2, 3 * n), (i, j)), shape=(n, n)).tocsr()
    W = W + W.T
    W = W - sparse.diags_array(W.diagonal())
    G = sparse.lil_array(sparse.diags_array(W.sum(axis=1) + 1e-6) - W)
    for k in range(3):
        at = rng.choice(n, n // 2, replace=False)
        G[k, at], G[at, k] = (1e-2 * rng.standard_normal(at.size) for _ in range(2))
    E = sparse.coo_array((np.ones(sources), (50 + 7 * np.arange(sources), np.arange(sources))), shape=(n, sources))
    return sparse.csr_array(sparse.block_array([[sparse.csr_array(G), E], [E.T, None]]))


SYSTEMS: dict[str, Any] = {
    "permuted Laplacian": permuted(poisson(50, 50)),
    "Karush-Kuhn-Tucker": karush_kuhn_tucker(),
    "zero diagonal": zero_diagonal(),
    "nearly skew": nearly_skew(),
    "circuit": circuit(),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_auto_solves_whatever_its_factors_solve(name: str) -> None:
    A = SYSTEMS[name]
    b = A @ np.ones(A.shape[0])
    _, with_lu = mx.gmres(A, b, preconditioner="lu")
    assert with_lu.converged
    assert with_lu.iterations <= 4
    x, info = mx.gmres(A, b)
    assert info.converged, str(info)
    assert reached(A, x, b, 1e-9)


@pytest.mark.parametrize("name", SYSTEMS)
def test_ranks_solve_them_too(name: str) -> None:
    A = SYSTEMS[name]
    n = A.shape[0]
    x, infos = gmres_on([0, n // 3, n // 3, n], A, A @ np.ones(n))
    assert all(info.converged for info in infos), str(infos[0])
    assert reached(A, x, A @ np.ones(n), 1e-9)


def test_many_right_hand_sides_keep_the_rows_in_their_place() -> None:
    A = SYSTEMS["permuted Laplacian"]
    X = np.stack([vector(2500), np.ones(2500), np.zeros(2500)], axis=1)
    Y, info = mx.gmres(A, A @ X, X + 0.1)
    assert info.converged
    assert "diagonal entries are zero" in info.reason
    np.testing.assert_allclose(Y, X, atol=1e-6)  # condition 1e3 times rtol 1e-9


@needs_pyamg
def test_a_permuted_mesh_in_space_is_solved_as_if_it_were_not_permuted() -> None:
    L = poisson(25, 25, 25)
    x, info = mx.gmres(permuted(L), permuted(L) @ np.ones(25**3))
    assert info.preconditioner == "amg"
    assert "rows were permuted to a full diagonal" in info.reason
    assert info.converged
    np.testing.assert_allclose(x, 1.0, atol=1e-6)
    box = stencil(8, 8, 8)
    assert mx.gmres(permuted(box), vector(512))[1].preconditioner == "stencil"


def test_factors_are_the_last_resort_of_auto_alone_and_info_states_their_memory() -> None:
    A = SYSTEMS["nearly skew"]
    b = vector(500)
    _, info = mx.gmres(A, b)
    assert info.preconditioner == "lu"
    assert info.reason.startswith("the last resort, of at most ")
    assert "GMRES with gs" in info.reason
    x, by_gs = mx.gmres(A, b, preconditioner="gs")
    assert not by_gs.converged
    assert by_gs.preconditioner == "gs"
    assert by_gs.message.endswith(
        'use a restart larger than 30, preconditioner="lu" (complete factors), preconditioner="amg" or '
        "M=scipy.sparse.linalg.spilu(A).solve"
    )
    assert np.isfinite(x).all()
    _, short = mx.gmres(A, b, preconditioner="none", maxiter=20)
    assert 'maxiter=20 steps were used; use a larger maxiter, preconditioner="lu"' in short.message


def test_the_last_resort_serves_the_right_hand_sides_that_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    right = gmres_driver.factored

    def counted(*args: Any) -> Any:
        calls.append("lu")
        return right(*args)

    monkeypatch.setattr(gmres_driver, "factored", counted)
    A = SYSTEMS["nearly skew"]
    X, info = mx.gmres(A, np.stack([vector(500, seed) for seed in range(4)], axis=1))
    assert info.converged
    assert calls == ["lu"]
    for k in range(4):
        assert reached(A, X[:, k], vector(500, k), 1e-9)


def test_without_memory_there_is_no_last_resort_and_info_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    A = SYSTEMS["nearly skew"]
    monkeypatch.setattr(factors, "available_memory_bytes", lambda: 1000)
    _, info = mx.gmres(A, vector(500))
    assert not info.converged
    assert "complete factors, the last resort, are not possible: factors may take" in info.message
    assert 'preconditioner="lu"' in info.message


def test_ranks_without_memory_have_no_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factors, "no_room", lambda *args: "all rows take about 9 GiB on rank 0")
    _, infos = gmres_on(even(500, 2), SYSTEMS["nearly skew"], vector(500))
    assert not infos[0].converged
    assert "the last resort, are not possible: all rows take about 9 GiB on rank 0" in infos[0].message


@needs_pyamg
def test_a_residual_as_small_as_fp64_makes_it_calls_for_no_factors() -> None:
    A = poisson(25, 25, 25)
    _, info = mx.gmres(A, vector(25**3), rtol=0.0)
    assert not info.converged
    assert info.preconditioner == "amg"
    assert "as small as fp64 makes it" in info.message


# --- matching -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_matched_with_columns_by_large_entries(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 60))
    i = rng.permutation(n)
    large = sparse.coo_array((rng.choice([-1.0, 1.0], n), (i, np.arange(n))), shape=(n, n))
    small = 1e-3 * sprinkled(rng, n, 3 * n) if n > 1 else sparse.csr_array((n, n))
    scales = [sparse.diags_array(np.ldexp(1.0, rng.integers(-300, 300, n))) for _ in range(2)]
    A = sparse.csr_array(scales[0] @ (large + small) @ scales[1])
    assert np.array_equal(rows_to_diagonal(A), i)
    assert not weak_diagonal(sparse.csr_array((large + small).tocsr()[i]))


def test_a_strong_diagonal_stays_where_it_is() -> None:
    for A in (poisson(20, 20), abs(poisson(20, 20)), sparse.csr_array(np.ones((9, 9)))):
        assert not weak_diagonal(A)
        assert np.array_equal(rows_to_diagonal(A), np.arange(A.shape[0]))
    assert weak_diagonal(saddle(6))
    assert weak_diagonal(nearly_skew())


def test_a_matrix_without_a_full_diagonal_in_any_order_is_singular() -> None:
    A = np.ones((5, 5))
    A[2:, 1:] = 0.0  # three rows with entries in only one column
    for preconditioner in ("auto", "lu"):
        with pytest.raises(np.linalg.LinAlgError, match=r"structurally singular: at most 3 of 5 rows"):
            mx.gmres(sparse.csr_array(A), np.ones(5), preconditioner=preconditioner)
        with pytest.raises(np.linalg.LinAlgError, match="at most 3 of 5 rows"):
            gmres_on([0, 2, 5], sparse.csr_array(A), np.ones(5), preconditioner=preconditioner)


def test_factors_of_permuted_rows_fill_up_as_those_of_the_rows_in_order() -> None:
    L = poisson(40, 40)
    of_L, of_permuted = (factored(A, "fp64")[0] for A in (L, permuted(L)))
    assert of_L is not None
    assert of_permuted is not None
    assert of_permuted.lu.nnz == of_L.lu.nnz
    r = vector(1600)
    for A, made in ((L, of_L), (permuted(L), of_permuted)):
        np.testing.assert_allclose(A @ made.solve(r), r, atol=1e-10)
        np.testing.assert_allclose(A.T @ made.solve_transposed(r), r, atol=1e-10)


# --- size of factors ------------------------------------------------------------------------------------------------


def test_factors_take_no_more_than_is_estimated() -> None:
    rng = np.random.default_rng(8)
    scattered = sparse.csr_array(sprinkled(rng, 800, 2400) + 3 * sparse.eye_array(800))
    for A in (poisson(12, 12, 12), poisson(60, 60), scattered, circuit(), karush_kuhn_tucker()):
        factors, problem = factored(A, "fp64")
        assert not problem
        assert factors is not None
        assert factors.lu.nnz <= fill_of_any(A)
        assert fill_of_any(A) <= float(A.shape[0]) ** 2


def test_a_row_apart_from_the_others_does_not_make_a_graph_narrow() -> None:
    L = poisson(9, 9, 9)
    expected = width(L)
    first = L.tolil()
    first[0, :] = 0
    first[0, 0] = 1.0
    fixed = sparse.csr_array(first)  # like boundary conditions: the column of the first unknown is not changed
    assert width(fixed) >= 0.5 * expected
    apart = sparse.csr_array(sparse.block_diag([sparse.eye_array(1), L]))
    assert width(apart) == pytest.approx(expected, rel=0.3)


def test_advice_omits_multigrid_if_the_scales_spread_too_far() -> None:
    rng, n = np.random.default_rng(0), 300
    A = sparse.random_array((n, n), density=0.03, rng=rng) + sparse.eye_array(n)
    for decades, offered in ((0, True), (10, False)):
        D = sparse.diags_array(10.0 ** rng.uniform(-decades, decades, n))
        scaled = sparse.csr_array(D @ A)
        info = mx.gmres(scaled, scaled @ np.ones(n), preconditioner="gs", maxiter=60)[1]
        assert ('preconditioner="amg"' in info.message) == offered, info.message
