"""`mxpeak.solve` by a device's kernels, here on the CPU: what it takes and says; and the pivoted LU beneath."""

from __future__ import annotations

import warnings
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import mxpeak as mx
from mxpeak.errors import ResourceError, SingularError, UsageError
from mxpeak.kernels.torch import pivoted_lu
from mxpeak.kernels.torch.device import Device
from mxpeak.kernels.torch.solve import TorchArrays, TorchLU, largest_order, to_numpy
from mxpeak.library.dense import solving
from mxpeak.library.dense.arrays import typed
from mxpeak.library.dense.solving import lu_factor_on, solve_on
from mxpeak.precision import PRECISIONS
from tests.library.test_dense import TYPES, enough, eta, layouts, random

U32 = 2.0**-24
#: Columns of a panel, so that small matrices have several.
WIDTH = 16
CPU = Device(torch.device("cpu"), triton=False, poison=True)


@pytest.fixture(params=[False, True], ids=["plain", "triton"])
def device(request: pytest.FixtureRequest) -> Device:
    """The CPU, with torch's operations or with interpreted Triton kernels; new tensors are full of NaN."""
    return Device(torch.device("cpu"), triton=request.param, poison=True)


def on_cpu(A: Any, b: Any, precision: str = "auto", width: int = WIDTH) -> Any:
    return solve_on(CPU, A, b, precision, width=width)


def tensor(values: Any) -> Any:
    return torch.from_numpy(np.ascontiguousarray(values))


# --- rows that move ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "count"), [(1, 1), (2, 1), (2, 2), (4, 4), (6, 3), (5, 5)])
def test_swaps_in_turn_are_one_move(m: int, count: int) -> None:
    """All swaps that there are of so many rows."""
    for pivots in product(*(range(k, m) for k in range(count))):
        expected = list(range(m))
        for k, p in enumerate(pivots):
            expected[k], expected[p] = expected[p], expected[k]
        targets, sources = pivoted_lu.moves(torch.tensor(pivots, dtype=torch.int32) + 1, m)
        rows = torch.arange(m)
        assert rows.index_copy(0, targets, rows[sources]).tolist() == expected
        moved = dict(zip(targets.tolist(), sources.tolist()))
        assert all(moved[t] == s for t, s in zip(targets.tolist(), sources.tolist()))  # any order of writing will do


def test_long_chains_of_swaps_are_followed() -> None:
    for n, seed in ((131, 0), (257, 1)):
        rng = np.random.default_rng(seed)
        pivots = [min(k + int(rng.integers(0, 3)), n - 1) for k in range(n)]
        expected = np.arange(n)
        for k, p in enumerate(pivots):
            expected[[k, p]] = expected[[p, k]]
        targets, sources = pivoted_lu.moves(torch.tensor(pivots, dtype=torch.int32) + 1, n)
        assert torch.arange(n).index_copy(0, targets, sources).tolist() == expected.tolist()


def test_pivots_that_a_nan_spoilt_stay_within_the_matrix() -> None:
    targets, sources = pivoted_lu.moves(torch.tensor([0, 99, -5, 7], dtype=torch.int32), 6)
    assert sorted(torch.arange(6).index_copy(0, targets, sources).tolist()) == list(range(6))


# --- the LU --------------------------------------------------------------------------------------------------------


def errors_of(W: Any, rows: Any, A: Any) -> tuple[Any, Any]:
    """|L U - P A| and |L||U|, in doubled precision."""
    LU = to_numpy(W).astype(np.complex128)
    L, U = np.tril(LU, -1) + np.eye(len(LU)), np.triu(LU)
    return np.abs(L @ U - A[to_numpy(rows)]), np.abs(L) @ np.abs(U)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", [1, 2, 53])
def test_the_whole_lu_lies_where_the_matrix_was(n: int, dtype: Any) -> None:
    A = random((n, n), dtype)
    W = tensor(A.T).T
    rows, singular = pivoted_lu.factor_whole(W)
    errors, size = errors_of(W, rows, A)
    # n·u of each entry of |L||U|, and √8 times that for complex products.
    assert (errors <= 3 * n * np.finfo(dtype).eps / 2 * size).all()
    assert int(singular) == 0


