"""Find the step of a large run that an operation of a small run represents.

A small run has blocks of a few columns where the large one has blocks of hundreds, and as many of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Protocol

from tests.support.queues.log import Op, Region

TRAVELS = ("send", "receive")
#: What works on the surface of a box: its rows with neighbours elsewhere, and what travels.
SURFACE = ("halo_product", "index_select")


class Sizes(Protocol):
    """How large an operation of a small run is in the large one."""

    def bytes(self, op: Op) -> float:
        """What it moves."""

    def of(self, op: Op) -> tuple[float, ...]:
        """Its sizes (`log.Op`)."""


@dataclass(frozen=True)
class Same:
    """The run itself."""

    def bytes(self, op: Op) -> float:
        """As they are."""
        return op.bytes

    def of(self, op: Op) -> tuple[float, ...]:
        """As they are."""
        return op.sizes


@dataclass(frozen=True)
class Blocks:
    """An LU in blocks of nb that stands for one of as many blocks of `large_nb`."""

    nb: int
    large_nb: int

    @property
    def factor(self) -> float:
        """By which every length grows."""
        return self.large_nb / self.nb

    def of(self, op: Op) -> tuple[float, ...]:
        """All lengths."""
        return tuple(self.factor * size for size in op.sizes)

    def bytes(self, op: Op) -> float:
        """Matrices grow both ways, what has no more entries than two blocks one way: pivots, indices."""
        if op.kind in TRAVELS:
            return op.bytes * self.growth(op.sizes[0])
        if op.kind in ("up", "down"):
            return op.bytes * self.growth(op.bytes // op.regions[0].itemsize)
        return sum(self.region(one) for one in op.regions)

    def region(self, region: Region) -> float:
        """Its bytes; a row of a column-major matrix takes a line of 64 bytes for each number."""
        shape = region.shape if region.rows is None else (len(region.rows), *region.shape[1:])
        scattered = region.rows is not None and len(region.shape) > 1 and region.strides[0] == 1
        return prod(shape) * self.growth(prod(shape)) * (64 if scattered else region.itemsize)

    def growth(self, count: int) -> float:
        """Of so many numbers."""
        return self.factor if count <= 2 * self.nb else self.factor**2


@dataclass(frozen=True)
class Boxes:
    """A box of side³ points a rank that stands for one of large³."""

    side: int
    large: int

    def of(self, op: Op) -> tuple[float, ...]:
        """As they are: sparse kernels move bytes."""
        return op.sizes

    def bytes(self, op: Op) -> float:
        """Of faces, of the edges and corners of what travels, or of boxes."""
        f = self.large / self.side
        if op.kind in TRAVELS:
            dimensions = 0 if op.sizes == (1,) else 2 if self.level(op) is not None else 1
        else:
            dimensions = 2 if any(name in op.name for name in SURFACE) else 3
        return op.bytes * f**dimensions

    def level(self, op: Op) -> int | None:
        """The level of which a message is a face, of the two finest; None: an edge or a corner."""
        return next((k for k in (0, 1) if op.kind in TRAVELS and op.sizes == ((self.side >> k) ** 2,)), None)
