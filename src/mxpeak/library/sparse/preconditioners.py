"""M^-1 r, one sweep or one cycle, as vectors that the matrix it stands before multiplies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import nan, prod
from typing import Any

import numpy as np

from mxpeak.distributed.spaces import zeros
from mxpeak.distributed.sparse import Level, SparseMatrix
from mxpeak.distributed.stencil import coarse_points
from mxpeak.errors import ResourceError, UsageError
from mxpeak.kernels.contract.sparse import Indices, Order, Rows, SparseKernels, Stored, Vector, natural_kind
from mxpeak.layout.stencil import Box
from mxpeak.library.inputs import Array, is_tensor
from mxpeak.library.sparse.inputs import kind_of
from mxpeak.library.sparse.rank_group import SERIAL, RankGroup
from mxpeak.library.sparse.scaling import Scaling
from mxpeak.perf.host import available_memory_bytes
from mxpeak.records import size_text
from mxpeak.solvers.multigrid import Level as AnyLevel
from mxpeak.solvers.multigrid import cycle
from mxpeak.spans import Spans

#: Bytes an entry while a pattern is filled up to be symmetric, and of a column that is told by itself.
FILLING_BYTES, COLUMN_BYTES = 48, 4


class MatrixBuilder:
    """Stores matrices and orders their rows, all in the same way: kernels, smoother, storage, spans."""

    def __init__(self, kernels: SparseKernels, smoother: str, storage: str, spans: Spans):
        self.kernels, self.spans = kernels, spans
        self.storage = "rows" if (storage, smoother, kernels.device) == ("auto", "natural", None) else storage
        natural = natural_kind(self.storage, on_device=kernels.device is not None)
        self._kind = "greedy" if smoother == "coloured" else natural
        self._points: dict[int, Indices] = {}

    def points(self, n: int, make: Callable[[], Indices]) -> Indices:
        """The rows of a level where residuals are restricted: made once, as its matrix keeps a table for each array."""
        if n not in self._points:
            self._points[n] = self.kernels.xp.asarray(make())
        return self._points[n]

    def ordered(self, rows: Rows, colours: Array | None = None) -> tuple[Rows, Order]:
        """The rows with a symmetric pattern, and an order for sweeps; in colours, these where they are known."""
        if not self.kernels.is_symmetric_pattern(rows):
            _check_filling(rows.indices.size)
            rows = self.kernels.with_symmetric_pattern(rows)
        if colours is None or self._kind != "greedy":
            return rows, self.kernels.order(rows, self._kind)
        new_to_old = np.argsort(colours, kind="stable").astype(np.int32)
        old_to_new = np.empty_like(new_to_old)
        old_to_new[new_to_old] = np.arange(new_to_old.size, dtype=np.int32)
        starts = np.concatenate([[0], np.cumsum(np.unique(colours, return_counts=True)[1])]).astype(np.int64)
        return rows, Order(new_to_old, old_to_new, starts, self._kind)

    def store(
        self,
        rows: Rows,
        order: Order,
        values: str,
        vectors: str,
        like: Stored | None = None,
        *,
        brief: bool = False,
        everybody: RankGroup = SERIAL,
    ) -> SparseMatrix:
        """The matrix as solvers see it; `brief`: auto takes the storage that is made soonest, not that read soonest."""
        A = self.kernels.store(rows, order, values, vectors, like.storage if like else self._storage(brief), like)
        if like is None and self.storage == "auto" and A.storage == "packed" and A.lower + A.upper > rows.indices.size:
            sliced = self.kernels.store(rows, order, values, vectors, "sell")  # no runs to speak of
            A = sliced if sliced.bytes < A.bytes else A
        return SparseMatrix(self.kernels, A, everybody.exchange(self.kernels, order, vectors), self.spans)

    def check_memory(
        self, rows: Rows, order: Order | None, value_bytes: Sequence[int], basis: int, *, brief: bool = False
    ) -> None:
        """Stop where chunks of rows, each as wide as its longest, and the basis take more memory than is free.

        value_bytes   of a value in each form of the matrix
        order         None while there is none: then as in the best of all, with rows of like length together

        Of packed columns, most often a few bytes a chunk, nothing is counted.
        """
        lengths = np.diff(rows.indptr)
        column = 0 if self._storage(brief) == "packed" else COLUMN_BYTES
        matrix = self._slots(lengths, order) * sum(one + column for one in value_bytes)
        for free, need, where in self._memories(matrix, basis):
            if free is not None and need > free:
                self._refuse(lengths, matrix, basis, f"{size_text(free)} of {where}")

    def _memories(self, matrix: int, basis: int) -> list[tuple[int | None, int, str]]:
        """What is free, what is needed of it, and of what: a device's matrix is made on the host."""
        host, device = available_memory_bytes(), self.kernels.device
        if device is None:
            return [(host, matrix + basis, "memory")]
        _, free = device.memory()
        return [(host, matrix, "the host's memory"), (free, matrix + basis, f"the memory of {device.where}")]

    def _refuse(self, lengths: Array, matrix: int, basis: int, free: str) -> None:
        use = "use scipy.sparse.linalg.gmres, which stores each entry individually"
        instead = f'use storage="auto", or {use}' if self.storage == "ell" else use
        raise ResourceError(
            f"the longest row of A has {lengths.max()} entries (mean {lengths.mean():.3g}), so storage in "
            f"groups of {self.kernels.chunk_rows} rows needs about {size_text(matrix)} and the basis "
            f"{size_text(basis)}, but only {free} is free; "
            f"{'use a smaller restart' if basis > matrix else instead}"
        )

    def _slots(self, lengths: Array, order: Order | None) -> int:
        """Values with the zeros that fill up short rows."""
        if self.storage == "rows":
            return int(lengths.sum())
        chunk = self.kernels.chunk_rows
        if order is None:
            return chunk * int(-np.sort(-lengths)[::chunk].sum())
        step = lengths.size if self.storage == "ell" else chunk
        firsts = np.concatenate([np.arange(a, b, step) for a, b in zip(order.starts, order.starts[1:])])
        sizes = np.maximum(np.diff(firsts, append=lengths.size), chunk)
        return int(sizes @ np.maximum.reduceat(lengths[order.new_to_old], firsts))

    def _storage(self, brief: bool) -> str:
        tried = "sell" if brief else "packed"
        return tried if self.storage == "auto" else self.storage