@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16", "fp8"])
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("n", [1, WIDTH, 2 * WIDTH + 5])
def test_the_rounded_lu_errs_by_its_operands_roundoff(device: Device, n: int, dtype: Any, precision: str) -> None:
    A = random((n, n), dtype) / 8
    W = tensor(A.copy())
    rows, singular = pivoted_lu.factor_rounded(device, W, precision, WIDTH)
    assert int(singular) == 0
    assert sorted(rows.tolist()) == list(range(n))
    errors, size = errors_of(W, rows, A)
    # 2u and u² from the two operands, |L||U| in all, √2 for two parts; what underflows adds at most half a spacing for
    # each operand, times the other.
    u, lost = PRECISIONS[precision].u, PRECISIONS[precision].spacing
    L_U = np.abs(to_numpy(W))
    flushed = lost * 2 * (L_U.sum(axis=1).max() + L_U.sum(axis=0).max() + 2)
    assert (errors <= 2.2 * u * size * np.sqrt(2) + 3 * n * U32 * size + flushed).all()
    # And the panels' arithmetic is not that coarse: the first panel is an fp32 LU.
    assert (errors[:, :WIDTH] <= 3 * n * U32 * size[:, :WIDTH]).all()
    # Pivots are the largest, of complex numbers by |Re| + |Im|.
    assert (np.abs(np.tril(to_numpy(W), -1)) <= (np.sqrt(2) if np.dtype(dtype).kind == "c" else 1) + 4 * U32).all()


def test_the_rounded_lu_does_not_depend_on_the_panels_beyond_rounding() -> None:
    A = random((61, 61), np.float32)
    found = []
    for width in (1, 7, 60, 61):
        W = tensor(A.copy())
        rows, _ = pivoted_lu.factor_rounded(CPU, W, "tf32", width)
        found.append((rows.tolist(), to_numpy(W)))
    assert all(rows == found[0][0] for rows, _ in found)
    assert all(np.abs(W - found[0][1]).max() <= 61 * 2.0**-11 * np.abs(W).max() for _, W in found)


def test_a_zero_pivot_is_found_in_any_panel(device: Device) -> None:
    for n, zero in ((1, 0), (3 * WIDTH - 2, 0), (3 * WIDTH - 2, 2 * WIDTH + 3)):
        A = torch.eye(n)
        A[zero, zero] = 0
        assert int(pivoted_lu.factor_rounded(device, A.clone(), "bf16", WIDTH)[1]) == zero + 1
        assert int(pivoted_lu.factor_whole(A.clone())[1]) == zero + 1


