"""Compare `mxpeak.gmres` on a device and with tensors with the host.

The device is torch's CPU, which runs the same kernels as other devices.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
import scipy.sparse.linalg as linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mxpeak as mx
from mxpeak.errors import ResourceError, SingularError, UsageError
from mxpeak.kernels.torch.engine.array_namespace import FARTHEST, Namespace
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.sparse.sparse import TorchSparse
from mxpeak.library.sparse.inputs import matrix
from mxpeak.library.sparse.solving import solve_on
from mxpeak.solvers.gmres_driver import GmresOptions
from mxpeak.solvers.precond.equilibration import equilibrate, largest_exponent
from tests.support.sparse_systems import (
    PRECISIONS,
    flow,
    irregular,
    line,
    needs_pyamg,
    parts,
    poisson,
    random,
    reached,
    residual,
    stencil,
    vector,
    wild,
)

CPU = torch.device("cpu")
DEVICE = Device(CPU, triton=False, poison=True)


def solve(A: Any, b: Any, precision: str = "mixed", *, x0: Any = None, on: Any = DEVICE, **options: Any) -> Any:
    """Run `mx.gmres` on the device."""
    return solve_on(on, A, b, x0, GmresOptions(precision, **options))


SYSTEMS: dict[str, Callable[[], Any]] = {
    "27 points": lambda: stencil(8, 8, 8),
    "27 points, nonsymmetric": lambda: stencil(4, 8, 4, nonsymmetric=True),
    "Poisson": lambda: poisson(13, 17),
    "convection": lambda: flow(13),
    "irregular": irregular,
}
NAMES = ("auto", "gs", "sgs", "jacobi", "none", pytest.param("amg", marks=needs_pyamg))


def agree(A: Any, b: Any, precision: str = "mixed", on: Any = DEVICE, rtol: float = 1e-9, **options: Any) -> Any:
    """Check that device and host have the same outcome and choices; return x and info.

    Sums have another order, so that a cycle may reach its tolerance one step earlier or later. `auto` selects the
    storage by its memory, which is larger without Triton's kernels.
    """
    _, host = mx.gmres(A, b, precision=precision, rtol=rtol, **options)
    x, info = solve(A, b, precision, on=on, rtol=rtol, **options)
    for name in ("outcome", "values", "vectors", "preconditioner", "reason", "levels", "colours", "scaled"):
        assert getattr(info, name) == getattr(host, name), name
    assert info.storage == host.storage or not on.triton
    assert abs(info.iterations - host.iterations) <= 2 * max(host.cycles, info.cycles)
    assert isinstance(x, np.ndarray)
    assert x.dtype == np.float64
    assert reached(A, x, b, rtol)
    assert info.residual == pytest.approx(residual(A, x, b), rel=1e-3)  # rounding of b - A x if this is 1e-9 of b
    return x, info


# --- agreement with the host ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("preconditioner", NAMES)
def test_a_device_solves_as_the_host_does(preconditioner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Only the host has factors; without them `auto` makes the same choices.
    monkeypatch.setattr("mxpeak.library.sparse.auto_preconditioner.why_little_fill", lambda *args, **options: "")
    for turn, system in enumerate(SYSTEMS.values()):  # alternately in both precisions
        A = system()
        agree(A, vector(A.shape[0]), ("mixed", "fp64")[turn % 2], preconditioner=preconditioner)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_values_that_no_format_holds_are_rounded_as_on_the_host(precision: str) -> None:
    A = poisson(11, 12)
    A.data *= np.pi
    for preconditioner in ("gs", "none", "lu"):
        agree(A, vector(132), precision, preconditioner=preconditioner, rtol=1e-11)


@pytest.mark.parametrize("preconditioner", ["gs", "none"])
def test_tritons_kernels_solve_the_same(preconditioner: str) -> None:
    from tests.support.interpreter import hasten

    hasten()
    interpreted = Device(CPU, triton=True, poison=True)
    agree(poisson(5, 7), vector(35), on=interpreted, preconditioner=preconditioner)


def test_it_is_the_devices_kernels_that_solve(monkeypatch: pytest.MonkeyPatch) -> None:
    solve(poisson(5, 5), np.ones(25), preconditioner="gs")  # a first use, which is not counted
    swept, sweep = [], TorchSparse.sweep_from_zero

    def counted(self: TorchSparse, *args: Any, **named: Any) -> None:
        swept.append(args)
        sweep(self, *args, **named)

    monkeypatch.setattr(TorchSparse, "sweep_from_zero", counted)
    solve(poisson(5, 5), np.ones(25), preconditioner="gs")
    assert swept


@pytest.mark.parametrize("precision", ["mixed", "bf16"])
def test_bad_scales_are_taken_out_on_a_device(precision: str) -> None:
    A, b = wild()
    host, _ = mx.gmres(A, b, precision=precision, rtol=1e-12, preconditioner="gs")
    x, info = agree(A, b, precision, rtol=1e-12, preconditioner="gs")
    assert info.scaled
    # The error of both is condition·residual, below 100·1e-12, in the scales of the columns.
    assert np.abs(x / host - 1).max() <= 1e-8


@pytest.mark.parametrize("preconditioner", ["stencil", pytest.param("amg", marks=needs_pyamg)])
def test_info_tells_what_there_is_and_where(preconditioner: str) -> None:
    A = stencil(8, 8, 8)
    _, info = solve(A, A @ np.ones(512), preconditioner=preconditioner)
    assert info.device == "cpu"
    assert info.levels > 1
    assert info.bytes > 2 * info.nnz
    assert {"gs", "spmv", "ortho", "restriction", "prolongation"} <= info.times.keys()
    assert all(time_s >= 0 for time_s in info.times.values())


def test_a_device_without_enough_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    A, b = poisson(12, 12), np.ones(144)
    monkeypatch.setattr(Device, "memory", lambda self: (2**40, 50_000))
    assert solve(A, b, restart=2)[1].converged
    with pytest.raises(
        ResourceError, match=r"but only 0\.0477 MiB of the memory of cpu is free; use a smaller restart"
    ):
        solve(A, b, restart=100)


def test_a_device_that_runs_out_of_memory_is_an_error_of_ours() -> None:
    def fail(r: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total of 1.00 GiB.")

    message = r"cpu has no free memory left: CUDA out of memory\. Tried to allocate 2\.00 GiB; use a smaller restart"
    with pytest.raises(ResourceError, match=message):
        solve(poisson(5, 5), np.ones(25), preconditioner=fail)


# --- user functions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("precision", ["mixed", "fp64"])
def test_a_function_is_given_tensors_there_and_returns_them(precision: str, scaled: bool) -> None:
    A, b = wild() if scaled else (poisson(9, 9), vector(81))
    lu, types = linalg.splu(A.tocsc()), set()

    def apply(r: torch.Tensor) -> torch.Tensor:
        assert r.device == CPU
        types.add(r.dtype)
        r *= 1.0  # the function may change the vector
        return torch.from_numpy(lu.solve(r.double().numpy())).requires_grad_()

    x, info = solve(A, b, precision, preconditioner=apply)
    assert types == {torch.float32 if precision == "mixed" and not scaled else torch.float64}
    assert info.preconditioner == "user"
    assert info.times["preconditioner"] > 0
    assert info.iterations <= 3
    assert reached(A, x, b, 1e-9)


def test_what_a_preconditioner_returns_is_checked() -> None:
    for function, message in (
        (
            lambda r: r.numpy(),
            r'returned ndarray instead of a tensor, but on cpu .* must be dense tensors; use device="cpu"',
        ),
        (lambda r: r.to("meta"), r"returned a torch\.strided tensor on meta"),
        (lambda r: r.to_sparse(), r"returned a torch\.sparse_coo tensor on cpu"),
        (lambda r: None, "returned NoneType instead of a tensor"),
        (lambda r: r[:-1], r"returned torch\.float32 of shape \(80,\) for a vector of shape \(81,\)"),
        (lambda r: r * 1j, r"returned torch\.complex64"),
        (lambda r: torch.where(torch.arange(81) == 5, torch.nan, r), r"returned nan at \[5\] for a finite vector"),
    ):
        with pytest.raises(UsageError, match=message):
            solve(poisson(9, 9), np.ones(81), preconditioner=function)


# --- tensors -------------------------------------------------------------------------------------------------------


def tensor(A: Any, layout: str = "csr", dtype: Any = torch.float64, index: Any = torch.int64) -> torch.Tensor:
    """Return a matrix of SciPy as a sparse tensor."""
    B = A.asformat(layout)
    values = torch.tensor(B.data).to(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that such tensors are new
        if layout == "coo":
            return torch.sparse_coo_tensor(torch.tensor(np.stack(B.coords)), values, A.shape)
        make = torch.sparse_csr_tensor if layout == "csr" else torch.sparse_csc_tensor
        return make(torch.tensor(B.indptr).to(index), torch.tensor(B.indices).to(index), values, A.shape)


on_both = pytest.mark.parametrize("on", [None, DEVICE], ids=["host", "device"])


LAYOUTS = ("csr", "csc", "coo")


@on_both
def test_tensors_come_back_as_tensors_of_fp64(on: Any) -> None:
    for layout, dtype in product(LAYOUTS, ("float64", "float32", "float16", "bfloat16", "int32", "uint8")):
        A = sparse.csr_array(line(31, -1, 4) if dtype != "uint8" else line(31, 1, 4))
        kind = getattr(torch, dtype)
        b = torch.arange(1, 32).to(kind)
        x, info = solve(tensor(A, layout, kind), b, on=on)
        assert (x.dtype, x.device, x.shape) == (torch.float64, CPU, (31,))
        assert info.converged
        assert reached(A, x.numpy(), b.double().numpy(), 1e-9)


def test_the_public_function_takes_tensors_of_the_host() -> None:
    A, b = poisson(9, 11), vector(99)
    array, _ = mx.gmres(A, b, preconditioner="gs")
    for layout in LAYOUTS:
        x, _ = mx.gmres(tensor(A, layout, index=torch.int32), torch.tensor(b), preconditioner="gs", device="cpu")
        assert np.array_equal(x.numpy(), array)


@on_both
def test_x_has_the_type_of_b(on: Any) -> None:
    A = poisson(9, 9)
    for columns in range(3):
        b = np.random.default_rng(4).standard_normal((81, columns) if columns else 81)
        for left, right, start in ((A, torch.tensor(b), np.zeros_like(b)), (tensor(A), b, torch.zeros(b.shape))):
            x, _ = solve(left, right, x0=start, on=on)
            assert type(x) is type(right)
            assert tuple(x.shape) == b.shape
            assert reached(A, np.asarray(x)[..., -1] if columns else np.asarray(x), b[..., -1] if columns else b, 1e-9)


@on_both
def test_entries_that_stand_twice_are_summed_and_views_are_taken_as_they_are(on: Any) -> None:
    i, j = torch.tensor([[0, 0, 1, 2, 2, 1], [0, 0, 1, 2, 1, 0]])
    A = torch.sparse_coo_tensor(torch.stack([i, j]), torch.tensor([1.0, 3, 5, 4, 1, 1]), (3, 3))
    b = torch.arange(6.0)[::2]
    x, _ = solve(A, b, "fp64", on=on, preconditioner="gs", rtol=1e-14)
    expected = np.linalg.solve([[4.0, 0, 0], [1, 5, 0], [0, 1, 4]], [0.0, 2, 4])
    assert np.abs(x.numpy() - expected).max() <= 1e-14 * 4 * 2  # the inverse's norm is below 1/2, b's below 5


@on_both
def test_inputs_are_not_written_to(on: Any) -> None:
    for layout, preconditioner in product(LAYOUTS, ("gs", "none")):
        S, b = wild()
        A, right, x0 = tensor(S, layout), torch.tensor(b), torch.ones(81, dtype=torch.float64)
        before = [one.clone() for one in (*pieces(A), right, x0)]
        arrays = [*parts(S), b.copy()]
        for left, side in ((A, right), (S, b)):
            assert solve(left, side, x0=x0, on=on, preconditioner=preconditioner, maxiter=50)[1].iterations
        for old, new in zip([*before, *arrays], [*pieces(A), right, x0, *parts(S), b], strict=True):
            assert bool((old == new).all())


def test_x_has_memory_of_its_own() -> None:
    A, b, x0 = poisson(5, 5), torch.zeros(25, dtype=torch.float64), torch.ones(25, dtype=torch.float64)
    b[3] = 1.0
    exact = torch.tensor(linalg.spsolve(A.tocsc(), b.numpy()))
    for on in (None, DEVICE):
        for start in (x0, exact):
            x, _ = solve(A, b, x0=start, on=on)
            assert x.data_ptr() not in (b.data_ptr(), start.data_ptr())


def pieces(A: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors of a sparse tensor."""
    if A.layout == torch.sparse_coo:
        return [A._indices(), A._values()]
    if A.layout == torch.sparse_csr:
        return [A.crow_indices(), A.col_indices(), A.values()]
    return [A.ccol_indices(), A.row_indices(), A.values()]


