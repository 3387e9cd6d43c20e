"""Compare the errors of `mx.emulation_error` with exact ones, and test its refusals."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import mxpeak as mx
from mxpeak.kernels.choose import choose
from mxpeak.kernels.contract.emulation import Emulation
from mxpeak.kernels.reference.kernels import ReferenceKernels
from mxpeak.solvers.emulation_error import EmulationError, measure_emulation_error
from tests.support.roundoff import U


def exact_errors(C: Any, A: Any, B: Any) -> Any:
    """Return |C + A B| / |A||B| entry by entry, in rational numbers."""
    errors = np.zeros(C.shape)
    for i in range(C.shape[0]):
        for j in range(C.shape[1]):
            terms = [Fraction(a) * Fraction(b) for a, b in zip(A[i].tolist(), B[:, j].tolist())]
            size = sum(map(abs, terms))
            errors[i, j] = float(abs(Fraction(float(C[i, j])) + sum(terms)) / size) if size else 0.0
    return errors


def test_errors_are_those_of_rational_arithmetic(rng: Any) -> None:
    kernels = ReferenceKernels()
    A, B = rng.standard_normal((7, 13)), np.ldexp(rng.standard_normal((13, 5)), rng.integers(-30, 30, (13, 5)))
    error = measure_emulation_error(kernels, A, B, 35)
    products = [np.zeros((7, 5)), np.zeros((7, 5))]
    kernels.subtract_emulated_product(products[0], A, B)
    kernels.subtract_product(products[1], A, B)
    assert error.emulated == exact_errors(products[0], A, B).max()
    assert error.native == exact_errors(products[1], A, B).max()
    assert error.bound == 14 * U
    assert error.blocks.emulated == 1


def test_the_worst_entries_are_found_among_many(rng: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An emulation with an error in one of 120 entries is detected by one comparison."""
    kernels = ReferenceKernels()
    A, B = rng.standard_normal((10, 8)), rng.standard_normal((8, 12))

    def spoiling(C: Any, A: Any, B: Any) -> Emulation:
        C -= A @ B
        C[7, 3] += 1e-9
        return Emulation(emulated=1)

    monkeypatch.setattr(kernels, "subtract_emulated_product", spoiling)
    error = measure_emulation_error(kernels, A, B, 1)
    assert error.emulated == pytest.approx(1e-9 / (np.abs(A[7]) @ np.abs(B[:, 3])), rel=1e-4)
    assert error.emulated > error.bound > error.native


@pytest.mark.parametrize("order", ["C", "F"])
def test_products_of_ordinary_and_graded_matrices_are_within_the_bound(rng: Any, order: Any) -> None:
    A, B = (np.asarray(rng.standard_normal(shape), order=order) for shape in ((40, 150), (150, 30)))
    error = mx.emulation_error(A, B)
    assert 0.0 < error.emulated <= 9 * U < error.bound
    assert error.native <= error.bound
    assert error.blocks.native == error.blocks.widened == 0
    steps = np.exp2(np.rint(np.linspace(0, 40, 150)))
    error = mx.emulation_error(A / steps, steps[:, None] * B)
    assert error.emulated <= 9 * U
    assert (error.blocks.widened, error.blocks.native) == (1, 0)
    far = np.exp2(np.rint(np.linspace(0, 400, 150)))
    error = mx.emulation_error(A / far, far[:, None] * B)
    assert error.emulated == error.native <= error.bound
    assert error.blocks == Emulation(native=1)


def test_other_arrays_are_accepted() -> None:
    assert mx.emulation_error([[1, 2]], [[3], [4]]).emulated <= 9 * U
    assert mx.emulation_error(np.zeros((3, 2)), np.ones((2, 4))).emulated == 0.0
    assert mx.emulation_error(np.zeros((0, 2)), np.ones((2, 4))).blocks == Emulation()
    A = np.arange(24.0).reshape(4, 6)[::2, ::2]
    assert mx.emulation_error(A, A.T).emulated <= 9 * U
    assert A.tolist() == [[0.0, 2.0, 4.0], [12.0, 14.0, 16.0]]


def test_tensors_of_the_cpu_are_accepted(rng: Any) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    A = rng.standard_normal((5, 6))
    assert mx.emulation_error(torch.tensor(A), torch.tensor(A).T) == mx.emulation_error(A, A.T)
    with pytest.raises((mx.UsageError, mx.ResourceError), match="use"):
        mx.emulation_error(A, A.T, device="cuda:7")


def test_read_only_arrays_are_accepted(rng: Any) -> None:
    A = rng.standard_normal((5, 6))
    expected = mx.emulation_error(A, A.T)
    A.setflags(write=False)
    assert mx.emulation_error(A, A.T) == expected


@pytest.mark.parametrize("name", ["reference", "host", "torch"])
@pytest.mark.parametrize("shape", [(0, 3, 2), (3, 0, 2), (2, 3, 0), (0, 0, 0), (0, 3, 0)])
def test_empty_matrices_have_no_error(name: str, shape: tuple[int, int, int]) -> None:
    """No block is multiplied, and a product over k = 0 is a matrix of zeros without a rounding error."""
    if name == "torch":
        pytest.importorskip("torch", reason="torch is not installed")
    m, k, n = shape
    kernels = choose(name, "cpu", 1)
    xp: Any = kernels.xp
    A, B = (xp.ones(of, dtype=xp.float64) for of in ((m, k), (k, n)))
    error = EmulationError(0.0, 0.0, (k + 1) * U, Emulation())
    for left, right in ((A, B), (xp.ones((k, m), dtype=xp.float64).T, xp.ones((n, k), dtype=xp.float64).T)):
        assert measure_emulation_error(kernels, left, right, 5) == error
        assert mx.emulation_error(left, right) == error


def test_overflow_is_an_infinite_error() -> None:
    error = mx.emulation_error(np.full((1, 2), 1e200), np.full((2, 1), 1e200))
    assert (error.emulated, error.native) == (np.inf, np.inf)


def test_blas_has_its_threads_afterwards() -> None:
    from mxpeak.kernels.host.engine.blas import own_threads

    before = own_threads()
    mx.emulation_error(np.ones((2, 2)), np.ones((2, 2)))
    assert own_threads() == before


@pytest.mark.parametrize(
    ("A", "B", "options", "message"),
    [
        (np.ones((2, 3)), np.ones((2, 3)), {}, r"A has 3 columns, but B has 2 rows; use a B with 3 rows"),
        (np.ones(3), np.ones((3, 1)), {}, r"A has shape \(3,\); use a matrix"),
        (np.ones((2, 2)), np.ones((2, 2)) * 1j, {}, r"B is complex; use B\.real and B\.imag"),
        (np.array([[1.0, np.nan]]), np.ones((2, 1)), {}, r"A\[0, 1\] is nan: 1 of 2 entries of A are not finite"),
        (np.ones((2, 2)), np.ones((2, 2)), {"entries": 0}, r"entries = 0 is not valid; use an integer of at least 1"),
        (np.ones((2, 2)), np.ones((2, 2)), {"device": "tpu"}, r"unknown device \"tpu\""),
    ],
)
def test_requests_that_cannot_be_met(A: Any, B: Any, options: Any, message: str) -> None:
    with pytest.raises(mx.UsageError, match=message):
        mx.emulation_error(A, B, **options)
