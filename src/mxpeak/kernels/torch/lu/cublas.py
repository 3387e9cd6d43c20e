"""Multiply fp64 matrices by the fixed-point emulation of cuBLAS, with slices of 8-bit integers (Ozaki I).

torch cannot select this product for a single call, so cuBLAS is called through its C interface with a separate handle.
torch's own products remain native. By default, cuBLAS determines the number of bits for each product, and multiplies
natively if more than 79 bits are necessary or if its workspace does not fit into memory. After each product, it writes
the number of bits to device memory. A product that was native leaves NATIVE there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from threading import Lock
from typing import Any

import torch

from mxpeak.errors import ResourceError
from mxpeak.kernels.contract.lu import Fp64Emulation
from mxpeak.kernels.torch.engine.device import Device

Tensor = Any

#: cuBLAS's numbers of its constants.
PLAIN, TRANSPOSED, R_64F, COMPUTE_64F_EMULATED_FIXEDPOINT, ALGO_DEFAULT, STRATEGY_EAGER = 0, 1, 1, 79, -1, 2
#: The first compute capability whose products cuBLAS emulates.
MIN_CAPABILITY = (8, 0)
#: The number of bits that a product leaves in memory if it was not emulated.
NATIVE = -1
#: The largest side of a product, which limits its workspace (`contract.emulation.cublas_workspace_bytes`).
SIDE = 16384
#: The number of products whose bits are recorded at a time.
RECORDED = 1 << 16
#: Order of the product that tests whether cuBLAS emulates products on this device.
TRIED = 256
REQUIRED = "cuBLAS of CUDA 13.0 Update 2 or later, and an NVIDIA GPU of compute capability 8.0 or later"


class Cublas:
    """The library cuBLAS on one device, and its handles. Threads use it one after the other.

    `library` is libcublas or an object with the same functions.
    """

    def __init__(self, device: Device, library: Any):
        self.device, self._library, self._lock = device, library, Lock()
        self._handles: dict[int, ctypes.c_void_p] = {}  # by stream, because products of a handle share its workspace

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Return a context for one thread at a time. This GPU is the current one, because cuBLAS uses that."""
        with self._lock, torch.cuda.device(self.device.where) if self.device.is_gpu else nullcontext():
            yield

    def handle(self) -> ctypes.c_void_p:
        """Return the handle for the current stream."""
        where = self.device.where
        stream = int(torch.cuda.current_stream(where).cuda_stream) if self.device.is_gpu else 0
        if stream not in self._handles:
            handle = ctypes.c_void_p()
            self.call("cublasCreate_v2", ctypes.byref(handle))
            self.call("cublasSetStream_v2", handle, ctypes.c_void_p(stream))
            self.call("cublasSetEmulationStrategy", handle, STRATEGY_EAGER)
            self._handles[stream] = handle
        return self._handles[stream]

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of cuBLAS; raise a ResourceError if it fails."""
        status = getattr(self._library, name)(*arguments)
        if status:
            raise ResourceError(
                f"cuBLAS failed: {name} returned status {status}; use native fp64, or a smaller problem"
            )


class CublasEmulation:
    """Emulated products by cuBLAS, and the number of bits of each product. Each kernels object has its own."""

    scheme = "Ozaki I of cuBLAS"

    def __init__(self, cublas: Cublas):
        self._cublas, self._device, self._products = cublas, cublas.device, 0
        self._fewest, self._native = 0, 0
        self._bits = torch.full((RECORDED,), NATIVE, dtype=torch.int32, device=cublas.device.where)

    def subtract_product(self, C: Tensor, A: Tensor, B: Tensor) -> None:
        """Compute C -= A B in place; each matrix is row-major or column-major."""
        if 0 in (*C.shape, A.shape[1]):
            return
        for i in range(0, C.shape[0], SIDE):
            for j in range(0, C.shape[1], SIDE):
                rows, columns = slice(i, i + SIDE), slice(j, j + SIDE)
                with self._cublas.in_use():
                    self._subtract(C[rows, columns], A[rows], B[:, columns])

    def _subtract(self, C: Tensor, A: Tensor, B: Tensor) -> None:
        """Compute C -= A B by one call. A row-major C is the column-major C^T, and C^T -= B^T A^T."""
        if not _is_column_major(C):
            C, A, B = C.T, B.T, A.T
        (m, k), n = A.shape, B.shape[1]
        (of_A, lda), (of_B, ldb), ldc = _order(A), _order(B), _leading_dimension(C)
        minus, one = ctypes.c_double(-1.0), ctypes.c_double(1.0)
        handle = self._cublas.handle()
        self._cublas.call("cublasSetFixedPointEmulationMantissaBitCountPointer", handle, self._next_bits())
        self._cublas.call(
            "cublasGemmEx", handle, of_A, of_B, m, n, k,
            ctypes.byref(minus), _address(A), R_64F, lda, _address(B), R_64F, ldb,
            ctypes.byref(one), _address(C), R_64F, ldc, COMPUTE_64F_EMULATED_FIXEDPOINT, ALGO_DEFAULT,
        )  # fmt: skip

    def record(self) -> Fp64Emulation:
        """Return the number of products since the last call, and how many were native; wait for the products."""
        with self._cublas.in_use():
            self._count()
            record = Fp64Emulation(self.scheme, self._fewest or None, self._products, self._native)
            self._products = self._fewest = self._native = 0
            return record

    def _next_bits(self) -> ctypes.c_void_p:
        """Return the address to which the next product writes its number of bits."""
        at = self._products % RECORDED
        if at == 0 and self._products:
            self._count()
        self._products += 1
        return ctypes.c_void_p(self._bits[at:].data_ptr())

    def _count(self) -> None:
        """Count the recorded bits, and prepare the memory for further products."""
        self._device.wait()
        count = (self._products - 1) % RECORDED + 1 if self._products else 0
        bits = self._bits[:count]
        emulated = bits[bits > 0]
        self._native += count - len(emulated)
        if len(emulated):
            self._fewest = min(self._fewest or int(emulated.max()), int(emulated.min()))
        self._bits.fill_(NATIVE)
        self._device.wait()


def cublas_emulation(device: Device) -> CublasEmulation:
    """Return new emulated products of a GPU; raise a ResourceError that names the requirement if there are none."""
    return CublasEmulation(open_cublas(device))


@cache
def open_cublas(device: Device, load: Callable[[str], Any] = ctypes.CDLL) -> Cublas:
    """Return cuBLAS for a GPU; raise a ResourceError that names the requirement if it does not emulate products."""
    if not device.is_gpu:
        raise ResourceError(f"emulated fp64 with --kernels torch needs {REQUIRED}, not a CPU; use native fp64")
    if torch.version.hip is not None:
        raise ResourceError(f"emulated fp64 needs {REQUIRED}; this PyTorch is for ROCm; use native fp64")
    capability = int(device.chip.major), int(device.chip.minor)
    if capability < MIN_CAPABILITY:
        has = ".".join(map(str, capability))
        raise ResourceError(
            f"emulated fp64 needs {REQUIRED}; {device.chip.name} has compute capability {has}; use native fp64"
        )
    major = str(torch.version.cuda).split(".")[0]
    try:
        library = load(f"libcublas.so.{major}")
    except OSError:
        library = None
    if not hasattr(library, "cublasSetFixedPointEmulationMantissaBitCountPointer"):
        raise ResourceError(
            f"emulated fp64 needs {REQUIRED}; this PyTorch uses CUDA {torch.version.cuda}; use native fp64, or "
            "install PyTorch for CUDA 13"
        )
    cublas = Cublas(device, library)
    check_emulation(device, CublasEmulation(cublas))
    return cublas


def check_emulation(device: Device, products: CublasEmulation) -> None:
    """Raise a ResourceError if a product on this device is not emulated."""
    A = device.tensor(torch.eye(TRIED, dtype=torch.float64))
    products.subtract_product(torch.zeros_like(A), A, A)
    if products.record().native:
        raise ResourceError(
            f"emulated fp64 needs {REQUIRED}; cuBLAS multiplied a test product natively; use native fp64, and "
            "check that CUBLAS_EMULATE_DOUBLE_PRECISION is not 0"
        )


def _is_column_major(A: Tensor) -> bool:
    """Return whether the entries of each column of A are contiguous."""
    return bool(A.shape[0] <= 1 or A.stride(0) == 1)


def _order(A: Tensor) -> tuple[int, int]:
    """Return the transpose flag with which cuBLAS reads A as a column-major matrix, and its leading dimension."""
    if _is_column_major(A):
        return PLAIN, _leading_dimension(A)
    assert _is_column_major(A.T), f"a matrix of shape {A.shape} with strides {A.stride()} is in neither order"
    return TRANSPOSED, _leading_dimension(A.T)


def _leading_dimension(A: Tensor) -> int:
    """Return the distance between the columns of a column-major matrix."""
    m, n = A.shape
    return int(max(A.stride(1) if n > 1 else m, m, 1))


def _address(A: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(A.data_ptr())
