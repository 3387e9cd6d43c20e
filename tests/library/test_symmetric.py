"""Test results, errors and diagnostics of Cholesky and L D L^T factors in `solve` and `cho_factor`.

The triangle that is not read contains NaN.
"""

from __future__ import annotations

import pickle
import warnings
from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch

import mxpeak as mx
from mxpeak.errors import Outcome, UsageError
from mxpeak.kernels.contract import DenseKernels
from mxpeak.library import policy
from mxpeak.library.dense import CholeskyFactors
from mxpeak.library.dense.inputs import matrix, right_hand_side
from mxpeak.library.dense.symmetric import SymmetricKind, solve_structured, structure_of
from tests.support.systems import (
    KERNELS,
    TYPES,
    U,
    definite,
    dense_kernels,
    enough,
    eta,
    hilbert,
    layouts,
    one_triangle,
    random,
)
from tests.support.turns import for_each


@pytest.fixture(params=KERNELS)
def kernels(request: pytest.FixtureRequest) -> DenseKernels:
    return dense_kernels(request.param)


def indefinite(n: int, dtype: Any, *, hermitian: bool) -> Any:
    """Return a symmetric or Hermitian matrix with a zero diagonal."""
    X = random((n, n), dtype)
    A = X + (np.conj(X.T) if hermitian else X.T)
    A[np.arange(n), np.arange(n)] = 0.0
    return A


def solved(
    kernels: DenseKernels, A: Any, b: Any, name: str, *, lower: bool = False, precision: str = "auto", form: str = "N"
) -> Any:
    """Solve with these kernels."""
    structure = structure_of(name, lower=lower)
    assert isinstance(structure, SymmetricKind)
    return solve_structured(kernels, matrix(A), right_hand_side(b, len(A)), precision, structure, form)


# --- results -------------------------------------------------------------------------------------------------------


def test_every_type_order_and_triangle_is_solved(kernels: DenseKernels) -> None:
    for dtype, n, lower in product(TYPES, (1, 2, 37, 131), (False, True)):
        for name, A in (
            ("pos", definite(n, dtype)),
            ("her", indefinite(n + n % 2, dtype, hermitian=True)),
            ("sym", indefinite(n + n % 2, dtype, hermitian=False)),
        ):
            b = random(len(A), dtype, 2)
            x, info = solved(kernels, one_triangle(A, lower=lower), b, name, lower=lower)
            assert (type(x), x.dtype, x.shape) == (np.ndarray, dtype, (len(A),))
            assert info.solved, info
            assert eta(A, x, b) <= enough(len(A))
            assert info.factorization == ("Cholesky" if name == "pos" else "LDL^T")
            assert info.backward_error <= enough(len(A))


@pytest.mark.parametrize("precision", ["fp64", "fp32", "tf32", "bf16", "fp16"])
def test_every_precision_gives_fp64_accuracy(kernels: DenseKernels, precision: str) -> None:
    n = 131
    for dtype, lower in product((np.float64, np.complex128), (False, True)):
        A, B = definite(n, dtype), random((n, 3), dtype, 2)
        x, info = solved(kernels, one_triangle(A, lower=lower), B, "pos", lower=lower, precision=precision)
        assert (info.solved, info.precision, info.fallback) == (True, precision, False), info
        assert max(eta(A, x[:, j], B[:, j]) for j in range(3)) <= enough(n)
        assert info.iterations >= (0 if precision == "fp64" else 1)
        assert info.componentwise_error <= 1.0


def test_any_memory_order_is_solved_and_left_alone(kernels: DenseKernels) -> None:
    n = 29
    for dtype, (name, hermitian) in product((np.float64, np.complex64), (("pos", True), ("sym", False))):
        A = definite(n, dtype) if name == "pos" else indefinite(n + 1, dtype, hermitian=hermitian)
        b = random((len(A), 2), dtype, 2)
        half = one_triangle(A, lower=False)
        for laid_out in layouts(half).values():
            before = laid_out.copy()
            for precision in ("auto", "fp32"):
                x, info = solved(kernels, laid_out, b, name, precision=precision)
                assert info.solved
                assert max(eta(A, x[:, j], b[:, j]) for j in range(2)) <= enough(n)
            assert np.array_equal(laid_out, before, equal_nan=True)