def test_a_tensor_by_rows_in_fp64_is_not_copied() -> None:
    A = tensor(random(30), index=torch.int32)
    ours = matrix(A)
    for mine, theirs in zip((ours.indptr, ours.indices, ours.data), pieces(A), strict=True):
        assert np.shares_memory(mine, theirs.numpy())


# --- refused arguments ---------------------------------------------------------------------------------------------


def blocks() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.eye(4).to_sparse_bsr((2, 2))


REFUSED: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "dense": (lambda: torch.eye(2), torch.ones(2), r"A is a dense tensor, .* A\.to_sparse_csr\(\), or mxpeak"),
    "blocks": (blocks, torch.ones(4), r"layout torch\.sparse_bsr, .* use A\.to_sparse_coo\(\)"),
    "dense rows": (lambda: torch.eye(2).to_sparse(1), torch.ones(2), r"dense rows, .* A\.to_dense\(\)\.to_sp"),
    "rectangular": (lambda: torch.ones(2, 3).to_sparse(), torch.ones(2), r"A has shape \(2, 3\).*lsqr"),
    "NaN in A": (lambda: tensor(line(2) * np.nan), torch.ones(2), r"A\[0, 0\] is nan: 4 of 4"),
    "NaN in b": (lambda: tensor(line(2)), torch.tensor([1.0, torch.inf]), r"b\[1\] is inf: 1 of 2 entries"),
    "NaN in B": (lambda: tensor(line(2)), torch.tensor([[1.0, 0], [0, torch.nan]]), r"b\[1, 1\] is nan: 1 of 4"),
    "fp8 b": (lambda: line(2), torch.ones(2).to(torch.float8_e4m3fn), r"b has dtype torch\.float8.*b\.double\(\)"),
    "long b": (lambda: line(2), torch.ones(3), r"A is 2x2, but b has shape \(3,\); use 2 rows"),
    "deep b": (lambda: line(2), torch.ones(2, 1, 1), r"b has shape \(2, 1, 1\)"),
    "sparse b": (lambda: line(2), torch.ones(2).to_sparse(), r"b is sparse; use b\.to_dense\(\)"),
}