def _check_filling(nnz: int) -> None:
    """Stop where a symmetric pattern takes more memory than is free."""
    need, free = FILLING_BYTES * nnz, available_memory_bytes()
    if free is not None and need > free:
        raise ResourceError(
            f"sweeps need a symmetric pattern, and completing the pattern of {nnz} entries needs about "
            f'{size_text(need)}, but only {size_text(free)} of memory is free; use preconditioner="jacobi", '
            "which needs no such pattern"
        )


def one_group(n: int) -> Order:
    """The rows as they stand, in one group: for what sweeps over none."""
    rows = np.arange(n, dtype=np.int32)
    return Order(new_to_old=rows, old_to_new=rows, starts=np.array([0, n], np.int64), kind="none")


class Sweep:
    """One forward Gauss-Seidel sweep from zero; of a matrix whose rows are one group it is Jacobi, r_i / a_ii."""

    def __init__(self, A: SparseMatrix):
        self._A, self._x = A, A.halo_vector()
        self.bytes = int(self._x.nbytes)

    def __call__(self, r: Vector) -> Vector:
        """(D + L)^-1 r."""
        self._A.relax_from_zero(r, self._x)
        return self._x


class SymmetricSweep:
    """A forward and a backward sweep."""

    def __init__(self, kernels: SparseKernels, A: SparseMatrix):
        self._A, self._x = A, A.halo_vector()
        self._keep = zeros(kernels, A.n, A.A.vectors)
        self.bytes = int(self._x.nbytes + self._keep.nbytes)

    def __call__(self, r: Vector) -> Vector:
        """(D + U)^-1 D (D + L)^-1 r."""
        self._A.relax_from_zero(r, self._x, self._keep)
        self._A.relax_backward(r, self._x, self._keep)
        return self._x


class Identity:
    """No preconditioner."""

    def __init__(self, kernels: SparseKernels, A: SparseMatrix):
        self._kernels, self._A, self._x = kernels, A, A.halo_vector()
        self.bytes = int(self._x.nbytes)

    def __call__(self, r: Vector) -> Vector:
        """The vector r."""
        self._A.own(self._x)[:] = r
        return self._x


