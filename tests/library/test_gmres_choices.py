"""Test the choices of `auto` in `mxpeak.gmres`: sweeps, factors and levels."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
from scipy.sparse import csgraph

import mxpeak as mx
from mxpeak.errors import Outcome, SingularError
from mxpeak.kernels.choose import sparse as sparse_kernels
from mxpeak.library.sparse import auto_preconditioner
from mxpeak.solvers.precond import amg, factors, ruge_stuben
from mxpeak.solvers.precond.band import BandFactors, bandwidth, fills_band
from mxpeak.solvers.precond.factors import factored, fill, fill_of_any, largest_level, separator, width
from mxpeak.solvers.precond.symbolic import fill_in_order
from tests.support.sparse_systems import (
    PRECISIONS,
    beam,
    flow,
    jumps,
    line,
    mixed_units,
    needs_pyamg,
    poisson,
    random,
    reached,
    saddle,
    shuffled,
    vector,
    waves,
)


def star(n: int) -> Any:
    """Return the Laplacian of a random graph without its first vertex; some vertices have very many neighbors."""
    rng = np.random.default_rng(4)
    i, j = rng.integers(0, n, 3 * n), rng.integers(0, 1 + n // 40, 3 * n)
    W = sparse.coo_array((np.ones(3 * n), (i, j)), shape=(n, n)).tocsr()
    W = W + W.T + sparse.diags_array([np.ones(n - 1), np.ones(n - 1)], offsets=[-1, 1])
    W = sparse.csr_array(W - sparse.diags_array(W.diagonal()))
    return sparse.csr_array(sparse.diags_array(W.sum(axis=1)) - W)[1:, 1:]


CHOICES = {
    "narrow": (poisson(30, 30), "lu", "narrow, so factors have little fill-in"),
    "narrow, not symmetric": (flow(30, 300.0), "lu", "narrow, so factors have little fill-in"),
    "indefinite": (waves(30), "lu", "narrow"),
    "zeros on the diagonal": (saddle(12), "lu", "diagonal entries are zero"),
    "dominant": (poisson(30, 30) + 10 * sparse.eye_array(900), "gs", "at most 29% of the diagonal"),
    "wide, many neighbours": (star(4000), "gs", "the mean number of neighbors"),
}


@pytest.mark.parametrize("name", CHOICES)
def test_auto_goes_by_the_graph_and_the_entries(name: str) -> None:
    A, expected, reason = CHOICES[name]
    b = vector(A.shape[0])
    x, info = mx.gmres(A, b)
    assert info.preconditioner == expected
    assert reason in info.reason
    assert info.converged, str(info)
    assert info.iterations <= 40
    assert reached(A, x, b, 1e-9)


@needs_pyamg
def test_auto_leaves_wide_and_large_matrices_to_multigrid(monkeypatch: pytest.MonkeyPatch) -> None:
    wide, large = poisson(25, 25, 25), poisson(30, 30)
    assert mx.gmres(wide, vector(25**3))[1].preconditioner == "amg"
    monkeypatch.setattr(auto_preconditioner, "FACTORED_ROWS", 899)
    assert mx.gmres(large, vector(900))[1].preconditioner == "amg"
    unlike = {
        "signs of A do not suit it": abs(poisson(30, 30)),
        "A is not symmetric": flow(30, 300.0),
        "A is indefinite": waves(30),
    }
    for why, A in unlike.items():
        info = mx.gmres(A, vector(900))[1]
        assert info.preconditioner == "lu"
        assert why in info.reason


def test_a_graph_is_as_wide_as_what_cuts_it() -> None:
    assert width(line(1000)) == 1.0
    assert 15 <= width(poisson(30, 200)) <= 30
    assert width(poisson(200, 30)) == width(poisson(30, 200))
    one = sparse.csr_array(np.array([[2.0]]))
    assert width(one) == 1.0


def test_factors_are_about_as_large_as_was_thought() -> None:
    for A in (poisson(60, 60), flow(60), line(5000)):
        factors, problem = factored(A, "fp64")
        assert not problem
        assert factors is not None
        assert factors.lu.nnz <= 1.5 * fill(A.shape[0], A.nnz)


def network(side: int, lines: int) -> Any:
    """Return a complex mesh in which long lines connect random rows."""
    rng, n = np.random.default_rng(1), side * side
    i, j = rng.integers(0, n, (2, lines))
    W = poisson(side, side) - sparse.coo_array((np.ones(lines), (i, j)), shape=(n, n)).tocsr()
    W = W + W.T - sparse.diags_array(2.0 * W.diagonal())
    return sparse.csr_array((sparse.diags_array(1e-3 - W.sum(axis=1)) + W) * (1.0 + 0.5j))


def test_few_long_lines_leave_little_fill_in() -> None:
    A, b = network(100, 100), vector(10_000)
    assert not auto_preconditioner.narrow(A)
    x, info = mx.gmres(A, b)
    assert info.preconditioner == "lu"
    assert info.reason == auto_preconditioner.ORDERED
    assert reached(A, x, b, 1e-9)
    assert not auto_preconditioner.why_little_fill(network(100, 2000), thorough=True)


def with_chain(A: Any, rows: int) -> Any:
    """Return the matrix with a chain of rows that starts at its last row."""
    n = A.shape[0]
    i = np.arange(n - 1, n - 1 + rows)
    chain = sparse.coo_array((np.ones(rows), (i, i + 1)), shape=(n + rows, n + rows)).tocsr()
    return sparse.csr_array(sparse.block_diag([A, 4.0 * sparse.eye_array(rows)]) + chain + chain.T)


def test_a_chain_of_rows_does_not_start_the_order_of_a_random_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    rng, n = np.random.default_rng(2), 12_000
    i, j = rng.integers(0, n, (2, 2 * n))
    W = sparse.coo_array((np.ones(2 * n), (i, j)), shape=(n, n)).tocsr()
    A = with_chain(W + W.T + sparse.eye_array(n), 58)
    assert A.nnz <= auto_preconditioner.FEW_ENTRIES * A.shape[0]
    limit = np.cbrt(auto_preconditioner.NARROW_GRAPH * A.nnz)
    assert limit < width(A) <= auto_preconditioner.SEPARATOR * np.sqrt(A.shape[0])
    monkeypatch.setattr(auto_preconditioner, "fill_in_order", lambda A: pytest.fail("the order was computed"))
    assert not auto_preconditioner.why_little_fill(A, thorough=True)


def scattered_graph(n: int, each: int = 4) -> Any:
    rng = np.random.default_rng(n)
    i, j = rng.integers(0, n, (2, each * n // 2))
    S = sparse.coo_array((np.ones(i.size), (i, j)), shape=(n, n)).tocsr()
    return sparse.csr_array(S + S.T + 10 * sparse.eye_array(n))


def test_a_chain_does_not_make_a_scattered_graph_narrow() -> None:
    """The chain is at the end of the graph or separate from it, and has more or fewer rows than the graph."""
    S = scattered_graph(3000)
    n = S.shape[0]
    for length in (300, 1000, 4000):
        apart = sparse.csr_array(sparse.block_diag([S, line(length)]))
        joined = apart.tolil()
        joined[n - 1, n] = joined[n, n - 1] = -1.0
        for A in (apart, sparse.csr_array(joined)):
            assert not auto_preconditioner.narrow(A), length
    hidden = sparse.csr_array(sparse.block_diag([line(4000), S]))
    assert width(hidden) < 3 <= n / 10 < separator(hidden)
    assert fill_of_any(hidden) >= factored(hidden, "fp64")[0].lu.nnz
    long = sparse.csr_array(sparse.block_diag([line(200_000), scattered_graph(400)]))
    assert auto_preconditioner.narrow(long)  # the factors of a small part cost nothing


def test_meshes_have_separators_of_their_mean_levels() -> None:
    for A in (line(500), poisson(60, 60), poisson(20, 90), poisson(14, 14, 14), poisson(8, 8, 60), flow(60)):
        assert separator(A) == width(A)
        assert largest_level(A) <= 2.5 * width(A)


def by_dijkstra(A: Any) -> int:
    graph = sparse.csr_array(A + A.T)
    _, part = csgraph.connected_components(graph, directed=False)
    _, first = np.unique(part, return_index=True)
    distance = csgraph.dijkstra(abs(graph), indices=first, unweighted=True, min_only=True).astype(np.int64)
    return int(np.unique(A.shape[0] * part.astype(np.int64) + distance, return_counts=True)[1].max())


def test_levels_are_those_of_shortest_paths() -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 60))
        A = sparse.random_array((n, n), density=rng.uniform(0, 3 / n) if n > 3 else 0.5, format="csr", rng=rng)
        assert largest_level(sparse.csr_array(A)) == by_dijkstra(A)


def test_the_largest_level_is_of_all_parts() -> None:
    star = sparse.csr_array(sparse.coo_array((np.ones(5), ([0] * 5, range(1, 6))), shape=(6, 6)))
    assert largest_level(star) == 5
    assert largest_level(line(50)) == 1
    assert largest_level(sparse.csr_array(sparse.block_diag([line(50), star]))) == 5
    assert largest_level(sparse.csr_array(sparse.eye_array(3))) == 1


@pytest.mark.parametrize("A", [network(60, 60), poisson(30, 30), poisson(11, 11, 11), random(300)])
def test_the_order_of_elimination_bounds_the_fill_in(A: Any) -> None:
    dominant = sparse.csr_array(A + 50.0 * sparse.eye_array(A.shape[0]))
    factors, problem = factored(dominant, "fp64")
    assert not problem
    assert factors is not None
    bound = fill_in_order(sparse.csr_array(dominant))
    assert factors.lu.nnz <= bound + A.shape[0]  # SuperLU stores the diagonals of both factors
    assert bound <= 2.5 * factors.lu.nnz


# --- factors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("matrix", [waves(25), saddle(12), flow(25), mixed_units(flow(20))])
def test_factors_solve_in_a_few_steps_in_every_precision(matrix: Any, precision: str) -> None:
    b = vector(matrix.shape[0])
    x, info = mx.gmres(matrix, b, precision=precision, preconditioner="lu", rtol=1e-10)
    assert info.converged, str(info)
    assert info.preconditioner == "lu"
    assert info.times["factor"] > 0
    assert reached(matrix, x, b, 1e-10)
    assert info.iterations <= (2 if precision == "fp64" else 60)


def test_a_step_takes_the_factors_once_and_a_correction_never(monkeypatch: pytest.MonkeyPatch) -> None:
    solved, calls = factors.CompleteFactors.__call__, []

    def counted(self: Any, r: Any) -> Any:
        calls.append(r)
        return solved(self, r)

    A, b = waves(40), vector(1600)
    mx.gmres(A, b)  # compiles, also the solve
    monkeypatch.setattr(factors.CompleteFactors, "__call__", counted)
    x, info = mx.gmres(A, b)
    assert info.preconditioner == "lu"
    assert info.storage == "sell"
    assert info.cycles >= 2
    assert len(calls) == info.iterations
    assert reached(A, x, b, 1e-9)


def test_factors_are_created_and_deleted_by_the_calling_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """SuperLU's memory is freed only on the thread that allocated it."""
    threads: list[int] = []
    dropped: list[int] = []

    class Noticed:
        """Factors that record the threads that create and delete them."""

        def __init__(self, lu: Any):
            self.solve, self.nnz = lu.solve, lu.nnz
            threads.append(threading.get_ident())

        def __del__(self) -> None:
            dropped.append(threading.get_ident())

    right = factors.linalg.splu
    monkeypatch.setattr(factors.linalg, "splu", lambda *args, **options: Noticed(right(*args, **options)))
    assert mx.gmres(poisson(30, 30), np.ones(900), preconditioner="lu")[1].converged
    assert threads
    assert threads == dropped == [threading.get_ident()] * len(threads)


