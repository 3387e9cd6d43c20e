"""The 27-point problem over the ranks, with the same stencil on half as many points per side on coarser levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalar
from mxpeak.distributed.halo import Exchange, Neighbour, exchange, localised
from mxpeak.distributed.rows import Block
from mxpeak.distributed.spaces import zeros
from mxpeak.distributed.sparse import Level, SparseMatrix
from mxpeak.kernels.contract.sparse import Indices, Matrix, Order, Rows, SparseKernels, Vector
from mxpeak.layout.stencil import Box
from mxpeak.spans import Spans

#: The diagonal entry, the other entries, and the difference of the nonsymmetric ones below and above in z from -1.
CENTER, OFF_DIAGONAL, SKEW = 26.0, -1.0, 0.5


def weights(*, nonsymmetric: bool = False) -> list[float]:
    """Return the stencil, in which entry (dx+1) + 3(dy+1) + 9(dz+1) belongs to the neighbor at (dx, dy, dz)."""
    stencil = [OFF_DIAGONAL] * 27
    stencil[13] = CENTER
    if nonsymmetric:
        stencil[4], stencil[22] = OFF_DIAGONAL - SKEW, OFF_DIAGONAL + SKEW
    return stencil


#: Formats from the narrowest to the widest; bf16 before fp16, because it widens by a shift.
WIDER = ("fp8", "bf16", "fp16", "fp32", "fp64")


@dataclass(frozen=True, slots=True)
class Form:
    """The storage of a hierarchy.

    values       the format of each level's values; a wider one if the error of a value would exceed `tolerance`
    vectors      the format of the vectors if values are narrower than fp64; otherwise vectors are fp64
    symmetric    whether sweeps go forward and backward
    mixed        whether the finest matrix is also stored for fp64 vectors
    """

    values: tuple[str, ...]
    vectors: str
    storage: str
    symmetric: bool = False
    mixed: bool = False
    tolerance: float = 0.0

    def vectors_of(self, values: str) -> str:
        """Return the format of vectors for a format of values."""
        return "fp64" if values == "fp64" else self.vectors


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One form of the problem: the finest level, and the finest matrix for fp64 vectors."""

    top: Level
    outer: SparseMatrix

    def clear(self) -> None:
        """Set the vectors of all levels to 0, because those of an earlier solve may not be finite."""
        level: Level | None = self.top
        while level is not None:
            level.x[:] = 0.0
            level = level.coarser


@dataclass(slots=True)
class StencilProblem:
    """The problem in all its forms, with b = A·1, and the time of its set-up.

    generate_s   seconds to generate compressed rows, as a user would pass them
    optimize_s   seconds to order and store them
    colours      the number of row groups of each level, or None if sweeps update single rows
    """

    hierarchies: list[Hierarchy]
    b: Vector
    generate_s: float
    optimize_s: float
    colours: list[int | None]
    setup_bytes: int

    def described(self, box: Box, k: int) -> list[dict[str, Any]]:
        """Return a section of the result per level of a hierarchy, with sizes of all ranks and bytes of this one."""
        boxes = box.levels(len(self.colours))
        return [
            {
                "nx": level_box.nx,
                "ny": level_box.ny,
                "nz": level_box.nz,
                "rows": level_box.global_rows,
                "nnz": level_box.global_nnz,
                "colours": colours,
                "value_precision": level.A.A.values,
                "vector_precision": level.A.A.vectors,
                "storage": level.A.A.storage,
                "rows_at_a_time": level.A.A.rows_at_a_time,
                "bytes": level.A.A.bytes,
                "index_bytes": level.A.A.index_bytes,
            }
            for level_box, colours, level in zip(boxes, self.colours, self.levels(k))
        ]

    def levels(self, k: int) -> list[Level]:
        """Return all levels of a hierarchy, the finest first."""
        levels = [self.hierarchies[k].top]
        while (coarser := levels[-1].coarser) is not None:
            levels.append(coarser)
        return levels


def make_stencil(
    kernels: SparseKernels,
    comm: Communicator,
    boxes: Sequence[Box],
    forms: Sequence[Form],
    order: str,
    stencil: Sequence[float],
    spans: Spans,
) -> StencilProblem:
    """Build the levels on `boxes`, the finest first, in every form.  Collective."""
    made: list[list[Level]] = [[] for _ in forms]
    outers: list[SparseMatrix | None] = [None for _ in forms]
    generate_s = optimize_s = 0.0
    orders: list[Order] = []
    b, setup_bytes = None, 0
    clock = kernels.stopwatch
    for depth, box in enumerate(boxes):
        begin = clock.mark()
        rows = kernels.stencil_rows(box, stencil)
        generated = clock.mark()
        orders.append(kernels.order(rows, order))
        if b is None:
            b, setup_bytes = kernels.row_sums(rows, orders[0]), len(rows.indices) * 12 + box.rows * 8
        for k, form in enumerate(forms):
            values, exact = value_format(kernels, comm, rows, form.values[depth], form.tolerance)
            same = next((other[depth].A.A for other in made[:k] if other[depth].A.A.storage == form.storage), None)
            level = _level(kernels, comm, box, rows, orders[depth], form, values, same, spans)
            if depth:
                _join(kernels, made[k][-1], level, orders, boxes)
            elif form.mixed:
                values = values if exact else "fp64"  # residuals use the exact matrix
                stored = kernels.store(rows, orders[0], values, "fp64", form.storage, like=level.A.A if exact else same)
                outers[k] = SparseMatrix(kernels, stored, _exchange(kernels, comm, box, orders[0], "fp64"), spans)
            made[k].append(level)
        generate_s += clock.seconds(begin, generated)
        optimize_s += clock.seconds(generated, clock.mark())
    hierarchies = [Hierarchy(levels[0], outer or levels[0].A) for levels, outer in zip(made, outers)]
    return StencilProblem(hierarchies, b, generate_s, optimize_s, [one.colours for one in orders], setup_bytes)


