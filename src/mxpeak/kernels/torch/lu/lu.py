"""HPL and HPL-MxP kernels on a device: libraries for products and solves, and mxpeak's own kernels otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from mxpeak.kernels.contract.emulation import Emulation
from mxpeak.kernels.contract.lu import (
    EmulatedProducts,
    Exchange,
    Fp64Emulation,
    Panel,
    PanelOutcome,
    PanelSolve,
    by_substitution,
    digest,
)
from mxpeak.kernels.torch.engine.device import FAR, LINE, NEAR, TYPES, Device
from mxpeak.kernels.torch.engine.tensors import array_of
from mxpeak.kernels.torch.lu import blas, cast, emulation, panel, solves
from mxpeak.kernels.torch.lu.triangle import TorchProducts
from mxpeak.layout.leading_dimension import leading_dimension

Tensor = Any

#: Columns of a strip of moved rows: wide enough to hide launch overhead, and small compared with the matrix.
STRIP = 16384


class TorchLu(TorchProducts):
    """The `LuKernels` of a torch device; the kernels of the `host` factor panels that are distributed over ranks.

    Three options select between methods with equal results, depending on the device:

    trsm        solve in fp32 with the `library`, or by products with inverted diagonal blocks (`inverse`)
    gemm        multiply 16-bit operands with the `library` or with `triton`
    panel_on    factor a panel that is on one rank on the `device` or on the `host`

    `emulation` multiplies fp64 matrices; None selects the product of the library.
    """

    def __init__(self, device: Device, host: panel.Host, emulation: EmulatedProducts | None = None):
        self.device, self.host, self.threads, self.emulation = device, host, host.threads, emulation
        self.trsm = "inverse" if device.is_gpu and not torch.version.hip else "library"
        self.panel_on = "device"
        self.gemm = "triton" if torch.version.hip else "library"

    def matrix(self, rows: int, columns: int, precision: str = "fp64") -> Tensor:
        dtype = TYPES[precision]
        return self.device.empty(rows, leading_dimension(columns, dtype.itemsize, LINE, FAR), dtype=dtype)[:, :columns]

    def buffer(self, size: int, precision: str = "fp64") -> Tensor:
        return self.device.empty(size, dtype=TYPES[precision])

    def operand_buffer(self, rows: int, columns: int, precision: str, side: str) -> Tensor:
        size = self.operand_size(rows, columns, precision, side)
        return self.buffer(size, precision).view(cast.OPERANDS[precision])

    def operand_size(self, rows: int, columns: int, precision: str, side: str) -> int:
        long, k = (rows, columns) if side == "left" else (columns, rows)
        return long * leading_dimension(k, TYPES[precision].itemsize, LINE, NEAR)

    def operand_matrix(self, buffer: Tensor, rows: int, columns: int, precision: str, side: str) -> Tensor:
        if side == "right":
            return self.operand_matrix(buffer, columns, rows, precision, "left").T
        ld = leading_dimension(columns, buffer.itemsize, LINE, NEAR)
        return buffer[: rows * ld].view(rows, ld)[:, :columns]

    def emulates(self, precision: str) -> bool:
        return precision not in ("fp64", "fp32") and not self.device.multiplies(precision)

    def cuts_show(self, precision: str) -> bool:
        return True  # libraries select kernels by shape

    def panel(self, buffer: Tensor, rows: int, columns: int) -> Tensor:
        ld = leading_dimension(rows, buffer.itemsize, LINE, FAR)
        return buffer[: ld * columns].view(columns, ld).T[:rows]

    def panel_size(self, rows: int, columns: int, precision: str = "fp64") -> int:
        return leading_dimension(rows, TYPES[precision].itemsize, LINE, FAR) * columns

    def indices(self, values: Sequence[int]) -> Tensor:
        here = torch.tensor(values, dtype=torch.int64, pin_memory=self.device.is_gpu)
        return here.to(self.device.where, non_blocking=True)

    def host_array(self, A: Tensor) -> Any:
        return array_of(A)

    def host_numbers(self, count: int) -> Any:
        return np.zeros(count)

    def fetch(self, vector: Tensor) -> Callable[[], list[float]]:
        if not self.device.is_gpu:
            values: list[float] = vector.tolist()
            return lambda: values
        there = torch.empty(vector.shape, dtype=vector.dtype, pin_memory=True)
        there.copy_(vector, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(self.device.where))

        def arrive() -> list[float]:
            arrived.synchronize()
            values: list[float] = there.tolist()
            return values

        return arrive

    def digest(self, A: Tensor) -> str:
        bits = A.view(torch.int64 if A.itemsize == 8 else torch.int32)
        return digest(bits.sum(dim=dim, dtype=torch.int64).cpu().numpy().tobytes() for dim in (1, 0))

    def copy(self, source: Tensor, target: Tensor) -> None:
        cast.copy(self.device, source, target)

    def cast(self, source: Tensor, target: Tensor, precision: str) -> None:
        cast.cast(self.device, source, target, precision)

    def bring_panel(self, work: Panel) -> Panel:
        return panel.brought(self.device, work) if self.panel_library(work.rows.P) is None else work

    def factor_panel(self, work: Panel, exchange: Exchange | None) -> PanelOutcome:
        if self.panel_library(1 if exchange is None else work.rows.P) is None:
            return panel.factor_on_host(self.device, self.host, work, exchange)
        panel.factor_here(work)
        return PanelOutcome(0.0, 0.0)

    def panel_library(self, ranks: int) -> str | None:
        return panel.LIBRARY if ranks == 1 and self.panel_on == "device" else None

    def permute_rows(self, A: Tensor, block: int, sources: Tensor, targets: Tensor, block_rows: Tensor) -> None:
        """Swap rows between the block row and the rest of A, in strips of columns.

        The strips keep copies small, because a benchmark's matrix leaves little memory for copies.
        """
        for begin in range(0, A.shape[1], STRIP):
            part = A[:, begin : begin + STRIP]
            incoming = part.index_select(0, sources)
            outgoing = part[block:].index_select(0, block_rows)
            part[block : block + len(sources)] = incoming
            part.index_copy_(0, targets, outgoing)

    def gather_rows(self, A: Tensor, rows: Tensor, out: Tensor) -> None:
        torch.index_select(A, 0, rows, out=out)

    def scatter_rows(self, source: Tensor, rows: Tensor, A: Tensor) -> None:
        A.index_copy_(0, rows, source)

    def factor_block(self, D: Tensor, singular: Tensor) -> None:
        blas.factor_block(self.device, D, singular)

    def solve_unit_lower(self, L: Tensor, B: Tensor, precision: str) -> PanelSolve:
        if self._by_blocks(B):
            return solves.solve_unit_lower(self, L, B, precision)
        blas.solve_unit_lower(L, B)
        return by_substitution(B)

    def solve_right_upper(self, B: Tensor, U: Tensor, precision: str) -> PanelSolve:
        if self._by_blocks(B):
            return solves.solve_right_upper(self, B, U, precision)
        blas.solve_right_upper(B, U)
        return by_substitution(B)

    def _by_blocks(self, B: Tensor) -> bool:
        return self.trsm == "inverse" and bool(B.dtype == torch.float32)

    def fp64_emulation(self) -> Fp64Emulation | None:
        return None if self.emulation is None else self.emulation.record()

    def subtract_product(self, C: Tensor, A: Tensor, B: Tensor) -> None:
        if self.emulation is not None and A.dtype == torch.float64:
            self.emulation.subtract_product(C, A, B)
            return
        blas.subtract_product(self.device, C, A, B, self.gemm)

    def subtract_emulated_product(self, C: Tensor, A: Tensor, B: Tensor) -> Emulation:
        return emulation.subtract_emulated_product(self.device, C, A, B)

    def add_operand_sums(self, sums: Tensor, A: Tensor, precision: str, vectors: Tensor, part: str = "all") -> None:
        m, n = A.shape
        if part == "upper":
            self.add_operand_sums(sums[3:], torch.triu(A[:, :m]), precision, vectors[:, :m])
            A, vectors = A[:, m:], vectors[:, m:]
        elif part == "lower":
            A = torch.tril(A, n - m - 1)
        low = torch.empty_like(A, memory_format=torch.contiguous_format)
        self.cast(A, low, precision)
        u, w, q = vectors[[0, 2, 3]] if len(vectors) > 1 else (vectors[0], vectors[0], torch.ones_like(vectors[0]))
        low[:, u == 0] = 0
        for total, M, x in ((0, low, u), (1, A, w), (2, A.double().square(), q)):
            self.add_matvec(sums[total], M, x)
        if len(vectors) > 1:
            self.add_matvec(sums[0], A, vectors[1])

    def add_scaled(self, y: Tensor, factor: float, x: Tensor) -> None:
        y.add_(x, alpha=factor)

    def sum_squares(self, x: Tensor) -> float:
        return float(torch.dot(x, x))
