"""Compare `mxpeak.gmres` on rows of several ranks with one process, and test true residuals and equal results."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse

import mxpeak as mx
from mxpeak.comm.base import Communicator
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.distributed.rank_group import RankGroup
from mxpeak.errors import MxpeakError, Outcome, UsageError
from mxpeak.kernels.choose import sparse as sparse_kernels
from mxpeak.library.outcomes import SingularMatrixError
from mxpeak.library.sparse.ranks import joined, read
from mxpeak.solvers.precond import aggregation, levels, ruge_stuben
from mxpeak.solvers.precond.equilibration import Equilibration
from mxpeak.solvers.precond.levels import LevelMatrices
from mxpeak.solvers.precond.schwarz import overlapping
from tests.support.sparse_ranks import cut, even, gmres_on
from tests.support.sparse_systems import (
    flow,
    irregular,
    jumps,
    needs_pyamg,
    parts,
    poisson,
    random,
    reached,
    residual,
    stencil,
    vector,
    wild,
)

SYSTEMS = {
    "poisson": lambda: poisson(9, 11),
    "flow": lambda: flow(10),
    "irregular": lambda: irregular(99),
    "diagonal": lambda: sparse.csr_array(sparse.diags_array(np.arange(1.0, 61.0))),
}
#: The first rows of ranks for order n: ragged, and with ranks that have no row, or one.
SPLITS = {
    "1": lambda n: [0, n],
    "2": lambda n: even(n, 2),
    "3, ragged": lambda n: [0, 1, n // 3, n],
    "5, empty": lambda n: [0, 0, n // 4, n // 4, n - 1, n],
}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", SYSTEMS)
def test_ranks_find_what_one_process_finds(name: str, split: str) -> None:
    A = SYSTEMS[name]()
    n = A.shape[0]
    b, starts = vector(n), SPLITS[split](n)
    x, infos = gmres_on(starts, A, b, rtol=1e-11)
    alone, _ = mx.gmres(A, b, rtol=1e-11)
    assert reached(A, x, b, 1e-11)
    condition = np.linalg.cond(A.toarray())
    assert np.linalg.norm(x - alone) <= 3e-11 * condition * np.linalg.norm(x)
    first = infos[0]
    for info in infos:
        assert info.converged
        assert (info.n, info.nnz, info.ranks) == (n, A.nnz, len(starts) - 1)
        assert (info.residual, info.iterations, info.history) == (first.residual, first.iterations, first.history)
        assert info.residual == pytest.approx(residual(A, x, b), rel=0.05, abs=1e-14)


@pytest.mark.parametrize("preconditioner", ["gs", "sgs", "jacobi", "none"])
@pytest.mark.parametrize("precision", ["mixed", "fp64", "fp16"])
def test_every_precision_and_sweep_reaches_fp64s_accuracy(precision: str, preconditioner: str) -> None:
    A, B = irregular(90), np.stack([vector(90), np.zeros(90), vector(90, 5)], axis=1)
    X, infos = gmres_on(
        even(90, 3), A, B, vector(270).reshape(90, 3), precision=precision, preconditioner=preconditioner
    )
    assert X.shape == B.shape
    assert infos[1].rhs == 3
    assert reached(A, X[:, 0], B[:, 0], 1e-9)
    assert not X[:, 1].any()
    assert reached(A, X[:, 2], B[:, 2], 1e-9)


def test_units_that_differ_by_row_and_column_are_scaled_over_the_ranks() -> None:
    A, b = wild()
    x, infos = gmres_on([0, 20, 20, 50, 81], A, b, rtol=1e-12)
    alone, info = mx.gmres(A, b, rtol=1e-12, preconditioner="gs")
    assert infos[0].scaled
    assert infos[0].converged
    assert info.converged
    # Entries of x differ by more than 2^200.  Scaled, the condition is below 100, and no y_i is below max|y| / 100.
    assert np.abs(x / alone - 1).max() <= 1e4 * 1e-12


def test_a_precision_that_is_too_coarse_falls_back_to_fp64_on_all_ranks() -> None:
    L = poisson(5, 5)
    least = np.linalg.eigvalsh(L.toarray())[0]
    A, b = sparse.csr_array(L - (least - 1e-5) * sparse.eye_array(25)) * np.pi, vector(25)  # bf16 is off by 1e-3
    x, infos = gmres_on(even(25, 3), A, b, precision="bf16", preconditioner="gs")
    assert {info.fallback for info in infos} == {True}
    assert infos[0].converged
    assert reached(A, x, b, 1e-9)


GALLERY = {
    "Poisson, 5 points": lambda: poisson(40, 40),
    "Poisson, 7 points": lambda: poisson(12, 12, 12),
    "27 points": lambda: stencil(12, 12, 12),
    "upwind convection": lambda: flow(40),
    "jumps at random": lambda: jumps(40, 1e4),
}


@needs_pyamg
@pytest.mark.parametrize("name", GALLERY)
def test_multigrid_takes_as_many_steps_on_eight_ranks_as_on_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "MIN_SHARED", 150)  # so that coarser levels are also distributed
    A = GALLERY[name]()
    n, b = A.shape[0], vector(A.shape[0])
    _, alone = mx.gmres(A, b, preconditioner="amg")
    x, infos = gmres_on(even(n, 8), A, b, preconditioner="amg")
    assert reached(A, x, b, 1e-9)
    assert {(info.preconditioner, info.levels) for info in infos} == {("amg", alone.levels)}
    assert infos[0].iterations <= 1.15 * alone.iterations


@pytest.mark.parametrize("name", [name for name in GALLERY if name != "jumps at random"])
def test_symmetric_sweeps_take_about_as_many_steps_on_eight_ranks_as_on_one(name: str) -> None:
    A = GALLERY[name]()
    n, b = A.shape[0], vector(A.shape[0])
    _, alone = mx.gmres(A, b, preconditioner="sgs", smoother="natural")
    for ranks in (2, 8):
        x, infos = gmres_on(even(n, ranks), A, b, preconditioner="sgs")
        assert reached(A, x, b, 1e-9)
        assert {(info.preconditioner, info.colours) for info in infos} == {("sgs", None)}
        # One more step: if sums are rounded differently, a residual just below tol may be just above it.
        assert infos[0].iterations <= 1.15 * alone.iterations + 1, (ranks, infos[0].iterations, alone.iterations)


@needs_pyamg
@pytest.mark.parametrize("smoother", ["coloured", "natural"])
def test_multigrid_on_two_ranks_sweeps_as_it_is_asked_to(smoother: str) -> None:
    A, b = flow(30), vector(900)
    x, infos = gmres_on(even(900, 2), A, b, preconditioner="amg", smoother=smoother, precision="fp64")
    assert reached(A, x, b, 1e-9)
    assert {info.colours for info in infos} == {2 if smoother == "coloured" else None}
    _, alone = mx.gmres(A, b, preconditioner="amg", smoother=smoother, precision="fp64")
    assert infos[0].iterations <= 1.15 * alone.iterations


@needs_pyamg
@pytest.mark.parametrize("name", ["Poisson, 5 points", "27 points", "upwind convection"])
def test_levels_by_aggregation_take_as_many_steps_on_any_number_of_ranks(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ruge_stuben, "EVEN", 100)  # none of these has weak connections
    A = GALLERY[name]()
    n, b = A.shape[0], vector(A.shape[0])
    _, alone = mx.gmres(A, b, preconditioner="amg")
    for ranks in (2, 8):
        x, infos = gmres_on(even(n, ranks), A, b, preconditioner="amg")
        assert reached(A, x, b, 1e-9)
        assert {(info.preconditioner, info.levels) for info in infos} == {("amg", alone.levels)}
        assert infos[0].iterations <= 1.15 * alone.iterations


@needs_pyamg
@pytest.mark.parametrize("starts", [[0, 800, 1600], [0, 500, 500, 1600]])
def test_ranks_share_coarser_levels_that_all_of_them_make(starts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    A, b = flow(40), vector(1600)
    monkeypatch.setattr(ruge_stuben, "EVEN", 100)
    _, (gathered, *_) = gmres_on(starts, A, b, preconditioner="amg")
    monkeypatch.setattr(levels, "MIN_SHARED", 20)
    monkeypatch.setattr(aggregation, "MIN_ROWS_PER_RANK", 5)
    x, infos = gmres_on(starts, A, b, preconditioner="amg")
    assert reached(A, x, b, 1e-9)
    assert infos[0].iterations <= 1.15 * gathered.iterations
    x, alone = mx.gmres(A, b, preconditioner="amg")
    assert reached(A, x, b, 1e-9)
    assert (alone.levels, alone.iterations) == (infos[0].levels, pytest.approx(infos[0].iterations, abs=1))


@needs_pyamg
def test_coarser_matrices_that_all_ranks_make_are_galerkins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "MIN_SHARED", 20)
    monkeypatch.setattr(aggregation, "MIN_ROWS_PER_RANK", 5)
    A, starts = flow(20), [0, 150, 150, 290, 400]

    def body(comm: Communicator) -> Any:
        group, grids, problem = aggregated(A, starts, comm)
        first, second, *_ = grids
        assert not problem
        assert first.overlap is not None
        assert second.overlap is not None
        return [
            named(second.A, second.group, second.group.partners),
            named(first.R.T, group, first.R.partners),
            named(first.P.T, second.group, first.P.partners),
        ]

    C, R, P = (np.concatenate(parts) for parts in zip(*run_ranks(4, body)))
    assert C.shape[0] == C.shape[1] <= 200
    assert np.array_equal(R / np.abs(R).max(), P.T / np.abs(P).max())  # they differ by a power of two
    # Sums of up to 400 products in order, and of a few terms of similar size for each entry of P.
    assert np.abs(C - R @ A @ P).max() <= 400 * 2.0**-53 * (np.abs(R) @ abs(A) @ np.abs(P)).max()


@needs_pyamg
def test_an_unsuitable_gathered_level_is_named_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LevelMatrices, "defect", "is unfit")

    def body(comm: Communicator) -> Any:
        return aggregated(flow(20), [0, 150, 400], comm)[1:]

    assert run_ranks(2, body) == [([], "level 2 is unfit")] * 2
    monkeypatch.setattr(levels, "MIN_SHARED", 20)
    monkeypatch.setattr(aggregation, "MIN_ROWS_PER_RANK", 5)
    assert run_ranks(2, body) == [([], "level 3 is unfit")] * 2


@pytest.mark.parametrize("value", [0.0, np.nan])
def test_without_a_smooth_vector_there_are_no_levels(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    monkeypatch.setattr(aggregation, "smooth", lambda A, group: np.full(A.shape[0], value * group.comm.rank))
    found = run_ranks(2, lambda comm: aggregated(flow(20), [0, 150, 400], comm)[1:])
    assert found == [([], "smoothed aggregation found no smooth vector")] * 2


def aggregated(A: Any, starts: list[int], comm: Communicator) -> tuple[RankGroup, Any, str]:
    """Return the result of smoothed aggregation of the rows of all ranks: levels, or the reason for none."""
    b = vector(A.shape[0])
    share = read(cut(A, starts, comm.rank), cut(b, starts, comm.rank), None, sparse_kernels(None, 1))
    everybody, mine = joined(comm, share, {})
    return everybody, *aggregation.aggregated(mine, mine, Equilibration(group=everybody))


def named(T: Any, group: RankGroup, partners: Any) -> Any:
    """Return this rank's rows of a matrix as an array with all columns."""
    starts, rank = group.starts, group.comm.rank
    columns = RankGroup(group.comm, starts, partners).with_halo(np.arange(starts[rank], starts[rank + 1]))
    found = np.zeros((T.shape[0], starts[-1]))
    found[:, columns] = T.toarray()
    return found


