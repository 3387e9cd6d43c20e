"""Test `solve` and `lu_factor` with emulated products of fp64 factors, on the host and with torch on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mxpeak as mx
from mxpeak.errors import UsageError
from mxpeak.kernels import choose
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.engine.tensors import device_at
from mxpeak.library.dense.inputs import matrix, right_hand_side
from mxpeak.library.dense.solving import solve_by
from tests.support.roundoff import U


def system(n: int, columns: int = 0) -> tuple[Any, Any]:
    random = np.random.default_rng(n)
    return random.standard_normal((n, n)), random.standard_normal((n, columns) if columns else n)


def close(A: Any, x: Any, expected: Any) -> bool:
    """Check that two backward stable solves differ by at most 2·n·u·κ·|x|, times 10 for the growth of pivoting."""
    return bool(np.abs(x - expected).max() <= 20 * len(A) * U * np.linalg.cond(A) * np.abs(expected).max())


@pytest.mark.parametrize(("n", "columns"), [(0, 0), (1, 0), (100, 0), (257, 3), (600, 0)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_solutions_with_emulated_factors(n: int, columns: int, order: str) -> None:
    A, b = system(n, columns)
    A = np.asarray(A, order=order)
    x, info = mx.solve(A, b, precision="fp64", fp64="emulated")
    assert info.solved
    assert info.precision == "fp64"
    assert info.fp64 == ("emulated" if n > 256 else "native")  # a matrix of one panel has no products
    if n:
        assert info.backward_error < 1.0
        assert close(A, x, np.linalg.solve(A, b))
    assert ("LU in fp64 (emulated)" in str(info)) is (n > 256)


def test_factors_solve_with_the_transpose() -> None:
    A, b = system(301)
    F = mx.lu_factor(A, precision="fp64", fp64="emulated")
    for form, of in (("N", A), ("T", A.T)):
        x, info = F.solve(b, transposed=form)
        assert info.fp64 == "emulated"
        assert close(A, x, np.linalg.solve(of, b))


def test_torch_on_the_cpu_emulates_with_residues() -> None:
    A, b = system(700)
    kernels = choose.dense(device_at("cpu"), emulated=True)
    x, info = solve_by(kernels, matrix(A), right_hand_side(b, len(A)), "fp64")
    assert (info.fp64, info.solved) == ("emulated", True)
    assert close(A, np.asarray(x), np.linalg.solve(A, b))


@pytest.mark.parametrize("n", [300, 1100])  # auto selects fp32 for the larger order
def test_emulated_products_select_factors_in_fp64(n: int) -> None:
    A, b = system(n)
    F = mx.lu_factor(A, fp64="emulated")
    for _, info in (mx.solve(A, b, fp64="emulated"), mx.solve(A, b, fp64="emulated", transposed="H"), F.solve(b)):
        assert (info.precision, info.fp64, info.solved) == ("fp64", "emulated", True)
    _, info = mx.solve(A, b, fp64="auto", precision="fp32")
    assert (info.precision, info.fp64) == ("fp32", "native")


def test_emulated_products_select_factors_in_fp64_for_inputs_in_fp32() -> None:
    A, b = system(300)
    _, info = mx.solve(A.astype(np.float32), b.astype(np.float32), fp64="emulated")
    assert (info.precision, info.fp64, info.solved) == ("fp64", "emulated", True)


@pytest.mark.parametrize("function", [mx.solve, lambda A, b, **options: mx.lu_factor(A, **options)])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_emulated_products_refuse_factors_in_another_precision(function: Any, precision: str) -> None:
    with pytest.raises(UsageError, match=f'factors in fp64, not in {precision}; use precision="fp64" or fp64="native"'):
        function(np.eye(3), np.ones(3), precision=precision, fp64="emulated")
    with pytest.raises(UsageError, match="unknown precision 'fp99'"):
        function(np.eye(3), np.ones(3), precision="fp99", fp64="emulated")


def test_a_fallback_to_fp64_is_emulated() -> None:
    A, b = system(300)
    U_A, _, V_A = np.linalg.svd(A)
    A = U_A @ np.diag(np.logspace(0.0, -12.0, 300)) @ V_A  # too ill-conditioned for factors in bf16
    _, info = solve_by(choose.dense(None, emulated=True), matrix(A), right_hand_side(b, len(A)), "bf16")
    assert info.fallback
    assert (info.precision, info.fp64) == ("fp64", "emulated")


def test_auto_is_native_on_the_host() -> None:
    A, b = system(300)
    x, info = mx.solve(A, b, precision="fp64", fp64="auto")
    assert info.fp64 == "native"
    assert close(A, x, np.linalg.solve(A, b))


def test_special_values_and_singular_matrices() -> None:
    A, b = system(300)
    A[:, 7] = A[:, 250]
    with pytest.warns(mx.IllConditionedWarning):
        mx.solve(A, b, precision="fp64", fp64="emulated")
    A[7] = 0.0
    with pytest.raises(mx.SingularMatrixError):
        mx.solve(A, b, precision="fp64", fp64="emulated")
    A[3, 4] = np.nan
    with pytest.raises(UsageError, match=r"A\[3, 4\] is nan"):
        mx.solve(A, b, precision="fp64", fp64="emulated")


@pytest.mark.parametrize(
    ("A", "options", "message"),
    [
        (np.eye(2), {"fp64": "both"}, "unknown fp64 'both'; use one of native, emulated, auto"),
        (np.eye(2), {"fp64": None}, "unknown fp64 None"),
        (np.eye(2) * 1j, {"fp64": "emulated"}, "only real matrices, not complex128"),
        (np.ones((3, 2, 2)), {"fp64": "emulated"}, r"one matrix, not a stack of shape \(3, 2, 2\)"),
        (np.eye(2), {"fp64": "emulated", "assume_a": "pos"}, "supports only LU"),
    ],
)
def test_bad_arguments(A: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        mx.solve(A, np.ones(A.shape[-1]), **options)


def test_the_products_of_a_failed_factorization_are_not_counted() -> None:
    """A matrix of one panel has no products."""
    kernels = choose.dense(device_at("cpu"), emulated=True)
    kernels._emulation.subtract_product(*(kernels.xp.asarray(np.eye(3)) for _ in "CAB"))
    A, b = system(10)
    _, info = solve_by(kernels, matrix(A), right_hand_side(b, len(A)), "fp64")
    assert info.fp64 == "native"


@pytest.mark.parametrize(("architecture", "arithmetic"), [("sm_90", "unknown"), ("", "native")])
def test_a_request_to_the_library_is_not_called_native(
    monkeypatch: pytest.MonkeyPatch, architecture: str, arithmetic: str
) -> None:
    monkeypatch.setenv("CUBLAS_EMULATE_DOUBLE_PRECISION", "1")
    monkeypatch.setattr(Device, "architecture", architecture)
    kernels = choose.dense(device_at("cpu"))
    A, b = system(10)
    _, info = solve_by(kernels, matrix(A), right_hand_side(b, len(A)), "fp64")
    assert info.fp64 == arithmetic
    _, info = solve_by(kernels, matrix(A), right_hand_side(b, len(A)), "fp32")
    assert info.fp64 == "native"
