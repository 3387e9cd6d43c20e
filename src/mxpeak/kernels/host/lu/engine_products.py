"""Factor a column-major matrix by an LU whose products C -= L U use the processor's 16-bit matrix instructions."""

from __future__ import annotations

from functools import cache
from threading import Lock
from typing import Any

import numpy as np

from mxpeak.kernels.host.engine import blas, lapack, matrix_engines
from mxpeak.kernels.host.engine.matrix_engines import MatrixEngine
from mxpeak.kernels.host.engine.team import Team
from mxpeak.kernels.host.lu import operands
from mxpeak.kernels.host.lu.operands import EngineTiles, LeftOperand, RightOperand, aligned

Array = np.ndarray[Any, np.dtype[Any]]

#: Columns of a panel for matrices of order WIDE_FROM or more, because wide panels reduce the number of passes over C.
#: Smaller matrices use the panel width of emulated products. With 128, 192, 320 and 384 columns, an LU at n = 8000
#: took 4 to 9 % longer on a Zen 4. At the time of this measurement, products were 5 % slower.
WIDE_NB, WIDE_FROM = 256, 2048


class EngineLU:
    """An fp32 LU of order n whose products round their operands to the matrix engine's format.

    The LU uses as many threads as BLAS, but these are mxpeak's own threads. BLAS's threads spin after each call, and
    products took twice as long next to spinning threads. BLAS is limited to one thread during the LU, which also makes
    panels faster, and each thread solves for some columns. An engine needs a row-major C. L, U and C are column-major,
    so the engine computes C^T -= U^T L^T.
    """

    def __init__(self, engine: MatrixEngine, n: int):
        self.NB = WIDE_NB if n >= WIDE_FROM else lapack.NB
        self._engine, self._fp16 = engine, engine.precision == "fp16"
        self._team, self._busy = _team(blas.own_threads())
        self._tiles = np.empty((self._team.threads, operands.TILES), np.float32)
        pairs = np.dtype(np.int32)
        self._left = aligned(operands.size(n, self.NB, "left") + operands.padding(self.NB), pairs)
        self._right = aligned(operands.size(self.NB, n, "right"), pairs)

    def factor(self, A: Array, pivots: Array) -> int:
        """Factor P A = L U in place, and return the same result as `lapack.getrf`."""
        with self._busy, blas.one_thread():
            return lapack.getrf_blocked(A, pivots, self.NB, self._subtract, self._solve)

    def factor_symmetric(self, A: Array, *, lower: bool) -> int:
        """Compute the Cholesky factor of a triangle in place, and return the same result as `lapack.potrf`."""
        with self._busy, blas.one_thread():
            return lapack.potrf_blocked(A, self.NB, self._subtract, lower=lower)

    def _solve(self, L: Array, U: Array) -> None:
        """Compute U = L^-1 U in place. Each thread solves for some columns."""
        threads, columns = self._team.threads, U.shape[1]

        def part(tid: int) -> None:
            lapack.solve_unit_lower(L, U[:, columns * tid // threads : columns * (tid + 1) // threads])

        self._team.run(part)

    def _subtract(self, C: Array, L: Array, U: Array) -> None:
        """Round L and U, and compute C -= L U by the matrix engine."""
        team, engine, k = self._team, self._engine, U.shape[0]
        A, B = LeftOperand.over(self._left, U.shape[1], k, engine), RightOperand.over(self._right, k, len(L), engine)
        team.run(operands.round_left, team.threads, U.T, A.pairs, self._fp16)
        team.run(operands.round_right, team.threads, L.T, B.strips, self._fp16)
        tiles = EngineTiles(engine.code, engine.rows, self._tiles, matrix_engines.TILE_CONFIG)
        team.run(operands.subtract_product, team.threads, tiles, C.T, A.pairs, B.strips, B.first)


@cache
def _team(threads: int) -> tuple[Team, Lock]:
    """Return the threads that all LUs of this process share, and their lock.

    The lock is needed because a team runs one function at a time. The function also compiles the engine's entry
    points.
    """
    for entry in operands.BY_ENGINES:
        entry.compiled()  # once, before the threads start
    return Team(threads), Lock()