def test_weak_connections_are_counted_over_the_ranks() -> None:
    def share(A: Any) -> float:
        def body(comm: Communicator) -> float:
            starts = even(A.shape[0], 3)
            rows = read(cut(A, starts, comm.rank), vector(starts[comm.rank + 1] - starts[comm.rank]), None, kernels)
            everybody, mine = joined(comm, rows, {})
            return ruge_stuben.weak_share(mine, everybody)

        kernels = sparse_kernels(None, 1)
        (found,) = set(run_ranks(3, body))
        return found

    assert share(poisson(9, 9)) == share(stencil(4, 4, 4)) == 0.0
    assert share(sparse.csr_array(poisson(9, 9) + 9.0 * sparse.kron(sparse.eye_array(9), poisson(9)))) == 0.5
    assert share(jumps(20, 1e4)) > 0.2


@needs_pyamg
def test_a_system_of_few_rows_is_solved_as_a_whole_by_all_ranks() -> None:
    A, b = poisson(9, 11), vector(99)
    x, infos = gmres_on([0, 40, 40, 99], A, b, preconditioner="amg", rtol=1e-12)
    assert reached(A, x, b, 1e-12)
    assert infos[0].iterations <= 3


@needs_pyamg
def test_the_overlap_holds_the_rows_of_a_rank_and_of_its_halo() -> None:
    A, starts = flow(6), [0, 10, 10, 25, 36]

    def body(comm: Communicator) -> Any:
        share = read(cut(A, starts, comm.rank), cut(vector(36), starts, comm.rank), None, sparse_kernels(None, 1))
        everybody, mine = joined(comm, share, {})
        halo = everybody.with_halo(np.arange(starts[comm.rank], starts[comm.rank + 1]))
        return overlapping(mine, everybody), np.sort(halo)

    for rank, (found, columns) in enumerate(run_ranks(4, body)):
        assert np.array_equal(found.A.toarray(), A.toarray()[np.ix_(columns, columns)])
        assert found.before == np.count_nonzero(columns < starts[rank])