def test_products_behind_factors_are_not_rounded_before_they_are_summed() -> None:
    A, b = shuffled(beam(256)), vector(256)  # condition 7e8, 40 times the limit of fp32
    x, info = mx.gmres(A, b, preconditioner="lu", rtol=1e-6)
    assert info.converged, str(info)
    assert (info.vectors, info.fallback) == ("fp32", False)
    assert info.iterations <= 8
    assert reached(A, x, b, 1e-6)


@pytest.mark.parametrize("dtype", ["fp64", "fp32"])
@pytest.mark.parametrize("phase", [1.0, 1.0 + 2.0j])
def test_a_band_has_factors_of_lapack(phase: complex, dtype: str) -> None:
    rng, n = np.random.default_rng(4), 37
    A = sparse.diags_array([rng.standard_normal(n - abs(k)) for k in (-1, 0, 1, 2)], offsets=[-1, 0, 1, 2])
    A = sparse.csr_array(A * phase)
    factors, problem = factored(A, dtype)
    assert not problem
    assert factors is not None
    assert isinstance(factors.lu, BandFactors)
    B, dense = rng.standard_normal((n, 3)), A.toarray()
    accuracy = 1e3 * np.linalg.cond(dense) * np.finfo(dense.dtype if dtype == "fp64" else np.float32).eps
    assert np.allclose(factors.solve(B), np.linalg.solve(dense, B), rtol=0, atol=accuracy)
    assert np.allclose(
        factors.solve_transposed(B[:, 0]), np.linalg.solve(dense.conj().T, B[:, 0]), rtol=0, atol=accuracy
    )