class Silent(TorchDispatchMode):
    """No number comes to the host, and no shape depends on one."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "nonzero", "masked_select", "equal"), name
        return func(*args, **(kwargs or {}))


def test_a_factorization_never_waits_for_the_device() -> None:
    with pytest.raises(AssertionError, match="_local_scalar_dense"), Silent():
        torch.ones(1).item()
    with Silent():
        pivoted_lu.factor_whole(torch.randn(20, 20))
        for dtype in (torch.float32, torch.complex64):
            pivoted_lu.factor_rounded(CPU, torch.randn(50, 50, dtype=dtype), "fp16", WIDTH)


# --- what is done with the factors ---------------------------------------------------------------------------------


def factors_of(A: Any, precision: str, by_rows: bool) -> tuple[TorchLU, Any]:
    """The factors of A as A lies by rows or by columns, and A as it was rounded before."""
    low = A.astype(typed(A.dtype.kind == "c", wide=precision == "fp64"))
    return TorchArrays(CPU, WIDTH).lu(tensor((low if by_rows else low.T).copy()), precision, by_rows), low


@pytest.mark.parametrize("precision", ["fp64", "fp32", "tf32"])
@pytest.mark.parametrize("by_rows", [True, False])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_factors_solve_and_tell(dtype: Any, by_rows: bool, precision: str) -> None:
    n = 45
    A, B = random((n, n), dtype), random((n, 3), dtype, 2)
    lu, low = factors_of(A, precision, by_rows)
    X = to_numpy(lu.apply(tensor(B * 2.0**500)))  # beyond fp32's range
    inverse = np.linalg.inv(A)
    bound = 20 * n * PRECISIONS[precision].u * np.linalg.cond(A)
    assert np.abs(X / 2.0**500 - inverse @ B).max() <= bound * np.abs(inverse @ B).max()
    assert X.dtype == dtype
    exact = np.linalg.norm(inverse, 1)
    assert exact / 3 * (1 - bound) <= lu.inverse_one_norm() <= exact * (1 + bound)
    # Absolute values of complex numbers are rounded in many ways.
    assert lu.largest_of_upper() == pytest.approx(np.abs(np.triu(to_numpy(lu.LU))).max(), rel=4 * U32)
    np.testing.assert_allclose(lu.diagonal, np.abs(np.diag(to_numpy(lu.LU))), rtol=4 * U32)
    assert lu.dtype == getattr(torch, low.dtype.name)


def test_the_norm_of_an_inverse_that_overflows_is_infinite() -> None:
    lu, _ = factors_of(np.diag([1e-38, 1.0, 1e-38]) * 1e-6, "fp32", True)
    assert lu.inverse_one_norm() == float("inf")
    lu.LU[0, 2] = torch.nan
    assert lu.largest_of_upper() == float("inf")


@pytest.mark.parametrize("strip", [7, 1 << 24])
def test_sizes_and_scales_are_those_of_the_matrix(strip: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mxpeak.kernels.torch.solve.STRIP", strip)
    n = 23
    R = random((n, n), np.complex128)
    rows, columns = 2.0 ** np.arange(-11.0, 12.0), 2.0 ** np.arange(40.0, 17.0, -1.0)
    arrays, W = TorchArrays(CPU), torch.full((n, n), torch.nan, dtype=torch.complex64)
    by_row, by_column, largest = arrays.fill(W, tensor(R), (rows, columns))
    expected = np.abs((R * rows[:, None] * columns).astype(np.complex64))
    assert np.array_equal(to_numpy(W), (R * rows[:, None] * columns).astype(np.complex64))
    np.testing.assert_allclose(by_row, expected.sum(axis=1), rtol=n * U32)
    np.testing.assert_allclose(by_column, expected.sum(axis=0), rtol=n * U32)
    assert largest == pytest.approx(expected.max(), rel=4 * U32)
    found = arrays.largest_entries(tensor(R), rows, columns)
    scaled = np.abs(R) * rows[:, None] * columns
    np.testing.assert_allclose(found[0], scaled.max(axis=1), rtol=2.0**-50)
    np.testing.assert_allclose(found[1], scaled.max(axis=0), rtol=2.0**-50)
    for by_rows, order in ((True, np.inf), (False, 1)):
        assert arrays.inf_norm(tensor(R), by_rows) == pytest.approx(np.linalg.norm(R, order), rel=n * 2.0**-53)


# --- what comes in -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", [1, 2, 37, 130])
def test_the_result_has_the_inputs_type_and_its_accuracy(n: int, dtype: Any) -> None:
    A, b = random((n, n), dtype), random(n, dtype, 2)
    x, info = on_cpu(A, b)
    assert isinstance(x, np.ndarray)
    assert x.dtype == dtype
    assert x.shape == (n,)
    assert info.solved
    assert eta(A, x, b) <= enough(n)


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16"])
@pytest.mark.parametrize("dtype", [np.float64, np.complex64])
def test_any_memory_order_is_solved_and_left_alone(dtype: Any, precision: str) -> None:
    n = 29
    A, b = random((n, n), dtype), random((n, 3), dtype, 2)
    for name, laid_out in layouts(A).items():
        for side in (b, np.asfortranarray(b), np.repeat(b, 2, axis=0)[::2], b[::-1].copy()[::-1]):
            before = side.copy()
            x, info = on_cpu(laid_out, side, precision)
            assert info.solved, name
            assert eta(A, x, b) <= enough(n), name
            assert np.array_equal(laid_out, A), name
            assert np.array_equal(side, before), name


@pytest.mark.parametrize("precision", ["fp64", "fp32", "fp16"])
def test_tensors_give_tensors_and_are_left_alone(precision: str) -> None:
    n = 41
    A, b = random((n, n)), random((n, 2), seed=2)
    expected, _ = on_cpu(A, b, precision)
    wide = torch.zeros(2 * n, n + 3, dtype=torch.float64)
    wide[::2, :n] = tensor(A)
    for name, given in {
        "rows": tensor(A), "columns": tensor(A.T.copy()).T, "padded": wide[::2, :n],
        "with a gradient": tensor(A).requires_grad_(), "negated": torch.view_as_complex(torch.stack(
            [torch.zeros(n, n, dtype=torch.float64), -tensor(A)], dim=2)).conj().imag,
    }.items():  # fmt: skip
        x, info = on_cpu(given, tensor(b), precision)
        assert isinstance(x, torch.Tensor), name
        assert not x.requires_grad
        assert (x.dtype, tuple(x.shape)) == (torch.float64, (n, 2))
        assert info.solved
        np.testing.assert_allclose(x.numpy(), expected, rtol=1e-9)
        assert np.array_equal(given.detach().numpy() if name != "negated" else given.resolve_neg().numpy(), A), name
        y, _ = mx.solve(given, tensor(b), precision=precision)
        assert isinstance(y, torch.Tensor)
        np.testing.assert_allclose(y.numpy(), expected, rtol=1e-9)


def test_conjugated_tensors_are_those_numbers() -> None:
    A, b = random((9, 9), np.complex128), random(9, np.complex128)
    for way in (on_cpu, mx.solve):
        x, _ = way(tensor(A).conj(), tensor(b).conj())
        np.testing.assert_allclose(x.numpy(), np.linalg.solve(A.conj(), b.conj()), rtol=1e-11)


def test_tensors_on_the_cpu_are_solved_as_arrays_are() -> None:
    A, b = random((60, 60)), random(60)
    expected, of_arrays = mx.solve(A, b)
    x, info = mx.solve(tensor(A), tensor(b), device="cpu")
    assert np.array_equal(x.numpy(), expected)
    assert info.history == of_arrays.history
    F = mx.lu_factor(tensor(A))
    assert repr(F) == "LUFactors(60x60 float64, precision='fp64')"
    assert np.array_equal(F.solve(tensor(b))[0].numpy(), expected)
    assert np.array_equal(F.solve(b)[0], expected)  # as b, so x


def test_the_solution_comes_as_the_right_hand_side_came() -> None:
    A, b = random((12, 12)), random(12)
    for of_A in (A, tensor(A), A.tolist()):
        for way in (on_cpu, mx.solve):
            assert isinstance(way(of_A, b)[0], np.ndarray)
            assert isinstance(way(of_A, b.tolist())[0], np.ndarray)
            assert isinstance(way(of_A, tensor(b))[0], torch.Tensor)


@pytest.mark.parametrize(
    ("dtype", "of_x"),
    [
        (torch.int64, torch.float64), (torch.uint8, torch.float64), (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.complex64, torch.complex64),
    ],
)  # fmt: skip
def test_types_of_tensors_are_taken_as_those_of_arrays(dtype: Any, of_x: Any) -> None:
    A, b = torch.tensor([[2, 1], [1, 3]]).to(dtype), torch.tensor([3, 4]).to(dtype)
    for way in (on_cpu, mx.solve):
        x, info = way(A, b)
        assert x.dtype == of_x
        np.testing.assert_allclose(x.numpy(), [1, 1], rtol=8 * torch.finfo(of_x).eps)
        assert info.solved
    x, _ = on_cpu(torch.tensor([[True, True], [False, True]]), torch.tensor([2, 1]))
    assert (x.dtype, x.tolist()) == (torch.float64, [1.0, 1.0])


def test_types_promote_as_numpys_do() -> None:
    n = 31
    for of_A in TYPES:
        for of_b in TYPES:
            A, b = random((n, n), of_A), random((n, 2), of_b, 2)
            x, info = on_cpu(tensor(A), tensor(b))
            assert x.numpy().dtype == np.result_type(of_A, of_b)
            assert info.solved
            assert info.rhs == 2
            bound = 20 * n * np.linalg.cond(A) * np.finfo(x.numpy().dtype).eps * float(x.abs().max())
            assert np.abs(x.numpy() - np.linalg.solve(A.astype(np.complex128), b)).max() <= bound


@pytest.mark.parametrize(
    ("A", "b", "says"),
    [
        (torch.ones(2, 3), torch.ones(2), r"A has shape \(2, 3\).*square.*lstsq"),
        (torch.ones(4), torch.ones(4), r"shape \(4,\).*square"),
        (torch.eye(3), torch.ones(4), r"3x3, but b has shape \(4,\): it needs 3 rows"),
        (torch.eye(3), torch.ones(3, 2, 2), r"b has shape \(3, 2, 2\)"),
        (torch.eye(3), torch.tensor(1.0), r"b has shape \(\)"),
        (torch.empty(0, 0), torch.empty(0), "A is empty"),
        (torch.eye(3), torch.empty(3, 0), "b is empty"),
        (torch.eye(2).to_sparse(), torch.ones(2), r"A is sparse.*A\.to_dense\(\)"),
        (torch.eye(2).to(torch.float8_e4m3fn), torch.ones(2), r"A has dtype torch.float8_e4m3fn.*A\.double\(\)"),
        (np.eye(2, dtype=object), np.ones(2), "A has dtype object"),
    ],
)
def test_what_cannot_be_a_system_is_refused(A: Any, b: Any, says: str) -> None:
    for way in (on_cpu, mx.solve):
        with pytest.raises(UsageError, match=says):
            way(A, b)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_complex_numbers_of_16_bits_are_refused() -> None:
    A = torch.eye(2, dtype=torch.complex64).to(torch.complex32)
    for way in (on_cpu, mx.solve):
        with pytest.raises(UsageError, match=r"A has dtype torch.complex32"):
            way(A, torch.ones(2))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("precision", ["auto", "fp32", "fp16"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("strip", [1, 40, 1 << 24])
def test_the_first_entry_that_is_not_finite_is_named(
    bad: float, precision: str, order: Any, strip: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mxpeak.kernels.torch.solve.STRIP", strip)
    A, b = np.array(random((9, 9)), order=order), random(9)
    A[4, 7] = A[6, 1] = bad
    with pytest.raises(UsageError, match=rf"A\[4, 7\] is {bad}: 2 of 81 entries"):
        on_cpu(A, b, precision)
    b[5] = bad
    with pytest.raises(UsageError, match=rf"b\[5\] is {bad}"):
        on_cpu(torch.eye(9), tensor(b), precision)


@pytest.mark.parametrize("precision", ["auto", *PRECISIONS])
@pytest.mark.parametrize(
    "A",
    [np.zeros((1, 1)), np.ones((5, 5)), np.diag([1.0, 0.0, 2.0]), np.array([[1.0, 2.0], [2.0, 4.0]])],
    ids=["zero", "ones", "zero row", "multiple"],
)
def test_an_exactly_singular_matrix_is_an_error(A: Any, precision: str) -> None:
    with pytest.raises(SingularError, match=r"pivot \d of \d is exactly zero"):
        on_cpu(A, np.ones(len(A)), precision, width=2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_an_error() -> None:
    for call in (lambda **how: mx.solve(np.eye(2), np.ones(2), **how), lambda **how: mx.lu_factor(torch.eye(2), **how)):
        with pytest.raises(ResourceError, match="cuda:0"):
            call(device="cuda:0")
        with pytest.raises(UsageError, match="unknown precision 'half'; choose one of auto, fp64, fp32"):
            call(precision="half")


def test_read_only_arrays_raise_no_warning() -> None:
    A = random((5, 5))
    A.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert on_cpu(A, A[0])[1].solved


# --- what comes out ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRECISIONS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.complex128])
def test_every_precision_solves_and_says_what_it_did(name: str, dtype: Any) -> None:
    n = 90
    A, b = random((n, n), dtype) + np.sqrt(n).astype(dtype) * np.eye(n, dtype=dtype) * 2, random(n, dtype, 2)
    x, info = on_cpu(A, b, name)
    assert info.solved
    assert (info.precision, info.fallback, info.message) == (name, False, "")
    assert info.emulated == (name not in ("fp64", "fp32"))
    assert info.scaled == (PRECISIONS[name].bytes < 4)
    assert eta(A, x, b) <= enough(n)
    assert len(info.history) == info.iterations + 1
    assert set(info.times) == {"equilibrate", "factor", "refine"}
    assert all(time_s > 0 for time_s in info.times.values())
    exact = np.linalg.cond(A, 1)
    if not info.scaled:
        assert exact / 3 <= info.condition <= 1.2 * exact
    _, of_host = mx.solve(A, b, precision=name)
    assert info.growth == pytest.approx(of_host.growth, rel=4 * n * PRECISIONS[name].u)
    assert abs(info.iterations - of_host.iterations) <= max(2, of_host.iterations // 2)


def test_growth_is_that_of_the_factors() -> None:
    n = 40
    W = np.tril(-np.ones((n, n)), -1) + np.eye(n)
    W[:, -1] = 1
    # The library goes down the columns of a W that lies by columns, the last of which doubles at each step; where we
    # move the rows ourselves, W lies by rows.
    assert on_cpu(np.asfortranarray(W), np.ones(n), "fp32")[1].growth == 2.0 ** (n - 1)
    assert factors_of(W, "tf32", True)[0].largest_of_upper() == 2.0 ** (n - 1)
    assert on_cpu(np.eye(n), np.ones(n))[1].growth == 1.0


def test_a_zero_right_hand_side_gives_zero() -> None:
    for precision in ("fp64", "fp32", "fp16"):
        x, info = on_cpu(random((20, 20)), np.zeros((20, 2)), precision)
        assert not x.any()
        assert info.solved
        assert info.backward_error == 0.0


@pytest.mark.parametrize("precision", ["auto", "fp32", "fp16"])
def test_many_right_hand_sides_are_each_solved(precision: str) -> None:
    n, k = 150, 40
    A, B = random((n, n)) + 12 * np.eye(n), random((n, k)) * np.logspace(-30, 30, k)
    X, info = on_cpu(A, B, precision)
    # So many sides cost more to refine than coarser factors save.
    assert info.precision == ("fp64" if precision == "auto" else precision)
    assert max(eta(A, X[:, j], B[:, j]) for j in range(k)) <= enough(n)
    assert info.backward_error <= 2 * max(4 / n, 2**-7)


def test_auto_takes_the_coarsest_factors_that_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    A, b = random((140, 140)) + 12 * np.eye(140), random(140)
    assert on_cpu(A, b)[1].precision == "fp32"
    assert on_cpu(A, random((140, 2)))[1].precision == "fp64"
    monkeypatch.setattr(solving, "FP16_FROM", 140)
    _, info = on_cpu(A, b)
    assert (info.precision, info.solved) == ("fp16", True)
    assert on_cpu(A + 1j * A, b)[1].precision == "fp32"
    assert on_cpu(A.astype(np.float32), b.astype(np.float32))[1].precision == "fp32"


# --- factors that are kept -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp64", "fp32", "fp16"])
def test_factors_solve_again_and_again(precision: str) -> None:
    n = 130
    A = random((n, n)) + 12 * np.eye(n)
    F = lu_factor_on(CPU, tensor(A), precision, width=WIDTH)
    assert repr(F) == f"LUFactors(130x130 float64, precision='{precision}')"
    for seed in range(3):
        b = random(n, seed=seed)
        x, info = F.solve(tensor(b))
        assert eta(A, x.numpy(), b) <= enough(n)
        assert ("factor" in info.times) == (seed == 0)
    x, info = F.solve(b + 1j * b)
    assert x.dtype == np.complex128
    assert info.rhs == 1
    assert eta(A.astype(np.complex128), x, b + 1j * b) <= enough(n)


def test_a_fallback_is_kept() -> None:
    n = 60
    Q, _ = np.linalg.qr(random((n, n)))
    F = lu_factor_on(CPU, (Q * np.logspace(0, -12, n)) @ Q.T, "fp16", width=WIDTH)
    assert F.precision == "fp16"
    first = F.solve(random(n))[1]
    assert first.fallback
    assert "the LU in fp16 was too coarse" in first.message
    second = F.solve(random(n))[1]
    assert (first.precision, second.precision, F.precision) == ("fp64", "fp64", "fp64")
    assert second.fallback
    assert "factor" not in second.times


# --- memory, and settings ------------------------------------------------------------------------------------------


class Small(Device):
    """A device with little memory."""

    __slots__ = ()
    free = 1 << 30

    def memory(self) -> tuple[int, int]:
        return 2 * self.free, self.free


def test_a_matrix_that_does_not_fit_is_an_error_before_anything_is_allocated() -> None:
    small = Small(torch.device("cpu"), triton=False)
    n = 20011
    A = np.broadcast_to(np.float64(1.0), (n, n))  # takes no memory itself
    with pytest.raises(ResourceError) as caught:
        solve_on(small, A, np.ones(n), "fp32")
    said = str(caught.value)
    assert f"n = {n}: a copy of A 8·n² + the factors 4·n²" in said
    assert "= 5.41 GB, but cpu has 1.07 GB left" in said
    assert f"the largest n that fits is {largest_order(12, 0, Small.free)};" in said
    assert 'device="cpu"' in said
    assert solve_on(small, np.eye(3), np.ones(3))[1].solved


@pytest.mark.parametrize("free", [0, 1 << 26, 1 << 27, 1 << 30, 10**11, 140 * 10**9])
@pytest.mark.parametrize(("per_entry", "per_row"), [(4, 0), (12, 6000), (32, 0)])
def test_the_largest_order_fits_and_the_next_does_not(free: int, per_entry: int, per_row: int) -> None:
    def needed(n: int) -> int:
        return per_entry * n * n + per_row * n + 32 * min(1 << 24, n * n) + (1 << 26)

    n = largest_order(per_entry, per_row, free)
    assert n == 0 or needed(n) <= free
    assert needed(n + 1) > free


def test_products_of_fp32_are_full_whatever_was_set() -> None:
    setting = torch.backends.cuda.matmul
    before = setting.fp32_precision
    setting.fp32_precision = "tf32"
    try:
        with TorchArrays(CPU).careful():
            assert setting.fp32_precision == "ieee"
        assert on_cpu(random((30, 30)), random(30), "fp32")[1].solved
        assert setting.fp32_precision == "tf32"
    finally:
        setting.fp32_precision = before


@pytest.mark.parametrize("precision", ["fp32", "fp16", "fp8"])
def test_triton_solves_the_same(precision: str) -> None:
    n = 2 * WIDTH + 5
    A, b = random((n, n)) + 12 * np.eye(n), random(n)
    with_triton = Device(torch.device("cpu"), triton=True, poison=True)
    x, info = solve_on(with_triton, A, b, precision, width=WIDTH)
    assert info.solved
    assert (info.precision, info.fallback) == (precision, False)
    assert eta(A, x, b) <= enough(n)
