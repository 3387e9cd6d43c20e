"""Test that factors reveal numerically singular matrices in `mxpeak.gmres`, and that the user is warned."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sparse

import mxpeak as mx
from mxpeak.distributed.rank_group import SERIAL
from mxpeak.solvers import gmres_driver
from mxpeak.solvers.precond import factors, setup
from mxpeak.solvers.precond.factor_condition import condition_bound, condition_estimate
from mxpeak.solvers.precond.factors import factored
from tests.support.roundoff import U
from tests.support.sparse_ranks import even, gmres_on
from tests.support.sparse_systems import beam, flow, jumps, line, poisson, shuffled, vector

HILBERT = sparse.csr_array(scipy.linalg.hilbert(12))


@pytest.mark.parametrize("precision", ["mixed", "fp64", "fp32"])
@pytest.mark.parametrize("preconditioner", ["auto", "lu"])
def test_a_hilbert_matrix_is_solved_with_a_warning(precision: str, preconditioner: str) -> None:
    with pytest.warns(mx.IllConditionedWarning, match=r"numerically singular: condition .* may have no correct digit"):
        _, info = mx.gmres(HILBERT, HILBERT @ np.ones(12), precision=precision, preconditioner=preconditioner)
    assert info.converged
    assert info.ill_conditioned
    assert info.condition >= 1e16
    assert str(info).startswith("converged, but numerically singular: n = 12")
    assert "condition       " in str(info)


def test_ranks_are_warned_too() -> None:
    with pytest.warns(mx.IllConditionedWarning, match="numerically singular"):
        _, infos = gmres_on([0, 5, 5, 12], HILBERT, HILBERT @ np.ones(12))
    assert {info.ill_conditioned for info in infos} == {True}
    assert len({info.condition for info in infos}) == 1


OTHERS = [
    (poisson(30, 30), "fp32"), (flow(20), "fp32"), (jumps(30, 1e6), "fp32"), (shuffled(beam(256)), "fp32"),
    (line(2000), "fp64"), (beam(256), "fp64"),
]  # fmt: skip


@pytest.mark.parametrize(("A", "precision"), OTHERS)
def test_others_are_not_warned_of_and_are_factored_once(
    A: Any, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    precisions: list[str] = []
    right = factors.factored

    def counted(*args: Any) -> Any:
        precisions.append(args[1])
        return right(*args)

    for module in (setup, gmres_driver):
        monkeypatch.setattr(module, "factored", counted)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, info = mx.gmres(A, vector(A.shape[0]), preconditioner="lu", rtol=1e-6)
    assert info.converged
    assert not info.ill_conditioned
    assert precisions == [precision]


def test_a_large_condition_is_estimated_to_a_factor_of_three() -> None:
    rng = np.random.default_rng(1)
    for decades in (3, 8, 13):
        Q, R = (np.linalg.qr(rng.standard_normal((40, 40)))[0] for _ in range(2))
        dense = (Q * np.geomspace(1.0, 10.0**-decades, 40)) @ R
        A = sparse.csr_array(dense)
        factors, _ = factored(A, "fp64")
        assert factors is not None
        condition = np.linalg.norm(dense, 1) * np.linalg.norm(np.linalg.inv(dense), 1)
        assert condition / 3 <= condition_estimate(factors, A, SERIAL) <= condition * (1 + 1e3 * condition * U)
        assert condition_bound(factors, A, SERIAL) <= 1.01 * np.linalg.cond(dense, np.inf)


def test_a_doubt_that_no_memory_is_left_to_settle_is_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gmres_driver, "factored", lambda *args: (None, "no memory is free"))
    _, info = mx.gmres(HILBERT, HILBERT @ np.ones(12), preconditioner="lu", rtol=1e-5)
    assert info.condition is None
    assert "A may be numerically singular, but there are no factors in fp64: no memory is free" in info.message


def test_a_pivot_that_is_zero_in_fp32_alone_is_no_singularity() -> None:
    A = sparse.csr_array(np.array([[1.0, 1.0], [1.0, 1.0 + 1e-10]]))
    x, info = mx.gmres(A, A @ np.array([1.0, 2.0]), preconditioner="lu", rtol=1e-14)
    assert info.converged, str(info)
    assert info.condition is None or info.condition * U < 1.0
    np.testing.assert_allclose(x, [1.0, 2.0], atol=1e-3)  # condition 4e10 times rtol
    assert isinstance(factors.factored(A, "fp32")[0], factors.SparseFactors)


def test_infos_travel_between_processes() -> None:
    for A, options in ((poisson(9, 9), {}), (poisson(9, 9), {"preconditioner": "gs"})):
        _, info = mx.gmres(A, vector(81), **options)
        again = pickle.loads(pickle.dumps(info))
        assert again == info
        assert str(again) == str(info)
    _, infos = gmres_on(even(81, 2), poisson(9, 9), vector(81))
    assert pickle.loads(pickle.dumps(infos[1])) == infos[1]
