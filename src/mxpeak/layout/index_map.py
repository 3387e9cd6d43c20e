"""Local indices as global ones: blocks of NB consecutive indices, `jump` apart, the first at `first`.

    global(l) = first + (l // NB)·jump + l mod NB

A whole matrix, a tile of one, and a block-cyclic part of one are all of this form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mxpeak.layout.block_cyclic import BlockCyclic


@dataclass(frozen=True, slots=True)
class IndexMap:
    """`size` local indices in blocks of NB, `jump` apart."""

    size: int
    first: int
    nb: int
    jump: int

    def to_global(self, il: Any) -> Any:
        """The global index of local index il, or of each of an array of them."""
        return self.first + il // self.nb * self.jump + il % self.nb

    def before(self, ig: int) -> int:
        """How many of the local indices are globally less than ig."""
        rounds, rest = divmod(ig - self.first, self.jump)
        return min(max(rounds * self.nb + min(rest, self.nb), 0), self.size)


def consecutive(size: int, first: int = 0) -> IndexMap:
    """`size` indices one after the other from `first` on."""
    return IndexMap(size, first, max(size, 1), max(size, 1))


def block_cyclic(part: BlockCyclic) -> IndexMap:
    """The indices that process p owns of a block-cyclic distribution."""
    return IndexMap(part.local_size, part.p * part.nb, part.nb, part.P * part.nb)
