"""Geometric multigrid for the 27-point matrix of the benchmarks, and a multigrid cycle as a preconditioner."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mxpeak.distributed.spaces import zeros
from mxpeak.distributed.sparse import Level, SparseMatrix
from mxpeak.distributed.stencil import coarse_points
from mxpeak.kernels.contract.sparse import Order, Vector
from mxpeak.layout.stencil import Box
from mxpeak.solvers.multigrid import Level as AnyLevel
from mxpeak.solvers.multigrid import cycle
from mxpeak.solvers.precond.matrix_builder import MatrixBuilder


class Multigrid:
    """A preconditioner that applies one multigrid cycle from zero.

    `order` is the order of its sweeps if it differs from the order of the matrix.
    """

    def __init__(self, top: AnyLevel, levels: int, bytes: int, order: Order | None = None):
        self._top, self.levels, self.bytes, self.order = top, levels, bytes, order

    def __call__(self, r: Vector) -> Vector:
        """Return x ≈ A^-1 r, the result of one cycle from zero. Collective."""
        return cycle(self._top, r)


def stencil_multigrid(
    builder: MatrixBuilder,
    A: SparseMatrix,
    order: Order,
    box: Box,
    stencil: Sequence[float],
    *,
    symmetric: bool = False,
) -> Multigrid:
    """Return the multigrid cycle of the benchmarks down to the coarsest box, with the same stencil on each level.

    The cycle of HPG-MxP sweeps forward. If `symmetric`, it sweeps forward and backward as in HPCG.
    """
    kernels, vectors = builder.kernels, A.A.vectors

    def new_level(A: SparseMatrix) -> Level:
        return Level(A, A.halo_vector(), zeros(kernels, A.n, vectors) if symmetric else None)

    top = level = new_level(A)
    total, count = 0, 1
    while not any(side % 2 for side in box.shape):
        rows, coarse_order = builder.ordered(kernels.on_host(kernels.stencil_rows(box.coarser(), stencil)))
        coarse = builder.store(rows, coarse_order, A.A.values, vectors)
        level.points = builder.points(level.A.n, partial(coarse_points, order, coarse_order, box))
        level.r = zeros(kernels, coarse.n, vectors)
        level.coarser = new_level(coarse)
        level, order, box = level.coarser, coarse_order, box.coarser()
        total, count = total + coarse.A.bytes, count + 1
    return Multigrid(top, count, total)
