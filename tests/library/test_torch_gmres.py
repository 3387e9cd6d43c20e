"""`mxpeak.gmres` on a device and for tensors: what the host does is done there, and what came as a tensor goes back so.

The device is torch's CPU, whose kernels are a device's in all but speed.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
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
from mxpeak.kernels.torch.convert import FARTHEST, DeviceArrays
from mxpeak.kernels.torch.device import Device
from mxpeak.kernels.torch.sparse import TorchSparse
from mxpeak.library.sparse import choosing
from mxpeak.library.sparse.arrays import HOST
from mxpeak.library.sparse.inputs import matrix, place_for
from mxpeak.library.sparse.scaling import equilibration
from mxpeak.library.sparse.solving import Options, solve_in
from tests.library.test_gmres import line, parts, poisson, random, reached, residual, stencil, vector

CPU = torch.device("cpu")
DEVICE = DeviceArrays(Device(CPU, triton=False, poison=True))
PRECISIONS = ("mixed", "fp64", "fp32", "bf16", "fp16")
needs_pyamg = pytest.mark.skipif(not choosing.has_pyamg(), reason="PyAMG is not installed")


def solve(A: Any, b: Any, precision: str = "mixed", *, x0: Any = None, on: Any = DEVICE, **options: Any) -> Any:
    """`mx.gmres` on the device."""
    return solve_in(on, A, b, x0, Options(precision, **options))


def convection(m: int, speed: float = 20.0) -> Any:
    """Upwind convection and diffusion on m² points."""
    flow = sparse.diags_array([np.full(m, 1.0), np.full(m - 1, -1.0)], offsets=[0, -1])
    one = sparse.eye_array(m)
    return sparse.csr_array(poisson(m, m) + speed / m * (sparse.kron(flow, one) + 0.5 * sparse.kron(one, flow)))


def irregular(n: int = 301) -> Any:
    """Rows of 1 to 40 entries, without any order or symmetry."""
    rng = np.random.default_rng(5)
    A = random(n).tolil()
    for i in range(0, n, 37):
        A[i, rng.integers(0, n, 40)] = rng.uniform(-1, 1, 40)
        A[i, i] = 50.0
    return sparse.csr_array(A)


def wild() -> tuple[Any, Any]:
    """The five-point matrix with rows and columns multiplied by powers of two, and a right-hand side of its scales."""
    rng = np.random.default_rng(3)
    rows, columns = (np.ldexp(1.0, rng.integers(-100, 101, 81)) for _ in range(2))
    A = sparse.csr_array(sparse.diags_array(rows) @ poisson(9, 9) @ sparse.diags_array(columns))
    return A, rows * vector(81)


SYSTEMS: dict[str, Callable[[], Any]] = {
    "27 points": lambda: stencil(8, 8, 8),
    "27 points, nonsymmetric": lambda: stencil(4, 8, 4, nonsymmetric=True),
    "Poisson": lambda: poisson(13, 17),
    "convection": lambda: convection(13),
    "irregular": irregular,
}  # fmt: skip
NAMES = ("auto", "gs", "sgs", "jacobi", "none", pytest.param("amg", marks=needs_pyamg))


def agree(A: Any, b: Any, precision: str = "mixed", on: Any = DEVICE, tol: float = 1e-9, **options: Any) -> Any:
    """The same outcome on the device as on the host, and the same choices; returns x and info.

    Sums in another order may let a cycle reach its aim a step earlier or later.  What `auto` stores as follows from how
    much memory each storage takes, which without Triton's kernels is more.
    """
    _, host = mx.gmres(A, b, precision, tol=tol, **options)
    x, info = solve(A, b, precision, on=on, tol=tol, **options)
    for name in ("outcome", "values", "vectors", "preconditioner", "reason", "levels", "colours", "scaled"):
        assert getattr(info, name) == getattr(host, name), name
    assert info.storage == host.storage or not on.device.triton
    assert abs(info.iterations - host.iterations) <= host.cycles
    assert isinstance(x, np.ndarray)
    assert x.dtype == np.float64
    assert reached(A, x, b, tol)
    assert info.residual == pytest.approx(residual(A, x, b), rel=1e-3)  # rounding of b - A x where that is 1e-9 of b
    return x, info


# --- as on the host ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["mixed", "fp64"])
@pytest.mark.parametrize("preconditioner", NAMES)
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_device_solves_as_the_host_does(system: str, preconditioner: str, precision: str) -> None:
    A = SYSTEMS[system]()
    agree(A, vector(A.shape[0]), precision, preconditioner=preconditioner)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("preconditioner", ["gs", "none"])
def test_values_that_no_format_holds_are_rounded_as_on_the_host(precision: str, preconditioner: str) -> None:
    A = poisson(11, 12)
    A.data *= np.pi
    agree(A, vector(132), precision, preconditioner=preconditioner, tol=1e-11)


@pytest.mark.parametrize("storage", ["ell", "sell", "packed"])
@pytest.mark.parametrize("smoother", ["coloured", "natural"])
def test_every_storage_and_order_is_had_on_a_device(storage: str, smoother: str) -> None:
    A = poisson(5, 7, 3)
    _, info = agree(A, vector(105), storage=storage, smoother=smoother, preconditioner="sgs", tol=1e-12)
    assert info.storage == storage


@pytest.mark.parametrize("n", [1, 2, 65])
def test_small_orders_are_solved(n: int) -> None:
    agree(random(n), vector(n))


@pytest.mark.parametrize("preconditioner", ["gs", "none"])
def test_tritons_kernels_solve_the_same(preconditioner: str) -> None:
    interpreted = DeviceArrays(Device(CPU, triton=True, poison=True))
    agree(poisson(5, 7), vector(35), on=interpreted, preconditioner=preconditioner)


def test_it_is_the_devices_kernels_that_solve(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def kernels(self: DeviceArrays, host: Any) -> TorchSparse:
        made.append(TorchSparse(self.device, host))
        return made[-1]

    monkeypatch.setattr(DeviceArrays, "kernels", kernels)
    solve(poisson(5, 5), np.ones(25), preconditioner="gs")
    assert made


def test_many_right_hand_sides_are_solved_one_by_one() -> None:
    A, B = poisson(12, 12), np.stack([vector(144, 3), np.zeros(144), vector(144, 4)], axis=1)
    X, info = solve(A, B, preconditioner="gs")
    assert info.rhs == 3
    assert X.shape == B.shape
    assert np.array_equal(X[:, 1], np.zeros(144))
    assert np.array_equal(X[:, 0], solve(A, B[:, 0], preconditioner="gs")[0])
    assert reached(A, X[:, 2], B[:, 2], 1e-9)


def test_a_start_is_taken_to_the_device() -> None:
    A, exact = poisson(12, 12), vector(144)
    b = A @ exact
    x, info = solve(A, b, x0=exact)
    assert info.iterations == 0
    assert np.array_equal(x, exact)
    near, later = solve(A, b, x0=exact + 1e-6 * vector(144, 5), preconditioner="gs")
    assert later.iterations < solve(A, b, preconditioner="gs")[1].iterations
    assert reached(A, near, b, 1e-9)


@pytest.mark.parametrize("precision", ["mixed", "bf16"])
def test_bad_scales_are_taken_out_on_a_device(precision: str) -> None:
    A, b = wild()
    host, _ = mx.gmres(A, b, precision, tol=1e-12, preconditioner="gs")
    x, info = agree(A, b, precision, tol=1e-12, preconditioner="gs")
    assert info.scaled
    # Both are off by condition·residual, below 100·1e-12, in the scales of the columns.
    assert np.abs(x / host - 1).max() <= 1e-8


def test_where_a_low_precision_does_not_do_fp64_takes_over() -> None:
    L = poisson(15, 15)
    least = linalg.eigsh(L, k=1, sigma=0, return_eigenvectors=False)[0]
    A = sparse.csr_array(L - (least - 1e-5) * sparse.eye_array(225)) * np.pi
    b = vector(225)
    x, info = solve(A, b, "bf16", preconditioner="gs", restart=225)
    assert info.converged
    assert info.fallback
    assert (info.values, info.vectors) == ("fp64", "fp64")
    assert reached(A, x, b, 1e-9)


def test_running_out_of_iterations_gives_the_best_x() -> None:
    A, b = poisson(20, 20), vector(400)
    x, info = solve(A, b, preconditioner="gs", max_iterations=7)
    assert not info.converged
    assert info.iterations == 7
    assert "max_iterations=7 were used up" in info.message
    assert info.residual == pytest.approx(residual(A, x, b), rel=1e-6)


def test_a_tolerance_below_roundoff_is_said_to_be_so() -> None:
    A, b = poisson(12, 12), vector(144)
    x, info = solve(A, b, tol=1e-17)
    assert "as small as fp64 makes it" in info.message
    assert reached(A, x, b, 0.0)


@pytest.mark.parametrize("first", [0, 1])
def test_a_start_beyond_fp64_spoils_its_own_column_alone(first: int) -> None:
    A, B, X0 = poisson(9, 9), np.stack([vector(81, 3), vector(81, 4)], axis=1), np.zeros((81, 2))
    X0[:, first] = 1e300
    X, info = solve(A, B, x0=X0, preconditioner="gs")
    assert not info.converged
    assert "beyond the range of fp64" in info.message
    assert np.array_equal(X[:, first], X0[:, first])
    assert reached(A, X[:, 1 - first], B[:, 1 - first], 1e-9)


@pytest.mark.parametrize("preconditioner", ["stencil", pytest.param("amg", marks=needs_pyamg)])
def test_info_tells_what_there_is_and_where(preconditioner: str) -> None:
    A = stencil(8, 8, 8)
    _, info = solve(A, A @ np.ones(512), preconditioner=preconditioner)
    assert info.device == "cpu"
    assert info.levels > 1
    assert info.bytes > 2 * info.nnz
    assert {"gs", "spmv", "ortho", "restriction", "prolongation"} <= info.times.keys()
    assert all(time_s >= 0 for time_s in info.times.values())


def test_a_device_without_room_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    A, b = poisson(12, 12), np.ones(144)
    monkeypatch.setattr(DeviceArrays, "free_bytes", lambda self: 50_000)
    assert solve(A, b, restart=2)[1].converged
    with pytest.raises(ResourceError, match=r"but 0\.0477 MiB of the memory of cpu is free; give a smaller restart"):
        solve(A, b, restart=100)


def test_a_device_that_runs_out_of_memory_is_an_error_of_ours() -> None:
    def fail(r: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total of 1.00 GiB.")

    message = r"cpu has no room left: CUDA out of memory\. Tried to allocate 2\.00 GiB; give a smaller restart"
    with pytest.raises(ResourceError, match=message):
        solve(poisson(5, 5), np.ones(25), preconditioner=fail)


# --- functions of one's own ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("precision", ["mixed", "fp64"])
def test_a_function_is_given_tensors_there_and_returns_them(precision: str, scaled: bool) -> None:
    A, b = wild() if scaled else (poisson(9, 9), vector(81))
    lu, types = linalg.splu(A.tocsc()), set()

    def apply(r: torch.Tensor) -> torch.Tensor:
        assert r.device == CPU
        types.add(r.dtype)
        r *= 1.0  # the vector is the function's own
        return torch.from_numpy(lu.solve(r.double().numpy())).requires_grad_()

    x, info = solve(A, b, precision, preconditioner=apply)
    assert types == {torch.float32 if precision == "mixed" and not scaled else torch.float64}
    assert info.preconditioner == "user"
    assert info.times["preconditioner"] > 0
    assert info.iterations <= 3
    assert reached(A, x, b, 1e-9)


def test_a_preconditioner_may_itself_solve_with_gmres() -> None:
    A, b = poisson(9, 9), vector(81)
    x, info = solve(A, b, preconditioner=lambda r: solve(A, r, "fp32", tol=1e-4, preconditioner="gs")[0])
    assert info.iterations <= 4
    assert reached(A, x, b, 1e-9)


def test_a_preconditioner_beyond_fp32_is_gone_on_with_in_fp64() -> None:
    A, b = poisson(9, 9), vector(81)
    x, info = solve(A, b, preconditioner=lambda r: r.double() * 1e60)
    assert info.converged
    assert info.fallback
    assert reached(A, x, b, 1e-9)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda r: r.numpy(), r'returned ndarray, no tensor; A x = b is solved on cpu, .* type device="cpu"'),
        (lambda r: r.to("meta"), r"returned a torch\.strided tensor on meta"),
        (lambda r: r.to_sparse(), r"returned a torch\.sparse_coo tensor on cpu"),
        (lambda r: None, "returned NoneType, no tensor"),
        (lambda r: r[:-1], r"returned torch\.float32 of shape \(80,\) for a vector of shape \(81,\)"),
        (lambda r: r * 1j, r"returned torch\.complex64"),
        (lambda r: torch.where(torch.arange(81) == 5, torch.nan, r), r"returned nan at \[5\] for a finite vector"),
    ],
)
def test_what_a_preconditioner_returns_is_checked(function: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        solve(poisson(9, 9), np.ones(81), preconditioner=function)


# --- tensors -------------------------------------------------------------------------------------------------------


def tensor(A: Any, layout: str = "csr", dtype: Any = torch.float64, index: Any = torch.int64) -> torch.Tensor:
    """A matrix of SciPy as a sparse tensor."""
    B = A.asformat(layout)
    values = torch.tensor(B.data).to(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that such tensors are new
        if layout == "coo":
            return torch.sparse_coo_tensor(torch.tensor(np.stack(B.coords)), values, A.shape)
        make = torch.sparse_csr_tensor if layout == "csr" else torch.sparse_csc_tensor
        return make(torch.tensor(B.indptr).to(index), torch.tensor(B.indices).to(index), values, A.shape)


PLACES = [pytest.param(HOST, id="host"), pytest.param(DEVICE, id="device")]


@pytest.mark.parametrize("on", PLACES)
@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int32", "uint8"])
def test_tensors_come_back_as_tensors_of_fp64(on: Any, layout: str, dtype: str) -> None:
    A = sparse.csr_array(line(31, -1, 4) if dtype != "uint8" else line(31, 1, 4))
    kind = getattr(torch, dtype)
    b = torch.arange(1, 32).to(kind)
    x, info = solve(tensor(A, layout, kind), b, on=on)
    assert (x.dtype, x.device, x.shape) == (torch.float64, CPU, (31,))
    assert info.converged
    assert reached(A, x.numpy(), b.double().numpy(), 1e-9)


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
def test_the_public_function_takes_tensors_of_the_host(layout: str) -> None:
    A, b = poisson(9, 11), vector(99)
    x, _ = mx.gmres(tensor(A, layout, index=torch.int32), torch.tensor(b), preconditioner="gs", device="cpu")
    array, _ = mx.gmres(A, b, preconditioner="gs")
    assert np.array_equal(x.numpy(), array)


@pytest.mark.parametrize("on", PLACES)
@pytest.mark.parametrize("columns", [0, 1, 2])
def test_x_is_what_b_is(on: Any, columns: int) -> None:
    A = poisson(9, 9)
    b = np.random.default_rng(4).standard_normal((81, columns) if columns else 81)
    for left, right, start in ((A, torch.tensor(b), np.zeros_like(b)), (tensor(A), b, torch.zeros(b.shape))):
        x, _ = solve(left, right, x0=start, on=on)
        assert type(x) is type(right)
        assert tuple(x.shape) == b.shape
        assert reached(A, np.asarray(x)[..., -1] if columns else np.asarray(x), b[..., -1] if columns else b, 1e-9)


@pytest.mark.parametrize("on", PLACES)
def test_entries_that_stand_twice_are_summed_and_views_and_gradients_are_taken_as_they_are(on: Any) -> None:
    i, j = torch.tensor([[0, 0, 1, 2, 2, 1], [0, 0, 1, 2, 1, 0]])
    A = torch.sparse_coo_tensor(torch.stack([i, j]), torch.tensor([1.0, 3, 5, 4, 1, 1]), (3, 3)).requires_grad_()
    b = torch.arange(6.0)[::2].requires_grad_()
    x, _ = solve(A, b, "fp64", on=on, preconditioner="gs", tol=1e-14)
    assert not x.requires_grad
    expected = np.linalg.solve([[4.0, 0, 0], [1, 5, 0], [0, 1, 4]], [0.0, 2, 4])
    assert np.abs(x.numpy() - expected).max() <= 1e-14 * 4 * 2  # the inverse's norm is below 1/2, b's below 5


@pytest.mark.parametrize("on", PLACES)
@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
@pytest.mark.parametrize("preconditioner", ["gs", "none"])
def test_nothing_that_is_given_is_written_to(on: Any, layout: str, preconditioner: str) -> None:
    S, b = wild()
    A, right, x0 = tensor(S, layout), torch.tensor(b), torch.ones(81, dtype=torch.float64)
    before = [one.clone() for one in (*pieces(A), right, x0)]
    arrays = [*parts(S), b.copy()]
    for left, side in ((A, right), (S, b)):
        assert solve(left, side, x0=x0, on=on, preconditioner=preconditioner, max_iterations=50)[1].iterations
    for old, new in zip([*before, *arrays], [*pieces(A), right, x0, *parts(S), b], strict=True):
        assert bool((old == new).all())


def test_x_has_memory_of_its_own() -> None:
    A, b, x0 = poisson(5, 5), torch.zeros(25, dtype=torch.float64), torch.ones(25, dtype=torch.float64)
    b[3] = 1.0
    exact = torch.tensor(linalg.spsolve(A.tocsc(), b.numpy()))
    for on in (HOST, DEVICE):
        for start in (x0, exact):
            x, _ = solve(A, b, x0=start, on=on)
            assert x.data_ptr() not in (b.data_ptr(), start.data_ptr())


def pieces(A: torch.Tensor) -> list[torch.Tensor]:
    """A sparse tensor's own tensors."""
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


