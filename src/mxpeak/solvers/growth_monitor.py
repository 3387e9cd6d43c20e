"""Record the largest entry of each diagonal block of an LU, and locate the first entry that is not finite.

Suppose that an entry of block (i, j) is not finite. After step min(i, j), all later entries of row i or column j are
then not finite, and the error reaches a diagonal block. Therefore, only the diagonal blocks are examined during the
factorization: jb² entries per step, on the rank that factors the block. The block of origin is located after the
factorization, only if necessary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from mxpeak.comm.collectives import allreduce_scalars
from mxpeak.distributed.dense import DistMatrix
from mxpeak.kernels.contract import Kernels, Matrix
from mxpeak.layout.lu_schedule import LuStep, lu_steps


@dataclass(frozen=True, slots=True)
class GrowthReport:
    """The largest entry and the first error of an LU; blocks are numbered from 0.

    largest     the largest |entry| of the finite diagonal blocks
    block       the number of the block with this entry
    not_finite  the block (i, j) in which an entry was first not finite, if known; None if all entries are finite
    step        the step that detected the error
    """

    largest: float
    block: int
    not_finite: tuple[int, int] | None = None
    step: int = 0


class DiagonalBlocks:
    """Records the largest |entry| of each diagonal block on the rank that factors it, without waiting for a device."""

    def __init__(self, A: DistMatrix, kernels: Kernels):
        self._A, self._kernels = A, kernels
        self._steps = lu_steps(A.rows.n, A.nb, A.grid.P, A.grid.Q)
        self._largest = kernels.xp.zeros(len(self._steps))

    def record(self, k: int, D: Matrix) -> None:
        """Record the largest |entry| of block k after its factorization; D contains L and U."""
        xp = self._kernels.xp
        self._largest[k : k + 1] = xp.max(xp.abs(D))

    def values(self) -> list[float]:
        """Return the values that this rank has recorded, by block."""
        return list(self._largest.tolist())

    def restore(self, values: Sequence[float]) -> None:
        """Restore values that `values` has returned, for example from a checkpoint."""
        xp = self._kernels.xp
        self._largest[:] = xp.asarray(values, dtype=xp.float64)

    def report(self, *, with_l: bool) -> GrowthReport:
        """Return the report after the factorization. Collective.

        with_l   whether L is stored below the diagonal of A
        """
        largest = allreduce_scalars(self._A.grid.all, list(self._largest.tolist()), "max", self._kernels.xp)
        values = [value if isfinite(value) else -1.0 for value in largest]
        block = values.index(max(values)) if values else 0
        bad = next((k for k, value in enumerate(largest) if not isfinite(value)), None)
        if bad is None:
            return GrowthReport(max(values, default=0.0), block)
        return GrowthReport(max(0.0, values[block]), block, self._origin(bad, with_l), bad + 1)

    def _origin(self, k: int, with_l: bool) -> tuple[int, int]:
        """Return the first block that is not finite, above block (k, k) or, if L is stored, to the left of it."""
        here, before = self._steps[k], self._steps[:k]
        above = next((b.k for b in before if not self._finite(b, here)), k)
        to_left = next((b.k for b in before if with_l and not self._finite(here, b)), k)
        above, to_left = (
            -int(x)
            for x in allreduce_scalars(self._A.grid.all, [-float(above), -float(to_left)], "max", self._kernels.xp)
        )
        return (above, k) if above <= to_left else (k, to_left)

    def _finite(self, row: LuStep, column: LuStep) -> bool:
        """Return whether this rank's part of the block in block row `row` and block column `column` is finite."""
        block = self._A[row.j0 : row.j1, column.j0 : column.j1]
        xp = self._kernels.xp
        return 0 in block.shape or isfinite(float(xp.max(xp.abs(block))))
