"""Define the common part of the host backends, whose operations have finished when they return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from mxpeak.kernels import arrays
from mxpeak.kernels.contract import Matrix, Vector
from mxpeak.kernels.contract.lu import EmulatedProducts, Fp64Emulation, Panel, digest
from mxpeak.spans import HOST


class QuietNumPy:
    """NumPy as an array namespace without floating-point warnings: operations return inf and NaN silently."""

    def __getattr__(self, name: str) -> Any:
        function = getattr(arrays.xp, name)
        if isinstance(function, type) or not callable(function):
            return function

        def quiet(*args: Any, **options: Any) -> Any:
            with np.errstate(all="ignore"):
                return function(*args, **options)

        setattr(self, name, quiet)
        return quiet


class Synchronous:
    """The methods of `kernels.contract.Kernels` that are trivial on the host. Operands of products are row-major."""

    background = False
    stopwatch = HOST
    xp = QuietNumPy()
    transport = None
    buffer: Any
    emulates: Any
    subtract_emulated_product: Any
    #: The method that emulates products of fp64 matrices; None selects native products.
    emulation: EmulatedProducts | None = None

    def wait(self) -> None:
        pass

    def side_stream(self, begun: Any = None) -> nullcontext[None]:
        return nullcontext()

    def main_stream(self) -> nullcontext[None]:
        return nullcontext()

    def join(self) -> None:
        pass

    def rehearse(self, use: Callable[[], None], cores: Sequence[int]) -> None:
        pass

    def device_facts(self) -> dict[str, Any]:
        return {}

    def fp64_emulation(self) -> Fp64Emulation | None:
        return None if self.emulation is None else self.emulation.record()

    def bring_panel(self, panel: Panel) -> Panel:
        return panel

    def panel_library(self, ranks: int) -> str | None:
        return None

    def indices(self, values: Sequence[int]) -> Vector:
        return np.array(values, dtype=np.int64)

    def digest(self, A: Matrix) -> str:
        bits = A.view(f"i{A.dtype.itemsize}")
        return digest(bits.sum(axis=axis, dtype=np.int64).tobytes() for axis in (1, 0))

    def fetch(self, vector: Vector) -> Callable[[], list[float]]:
        values: list[float] = vector.tolist()
        return lambda: values

    def host_array(self, A: Matrix) -> Any:
        return A

    def host_numbers(self, count: int) -> Vector:
        return np.zeros(count)

    def operand_buffer(self, rows: int, columns: int, precision: str, side: str) -> Vector:
        return self.buffer(rows * columns, "fp32" if self.emulates(precision) else precision)

    def operand_size(self, rows: int, columns: int, precision: str, side: str) -> int:
        return rows * columns

    def operand_matrix(self, buffer: Vector, rows: int, columns: int, precision: str, side: str) -> Matrix:
        return buffer[: rows * columns].reshape((rows, columns))
