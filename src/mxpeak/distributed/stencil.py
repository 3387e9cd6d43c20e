"""The 27-point problem over the ranks, with its coarser levels made by the same stencil on half as many points."""

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

#: The entry on the diagonal, those beside it, and how far the non-symmetric ones below and above in z are from -1.
CENTRE, BESIDE, SKEW = 26.0, -1.0, 0.5


def weights(*, nonsymmetric: bool = False) -> list[float]:
    """The stencil: entry (dx+1) + 3(dy+1) + 9(dz+1) is that of the neighbour at (dx, dy, dz)."""
    stencil = [BESIDE] * 27
    stencil[13] = CENTRE
    if nonsymmetric:
        stencil[4], stencil[22] = BESIDE - SKEW, BESIDE + SKEW
    return stencil


#: Formats from the narrowest to the widest; bf16 before fp16, since it widens by a shift.
WIDER = ("fp8", "bf16", "fp16", "fp32", "fp64")


@dataclass(frozen=True, slots=True)
class Form:
    """How a hierarchy is stored.

    values       the format of each level's values; a wider one where a value would be off by more than `tolerance`
    vectors      of the vectors where values are narrower than fp64; else they are fp64
    symmetric    whether sweeps go forward and backward
    mixed        whether the finest matrix is needed for fp64 vectors, too
    """

    values: tuple[str, ...]
    vectors: str
    storage: str
    symmetric: bool = False
    mixed: bool = False
    tolerance: float = 0.0

    def vectors_of(self, values: str) -> str:
        """The format of vectors beside values of a format."""
        return "fp64" if values == "fp64" else self.vectors


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One form of the problem: the finest level, and the finest matrix for fp64 vectors."""

    top: Level
    outer: SparseMatrix

    def clear(self) -> None:
        """All that an earlier solve left, which may not be finite: 0."""
        level: Level | None = self.top
        while level is not None:
            level.x[:] = 0.0
            level = level.coarser


@dataclass(slots=True)
class StencilProblem:
    """The problem in all its forms, with b = A·1, and what making it took.

    generate_s   seconds for rows as a user would hand them over
    optimize_s   seconds for orders and storage
    colours      groups of each level, None where rows are taken one after the other
    """

    hierarchies: list[Hierarchy]
    b: Vector
    generate_s: float
    optimize_s: float
    colours: list[int | None]
    setup_bytes: int

    def described(self, box: Box, k: int) -> list[dict[str, Any]]:
        """Each level of a hierarchy as results tell it; sizes over all ranks, bytes of this one."""
        boxes = box.levels(len(self.colours))
        return [
            {
                "nx": one.nx,
                "ny": one.ny,
                "nz": one.nz,
                "rows": one.global_rows,
                "nnz": one.global_nnz,
                "colours": colours,
                "value_precision": level.A.A.values,
                "vector_precision": level.A.A.vectors,
                "storage": level.A.A.storage,
                "rows_at_a_time": level.A.A.rows_at_a_time,
                "bytes": level.A.A.bytes,
                "index_bytes": level.A.A.index_bytes,
            }
            for one, colours, level in zip(boxes, self.colours, self.levels(k))
        ]

    def levels(self, k: int) -> list[Level]:
        """All levels of a hierarchy, the finest first."""
        found, level = [], self.hierarchies[k].top
        while level.coarser is not None:
            found.append(level)
            level = level.coarser
        return [*found, level]


def make_stencil(
    kernels: SparseKernels,
    comm: Communicator,
    boxes: Sequence[Box],
    forms: Sequence[Form],
    order: str,
    stencil: Sequence[float],
    spans: Spans,
) -> StencilProblem:
    """The levels on `boxes`, the finest first, in every form.  Collective over comm."""
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
                values = values if exact else "fp64"  # residuals are those of the matrix itself
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
    kernels: SparseKernels, comm: Communicator, rows: Rows, asked: str, tolerance: float
) -> tuple[str, bool]:
    """The format asked for, or the next wider one in which every value is right to the tolerance; whether it is exact.

    Collective.
    """
    for name in WIDER[WIDER.index(asked) : -1]:
        error = _rounding(kernels, comm, rows, name)
        if error <= tolerance:
            return name, error == 0.0
    return "fp64", True


def _rounding(kernels: SparseKernels, comm: Communicator, rows: Rows, precision: str) -> float:
    """The largest relative error of a value in this format.  Collective."""
    return allreduce_scalar(comm, kernels.rounding(rows, precision), "max", kernels.xp)


def _join(kernels: SparseKernels, fine: Level, coarse: Level, orders: Sequence[Order], boxes: Sequence[Box]) -> None:
    """Let `coarse` be the level below the one last made."""
    depth = len(orders) - 1
    fine.coarser = coarse
    fine.points = kernels.xp.asarray(coarse_points(orders[depth - 1], orders[depth], boxes[depth - 1]))
    fine.r = zeros(kernels, boxes[depth].rows, coarse.A.A.vectors)
    A, x, keep = fine.A.A, fine.x, fine.keep  # zeros: what is found out about the points is found now, in the set-up
    kernels.residual_at(A, fine.A.own(x), x, fine.points, fine.r, swept=keep is None, keep=keep)


def coarse_points(order: Order, coarse: Order, box: Box) -> Indices:
    """For each coarse point, in the coarse order, the fine row (2x, 2y, 2z), in the fine order."""
    half, point = box.coarser(), coarse.new_to_old
    x, y, z = point % half.nx, point // half.nx % half.ny, point // (half.nx * half.ny)
    return order.old_to_new[(2 * z * box.ny + 2 * y) * box.nx + 2 * x]


def _exchange(kernels: SparseKernels, comm: Communicator, box: Box, order: Order, precision: str) -> Exchange:
    neighbours, rows = [], list[int]()
    for one in box.neighbours():
        points = _points(box, one.first, one.shape)
        rows += points
        neighbours.append(Neighbour(one.rank, len(points), one.recv_offset, one.count))
    sent = order.old_to_new[kernels.xp.asarray(rows, dtype=kernels.xp.int64)]
    return Exchange(kernels, comm, neighbours, sent, precision)


def _points(box: Box, first: Sequence[int], shape: Sequence[int]) -> list[int]:
    """The rows of a part of a box, x fastest."""
    ranges = [range(at, at + size) for at, size in zip(first, shape)]
    return [(z * box.ny + y) * box.nx + x for z, y, x in product(*reversed(ranges))]


def make_general(
    kernels: SparseKernels, comm: Communicator, block: Block, forms: Sequence[Form], order: str, spans: Spans
) -> StencilProblem:
    """The matrix in every form, as hierarchies of one level: a cycle is one sweep from zero.  Collective over comm."""
    clock = kernels.stopwatch
    begin = clock.mark()
    rows, partners = localised(kernels, comm, block)
    generated = clock.mark()
    ordered = kernels.order(rows, order)
    found: list[Hierarchy] = []
    for form in forms:
        values, exact = value_format(kernels, comm, rows, form.values[0], form.tolerance)
        vectors = form.vectors_of(values)
        same = next((one.top.A.A for one in found if one.top.A.A.storage == form.storage), None)
        stored = kernels.store(rows, ordered, values, vectors, form.storage, like=same)
        top = outer = SparseMatrix(kernels, stored, exchange(kernels, comm, partners, ordered, vectors), spans)
        if form.mixed:  # residuals are those of the matrix itself
            like = stored if exact else same
            stored = kernels.store(rows, ordered, values if exact else "fp64", "fp64", form.storage, like=like)
            outer = SparseMatrix(kernels, stored, exchange(kernels, comm, partners, ordered, "fp64"), spans)
        found.append(Hierarchy(Level(top, top.halo_vector()), outer))
    b, setup_bytes = kernels.row_sums(rows, ordered), int(rows.indptr[-1]) * 12 + rows.n * 8
    generate_s, optimize_s = clock.seconds(begin, generated), clock.seconds(generated, clock.mark())
    return StencilProblem(found, b, generate_s, optimize_s, [ordered.colours], setup_bytes)