@pytest.mark.parametrize("dtype", TYPES)
def test_diagnostics_are_available_in_any_memory_order(dtype: Any) -> None:
    for n in (5, 40):
        A, b = definite(n, dtype), random(n, dtype, 2)
        for laid_out in layouts(one_triangle(A, lower=True)).values():
            info = mx.solve(laid_out, b, assume_a="pos", lower=True)[1]
            assert info.error_bound.normwise < 1.0
            assert info.componentwise_error <= 1.0
            assert "solved" in str(info)


def test_transposes_are_solved_with_the_same_factors(kernels: DenseKernels) -> None:
    n = 40
    for dtype, name, form in product((np.float64, np.complex128), ("pos", "her", "sym"), ("N", "T", "H")):
        A = definite(n, dtype) if name == "pos" else indefinite(n, dtype, hermitian=name == "her")
        b = random(n, dtype, 2)
        x, _ = solved(kernels, A, b, name, form=form)
        of = {"N": A, "T": A.T, "H": np.conj(A.T)}[form]
        assert eta(of, x, b) <= enough(n)


def test_the_factor_solves_transposes_and_many_right_hand_sides() -> None:
    n = 60
    for dtype, lower, precision in product((np.float64, np.complex128), (False, True), ("auto", "fp32", "bf16")):
        A = definite(n, dtype)
        F = mx.cho_factor(one_triangle(A, lower=lower), lower=lower, precision=precision)
        assert isinstance(F, CholeskyFactors)
        for k, form in product((1, 20), ("N", "T", "H")):
            B = random((n, k), dtype, 3)
            X, info = F.solve(B, transposed=form)
            of = {"N": A, "T": A.T, "H": np.conj(A.T)}[form]
            assert info.solved
            assert info.factorization == "Cholesky"
            # a complex product has up to 2·sqrt(2) times the rounding error of a real one (Higham 2002, section 3.6)
            bound = enough(n) * (2.0 * np.sqrt(2.0) if dtype is np.complex128 else 1.0)
            assert max(eta(of, X[:, j], B[:, j]) for j in range(k)) <= bound
        assert F.condition == pytest.approx(np.linalg.cond(A, 1), rel=0.5)
        assert pickle.loads(pickle.dumps(F)).solve(B)[1].solved
        assert repr(F).startswith(f"CholeskyFactors({n}x{n}")


def test_complex_right_hand_sides_of_real_matrices(kernels: DenseKernels) -> None:
    A, b = definite(33), random((33, 2), np.complex128)
    x, info = solved(kernels, A, b, "pos")
    assert x.dtype == np.complex128
    assert info.solved
    np.testing.assert_allclose(A @ x, b, atol=1e-12)


def test_results_are_those_of_scipy() -> None:
    """Compare random systems of random sizes with SciPy's, within condition·n·u and a factor of 4 for both."""
    rng = np.random.default_rng(5)
    for seed in range(60):
        n, k = int(rng.integers(1, 80)), int(rng.integers(1, 4))
        dtype = TYPES[seed % 4]
        name = ("pos", "sym", "her")[seed % 3]
        condition = float(10.0 ** rng.uniform(0, 4))
        A = definite(n, dtype, condition, seed) if name == "pos" else indefinite(n, dtype, hermitian=name == "her")
        A[np.arange(n), np.arange(n)] += 0.1
        B, lower = random((n, k), dtype, seed), bool(seed % 2)
        half = one_triangle(A, lower=lower)
        x, info = mx.solve(half, B, assume_a=name, lower=lower)
        expected = scipy.linalg.solve(np.where(np.isnan(half), 0, half), B, assume_a=name, lower=lower)
        bound = 4 * np.linalg.cond(A.astype(np.complex128)) * n * np.finfo(dtype).eps
        assert np.abs(x - expected).max() <= bound * np.abs(expected).max()
        assert info.solved


