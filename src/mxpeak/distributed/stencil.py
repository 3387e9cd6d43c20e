"""Distribute the 27-point problem over the ranks, with half as many points per side on each coarser level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mxpeak.comm.base import Communicator
from mxpeak.comm.collectives import allreduce_scalar
from mxpeak.distributed.halo import Exchange, box_partners, localized
from mxpeak.distributed.rows import RowBlock
from mxpeak.distributed.spaces import zeros
from mxpeak.distributed.sparse import ALL_OPTIMIZATIONS, Level, Optimizations, SparseMatrix, UnfusedResidual
from mxpeak.distributed.system import is_narrow
from mxpeak.kernels.contract.sparse import Indices, Matrix, Order, Rows, SparseKernels, Vector
from mxpeak.layout.stencil import Box
from mxpeak.precision import PRECISIONS
from mxpeak.spans import Spans

#: The diagonal entry, the other entries, and how much the nonsymmetric entries below and above in z differ from -1.
CENTER, OFF_DIAGONAL, SKEW = 26.0, -1.0, 0.5


def weights(*, nonsymmetric: bool = False) -> list[float]:
    """Return the 27 weights of the stencil: (dx+1) + 3(dy+1) + 9(dz+1) is the index of the neighbor at (dx, dy, dz)."""
    stencil = [OFF_DIAGONAL] * 27
    stencil[13] = CENTER
    if nonsymmetric:
        stencil[4], stencil[22] = OFF_DIAGONAL - SKEW, OFF_DIAGONAL + SKEW
    return stencil


#: Formats from the narrowest to the widest; bf16 precedes fp16, because a shift widens it.
WIDER = ("fp8", "bf16", "fp16", "fp32", "fp64")


@dataclass(frozen=True, slots=True)
class Form:
    """The storage formats of a multigrid hierarchy.

    values       the format of each level's values; a wider format if the error of a value would exceed `tolerance`
    vectors      the format of the vectors if values are narrower than fp64; otherwise vectors are fp64
    basis        the format of the stored Krylov basis, if it has fewer bits than the vectors
    mg_vectors   the format of the vectors of a multigrid cycle, if it has fewer bits than the vectors
    symmetric    whether there are forward and backward sweeps
    mixed        whether the finest matrix is also stored for fp64 vectors
    """

    values: tuple[str, ...]
    vectors: str
    storage: str
    symmetric: bool = False
    mixed: bool = False
    tolerance: float = 0.0
    basis: str | None = None
    mg_vectors: str | None = None

    def vectors_of(self, values: str) -> str:
        """Return the format of the vectors of a level with values in the format `values`."""
        return "fp64" if values == "fp64" else self.mg_vectors or self.vectors

    def basis_of(self, values: str) -> str:
        """Return the format of the Krylov basis if the finest level has values in the format `values`."""
        return PRECISIONS[self.vectors_of(values)].accumulate if self.basis is None or values == "fp64" else self.basis


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """The multigrid levels of one form of the problem: the finest level, and the finest matrix for fp64 vectors.

    basis   the format of the stored Krylov basis
    """

    top: Level
    outer: SparseMatrix
    basis: str

    @property
    def narrow(self) -> bool:
        """Return whether the vectors of a multigrid cycle have fewer bits than those of the inner iteration."""
        return is_narrow(self.top.A.A.vectors)

    def clear(self) -> None:
        """Set the vectors of all levels to 0, because vectors of an earlier solve may not be finite."""
        level: Level | None = self.top
        while level is not None:
            level.x[:] = 0.0
            level = level.coarser


@dataclass(slots=True)
class StencilProblem:
    """A benchmark problem in all its storage forms, with b = A·1, and the time of its set-up.

    generate_s   seconds to generate compressed rows, in the form in which a user would pass them
    optimize_s   seconds to order and store the rows
    colors       the number of row groups of each level, or None if sweeps update single rows
    """

    hierarchies: list[Hierarchy]
    b: Vector
    generate_s: float
    optimize_s: float
    colors: list[int | None]
    setup_bytes: int

    def described(self, box: Box, k: int) -> list[dict[str, Any]]:
        """Return one section of the JSON result per level of hierarchy k: global sizes, formats, and bytes on this
        rank.
        """
        boxes = box.levels(len(self.colors))
        return [
            {
                "nx": level_box.nx,
                "ny": level_box.ny,
                "nz": level_box.nz,
                "rows": level_box.global_rows,
                "nnz": level_box.global_nnz,
                "colours": colors,
                "value_precision": level.A.A.values,
                "vector_precision": level.A.A.vectors,
                "storage": level.A.A.storage,
                "rows_at_a_time": level.A.A.rows_at_a_time,
                "bytes": level.A.A.bytes,
                "index_bytes": level.A.A.index_bytes,
            }
            for level_box, colors, level in zip(boxes, self.colors, self.levels(k))
        ]

    def levels(self, k: int) -> list[Level]:
        """Return all levels of hierarchy k, the finest first."""
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
    optimizations: Optimizations = ALL_OPTIMIZATIONS,
) -> StencilProblem:
    """Build the levels on `boxes`, the finest first, in every form, and return the problem. Collective."""
    levels: list[list[Level]] = [[] for _ in forms]
    outers: list[SparseMatrix] = []
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
        exchange = partial(Exchange, kernels, comm, box_partners(box))
        store = _LevelStore(kernels, comm, rows, orders[depth], exchange, spans, optimizations)
        for of_form, form in zip(levels, forms):
            level, outer = store.store(form, depth)
            if depth:
                _join(kernels, of_form[-1], level, orders, boxes)
            else:
                outers.append(outer)
            of_form.append(level)
        generate_s += clock.seconds(begin, generated)
        optimize_s += clock.seconds(generated, clock.mark())
    hierarchies = [_hierarchy(of_form[0], outer, form) for of_form, outer, form in zip(levels, outers, forms)]
    return StencilProblem(hierarchies, b, generate_s, optimize_s, [order.colors for order in orders], setup_bytes)


def _hierarchy(top: Level, outer: SparseMatrix, form: Form) -> Hierarchy:
    """Return the hierarchy of one form, from its finest level and its finest matrix for fp64 vectors."""
    return Hierarchy(top, outer, form.basis_of(top.A.A.values))


@dataclass(slots=True, eq=False)
class _LevelStore:
    """The rows of one level, and their stored forms; forms with the same storage share arrays."""

    kernels: SparseKernels
    comm: Communicator
    rows: Rows
    order: Order
    exchange: Callable[[Order, str], Exchange]
    spans: Spans
    optimizations: Optimizations
    by_storage: dict[str, Matrix] = field(default_factory=dict)

    def store(self, form: Form, depth: int) -> tuple[Level, SparseMatrix]:
        """Return the level in a form, and its matrix for fp64 vectors.

        The two matrices differ only on the finest level of a mixed form.
        """
        values, exact = value_format(self.kernels, self.comm, self.rows, form.values[depth], form.tolerance)
        vectors, same = form.vectors_of(values), self.by_storage.get(form.storage)
        A = outer = self._matrix(values, vectors, form.storage, same)
        if form.mixed and not depth:  # residuals use the exact matrix
            outer = self._matrix(values if exact else "fp64", "fp64", form.storage, A.A if exact else same)
        self.by_storage.setdefault(A.A.storage, A.A)
        keep = zeros(self.kernels, self.rows.n, vectors) if form.symmetric else None
        return Level(A, A.halo_vector(), keep, optimizations=self.optimizations), outer

    def _matrix(self, values: str, vectors: str, storage: str, like: Matrix | None) -> SparseMatrix:
        stored = self.kernels.store(self.rows, self.order, values, vectors, storage, like=like)
        exchange, overlap = self.exchange(self.order, vectors), self.optimizations.overlap
        return SparseMatrix(self.kernels, stored, exchange, self.spans, overlap=overlap)


def value_format(
    kernels: SparseKernels, comm: Communicator, rows: Rows, requested: str, tolerance: float
) -> tuple[str, bool]:
    """Return the narrowest format, at least as wide as `requested`, whose rounding error is at most `tolerance`.

    Also return whether this format is exact. Collective.
    """
    for name in WIDER[WIDER.index(requested) : -1]:
        error = allreduce_scalar(comm, kernels.rounding(rows, name), "max", kernels.xp)
        if error <= tolerance:
            return name, error == 0.0
    return "fp64", True


def _join(kernels: SparseKernels, fine: Level, coarse: Level, orders: Sequence[Order], boxes: Sequence[Box]) -> None:
    """Connect two levels, so that `coarse` is the next coarser level of `fine`."""
    depth = len(orders) - 1
    fine.coarser = coarse
    fine.points = kernels.xp.asarray(coarse_points(orders[depth - 1], orders[depth], boxes[depth - 1]))
    fine.r = zeros(kernels, boxes[depth].rows, coarse.A.A.vectors)
    A, x, keep = fine.A.A, fine.x, fine.keep
    if not fine.optimizations.fused_restriction:
        fine.unfused = UnfusedResidual.of(kernels, A, boxes[depth].rows)
        return
    swept = keep is None and fine.optimizations.zero_guess
    keep = keep if fine.optimizations.zero_guess else None
    # All vectors are zero: this call creates the tables for the points.
    kernels.residual_at(A, fine.A.own(x), x, fine.points, fine.r, swept=swept, keep=keep)


def coarse_points(order: Order, coarse: Order, box: Box) -> Indices:
    """Return the row of the fine point (2x, 2y, 2z), in the fine order, for each coarse point in the coarse order."""
    half, point = box.coarser(), coarse.new_to_old
    x, y, z = point % half.nx, point // half.nx % half.ny, point // (half.nx * half.ny)
    return order.old_to_new[(2 * z * box.ny + 2 * y) * box.nx + 2 * x]


def make_general(
    kernels: SparseKernels,
    comm: Communicator,
    block: RowBlock,
    forms: Sequence[Form],
    order: str,
    spans: Spans,
    optimizations: Optimizations = ALL_OPTIMIZATIONS,
) -> StencilProblem:
    """Build a matrix in every form, as hierarchies of one level whose cycle is one sweep from zero. Collective."""
    clock = kernels.stopwatch
    begin = clock.mark()
    rows, partners = localized(kernels, comm, block)
    generated = clock.mark()
    ordered = kernels.order(rows, order)
    exchange = partial(Exchange, kernels, comm, partners)
    store = _LevelStore(kernels, comm, rows, ordered, exchange, spans, optimizations)
    hierarchies = [_hierarchy(*store.store(form, 0), form) for form in forms]
    b, setup_bytes = kernels.row_sums(rows, ordered), int(rows.indptr[-1]) * 12 + rows.n * 8
    generate_s, optimize_s = clock.seconds(begin, generated), clock.seconds(generated, clock.mark())
    return StencilProblem(hierarchies, b, generate_s, optimize_s, [ordered.colors], setup_bytes)
