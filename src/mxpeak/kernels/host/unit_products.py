"""C -= L U in an LU of columns, by the processor's own products of 16-bit numbers."""

from __future__ import annotations

from functools import cache
from threading import Lock
from typing import Any

import numpy as np

from mxpeak.kernels.host import blas, lapack, operands, units
from mxpeak.kernels.host.operands import LeftOperand, RightOperand, aligned
from mxpeak.kernels.host.team import Team
from mxpeak.kernels.host.units import Unit

Array = np.ndarray[Any, np.dtype[Any]]

#: Columns of a panel of a matrix from this order on, since a product reads and writes C once for them all; below it as
#: many as where products are emulated.  Estimated, not measured: at n = 8000 such panels take 1/50 of the flops.
WIDE_NB, WIDE_FROM = 256, 2048


class UnitProducts:
    """The products of one LU of order n, in fp32 with operands rounded to a unit's format; on all of BLAS's threads.

    A unit takes C by rows.  L, U and C are column-major, so it is C^T -= U^T L^T.
    """

    def __init__(self, unit: Unit, n: int):
        self.NB = WIDE_NB if n >= WIDE_FROM else lapack.NB
        self._unit, self._fp16 = unit, unit.precision == "fp16"
        self._team, self._busy = _team(blas.blas_facts()["threads"] or 1)
        self._tiles = np.empty((self._team.threads, operands.TILES), np.float32)
        pairs = np.dtype(np.int32)
        self._left = aligned(operands.size(n, self.NB, "left") + operands.behind(self.NB), pairs)
        self._right = aligned(operands.size(self.NB, n, "right"), pairs)

    def __call__(self, C: Array, L: Array, U: Array) -> None:
        """C -= L U."""
        team, unit, k = self._team, self._unit, U.shape[0]
        A, B = LeftOperand.over(self._left, U.shape[1], k, unit), RightOperand.over(self._right, k, len(L), unit)
        with self._busy:
            team.run(operands.round_left, team.threads, U.T, A.pairs, self._fp16)
            team.run(operands.round_right, team.threads, L.T, B.strips, self._fp16)
            how, low = (unit.code, unit.rows), (A.pairs, B.strips, B.first)
            team.run(operands.subtract_product, team.threads, *how, C.T, *low, self._tiles, units.TILE_CONFIG)


@cache
def _team(threads: int) -> tuple[Team, Lock]:
    """The process's threads for this, and who uses them: a team does one thing at a time."""
    for entry in operands.BY_UNITS:
        entry.made()  # once, not by every thread
    return Team(threads), Lock()
