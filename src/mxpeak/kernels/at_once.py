"""What backends share whose operations are done when they return: nothing in the background, nothing elsewhere."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import array_api_compat.numpy

from mxpeak.kernels.contract import Matrix, Vector
from mxpeak.kernels.contract.lu import BlockSolver
from mxpeak.spans import HOST


class AtOnce:
    """The host's side of `kernels.contract.Kernels`: no order of work to keep, operands of products by rows."""

    stopwatch = HOST
    xp = array_api_compat.numpy
    transport = None
    shaped: Any
    solve_lower: Any
    solve_upper: Any

    def wait(self) -> None:
        """See `kernels.contract`."""

    def side_stream(self) -> nullcontext[None]:
        """See `kernels.contract`."""
        return nullcontext()

    def join(self) -> None:
        """See `kernels.contract`."""

    def operand_size(self, rows: int, columns: int, precision: str, side: str) -> int:
        """See `kernels.contract`."""
        return rows * columns

    def left_operand(self, vector: Vector, rows: int, columns: int) -> Matrix:
        """See `kernels.contract`."""
        return self.shaped(vector, rows, columns)

    def right_operand(self, vector: Vector, rows: int, columns: int) -> Matrix:
        """See `kernels.contract`."""
        return self.shaped(vector, rows, columns)

    def block_solver(self, T: Matrix, part: str) -> BlockSolver:
        """See `kernels.contract`."""
        return partial(self.solve_lower if part == "lower" else self.solve_upper, T)

    def device_facts(self) -> dict[str, Any]:
        """See `kernels.contract`."""
        return {}