def test_small_and_large_numbers(kernels: DenseKernels) -> None:
    n = 30
    for dtype, power in product((np.float64, np.complex128), (-290, -200, 200, 290)):
        A, b = definite(n, dtype) * 10.0**power, random(n, dtype)
        for name in ("pos", "her"):
            x, info = solved(kernels, one_triangle(A, lower=True), b, name, lower=True)
            assert info.solved
            np.testing.assert_allclose(x, np.linalg.solve(A * 10.0**-power, b) * 10.0**-power, rtol=1e-10)


def test_badly_scaled_rows_and_columns(kernels: DenseKernels) -> None:
    n = 40
    d = np.logspace(-60, 60, n)
    for precision in ("auto", "fp32", "fp16"):
        A = definite(n)
        x, info = solved(
            kernels, one_triangle(d[:, None] * A * d, lower=False), d * (A @ np.ones(n)), "pos", precision=precision
        )
        assert info.scaled
        np.testing.assert_allclose(x * d, 1.0, rtol=1e-10)
    B = indefinite(n, np.float64, hermitian=True)
    x, info = solved(kernels, one_triangle(d[:, None] * B * d, lower=False), d * (B @ np.ones(n)), "sym")
    assert info.scaled
    assert not info.ill_conditioned
    np.testing.assert_allclose(x * d, 1.0, rtol=1e-9)
    d = 10.0 ** np.random.default_rng(5).uniform(-40, 40, n)  # neighbors of very different scales
    x, info = solved(kernels, one_triangle(d[:, None] * B * d, lower=False), d * (B @ np.ones(n)), "sym")
    assert (info.ill_conditioned, info.fallback) == (False, False)
    np.testing.assert_allclose(x * d, 1.0, rtol=1e-9)


@pytest.mark.parametrize("size", [1e-310, 1e100])  # A is scaled by one power of two, or by rows and columns
@pytest.mark.parametrize("lower", [False, True])
def test_imaginary_parts_of_a_diagonal_are_not_read(kernels: DenseKernels, size: float, *, lower: bool) -> None:
    n = 60
    A, b = indefinite(n, np.complex128, hermitian=True) * size, random(n, np.complex128) * size
    expected, _ = solved(kernels, A, b, "her", lower=lower)
    for imaginary in (random(n), np.full(n, 1e300), np.full(n, np.nan)):
        garbage = A.copy()
        garbage.imag[np.arange(n), np.arange(n)] = imaginary
        x, info = solved(kernels, garbage, b, "her", lower=lower)
        assert info.solved
        assert not info.ill_conditioned
        np.testing.assert_array_equal(x, expected)


# --- fallbacks and errors ------------------------------------------------------------------------------------------


def test_an_ill_conditioned_matrix_is_factored_again_in_fp64(kernels: DenseKernels) -> None:
    n = 120
    for condition, precision in ((1e11, "fp32"), (1e7, "bf16")):
        A = definite(n, condition=condition)
        b = random(n)
        x, info = solved(kernels, A, b, "pos", precision=precision)
        assert info.solved
        assert eta(A, x, b) <= enough(n)
        assert info.fallback == (info.precision == "fp64") is True
        assert "Cholesky in" in info.message
        assert "factored again in fp64" in info.message
    S = indefinite(n, np.float64, hermitian=True)
    w, V = np.linalg.eigh(S)
    w[np.argmin(np.abs(w))] = 1e-10
    S = (V * w) @ V.T
    S = (S + S.T) / 2
    x, info = solved(kernels, S, S @ np.ones(n), "sym", precision="fp32")
    assert info.solved
    assert info.fallback
    assert "LDL^T in fp32" in info.message


def test_gmres_solves_when_classical_refinement_stagnates(kernels: DenseKernels) -> None:
    """bf16 factors with a condition of 3000: classical refinement gains too little per step."""
    n = 150
    A, b = definite(n, condition=3000.0), random(n)
    x, info = solved(kernels, A, b, "pos", precision="bf16")
    assert (info.solved, info.fallback, info.precision) == (True, False, "bf16")
    assert info.iterations > 3
    assert eta(A, x, b) <= enough(n)