@on_both
def test_what_cannot_be_solved_is_refused(on: Any) -> None:
    for A, b, message in REFUSED.values():
        with pytest.raises(UsageError, match=message):
            solve(A(), b, on=on)


@on_both
def test_complex_numbers_give_complex_tensors(on: Any) -> None:
    b = torch.tensor(vector(30) + 1j * vector(30, seed=5))
    x, info = solve(tensor(line(30)), b, on=on)
    assert info.converged
    assert x.dtype == torch.complex128
    assert residual(line(30), x.cpu().numpy(), b.numpy()) <= 1e-9 * (1 + 1e-6)
    A = tensor(line(30) * (1 + 1j), dtype=torch.complex128)
    if on is not None:
        with pytest.raises(UsageError, match='use device="cpu"'):
            solve(A, b, on=on)
        return
    x, info = solve(A, b, on=on)
    assert info.converged
    assert residual(line(30) * (1 + 1j), x.numpy(), b.numpy()) <= 1e-9 * (1 + 1e-6)


@on_both
def test_empty_tensors_give_empty_tensors(on: Any) -> None:
    for A, b in ((torch.zeros(0, 0).to_sparse(), torch.ones(0)), (tensor(line(3)), torch.ones(3, 0))):
        x, info = solve(A, b, on=on)
        assert x.shape == b.shape
        assert x.dtype == torch.float64
        assert info.converged


