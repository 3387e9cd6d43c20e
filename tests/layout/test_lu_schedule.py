"""Test that the schedule updates every column once per step, and that each operation begins once and ends."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.lu_schedule import (
    AWAIT,
    END,
    FACTOR,
    FIRST,
    NEXT,
    PREPARE,
    SAVE,
    SWAP,
    UPDATE,
    LuEvent,
    LuOverlap,
    Sections,
    lu_schedule,
    lu_steps,
    split_columns,
    split_steps,
)
from tests.support.turns import for_each

N, NB, P = 101, 8, 2
KEPT = {2, 5}


def schedules(Q: int) -> Iterator[tuple[list[LuEvent], Sections, LuOverlap]]:
    """Return the schedule of each process column, for every kind of overlap, with checkpoints."""
    steps = lu_steps(N, NB, P, Q)
    for q, lookahead, split, update_first in product(range(Q), (False, True), (0.0, 0.3, 0.5, 0.7), (False, True)):
        cols = BlockCyclic(N, NB, q, Q)
        end = cols.local_size + 1  # [A | b]
        n2 = split_columns(end, split, NB) if lookahead else 0
        overlap = LuOverlap(lookahead, split_steps(steps, cols, end - n2) if n2 else 0, update_first)
        events = list(lu_schedule(len(steps), overlap, due=lambda k: k in KEPT))
        yield events, Sections(steps, cols.local_start, end - n2, end), overlap


@for_each("Q", [1, 2, 3])
def test_every_step_updates_each_trailing_column_once(Q: int) -> None:
    for events, sections, _ in schedules(Q):
        for step in sections.steps:
            ranges = [sections.columns(e.k, e.section) for e in events if e.op == UPDATE and e.k == step.k]
            first = {c0: c1 for c0, c1 in ranges if LuEvent(UPDATE, step.k, FIRST) in events}
            ranges += [sections.columns(step.k, NEXT) for e in events if e.op == PREPARE and e.k == step.k + 1]
            covered = {c for c0, c1 in ranges for c in range(c0, c1)}
            assert covered == set(range(sections.trailing(step.k), sections.end))
            if not first:
                assert sum(c1 - c0 for c0, c1 in ranges) == len(covered)


@for_each("Q", [1, 2, 3])
def test_panels_and_row_swaps_begin_once_and_are_used_before_their_step_ends(Q: int) -> None:
    for events, _, _ in schedules(Q):
        keys = [event.key for event in events if event.op != SAVE]
        assert len(set(keys)) == len(keys)
        for event in events:
            at = keys.index(event.key) if event.op in (FACTOR, SWAP) else 0
            if event.op == FACTOR:
                assert at < keys.index(LuEvent(AWAIT, event.k).key)
            if event.op == SWAP and event.section != NEXT:
                update = LuEvent(UPDATE, event.k, event.section).key
                assert keys.index(LuEvent(AWAIT, event.k).key) < keys.index(update) < keys.index((END, event.k, 0))
                assert at < keys.index(update)


@for_each("Q", [1, 2, 3])
def test_a_checkpoint_finds_no_operation_in_flight(Q: int) -> None:
    for events, _, _ in schedules(Q):
        for at, event in enumerate(events):
            if event.op == SAVE:
                begun = {other.k for other in events[:at] if other.op in (FACTOR, PREPARE, SWAP)}
                assert max(begun) == event.k
