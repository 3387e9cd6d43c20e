"""An LU of columns whose products C -= L U are the processor's own, of 16-bit numbers."""

from __future__ import annotations

from functools import cache
from threading import Lock
from typing import Any

import numpy as np

from mxpeak.kernels.host.engine import blas, lapack, matrix_engines
from mxpeak.kernels.host.engine.matrix_engines import MatrixEngine
from mxpeak.kernels.host.engine.team import Team
from mxpeak.kernels.host.lu import operands
from mxpeak.kernels.host.lu.operands import LeftOperand, RightOperand, aligned

Array = np.ndarray[Any, np.dtype[Any]]

#: Columns of a panel of a matrix from this order on, since a product reads and writes C once for them all; below it as
#: many as where products are emulated.  With 128, 192, 320 and 384 an LU at n = 8000 took 4 to 9 % longer on a
#: Zen 4, before its products were 5 % faster.
WIDE_NB, WIDE_FROM = 256, 2048


class UnitLU:
    """One LU of order n in fp32, its products with operands rounded to a unit's format; on as many threads as BLAS has.

    They are threads of our own, for BLAS's go on spinning after each call: with these beside, products took twice as
    long.  So it has one meanwhile, which panels are quicker with, and solves are dealt out by columns.  A unit takes C
    by rows.  L, U and C are column-major, so it is C^T -= U^T L^T.
    """

    def __init__(self, unit: MatrixEngine, n: int):
        self.NB = WIDE_NB if n >= WIDE_FROM else lapack.NB
        self._unit, self._fp16 = unit, unit.precision == "fp16"
        self._team, self._busy = _team(blas.own_threads())
        self._tiles = np.empty((self._team.threads, operands.TILES), np.float32)
        pairs = np.dtype(np.int32)
        self._left = aligned(operands.size(n, self.NB, "left") + operands.behind(self.NB), pairs)
        self._right = aligned(operands.size(self.NB, n, "right"), pairs)

    def factor(self, A: Array, pivots: Array) -> int:
        """P A = L U in place, as `lapack.getrf`."""
        with self._busy, blas.one_thread():
            return lapack.getrf_blocked(A, pivots, self.NB, self._subtract, self._solve)

    def _solve(self, L: Array, U: Array) -> None:
        """U = L^-1 U, a thread some columns."""
        threads, columns = self._team.threads, U.shape[1]

        def part(tid: int) -> None:
            lapack.solve_unit_lower(L, U[:, columns * tid // threads : columns * (tid + 1) // threads])

        self._team.run(part)

    def _subtract(self, C: Array, L: Array, U: Array) -> None:
        """C -= L U."""
        team, unit, k = self._team, self._unit, U.shape[0]
        A, B = LeftOperand.over(self._left, U.shape[1], k, unit), RightOperand.over(self._right, k, len(L), unit)
        team.run(operands.round_left, team.threads, U.T, A.pairs, self._fp16)
        team.run(operands.round_right, team.threads, L.T, B.strips, self._fp16)
        how, low = (unit.code, unit.rows), (A.pairs, B.strips, B.first)
        team.run(operands.subtract_product, team.threads, *how, C.T, *low, self._tiles, matrix_engines.TILE_CONFIG)


@cache
def _team(threads: int) -> tuple[Team, Lock]:
    """The process's threads for this, and who uses them: a team does one thing at a time."""
    for entry in operands.BY_UNITS:
        entry.compiled()  # once, not by every thread
    return Team(threads), Lock()
