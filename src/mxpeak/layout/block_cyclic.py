"""The block-cyclic distribution of one dimension: index ig belongs to block ig // NB, and block b to process b mod P.

A matrix has one `BlockCyclic` for its rows (over P process rows) and one for its columns (over Q process columns).
Local indices number a process's own entries in increasing global order, without gaps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


def numroc(n: int, nb: int, p: int, P: int) -> int:
    """Return how many of n entries process p owns: full rounds of NB, plus its part of the last round.

    The name is that of the ScaLAPACK routine: NUMber of Rows Or Columns.
    """
    blocks, ragged = divmod(n, nb)
    rounds, extra = divmod(blocks, P)
    return rounds * nb + (nb if p < extra else ragged if p == extra else 0)


@dataclass(frozen=True, slots=True)
class BlockCyclic:
    """The distribution of n entries in blocks of NB over P processes, with the part of process p."""

    n: int
    nb: int
    p: int
    P: int

    @property
    def local_size(self) -> int:
        """Return the number of entries that process p owns."""
        return numroc(self.n, self.nb, self.p, self.P)

    def owner(self, ig: int) -> int:
        """Return the process that owns global index ig."""
        return ig // self.nb % self.P

    def to_local(self, ig: int) -> int:
        """Return the local index of global index ig on its owner."""
        return ig // self.nb // self.P * self.nb + ig % self.nb

    def to_global(self, il: int) -> int:
        """Return the global index of local index il of process p."""
        return (il // self.nb * self.P + self.p) * self.nb + il % self.nb

    def local_start(self, ig: int) -> int:
        """Return the number of entries before global index ig that process p owns."""
        return numroc(ig, self.nb, self.p, self.P)

    def local_range(self, begin: int, end: int) -> slice:
        """Return the local indices of process p that correspond to global begin:end; they are contiguous."""
        return slice(self.local_start(begin), self.local_start(end))

    def blocks(self) -> Iterator[tuple[slice, slice]]:
        """Yield the local range and the global range of each block that process p owns."""
        for begin in range(0, self.local_size, self.nb):
            end = min(begin + self.nb, self.local_size)
            first = self.to_global(begin)
            yield slice(begin, end), slice(first, first + end - begin)
