"""The block-cyclic distribution of one dimension: index ig belongs to block ig // NB, and block b to process b mod P.

A matrix has one `BlockCyclic` for its rows (over P process rows) and one for its columns (over Q process columns).
Local indices number a process's own entries in increasing global order, without gaps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


def numroc(n: int, nb: int, p: int, P: int) -> int:
    """Return the number of entries of process p, if n entries are distributed over P processes in blocks of NB.

    Process p owns NB entries per full round of P blocks, plus its part of the last round. The name is that of the
    ScaLAPACK routine: NUMber of Rows Or Columns.
    """
    blocks, ragged = divmod(n, nb)
    rounds, extra = divmod(blocks, P)
    return rounds * nb + (nb if p < extra else ragged if p == extra else 0)


@dataclass(frozen=True, slots=True)
class BlockCyclic:
    """The block-cyclic distribution of n entries over P processes in blocks of NB, from the viewpoint of process p."""

    n: int
    nb: int
    p: int
    P: int

    @property
    def local_size(self) -> int:
        """Return the number of entries that process p owns."""
        return numroc(self.n, self.nb, self.p, self.P)

    def owner(self, ig: int) -> int:
        """Return the process that owns the entry with global index ig."""
        return ig // self.nb % self.P

    def to_local(self, ig: int) -> int:
        """Return the local index that the entry with global index ig has on its owner."""
        return ig // self.nb // self.P * self.nb + ig % self.nb

    def to_global(self, il: int) -> int:
        """Return the global index of the entry with local index il on process p."""
        return (il // self.nb * self.P + self.p) * self.nb + il % self.nb

    def local_start(self, ig: int) -> int:
        """Return the number of entries before global index ig that process p owns."""
        return numroc(ig, self.nb, self.p, self.P)

    def local_range(self, begin: int, end: int) -> slice:
        """Return the range of process p's local indices whose global indices are in begin:end."""
        return slice(self.local_start(begin), self.local_start(end))

    def blocks(self) -> Iterator[tuple[slice, slice]]:
        """Yield the local range and the global range of each block that process p owns."""
        for begin in range(0, self.local_size, self.nb):
            end = min(begin + self.nb, self.local_size)
            first = self.to_global(begin)
            yield slice(begin, end), slice(first, first + end - begin)
