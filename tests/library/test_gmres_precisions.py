"""Test the precisions, storage and scaling of `mxpeak.gmres`."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import mxpeak as mx
from mxpeak.errors import ResourceError
from mxpeak.runtime import calls
from mxpeak.solvers.precond.equilibration import Equilibration, balanced, equilibrate
from tests.support.sparse_systems import PRECISIONS, SWEEPS, poisson, random, reached, stencil, vector

# --- precisions and storage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_with_every_sweep_reaches_the_tolerance(precision: str) -> None:
    A = poisson(12, 13)
    A.data *= np.pi  # no number is exact in a low precision
    b = vector(A.shape[0])
    for preconditioner in SWEEPS:
        x, info = mx.gmres(A, b, precision=precision, preconditioner=preconditioner, rtol=1e-11)
        assert info.converged
        assert reached(A, x, b, 1e-11)
        assert info.preconditioner == preconditioner
        assert info.residual <= 1e-11
        if not info.fallback:
            assert info.values == ("fp32" if precision == "mixed" else precision)
            assert info.vectors == ("fp64" if precision == "fp64" else "fp32")


@pytest.mark.parametrize(("preconditioner", "wide"), [("gs", "fp32"), ("lu", "fp64")])
def test_mixed_takes_the_narrowest_format_that_holds_every_value(preconditioner: str, wide: str) -> None:
    for factor, values in ((1.0, "bf16"), (1 + 2.0**-8, "fp16"), (1 + 2.0**-20, "fp32"), (1 + 2.0**-40, wide)):
        A = poisson(9, 9)
        A.data[7] *= factor
        x, info = mx.gmres(A, np.ones(81), preconditioner=preconditioner)
        assert (info.values, info.vectors) == (values, "fp32")
        assert reached(A, x, np.ones(81), 1e-9)


def test_values_out_of_range_of_a_16_bit_format_are_scaled_into_it() -> None:
    for size in (1e-9, 1e7):
        A, b = poisson(9, 9) * size, vector(81)
        x, info = mx.gmres(A, b, precision="fp16")
        assert info.converged
        assert info.values == "fp16"
        assert info.scaled
        assert reached(A, x, b, 1e-9)


def test_what_overflows_a_format_even_so_is_kept_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mxpeak.solvers.gmres_driver.equilibrate", lambda A, group: Equilibration())
    A, b = poisson(9, 9) * 1e5, vector(81)
    x, info = mx.gmres(A, b, precision="fp16")
    assert info.values == "fp32"
    assert "fp16 ends at 65504, but values reach 4e+05, so fp32 is used" in info.message
    assert reached(A, x, b, 1e-9)


@pytest.mark.parametrize("smoother", ["coloured", "natural"])
def test_every_storage_and_order_gives_the_same_solution(solve: Any, smoother: str) -> None:
    A, b = poisson(7, 4, 5), vector(140)
    for storage, preconditioner in product(("ell", "sell", "packed"), ("gs", "sgs")):
        x, info = solve(A, b, storage=storage, smoother=smoother, preconditioner=preconditioner, rtol=1e-12)
        assert info.storage == storage
        levels = 7 + 4 + 5 - 2 if storage == "ell" or solve is not mx.gmres else None
        assert info.colours == (2 if smoother == "coloured" else levels)
        assert reached(A, x, b, 1e-12)


def test_rows_are_taken_one_after_the_other_in_the_natural_order() -> None:
    A, b = poisson(7, 4, 5), vector(140)
    for options, preconditioner in product(
        ({"smoother": "natural"}, {"storage": "rows", "smoother": "natural"}), ("gs", "sgs", "amg")
    ):
        x, info = mx.gmres(A, b, preconditioner=preconditioner, rtol=1e-12, **options)
        assert (info.storage, info.colours) == ("rows", None)
        assert "  storage         rows, row after row, " in str(info)
        assert reached(A, x, b, 1e-12)
    x, info = mx.gmres(A, b, storage="rows", preconditioner="gs", rtol=1e-12)
    assert (info.storage, info.colours) == ("rows", 2)
    assert reached(A, x, b, 1e-12)


def test_storage_follows_the_pattern() -> None:
    assert mx.gmres(poisson(20, 20), np.ones(400), preconditioner="gs")[1].storage == "packed"
    rng = np.random.default_rng(1)
    A = sparse.csr_array(np.where(rng.random((1500, 1500)) < 0.01, rng.random((1500, 1500)), 0.0))
    A = A + sparse.eye_array(1500) * 30
    assert mx.gmres(A, np.ones(1500))[1].storage == "sell"


FREE = "mxpeak.solvers.precond.matrix_builder.available_memory_bytes"


@pytest.mark.parametrize(
    ("storage", "advice"), [("auto", "free; use scipy"), ("sell", "free; use scipy"), ("ell", 'use storage="auto"')]
)
def test_rows_too_unlike_to_be_stored_side_by_side_are_refused(
    storage: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrow = sparse.lil_array(sparse.eye_array(900) * 1000)
    arrow[0, :], arrow[:, 0] = 1, 1
    arrow[0, 0] = 1000
    A, b = sparse.csr_array(arrow), vector(900)
    assert reached(A, mx.gmres(A, b, storage=storage)[0], b, 1e-9)
    monkeypatch.setattr(FREE, lambda: 200_000)
    assert reached(A, mx.gmres(A, b, storage="rows", restart=5, preconditioner="gs")[0], b, 1e-9)
    says = "the longest row of A has 900 entries .mean 3., so storage in groups of 64 rows.*" + advice
    with pytest.raises(ResourceError, match=says):
        mx.gmres(A, b, storage=storage)


def test_what_fits_is_not_refused_and_a_basis_that_does_not_is(monkeypatch: pytest.MonkeyPatch) -> None:
    A, b = stencil(8, 8, 8), np.ones(512)
    _, info = mx.gmres(A, b)
    monkeypatch.setattr(FREE, lambda: info.bytes)  # packed columns need almost no memory
    assert mx.gmres(A, b)[1].converged
    with pytest.raises(ResourceError, match=r"the basis 1 MiB, but .* is free; use a smaller restart"):
        mx.gmres(A, b, restart=512)


@pytest.mark.parametrize("smoother", ["coloured", "natural"])
def test_a_pattern_that_cannot_be_made_symmetric_for_lack_of_memory_is_refused_before(
    smoother: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    A, b = random(400), vector(400)
    monkeypatch.setattr(FREE, lambda: 47 * A.nnz)
    with pytest.raises(ResourceError, match=f'completing the pattern of {A.nnz} entries .*preconditioner="jacobi"'):
        mx.gmres(A, b, preconditioner="gs", smoother=smoother)
    x, info = mx.gmres(A, b, preconditioner="jacobi", restart=5)
    assert info.converged
    assert reached(A, x, b, 1e-9)


def test_the_number_of_threads_changes_rounding_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "allowed_cores", lambda: [0, 1, 2])
    A, b = poisson(15, 15), vector(225)
    for threads in (1, 3, np.int64(2)):
        x, info = mx.gmres(A, b, threads=threads, preconditioner="gs", rtol=1e-12)
        assert info.converged
        assert reached(A, x, b, 1e-12)


# --- scaling -------------------------------------------------------------------------------------------------------


def test_a_balanced_matrix_is_not_scaled() -> None:
    assert balanced(poisson(5, 5))
    assert not balanced(poisson(5, 5) * 2.0**100)
    assert not balanced(sparse.csr_array(sparse.diags_array([1.0, 2.0**11])))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), n=st.integers(1, 12), power=st.integers(0, 300))
def test_scaling_brings_the_largest_of_each_row_and_column_near_one_without_rounding(
    seed: int, n: int, power: int
) -> None:
    rng = np.random.default_rng(seed)
    rows, columns = rng.integers(-power, power + 1, (2, n))
    A = sparse.csr_array(
        sparse.diags_array(np.ldexp(1.0, rows)) @ random(n, seed) @ sparse.diags_array(np.ldexp(1.0, columns))
    )
    scaling = equilibrate(A)
    scaled = scaling.matrix(A)
    assert np.array_equal(np.frexp(scaled.data)[0], np.frexp(A.data)[0])  # the same digits
    largest = abs(scaled).max(axis=1).toarray(), abs(scaled).max(axis=0).toarray()
    assert max(part.max() for part in largest) < 1
    assert largest[1].min() >= 0.5  # columns came last
    b, k = scaling.right_hand_side(rng.standard_normal(n))
    assert 0.5 <= np.abs(b).max() < 1
    x = rng.standard_normal(n)
    assert np.array_equal(scaling.solution(scaling.start(x, k), k), x)