def test_only_full_and_small_bands_are_bands() -> None:
    assert fills_band(line(50))
    assert fills_band(sparse.csr_array(sparse.eye_array(3)))
    assert not fills_band(shuffled(line(50)))
    assert not fills_band(poisson(5, 50))
    assert bandwidth(poisson(50, 5)) == 5
    wide = sparse.csr_array(np.ones((20, 20)))
    assert not fills_band(wide)


def test_a_singular_band_is_an_error() -> None:
    singular = sparse.csr_array(np.array([[1.0, 1, 0], [1, 1, 0], [0, 0, 1]]))
    with pytest.raises(SingularError, match="exactly zero"):
        factored(singular, "fp32")


def test_where_factors_in_fp32_do_not_do_they_are_made_again_in_fp64() -> None:
    A, b = shuffled(beam(1500)), vector(1500)
    x, info = mx.gmres(A, b, preconditioner="lu", rtol=1e-4)
    assert info.converged, str(info)
    assert info.fallback
    assert reached(A, x, b, 1e-4)


def test_a_zero_pivot_is_an_error_of_numpys_that_names_what_helps() -> None:
    singular = sparse.csr_array(np.array([[1.0, 1, 0], [1, 1, 0], [0, 0, 1]]))
    b = np.array([2.0, 2, 1])
    for preconditioner in ("auto", "lu"):
        for precision in ("mixed", "fp64"):
            with pytest.raises(np.linalg.LinAlgError, match=r'pivot of its LU is exactly zero.*use precond.*"sgs"'):
                mx.gmres(singular, b, preconditioner=preconditioner, precision=precision)
    x, info = mx.gmres(singular, b, preconditioner="sgs")
    assert info.converged
    assert reached(singular, x, b, 1e-9)


