"""Test that the 14 lines of rocHPL-MxP's HPL-MxP.dat are read, and that errors name the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from mxpeak.bench.hpl_mxp.config import HplMxpConfig
from mxpeak.bench.hpl_mxp.input import LINES, read_dat
from mxpeak.errors import UsageError

DAT = Path(__file__).with_name("mxp.dat").read_text()


def edited(number: int, line: str) -> str:
    lines = DAT.splitlines()
    lines[number - 1] = line
    return "\n".join(lines) + "\n"


def test_all_14_lines_are_read():
    assert len(DAT.splitlines()) == LINES
    assert read_dat(DAT, "HPL-MxP.dat") == {
        "output_file": "mixed.out",
        "device_out": 6,
        "n": (1000, 2000),
        "nb": (64, 128),
        "order": "column",
        "P": (2,),
        "Q": (3,),
        "threshold": 16.0,
        "bcast": ("1ring", "1ringM", "longM"),
        "idle_ranks": True,
    }


def test_what_is_read_makes_a_config_whose_grid_may_leave_ranks_idle():
    config = HplMxpConfig(**read_dat(DAT, "HPL-MxP.dat"))
    cases = list(config.cases(7))
    assert len(cases) == 2 * 2 * 3
    assert (cases[0].P, cases[0].Q, cases[0].tag) == (2, 3, "WC0")


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_any_line_ending_reads_the_same(newline: str):
    assert read_dat(DAT.replace("\n", newline), "HPL-MxP.dat") == read_dat(DAT, "HPL-MxP.dat")


@pytest.mark.parametrize(
    ("number", "line", "message"),
    [
        (5, "21", "HPL-MxP.dat line 5 (number of Ns) is '21': 21 is out of range; use an integer from 1 to 20"),
        (
            6,
            "1000 Ns",
            (
                "HPL-MxP.dat line 6 (Ns) is '1000 Ns': line 5 requests 2 values, but the line contains 1; add "
                "the missing values"
            ),
        ),
        (6, "0 2000", "HPL-MxP.dat line 6 (Ns) is '0 2000': 0 is out of range; use an integer from 1 to 100000000"),
        (9, "2", "HPL-MxP.dat line 9 (PMAP process mapping) is '2': '2' is unknown; use one of 0 row, 1 column"),
        (10, "P", "HPL-MxP.dat line 10 (P) is 'P': 'P' is not an integer; use an integer from 1 to 100000000"),
        (11, "0 Q", "HPL-MxP.dat line 11 (Q) is '0 Q': 0 is out of range; use an integer from 1 to 100000000"),
        (
            12,
            "-1.0 t",
            "HPL-MxP.dat line 12 (threshold) is '-1.0 t': the threshold -1 skips the check, but a mixed-precision "
            "result needs a check; use 16.0",
        ),
        (12, "nan", "HPL-MxP.dat line 12 (threshold) is 'nan': 'nan' is not a finite number; use a finite number"),
    ],
)
def test_errors_name_the_line(number: int, line: str, message: str):
    with pytest.raises(UsageError) as caught:
        read_dat(edited(number, line), "HPL-MxP.dat")
    assert str(caught.value) == message


def test_an_unknown_broadcast_is_an_error_that_names_the_known_ones():
    with pytest.raises(UsageError, match=r"line 14 \(BCASTs\) is .*: '8' is unknown; use one of 0 1ring, .*7 ilib"):
        read_dat(edited(14, "0 1 8"), "HPL-MxP.dat")


@pytest.mark.parametrize("kept", range(LINES))
def test_a_file_cut_short_anywhere_says_where_it_ends(kept: int):
    with pytest.raises(UsageError, match=f"the file ends after line {kept}, but it needs 14 lines"):
        read_dat("".join(f"{line}\n" for line in DAT.splitlines()[:kept]), "HPL-MxP.dat")


def test_an_hpl_dat_in_its_place_is_noticed():
    with pytest.raises(UsageError, match=r"line 13 \(number of BCASTs\) is .*: '16\.0' is not an integer"):
        read_dat((Path(__file__).with_name("lists.dat")).read_text(), "HPL.dat")