def test_the_leading_minor_is_named(kernels: DenseKernels) -> None:
    n = 50
    for minor, dtype, lower, precision in product(
        (1, 17, 50), (np.float64, np.complex64), (False, True), ("auto", "fp32", "bf16")
    ):
        A = np.eye(n, dtype=dtype) + definite(n, dtype) / 8
        A[minor - 1, minor - 1] = -1.0
        with pytest.raises(mx.NotPositiveDefiniteError, match=f"leading minor of order {minor} of {n} is not positive"):
            solved(kernels, one_triangle(A, lower=lower), random(n, dtype), "pos", lower=lower, precision=precision)
    assert issubclass(mx.NotPositiveDefiniteError, np.linalg.LinAlgError)
    with pytest.raises(mx.NotPositiveDefiniteError, match='use assume_a="sym"'):
        mx.cho_factor([[1.0, 2.0], [2.0, 1.0]])
    with pytest.raises(mx.NotPositiveDefiniteError, match="order 1 of 2"):
        mx.solve(np.zeros((2, 2)), [1.0, 1.0], assume_a="pos")


def test_singular_matrices(kernels: DenseKernels) -> None:
    A, n = np.eye(5), 14
    A[2, 2] = 0.0
    with pytest.raises(mx.SingularMatrixError, match=r"A is singular: pivot 3 of 5"):
        solved(kernels, A, np.ones(5), "sym")
    _, info = solved(kernels, hilbert(n), hilbert(n) @ np.ones(n), "sym")
    assert info.ill_conditioned
    assert "numerically singular" in info.message
    L = np.diag(np.full(60, 2.0)) - np.eye(60, k=1) - np.eye(60, k=-1)
    L[0, 0] = L[-1, -1] = 1.0  # a Laplacian, whose null vector is (1, ..., 1)
    for name in ("pos", "sym"):
        try:
            _, info = solved(kernels, L, L @ random(60), name)
        except (mx.NotPositiveDefiniteError, mx.SingularMatrixError):
            continue
        assert info.ill_conditioned


def test_an_indefinite_hermitian_matrix_is_not_solved_as_a_symmetric_one() -> None:
    with pytest.raises(mx.NotPositiveDefiniteError, match=r'use assume_a="her" of solve'):
        mx.solve(np.array([[1.0, 2j], [-2j, 1.0]]), np.ones(2), assume_a="pos")
    with pytest.raises(mx.NotPositiveDefiniteError, match=r'assume_a="sym" of solve, or LU by .* lu_factor'):
        mx.cho_factor([[1.0, 2.0], [2.0, 1.0]])
    with pytest.raises(UsageError, match="b has shape"):
        mx.solve(np.eye(2), np.array(1.0), assume_a="pos")


def test_entries_that_are_not_finite(kernels: DenseKernels) -> None:
    for value, name, precision in product((np.nan, np.inf), ("pos", "her"), ("auto", "fp32")):
        A = definite(40)
        A[3, 7] = value
        solved(kernels, A, np.ones(40), name, lower=True, precision=precision)  # is not read
        with pytest.raises(UsageError, match=r"A\[3, 7\] is (nan|inf): 1 of 1600 entries of A are not finite"):
            solved(kernels, A, np.ones(40), name, lower=False, precision=precision)
    with pytest.raises(UsageError, match="b"):
        solved(kernels, definite(3), [1.0, np.nan, 1.0], "pos")


# --- auto ----------------------------------------------------------------------------------------------------------


def test_auto_selects_cholesky_or_lu() -> None:
    for dtype, n in product(TYPES, (1, 40, 300)):
        A, b = definite(n, dtype), random(n, dtype)
        x, info = mx.solve(A, b, assume_a="auto")
        assert (info.factorization, info.message) == ("Cholesky", "")
        assert eta(A, x, b) <= enough(n)
        G = random((n, n), dtype)
        G += n * np.eye(n, dtype=dtype)
        G[0, -1] += 1.0 if n > 1 else 0.0
        for form in ("N", "T", "H"):
            x, info = mx.solve(G, b, assume_a="auto", transposed=form)
            assert eta({"N": G, "T": G.T, "H": np.conj(G.T)}[form], x, b) <= enough(n)
            assert info.factorization == ("LU" if n > 1 else info.factorization)


