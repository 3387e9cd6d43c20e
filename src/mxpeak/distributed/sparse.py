"""A sparse matrix whose rows are distributed over the ranks, and multigrid levels of such matrices.

Before a product or a sweep, a rank needs its halo: the entries of x that its rows use and other ranks own. While the
halo is in transit, the rank computes the part that does not need it. A sweep does this for each color. Therefore,
every kernel on a matrix has two parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from mxpeak.comm.base import Request
from mxpeak.distributed.halo import Exchange
from mxpeak.distributed.spaces import zeros
from mxpeak.kernels.contract.sparse import Indices, Part, SparseKernels, Stored, Vector
from mxpeak.perf import sparse_counts as counts
from mxpeak.precision import PRECISIONS
from mxpeak.spans import Spans


@dataclass(frozen=True, slots=True)
class Optimizations:
    """The optimizations over the reference code that a run can switch off (Kashi et al., §3.2).

    overlap             compute the part that needs no halo while the halo is in transit
    zero_guess          a sweep from zero reads only D + L, and the residual after it reads only U
    fused_restriction   compute the residual only at the points of the coarser level
    """

    overlap: bool = True
    zero_guess: bool = True
    fused_restriction: bool = True


ALL_OPTIMIZATIONS = Optimizations()


class _Work(NamedTuple):
    """The flops and the minimum bytes of an operation."""

    flops: float
    bytes: float


class SparseMatrix:
    """The rows of A on this rank. All methods are collective, and each is timed as a motif of the benchmarks.

    The spans are gs, spmv and restriction; `halo` also contains the time of waits for other ranks.
    """

    def __init__(self, kernels: SparseKernels, A: Stored, exchange: Exchange, spans: Spans, *, overlap: bool = True):
        self._kernels, self.A, self._exchange, self._spans = kernels, A, exchange, spans
        self._overlap = overlap
        self._lower, self._upper, self._begun = A.lower, A.upper, 0.0
        w, d = (PRECISIONS[name].bytes for name in (A.vectors, PRECISIONS[A.vectors].accumulate))
        entries = self._lower + self._upper, PRECISIONS[A.values].bytes, A.index_bytes
        self._memory = counts.StoredSizes(A.n, *entries, w, d)
        # the work of each operation, computed once
        product = 2.0 * A.nnz
        lower, upper = (2.0 * (self._share(part) + A.n) for part in (self._lower, self._upper))
        self._product = _Work(product, counts.product_bytes(self._memory))
        self._sweep = _Work(product, counts.sweep_bytes(self._memory))
        self._from_zero = [
            _Work(lower, counts.half_sweep_bytes(self._memory, self._lower, keep=keep)) for keep in (False, True)
        ]
        self._backward = _Work(upper, counts.half_sweep_bytes(self._memory, self._upper))
        self._residuals: dict[tuple[int, bool, bool], _Work] = {}

    @property
    def n(self) -> int:
        """Return the number of rows of this rank."""
        return self.A.n

    def extra_bytes(self, other: SparseMatrix) -> int:
        """Return the bytes that this form of the matrix needs in addition to the form `other`."""
        return self.A.extra_bytes(other.A)

    def of_entries(self, A: Stored) -> SparseMatrix:
        """Return a matrix with the entries of A and the pattern and order of this matrix, over the same ranks."""
        return SparseMatrix(self._kernels, A, self._exchange, self._spans, overlap=self._overlap)

    def timed_by(self, spans: Spans) -> SparseMatrix:
        """Return the same matrix with `spans` as the timer of its operations."""
        return SparseMatrix(self._kernels, self.A, self._exchange, spans, overlap=self._overlap)

    def halo_vector(self) -> Vector:
        """Return a vector of zeros with the length that A multiplies."""
        return self._kernels.halo_vector(self.A)

    def own(self, x: Vector) -> Vector:
        """Return a view of this rank's own entries of a halo vector."""
        return x[: self.A.n]

    def halo(self, x: Vector) -> Vector:
        """Return a view of the halo entries of a halo vector."""
        return x[self.A.n : self.A.n + self.A.halo]

    def multiply(self, x: Vector, y: Vector) -> None:
        """Compute y = A x."""
        with self._spans("spmv", flops=self._product.flops, bytes=self._product.bytes):
            self._in_parts(partial(self._kernels.matvec, y, self.A, x), self._begin(x))

    def relax_from_zero(
        self, b: Vector, x: Vector, keep: Vector | None = None, *, send: bool = False
    ) -> Request | None:
        """Solve (D + L) x = b by a forward sweep from zero, which needs no halo.

        If `send`, start the halo exchange of x and return its request.
        """
        work = self._from_zero[keep is not None]
        with self._spans("gs", flops=work.flops, bytes=work.bytes):
            sweep = partial(self._kernels.sweep_from_zero, self.A, b, x, keep=keep)
            return self._sweep_and_send(sweep, x, send=send)

    def relax(self, b: Vector, x: Vector, keep: Vector | None = None) -> None:
        """Improve x by a forward Gauss–Seidel sweep on A x = b."""
        with self._spans("gs", flops=self._sweep.flops, bytes=self._sweep.bytes):
            self._in_parts(partial(self._kernels.sweep_forward, self.A, b, x, keep=keep), self._begin(x))

    def relax_backward(self, b: Vector, x: Vector, keep: Vector, *, send: bool = False) -> Request | None:
        """Complete a symmetric sweep on A x = b by a backward sweep, (D + U) x = keep.

        The sweep reads no halo, because `keep` contains the products with the halo entries. If `send`, start the halo
        exchange of x and return its request.
        """
        with self._spans("gs", flops=self._backward.flops, bytes=self._backward.bytes):
            return self._sweep_and_send(partial(self._kernels.sweep_backward, self.A, keep, x), x, send=send)

    def _sweep_and_send(self, sweep: Callable[..., None], x: Vector, *, send: bool) -> Request | None:
        """Run a sweep that reads no halo; if `send`, start the halo exchange of x and return its request.

        The exchange starts after the sweep over the boundary rows. It requires a pattern that is symmetric across
        ranks, such as that of a stencil, because otherwise the other ranks need more rows.
        """
        if not send:
            sweep()
            return None
        sweep(part=Part.BOUNDARY)
        travel = self._begin(x)
        sweep(part=Part.INTERIOR)
        return travel

    def residual_at(
        self,
        b: Vector,
        x: Vector,
        rows: Indices,
        r: Vector,
        *,
        swept: bool = False,
        keep: Vector | None = None,
        travel: Request | None = None,
    ) -> None:
        """Compute r = (b - A x) at the given rows, after a forward sweep from zero (`swept`) or a symmetric one
        (`keep`).

        `travel` is the pending halo exchange of x, if it has started.
        """
        work = self._residual_at(len(rows), swept, keep is not None)
        residual = partial(self._kernels.residual_at, self.A, b, x, rows, r, swept=swept, keep=keep)
        with self._spans("restriction", flops=work.flops, bytes=work.bytes):
            self._in_parts(residual, travel or self._begin(x))

    def residual_everywhere(
        self, b: Vector, x: Vector, rows: Indices, r: Vector, work: UnfusedResidual, travel: Request | None = None
    ) -> None:
        """Compute r = (b - A x) at the given rows from the product A x on all rows, as the reference code does.

        `travel` is the pending halo exchange of x, if it has started.
        """
        k = self._kernels
        with self._spans("restriction", flops=self._product.flops + len(rows), bytes=work.bytes + self._product.bytes):
            self._in_parts(partial(k.matvec, work.product, self.A, x), travel or self._begin(x))
            k.gather(b, rows, work.b)
            k.gather(work.product, rows, work.Ax)
            k.add_scaled(work.b, -1.0, work.Ax)
            k.scale(r, 1.0, work.b)  # also converts to the format of the coarser level

    def scatter_add(self, x: Vector, rows: Indices, y: Vector) -> None:
        """Add y to x at the given rows."""
        moved = counts.prolongation_bytes(len(rows), PRECISIONS[self.A.vectors].bytes)
        with self._spans("prolongation", flops=float(len(rows)), bytes=moved):
            self._kernels.scatter_add(x, rows, y)

    def _residual_at(self, rows: int, swept: bool, kept: bool) -> _Work:
        work = self._residuals.get((rows, swept, kept))
        if work is None:
            share = rows / max(self.A.n, 1)
            values = int(share * ((0 if kept else self._upper) + (0 if swept else self._lower)))
            vectors = 0 if swept else 2  # b and `keep`, or b and the diagonal
            moved = counts.coarse_residual_bytes(self._memory, rows, values, vectors)
            work = self._residuals[rows, swept, kept] = _Work(2.0 * share * self.A.nnz, moved)
        return work

    def _share(self, part: int) -> float:
        """Estimate the number of entries in one triangle from its number `part` of stored values, which includes
        padding.
        """
        stored = self._lower + self._upper
        return (self.A.nnz - self.A.halo_nnz - self.A.n) * part / stored if stored else 0.0

    def _in_parts(self, compute: Callable[..., None], travel: Request | None) -> None:
        """Compute the part that needs no halo, and the remaining part after the halo exchange `travel` has completed.

        Without overlap, wait first and compute both parts together.
        """
        if not self._overlap:
            self._wait(travel)
            compute(part=Part.ALL)
            return
        compute(part=Part.INTERIOR)
        if self._wait(travel):
            compute(part=Part.BOUNDARY)

    def _begin(self, x: Vector) -> Request | None:
        self._begun = self._spans.clock()
        return self._exchange.begin(self.own(x), self.halo(x))

    def _wait(self, travel: Request | None) -> bool:
        """Wait for the halo exchange `travel` if one is pending, and return whether one was pending."""
        if travel is None:
            return False
        with self._spans("halo"):
            travel.wait()
        self._spans.travelled("halo, posted to complete", self._begun)
        return True