@on_both
def test_gradients_are_refused_rather_than_dropped(on: Any) -> None:
    A, b = tensor(line(3)), torch.ones(3, dtype=torch.float64)
    for args in (
        (A, b.clone().requires_grad_()),
        (A.clone().requires_grad_(), b),
        (A, b, b.clone().requires_grad_()),
        (line(3), b.clone().requires_grad_()),
    ):
        with pytest.raises(UsageError, match=r"requires a gradient.*use .*detach\(\)"):
            solve(*args[:2], on=on, **({"x0": args[2]} if len(args) > 2 else {}))
        with torch.no_grad():
            assert solve(*args[:2], on=on)[1].converged


@on_both
def test_starts_of_another_shape_broken_tensors_and_rows_of_zeros_are_refused(on: Any) -> None:
    with pytest.raises(UsageError, match=r"x0 has shape \(3, 1\), but b has shape \(3,\)"):
        solve(line(3), torch.ones(3), x0=torch.ones(3, 1), on=on)
    broken = tensor(random(5))
    broken.col_indices()[3] = 7
    with pytest.raises(UsageError, match="A is not a valid sparse matrix"):
        solve(broken, torch.ones(5), on=on)
    with pytest.raises(SingularError, match="row 1 contains only zeros"):
        solve(torch.tensor([[1.0, 2], [0, 0]]).to_sparse(), torch.ones(2), on=on)


