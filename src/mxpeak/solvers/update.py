"""The trailing update in pieces, with a look at the communication that it hides before each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

#: Pieces of an update that hides communication, and their width in blocks while there is much to do: each piece packs
#: L21 again, which narrow ones do not pay for.
LOOKS, PIECE_BLOCKS = 8, 4


def pieces(columns: int, nb: int, arrived: Callable[[], bool]) -> Iterator[tuple[int, int]]:
    """The columns of an update as ranges c0:c1; `arrived()` is called before each.

    Once it says that no communication has to be driven any more, the rest is one piece.  Until then no piece but a
    single block is more than half of the rest: what comes late is seen while there is work left to hide it.
    """
    width = max(-(-columns // LOOKS), PIECE_BLOCKS * nb)
    c0 = 0
    while c0 < columns:
        half = max(-(-(columns - c0) // 2), nb)
        c1 = columns if arrived() else min(c0 + min(width, half), columns)
        yield c0, c1
        c0 = c1
