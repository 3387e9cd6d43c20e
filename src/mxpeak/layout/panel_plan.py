"""The recursive panel factorization as data: which blocks are factored, solved and updated, in which order.

A panel of jb columns is split into NDIV parts, recursively, until NBMIN columns are left (a leaf). The three variants
differ only in the time at which a part's columns are updated (rocHPL §III-A; HPL's RFACT):

    right   factor a part, then update all columns to its right immediately
    left    update a part with all parts to its left just before it is factored
    crout   update the part's column before its factorization, and the part's row of U afterwards

L1 is the jb×jb block in which L11 and U11 are built; every rank of the process column keeps a copy of it. A is the
rank's own part of the panel. Every backend executes the same plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

LEAF, SOLVE, TOP, UPDATE = range(4)


class PanelOp(NamedTuple):
    """An operation of the panel factorization on columns c0:c1.

    LEAF     factor columns c0:c1 column by column
    SOLVE    L1[k0:k1, c0:c1] = unit_lower(L1[k0:k1, k0:k1])^-1 · L1[k0:k1, c0:c1]
    TOP      L1[r0:r1, c0:c1] -= L1[r0:r1, k0:k1] · L1[k0:k1, c0:c1]
    UPDATE   A[r0:, c0:c1]    -= A[r0:, k0:k1]    · L1[k0:k1, c0:c1]     (rows above r0 are finished)
    """

    kind: int
    r0: int
    r1: int
    k0: int
    k1: int
    c0: int
    c1: int


@lru_cache(maxsize=256)
def panel_plan(jb: int, nbmin: int, ndiv: int, rfact: str) -> tuple[PanelOp, ...]:
    """Return the operations that factor a panel of jb columns, in order of execution.

    The panel is divided recursively into `ndiv` parts until at most `nbmin` columns are left; `rfact` is the variant.
    """
    return tuple(_factor(0, jb, nbmin, ndiv, rfact))


def _factor(c0: int, c1: int, nbmin: int, ndiv: int, rfact: str) -> Iterator[PanelOp]:
    if c1 - c0 <= nbmin:
        yield PanelOp(LEAF, 0, 0, 0, 0, c0, c1)
        return
    for cm, ce in _parts(c0, c1, nbmin, ndiv):
        if rfact == "left" and cm > c0:
            yield PanelOp(SOLVE, 0, 0, c0, cm, cm, ce)
        if rfact in ("left", "crout") and cm > c0:
            yield PanelOp(UPDATE, cm, 0, c0, cm, cm, ce)
        yield from _factor(cm, ce, nbmin, ndiv, rfact)
        if rfact == "crout" and cm > c0 and ce < c1:
            yield PanelOp(TOP, cm, ce, c0, cm, ce, c1)
        if rfact in ("right", "crout") and ce < c1:
            yield PanelOp(SOLVE, 0, 0, cm, ce, ce, c1)
        if rfact == "right" and ce < c1:
            yield PanelOp(UPDATE, ce, 0, cm, ce, ce, c1)


def _parts(c0: int, c1: int, nbmin: int, ndiv: int) -> Iterator[tuple[int, int]]:
    """Divide c0:c1 into at most NDIV parts, and yield the bounds of each part.

    Every part except the last has a multiple of NBMIN columns.
    """
    units = -(-(c1 - c0) // nbmin)
    width = -(-units // ndiv) * nbmin
    for cm in range(c0, c1, width):
        yield cm, min(c1, cm + width)
