"""The update in pieces: all columns once, one piece where nothing is under way, and a look shortly before the end."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mxpeak.solvers.update import pieces


@given(columns=st.integers(0, 5000), nb=st.integers(1, 300), looks=st.integers(0, 40))
def test_pieces_are_all_columns_once_and_the_rest_is_one_when_all_has_arrived(
    columns: int, nb: int, looks: int
) -> None:
    answers = iter([False] * looks)
    cut = list(pieces(columns, nb, lambda: next(answers, True)))
    ends = [0, *(c1 for _, c1 in cut)]
    assert cut == list(pairwise(ends))
    assert ends[-1] == columns
    assert len(cut) <= looks + 1


@given(columns=st.integers(1, 5000), nb=st.integers(1, 300))
def test_what_comes_late_is_looked_for_before_the_last_block(columns: int, nb: int) -> None:
    """The last piece is no wider than a block, and no other is wider than what comes after it by more than a column."""
    cut = list(pieces(columns, nb, lambda: False))
    rest, *before = [c1 - c0 for c0, c1 in reversed(cut)]
    assert rest <= nb
    for width in before:
        assert width <= max(rest + 1, nb)
        rest += width
