"""The update in pieces: all columns once, one piece where nothing is under way, and a look shortly before the end."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mxpeak.solvers.update import GRAIN, pieces


@given(columns=st.integers(0, 5000), nb=st.integers(1, 300), looks=st.integers(0, 40))
def test_pieces_are_all_columns_once_and_the_rest_is_one_when_all_has_arrived(
    columns: int, nb: int, looks: int
) -> None:
    answers = iter([False] * looks)
    cut = list(pieces(columns, nb, lambda: next(answers, True), fixed=False))
    ends = [0, *(c1 for _, c1 in cut)]
    assert cut == list(pairwise(ends))
    assert ends[-1] == columns
    assert len(cut) <= looks + 1


@given(columns=st.integers(0, 5000), nb=st.integers(1, 300), looks=st.integers(0, 40))
def test_fixed_cuts_do_not_depend_on_what_has_arrived_and_nobody_looks_for_it_again(
    columns: int, nb: int, looks: int
) -> None:
    answers = iter([False] * looks + [True])
    cut = list(pieces(columns, nb, lambda: next(answers), fixed=True))
    assert cut == list(pieces(columns, nb, lambda: False, fixed=True))
    assert cut == list(pairwise([0, *(c1 for _, c1 in cut)]))
    assert sum(c1 - c0 for c0, c1 in cut) == columns
    least = max(nb, columns // 4)
    assert all(c1 - c0 >= min(least // GRAIN * GRAIN, least - GRAIN) for c0, c1 in cut[:-1])
    assert len(cut) <= 4 + 8 * GRAIN // max(least, GRAIN)


@given(columns=st.integers(1, 5000), nb=st.integers(1, 300))
def test_what_comes_late_is_looked_for_before_the_last_block(columns: int, nb: int) -> None:
    """The last piece is no wider than a block or the grain; no other is wider than that and what comes after it."""
    cut = list(pieces(columns, nb, lambda: False, fixed=False))
    rest, *before = [c1 - c0 for c0, c1 in reversed(cut)]
    assert rest <= max(nb, GRAIN)
    assert all(c1 % GRAIN == 0 for _, c1 in cut[:-1])
    for width in before:
        assert width <= max(rest + 1, nb, GRAIN)
        rest += width