@dataclass(frozen=True, slots=True)
class UnfusedResidual:
    """The vectors of a residual that is computed on all rows: A x, and b and A x at the points of the coarser level."""

    product: Vector
    b: Vector
    Ax: Vector

    @classmethod
    def of(cls, kernels: SparseKernels, A: Stored, points: int) -> UnfusedResidual:
        """Return vectors of zeros for a matrix and this number of points."""
        return cls(*(zeros(kernels, n, A.vectors) for n in (A.n, points, points)))

    @property
    def entries(self) -> int:
        """Return the number of entries of all vectors."""
        return len(self.product) + len(self.b) + len(self.Ax)

    @property
    def bytes(self) -> float:
        """Return the bytes that the injection moves: both gathers, the difference and the result."""
        return float(len(self.b) * (9 * self.b.itemsize + 2 * counts.INT32_BYTES))


@dataclass(slots=True)
class Level:
    """A level of multigrid: its matrix, and vectors that a cycle overwrites.

    x        the correction of the level
    keep     the result of a forward sweep for the backward sweep, or None if there are only forward sweeps
    points   the rows that belong to the next coarser level, in its order
    r        the residual at these rows
    travel   the pending halo exchange of x, from `presmooth` to `restrict`
    unfused  the vectors of a residual on all rows, or None if the residual is fused with the restriction
    """

    A: SparseMatrix
    x: Vector
    keep: Vector | None = None
    coarser: Level | None = None
    points: Indices = field(default=None, repr=False)
    r: Vector = field(default=None, repr=False)
    travel: Request | None = field(default=None, repr=False)
    optimizations: Optimizations = ALL_OPTIMIZATIONS
    unfused: UnfusedResidual | None = field(default=None, repr=False)

    def presmooth(self, b: Vector) -> None:
        """Compute x by a sweep from zero, and start the halo exchange of x for the residual."""
        send = self.coarser is not None and self.optimizations.overlap
        if not self.optimizations.zero_guess:
            self.x[:] = 0.0
            self.postsmooth(b)
        elif self.keep is None:
            self.travel = self.A.relax_from_zero(b, self.x, send=send)
        else:
            self.A.relax_from_zero(b, self.x, self.keep)
            self.travel = self.A.relax_backward(b, self.x, self.keep, send=send)

    def restrict(self, b: Vector) -> None:
        """Compute r = (b - A x) only at the points of the coarser level, which is injection (paper, eq. 6)."""
        travel, self.travel = self.travel, None
        if self.unfused is not None:
            self.A.residual_everywhere(b, self.x, self.points, self.r, self.unfused, travel)
        elif self.optimizations.zero_guess:
            self.A.residual_at(b, self.x, self.points, self.r, swept=self.keep is None, keep=self.keep, travel=travel)
        else:
            self.A.residual_at(b, self.x, self.points, self.r, travel=travel)

    def correct(self, coarse: Level) -> None:
        """Add the correction of the coarser level to x at its points."""
        self.A.scatter_add(self.x, self.points, coarse.A.own(coarse.x))

    def postsmooth(self, b: Vector) -> None:
        """Improve x by another sweep, which starts from the current x."""
        self.A.relax(b, self.x, self.keep)
        if self.keep is not None:
            self.A.relax_backward(b, self.x, self.keep)
