"""Compare norms of torch tensors with those of arrays of the same memory, and test refusals."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import mxpeak as mx
from mxpeak.distributed.tiles import TileMatrix, whole
from mxpeak.errors import ResourceError, UsageError
from mxpeak.kernels.torch.engine import tensors
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.norms.norms import TorchNorms
from mxpeak.layout.structure import structure
from mxpeak.library.norms import from_band, from_scalapack, from_tiles, prepare
from mxpeak.solvers import norms as four_stages
from mxpeak.solvers.exact_norms import reproducible_norms, vector_norms
from tests.support.roundoff import U

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128, torch.complex64]
KINDS = ("max", "one", "inf", "fro")


def random(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    torch.manual_seed(20261121)
    return torch.randn(shape, dtype=torch.complex128 if dtype.is_complex else torch.float64).to(dtype)


def array(A: torch.Tensor) -> Any:
    """Return a copy of a tensor as an array, also for bf16."""
    if A.dtype == torch.bfloat16:
        return A.float().numpy().astype(ml_dtypes.bfloat16)
    return np.array(A.numpy())


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Device:
    """Make a device called cuda:0, which uses host memory."""
    device = Device(torch.device("cpu"), triton=False, poison=True)
    monkeypatch.setattr(tensors, "device_named", lambda name: device)
    return device


# --- tensors on the CPU -----------------------------------------------------------------------------------------


def test_norms_of_tensors_are_those_of_arrays() -> None:
    for dtype in DTYPES:
        A = random((37, 23), dtype)
        for A_tensor, same in (
            (A, array(A)),
            (A.T, array(A).T),
            (A[3::2, 1::3], array(A)[3::2, 1::3]),
            (A[:, 2], array(A)[:, 2]),
        ):
            assert mx.norms(A_tensor) == mx.norms(same)
            for kind in KINDS:
                assert mx.norm(A_tensor, kind) == mx.norm(same, kind)
                assert mx.norm(A_tensor, kind, deterministic=True) == mx.norm(same, kind, deterministic=True)


def test_norms_of_columns_of_a_tensor_are_a_tensor() -> None:
    for dtype in DTYPES:
        A = random((37, 23), dtype)
        for kind in KINDS:
            for function in (mx.column_norms, mx.row_norms):
                norms = function(A, kind)
                assert isinstance(norms, torch.Tensor)
                assert norms.dtype == torch.float64
                np.testing.assert_array_equal(norms, function(array(A), kind))
                assert isinstance(function(array(A), kind), np.ndarray)


def test_a_tensor_is_taken_with_its_conjugation_and_sign() -> None:
    A = random((7, 5), torch.complex128)
    expected = mx.norms(array(A))
    assert mx.norms(A.conj()) == expected
    assert mx.norm(A.conj().imag, "one") == mx.norm(array(A).imag, "one"), "which is negated on reading"
    assert mx.norm(A.mH, "inf") == expected.one


@pytest.mark.parametrize(
    "function",
    [
        mx.norm,
        lambda A: mx.norm(A, "one", deterministic=True),
        mx.norms,
        mx.column_norms,
        mx.row_norms,
        lambda A: mx.emulation_error(A, torch.eye(5, dtype=torch.float64)),
        lambda A: mx.norm(mx.from_tiles({(0, 0): A}, [7], [5])),
    ],
)
def test_a_gradient_is_refused_instead_of_lost(function: Any) -> None:
    A = random((7, 5), torch.float64).requires_grad_()
    for tensor in (A, torch.nn.Parameter(A.detach())):
        with pytest.raises(UsageError, match=r"requires a gradient, .* use .*\.detach\(\), or use torch\.no_grad"):
            function(tensor)
    with torch.no_grad():
        function(A)
    function(A.detach())


def test_whole_numbers_are_widened() -> None:
    for dtype in (torch.int64, torch.int8, torch.uint8, torch.bool):
        A = torch.tensor([[1, 0, 1], [1, 1, 1]], dtype=dtype)
        assert mx.norms(A) == (1.0, 2.0, 3.0, 5.0**0.5)


def test_what_is_no_dense_matrix_of_numbers_is_refused() -> None:
    A = torch.ones(3, 4)
    with pytest.raises(UsageError, match=r"A\.to_dense\(\)"):
        mx.norm(A.to_sparse())
    with pytest.raises(UsageError, match=r"dtype torch\.float8_e4m3fn"):
        mx.norm(A.to(torch.float8_e4m3fn))
    with pytest.raises(UsageError, match="3 dimensions"):
        mx.norm(torch.ones(2, 2, 2))
    with pytest.raises(UsageError, match=r"is on meta.*\.cpu\(\)"):
        mx.norm(A.to("meta"))


# --- tiles, local arrays, bands ---------------------------------------------------------------------------------


def test_tiles_may_be_tensors_and_arrays() -> None:
    for dtype in DTYPES:
        A = random((11, 7), dtype)
        expected = mx.norms(array(A))
        tensors = [[A[:4, :5], A[:4, 5:]], [A[4:, :5].T.contiguous().T, A[4:, 5:]]]
        mixed = [[array(A[:4, :5]), A[:4, 5:]], [A[4:, :5], array(A[4:, 5:])]]
        for tiles in (tensors, mixed):
            M = from_tiles(tiles)
            assert mx.norms(M) == pytest.approx(expected, rel=20 * U)  # of at most 11 terms, in another order
            assert isinstance(mx.column_norms(M), torch.Tensor)
            np.testing.assert_array_equal(mx.row_norms(M.T, "one"), mx.column_norms(array(A), "one"))
        with pytest.raises(UsageError, match="need the same dtype"):
            from_tiles([[A, random((11, 2), torch.float64 if dtype != torch.float64 else torch.float32)]])


def test_a_local_array_of_scalapack_may_be_a_tensor() -> None:
    A = random((5, 4), torch.float64)
    desc = [1, 0, 5, 4, 2, 2, 0, 0, 7]
    flat = torch.full((28,), torch.nan, dtype=torch.float64)
    flat.as_strided((5, 4), (1, 7)).copy_(A)
    for local in (flat, flat.as_strided((7, 4), (1, 7))):
        assert mx.norms(from_scalapack(local, desc)) == pytest.approx(mx.norms(A), rel=20 * U)  # in another order
    with pytest.raises(UsageError, match="the local array has 20 entries, but 4 columns with LLD = 7 need 26"):
        from_scalapack(flat[:20], desc)


def test_a_band_may_be_a_tensor() -> None:
    kl, ku, n = 2, 1, 8
    AB = random((kl + ku + 1, n), torch.complex64)
    forms = (AB, AB.T.contiguous().T, torch.cat([AB, AB])[:4], random((6, n), torch.complex64))
    for m, stored in product((3, 7, 8, 9, 12), forms):
        band, same = from_band(stored, kl, ku, m), from_band(array(stored), kl, ku, m)
        assert band.shape == same.shape == (m, n)
        assert mx.norms(band) == pytest.approx(mx.norms(same), rel=20 * U)
        np.testing.assert_array_equal(mx.column_norms(band), mx.column_norms(same))


# --- devices ----------------------------------------------------------------------------------------------------


def test_unknown_devices_are_named_with_those_there_are() -> None:
    for device in ("gpu", "cuda:x", "cuda1", "", "mps:1"):
        with pytest.raises(UsageError, match="use one of the strings auto, cpu, cuda"):
            mx.norm(np.ones((2, 2)), device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("A", [np.ones((3, 2)), torch.ones(3, 2)])
def test_a_gpu_that_is_not_there_is_an_error(A: Any) -> None:
    for device in ("cuda", "cuda:1"):
        for function in (mx.norm, mx.norms, mx.column_norms):
            with pytest.raises(ResourceError, match=f"device {device} is not available.*use the device cpu"):
                function(A, device=device)


@pytest.mark.usefixtures("gpu")
def test_arrays_are_copied_to_the_device_that_is_named() -> None:
    for dtype in DTYPES:
        A = random((37, 23), dtype)
        read_only, backwards = array(A), array(A)[::-1, ::-1]
        read_only.flags.writeable = False
        for B in (read_only, backwards):
            assert mx.norms(B, device="cuda") == pytest.approx(mx.norms(B), rel=(37 * 23 + 9) * U)
            for kind in KINDS:
                norms = mx.column_norms(B, kind, device="cuda")
                assert isinstance(norms, np.ndarray)
                # Bitwise equal, except for moduli, of which host and device may round the largest differently.
                np.testing.assert_allclose(norms, mx.column_norms(B, kind), rtol=4 * U if dtype.is_complex else 0)
        assert isinstance(mx.row_norms(A, device="cuda"), torch.Tensor)
        assert mx.norm(from_tiles([[array(A)]]), "one", device="cuda") == pytest.approx(mx.norm(A, "one"), rel=46 * U)


@pytest.mark.parametrize("name", ["general", "symmetric", "hermitian", "triangular", "hessenberg"])
def test_vector_operations_of_norms_work_on_tensors(name: str) -> None:
    """All operations that a norm needs exist for tensors."""
    A, kernels = random((29, 29), torch.complex128), TorchNorms(Device(torch.device("cpu"), triton=False, poison=True))
    options = {"diag": "unit"} if name == "triangular" else {}
    S = structure(name, 29, 29, **options)
    settings: dict[str, Any] = {"structure": name, **options}
    expected = mx.norms(array(A), **settings)
    found = four_stages.distributed_norms(whole(A), S, KINDS, kernels)
    assert found == pytest.approx(expected._asdict(), rel=(29 + 9) * U)
    exact = {kind: mx.norm(array(A), kind, deterministic=True, **settings) for kind in KINDS}
    assert reproducible_norms(whole(A), S, KINDS, kernels) == pytest.approx(exact, rel=8 * U)
    for kind in KINDS:
        for by, function in (("rows", mx.row_norms), ("columns", mx.column_norms)):
            mine = vector_norms(whole(A), S, kind, by, kernels)
            np.testing.assert_allclose(mine, function(array(A), kind, **settings), rtol=8 * U)


def test_each_tile_is_processed_on_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two fake devices use host memory, and are distinguished by the heights of tiles."""
    A = random((11, 7), torch.float32)
    opened: dict[str, Device] = {}

    def device_named(name: str) -> Device:
        return opened.setdefault(name, Device(torch.device("cpu"), triton=False, poison=True))

    def name_of(A: torch.Tensor) -> str:
        return "cpu" if A.shape[0] == 4 else "cuda:0"

    monkeypatch.setattr(prepare, "device_of", name_of)
    monkeypatch.setattr(Device, "has", lambda device, x: device is opened[name_of(x)])
    monkeypatch.setattr(tensors, "device_named", device_named)
    M: TileMatrix = from_tiles([[A[:4, :5], A[:4, 5:]], [A[4:, :5], A[4:, 5:]]])
    assert mx.norms(M) == pytest.approx(mx.norms(array(A)), rel=(77 + 9) * U)
    assert list(opened) == ["cuda:0", "cpu"], "vectors lie on a GPU, if there is one"
    for kind in KINDS:
        assert mx.norm(M, kind, deterministic=True) == mx.norm(array(A), kind, deterministic=True)
        np.testing.assert_array_equal(mx.column_norms(M, kind), mx.column_norms(array(A), kind))


def test_torch_is_imported_for_tensors_alone() -> None:
    program = (
        "import sys, numpy as np, mxpeak as mx\n"
        "mx.norm(np.ones((3, 2))); mx.norms(np.ones((3, 2))); mx.column_norms(np.ones((3, 2)))\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_missing_torch_error_names_the_package() -> None:
    program = (
        "import sys, numpy as np, mxpeak as mx\n"
        "from mxpeak.errors import ResourceError\n"
        "sys.modules['torch'] = None\n"
        "try: mx.norm(np.ones((3, 2)), device='cuda')\n"
        'except ResourceError as error: sys.exit(0 if "[gpu]\'" in str(error) else 2)\n'
        "sys.exit(1)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
