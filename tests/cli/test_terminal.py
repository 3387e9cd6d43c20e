"""Test that a terminal shows only results, and that the progress line leaves no characters."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.terminal import on_terminal, screen

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="a pseudo-terminal is POSIX")

LIVE = ["--progress", "always", "--threads", "1", "--out", "out"]


def test_a_screen_obeys_what_a_live_line_does() -> None:
    assert screen("working\r\x1b[2Kworking more\r\n\r\x1b[1A\x1b[2KPASSED\r\nend") == ["PASSED", "end"]
    assert screen("\x1b[?25lchecking\x1b[1mPASSED\x1b[0m\r\n") == ["checkingPASSED", ""]


@pytest.mark.parametrize(
    ("argv", "marks"),
    [
        (["run", "hpl", "-N", "200,300", *LIVE], 2),
        (["run", "hpl-mxp", "-N", "300", "--precision", "fp32", "--repeat", "2", *LIVE], 1),
    ],
)
def test_a_result_on_a_terminal_has_lines_of_its_own(argv: list[str], marks: int, tmp_path: Path) -> None:
    code, lines = on_terminal(argv, tmp_path)
    assert code == 0, lines
    assert sum(line.startswith("PASSED  ") for line in lines) == marks, lines
    words = ("measuring", "generating", "checking", "proving", " left  ", "setting up")
    assert not [line for line in lines if any(word in line for word in words)], lines
    assert "results in out/" in lines
