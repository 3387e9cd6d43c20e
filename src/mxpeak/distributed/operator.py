"""A matrix that is given only by its products, in the interface of a `SparseMatrix`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import nan

from mxpeak.distributed.rank_group import RankGroup
from mxpeak.distributed.spaces import vector_type, zeros
from mxpeak.kernels.arrays import without_warnings
from mxpeak.kernels.contract.sparse import SparseKernels, Vector
from mxpeak.spans import Spans


@dataclass(frozen=True, slots=True)
class OperatorFormat:
    """The size and the formats of an operator, which stores no entries."""

    n: int
    vectors: str
    storage: str
    values: str = "fp64"
    bytes: int = 0

    def extra_bytes(self, other: OperatorFormat) -> int:
        """Return 0, because no form of an operator needs memory."""
        return 0


class OperatorMatrix:
    """A function x -> A x for vectors in fp64, or for this rank's part, used with vectors of another format.

    exponent    A is multiplied by 2^exponent
    """

    exponent = 0

    def __init__(
        self,
        kernels: SparseKernels,
        A: OperatorFormat,
        function: Callable[[Vector], Vector],
        group: RankGroup,
        spans: Spans,
    ):
        self.A, self._kernels, self._function, self._group, self._spans = A, kernels, function, group, spans

    @property
    def n(self) -> int:
        """Return the number of rows of this rank."""
        return self.A.n

    def halo_vector(self) -> Vector:
        """Return a vector of zeros that A multiplies."""
        return zeros(self._kernels, self.A.n, self.A.vectors)

    def own(self, x: Vector) -> Vector:
        """Return x, because the function exchanges the entries of other ranks itself."""
        return x

    def multiply(self, x: Vector, y: Vector) -> None:
        """Compute y = A x, or NaN without a call of the function if x is not finite. Collective.

        Factors below 1 are those of x, because A x could overflow. Factors above 1 are divided between x and A x.
        """
        xp, fp64 = self._kernels.xp, vector_type(self._kernels, "fp64")
        before = min(self.exponent, self.exponent // 2)
        with self._spans("operator"):
            if before:
                with without_warnings():
                    x = 2.0**before * xp.asarray(x, dtype=fp64)
            if not self._group.all(xp.all(xp.isfinite(x))):
                y[:] = nan
                return
            Ax = xp.asarray(self._function(xp.asarray(x, dtype=fp64, copy=True)), dtype=fp64)
            self._kernels.scale(y, 1.0, Ax * 2.0 ** (self.exponent - before) if self.exponent > before else Ax)
