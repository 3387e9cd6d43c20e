"""Find the step of a large run that an operation of a small run represents.

A small run has as many blocks as the large one, but each block has a few columns instead of hundreds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Protocol

from tests.support.queues.log import Op, Region

TRAVELS = ("send", "receive")
#: Operations on the surface of a box: on its rows with neighbors on other ranks, and on messages.
SURFACE = ("halo_product", "index_select")


class Sizes(Protocol):
    """Scale the sizes of a small run's operation to the large run."""

    def bytes(self, op: Op) -> float:
        """Return the bytes that the operation moves."""

    def of(self, op: Op) -> tuple[float, ...]:
        """Return the operation's sizes (`log.Op`)."""


@dataclass(frozen=True)
class Same:
    """Keep the sizes, for a run that represents itself."""

    def bytes(self, op: Op) -> float:
        """Return the size without a change."""
        return op.bytes

    def of(self, op: Op) -> tuple[float, ...]:
        """Return the size without a change."""
        return op.sizes


@dataclass(frozen=True)
class Blocks:
    """Scale an LU in blocks of nb to one with as many blocks of `large_nb`."""

    nb: int
    large_nb: int

    @property
    def factor(self) -> float:
        """The factor of every length."""
        return self.large_nb / self.nb

    def of(self, op: Op) -> tuple[float, ...]:
        """Scale all lengths."""
        return tuple(self.factor * size for size in op.sizes)

    def bytes(self, op: Op) -> float:
        """Scale matrices in both dimensions, and arrays of at most two blocks' length (pivots, indices) in one."""
        if op.kind in TRAVELS:
            return op.bytes * self.growth(op.sizes[0])
        if op.kind in ("up", "down"):
            return op.bytes * self.growth(op.bytes // op.regions[0].itemsize)
        return sum(self.region(one) for one in op.regions)

    def region(self, region: Region) -> float:
        """Return a region's bytes; a row of a column-major matrix moves a line of 64 bytes for each number."""
        shape = region.shape if region.rows is None else (len(region.rows), *region.shape[1:])
        scattered = region.rows is not None and len(region.shape) > 1 and region.strides[0] == 1
        return prod(shape) * self.growth(prod(shape)) * (64 if scattered else region.itemsize)

    def growth(self, count: int) -> float:
        """Return the growth of an array with this many numbers."""
        return self.factor if count <= 2 * self.nb else self.factor**2


@dataclass(frozen=True)
class Boxes:
    """Scale a box of side³ points per rank to one of large³."""

    side: int
    large: int

    def of(self, op: Op) -> tuple[float, ...]:
        """Keep the sizes, because the bytes decide the time of sparse kernels."""
        return op.sizes

    def bytes(self, op: Op) -> float:
        """Scale the bytes of a face, of an edge or a corner in a message, or of a box."""
        f = self.large / self.side
        if op.kind in TRAVELS:
            dimensions = 0 if op.sizes == (1,) else 2 if self.level(op) is not None else 1
        else:
            dimensions = 2 if any(name in op.name for name in SURFACE) else 3
        return op.bytes * f**dimensions

    def level(self, op: Op) -> int | None:
        """Return which of the two finest levels has a face of a message's size; None for an edge or a corner."""
        return next((k for k in (0, 1) if op.kind in TRAVELS and op.sizes == ((self.side >> k) ** 2,)), None)
