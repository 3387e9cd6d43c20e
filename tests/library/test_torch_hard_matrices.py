"""`mxpeak.solve` by a device's kernels, on the matrices that are hard for the host's too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import mxpeak as mx
from mxpeak.library.dense.solving import solve_on
from tests.library.test_dense import U, enough, eta, random
from tests.library.test_dense_hard_matrices import hilbert, kahan, spectrum, wilkinson
from tests.support.torch_devices import ON_GPU, torch_device

#: Columns of a panel: several panels, the last one ragged.
WIDTH = 48


def on_device(A: Any, b: Any, precision: str = "auto", width: int = WIDTH) -> Any:
    return solve_on(torch_device(triton=ON_GPU), A, b, precision, width=width)


@pytest.mark.parametrize("precision", ["auto", "fp64", "fp32", "bf16"])
@pytest.mark.parametrize("A", [hilbert(13), hilbert(20)], ids=["13", "20"])
def test_a_numerically_singular_matrix_is_solved_with_a_warning(A: Any, precision: str) -> None:
    b = A.sum(axis=1)
    x, info = on_device(A, b, precision, width=5)
    assert info.precision == "fp64"
    assert "numerically singular" in info.message
    assert info.condition >= 1 / U
    assert eta(A, x, b) <= enough(len(A))


@pytest.mark.parametrize("precision", ["auto", "fp32", "tf32", "bf16", "fp16", "fp8"])
@pytest.mark.parametrize("condition", [1e3, 1e5, 1e8, 1e12])
@pytest.mark.parametrize("n", [131, 260])
def test_the_residual_does_not_depend_on_the_condition(n: int, condition: float, precision: str) -> None:
    A, b = spectrum(n, condition), random(n)
    x, info = on_device(A, b, precision)
    y, of_host = mx.solve(A, b, precision=precision)
    assert info.solved
    assert eta(A, x, b) <= enough(n)
    # Forward errors are condition times backward errors; so are their differences.
    assert np.abs(x - y).max() <= np.linalg.cond(A, np.inf) * 2 * enough(n) * n * U * np.abs(y).max()
    # The same class: coarse factors do or do not do, whoever made them; between, they may differ in rounding.
    u = {"fp8": 2.0**-4, "bf16": 2.0**-8, "fp16": 2.0**-11, "tf32": 2.0**-11}.get(precision, 2.0**-24)
    if condition * u <= 1:
        assert not info.fallback
        assert not of_host.fallback
    if condition * u >= 2.0**14:
        assert info.fallback
        assert of_host.fallback or precision == "auto"  # that is fp64 for so small a matrix on the host
        assert "factored again in fp64" in info.message


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("precision", ["auto", "fp32", "fp16"])
def test_kahans_matrix_is_solved(precision: str, order: Any) -> None:
    for n in (30, 90):
        A, b = np.array(kahan(n), order=order), random(n)
        x, info = on_device(A, b, precision, width=16)
        assert info.solved
        assert eta(A, x, b) <= enough(n)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("n", [25, 60])
def test_growth_of_the_factors_is_made_good(n: int, order: Any) -> None:
    noise = 1e-3 * np.tril(random((n, n)), -1)
    A, b = np.array(wilkinson(n) - np.abs(noise) * 1e-3, order=order), random(n)
    for precision in ("auto", "fp32", "fp16"):
        x, info = on_device(A, b, precision, width=16)
        assert info.solved, str(info)
        assert eta(A, x, b) <= enough(n)
        exact = np.linalg.lstsq(A, b)[0]  # by its singular values, where nothing grows
        assert np.abs(x - exact).max() <= 100 * n * U * np.linalg.cond(A) * np.abs(exact).max()


@pytest.mark.parametrize("precision", ["auto", "fp32", "fp16"])
@pytest.mark.parametrize("decades", [3, 30, 200])
@pytest.mark.parametrize("which", ["rows", "columns", "both"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_bad_scaling_costs_no_digits(which: str, decades: int, precision: str, order: Any) -> None:
    """Scaled by powers of two, D_r A D_c, its solution is that of A with each component scaled: compare these."""
    n = 80
    A, b = random((n, n)) + 2 * np.sqrt(n) * np.eye(n), random(n)
    decades = min(decades, 100) if which == "both" else decades  # products of 1e200 would overflow
    D = 2.0 ** np.round(np.linspace(-decades, decades, n)[np.random.default_rng(5).permutation(n)] * np.log2(10))
    rows, columns = (D if which != "columns" else np.ones(n)), (D if which != "rows" else np.ones(n))
    x, info = on_device(np.array(rows[:, None] * A * columns, order=order), rows * b, precision)
    y = np.linalg.solve(A, b)
    assert info.solved
    assert info.scaled
    assert np.abs(x * columns - y).max() <= 100 * n * U * np.linalg.cond(A) * np.abs(y).max()


def test_fp32_input_falls_back_to_fp64_where_it_must() -> None:
    n = 200
    A, b = spectrum(n, 1e7).astype(np.float32), random(n, np.float32)
    x, info = on_device(torch.from_numpy(A), torch.from_numpy(b), "bf16")
    assert x.dtype == torch.float32
    assert (info.fallback, info.precision) == (True, "fp64")
    assert eta(A, x.numpy(), b) <= enough(n)


def test_a_matrix_that_is_singular_in_fp32_only_is_solved() -> None:
    A = np.array([[1.0, 1.0], [1.0, 1.0 + 2.0**-40]])
    x, info = on_device(A, np.array([2.0, 2.0 + 2.0**-40]), "fp32")
    assert info.fallback
    assert "pivot 2 is zero" in info.message
    np.testing.assert_allclose(x, [1, 1], rtol=2.0**-10)  # condition 2^42, u = 2^-53


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("precision", "shift"), [("fp32", 0), ("fp16", 20), ("bf16", 20)])
def test_coarse_factors_are_refined_to_a_residual_of_one_roundoff(precision: str, shift: float, seed: int) -> None:
    n = 200
    A, b = random((n, n), seed=seed) + shift * np.eye(n), random(n, seed=seed + 10)
    x, info = on_device(A, b, precision)
    assert not info.fallback
    assert info.backward_error <= 1 / n
    assert eta(A, x, b) <= 2 / n  # the residual by another summation
    if not shift:
        assert eta(A, x, b) <= eta(A, np.linalg.solve(A, b), b)


@pytest.mark.parametrize("precision", ["fp64", "fp32", "tf32"])
def test_complex_systems_of_many_sides_are_solved(precision: str) -> None:
    n, k = 130, 12
    G = random((n, n), np.complex128)
    A, B = G + G.conj().T, random((n, k), np.complex128)
    X, info = on_device(torch.from_numpy(A), torch.from_numpy(B), precision)
    assert info.solved
    assert max(eta(A, X.numpy()[:, j], B[:, j]) for j in range(k)) <= enough(n)
    Y = np.linalg.solve(A, B)
    assert np.abs(X.numpy() - Y).max() <= 50 * n * U * np.linalg.cond(A) * np.abs(Y).max()


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32"])
def test_factors_that_overflow_are_made_good_in_fp64(precision: str) -> None:
    """Growth 2^139 is beyond fp32's range, and fp16's long before; in fp64 the other triangle does not grow at all."""
    n = 140
    # A little less below the diagonal: among equal pivots a device's library may choose any, and others grow less.
    A, b = wilkinson(n) + 2.0**-20 * np.tri(n, k=-1), random(n)
    x, info = on_device(A if precision != "fp32" else np.asfortranarray(A), b, precision, width=16)
    assert info.fallback
    assert info.precision == "fp64"
    if precision != "fp32":  # whose fp64 factors go down the same columns
        assert info.solved
        assert eta(A, x, b) <= enough(n)
