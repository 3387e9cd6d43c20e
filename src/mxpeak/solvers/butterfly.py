"""Random butterfly transformation of a distributed matrix, A → U^T A V, in place of pivoting (Parker 1995).

Each layer of U and V consists of butterflies

    B = 1/√2 [ R   S ]          B^T [x]  =  1/√2 [R (x + y)]
             [ R  -S ]              [y]          [S (x - y)]

with random diagonal matrices R and S, whose entries are exp(r/20) for r in [-1, 1] (Baboulin et al., "Accelerating
linear system solutions using randomization techniques", ACM Trans. Math. Softw. 39, 2013). B is nearly orthogonal. The
transformation is U^T A V with U = U_1 … U_d, where U_1 has the shortest butterflies. `layout/butterfly.py` defines
them for any order.

The random numbers are a function of (seed, layer, index), so the result does not depend on the grid. Ranks of a process
column that own rows i and i + h exchange these rows; each computes its own row of the pair. Columns are exchanged in
the same way along a process row. Layers of U and V act on different indices and commute. The transformation of A takes
4·d·N² flops and sends at most 2·d·N² entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from math import sqrt
from typing import Any, NamedTuple

from mxpeak.comm.base import Communicator
from mxpeak.distributed.dense import DistMatrix
from mxpeak.kernels.contract import Kernels, Matrix, Vector
from mxpeak.layout.block_cyclic import BlockCyclic, numroc
from mxpeak.layout.butterfly import LocalPairs, half_lengths, has_partner, local_pairs
from mxpeak.layout.entries import Entries
from mxpeak.solvers.transformations import Transformation

TAG = 7500  # a multiple of FAMILY
#: Entries of A that a rank sends, and that it receives, at the same time.
MESSAGE = 1 << 22
#: The diagonal entries of R and S are exp(r / SPREAD), with r in [-1, 1].
SPREAD = 20.0


class DistributedDimension(NamedTuple):
    """One dimension of a matrix on a grid: its distribution, and the ranks that own its parts."""

    along: BlockCyclic
    ranks: Communicator


class Layer(NamedTuple):
    """One layer on this rank: its pairs, and the diagonal entries of R/√2 and S/√2 for the rank's own indices."""

    pairs: LocalPairs
    scales: Vector