def test_auto_uses_lu_for_an_indefinite_matrix_and_says_so() -> None:
    n = 90
    for dtype in (np.float64, np.complex128):
        A = indefinite(n, dtype, hermitian=True) + np.eye(n)
        b = random(n, dtype)
        for form in ("N", "T"):
            x, info = mx.solve(A, b, assume_a="auto", transposed=form)
            assert info.factorization == "LU"
            assert info.message.startswith(
                "A is symmetric or Hermitian, but not positive definite: the leading minor of "
            )
            assert info.message.endswith("; LU factored A")
            assert info.times["cholesky"] > 0.0
            assert eta(A if form == "N" else A.T, x, b) <= enough(n)


def test_auto_reads_every_entry() -> None:
    n = 600
    A, b = definite(n), random(n)
    for i, j in ((n - 1, 300), (300, n - 1), (0, 5)):
        B = A.copy()
        B[i, j] += 0.25
        x, info = mx.solve(B, b, assume_a="auto")
        assert info.factorization == "LU"
        assert eta(B, x, b) <= enough(n)


# --- arguments -----------------------------------------------------------------------------------------------------


def test_unknown_arguments_are_refused() -> None:
    A, b = definite(3), np.ones(3)
    with pytest.raises(UsageError, match="unknown assume_a 'spd'; use one of auto, gen, her, pos, sym"):
        mx.solve(A, b, assume_a="spd")
    with pytest.raises(UsageError, match="unknown assume_a None"):
        mx.solve(A, b, assume_a=None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="lower = 'L' is not valid"):
        mx.solve(A, b, assume_a="pos", lower="L")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match='precision="bf16" needs products of rounded operands'):
        mx.solve(A, b, assume_a="sym", precision="bf16")
    with pytest.raises(UsageError, match="unknown precision"):
        mx.solve(A, b, assume_a="pos", precision="fp65")
    with pytest.raises(UsageError, match="square"):
        mx.solve(np.ones((2, 3)), b, assume_a="pos")
    with pytest.raises(UsageError, match="local=True"):
        mx.solve(A, b, assume_a="pos", local=True)


def test_scipys_long_names_are_accepted() -> None:
    A, b = definite(5), np.ones(5)
    for name, factorization in (
        ("positive definite", "Cholesky"),
        ("symmetric", "LDL^T"),
        ("hermitian", "LDL^T"),
        ("general", "LU"),
    ):
        assert mx.solve(A, b, assume_a=name)[1].factorization == factorization


def test_integers_lists_empty_systems_and_tensors() -> None:
    x, info = mx.solve([[2, 1], [1, 2]], [3, 3], assume_a="pos")
    np.testing.assert_allclose(x, [1.0, 1.0], rtol=1e-15)
    for name in ("pos", "sym"):
        x, info = mx.solve(np.empty((0, 0)), np.empty((0, 2)), assume_a=name)
        assert (x.shape, info.solved) == ((0, 2), True)
    assert info.factorization == "LDL^T"
    F = mx.cho_factor(np.empty((0, 0)))
    assert F.solve(np.empty(0))[0].shape == (0,)
    assert repr(F).startswith("CholeskyFactors(0x0")
    F = mx.lu_factor(np.empty((0, 0), np.float32))
    dtypes = [F.solve(np.empty(0, dtype))[0].dtype for dtype in (np.float32, np.float64, np.float32)]
    assert dtypes == [np.float32, np.float64, np.float32]
    A = torch.tensor(definite(50))
    x, info = mx.solve(A, A @ torch.ones(50, dtype=torch.float64), assume_a="pos")
    assert isinstance(x, torch.Tensor)
    assert torch.allclose(x, torch.ones(50, dtype=torch.float64))
    half = mx.solve(A.to(torch.bfloat16) + torch.eye(50, dtype=torch.bfloat16), torch.ones(50), assume_a="pos")
    assert half[0].dtype == torch.float32