# --- what is refused -----------------------------------------------------------------------------------------------


def blocks() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.eye(4).to_sparse_bsr((2, 2))


REFUSED: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "dense": (lambda: torch.eye(2), torch.ones(2), r"A is a dense tensor; .* A\.to_sparse_csr\(\), or mxpeak"),
    "blocks": (blocks, torch.ones(4), r"layout torch\.sparse_bsr; .* type A\.to_sparse_coo\(\)"),
    "dense rows": (lambda: torch.eye(2).to_sparse(1), torch.ones(2), r"dense rows; .* A\.to_dense\(\)\.to_sp"),
    "rectangular": (lambda: torch.ones(2, 3).to_sparse(), torch.ones(2), r"A has shape \(2, 3\).*lsqr"),
    "empty": (lambda: torch.zeros(0, 0).to_sparse(), torch.ones(0), r"A is empty, of shape \(0, 0\)"),
    "complex": (lambda: tensor(line(2), dtype=torch.complex64), torch.ones(2), r"A is complex \(torch\.complex64\)"),
    "NaN in A": (lambda: tensor(line(2) * np.nan), torch.ones(2), r"A\[0, 0\] is nan: 4 of 4"),
    "NaN in b": (lambda: tensor(line(2)), torch.tensor([1.0, torch.inf]), r"b\[1\] is inf: 1 of 2 entries"),
    "NaN in B": (lambda: tensor(line(2)), torch.tensor([[1.0, 0], [0, torch.nan]]), r"b\[1, 1\] is nan: 1 of 4"),
    "complex b": (lambda: line(2), torch.ones(2) * 1j, r"b is complex \(torch\.complex64\)"),
    "fp8 b": (lambda: line(2), torch.ones(2).to(torch.float8_e4m3fn), r"b has dtype torch\.float8.*b\.double\(\)"),
    "long b": (lambda: line(2), torch.ones(3), r"A is 2x2, but b has shape \(3,\): it needs 2 rows"),
    "deep b": (lambda: line(2), torch.ones(2, 1, 1), r"b has shape \(2, 1, 1\)"),
    "no b": (lambda: line(2), torch.ones(2, 0), "b is empty"),
    "sparse b": (lambda: line(2), torch.ones(2).to_sparse(), r"b is sparse; use b\.to_dense\(\)"),
}  # fmt: skip


