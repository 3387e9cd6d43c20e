"""The torch backend: `kernels.contract.Kernels` on the tensors of one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import metadata
from typing import TYPE_CHECKING, Any

import torch

from mxpeak.kernels.contract.lu import BlockSolver, Exchange, Panel, PanelOutcome
from mxpeak.kernels.contract.norms import NormKernels
from mxpeak.kernels.contract.sparse import SparseKernels
from mxpeak.kernels.torch import blas, cast, generate, panel, rows, triangle
from mxpeak.kernels.torch.device import TYPES, Device
from mxpeak.kernels.torch.namespace import Namespace
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.entries import Entries

if TYPE_CHECKING:
    from mxpeak.kernels.host.backend import HostKernels

Tensor = Any

#: A line of the device's memory in bytes, and the distances at which rows of a matrix, or of an operand, would fall
#: into the same channels of memory or the same sets of a cache.
LINE, FAR, NEAR = 128, 4096, 1024


def leading_dimension(length: int, itemsize: int, avoid: int = FAR) -> int:
    """A row's length in whole lines, and no multiple of `avoid` bytes."""
    line = LINE // itemsize
    ld = -(-max(length, 1) // line) * line
    return ld + line if ld * itemsize % avoid == 0 else ld


class TorchKernels:
    """Libraries for products and solves on a device, kernels of our own for the rest.

    Three choices of equal results, of which a device may like either:

    trsm        solves with the diagonal block by the `library`, or by products with its `inverse`, in FP32 or as `tf32`
    gemm        products of 16-bit operands by the `library`, or by `triton`
    panel_on    where one rank has a whole panel: it is factored on the `device`, or on the `host`
    """

    name = "torch"

    def __init__(self, device: Device, host: HostKernels):
        self.device, self.host, self.threads = device, host, host.threads
        self.xp = Namespace(device.where)
        if not device.is_gpu:
            torch.set_num_threads(host.threads)
        self.trsm, self.panel_on = "library", "device"
        self.gemm = "triton" if torch.version.hip else "library"
        self._norms: NormKernels | None = None
        self._sparse: SparseKernels | None = None

    @property
    def norms(self) -> NormKernels:
        if self._norms is None:
            from mxpeak.kernels.torch.norms import TorchNorms

            self._norms = TorchNorms(self.device)
        return self._norms

    @property
    def sparse(self) -> SparseKernels:
        if self._sparse is None:
            from mxpeak.kernels.torch.sparse import TorchSparse

            self._sparse = TorchSparse(self.device, self.host.sparse)
        return self._sparse

    # --- the order of work

    @property
    def stopwatch(self) -> Device:
        return self.device

    def wait(self) -> None:
        self.device.wait()

    def side_stream(self) -> AbstractContextManager[None]:
        return self.device.side_stream()

    def join(self) -> None:
        self.device.join()

    # --- arrays

    def matrix(self, rows: int, columns: int, precision: str = "fp64") -> Tensor:
        dtype = TYPES[precision]
        return self.device.empty(rows, leading_dimension(columns, dtype.itemsize), dtype=dtype)[:, :columns]

    def vector(self, size: int, precision: str = "fp64") -> Tensor:
        return self.device.empty(size, dtype=TYPES[precision])

    def operand(self, size: int, precision: str) -> Tensor:
        return self.vector(size, precision).view(cast.OPERANDS[precision])

    def operand_size(self, rows: int, columns: int, precision: str, side: str) -> int:
        long, k = (rows, columns) if side == "left" else (columns, rows)
        return long * leading_dimension(k, TYPES[precision].itemsize, NEAR)

    def left_operand(self, vector: Tensor, rows: int, columns: int) -> Tensor:
        ld = leading_dimension(columns, vector.itemsize, NEAR)
        return vector[: rows * ld].view(rows, ld)[:, :columns]

    def right_operand(self, vector: Tensor, rows: int, columns: int) -> Tensor:
        return self.left_operand(vector, columns, rows).T

    def emulates(self, precision: str) -> bool:
        return precision not in ("fp64", "fp32") and not self.device.multiplies(precision)

    def zeros(self, size: int) -> Tensor:
        return self.device.zeros(size)

    def shaped(self, vector: Tensor, rows: int, columns: int) -> Tensor:
        return vector[: rows * columns].view(rows, columns)

    def panel(self, vector: Tensor, rows: int, columns: int) -> Tensor:
        ld = leading_dimension(rows, vector.itemsize)
        return vector[: ld * columns].view(columns, ld).T[:rows]

    def panel_size(self, rows: int, columns: int, precision: str = "fp64") -> int:
        return leading_dimension(rows, TYPES[precision].itemsize) * columns

    def indices(self, values: Sequence[int]) -> Tensor:
        return self._sent(values, torch.int64)

    def _sent(self, values: Sequence[float], dtype: torch.dtype) -> Tensor:
        """A few numbers on their way to the device."""
        here = torch.tensor(values, dtype=dtype, pin_memory=self.device.is_gpu)
        return here.to(self.device.where, non_blocking=True)

    def fetch(self, vector: Tensor) -> Callable[[], list[float]]:
        if not self.device.is_gpu:
            values = self.floats(vector)
            return lambda: values
        there = torch.empty(vector.shape, dtype=vector.dtype, pin_memory=True)
        there.copy_(vector, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record(torch.cuda.current_stream(self.device.where))

        def arrive() -> list[float]:
            arrived.synchronize()
            return self.floats(there)

        return arrive

    def assign(self, target: Tensor, values: Sequence[float] | float) -> None:
        if isinstance(values, Sequence):
            target.copy_(self._sent(values, target.dtype))
        else:
            target.fill_(values)

    def floats(self, vector: Tensor) -> list[float]:
        return [float(value) for value in vector.tolist()]

    def copy(self, source: Tensor, target: Tensor) -> None:
        cast.copy(self.device, source, target)

    # --- generation and rounding

    def generate(self, A: Tensor, rows: BlockCyclic, cols: BlockCyclic, entries: Entries, diagonal: Tensor) -> None:
        generate.generate(self.device, A, rows, cols, entries, diagonal)

    def generated_matvec(
        self, y: Tensor, rows: BlockCyclic, cols: BlockCyclic, entries: Entries, diagonal: Tensor, x: Tensor
    ) -> None:
        generate.generated_matvec(self.device, y, rows, cols, entries, diagonal, x)

    def generated_row_sums(
        self, sums: Tensor, squares: Tensor, rows: BlockCyclic, cols: BlockCyclic, entries: Entries, diagonal: Tensor
    ) -> None:
        generate.generated_row_sums(self.device, sums, squares, rows, cols, entries, diagonal)

    def signs(self, v: Tensor, cols: BlockCyclic, seed: int) -> None:
        generate.signs(self.device, v, cols, seed)

    def cast(self, source: Tensor, target: Tensor, precision: str) -> None:
        cast.cast(self.device, source, target, precision)

    # --- panel

    def factor_panel(self, work: Panel, exchange: Exchange | None) -> PanelOutcome:
        if exchange is not None or self.panel_on == "host":
            return panel.factor_on_host(self.device, self.host, work, exchange)
        panel.factor_here(work)
        return PanelOutcome(0.0, 0.0)

    def candidate(self, jb: int) -> Any:
        return self.host.candidate(jb)

    def better_candidate(self, mine: Any, theirs: Any) -> None:
        self.host.better_candidate(mine, theirs)

    # --- rows

    def permute_rows(self, A: Tensor, block: int, sources: Tensor, targets: Tensor, block_rows: Tensor) -> None:
        rows.permute_rows(A, block, sources, targets, block_rows)

    def gather_rows(self, A: Tensor, indices: Tensor, out: Tensor) -> None:
        rows.gather_rows(A, indices, out)

    def scatter_rows(self, source: Tensor, indices: Tensor, A: Tensor) -> None:
        rows.scatter_rows(source, indices, A)

    # --- matrix products and solves

    def factor_block(self, D: Tensor, singular: Tensor) -> None:
        blas.factor_block(self.device, D, singular)

    def solve_unit_lower(self, L: Tensor, B: Tensor) -> None:
        blas.solve_unit_lower(L, B, self.trsm)

    def solve_right_upper(self, B: Tensor, U: Tensor) -> None:
        blas.solve_right_upper(B, U, self.trsm)

    def subtract_product(self, C: Tensor, A: Tensor, B: Tensor) -> None:
        blas.subtract_product(self.device, C, A, B, self.gemm)

    def solve_upper(self, U: Tensor, x: Tensor, *, transposed: bool = False) -> None:
        triangle.solve_upper(U, x, transposed=transposed)

    def solve_lower(self, L: Tensor, x: Tensor, *, transposed: bool = False) -> None:
        triangle.solve_lower(L, x, transposed=transposed)

    def block_solver(self, T: Tensor, part: str) -> BlockSolver:
        return triangle.block_solver(T, part)

    def add_matvec(self, y: Tensor, A: Tensor, x: Tensor, *, transposed: bool = False) -> None:
        triangle.add_matvec(self.device, y, A, x, transposed=transposed)

    def add_triangle_matvec(
        self, y: Tensor, A: Tensor, x: Tensor, rows: BlockCyclic, cols: BlockCyclic, part: str, form: str = "plain"
    ) -> None:
        triangle.add_triangle_matvec(self.device, y, A, x, rows, cols, part, form)

    # --- maxima, sums and scaling

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

    def copied(self, x: Tensor) -> Tensor:
        return x.clone(memory_format=torch.contiguous_format)

    def add_scaled(self, y: Tensor, factor: float, x: Tensor) -> None:
        y.add_(x, alpha=factor)

    def multiply(self, y: Tensor, x: Tensor) -> None:
        y.mul_(x)

    def power(self, x: Tensor, exponent: float) -> None:
        x.pow_(exponent)

    def sum_squares(self, x: Tensor) -> float:
        return float(torch.dot(x, x))

    def max_abs(self, x: Tensor) -> float:
        return float(x.abs().amax()) if x.numel() else 0.0

    def sum_abs(self, x: Tensor) -> float:
        return float(x.abs().sum())

    # --- limits and facts

    def gemm_probe(self, m: int, n: int, k: int, precision: str = "fp64") -> Callable[[], None]:
        held = "fp64" if precision == "fp64" else "fp32"
        C = self.matrix(m, n, held)
        A, B = (
            place(self.operand(self.operand_size(*shape, precision, side), precision), *shape)
            for side, shape, place in (("left", (m, k), self.left_operand), ("right", (k, n), self.right_operand))
        )
        for target, shape in ((A, (m, k)), (B, (k, n))):
            # Random numbers: products of equal ones draw less power, and are faster than those of an LU.
            self.cast(torch.rand(shape, dtype=TYPES[held], device=self.device.where) - 0.5, target, precision)
        C.zero_()
        return lambda: self.subtract_product(C, A, B)

    def facts(self) -> dict[str, Any]:
        facts = {"kernels": self.name, "torch": str(torch.__version__)}
        if self.device.triton:
            from mxpeak.kernels.torch.triton.cast import VERSION

            facts["triton"] = VERSION
        if not self.device.is_gpu:
            return facts | {"blas": None}
        platform = {"hip": torch.version.hip} if torch.version.hip else {"cuda": torch.version.cuda}
        return facts | platform | {"blas": _library_version()}

    def device_facts(self) -> dict[str, Any]:
        if not self.device.is_gpu:
            return {"device": str(self.device.where)}
        chip = self.device.chip
        return {
            "device": str(self.device.where),
            "device_bus": self.device.bus,
            "device_name": chip.name,
            "device_architecture": getattr(chip, "gcnArchName", None) or f"sm_{chip.major}{chip.minor}",
            "device_multiprocessors": chip.multi_processor_count,
            "device_memory_bytes": chip.total_memory,
        }

    @property
    def transport(self) -> Any:
        from mxpeak.kernels.torch.messages import tensor_transport

        return tensor_transport(self.device)


def _library_version() -> str:
    """The BLAS that torch multiplies with."""
    if torch.version.hip is not None:
        return f"rocBLAS of ROCm {torch.version.hip}"
    for package in ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12"):
        try:
            return f"cuBLAS {metadata.version(package)}"
        except metadata.PackageNotFoundError:
            continue
    return f"cuBLAS of CUDA {torch.version.cuda}"
