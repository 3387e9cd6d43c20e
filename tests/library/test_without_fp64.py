"""Test that `solve`, `lu_factor` and `Solver` give fp64 answers on an invented accelerator without fp64."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

import mxpeak as mx
from mxpeak.kernels.torch.engine import tensors
from mxpeak.kernels.torch.engine.device import Device, open_device
from tests.support.hard_systems import Long, exactly, systems, true_eta
from tests.support.invented_mps import MPS, InventedMps, MpsTensor

RNG = np.random.default_rng(33)
N = 60
A = RNG.standard_normal((N, N)) + 4 * np.eye(N)
B = RNG.standard_normal(N)


@pytest.fixture(autouse=True)
def mps(monkeypatch: pytest.MonkeyPatch) -> Iterator[InventedMps]:
    device = Device(torch.device("cpu"), triton=False, poison=True, without_fp64=MPS)
    monkeypatch.setattr(tensors, "_mps", lambda: device)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # several threads would wait for each other on a busy machine
    with InventedMps() as mode:
        yield mode
    torch.set_num_threads(before)


def on_mps(V: Any) -> Any:
    return torch.from_numpy(V.astype(np.float32)).to(MPS)


@pytest.mark.parametrize("form", ["N", "T", "H"])
def test_arrays_are_solved_to_fp64_with_factors_and_residuals_of_the_device(mps: InventedMps, form: str) -> None:
    for b in (B, RNG.standard_normal((N, 3))):
        mps.calls.clear()
        x, info = mx.solve(A, b, device="mps", transposed=form)
        M = A if form == "N" else A.T
        assert isinstance(x, np.ndarray)
        assert x.dtype == np.float64
        assert info.solved
        assert (info.precision, info.factorization, info.fallback) == ("fp32", "LU", False)
        assert "the device has no fp64" in str(info)
        assert true_eta(M, x.reshape(N, -1)[:, -1], b.reshape(N, -1)[:, -1]) <= 1 / N
        assert mps.calls["aten.linalg_lu_factor_ex.default"] == 1
        assert mps.calls["aten.linalg_solve_triangular.default"] > 4
        assert mps.calls["aten.mm.default"] > 4
        plain, _ = mx.solve(M, b)
        assert np.allclose(x, plain, rtol=1e-12, atol=1e-12)


def test_tensors_of_the_device_give_tensors_there_and_fp64_for_a_b_in_fp64() -> None:
    x, info = mx.solve(on_mps(A), on_mps(B))
    assert isinstance(x, MpsTensor)
    assert x.dtype == torch.float32
    assert info.solved
    x, info = mx.solve(on_mps(A), B, device="mps")
    assert isinstance(x, np.ndarray)
    assert x.dtype == np.float64
    assert true_eta(A.astype(np.float32).astype(float), x, B) <= 1 / N
    x, info = mx.solve(on_mps(A), torch.from_numpy(B), device="mps")
    assert x.dtype == torch.float64
    assert x.device.type == "cpu"
    assert info.backward_error <= 1 / N


def test_factors_and_solvers_are_used_again(mps: InventedMps) -> None:
    F = mx.lu_factor(A, device="mps")
    for form in ("N", "T"):
        x, info = F.solve(B, transposed=form)
        assert info.solved
        assert true_eta(A if form == "N" else A.T, x, B) <= 1 / N
    solver = mx.Solver(A, device="mps")
    solver.solve(B)
    assert mps.calls["aten.linalg_lu_factor_ex.default"] == 2
    changed = A * (1 + 1e-6 * RNG.standard_normal((N, N)))
    solver.update(changed)
    x, info = solver.solve(B)
    assert info.solved
    assert true_eta(changed, x, B) <= 2.0


def test_a_matrix_that_changed_after_the_solve_is_noticed() -> None:
    M = A.copy()
    _, info = mx.lu_factor(M, device="mps").solve(B)
    M += 1.0
    assert np.isnan(info.condition)


def test_hard_systems_are_never_wrong_without_a_warning() -> None:
    counted = Counter[str]()
    for number, (name, M) in enumerate(islice(systems(), 60)):
        b = M @ np.ones(len(M)) if number % 2 else RNG.standard_normal(len(M))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mx.IllConditionedWarning)
            try:
                x, info = mx.solve(M, b, device="mps")
            except mx.SingularMatrixError:
                counted["refused"] += 1
                continue
        found = true_eta(M, x, b)
        off = found - info.backward_error if info.scaled else abs(found - info.backward_error)
        assert off <= max(0.5, info.backward_error / 2), (number, name, found, info)
        y = exactly(M, b)
        error = float(np.abs(x - y).max() / np.abs(y).max()) if np.isfinite(y).all() else np.inf
        assert error < 0.5 or info.ill_conditioned or not info.solved, (number, name, error, info)
        assert not (name == "random" and info.ill_conditioned), (number, error, info)
        counted["fallback" if info.fallback else "warned" if info.ill_conditioned else "solved"] += 1
    assert counted["solved"] > 15, counted
    assert counted["fallback"] > 5, counted


def test_fp64_factors_of_the_cpu_replace_factors_that_are_too_coarse() -> None:
    Q, _ = np.linalg.qr(RNG.standard_normal((N, N)))
    M = (Q * np.geomspace(1.0, 1e-12, N)) @ Q.T
    x, info = mx.solve(M, M @ np.ones(N), device="mps")
    assert info.precision == "fp64"
    assert info.fallback
    y = exactly(M, M @ np.ones(N))
    assert np.abs(x - y.astype(Long)).max() < 1e-2


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: mx.solve(A, B, device="mps", precision="bf16"), "mps:0 factors only in fp32, not in bf16; use prec"),
        (lambda: mx.solve(A, B, device="mps", precision="fp64"), "mps:0 factors only in fp32, not in fp64"),
        (lambda: mx.solve(A + 0j, B, device="mps"), 'mps:0 supports only real systems; use device="cpu"'),
        (lambda: mx.solve(A, B, device="mps", fp64="emulated"), 'does not support mps:0; use fp64="native"'),
        (lambda: mx.solve(A, B, device="mps", assume_a="pos"), 'no fp64, and .* only for LU factors; use device="cpu"'),
        (lambda: mx.cho_factor(A, device="mps"), 'device="mps" has no fp64'),
        (lambda: mx.lstsq(A, B, device="mps"), 'device="mps" has no fp64'),
        (lambda: mx.norm(A, device="mps"), 'device="mps" has no fp64'),
        (lambda: mx.solve(np.stack([A, A]), B, device="mps"), 'device="mps" has no fp64'),
        (lambda: mx.solve(A, on_mps(B), device="mps"), r"x is in fp64, but b is on mps:0, .* use b\.cpu\(\)"),
        (lambda: mx.solve(on_mps(A), on_mps(B), device="cuda"), 'device="cuda" conflicts with a tensor on mps:0'),
        (lambda: mx.solve(on_mps(A), B), 'one operand is on mps:0 and another is on the CPU; use device="mps:0"'),
        (lambda: mx.lstsq(on_mps(A), on_mps(B)), "a tensor is on mps:0, but mxpeak supports only cpu and cuda here"),
    ],
)
def test_errors_say_what_to_use(call: Any, words: str) -> None:
    with pytest.raises(mx.UsageError, match=words):
        call()


def test_structures_are_solved_by_lu_if_mxpeak_chooses() -> None:
    S = A @ A.T
    _, info = mx.solve(S, B, device="mps", assume_a="auto")
    assert info.factorization == "LU"


def test_a_machine_without_such_a_device_names_another() -> None:
    if torch.backends.mps.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(mx.ResourceError, match=r"device mps is not available: .* use the device cpu"):
        open_device("mps")