@pytest.mark.parametrize("on", PLACES)
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_solved_is_refused(on: Any, name: str) -> None:
    A, b, message = REFUSED[name]
    with pytest.raises(UsageError, match=message):
        solve(A(), b, on=on)


@pytest.mark.parametrize("on", PLACES)
def test_starts_of_another_shape_broken_tensors_and_rows_of_zeros_are_refused(on: Any) -> None:
    with pytest.raises(UsageError, match=r"x0 has shape \(3, 1\), but b has shape \(3,\)"):
        solve(line(3), torch.ones(3), x0=torch.ones(3, 1), on=on)
    broken = tensor(random(5))
    broken.col_indices()[3] = 7
    with pytest.raises(UsageError, match="A is no valid sparse matrix"):
        solve(broken, torch.ones(5), on=on)
    with pytest.raises(SingularError, match="row 1 has no entry other than zero"):
        solve(torch.tensor([[1.0, 2], [0, 0]]).to_sparse(), torch.ones(2), on=on)


# --- where ---------------------------------------------------------------------------------------------------------


def elsewhere(where: str) -> Any:
    """A tensor that says it is on some device."""
    kind: Any = type("Elsewhere", (torch.Tensor,), {"device": where})
    return torch.ones(2).as_subclass(kind)


@pytest.mark.parametrize(("A", "b"), [(line(2), "cuda:1"), ("cuda:1", np.ones(2)), ("cuda:1", [1.0, 1.0])])
def test_a_matrix_and_a_vector_in_two_places_are_refused_unless_the_device_is_named(A: Any, b: Any) -> None:
    A, b = (elsewhere(one) if isinstance(one, str) else one for one in (A, b))
    with pytest.raises(UsageError, match='one operand lies on cuda:1, another on the CPU; say device="cuda:1" to copy'):
        mx.gmres(A, b)
    with pytest.raises(UsageError, match='device="cpu", but a tensor lies on cuda:1'):
        mx.gmres(A, b, device="cpu")