def test_without_memory_for_factors_auto_gives_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    A = flow(30)
    monkeypatch.setattr(factors, "available_memory_bytes", lambda: 1000)
    x, info = mx.gmres(A, vector(900))
    assert info.preconditioner == "gs"
    assert "of memory is free" in info.reason
    assert reached(A, x, vector(900), 1e-9)


def test_a_right_hand_side_in_the_null_space_of_the_transpose_is_reported_as_not_converged() -> None:
    L = poisson(20, 20)
    A = sparse.csr_array(L - sparse.diags_array(L.sum(axis=1)))
    with pytest.warns(mx.IllConditionedWarning, match="numerically singular: condition .* x may have no correct digit"):
        x, info = mx.gmres(A, np.ones(400), preconditioner="lu", maxiter=500)
    assert info.outcome is Outcome.UNREACHED
    assert info.residual >= 1 - 1e-9
    assert np.isfinite(x).all()


# --- multigrid -------------------------------------------------------------------------------------------------------


@needs_pyamg
def test_multigrid_of_many_rows_is_made_by_aggregation_where_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def levels(A: Any) -> int:
        x, info = mx.gmres(A, vector(A.shape[0]), preconditioner="amg")
        assert info.iterations <= 60
        assert reached(A, x, vector(A.shape[0]), 1e-9)
        return info.levels

    units = sparse.diags_array(np.where(np.arange(1600) % 7 < 3, 1.0, 2.0**14))
    even, others = flow(40), (jumps(40, 1e4), sparse.csr_array(units @ flow(40)))
    before, of_others = levels(even), [levels(A) for A in others]
    monkeypatch.setattr(ruge_stuben, "EVEN", 100)
    assert levels(even) < before
    assert [levels(A) for A in others] == of_others
    monkeypatch.setattr(amg, "aggregated", lambda *args: ([], "no aggregates"))
    assert levels(even) == before