def test_stacks_are_solved_from_one_triangle() -> None:
    for dtype, name in product((np.float64, np.complex128), ("pos", "her", "sym")):
        A = np.stack(
            [
                definite(7, dtype, seed=s) if name == "pos" else indefinite(8, dtype, hermitian=name == "her")
                for s in range(4)
            ]
        )
        n = A.shape[-1]
        half = np.stack([one_triangle(M, lower=True) for M in A]).reshape(2, 2, n, n)
        b = random((2, 2, n, 3), dtype)
        for form in ("N", "T"):
            x, info = mx.solve(half, b, assume_a=name, lower=True, transposed=form)
            of = A.reshape(2, 2, n, n)
            np.testing.assert_allclose((of if form == "N" else np.swapaxes(of, -1, -2)) @ x, b, atol=1e-11)
            assert (info.systems, info.solved) == (4, True)
            assert info.factorization == ("Cholesky" if name == "pos" else "LDL^T")
            assert len(info.individual or {}) == 4
    with pytest.raises(mx.NotPositiveDefiniteError, match=r"in the stack, A\[1\]: A is not positive definite"):
        mx.solve(np.stack([np.eye(3), -np.eye(3)]), np.ones((2, 3, 1)), assume_a="pos")


def test_warnings_point_at_the_caller() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        mx.solve(hilbert(14), np.ones(14), assume_a="sym")
    assert [one.filename for one in seen] == [__file__]


def test_the_diagnostics_say_which_factorization_ran() -> None:
    A = definite(64)
    _, info = mx.solve(A, np.ones(64), assume_a="pos", precision="fp32")
    assert "n = 64, Cholesky in fp32" in str(info)
    assert info.condition == pytest.approx(np.linalg.cond(A, 1), rel=0.5)
    assert 0.5 < info.growth <= 1.0
    assert pickle.loads(pickle.dumps(info)).factorization == "Cholesky"
    assert info.outcome is Outcome.SOLVED
    _, info = mx.solve(A, np.ones(64), assume_a="sym")
    assert "LDL^T in fp64" in str(info)
    assert info.condition == pytest.approx(np.linalg.cond(A, 1), rel=0.5)


@for_each("rhs", [1, 30])
def test_auto_precision_follows_the_crossover(rhs: int) -> None:
    for name, engine in (("pos", "cholesky"), ("sym", "ldl")):
        crossover = policy.FP32_FROM[engine, "real"].order(rhs)
        for n in (crossover - 1, max(crossover, rhs * policy.ORDERS_PER_RHS)):
            chosen = policy.choose_precision(n, np.dtype(np.float64), "auto", rhs, engine=engine)
            assert chosen.name == ("fp32" if n >= crossover and rhs * policy.ORDERS_PER_RHS <= n else "fp64"), name


def test_backward_errors_are_true_within_a_factor_of_two() -> None:
    """Compare the reported error with one in extended precision for structured and random systems."""
    for seed in range(40):
        n = 20 + seed
        condition = 10.0 ** (seed % 12)
        A, b = definite(n, condition=condition, seed=seed), random(n, seed=seed)
        name, precision = ("pos", "sym")[seed % 2], ("fp64", "fp32")[seed // 2 % 2]
        x, info = mx.solve(A, b, assume_a=name, precision=precision)
        wide = np.longdouble
        r = np.abs(b.astype(wide) - A.astype(wide) @ x.astype(wide)).max()
        true = r / ((np.abs(A).sum(1).max() * np.abs(x).max() + np.abs(b).max()) * n * U)
        # The residual itself is rounded: half a rounding per entry is 1/(2n) in units of n·u.
        assert info.backward_error <= 2 * true + 2.0 / n
        assert true <= 2 * info.backward_error + 2.0 / n
        assert info.solved
