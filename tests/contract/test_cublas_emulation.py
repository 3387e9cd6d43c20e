"""Test emulated products through the C interface of cuBLAS, with a fake library in host memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import product
from time import sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mxpeak.bench.hpl.config import HplConfig
from mxpeak.bench.hpl.run import HPL
from mxpeak.bench.lu import footprint_of
from mxpeak.errors import ResourceError
from mxpeak.kernels.contract.emulation import cublas_workspace_bytes
from mxpeak.kernels.contract.lu import Fp64Emulation
from mxpeak.kernels.host.lu.cpu_assist import HostPanelService
from mxpeak.kernels.torch.dense.dense import TorchDense
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.kernels import TorchKernels
from mxpeak.kernels.torch.lu import cublas
from mxpeak.kernels.torch.lu.cublas import Cublas, CublasEmulation, check_emulation, cublas_emulation, open_cublas
from mxpeak.layout.grid import ProcessGrid
from mxpeak.library.dense.info import SolveInfo
from mxpeak.library.dense.inputs import matrix, right_hand_side
from mxpeak.library.dense.solving import lu_factor_by, solve_by
from mxpeak.solvers.fp64_probe import Fp64Products, probe_products
from mxpeak.solvers.lu.pivoted_lu import PivotedLuOptions
from tests.support.fake_cublas import BITS, FakeCublas
from tests.support.hpl_ranks import solve
from tests.support.roundoff import U

CPU = Device(torch.device("cpu"), triton=False)


def emulation(**options: Any) -> CublasEmulation:
    return CublasEmulation(Cublas(CPU, FakeCublas(**options)))


def laid_out(A: Any, order: str) -> torch.Tensor:
    """The matrix by rows or by columns, with a gap after each of them."""
    if order == "columns":
        return laid_out(A.T, "rows").T
    wide = torch.full((A.shape[0], A.shape[1] + 3), torch.nan, dtype=torch.float64)
    wide[:, : A.shape[1]] = torch.from_numpy(np.ascontiguousarray(A))
    return wide[:, : A.shape[1]]


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 7, 3), (7, 1, 3), (5, 11, 1), (13, 6, 17)])
def test_products_of_matrices_in_either_order(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    random = np.random.default_rng(m)
    A, B, C = (random.standard_normal(size) for size in ((m, k), (k, n), (m, n)))
    for orders in product(("rows", "columns"), repeat=3):
        of_C, of_A, of_B = (laid_out(X, order) for X, order in zip((C, A, B), orders))
        emulation().subtract_product(of_C, of_A, of_B)
        exact = C.astype(np.longdouble) - A.astype(np.longdouble) @ B.astype(np.longdouble)
        # 60 bits per operand and two roundings: |error| <= k·2^-59·max|a|·max|b| + u·(|AB| + |C|), to first order.
        bound = k * 2.0**-59 * np.abs(A).max() * np.abs(B).max() + 3 * U * (np.abs(A) @ np.abs(B) + np.abs(C))
        assert (np.abs(of_C.numpy() - exact) <= bound).all(), orders


def test_large_products_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cublas, "SIDE", 5)
    library = FakeCublas()
    random = np.random.default_rng(2)
    A, B, C = (torch.from_numpy(random.standard_normal(size)) for size in ((12, 4), (4, 7), (12, 7)))
    expected = C - A @ B
    CublasEmulation(Cublas(CPU, library)).subtract_product(C, A, B)
    assert torch.allclose(C, expected, rtol=1e-14, atol=1e-14)
    assert library.products == 6


def test_the_workspace_is_part_of_the_memory() -> None:
    """4 GiB for the products of slices and 10·(m+n)·k bytes for the slices, a quarter more, and 128 MiB."""
    workspace = 1.25 * (2**32 + 10 * 2**15 * 1024) + 2**27
    assert cublas_workspace_bytes(2**14, 2**14, 1024) == workspace
    (case,) = HplConfig(n=(40000,), nb=(1024,), P=(2,), Q=(2,)).cases(4, None)
    native, emulated = (
        footprint_of(HPL, HplConfig(device="cuda", fp64=fp64), case)(40000, 1024, 2, 2)
        for fp64 in ("native", "emulated")
    )
    assert emulated["total"] - native["total"] == emulated["buffers"] - native["buffers"] == 4 * workspace


def test_empty_products_do_nothing() -> None:
    products = emulation()
    for m, n, k in ((0, 3, 2), (3, 0, 2), (3, 3, 0)):
        C = torch.ones((m, n), dtype=torch.float64)
        products.subtract_product(C, torch.ones((m, k), dtype=torch.float64), torch.ones((k, n), dtype=torch.float64))
        assert bool((C == 1).all())
    assert products.record() == Fp64Emulation("Ozaki I of cuBLAS", None, 0, 0)


@pytest.mark.parametrize("recorded", [3, 1 << 16])
def test_each_product_is_counted_and_so_is_each_fallback(monkeypatch: pytest.MonkeyPatch, recorded: int) -> None:
    monkeypatch.setattr(cublas, "RECORDED", recorded)
    products = emulation(rows=4)
    for m in (3, 4, 5, 2, 6, 7, 8):
        A = torch.eye(m, dtype=torch.float64)
        products.subtract_product(torch.zeros_like(A), A, A)
    assert products.record() == Fp64Emulation("Ozaki I of cuBLAS", BITS, 7, 2)
    assert products.record() == Fp64Emulation("Ozaki I of cuBLAS", None, 0, 0)


def test_threads_do_not_disturb_each_other() -> None:
    """Another thread sets its address for the bits while this one is about to multiply."""

    class Slow(FakeCublas):
        def cublasSetFixedPointEmulationMantissaBitCountPointer(self, handle: Any, bits: Any) -> int:
            super().cublasSetFixedPointEmulationMantissaBitCountPointer(handle, bits)
            sleep(0.002)
            return 0

    library = Cublas(CPU, Slow(rows=4))

    def multiply(m: int) -> Fp64Emulation:
        products = CublasEmulation(library)
        A = torch.eye(m, dtype=torch.float64)
        for _ in range(20):
            products.subtract_product(torch.zeros_like(A), A, A)
        return products.record()

    with ThreadPoolExecutor(2) as pool:
        records = list(pool.map(multiply, (3, 5)))
    scheme = "Ozaki I of cuBLAS"
    assert records == [Fp64Emulation(scheme, None, 20, 20), Fp64Emulation(scheme, BITS, 20, 0)]


def test_a_status_is_an_error() -> None:
    library = FakeCublas()
    library.cublasGemmEx = lambda *arguments: 15  # type: ignore[method-assign]
    A = torch.eye(3, dtype=torch.float64)
    with pytest.raises(ResourceError, match="cublasGemmEx returned status 15; use native fp64"):
        CublasEmulation(Cublas(CPU, library)).subtract_product(A, A, A)


def fake_gpu(major: int) -> Any:
    return SimpleNamespace(is_gpu=True, chip=SimpleNamespace(name="V100", major=major, minor=0))


def test_requirements_are_named() -> None:
    with pytest.raises(ResourceError, match=r"needs cuBLAS of CUDA 13.0 Update 2 or later, .* not a CPU"):
        cublas_emulation(CPU)
    with pytest.raises(ResourceError, match=r"V100 has compute capability 7\.0; use native fp64"):
        open_cublas.__wrapped__(fake_gpu(7))
    for library in (None, SimpleNamespace()):

        def load(name: str, library: Any = library) -> Any:
            if library is None:
                raise OSError(name)
            return library

        with pytest.raises(
            ResourceError, match=r"this PyTorch uses CUDA .*; use native fp64, or install PyTorch for CUDA 13"
        ):
            open_cublas.__wrapped__(fake_gpu(9), load)


def test_a_library_that_multiplies_natively_is_refused() -> None:
    check_emulation(CPU, emulation())
    with pytest.raises(ResourceError, match="multiplied a test product natively"):
        check_emulation(CPU, emulation(rows=10**6))


def emulating_kernels() -> TorchKernels:
    return TorchKernels(CPU, HostPanelService(1), emulation())


def test_the_probe_finds_the_emulation() -> None:
    assert probe_products(emulating_kernels(), 0, 0, 0) == Fp64Products(True, BITS)
    assert probe_products(TorchKernels(CPU, HostPanelService(1)), 0, 0, 0) == Fp64Products(False)


@pytest.mark.parametrize(("P", "Q"), [(1, 1), (2, 2)])
def test_hpl_with_emulated_updates(P: int, Q: int) -> None:
    opened: list[TorchKernels] = []

    def make() -> TorchKernels:
        opened.append(emulating_kernels())
        return opened[-1]

    _, norms, singular = solve(61, 16, ProcessGrid(P, Q), PivotedLuOptions(), make)
    assert singular == 0
    assert norms.scaled(61, U) < 1.0
    records = [kernels.fp64_emulation() for kernels in opened]
    assert all(record is not None and record.products and not record.native for record in records)


@pytest.mark.parametrize("n", [1, 37, 100])
def test_dense_systems_with_emulated_fp64_factors(n: int) -> None:
    random = np.random.default_rng(n)
    A, b = random.standard_normal((n, n)), random.standard_normal(n)
    kernels = TorchDense(CPU, width=16, emulation=emulation())
    x, info = solve_by(kernels, matrix(A), right_hand_side(b, n), "fp64")
    assert isinstance(info, SolveInfo)
    assert info.solved
    assert (info.precision, info.fp64) == ("fp64", "emulated" if n > 16 else "native")
    assert info.backward_error < 1.0
    # Two backward stable solves differ by at most 2·n·u·κ·|x|, times growth.
    assert np.abs(np.asarray(x) - np.linalg.solve(A, b)).max() <= 20 * n * U * np.linalg.cond(A) * np.abs(x).max()
    factors = lu_factor_by(kernels, matrix(A), "fp64")
    for form, expected in (("N", np.linalg.solve(A, b)), ("T", np.linalg.solve(A.T, b))):
        y, about = factors.solve(b, transposed=form)
        assert about.fp64 == info.fp64
        assert np.abs(np.asarray(y) - expected).max() <= 20 * n * U * np.linalg.cond(A) * np.abs(expected).max()


def test_a_singular_matrix_is_refused() -> None:
    kernels = TorchDense(CPU, width=16, emulation=emulation())
    A = np.ones((40, 40))
    with pytest.raises(np.linalg.LinAlgError, match="A is singular: pivot 2 of 40"):
        lu_factor_by(kernels, matrix(A), "fp64")