def _level(
    kernels: SparseKernels,
    comm: Communicator,
    box: Box,
    rows: Rows,
    order: Order,
    form: Form,
    values: str,
    same: Matrix | None,
    spans: Spans,
) -> Level:
    vectors = form.vectors_of(values)
    stored = kernels.store(rows, order, values, vectors, form.storage, like=same)
    A = SparseMatrix(kernels, stored, _exchange(kernels, comm, box, order, vectors), spans)
    keep = zeros(kernels, box.rows, vectors) if form.symmetric else None
    return Level(A, A.halo_vector(), keep)


def value_format(
    kernels: SparseKernels, comm: Communicator, rows: Rows, requested: str, tolerance: float
) -> tuple[str, bool]:
    """Return the first format from `requested` on that meets the tolerance, and whether it is exact.  Collective."""
    for name in WIDER[WIDER.index(requested) : -1]:
        error = _rounding(kernels, comm, rows, name)
        if error <= tolerance:
            return name, error == 0.0
    return "fp64", True


def _rounding(kernels: SparseKernels, comm: Communicator, rows: Rows, precision: str) -> float:
    """Return the largest relative error of a value in a format.  Collective."""
    return allreduce_scalar(comm, kernels.rounding(rows, precision), "max", kernels.xp)


def _join(kernels: SparseKernels, fine: Level, coarse: Level, orders: Sequence[Order], boxes: Sequence[Box]) -> None:
    """Make `coarse` the level below `fine`."""
    depth = len(orders) - 1
    fine.coarser = coarse
    fine.points = kernels.xp.asarray(coarse_points(orders[depth - 1], orders[depth], boxes[depth - 1]))
    fine.r = zeros(kernels, boxes[depth].rows, coarse.A.A.vectors)
    A, x, keep = fine.A.A, fine.x, fine.keep  # all vectors are zero: this call sets up the tables of the points
    kernels.residual_at(A, fine.A.own(x), x, fine.points, fine.r, swept=keep is None, keep=keep)


def coarse_points(order: Order, coarse: Order, box: Box) -> Indices:
    """Return the fine row (2x, 2y, 2z), in the fine order, of each coarse point in the coarse order."""
    half, point = box.coarser(), coarse.new_to_old
    x, y, z = point % half.nx, point // half.nx % half.ny, point // (half.nx * half.ny)
    return order.old_to_new[(2 * z * box.ny + 2 * y) * box.nx + 2 * x]


def _exchange(kernels: SparseKernels, comm: Communicator, box: Box, order: Order, precision: str) -> Exchange:
    neighbours, rows = [], list[int]()
    for part in box.neighbours():
        points = _points(box, part.first, part.shape)
        rows += points
        neighbours.append(Neighbour(part.rank, len(points), part.recv_offset, part.count))
    sent = order.old_to_new[kernels.xp.asarray(rows, dtype=kernels.xp.int64)]
    return Exchange(kernels, comm, neighbours, sent, precision)


def _points(box: Box, first: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Return the rows of a part of a box, x fastest."""
    ranges = [range(at, at + size) for at, size in zip(first, shape)]
    return [(z * box.ny + y) * box.nx + x for z, y, x in product(*reversed(ranges))]


def make_general(
    kernels: SparseKernels, comm: Communicator, block: Block, forms: Sequence[Form], order: str, spans: Spans
) -> StencilProblem:
    """Build a matrix in every form, as hierarchies of one level whose cycle is one sweep from zero.  Collective."""
    clock = kernels.stopwatch
    begin = clock.mark()
    rows, partners = localised(kernels, comm, block)
    generated = clock.mark()
    ordered = kernels.order(rows, order)
    hierarchies: list[Hierarchy] = []
    for form in forms:
        values, exact = value_format(kernels, comm, rows, form.values[0], form.tolerance)
        vectors = form.vectors_of(values)
        same = next((other.top.A.A for other in hierarchies if other.top.A.A.storage == form.storage), None)
        stored = kernels.store(rows, ordered, values, vectors, form.storage, like=same)
        top = outer = SparseMatrix(kernels, stored, exchange(kernels, comm, partners, ordered, vectors), spans)
        if form.mixed:  # residuals use the exact matrix
            like = stored if exact else same
            stored = kernels.store(rows, ordered, values if exact else "fp64", "fp64", form.storage, like=like)
            outer = SparseMatrix(kernels, stored, exchange(kernels, comm, partners, ordered, "fp64"), spans)
        hierarchies.append(Hierarchy(Level(top, top.halo_vector()), outer))
    b, setup_bytes = kernels.row_sums(rows, ordered), int(rows.indptr[-1]) * 12 + rows.n * 8
    generate_s, optimize_s = clock.seconds(begin, generated), clock.seconds(generated, clock.mark())
    return StencilProblem(hierarchies, b, generate_s, optimize_s, [ordered.colours], setup_bytes)