def test_a_device_falls_back_to_factors_like_the_host() -> None:
    rng = np.random.default_rng(5)
    S = sparse.random_array((200, 200), density=0.02, rng=rng)
    A = sparse.csr_array(S - S.T + 1e-3 * sparse.eye_array(200))
    x, info = solve(A, vector(200))
    assert info.converged
    assert info.preconditioner == "lu"
    assert info.reason.startswith("the last resort")
    assert reached(A, x, vector(200), 1e-9)
    permuted = sparse.csr_array(poisson(14, 14)[rng.permutation(196)])
    x, info = solve(permuted, permuted @ np.ones(196))
    assert "rows were permuted" in info.reason
    assert info.preconditioner != "lu"
    np.testing.assert_allclose(x, 1.0, atol=1e-6)


# --- devices -------------------------------------------------------------------------------------------------------


def elsewhere(where: str) -> Any:
    """Return a tensor that reports another device."""
    kind: Any = type("Elsewhere", (torch.Tensor,), {"device": where})
    return torch.ones(2).as_subclass(kind)


@pytest.mark.parametrize(("A", "b"), [(line(2), "cuda:1"), ("cuda:1", np.ones(2)), ("cuda:1", [1.0, 1.0])])
def test_a_matrix_and_a_vector_on_two_devices_are_refused_unless_the_device_is_named(A: Any, b: Any) -> None:
    A, b = (elsewhere(one) if isinstance(one, str) else one for one in (A, b))
    with pytest.raises(
        UsageError, match='one operand is on cuda:1 and another is on the CPU; use device="cuda:1" to copy'
    ):
        mx.gmres(A, b)
    with pytest.raises(UsageError, match='device="cpu" conflicts with a tensor on cuda:1'):
        mx.gmres(A, b, device="cpu")