class Butterfly:
    """A recursive random butterfly W = W_1 … W_d over one dimension of a matrix; all methods are collective."""

    def __init__(self, line: DistributedDimension, depth: int, random: Entries, kernels: Kernels):
        """`random` generates an n×d matrix of numbers in [-1, 1]."""
        self._ranks, self._kernels = line.ranks, kernels
        along, xp = line.along, kernels.xp
        self._widest = numroc(along.n, along.nb, 0, along.P)
        r = kernels.matrix(along.local_size, depth)
        kernels.generate(r, along, BlockCyclic(depth, depth, 0, 1), random)
        indices = along.to_global(xp.arange(along.local_size))
        self._layers = []
        for k, h in enumerate(half_lengths(along.n, depth)):
            scales = xp.exp(r[:, k] / SPREAD) / sqrt(2.0)
            scales = xp.where(has_partner(along.n, h, indices), scales, xp.ones(along.local_size))
            self._layers.append(Layer(local_pairs(along, h), scales))

    def multiply(self, x: Vector) -> Vector:
        """Return W x for one vector, or for several vectors as columns."""
        xp = self._kernels.xp
        X = xp.asarray(x, copy=True)
        X = X if X.ndim == 2 else X[:, None]
        ones = xp.ones(len(x))
        for pairs, scales in reversed(self._layers):
            X *= scales[:, None]
            self._combine(X, Layer(pairs, ones))
        return X if x.ndim == 2 else X[:, 0]

    def multiply_transposed(self, x: Vector) -> Vector:
        """Return W^T x for one vector, or for several vectors as columns."""
        X = self._kernels.xp.asarray(x, copy=True)
        X = X if X.ndim == 2 else X[:, None]
        self.transform_rows(X)
        return X if x.ndim == 2 else X[:, 0]

    def transform_rows(self, X: Matrix) -> None:
        """Compute X = W^T X in place."""
        for layer in self._layers:
            self._combine(X, layer)

    def transform_columns(self, X: Matrix) -> None:
        """Compute X = X W in place."""
        for layer in self._layers:
            self._combine(X, layer, columns=True)

    def _combine(self, X: Matrix, layer: Layer, *, columns: bool = False) -> None:
        """Apply the transposed butterflies of a layer to the rows of X, or to its columns, strip by strip."""
        pairs, scales = layer
        other = X.shape[0] if columns else X.shape[1]
        width = max(1, MESSAGE // max(1, self._widest)) if self._ranks.size > 1 else max(1, other)
        combine = self._kernels.combine_columns if columns else self._kernels.combine_rows
        for begin in range(0, other, width):
            strip = slice(begin, min(begin + width, other))

            def part(indices: slice, strip: slice = strip) -> Matrix:
                return X[strip, indices] if columns else X[indices, strip]

            exchange = _Exchange(pairs, part, self._ranks, self._kernels)
            for upper, lower in pairs.local:
                combine(part(upper), part(lower), scales[upper], scales[lower])
            for own, theirs, indices, is_upper in exchange.arrived():
                if is_upper:
                    combine(own, theirs, scales[indices], scales[indices])
                else:
                    combine(theirs, own, scales[indices], scales[indices])


class _Exchange:
    """The exchange of a strip's rows or columns with all partners of this rank in one layer."""

    def __init__(self, pairs: LocalPairs, part: Any, ranks: Communicator, kernels: Kernels):
        """Copy this rank's ranges to messages, send them, and begin to receive those of the partners."""
        self._coming: list[tuple[Any, list[tuple[Matrix, Matrix, slice, bool]]]] = []
        self._going = []
        for partner, ranges in pairs.remote.items():
            own = [part(indices) for indices, _ in ranges]
            ends = [0, *accumulate(piece.shape[0] * piece.shape[1] for piece in own)]
            if ends[-1] == 0:
                continue
            precision = "fp64" if own[0].dtype.itemsize == 8 else "fp32"
            out, into = (kernels.buffer(ends[-1], precision) for _ in range(2))
            theirs = []
            for piece, (a, b) in zip(own, pairwise(ends)):
                kernels.copy(piece, kernels.xp.reshape(out[a:b], piece.shape))
                theirs.append(kernels.xp.reshape(into[a:b], piece.shape))
            request = ranks.irecv(into, partner, TAG)
            self._going.append(ranks.isend(out, partner, TAG))
            self._coming.append((request, [(m, t, *place) for m, t, place in zip(own, theirs, ranges)]))

    def arrived(self) -> Iterator[tuple[Matrix, Matrix, slice, bool]]:
        """Yield, after their arrival: this rank's range, the partner's, the local indices, and if they are upper."""
        for request, ranges in self._coming:
            request.wait()
            yield from ranges
        for request in self._going:
            request.wait()


class ButterflyPair(Transformation):
    """The transformation A → U^T A V: S = U^T and T = V. If `symmetric`, V is U."""

    def __init__(self, A: DistMatrix, depth: int, seed: int, kernels: Kernels, *, symmetric: bool = False):
        """Generate the random numbers of U and V, which follow A and b in the sequence of `seed`."""
        n, grid = A.rows.n, A.grid
        # An entry is rounded when it is generated and by 2·d layers. A row combines 2^d rows, which may be equal.
        self.rounding_variance = 2.0**depth * (2 * depth + 1) / 3.0
        first = 1 + n * n + n
        of_u, of_v = (
            Entries("lcg", n, seed=seed, first=first + side * depth * n, scale=-2.0, shift=1.0)
            for side in (0, 0 if symmetric else 1)
        )
        self._U = Butterfly(DistributedDimension(A.rows, grid.column), depth, of_u, kernels)
        self._V = Butterfly(DistributedDimension(A.cols, grid.row), depth, of_v, kernels)

    def transform(self, A: DistMatrix) -> None:
        """Overwrite A with U^T A V; each of the 2·d layers rounds an entry once. Collective over the grid."""
        self._U.transform_rows(A.local)
        self._V.transform_columns(A.local)

    def left(self, r: Vector) -> Vector:
        """Return U^T r."""
        return self._U.multiply_transposed(r)

    def left_transposed(self, r: Vector) -> Vector:
        """Return U r."""
        return self._U.multiply(r)

    def right(self, y: Vector) -> Vector:
        """Return V y."""
        return self._V.multiply(y)

    def right_transposed(self, c: Vector) -> Vector:
        """Return V^T c."""
        return self._V.multiply_transposed(c)
