"""Map local indices to global indices, in blocks of NB consecutive indices that are `jump` apart and start at `first`.

    global(l) = first + (l // NB)·jump + l mod NB

A whole matrix, a tile and a block-cyclic part all have this form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mxpeak.layout.block_cyclic import BlockCyclic


@dataclass(frozen=True, slots=True)
class IndexMap:
    """A map from `size` local indices to global indices, in blocks of NB that are `jump` apart."""

    size: int
    first: int
    nb: int
    jump: int

    def to_global(self, il: Any) -> Any:
        """Return the global index of a local index, or the global indices of an array of local indices."""
        return self.first + il // self.nb * self.jump + il % self.nb

    def before(self, ig: int) -> int:
        """Return the number of local indices that map to a global index less than ig."""
        rounds, rest = divmod(ig - self.first, self.jump)
        return min(max(rounds * self.nb + min(rest, self.nb), 0), self.size)


def consecutive(size: int, first: int = 0) -> IndexMap:
    """Return the map from local indices 0 … size-1 to the global indices that start at `first`."""
    return IndexMap(size, first, max(size, 1), max(size, 1))


def block_cyclic(part: BlockCyclic) -> IndexMap:
    """Return the map from the local indices of process p to global indices in a block-cyclic distribution."""
    return IndexMap(part.local_size, part.p * part.nb, part.nb, part.P * part.nb)