@needs_pyamg
def test_multigrid_over_ranks_heeds_units_and_empty_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ruge_stuben, "EVEN", 100)  # aggregation would need hundreds of steps
    k = np.where(np.arange(400) % 7 < 3, 1.0, 2.0**14)
    A = sparse.csr_array(sparse.diags_array(k) @ poisson(20, 20))
    b = k * vector(400)
    x, infos = gmres_on([0, 150, 150, 290, 400], A, b, preconditioner="amg")
    assert infos[0].scaled
    assert infos[0].converged
    assert infos[0].preconditioner == "amg"
    assert infos[0].iterations <= 15
    assert {info.colours for info in infos} == {2}  # also without rows
    assert residual(A, x, b) <= 1e-9


def test_what_does_not_converge_says_so_on_all_ranks() -> None:
    A, b = poisson(20, 20), vector(400)
    x, infos = gmres_on(even(400, 3), A, b, maxiter=5, preconditioner="gs")
    assert {info.outcome for info in infos} == {Outcome.UNREACHED}
    assert {info.message for info in infos} == {
        'maxiter=5 steps were used; use a larger maxiter, preconditioner="lu" (complete factors) or '
        'preconditioner="amg"'
    }
    assert infos[0].residual == pytest.approx(residual(A, x, b), rel=1e-6)


