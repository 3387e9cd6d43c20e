"""HPL and HPL-MxP kernels on a device: libraries for products and solves, our own kernels for everything else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from mxpeak.kernels.contract.lu import BlockSolver, Exchange, Panel, PanelOutcome, PanelSolve, by_substitution, digest
from mxpeak.kernels.torch.engine.device import FAR, LINE, NEAR, TYPES, Device
from mxpeak.kernels.torch.lu import blas, cast, panel, solves, triangle
from mxpeak.kernels.torch.lu import row_moves as rows
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.leading_dimension import leading_dimension

Tensor = Any


class TorchLu:
    """`LuKernels` on the tensors of a device; the `host` factors panels that are distributed over ranks.

    Three options select between methods with equal results, depending on the device:

    trsm        solve in fp32 with the `library`, or by products with inverted diagonal blocks (`inverse`)
    gemm        multiply 16-bit operands with the `library` or with `triton`
    panel_on    factor a panel that is on one rank on the `device` or on the `host`
    """

    def __init__(self, device: Device, host: panel.Host):
        self.device, self.host, self.threads = device, host, host.threads
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
        rows.permute_rows(A, block, sources, targets, block_rows)

    def gather_rows(self, A: Tensor, indices: Tensor, out: Tensor) -> None:
        rows.gather_rows(A, indices, out)

    def scatter_rows(self, source: Tensor, indices: Tensor, A: Tensor) -> None:
        rows.scatter_rows(source, indices, A)

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

    def subtract_product(self, C: Tensor, A: Tensor, B: Tensor) -> None:
        blas.subtract_product(self.device, C, A, B, self.gemm)

    def solve_upper(self, U: Tensor, x: Tensor) -> None:
        triangle.solve_upper(U, x)

    def block_solver(self, T: Tensor, part: str) -> BlockSolver:
        return triangle.block_solver(T, part)

    def add_matvec(self, y: Tensor, A: Tensor, x: Tensor, *, transposed: bool = False) -> None:
        triangle.add_matvec(self.device, y, A, x, transposed=transposed)

    def add_two_matvecs(self, y: Tensor, z: Tensor, A: Tensor, u: Tensor, v: Tensor) -> None:
        self.add_matvec(y, A, u)
        self.add_matvec(z, A, v)

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

    def add_triangle_matvec(
        self, y: Tensor, A: Tensor, x: Tensor, rows: BlockCyclic, cols: BlockCyclic, part: str, form: str = "plain"
    ) -> None:
        triangle.add_triangle_matvec(self.device, y, A, x, rows, cols, part, form)

    def max_abs_upper(self, A: Tensor, rows: BlockCyclic, cols: BlockCyclic) -> float:
        return triangle.max_abs_upper(self.device, A, rows, cols)

    def row_max(self, A: Tensor, by_row: Tensor) -> None:
        triangle.row_max(self.device, A, by_row)

    def column_max(self, A: Tensor, by_column: Tensor) -> None:
        triangle.column_max(self.device, A, by_column)

    def reciprocal_powers(self, powers: Tensor, x: Tensor) -> None:
        triangle.reciprocal_powers(powers, x)

    def scale_rows_columns(self, A: Tensor, by_row: Tensor, by_column: Tensor) -> None:
        triangle.scale_rows_columns(self.device, A, by_row, by_column)

    def abs_sums(self, A: Tensor, by_row: Tensor, by_column: Tensor) -> None:
        triangle.abs_sums(self.device, A, by_row, by_column)

    def add_scaled(self, y: Tensor, factor: float, x: Tensor) -> None:
        y.add_(x, alpha=factor)

    def sum_squares(self, x: Tensor) -> float:
        return float(torch.dot(x, x))
