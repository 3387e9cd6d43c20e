"""The trailing update in pieces, with a look at the communication that it hides before each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

#: Pieces of an update that hides communication, and their width in blocks while there is much to do: each piece packs
#: L21 again, which narrow ones do not pay for.
LOOKS, PIECE_BLOCKS = 8, 4
#: Pieces end at multiples of so many columns, of which no library's inner loops take more at a time.
GRAIN = 64


def column_chunks(columns: int, nb: int, arrived: Callable[[], bool], *, fixed: bool) -> Iterator[tuple[int, int]]:
    """The columns of an update as ranges c0:c1; `arrived()` is called before each, until it says so.

    Once it says that no communication has to be driven any more, the rest is one piece.  Until then no piece but a
    single block is more than half of the rest: what comes late is seen while there is work left to hide it.

    `fixed`: the cuts do not depend on what has come, or a run's bits would depend on time where those of a product
    depend on its cuts.  Then they are few: a half, a quarter and a quarter of the columns.
    """
    width = columns if fixed else max(-(-columns // LOOKS), PIECE_BLOCKS * nb)
    least = max(nb, columns // 4) if fixed else nb
    c0, here = 0, False
    while c0 < columns:
        here = here or arrived()
        half = max(-(-(columns - c0) // 2), least)
        cut = c0 + max(min(width, half) // GRAIN, 1) * GRAIN
        last = columns - cut < least // 2 if fixed else here
        c1 = columns if last else min(cut, columns)
        yield c0, c1
        c0 = c1