def test_a_function_of_the_users_sees_and_returns_each_ranks_part() -> None:
    A, b, starts = poisson(8, 9), vector(72), [0, 10, 40, 72]

    def body(comm: Communicator) -> Any:
        first, last = starts[comm.rank : comm.rank + 2]
        block = np.linalg.inv(A[first:last, first:last].toarray())
        heard: list[float] = []
        x, info = mx.gmres(A[first:last], b[first:last], comm=comm, M=block, callback=heard.append)
        return x, info, heard

    done = run_ranks(3, body)
    assert reached(A, np.concatenate([x for x, _, _ in done]), b, 1e-9)
    (_, info, heard), none = done[0], gmres_on(starts, A, b, preconditioner="none")[1][0]
    assert info.preconditioner == "user"
    assert info.iterations < none.iterations
    assert heard
    assert all(other == heard for _, _, other in done)


def test_nothing_that_is_handed_over_is_changed() -> None:
    A, b = random(50), vector(50)
    blocks = [(cut(A, even(50, 2), rank), cut(b, even(50, 2), rank).copy()) for rank in range(2)]
    before = [[*parts(A_r), b_r.copy()] for A_r, b_r in blocks]
    run_ranks(2, lambda comm: mx.gmres(*blocks[comm.rank], comm=comm, threads=1))
    for (A_r, b_r), old in zip(blocks, before):
        for one, other in zip([*parts(A_r), b_r], old):
            assert np.array_equal(one, other)


# --- mistakes -----------------------------------------------------------------------------------------------------

N = 12


def with_entry(A: Any, value: float) -> Any:
    changed = A.copy()
    changed.data[3] = value
    return changed


def beyond(A: Any) -> Any:
    """Return A with a column index beyond the matrix, as unchecked constructors allow."""
    changed = A.copy()
    changed.indices[-1] = N + 5
    return changed


def without_row(A: Any) -> Any:
    changed = A.copy()
    changed.data[: changed.indptr[1]] = 0.0
    return changed


def crash(r: Any) -> Any:
    raise ZeroDivisionError("a bug of the user's")