def test_a_start_on_another_device_is_refused_too() -> None:
    with pytest.raises(UsageError, match='use device="cuda:0" to copy both'):
        mx.gmres(elsewhere("cuda:0"), elsewhere("cuda:0"), x0=np.ones(2))
    with pytest.raises(UsageError, match="tensors are on cuda:0 and cuda:1"):
        mx.gmres(elsewhere("cuda:0"), elsewhere("cuda:1"))


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_tensors_of_the_host_are_solved_by_the_host(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    used = []

    def noted(where: Any, *rest: Any) -> Any:
        used.append(where)
        return solve_on(None, *rest)

    monkeypatch.setattr("mxpeak.library.sparse.solving.solve_on", noted)
    mx.gmres(tensor(line(2)), torch.ones(2), device=device)
    mx.gmres(line(2), torch.ones(2), x0=np.ones(2), device=device)
    assert used == [None, None]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_reported() -> None:
    for A, b in ((line(3), np.ones(3)), (tensor(line(3)), torch.ones(3))):
        with pytest.raises(ResourceError, match=r"cuda"):
            mx.gmres(A, b, device="cuda")


def test_arrays_are_solved_with_without_torch() -> None:
    code = (
        "import sys, numpy as np, scipy.sparse as sp, mxpeak as mx; "
        "x, info = mx.gmres(sp.eye_array(9), np.ones(9), preconditioner=lambda r: r); "
        "print(info.device, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["cpu", "False"]


# --- powers of two -------------------------------------------------------------------------------------------------

XP = Namespace(CPU)
NUMBERS, EXPONENTS = st.floats(allow_nan=False, allow_infinity=False), st.integers(-5000, 5000)


@settings(max_examples=200, deadline=None)
@given(x=st.lists(NUMBERS, min_size=1, max_size=9), exponents=st.lists(EXPONENTS, min_size=9, max_size=9))
def test_powers_of_two_are_numpys_to_the_last_bit(x: list[float], exponents: list[int]) -> None:
    v, e = np.array(x), np.array(exponents[: len(x)])
    with np.errstate(over="ignore", under="ignore"):
        for shift in (e, int(e[0])):
            there = XP.asarray(shift) if isinstance(shift, np.ndarray) else shift
            assert np.array_equal(XP.ldexp(torch.tensor(v), there).numpy(), np.ldexp(v, shift))
            if v.any():
                assert largest_exponent(torch.tensor(v), there, XP) == largest_exponent(v, shift, np)


def test_numbers_that_leave_the_range_and_come_back_are_not_brought_so_far() -> None:
    x = np.array([2.0**1023, -1.75 * 2.0**-1022, 2.0**-1074, 0.0])
    for k in (-2200, -2097, -1100, -1023, -1022, -53, 1022, 1023, 1100, 2097, 2098, FARTHEST, 10**6):
        with np.errstate(over="ignore", under="ignore"):
            assert np.array_equal(XP.ldexp(torch.tensor(x), k).numpy(), np.ldexp(x, k)), k


def test_vectors_are_scaled_as_on_the_host() -> None:
    A, b = wild()
    host = equilibrate(A)
    there = host.for_vectors(XP)
    b_s, k = there.right_hand_side(torch.tensor(b))
    expected, exponent = host.right_hand_side(b)
    assert k == exponent
    assert np.array_equal(b_s.numpy(), expected)
    y = there.start(torch.tensor(b), k)
    assert np.array_equal(there.solution(y, k).numpy(), b)
    assert there.relative(y, b_s) == pytest.approx(host.relative(y.numpy(), expected), rel=1e-14)
