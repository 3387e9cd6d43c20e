"""Test the inputs, results and messages of `mxpeak.solve` and `lu_factor` with the host's and torch's kernels."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mxpeak as mx
from mxpeak.errors import ExitCode, Outcome, ResourceError, SingularError, UsageError
from mxpeak.kernels.contract import DenseKernels
from mxpeak.kernels.host.dense.dense import HostDense
from mxpeak.library import policy
from mxpeak.library.dense.factors import backend_of
from mxpeak.precision import PRECISIONS
from mxpeak.solvers import array_factors
from mxpeak.solvers.array_factors import factor
from mxpeak.spans import Spans
from tests.support.systems import (
    KERNELS,
    TYPES,
    U,
    dense_kernels,
    enough,
    eta,
    layouts,
    lu_factor_on,
    random,
    solve_on,
    wilkinson,
)


@pytest.fixture(params=KERNELS)
def kernels(request: pytest.FixtureRequest) -> DenseKernels:
    return dense_kernels(request.param)


# --- inputs --------------------------------------------------------------------------------------------------------


def test_the_result_has_the_inputs_type_and_its_accuracy(kernels: DenseKernels) -> None:
    for dtype, n in product(TYPES, (1, 2, 37, 130)):
        A, b = random((n, n), dtype), random(n, dtype, 2)
        x, info = solve_on(kernels, A, b)
        assert (type(x), x.dtype, x.shape) == (np.ndarray, dtype, (n,))
        assert info.solved
        assert eta(A, x, b) <= enough(n)


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16"])
def test_any_memory_order_is_solved_and_left_alone(kernels: DenseKernels, precision: str) -> None:
    n = 29
    for dtype in (np.float64, np.complex64):
        A, b = random((n, n), dtype), random((n, 3), dtype, 2)
        sides = (b, np.asfortranarray(b), np.repeat(b, 2, axis=0)[::2], b[::-1].copy()[::-1])
        for k, (name, laid_out) in enumerate(layouts(A).items()):
            side = sides[k % len(sides)]
            before = side.copy()
            x, info = solve_on(kernels, laid_out, side, precision)
            assert info.solved, name
            assert eta(A, x, b) <= enough(n), name
            assert np.array_equal(laid_out, A), name
            assert np.array_equal(side, before), name


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 12), k=st.integers(1, 4), seed=st.integers(0, 99), turned=st.booleans(), narrow=st.booleans())
def test_small_systems_agree_with_numpy(n: int, k: int, seed: int, turned: bool, narrow: bool) -> None:
    A, b = random((n, n), seed=seed), random((n, k), seed=seed + 100)
    A = A.T if turned else A
    for name in KERNELS:
        x, info = solve_on(dense_kernels(name), A, b, "fp32" if narrow else "auto")
        assert info.solved
        # Each error is at most cond times the backward error, a few n·u.
        assert np.abs(x - np.linalg.solve(A, b)).max() <= 50 * n * U * np.linalg.cond(A) * np.abs(x).max()


@pytest.mark.parametrize(
    ("dtype", "of_x"),
    [
        (np.int64, np.float64),
        (np.uint8, np.float64),
        (np.float16, np.float32),
        (ml_dtypes.bfloat16, np.float32),
        (np.float32, np.float32),
        (np.complex64, np.complex64),
    ],
)
def test_integers_and_16_bit_numbers_are_widened(kernels: DenseKernels, dtype: Any, of_x: Any) -> None:
    A, b = (np.array(values).astype(dtype) for values in ([[2, 1], [1, 3]], [3, 4]))
    of_torch = getattr(torch, np.dtype(dtype).name)
    for of_A, of_b in ((A, b), (torch.tensor([[2, 1], [1, 3]]).to(of_torch), torch.tensor([3, 4]).to(of_torch))):
        x, info = solve_on(kernels, of_A, of_b)
        assert np.asarray(x).dtype == of_x
        np.testing.assert_allclose(np.asarray(x), [1, 1], rtol=8 * np.finfo(of_x).eps)
        assert info.solved


def test_lists_and_booleans_are_systems_too(kernels: DenseKernels) -> None:
    for A, b in (
        ([[2, 1], [1, 3]], [3, 4]),
        (np.array([[True, True], [False, True]]), np.array([2, 1])),
        (torch.tensor([[True, True], [False, True]]), [2, 1]),
    ):
        x, _ = solve_on(kernels, A, b)
        assert x.dtype == np.float64
        np.testing.assert_allclose(x, [1, 1], rtol=8 * U)


def test_types_promote_as_numpys_do(kernels: DenseKernels) -> None:
    n = 31
    for of_A, of_b in product(TYPES, TYPES):
        A, b = random((n, n), of_A), random((n, 2), of_b, 2)
        x, info = solve_on(kernels, A, b)
        assert x.dtype == np.result_type(of_A, of_b)
        assert (info.solved, info.rhs) == (True, 2)
        bound = 20 * n * np.linalg.cond(A) * np.finfo(x.dtype).eps * np.abs(x).max()
        assert np.abs(x - np.linalg.solve(A.astype(np.complex128), b)).max() <= bound


@pytest.mark.parametrize(
    ("A", "b", "says"),
    [
        (np.ones((2, 3)), np.ones(2), r"A has shape \(2, 3\).*square.*lstsq"),
        (np.ones(4), np.ones(4), r"shape \(4,\).*square"),
        (np.eye(3), np.ones(4), r"3x3, but b has shape \(4,\); use a b with 3 rows"),
        (np.eye(3), np.ones((3, 2, 2)), r"b has shape \(3, 2, 2\)"),
        (np.eye(3), np.array(1.0), r"b has shape \(\)"),
        (np.eye(2, dtype=object), np.ones(2), "A has dtype object"),
    ],
)
def test_what_cannot_be_a_system_is_refused(A: Any, b: Any, says: str) -> None:
    tensors = () if A.dtype == object else ((torch.tensor(A), torch.tensor(b)),)
    for of_A, of_b in ((A, b), *tensors):
        with pytest.raises(UsageError, match=says):
            mx.solve(of_A, of_b)


@pytest.mark.parametrize("precision", ["auto", "fp32", "fp16"])
def test_the_first_entry_that_is_not_finite_is_named(kernels: DenseKernels, precision: str) -> None:
    for bad, order in product((np.nan, np.inf, -np.inf), "CF"):
        A, b = np.array(random((9, 9)), order=order), random(9)  # type: ignore[call-overload]
        A[4, 7] = A[6, 1] = bad
        with pytest.raises(UsageError, match=rf"A\[4, 7\] is {bad}: 2 of 81 entries"):
            solve_on(kernels, A, b, precision)
        b[5] = bad
        with pytest.raises(UsageError, match=rf"b\[5\] is {bad}"):
            solve_on(kernels, np.eye(9), b, precision)


def test_an_exactly_singular_matrix_is_an_error(kernels: DenseKernels) -> None:
    singular = (np.zeros((1, 1)), np.ones((5, 5)), np.diag([1.0, 0.0, 2.0]), np.array([[1.0, 2.0], [2.0, 4.0]]))
    for A, precision in product(singular, ("auto", *PRECISIONS)):
        with pytest.raises(SingularError, match=r"pivot \d of \d is exactly zero") as caught:
            solve_on(kernels, A, np.ones(len(A)), precision)
        assert caught.value.exit_code is ExitCode.FAILED


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_devices_and_precisions_that_do_not_exist_are_refused() -> None:
    for A in (np.eye(2), torch.eye(2)):
        for call in (lambda **how: mx.solve(A, np.ones(2), **how), lambda **how: mx.lu_factor(A, **how)):  # noqa: B023
            with pytest.raises(ResourceError, match="device cuda:0 "):
                call(device="cuda:0")
            with pytest.raises(UsageError, match='unknown device "tpu"'):
                call(device="tpu")
            with pytest.raises(UsageError, match="unknown precision 'half'; use one of auto, fp64, fp32"):
                call(precision="half")


# --- tensors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp64", "fp32", "fp16"])
def test_tensors_give_tensors_and_are_left_alone(kernels: DenseKernels, precision: str) -> None:
    n = 41
    A, b = random((n, n)), random((n, 2), seed=2)
    expected, _ = solve_on(kernels, A, b, precision)
    wide = torch.zeros(2 * n, n + 3, dtype=torch.float64)
    wide[::2, :n] = torch.tensor(A)
    parts = torch.stack([torch.zeros(n, n, dtype=torch.float64), -torch.tensor(A)], dim=2)
    for name, T in {
        "rows": torch.tensor(A),
        "columns": torch.tensor(A.T.copy()).T,
        "padded": wide[::2, :n],
        "negated": torch.view_as_complex(parts).conj().imag,
    }.items():
        x, info = solve_on(kernels, T, torch.tensor(b), precision)
        assert isinstance(x, torch.Tensor), name
        assert (x.dtype, tuple(x.shape)) == (torch.float64, (n, 2))
        assert info.solved
        np.testing.assert_allclose(x.numpy(), expected, rtol=1e-9)
        assert np.array_equal(T.resolve_neg().numpy(), A), name


def test_conjugated_tensors_are_those_numbers(kernels: DenseKernels) -> None:
    A, b = random((9, 9), np.complex128), random(9, np.complex128)
    x, _ = solve_on(kernels, torch.tensor(A).conj(), torch.tensor(b).conj())
    np.testing.assert_allclose(x.numpy(), np.linalg.solve(A.conj(), b.conj()), rtol=1e-11)


def test_tensors_on_the_cpu_are_solved_as_arrays_are() -> None:
    A, b = random((60, 60)), random(60)
    expected, of_arrays = mx.solve(A, b)
    x, info = mx.solve(torch.tensor(A), torch.tensor(b), device="cpu")
    assert np.array_equal(x.numpy(), expected)
    assert info.history == of_arrays.history
    F = mx.lu_factor(torch.tensor(A))
    assert repr(F) == "LUFactors(60x60 float64, precision='fp64')"
    assert np.array_equal(F.solve(torch.tensor(b))[0].numpy(), mx.lu_factor(A).solve(b)[0])


def test_the_solution_comes_as_the_right_hand_side_came(kernels: DenseKernels) -> None:
    A, b = random((12, 12)), random(12)
    for of_A in (A, torch.tensor(A), A.tolist()):
        F = lu_factor_on(kernels, of_A)
        for of_b, kind in ((b, np.ndarray), (b.tolist(), np.ndarray), (torch.tensor(b), torch.Tensor)):
            assert isinstance(solve_on(kernels, of_A, of_b)[0], kind)
            assert isinstance(F.solve(of_b)[0], kind)


def test_read_only_arrays_raise_no_warning(kernels: DenseKernels) -> None:
    A = random((5, 5))
    A.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert solve_on(kernels, A, A[0])[1].solved


# --- results -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRECISIONS)
def test_every_precision_solves_and_says_what_it_did(name: str) -> None:
    n = 90  # more than one panel, so that low-precision products take part
    for dtype in (np.float64, np.float32, np.complex128):
        A, b = random((n, n), dtype) + np.sqrt(n).astype(dtype) * np.eye(n, dtype=dtype) * 2, random(n, dtype, 2)
        exact, infos = np.linalg.cond(A, 1), []
        for kernels in KERNELS:
            x, info = solve_on(dense_kernels(kernels), A, b, name)
            infos.append(info)
            assert info.solved
            assert (info.precision, info.fallback, info.message) == (name, False, "")
            assert info.emulated == dense_kernels(kernels).emulates(name, np.dtype(dtype))
            assert info.scaled == (name in ("fp16", "fp8"))
            assert eta(A, x, b) <= enough(n)
            assert info.backward_error == pytest.approx(eta(A, x, b), abs=1 / n)
            assert len(info.history) == info.iterations + 1
            assert set(info.times) == {"equilibrate", "factor", "refine"}
            assert all(time_s > 0 for time_s in info.times.values())
            # Higham's estimate is a lower bound up to rounding, and rarely 3 times too small.
            if not info.scaled:
                assert exact / 3 <= info.condition <= 1.2 * exact
                assert info.times["estimate"] > 0.0
        assert infos[1].growth == pytest.approx(infos[0].growth, rel=4 * n * PRECISIONS[name].u)
        assert abs(infos[1].iterations - infos[0].iterations) <= max(2, infos[0].iterations // 2)


def test_low_precision_takes_more_steps_than_high() -> None:
    n = 400
    A, b = random((n, n)) + 1.5 * np.sqrt(n) * np.eye(n), random(n)
    steps = [mx.solve(A, b, precision=name)[1].iterations for name in ("fp64", "fp32", "fp16", "bf16")]
    assert steps[0] <= 1
    assert steps == sorted(steps)
    assert steps[1] < steps[3]


def test_growth_is_that_of_the_factors(kernels: DenseKernels, monkeypatch: pytest.MonkeyPatch) -> None:
    n = 40
    # By columns the elimination goes down the columns of W itself, whose last one doubles at each step; where torch
    # moves the rows itself, W lies by rows.
    by_columns, by_rows = np.asfortranarray(wilkinson(n)), wilkinson(n)
    for strip in (1, 7 * n, 1 << 20):
        monkeypatch.setattr("mxpeak.solvers.array_factors.STRIP", strip)
        assert solve_on(kernels, by_columns, np.ones(n), "fp32")[1].growth == 2.0 ** (n - 1)
        W = by_columns if kernels.device is None else by_rows
        assert lu_factor_on(kernels, W, "tf32")._factors.growth == 2.0 ** (n - 1)
        assert solve_on(kernels, np.eye(n), np.ones(n))[1].growth == 1.0


def test_what_overflows_has_an_infinite_condition_and_growth(kernels: DenseKernels) -> None:
    tiny = np.diag([1e-38, 1.0, 1e-38]) * 1e-6
    A = kernels.xp.asarray(tiny.astype(np.float32))
    factors = factor(backend_of(kernels, np.dtype(np.float32)), A, "fp32", Spans())
    factors.lu.LU[:] = kernels.xp.asarray(tiny.astype(np.float32))
    assert factors.condition == float("inf")
    factors.lu.LU[0, 2] = np.nan
    assert factors.growth == float("inf")


def test_a_person_can_read_the_info() -> None:
    A = random((60, 60))
    _, info = mx.solve(A, random((60, 3)), precision="bf16")
    lines, emulated = str(info).splitlines(), " (emulated)" if info.emulated else ""
    assert lines[0].startswith(f"solved: n = 60, 3 right-hand sides, LU in bf16{emulated}, ")
    names = [line.split()[0] for line in lines[1:7]]
    assert names == ["backward", "row-wise", "forward", "condition", "growth", "time"]
    assert repr(info).startswith("SolveInfo(outcome=")
    assert info.outcome is Outcome.SOLVED
    with pytest.raises(AttributeError):
        info.n = 3  # type: ignore[misc]


def test_a_zero_right_hand_side_gives_zero(kernels: DenseKernels) -> None:
    for precision in ("fp64", "fp32", "fp16"):
        x, info = solve_on(kernels, random((20, 20)), np.zeros((20, 2)), precision)
        assert not x.any()
        assert info.solved
        assert info.backward_error == 0.0


@pytest.mark.parametrize("precision", ["auto", "fp32", "fp16"])
def test_many_right_hand_sides_are_each_solved(kernels: DenseKernels, precision: str) -> None:
    n, k = 150, 40
    A, B = random((n, n)) + 12 * np.eye(n), random((n, k)) * np.logspace(-30, 30, k)
    X, info = solve_on(kernels, A, B, precision)
    # Refining this many right-hand sides costs more than coarser factors save.
    assert info.precision == ("fp64" if precision == "auto" else precision)
    assert max(eta(A, X[:, j], B[:, j]) for j in range(k)) <= enough(n)
    assert info.backward_error <= 2 * max(4 / n, 2**-7)


def test_auto_takes_the_coarsest_factors_that_pay() -> None:
    assert mx.solve(random((60, 60)), random(60))[1].precision == "fp64"
    n = policy.FP32_FROM["small_lu", "real"].single
    assert mx.solve(random((n, n)), random(n))[1].precision == "fp32"
    assert mx.solve(random((n, n)), random((n, 2)))[1].precision == "fp64"
    assert mx.solve(random((60, 60), np.float32), random(60, np.float32))[1].precision == "fp32"
    for (engine, kind), crossover in policy.FP32_FROM.items():
        dtype = np.dtype(complex if kind == "complex" else float)
        for sides, first in ((1, crossover.single), (2, crossover.several)):
            for n, precision in ((first - 1, "fp64"), (first, "fp32")):
                assert policy.choose_precision(n, dtype, "auto", sides, engine=engine).name == precision
                if engine == "small_lu":
                    assert policy.own_precision_is_fastest(n, sides, dtype) is (precision == "fp64")
    A, b, device = random((140, 140)) + 12 * np.eye(140), random(140), dense_kernels("torch")
    assert solve_on(device, A, b)[1].precision == "fp32"
    assert solve_on(device, A, random((140, 2)))[1].precision == "fp64"
    for fast, precision in ((False, "fp32"), (True, "fp64")):
        chip = SimpleNamespace(has_fast_fp64=fast, without_fp64=None)
        for dtype in (float, complex):
            assert policy.choose_precision(20000, np.dtype(dtype), "auto", 1, chip).name == precision
        assert policy.choose_precision(20000, np.dtype(np.float32), "auto", 1, chip).name == "fp32"
        assert policy.choose_precision(20000, np.dtype(float), "fp16", 1, chip).name == "fp16"


def test_columns_that_differ_little_are_scaled_for_bf16_and_not_for_fp32() -> None:
    n = 300
    A = (random((n, n)) + 12 * np.eye(n)) * np.geomspace(1.0, 100.0, n)
    for precision in ("bf16", "fp32"):
        x, info = mx.solve(A, random(n), precision=precision)
        assert (info.precision, info.solved, info.scaled) == (precision, True, precision == "bf16")
        assert eta(A, x, random(n)) <= enough(n)


def test_auto_takes_bf16_where_the_processor_multiplies_it_and_the_diagonal_dominates(
    monkeypatch: pytest.MonkeyPatch, small_lu_up_to: Callable[[int], None]
) -> None:
    n = policy.FP32_FROM["lapack", "real"].single + 3
    small_lu_up_to(n - 3)
    monkeypatch.setattr(array_factors, "BF16_FROM", n)
    A, b = random((n, n)), random(n)
    np.fill_diagonal(A, 0.0)
    by_rows = A + np.diag(np.abs(A).sum(axis=1) / 0.89)
    cases = ((by_rows, "bf16"), (by_rows.T, "bf16"), (A + np.diag(np.abs(A).sum(axis=1) / 0.91), "fp32"), (A, "fp32"))
    for native in (False, True):
        monkeypatch.setattr(HostDense, "emulates", lambda self, precision, dtype, native=native: not native)
        for M, precision in cases:
            x, info = mx.solve(M, b)
            assert info.precision == (precision if native else "fp32")
            assert (info.why == "its diagonal dominates") == (info.precision == "bf16")
            assert info.solved
            assert eta(M, x, b) <= enough(n)
        assert mx.solve(by_rows[1:, 1:], b[1:])[1].precision == "fp32"  # too small
        uneven = by_rows.T * np.geomspace(1.0, 20.0, n)  # each column's diagonal dominates as before
        assert mx.solve(uneven, b)[1].precision == "fp32"
        assert mx.solve(by_rows.astype(np.float32), b.astype(np.float32))[1].precision == "fp32"  # A's own


# --- stored factors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp64", "fp32", "fp16"])
def test_factors_solve_again_and_again(kernels: DenseKernels, precision: str) -> None:
    n = 130
    A = random((n, n)) + 12 * np.eye(n)
    F = lu_factor_on(kernels, A, precision)
    assert repr(F) == f"LUFactors(130x130 float64, precision='{precision}')"
    assert F.precision == precision
    assert F.condition >= 1.0
    for seed in range(3):
        b = random(n, seed=seed)
        x, info = F.solve(b)
        assert eta(A, x, b) <= enough(n)
        assert ("factor" in info.times) == (seed == 0)
    x, info = F.solve(b + 1j * b)
    assert x.dtype == np.complex128
    assert info.rhs == 1
    assert eta(A.astype(np.complex128), x, b + 1j * b) <= enough(n)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_fallback_is_kept(kernels: DenseKernels, precision: str) -> None:
    n = 60
    Q, _ = np.linalg.qr(random((n, n)))
    F = lu_factor_on(kernels, (Q * np.logspace(0, -12, n)) @ Q.T, precision)
    assert F.precision == ("fp64" if precision == "fp32" else precision)  # the factors detect this at once
    first = F.solve(random(n))[1]
    assert first.fallback
    said = (
        "the LU in fp32 indicates that the condition of A is"
        if precision == "fp32"
        else "the LU in fp16 was too coarse"
    )
    assert said in first.message
    second = F.solve(random(n))[1]
    assert (first.precision, second.precision, F.precision) == ("fp64", "fp64", "fp64")
    assert second.fallback
    assert "factor" not in second.times


@pytest.mark.parametrize("transposed", [False, True])
def test_factors_in_fp64_are_made_for_right_hand_sides_that_take_longer_to_refine(*, transposed: bool) -> None:
    n = policy.FP32_FROM["lapack", "real"].single
    A, many = random((n, n)), n // policy.ORDERS_PER_REFACTORING + 1
    for precision, kept in (("auto", "fp64"), ("fp32", "fp32")):
        F = mx.lu_factor(A, precision=precision)
        for sides, chosen in ((many - 1, "fp32"), (many, kept), (1, kept)):
            b = random((n, sides), seed=2)
            x, info = F.solve(b, transposed=transposed)
            assert (info.precision, F.precision, info.fallback) == (chosen, chosen, False)
            assert max(eta(A.T if transposed else A, y, c) for y, c in zip(x.T, b.T)) <= 2 * enough(n)


def test_threads_may_share_factors() -> None:
    n = 150
    A = random((n, n))
    F = mx.lu_factor(A, precision="fp32")
    errors: dict[int, float] = {}

    def work(seed: int) -> None:
        b = random(n, seed=seed)
        errors[seed] = eta(A, F.solve(b)[0], b)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 4
    assert max(errors.values()) <= enough(n)


def test_solving_compiles_nothing() -> None:
    code = (
        "import sys, mxpeak; mxpeak.solve([[2.0]], [1.0]); print([m for m in ('numba', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("precision", ["fp32", "fp16", "fp8"])
def test_triton_solves_the_same(precision: str) -> None:
    from mxpeak.kernels.torch.dense.dense import TorchDense
    from tests.support.torch_devices import torch_device

    n = 37
    A, b = random((n, n)) + 12 * np.eye(n), random(n)
    x, info = solve_on(TorchDense(torch_device(triton=True), 16), A, b, precision)
    assert info.solved
    assert (info.precision, info.fallback) == (precision, False)
    assert eta(A, x, b) <= enough(n)
