"""`mxpeak.solve` and `lu_factor`: what they take, what they leave alone, what they say; and the LAPACK beneath."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mxpeak as mx
from mxpeak.errors import ExitCode, Outcome, ResourceError, SingularError, UsageError
from mxpeak.kernels.host import lapack
from mxpeak.library.dense import factors
from mxpeak.precision import PRECISIONS

U = 2.0**-53
TYPES = (np.float64, np.float32, np.complex128, np.complex64)


def random(shape: Any, dtype: Any = np.float64, seed: int = 1) -> Any:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return values.astype(dtype)


def eta(A: Any, x: Any, b: Any) -> float:
    """The scaled backward error, in the input's own u; the residual in fp64, so that computing it adds nothing."""
    wide = np.complex128 if A.dtype.kind == "c" else np.float64
    A_, x_, b_ = A.astype(wide), x.astype(wide), b.astype(wide)
    scale = np.abs(A_).sum(axis=1).max() * np.abs(x_).max() + np.abs(b_).max()
    return float(np.abs(b_ - A_ @ x_).max() / (scale * len(A) * np.finfo(A.dtype).eps / 2))


def enough(n: int) -> float:
    """What counts as solved: about the backward error of plain LU, 2^-7 at large n, a few roundings at small n.

    Three times the solver's own bound, since here the residual is that of exact products.
    """
    return 3 * max(4 / n, 2**-7)


# --- what comes in -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", [1, 2, 37, 210])
def test_the_result_has_the_inputs_type_and_its_accuracy(dtype: Any, n: int) -> None:
    A, b = random((n, n), dtype), random(n, dtype, 2)
    x, info = mx.solve(A, b)
    assert x.dtype == dtype
    assert x.shape == (n,)
    assert info.solved
    assert eta(A, x, b) <= enough(n)


def layouts(A: Any) -> dict[str, Any]:
    """The same numbers in every memory order."""
    n = len(A)
    padded = np.zeros((n, n + 3), A.dtype)
    padded[:, :n] = A
    strided = np.zeros((2 * n, 3 * n), A.dtype)
    strided[::2, ::3] = A
    read_only = A.copy()
    read_only.flags.writeable = False
    odd = np.zeros(A.nbytes + 1, np.uint8)[1:].view(A.dtype).reshape(n, n)
    odd[:] = A
    return {
        "C": np.ascontiguousarray(A), "F": np.asfortranarray(A), "padded rows": padded[:, :n],
        "padded columns": padded[:, :n].T.copy().T, "strided": strided[::2, ::3], "unaligned": odd,
        "negative": A[::-1, ::-1].copy()[::-1, ::-1], "read-only": read_only,
        "foreign byte order": A.astype(A.dtype.newbyteorder()),
    }  # fmt: skip


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16"])
@pytest.mark.parametrize("dtype", [np.float64, np.complex64])
def test_any_memory_order_is_solved_and_left_alone(dtype: Any, precision: str) -> None:
    n = 29
    A, b = random((n, n), dtype), random((n, 3), dtype, 2)
    for name, laid_out in layouts(A).items():
        for side in (b, np.asfortranarray(b), np.repeat(b, 2, axis=0)[::2]):
            before = side.copy()
            x, info = mx.solve(laid_out, side, precision=precision)
            assert info.solved, name
            assert eta(A, x, b) <= enough(n), name
            assert np.array_equal(laid_out, A), name
            assert np.array_equal(side, before), name


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 12), k=st.integers(1, 4), seed=st.integers(0, 99), turned=st.booleans(), narrow=st.booleans())
def test_small_systems_agree_with_numpy(n: int, k: int, seed: int, turned: bool, narrow: bool) -> None:
    A, b = random((n, n), seed=seed), random((n, k), seed=seed + 100)
    A = A.T if turned else A
    x, info = mx.solve(A, b, precision="fp32" if narrow else "auto")
    assert info.solved
    # Each is off by cond·(its backward error, some n·u).
    assert np.abs(x - np.linalg.solve(A, b)).max() <= 50 * n * U * np.linalg.cond(A) * np.abs(x).max()


def test_integers_booleans_lists_and_16_bit_numbers_are_taken() -> None:
    for A, b, dtype in (
        ([[2, 1], [1, 3]], [3, 4], np.float64),
        (np.array([[True, True], [False, True]]), np.array([2, 1]), np.float64),
        (np.array([[2, 1], [1, 3]], np.float16), np.array([3, 4], np.float16), np.float32),
        (np.array([[2, 1], [1, 3]], ml_dtypes.bfloat16), np.array([3, 4], ml_dtypes.bfloat16), np.float32),
    ):
        x, info = mx.solve(A, b)
        assert x.dtype == dtype
        np.testing.assert_allclose(x, [1, 1], rtol=8 * np.finfo(dtype).eps)
        assert info.solved


