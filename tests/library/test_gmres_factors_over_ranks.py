"""Compare factors of a matrix that ranks share with those of one process in `mxpeak.gmres`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
import scipy.sparse.linalg as linalg

import mxpeak as mx
from mxpeak.comm.base import Communicator
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.errors import UsageError
from mxpeak.library.sparse import auto_preconditioner
from mxpeak.solvers.precond import factors
from tests.support.sparse_ranks import cut, even, gmres_on
from tests.support.sparse_systems import (
    beam,
    flow,
    jumps,
    mixed_units,
    needs_pyamg,
    poisson,
    reached,
    saddle,
    vector,
    waves,
)

MATRICES = {
    "Poisson": poisson(20, 20),
    "flow": flow(20, 300.0),
    "jumps": jumps(20, 1e4),
    "indefinite": waves(20),
    "zeros on the diagonal": saddle(12),
    "mixed units": mixed_units(flow(20)),
}


@pytest.mark.parametrize("name", MATRICES)
def test_auto_factors_narrow_matrices_over_ranks_as_in_one_process(name: str) -> None:
    A = MATRICES[name]
    n = A.shape[0]
    B = np.stack([vector(n), vector(n, 5)], axis=1)
    _, alone = mx.gmres(A, B)
    for starts in (even(n, 2), [0, 0, n // 3, n // 3, n]):
        X, infos = gmres_on(starts, A, B)
        assert reached(A, X[:, 0], B[:, 0], 1e-9)
        assert reached(A, X[:, 1], B[:, 1], 1e-9)
        assert {(one.preconditioner, one.reason) for one in infos} == {("lu", alone.reason)}
        assert abs(infos[0].iterations - alone.iterations) <= 1  # sums over ranks are rounded differently


@pytest.mark.parametrize("precision", ["mixed", "fp64", "bf16"])
def test_factors_over_ranks_solve_in_every_precision(precision: str) -> None:
    A, b = waves(25), vector(625)
    x, (info, *_) = gmres_on(even(625, 3), A, b, precision=precision, preconditioner="lu", rtol=1e-10)
    assert info.times["factor"] > 0
    assert info.iterations <= (2 if precision == "fp64" else 60)
    assert reached(A, x, b, 1e-10)


@needs_pyamg
def test_beyond_some_rows_factors_are_for_what_multigrid_is_not_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_preconditioner, "FACTORED_ROWS", 899)
    expected = {
        "off-diagonal entries have the opposite sign": ("amg", poisson(30, 30)),
        "signs of A do not suit it": ("lu", abs(poisson(30, 30))),
        "A is not symmetric": ("lu", flow(30, 300.0)),
        "A is indefinite": ("lu", waves(30)),
    }
    for why, (name, A) in expected.items():
        x, (info, *_) = gmres_on(even(900, 3), A, vector(900))
        assert info.preconditioner == name
        assert why in info.reason
        assert reached(A, x, vector(900), 1e-9)


def test_where_factors_in_fp32_do_not_do_ranks_make_them_again_in_fp64() -> None:
    A, b = beam(1500), vector(1500)
    x, infos = gmres_on([0, 600, 600, 1500], A, b, preconditioner="lu", rtol=1e-4)
    assert {info.fallback for info in infos} == {True}
    assert reached(A, x, b, 1e-4)


def test_the_rank_that_has_the_factors_counts_their_memory() -> None:
    A, b = poisson(40, 40), vector(1600)
    (without, with_factors) = (gmres_on(even(1600, 4), A, b, preconditioner=name)[1] for name in ("none", "lu"))
    least = linalg.splu(A.tocsc(), permc_spec="MMD_AT_PLUS_A").nnz * 8  # fp32 values and indices
    assert {info.bytes for info in with_factors} == {with_factors[0].bytes}
    assert with_factors[0].bytes >= without[0].bytes + least


def test_without_factors_ranks_continue_and_an_explicit_choice_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    singular = sparse.csr_array(np.array([[1.0, 1, 0], [1, 1, 0], [0, 0, 1]]))
    b = np.array([2.0, 2, 1])
    for preconditioner in ("lu", "auto"):
        with pytest.raises(np.linalg.LinAlgError, match="a pivot of its LU is exactly zero"):
            gmres_on(even(3, 2), singular, b, preconditioner=preconditioner)
    A, b = flow(30), vector(900)
    monkeypatch.setattr(factors, "available_memory_bytes", lambda: 60 * A.nnz)  # for all rows, but not for factors
    x, (info, *_) = gmres_on(even(900, 3), A, b)
    assert info.preconditioner == "sgs"
    assert "factors of 4380 entries take about" in info.reason
    assert reached(A, x, b, 1e-9)
    assert "on rank 0, which has" in refused(A, b)
    monkeypatch.setattr(factors, "available_memory_bytes", lambda: A.nnz)
    assert gmres_on(even(900, 3), A, b, preconditioner="auto")[1][0].preconditioner != "lu"


def refused(A: Any, b: Any) -> str:
    """Return the error that all ranks raise if the user requests factors."""

    def body(comm: Communicator) -> str:
        mine = [cut(whole, even(A.shape[0], 2), comm.rank) for whole in (A, b)]
        with pytest.raises(UsageError) as error:
            mx.gmres(*mine, comm=comm, preconditioner="lu", threads=1)
        return str(error.value)

    (told,) = set(run_ranks(2, body))
    return told
