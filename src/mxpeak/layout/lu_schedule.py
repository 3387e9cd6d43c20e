"""The order of a blocked LU as data: which operation acts on which columns, and which operations overlap.

The solvers execute this schedule on matrices, and `mxpeak simulate` executes it on the clocks of all ranks. There are
three orders (rocHPL §III; HPL-MxP has no row swaps and uses the first two):

    no look-ahead (fig. 2)   AWAIT k, UPDATE k, FACTOR k+1
    look-ahead (fig. 3)      AWAIT k, PREPARE k+1, then UPDATE k overlaps FACTOR k+1
    split update (fig. 6)    UPDATE k of the right section overlaps FACTOR k+1 and the left section's row swaps;
                             UPDATE k of the left section overlaps the next step's row swaps of the right section

The local columns of a process column form these sections, from left to right: finished | NEXT | LEFT | RIGHT. NEXT is
the next panel, on the process column that owns it. RIGHT keeps its width while LEFT shrinks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from mxpeak.layout.block_cyclic import BlockCyclic

#: Operations, as the names of the methods that perform them.
PREPARE, FACTOR, AWAIT, AWAIT_PIVOTS = "prepare", "factor", "await_panel", "await_pivots"
SWAP, UPDATE, END, SAVE = "begin_swap", "update", "end_step", "save"
ALL, REST, NEXT, LEFT, FIRST, RIGHT = range(6)


@dataclass(frozen=True, slots=True)
class LuStep:
    """Step k of an LU, which eliminates columns j0 … j0+jb-1; process (p, q) owns its diagonal block."""

    k: int
    j0: int
    jb: int
    p: int
    q: int

    @property
    def j1(self) -> int:
        """Return the first column of the trailing matrix."""
        return self.j0 + self.jb


def lu_steps(n: int, nb: int, P: int, Q: int) -> list[LuStep]:
    """Return the ceil(n / NB) steps of an LU of order n on a P×Q grid; the last step may have fewer than NB columns."""
    return [LuStep(k, j0, min(nb, n - j0), k % P, k % Q) for k, j0 in enumerate(range(0, n, nb))]


def looks_ahead(depth: int, ranks: int, *, background: bool) -> bool:
    """Return whether the update of an HPL-MxP step overlaps the factorization of the next panels.

    If no operation can run in the background, one product is faster than the three products that look-ahead requires.
    """
    return depth > 0 and (ranks > 1 or background)


def split_columns(columns: int, fraction: float, nb: int) -> int:
    """Return n2, the number of local columns in the right section of the split update (rocHPL §III-C).

    `fraction` is the desired n2 / columns. n1 = columns - n2 is a multiple of NB. n2 is fixed, and n1 decreases with
    every panel until the plain update replaces the split update.
    """
    if fraction == 0.0:
        return 0
    left_blocks = round((1.0 - fraction) * columns / nb)
    return max(0, columns - left_blocks * nb)


class LuEvent(NamedTuple):
    """An operation of step k on a section of columns, and the operations that overlap it.

    PREPARE        apply update k-1 to the columns of panel k
    FACTOR         factor panel k and begin its broadcast; an overlapping update begins as soon as its rows arrive
    AWAIT          wait for panel k
    AWAIT_PIVOTS   wait for the pivots of panel k, which may arrive before the panel
    SWAP           begin panel k's row swaps in a section
    UPDATE         A22 -= L21 U12 in a section, once its rows have arrived, while `overlaps` make progress
    END            report step k
    SAVE           write a checkpoint after step k
    """

    op: str
    k: int
    section: int = ALL
    overlaps: tuple[LuEvent, ...] = ()

    @property
    def key(self) -> tuple[str, int, int]:
        """Return the event without its overlaps, as a key that identifies a pending operation."""
        return self.op, self.k, self.section


@dataclass(frozen=True, slots=True)
class LuOverlap:
    """The ways in which the operations of a factorization overlap.

    lookahead      panel k+1 overlaps update k
    split_steps    the number of steps, from the first, with a split update
    update_first   an update is enqueued on a device before the host factors the panel that overlaps it
    early          in a split update, panel k+2 is updated before the rest of update k
    """

    lookahead: bool
    split_steps: int = 0
    update_first: bool = False
    early: bool = True


def execute(schedule: Iterable[LuEvent], factorization: Any) -> None:
    """Call the method of a factorization for each event in order; skip the operations that it does not have."""
    for event in schedule:
        if operation := getattr(factorization, event.op, None):
            operation(event)


def lu_schedule(
    count: int, overlap: LuOverlap, first: int = 0, due: Callable[[int], bool] = lambda k: False
) -> Iterator[LuEvent]:
    """Yield the events of steps `first` to `count` - 1 in order.

    `due(k)` returns whether a checkpoint is due after step k; it is called once per step except the last, after AWAIT.
    A step with a due checkpoint updates all columns and leaves no operation pending.
    """
    if first < count:
        yield LuEvent(FACTOR, first)
    swaps_begun = False  # the previous step began this step's row swaps of NEXT and RIGHT
    for k in range(first, count):
        splits = k < overlap.split_steps
        yield LuEvent(AWAIT, k, overlaps=(LuEvent(SWAP, k, RIGHT),) * swaps_begun)
        last = k + 1 == count
        saves = not last and due(k)
        if last or saves or not overlap.lookahead:
            yield from _whole_update(k, splits=splits and overlap.lookahead, swaps_begun=swaps_begun)
            yield LuEvent(END, k)
            if saves:
                yield LuEvent(SAVE, k)
            if not last:
                yield LuEvent(FACTOR, k + 1)
            swaps_begun = False
        elif splits:
            serves = k + 1 < overlap.split_steps
            yield from _split_update(k, overlap, serves=serves, swaps_begun=swaps_begun)
            yield LuEvent(END, k)
            swaps_begun = serves
        else:
            yield from _hiding_update(k, overlap)
            yield LuEvent(END, k)


def _whole_update(k: int, *, splits: bool, swaps_begun: bool) -> Iterator[LuEvent]:
    """Yield the row swaps and the update of all columns after panel k, without overlaps.

    If `splits`, the columns are updated section by section. If `swaps_begun`, the previous step began the row swaps of
    NEXT and RIGHT.
    """
    for section in (NEXT, RIGHT, LEFT) if splits else (ALL,):
        if section == LEFT or not swaps_begun:
            yield LuEvent(SWAP, k, section)
        yield LuEvent(UPDATE, k, section)


def _hiding_update(k: int, overlap: LuOverlap) -> Iterator[LuEvent]:
    """Yield the events of step k whose UPDATE hides FACT and LBCAST of the next panel (fig. 3)."""
    factor = LuEvent(FACTOR, k + 1)
    yield LuEvent(PREPARE, k + 1)
    if not overlap.update_first:
        yield factor
    yield LuEvent(SWAP, k, REST)
    yield LuEvent(UPDATE, k, REST, (factor,))
    if overlap.update_first:
        yield factor


def _split_update(k: int, overlap: LuOverlap, *, serves: bool, swaps_begun: bool) -> Iterator[LuEvent]:
    """Yield the events of step k with the split update (fig. 6); if `serves`, the next step also has a split update.

    UPDATE of the right section hides FACT, LBCAST and the left section's row swaps. UPDATE of the left section hides
    the next step's row swaps of the right section. The left section's first columns belong to the panel after the
    next. If these columns are updated first, the FACT of that panel can begin while the rest of the update is still
    running.
    """
    factor, left, right = LuEvent(FACTOR, k + 1), LuEvent(SWAP, k, LEFT), LuEvent(SWAP, k, RIGHT)
    following = LuEvent(SWAP, k + 1, NEXT), LuEvent(SWAP, k + 1, RIGHT)
    update_right = LuEvent(UPDATE, k, RIGHT, (factor, left))
    if not swaps_begun:
        yield right
    yield LuEvent(PREPARE, k + 1, overlaps=(right,))
    if not overlap.update_first:
        yield factor
    yield left
    if overlap.update_first:
        yield factor._replace(overlaps=(update_right,))
    yield update_right
    if serves:
        if overlap.early:
            yield LuEvent(UPDATE, k, FIRST)
        yield LuEvent(AWAIT_PIVOTS, k + 1, overlaps=(left,))
        if overlap.early:
            yield following[0]
        yield following[1]._replace(overlaps=following[:1] * overlap.update_first)
    yield LuEvent(UPDATE, k, LEFT, (*following, factor))


class Sections(NamedTuple):
    """The bounds of all sections: integers for one process column, or arrays for all process columns.

    start        maps a global column to the first local column that is not to the left of it
    split, end   the first column of the right section, and the end of the last section
    """

    steps: Sequence[LuStep]
    start: Callable[[int], Any]
    split: Any
    end: Any

    def columns(self, k: int, section: int) -> tuple[Any, Any]:
        """Return the bounds c0 and c1 of a section's local columns in step k.

        FIRST, the columns of panel k+2, is empty unless the process column owns them.
        """
        if section == RIGHT:
            return self.split, self.end
        if section == ALL:
            return self.trailing(k), self.end
        if section == NEXT:
            return self.trailing(k), self.trailing(k + 1)
        if section == FIRST:
            return self.trailing(k + 1), self.trailing(k + 2)
        return self.trailing(k + 1), self.split if section == LEFT else self.end

    def trailing(self, k: int) -> Any:
        """Return the first local column after panel k."""
        return self.start(self.steps[k].j1)


def split_steps(steps: Sequence[LuStep], cols: BlockCyclic, split: int) -> int:
    """Return the number of steps with a split update, in which the next panel is left of local column `split`."""
    for step, following in pairwise(steps):
        if cols.local_start(following.j1) > split:
            return step.k
    return len(steps) - 1