def test_a_start_in_another_place_is_refused_too() -> None:
    with pytest.raises(UsageError, match='say device="cuda:0" to copy it'):
        mx.gmres(elsewhere("cuda:0"), elsewhere("cuda:0"), x0=np.ones(2))
    with pytest.raises(UsageError, match="tensors lie on cuda:0 and cuda:1"):
        mx.gmres(elsewhere("cuda:0"), elsewhere("cuda:1"))


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_tensors_of_the_host_are_solved_with_by_the_host(device: str) -> None:
    assert place_for(device, tensor(line(2)), torch.ones(2), None) is HOST
    assert place_for(device, line(2), torch.ones(2), np.ones(2)) is HOST


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_said_not_to_be() -> None:
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

NUMBERS, EXPONENTS = st.floats(allow_nan=False, allow_infinity=False), st.integers(-5000, 5000)


@settings(max_examples=200, deadline=None)
@given(x=st.lists(NUMBERS, min_size=1, max_size=9), exponents=st.lists(EXPONENTS, min_size=9, max_size=9))
def test_powers_of_two_are_numpys_to_the_last_bit(x: list[float], exponents: list[int]) -> None:
    v, e = np.array(x), np.array(exponents[: len(x)])
    with np.errstate(over="ignore", under="ignore"):
        for shift in (e, int(e[0])):
            there = DEVICE.indices(shift) if isinstance(shift, np.ndarray) else shift
            assert np.array_equal(DEVICE.ldexp(torch.tensor(v), there).numpy(), np.ldexp(v, shift))
            if v.any():
                assert DEVICE.largest_exponent(torch.tensor(v), there) == HOST.largest_exponent(v, shift)


def test_numbers_that_leave_the_range_and_come_back_are_not_brought_so_far() -> None:
    x = np.array([2.0**1023, -1.75 * 2.0**-1022, 2.0**-1074, 0.0])
    for k in (-2200, -2097, -1100, -1023, -1022, -53, 1022, 1023, 1100, 2097, 2098, FARTHEST, 10**6):
        with np.errstate(over="ignore", under="ignore"):
            assert np.array_equal(DEVICE.ldexp(torch.tensor(x), k).numpy(), np.ldexp(x, k)), k


def test_vectors_are_scaled_as_on_the_host() -> None:
    A, b = wild()
    host = equilibration(A)
    there = host.on(DEVICE)
    b_s, k = there.right_hand_side(torch.tensor(b))
    expected, exponent = host.right_hand_side(b)
    assert k == exponent
    assert np.array_equal(b_s.numpy(), expected)
    y = there.start(torch.tensor(b), k)
    assert np.array_equal(there.solution(y, k).numpy(), b)
    assert there.relative(y, b_s) == pytest.approx(host.relative(y.numpy(), expected), rel=1e-14)