#: The arguments of rank 1 of 3 that differ, and the error on all ranks.
MISTAKES: dict[str, tuple[Callable[[Any, Any], tuple[Any, Any, dict[str, Any]]], type[Exception], str]] = {
    "columns": (lambda A, b: (A[:, :-1], b, {}), UsageError, "columns of A: 12 on rank 0, but 11 on rank 1"),
    "rows": (lambda A, b: (A[:-1], b[:-1], {}), UsageError, r"3 ranks have 4 \+ 3 \+ 4 = 11 rows"),
    "b": (lambda A, b: (A, b[:-1], {}), UsageError, "rank 1: this rank has 4 rows of A, but b has shape"),
    "sides": (lambda A, b: (A, b[:, None], {}), UsageError, r"columns of b: \(\) on rank 0, but \(1,\) on rank 1"),
    "out of range": (lambda A, b: (beyond(A), b, {}), UsageError, "rank 1: A is not a valid sparse matrix"),
    "dtype": (lambda A, b: (A.astype(np.float32), b, {}), UsageError, "A.dtype: float64 on rank 0, but float32 on"),
    "type of b": (lambda A, b: (A, b.astype(int), {}), UsageError, "b.dtype: float64 on rank 0, but int64 on rank 1"),
    "rtol": (lambda A, b: (A, b, {"rtol": 1e-6}), UsageError, "rtol: 1e-09 on rank 0, but 1e-06 on rank 1"),
    "no rtol": (
        lambda A, b: (A, b, {"rtol": -2}),
        UsageError,
        "rank 1: rtol=-2 is not valid; use a number of at least 0",
    ),
    "restart": (lambda A, b: (A, b, {"restart": 7}), UsageError, "restart: None on rank 0, but 7 on rank 1"),
    "x0": (lambda A, b: (A, b, {"x0": b}), UsageError, "x0: none on rank 0, but given on rank 1"),
    "sweep": (lambda A, b: (A, b, {"preconditioner": "gs"}), UsageError, "preconditioner: auto on rank 0, but gs on"),
    "dense": (lambda A, b: (A.toarray(), b, {}), UsageError, "rank 1: A is ndarray, not a SciPy sparse matrix"),
    "NaN in A": (lambda A, b: (with_entry(A, np.nan), b, {}), UsageError, r"rank 1: A\[\d, \d\] is nan"),
    "Inf in b": (lambda A, b: (A, np.append(b[:-1], np.inf), {}), UsageError, r"rank 1: b\[3\] is inf"),
    "singular": (
        lambda A, b: (without_row(A), b, {}),
        SingularMatrixError,
        "rank 1: A is singular, because row 4 contains only",
    ),
    "threads": (lambda A, b: (A, b, {"threads": 0}), UsageError, "rank 1: threads=0"),
    "text": (lambda A, b: (A, "b", {}), UsageError, "rank 1: b "),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_on_one_rank_is_the_same_error_on_all(name: str) -> None:
    change, kind, text = MISTAKES[name]
    A, b, starts = random(N), vector(N), even(N, 3)
    errors = errors_of_all(lambda rank, A, b: change(A, b) if rank == 1 else (A, b, {}), A, b, starts)
    assert len(set(map(str, errors))) == 1
    for error in errors:
        assert isinstance(error, kind)
        assert re.search(text, str(error)), str(error)


def errors_of_all(
    arguments_of: Callable[[int, Any, Any], tuple[Any, Any, dict[str, Any]]], A: Any, b: Any, starts: Any
) -> Any:
    """Return the error of every rank; all of them raise within seconds."""

    def body(comm: Communicator) -> Exception:
        mine, side, options = arguments_of(comm.rank, cut(A, starts, comm.rank), cut(b, starts, comm.rank))
        with pytest.raises(MxpeakError) as error:
            mx.gmres(mine, side, comm=comm, **{"threads": 1, **options})
        return error.value

    return run_ranks(len(starts) - 1, body)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (crash, "rank 2: ZeroDivisionError: a bug of the user's"),
        (lambda r: r[:-1], "rank 2: the preconditioner returned"),
        (lambda r: r * np.nan, "rank 2: the preconditioner returned nan"),
    ],
)
def test_a_function_that_fails_on_one_rank_ends_all_of_them(function: Any, text: str) -> None:
    def with_function(rank: int, A: Any, b: Any) -> tuple[Any, Any, dict[str, Any]]:
        return A, b, {"preconditioner": function if rank == 2 else lambda r: r}

    errors = errors_of_all(with_function, random(N), vector(N), even(N, 3))
    assert all(str(error).startswith(text) for error in errors), errors
    assert isinstance(errors[2].__cause__, ZeroDivisionError) == (function is crash)


def test_zeros_on_the_diagonal_are_named_by_their_rank() -> None:
    A = sparse.csr_array(np.fliplr(np.eye(N)) + 0.1 * np.eye(N, k=1))
    errors = errors_of_all(lambda rank, A, b: (A, b, {"preconditioner": "gs"}), A, vector(N), even(N, 3))
    assert len(set(map(str, errors))) == 1
    assert "A[0, 0] is zero (one of 4" in str(errors[0])


def test_what_is_for_one_process_only_says_so() -> None:
    errors = errors_of_all(lambda rank, A, b: (A, b, {"preconditioner": "stencil"}), random(N), vector(N), even(N, 2))
    assert '"stencil" supports only one process, but A is distributed over 2 ranks' in str(errors[0])
    with pytest.raises(UsageError, match='use "world"'):
        mx.gmres(random(N), vector(N), comm="everyone")
    x, info = mx.gmres(random(N), vector(N), comm="world")
    assert (info.ranks, info.converged) == (1, True)
    assert reached(random(N), x, vector(N), 1e-9)
