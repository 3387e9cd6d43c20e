"""Test the update in pieces: every column once, one piece if no message is in flight, and a poll before the end."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.layout.grid import ProcessGrid
from mxpeak.solvers.lu.pipeline import GRAIN, column_chunks
from mxpeak.solvers.lu.pivoted_lu import PivotedLuOptions
from tests.support.hpl_ranks import solve


@given(columns=st.integers(0, 5000), nb=st.integers(1, 300), looks=st.integers(0, 40))
def test_pieces_are_all_columns_once_and_the_rest_is_one_when_all_has_arrived(
    columns: int, nb: int, looks: int
) -> None:
    answers = iter([False] * looks)
    cut = list(column_chunks(columns, nb, lambda: next(answers, True), fixed=False))
    ends = [0, *(c1 for _, c1 in cut)]
    assert cut == list(pairwise(ends))
    assert ends[-1] == columns
    assert len(cut) <= looks + 1


@given(columns=st.integers(0, 5000), nb=st.integers(1, 300), looks=st.integers(0, 40))
def test_fixed_cuts_do_not_depend_on_arrived_messages(columns: int, nb: int, looks: int) -> None:
    answers = iter([False] * looks + [True])
    cut = list(column_chunks(columns, nb, lambda: next(answers), fixed=True))
    assert cut == list(column_chunks(columns, nb, lambda: False, fixed=True))
    assert cut == list(pairwise([0, *(c1 for _, c1 in cut)]))
    assert sum(c1 - c0 for c0, c1 in cut) == columns
    least = max(nb, columns // 4)
    assert all(c1 - c0 >= min(least // GRAIN * GRAIN, least - GRAIN) for c0, c1 in cut[:-1])
    assert len(cut) <= 4 + 8 * GRAIN // max(least, GRAIN)


@given(columns=st.integers(1, 5000), nb=st.integers(1, 300))
def test_messages_are_polled_before_the_last_block(columns: int, nb: int) -> None:
    """The last piece is at most a block or the grain; every other piece is at most that, or the width of the rest."""
    cut = list(column_chunks(columns, nb, lambda: False, fixed=False))
    rest, *before = [c1 - c0 for c0, c1 in reversed(cut)]
    assert rest <= max(nb, GRAIN)
    assert all(c1 % GRAIN == 0 for _, c1 in cut[:-1])
    for width in before:
        assert width <= max(rest + 1, nb, GRAIN)
        rest += width


class Cut(HostKernels):
    """Kernels that record the columns of each product, and report that cuts change results."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__(1)
        self._widths = widths

    def cuts_show(self, precision: str) -> bool:
        return True

    def subtract_product(self, C: Any, A: Any, B: Any) -> None:
        self._widths.append(C.shape[1])
        super().subtract_product(C, A, B)


@pytest.mark.parametrize(
    ("P", "Q", "forwards", "split", "cut"),
    [(1, 2, False, 0.0, False), (1, 2, True, 0.0, True), (2, 1, True, 0.0, False), (2, 1, False, 0.5, True)],
)
def test_an_update_is_cut_only_for_work_that_needs_polling(
    P: int, Q: int, forwards: bool, split: float, cut: bool
) -> None:
    """Cuts serve panels that are forwarded within process rows, and row swaps; otherwise pieces are the sections."""
    n, nb, widths = 1200, 64, list[int]()
    options = PivotedLuOptions(forwards=forwards, split=split)
    solve(n, nb, ProcessGrid(P, Q), options, make=lambda: Cut(widths))
    steps = -(-n // nb)
    # the next panel on each rank of a process column, the rest on every rank; the split update halves both, and its
    # first half begins with the columns of the panel after the next
    sections = steps * P * (1 + Q if split == 0.0 else 4)
    assert (len(widths) > sections) == cut
