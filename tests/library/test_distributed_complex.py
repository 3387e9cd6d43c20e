"""Compare complex systems over virtual ranks with NumPy's solutions, and by residuals in plain arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse

import mxpeak as mx
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.errors import ResourceError
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.grid import ProcessGrid
from mxpeak.library.dense import memory
from mxpeak.library.dense.matrix_source import owned
from mxpeak.library.dense.real_form import real_form
from mxpeak.library.outcomes import IllConditionedWarning
from tests.support.distributed_systems import entries, eta, raised, random, solved
from tests.support.norm_ranks import scalapack_array, scalapack_part
from tests.support.roundoff import U

Array = Any


def random_complex(n: int, *more: int) -> Array:
    parts = random(n, *(more or (n,)), 2)
    return parts[..., 0] + 1j * parts[..., 1]


#: Grids with orders and block sizes: prime, ragged, fewer blocks than ranks.
CASES = [((1, 1), 97, 8), ((1, 2), 97, None), ((2, 1), 64, 16), ((2, 2), 101, 12), ((2, 2), 3, 4), ((2, 3), 1, 3)]


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize(("shape", "n", "nb"), CASES)
def test_all_ranks_get_the_solution_and_that_with_the_transpose(
    shape: tuple[int, int], n: int, nb: int | None, precision: str
) -> None:
    A, b = random_complex(n), random_complex(n, 2)
    A = A * np.exp2(np.arange(n) % 15)[:, None]  # so that rows are scaled, and ||A||_1 is not ||A||_inf

    def body(comm: Any) -> tuple[Array, Any]:
        M = mx.DistributedMatrix.from_function(entries(A), n, nb=nb, comm=comm, grid=shape)
        assert M.dtype == np.complex128
        F = mx.lu_factor(M, precision=precision)
        return F.solve(b), F.solve(b, transposed=True)

    answers = run_ranks(shape[0] * shape[1], body)
    for (x, info), (y, other) in answers:
        assert x.dtype == y.dtype == np.complex128
        assert (info.n, info.rhs, info.grid, info.precision) == (n, 2, shape, precision)
        for C, z, how in ((A, x, info), (A.T, y, other)):
            assert how.solved
            assert eta(C, z, b) <= 1 + 2 * max(4 / n, 1)
            # Norms of the real form are up to √2 times those of A, |x|_inf of it down to 1/√2 of that.
            assert eta(C, z, b) <= 2 * how.backward_error + 1
        assert np.abs(x - np.linalg.solve(A, b)).max() <= 50 * n * U * np.linalg.cond(A) * np.abs(x).max()
        assert np.array_equal(x, answers[0][0][0])


def test_the_condition_is_that_of_the_real_form_at_most_twice_as_large() -> None:
    n = 83
    A = random_complex(n)

    def body(comm: Any) -> float:
        return mx.lu_factor(mx.DistributedMatrix.from_function(entries(A), n, nb=7, comm=comm)).condition

    exact = np.linalg.cond(A, 1)
    for found in run_ranks(4, body):
        assert exact / 3 <= found <= 2 * exact * (1 + 2 * n * U * exact)


@pytest.mark.parametrize(("ranks", "split"), [(1, [23]), (2, [20, 3]), (4, [5, 0, 17, 1])])
@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_wherever_the_entries_lie_it_is_the_same_system(
    ranks: int, split: list[int], dtype: type, tmp_path: Path
) -> None:
    n, nb = 23, 4
    A, b = random_complex(n).astype(dtype), random_complex(n, 3)
    np.save(tmp_path / "A.npy", np.asfortranarray(A))
    ends, desc = np.cumsum(split), [1, 0, n, n, nb, nb, 0, 0, n]

    def body(comm: Any) -> list[Array]:
        own_rows = slice(ends[comm.rank] - split[comm.rank], ends[comm.rank])
        rows = A[own_rows] if split[comm.rank] else np.empty((0, n))
        P, Q = {1: (1, 1), 2: (1, 2), 4: (2, 2)}[ranks]
        at = ProcessGrid(P, Q).coords(comm.rank)
        local = scalapack_array(scalapack_part(A, desc, (P, Q), *at), n, flat=False)
        matrices = [
            mx.DistributedMatrix.from_function(entries(A), n, nb=nb, comm=comm),
            mx.DistributedMatrix.from_rows(rows, nb=nb, comm=comm),
            mx.DistributedMatrix.from_root(A if comm.rank == 0 else None, nb=nb, comm=comm),
            mx.DistributedMatrix.from_pieces(
                {(own_rows.start, 0): A[own_rows]} if len(rows) else {}, n, nb=nb, comm=comm
            ),
            mx.DistributedMatrix.from_file(tmp_path / "A.npy", nb=nb, comm=comm),
            mx.DistributedMatrix.from_blocks(mx.from_scalapack(local, desc, grid=(P, Q), comm=comm)),
        ]
        for M in matrices:
            assert mx.norm(M.blocks(), "max") == pytest.approx(np.abs(A.astype(complex)).max(), rel=8 * U)
        own = slice(matrices[1].own_rows.start, matrices[1].own_rows.stop)
        part = mx.solve(matrices[1], b[own], local=True)[0]
        answers = [mx.solve(M, b)[0] for M in matrices]
        assert np.array_equal(part, answers[1][own])
        return answers

    for x, *others in run_ranks(ranks, body):
        assert eta(A.astype(complex), x, b) <= 3
        assert all(np.array_equal(x, other) for other in others)


def test_a_complex_b_with_a_real_a_and_a_real_b_with_a_complex_a() -> None:
    n = 41
    for A, b in ((random(n), random_complex(n, 2)), (random_complex(n), random(n, 2)), (random(n), 1j * random(n)[0])):
        for x, info in solved(A, b, (1, 2), 8):
            assert x.dtype == np.complex128
            assert x.shape == b.shape
            assert info.solved
            assert info.rhs == (b.shape[1] if b.ndim == 2 else 1)
            assert eta(A, x, b) <= 3


def test_each_complex_column_with_a_real_a_counts_twice_in_the_choice_of_precision() -> None:
    n = 1024
    A, b = random(n) + n * np.eye(n), random_complex(n, 5)
    for sides, precision in ((4, "fp32"), (5, "fp64")):
        x, info = solved(A, b[:, :sides], (1, 2), 96)[0]
        assert (info.solved, info.precision, info.rhs) == (True, precision, sides)
        assert eta(A, x, b[:, :sides]) <= 3


def test_rows_of_b_may_be_real_on_one_rank_and_complex_on_another() -> None:
    n = 1024
    A, b = random(n) + n * np.eye(n), random_complex(n, 5)
    b[: n // 2] = b[: n // 2].real

    def body(comm: Any) -> tuple[Array, str]:
        M = mx.DistributedMatrix.from_function(entries(A), n, nb=96, comm=comm, grid=(1, 2))
        mine = b[M.own_rows.start : M.own_rows.stop]
        x, info = mx.solve(M, mine if comm.rank else mine.real, local=True)
        return x, info.precision

    parts = run_ranks(2, body)
    assert [precision for _, precision in parts] == ["fp64"] * 2
    assert eta(A, np.concatenate([x for x, _ in parts]), b) <= 3


def test_memory_errors_count_the_columns_of_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    F = mx.lu_factor(mx.DistributedMatrix.from_function(entries(random_complex(40)), 40, nb=8))
    G = mx.lu_factor(mx.DistributedMatrix.from_function(entries(random(40)), 40, nb=8))
    monkeypatch.setattr(memory, "available_memory_bytes", lambda: 1000)
    for factors in (F, G):
        with pytest.raises(ResourceError, match=r"b with 3 columns.* need 10\*16\*40\*3 bytes.*fewer columns"):
            factors.solve(random_complex(40, 3))
    with pytest.raises(ResourceError, match=r"b with 1 column, .* need 10\*16\*40\*1 bytes.*fewer ranks per node"):
        G.solve(random_complex(40, 1)[:, 0])
    assert F.solve(random_complex(40, 1)[:, 0])[1].solved


def test_a_rank_without_rows_has_none_of_complex_numbers() -> None:
    A = random_complex(3)

    def body(comm: Any) -> Array:
        return mx.DistributedMatrix.from_function(entries(A), 3, nb=4, comm=comm, grid=(2, 2)).blocks().local

    parts = run_ranks(4, body)
    assert [part.shape for part in parts] == [(3, 3), (3, 0), (0, 3), (0, 0)]
    assert all(part.dtype == np.complex128 for part in parts)


def test_insufficient_fp32_factors_are_recomputed_in_fp64() -> None:
    n = 60
    left, right = (np.linalg.qr(random_complex(n) + k * np.eye(n))[0] for k in range(2))
    for why, A in (("too coarse", (left * np.logspace(0, -11, n)) @ right), ("broke down", 1e-40 * random_complex(n))):
        b = A @ np.ones(n)
        for x, info in solved(A, b, (2, 1), 8, "fp32"):
            assert (info.solved, info.precision, info.fallback) == (True, "fp64", True), why
            assert why in info.message
            assert eta(A, x, b) <= 3, why


def test_a_matrix_singular_to_working_precision_is_reported() -> None:
    A = random_complex(40)
    A[:, 7] = 1j * A[:, 3] + 2.0**-52 * A[:, 7]
    with pytest.warns(IllConditionedWarning, match="numerically singular"):
        _, info = solved(A, np.ones(40), (1, 1), 8)[0]
    assert info.ill_conditioned


def test_a_zero_pivot_error_names_its_column() -> None:
    def body(comm: Any) -> None:
        mx.solve(mx.DistributedMatrix.from_function(lambda i, j: (1j + i * j) * (i == j) * (j != 5), 12, comm=comm), B)

    B = np.ones(12)
    assert set(raised(4, body)) == {
        "SingularMatrixError: A is singular: pivot 6 of 12 is exactly zero; check A for linearly dependent "
        "rows or columns"
    }


def test_complex_entries_of_some_blocks_only_are_one_error_on_all_ranks() -> None:
    def fn(i: Array, j: Array) -> Array:
        return (1j if i.min() else 1.0) * (i == j)

    told = raised(4, lambda comm: mx.lu_factor(mx.DistributedMatrix.from_function(fn, 8, nb=2, comm=comm)))
    assert len(set(told)) == 1
    assert told[0].startswith(
        "UsageError: rank 2: fn(i, j) returned complex128 for i = 2… and j = 0…, but real numbers"
    )


@pytest.mark.parametrize("unit", [1.0, 1j])
def test_a_complex_solution_beyond_the_range_causes_one_warning(unit: complex) -> None:
    A = mx.DistributedMatrix.from_function(lambda i, j: 1e-300 * unit * (i == j), 3, comm=None)
    with pytest.warns(mx.NotSolvedWarning, match="x is beyond the range"):  # any other warning is an error
        x, _ = mx.solve(A, np.full(3, 1e10 + 1e10j))
    assert np.isinf(x).all()


@pytest.mark.filterwarnings("ignore::mxpeak.library.outcomes.NotSolvedWarning")
@pytest.mark.parametrize("first", [1e10, 1e10j])
def test_an_infinite_part_leaves_the_other_part_finite(first: complex) -> None:
    """The product of 1j and infinity has a real part of NaN."""
    A, b = np.diag([1e-300, 1.0]), np.array([first, 2 + 3j])
    S, expected = sparse.csr_array(A), complex(np.inf, 0) if first.real else complex(0, np.inf)

    def body(comm: Any) -> Any:
        return mx.solve(mx.DistributedMatrix.from_function(lambda i, j: A[i, j], 2, nb=1, comm=comm), b)

    for name, (x, info) in {
        "solve": mx.solve(A, b),
        "factors": mx.lu_factor(A).solve(b),
        "pos": mx.solve(A, b, assume_a="pos"),
        "lstsq": mx.lstsq(A, b),
        "stack": mx.solve(A[None], b),
        "ranks": run_ranks(2, body)[0],
        "complex": mx.solve(A + 0j, b),
        "gmres": mx.gmres(S, b),
        "cg": mx.cg(S, b),
    }.items():
        assert x.ravel()[0] == expected, (name, x)
        assert not getattr(info, "solved", getattr(info, "converged", True)), name


@pytest.mark.parametrize("symmetric", [False, True])
def test_strips_of_the_real_form_are_rows_of_the_whole(symmetric: bool) -> None:
    Z = random_complex(12)

    def source(rows: Any, cols: Any, local: slice) -> Array:
        return Z[np.ix_(owned(rows)[local], owned(cols))]

    rows, cols = (BlockCyclic(24, 8, p, P) for p, P in ((1, 2), (0, 1)))
    strips = real_form(source, symmetric=symmetric)
    whole, C = strips(rows, cols, slice(0, rows.local_size)), Z[rows.to_global(np.arange(0, rows.local_size, 2)) // 2]
    np.testing.assert_array_equal(whole[0::2, 0::2], C.real)
    np.testing.assert_array_equal(whole[1::2, 0::2], C.imag)
    np.testing.assert_array_equal(whole[0::2, 1::2], C.imag if symmetric else -C.imag)
    np.testing.assert_array_equal(whole[1::2, 1::2], -C.real if symmetric else C.real)
    for first in range(0, rows.local_size, 2):
        strip = strips(rows, cols, slice(first, rows.local_size))
        np.testing.assert_array_equal(strip, whole[first:])