def test_types_promote_as_numpys_do() -> None:
    n = 31
    for of_A in TYPES:
        for of_b in TYPES:
            A, b = random((n, n), of_A), random((n, 2), of_b, 2)
            x, info = mx.solve(A, b)
            assert x.dtype == np.result_type(of_A, of_b)
            assert info.solved
            assert info.rhs == 2
            bound = 20 * n * np.linalg.cond(A) * np.finfo(x.dtype).eps * np.abs(x).max()
            assert np.abs(x - np.linalg.solve(A.astype(np.complex128), b)).max() <= bound


@pytest.mark.parametrize(
    ("A", "b", "says"),
    [
        (np.ones((2, 3)), np.ones(2), r"shape \(2, 3\).*square.*lstsq"),
        (np.ones(4), np.ones(4), r"shape \(4,\).*square"),
        (np.eye(3), np.ones(4), r"3x3, but b has shape \(4,\): it needs 3 rows"),
        (np.eye(3), np.ones((3, 2, 2)), r"b has shape \(3, 2, 2\)"),
        (np.eye(3), 1.0, r"b has shape \(\)"),
        (np.empty((0, 0)), np.empty(0), "A is empty"),
        (np.eye(3), np.empty((3, 0)), "b is empty"),
        (np.eye(2, dtype=object), np.ones(2), "A has dtype object"),
        (np.eye(2), np.array(["1", "2"]), r"b has dtype <U1.*b\.astype\(float\)"),
        (np.eye(2, dtype=np.longdouble), np.ones(2), "A has dtype"),
    ],
)
def test_what_cannot_be_a_system_is_refused(A: Any, b: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        mx.solve(A, b)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("precision", ["auto", "fp32", "fp16"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_the_first_entry_that_is_not_finite_is_named(bad: float, precision: str, order: Any) -> None:
    A, b = np.array(random((9, 9)), order=order), random(9)
    A[4, 7] = A[6, 1] = bad
    with pytest.raises(UsageError, match=rf"A\[4, 7\] is {bad}: 2 of 81 entries"):
        mx.solve(A, b, precision=precision)
    b[5] = bad
    with pytest.raises(UsageError, match=rf"b\[5\] is {bad}"):
        mx.solve(np.eye(9), b, precision=precision)


@pytest.mark.parametrize("precision", ["auto", *PRECISIONS])
@pytest.mark.parametrize(
    "A",
    [np.zeros((1, 1)), np.ones((5, 5)), np.diag([1.0, 0.0, 2.0]), np.array([[1.0, 2.0], [2.0, 4.0]])],
    ids=["zero", "ones", "zero row", "multiple"],
)
def test_an_exactly_singular_matrix_is_an_error(A: Any, precision: str) -> None:
    with pytest.raises(SingularError, match=r"pivot \d of \d is exactly zero") as caught:
        mx.solve(A, np.ones(len(A)), precision=precision)
    assert caught.value.exit_code is ExitCode.FAILED


def test_devices_and_precisions_that_are_not_there_are_refused() -> None:
    for call in (lambda **how: mx.solve(np.eye(2), np.ones(2), **how), lambda **how: mx.lu_factor(np.eye(2), **how)):
        with pytest.raises(ResourceError, match="device cuda:0: "):
            call(device="cuda:0")
        with pytest.raises(UsageError, match='unknown device "tpu"'):
            call(device="tpu")
        with pytest.raises(UsageError, match="unknown precision 'half'; choose one of auto, fp64, fp32"):
            call(precision="half")


# --- what comes out ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRECISIONS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex128])
def test_every_precision_solves_and_says_what_it_did(name: str, dtype: Any) -> None:
    n = 150  # more than one panel, so that low-precision products take part
    A, b = random((n, n), dtype) + np.sqrt(n).astype(dtype) * np.eye(n, dtype=dtype) * 2, random(n, dtype, 2)
    x, info = mx.solve(A, b, precision=name)
    assert info.solved
    assert (info.precision, info.fallback, info.message) == (name, False, "")
    assert info.emulated == (name not in ("fp64", "fp32"))
    assert info.scaled == (PRECISIONS[name].bytes < 4)
    assert eta(A, x, b) <= enough(n)
    assert info.backward_error == pytest.approx(eta(A, x, b), abs=1 / n)
    assert len(info.history) == info.iterations + 1
    assert set(info.times) == {"equilibrate", "factor", "refine"}
    exact = np.linalg.cond(A, 1)
    # Higham's estimate is a lower bound up to rounding, and rarely 3 times too small.
    if not info.scaled:
        assert exact / 3 <= info.condition <= 1.2 * exact


def test_low_precision_takes_more_steps_than_high() -> None:
    n = 400
    A, b = random((n, n)) + 1.5 * np.sqrt(n) * np.eye(n), random(n)
    steps = [mx.solve(A, b, precision=name)[1].iterations for name in ("fp64", "fp32", "fp16", "bf16")]
    assert steps[0] <= 1
    assert steps == sorted(steps)
    assert steps[1] < steps[3]


def test_growth_is_that_of_the_factors() -> None:
    n = 40
    W = np.tril(-np.ones((n, n)), -1) + np.eye(n)
    W[:, -1] = 1
    # By columns the elimination goes down the columns of W itself, whose last one doubles at each step.
    assert mx.solve(np.asfortranarray(W), np.ones(n))[1].growth == 2.0 ** (n - 1)
    assert mx.solve(np.eye(n), np.ones(n))[1].growth == 1.0


def test_a_person_can_read_the_info() -> None:
    A = random((60, 60))
    _, info = mx.solve(A, random((60, 3)), precision="bf16")
    lines = str(info).splitlines()
    assert lines[0].startswith("solved: n = 60, 3 right-hand sides, LU in bf16 (emulated), ")
    assert [line.split()[0] for line in lines[1:5]] == ["backward", "condition", "growth", "time"]
    assert repr(info).startswith("SolveInfo(outcome=")
    assert info.outcome is Outcome.SOLVED
    with pytest.raises(AttributeError):
        info.n = 3  # type: ignore[misc]


def test_a_zero_right_hand_side_gives_zero() -> None:
    for precision in ("fp64", "fp32", "fp16"):
        x, info = mx.solve(random((20, 20)), np.zeros((20, 2)), precision=precision)
        assert not x.any()
        assert info.solved
        assert info.backward_error == 0.0


@pytest.mark.parametrize("precision", ["auto", "fp32"])
def test_many_right_hand_sides_are_each_solved(precision: str) -> None:
    n, k = 260, 90
    A, B = random((n, n)), random((n, k)) * np.logspace(-30, 30, k)
    X, info = mx.solve(A, B, precision=precision)
    # So many sides cost more to refine than the fp32 LU saves.
    assert info.precision == ("fp64" if precision == "auto" else "fp32")
    assert max(eta(A, X[:, j], B[:, j]) for j in range(k)) <= enough(n)
    assert info.backward_error <= max(4 / n, 2**-7)


def test_auto_takes_fp32_where_it_pays() -> None:
    assert mx.solve(random((60, 60)), random(60))[1].precision == "fp64"
    assert mx.solve(random((400, 400)), random(400))[1].precision == "fp32"
    assert mx.solve(random((60, 60), np.float32), random(60, np.float32))[1].precision == "fp32"


# --- factors that are kept -----------------------------------------------------------------------------------------


def test_factors_solve_again_and_again() -> None:
    n = 260
    A = random((n, n))
    F = mx.lu_factor(A)
    assert repr(F) == "LUFactors(260x260 float64, precision='fp32')"
    for seed in range(3):
        b = random(n, seed=seed)
        x, info = F.solve(b)
        assert eta(A, x, b) <= enough(n)
        assert ("factor" in info.times) == (seed == 0)
    x, info = F.solve(b + 1j * b)
    assert x.dtype == np.complex128
    assert info.rhs == 1
    assert eta(A.astype(np.complex128), x, b + 1j * b) <= enough(n)


def test_a_fallback_is_kept() -> None:
    n = 60
    Q, _ = np.linalg.qr(random((n, n)))
    A = (Q * np.logspace(0, -12, n)) @ Q.T
    F = mx.lu_factor(A, precision="fp32")
    assert F.precision == "fp32"
    first = F.solve(random(n))[1]
    assert first.fallback
    assert "the LU in fp32 was too coarse" in first.message
    second = F.solve(random(n))[1]
    assert (first.precision, second.precision, F.precision) == ("fp64", "fp64", "fp64")
    assert second.fallback
    assert "factor" not in second.times


def test_threads_may_share_factors() -> None:
    n = 150
    A = random((n, n))
    F = mx.lu_factor(A, precision="fp32")
    found: dict[int, float] = {}

    def work(seed: int) -> None:
        b = random(n, seed=seed)
        found[seed] = eta(A, F.solve(b)[0], b)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert max(found.values()) <= enough(n)


@pytest.mark.parametrize("order", ["C", "F"])
def test_large_matrices_take_pages_and_threads_of_their_own(order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    n = 333
    A, b = np.array(random((n, n)) * np.logspace(-8, 8, n), order=order), random(n)
    small = mx.solve(A, b, precision="fp32")
    monkeypatch.setattr(factors, "LARGE", 1)
    monkeypatch.setattr(factors.blas, "blas_facts", lambda: {"threads": 3})
    x, info = mx.solve(A, b, precision="fp32")
    assert np.array_equal(x, small[0])
    assert (info.scaled, info.growth) == (True, small[1].growth)  # the same factors; norms are summed in another order
    assert info.condition == pytest.approx(small[1].condition, rel=n * 2.0**-24)


def test_solving_compiles_nothing() -> None:
    code = (
        "import sys, mxpeak; mxpeak.solve([[2.0]], [1.0]); print([m for m in ('numba', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- LAPACK beneath ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("infinity", [False, True])
def test_the_inverse_norm_is_estimated_from_below(dtype: Any, infinity: bool) -> None:
    n = 50
    A = np.asfortranarray(random((n, n), dtype))
    LU, pivots = A.copy(order="F"), np.empty(n, np.int32)
    assert lapack.getrf(LU, pivots) == 0
    exact = np.linalg.norm(np.linalg.inv(A.astype(np.complex128)), np.inf if infinity else 1)
    rounding = 1 + 100 * n * np.finfo(dtype).eps * np.linalg.cond(A)
    assert exact / 3 <= lapack.inverse_norm(LU, pivots, infinity=infinity) * rounding <= exact * rounding**2


@pytest.mark.parametrize(
    ("name", "narrow"), [("bf16", ml_dtypes.bfloat16), ("fp16", np.float16), ("fp8", ml_dtypes.float8_e4m3fn)]
)
def test_rounding_is_to_nearest_even(name: str, narrow: Any) -> None:
    A = random((7, 5), np.float32)
    assert np.array_equal(lapack.rounded(A, name), A.astype(narrow).astype(np.float32))
    p = PRECISIONS[name].p
    even, odd = np.float32(1 + 2.0**-p), np.float32(1 + 3 * 2.0**-p)  # half-way between neighbours
    assert lapack.rounded(np.array([[even, odd]]), name).tolist() == [[1.0, 1 + 2.0 ** (2 - p)]]


def test_tf32_keeps_eleven_bits() -> None:
    A = random((40, 30), np.float32)
    R = lapack.rounded(A, "tf32")
    assert np.abs(R - A).max() <= 2.0**-11 * np.abs(A).max()
    mantissas = np.frexp(R.astype(np.float64))[0] * 2.0**11
    assert np.array_equal(mantissas, np.round(mantissas))
    halves = np.array([[1 + 2.0**-11, 1 + 3 * 2.0**-11, np.inf]], np.float32)
    assert lapack.rounded(halves, "tf32").tolist() == [[1.0, 1 + 2.0**-9, np.inf]]
    C = random((4, 3), np.complex64)
    assert np.array_equal(lapack.rounded(C, "tf32").imag, lapack.rounded(np.ascontiguousarray(C.imag), "tf32"))


@pytest.mark.parametrize("name", ["tf32", "bf16", "fp16", "fp8"])
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_the_rounded_lu_errs_by_its_operands_roundoff(name: str, dtype: Any) -> None:
    n = 2 * lapack.NB + 40
    A = random((n, n), dtype) / 8
    LU, pivots = np.asfortranarray(A), np.empty(n, np.int32)
    assert lapack.getrf_rounded(LU, pivots, name) == 0
    L, U_ = np.tril(LU, -1).astype(np.complex128) + np.eye(n), np.triu(LU).astype(np.complex128)
    rows = np.arange(n)
    for i, p in enumerate(pivots - 1):
        rows[[i, p]] = rows[[p, i]]
    errors = np.abs(L @ U_ - A[rows])
    # 2u and 2u² from the two operands, |L||U| in all; fp8's underflow adds an absolute error of at most 2^-10 each.
    u = PRECISIONS[name].u
    size = np.abs(L) @ np.abs(U_)
    flushed = 2.0**-10 * 2 * (np.abs(L).sum(axis=1).max() + np.abs(U_).sum(axis=0).max()) if name == "fp8" else 0.0
    assert (errors <= 2.2 * u * size * np.sqrt(2) + n * 2.0**-24 * size + flushed).all()
    # And the panels' arithmetic is not that coarse: the first panel is an fp32 LU.
    first = errors[:, : lapack.NB]
    assert (first <= n * 2.0**-24 * size[:, : lapack.NB]).all()


def test_the_rounded_lu_finds_the_zero_pivot() -> None:
    n = lapack.NB + 20
    A = np.asfortranarray(np.diag(np.ones(n, np.float32)))
    A[lapack.NB + 3, lapack.NB + 3] = 0
    assert lapack.getrf_rounded(A, np.empty(n, np.int32), "bf16") == lapack.NB + 4