class UserPreconditioner:
    """A user's function r -> M^-1 r, for vectors of the user's own, unscaled system: of ranks, for each one's part."""

    def __init__(self, workshop: MatrixBuilder, A: SparseMatrix, function: Callable[[Vector], Any], scaling: Scaling):
        self._kernels, self._spans = workshop.kernels, workshop.spans
        self._A, self._function, self._scaling = A, function, scaling
        self._x = A.halo_vector()
        self.bytes = int(self._x.nbytes)

    def __call__(self, r: Vector) -> Vector:
        """D_c^-1 M^-1 D_r^-1 r."""
        xp, everybody, x = self._kernels.xp, self._scaling.everybody, self._A.own(self._x)
        if not everybody.all(xp.all(xp.isfinite(r))):
            x[:] = nan  # no business of the user's: the solver sees it and goes on in fp64
            return self._x
        with self._spans("preconditioner"):
            z = everybody.alike(lambda: self._asked(r))
            with np.errstate(over="ignore"):
                x[:] = z
        return self._x

    def _asked(self, r: Vector) -> Vector:
        """What the function makes of r, in the scales of the system that is solved."""
        xp, scaling = self._kernels.xp, self._scaling
        if not scaling.active:
            return self._checked(self._function(xp.asarray(r, copy=True)))
        unscaled = xp.ldexp(xp.astype(r, xp.float64), -scaling.rows)
        return xp.ldexp(xp.astype(self._checked(self._function(unscaled)), xp.float64), -scaling.columns)

    def _returned(self, z: Any) -> Any:
        """What the function returned, as an array, or as a tensor of the device."""
        device = self._kernels.device
        if device is None:
            return np.asarray(z)
        if is_tensor(z) and z.device == device.where and str(z.layout) == "torch.strided":
            return z.detach()  # x does not depend on the preconditioner, and so has no gradient by it
        what = f"a {z.layout} tensor on {z.device}" if is_tensor(z) else f"{type(z).__name__} instead of a tensor"
        raise UsageError(
            f"the preconditioner returned {what}, but on {device.where} its argument and its result must be "
            'dense tensors; use device="cpu" for functions of NumPy arrays'
        )

    def _checked(self, z: Any) -> Vector:
        n, xp = self._A.n, self._kernels.xp
        found = self._returned(z)
        shape = tuple(found.shape)
        if prod(shape) != n or kind_of(found.dtype) != "real":
            raise UsageError(
                f"the preconditioner returned {found.dtype} of shape {shape} for a vector of shape ({n},); "
                f"use a function that returns M^-1 r, which has {n} real numbers"
            )
        found = found.reshape(n)
        finite = xp.isfinite(found)
        if not xp.all(finite):
            i = int(xp.argmin(xp.astype(finite, xp.int8)))
            raise UsageError(
                f"the preconditioner returned {float(found[i])} at [{i}] for a finite vector; use a "
                "function that returns finite numbers"
            )
        return found


class Multigrid:
    """One cycle of multigrid from zero; `order` is that of its sweeps where it is not the matrix's own."""

    def __init__(self, top: AnyLevel, levels: int, bytes: int, order: Order | None = None):
        self._top, self.levels, self.bytes, self.order = top, levels, bytes, order

    def __call__(self, r: Vector) -> Vector:
        """A cycle's correction."""
        return cycle(self._top, r)


def stencil_multigrid(
    workshop: MatrixBuilder, A: SparseMatrix, order: Order, box: Box, stencil: Sequence[float]
) -> Multigrid:
    """The benchmarks' multigrid, down to the coarsest box there is: each level the same stencil on half the points."""
    kernels, vectors = workshop.kernels, A.A.vectors
    top = level = Level(A, A.halo_vector())
    total, count = 0, 1
    while not any(side % 2 for side in box.shape):
        rows, coarse_order = workshop.ordered(kernels.on_host(kernels.stencil_rows(box.coarser(), stencil)))
        coarse = workshop.store(rows, coarse_order, A.A.values, vectors)
        level.points = workshop.points(level.A.n, partial(coarse_points, order, coarse_order, box))
        level.r = zeros(kernels, coarse.n, vectors)
        level.coarser = Level(coarse, coarse.halo_vector())
        level, order, box = level.coarser, coarse_order, box.coarser()
        total, count = total + coarse.A.bytes, count + 1
    return Multigrid(top, count, total)
