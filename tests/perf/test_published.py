"""Compare docs/reference/published-results.md with the output of `mxpeak simulate --table`."""

from __future__ import annotations

from pathlib import Path

import pytest

from mxpeak.verbs.predict.validation_table import Figure, rows

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "published-results.md").read_text(encoding="utf-8")
QUICK = [row for row in rows() if row.quick]


def test_every_published_row_is_on_the_page_once() -> None:
    on_page = [line.split(" | ")[0].removeprefix("| ") for line in PAGE.splitlines() if line.startswith("| ")]
    found = [what for what in on_page if what in {row.what for row in rows()}]
    assert found == [row.what for row in rows()]


@pytest.mark.parametrize("row", QUICK, ids=lambda row: row.what)
def test_a_row_of_the_page_is_todays(row: Figure) -> None:
    assert row.line() in PAGE, "copy the output of mxpeak simulate --table to the page"


def test_each_figure_says_which_paper_it_is_from() -> None:
    assert all(row.source.split()[0] in ("OLCF", "OpenMxP's", "rocHPL", "ORNL", "TOP500") for row in rows())