@needs_pyamg
@pytest.mark.parametrize("seed", [1, 2])
def test_mixed_units_cost_multigrid_few_steps(seed: int) -> None:
    k = np.exp(2 * np.random.default_rng(seed).standard_normal(12**3))
    L = poisson(12, 12, 12)
    offs = sparse.csr_array(L - sparse.diags_array(L.diagonal()))
    i, j = offs.nonzero()
    offs = sparse.csr_array((-2 * k[i] * k[j] / (k[i] + k[j]), (i, j)), shape=L.shape)
    A = sparse.csr_array(sparse.diags_array(1e-2 - offs.sum(axis=1)) + offs)
    ugly = mixed_units(A, seed)
    b = vector(12**3)
    x, info = mx.gmres(ugly, b, preconditioner="amg")
    assert info.converged, str(info)
    assert info.iterations <= 60
    assert reached(ugly, x, b, 1e-9)


def test_a_shifted_laplacian_is_distinguished_from_a_definite_one() -> None:
    assert auto_preconditioner.indefinite(waves(30))
    assert auto_preconditioner.indefinite(-1 * waves(30))
    for A in (poisson(30, 30), -1 * poisson(30, 30), line(5)):
        assert not auto_preconditioner.indefinite(A)


def test_skew_and_hubs_are_what_they_say() -> None:
    assert auto_preconditioner.skew(poisson(9, 9)) == 0.0
    assert auto_preconditioner.skew(sparse.csr_array(np.array([[0.0, 1.0], [0.0, 0.0]]))) == 1.0
    assert auto_preconditioner.skew(sparse.csr_array(np.array([[2.0, 1.0], [-1.0, 2.0]]))) == 0.5
    assert auto_preconditioner.hubs(sparse.csr_array(np.ones((5, 5)))) == 1.0
    arrow = sparse.eye_array(100, format="lil")
    arrow[0, :], arrow[:, 0] = 1, 1
    A = sparse.csr_array(arrow)
    assert auto_preconditioner.hubs(A) == pytest.approx((100**2 + 99 * 4) / 298 / 2.98)
    sums = auto_preconditioner.row_sums(A)
    assert auto_preconditioner.off_diagonal_ratio(sums) == 99.0
    assert auto_preconditioner.opposite_share(sums) == 0.0
    mixed = sparse.csr_array(np.array([[2.0, -3, 1], [-1, -2, 1], [0, 0, 5]]))
    assert auto_preconditioner.opposite_share(auto_preconditioner.row_sums(mixed)) == pytest.approx((3 + 1) / 6)
    assert auto_preconditioner.opposite_share(auto_preconditioner.row_sums(poisson(9, 9))) == 1.0
    assert (
        auto_preconditioner.opposite_share(auto_preconditioner.row_sums(sparse.csr_array(sparse.eye_array(3)))) == 0.0
    )
    assert not auto_preconditioner.narrow(random(2000))
    assert sparse_kernels(None, 1).device is None
