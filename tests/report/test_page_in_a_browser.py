"""Test in a browser that pages are complete on phones, screens and paper."""

from __future__ import annotations

from pathlib import Path

import pytest

from mxpeak.report.html import html_report
from tests.support.browser import browser, faults
from tests.support.pages import everything

pytestmark = pytest.mark.skipif(
    browser() is None, reason="no browser here: install Debian's chromium, or name one in CHROMIUM"
)

#: A page with every defect that the test detects.
BAD = """<!DOCTYPE html><body><p style="width: 3000px">wide</p>
<button hidden>copy</button><a download="x">x</a>
<p style="width: 2em; overflow-wrap: anywhere">unbreakable</p><img src="missing.png" alt="">
<svg aria-label="bare" viewBox="0 0 10000 100" width="300"><text class="label" x="1" y="50">x</text></svg>"""


@pytest.fixture(scope="module")
def faults_of(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return faults({"page": html_report(everything()), "bad": BAD}, Path(tmp_path_factory.mktemp("browser")))


@pytest.mark.parametrize("where", ["telephone", "screen", "paper"])
def test_a_page_fits_and_every_axis_has_its_label(faults_of: dict[str, list[str]], where: str) -> None:
    assert faults_of[f"page on a {where}"] == []


@pytest.mark.parametrize(
    "fault", ["wide", "broken", "1 of 2 axes", "too few ticks", "letters of", "asks for", "no script", "no content"]
)
def test_a_fault_would_be_found(faults_of: dict[str, list[str]], fault: str) -> None:
    for where in ("telephone", "screen", "paper"):
        assert any(fault in text for text in faults_of[f"bad on a {where}"]), where
