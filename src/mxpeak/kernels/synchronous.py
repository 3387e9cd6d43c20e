"""What the backends on the host share: an operation has ended when it returns, and nothing runs on another device."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import array_api_compat.numpy

from mxpeak.kernels.contract import Matrix, Vector
from mxpeak.kernels.contract.lu import BlockSolver
from mxpeak.spans import HOST


class Synchronous:
    """The parts of `kernels.contract.Kernels` that are trivial on the host; operands of products lie by rows."""

    stopwatch = HOST
    xp = array_api_compat.numpy
    transport = None
    shaped: Any
    solve_lower: Any
    solve_upper: Any

    def wait(self) -> None:
        pass

    def side_stream(self) -> nullcontext[None]:
        return nullcontext()

    def join(self) -> None:
        pass

    def operand_size(self, rows: int, columns: int, precision: str, side: str) -> int:
        return rows * columns

    def left_operand(self, vector: Vector, rows: int, columns: int) -> Matrix:
        return self.shaped(vector, rows, columns)

    def right_operand(self, vector: Vector, rows: int, columns: int) -> Matrix:
        return self.shaped(vector, rows, columns)

    def block_solver(self, T: Matrix, part: str) -> BlockSolver:
        return partial(self.solve_lower if part == "lower" else self.solve_upper, T)

    def device_facts(self) -> dict[str, Any]:
        return {}
