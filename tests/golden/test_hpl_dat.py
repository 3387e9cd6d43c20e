"""Test that HPL.dat is read as HPL reads it, that errors name the line, and that written files are read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mxpeak.bench.hpl.config import HplConfig
from mxpeak.bench.hpl.input import LINES, read_dat, write_dat
from mxpeak.errors import UsageError
from tests.support.turns import for_each

LISTS = Path(__file__).with_name("lists.dat").read_text()


def edited(number: int, line: str) -> str:
    lines = LISTS.splitlines()
    lines[number - 1] = line
    return "\n".join(lines) + "\n"


def test_all_31_lines_are_read_and_comments_and_later_lines_are_not():
    assert read_dat(LISTS, "HPL.dat") == {
        "output_file": "lists.out",
        "device_out": 6,
        "n": (29, 30, 34, 35, 36, 37, 38, 39, 40, 41),
        "nb": (3, 4),
        "order": "column",
        "P": (2, 1),
        "Q": (2, 3),
        "threshold": 16.0,
        "pfact": ("left", "crout", "right"),
        "nbmin": (2, 4),
        "ndiv": (2,),
        "rfact": ("crout", "right"),
        "bcast": ("1ring", "1ringM", "2ring", "2ringM", "long", "longM", "lib", "ilib"),
        "depth": (0, 1),
        "swap": "mix",
        "swap_threshold": 64,
        "l1_form": "transposed",
        "u_form": "no-transposed",
        "equilibration": True,
        "alignment": 8,
        "idle_ranks": True,
    }


@for_each("newline", ["\n", "\r\n", "\r"])
def test_any_line_ending_reads_the_same(newline: str):
    assert read_dat(LISTS.replace("\n", newline), "HPL.dat") == read_dat(LISTS, "HPL.dat")


def test_more_values_than_counted_are_comment():
    assert read_dat(edited(8, "3 4 5 6"), "HPL.dat")["nb"] == (3, 4)


def test_a_form_feed_in_a_comment_does_not_end_the_line():
    assert read_dat(edited(2, "page \x0c two \u2028 three"), "HPL.dat") == read_dat(LISTS, "HPL.dat")


def test_the_last_line_needs_no_newline():
    assert read_dat("\n".join(LISTS.splitlines()[:LINES]), "HPL.dat")["alignment"] == 8


def test_a_negative_swapping_threshold_counts_as_zero_as_in_hpl():
    assert read_dat(edited(27, "-3"), "HPL.dat")["swap_threshold"] == 0


@for_each("threshold", ["0.0", "-1", "1e-3"])
def test_thresholds_at_and_below_zero_are_kept(threshold: str):
    assert read_dat(edited(13, threshold), "HPL.dat")["threshold"] == float(threshold)


@for_each(
    ("number", "line", "message"),
    [
        (
            6,
            "29 30 Ns",
            (
                "HPL.dat line 6 (Ns) is '29 30 Ns': line 5 requests 10 values, but the line contains 2; add "
                "the missing values"
            ),
        ),
        (
            6,
            "",
            "HPL.dat line 6 (Ns) is '': line 5 requests 10 values, but the line contains 0; add the missing values",
        ),
        (5, "21", "HPL.dat line 5 (number of Ns) is '21': 21 is out of range; use an integer from 1 to 20"),
        (5, "0", "HPL.dat line 5 (number of Ns) is '0': 0 is out of range; use an integer from 1 to 20"),
        (5, "many", "HPL.dat line 5 (number of Ns) is 'many': 'many' is not an integer; use an integer from 1 to 20"),
        (5, "", "HPL.dat line 5 (number of Ns) is '': the line is empty; add a value"),
        (8, "3 0 NBs", "HPL.dat line 8 (NBs) is '3 0 NBs': 0 is out of range; use an integer from 1 to 100000000"),
        (8, "3 4.5", "HPL.dat line 8 (NBs) is '3 4.5': '4.5' is not an integer; use an integer from 1 to 100000000"),
        (9, "2", "HPL.dat line 9 (PMAP process mapping) is '2': '2' is unknown; use one of 0 row, 1 column"),
        (
            12,
            "2",
            "HPL.dat line 12 (Qs) is '2': line 10 requests 2 values, but the line contains 1; add the missing values",
        ),
        (13, "nan", "HPL.dat line 13 (threshold) is 'nan': 'nan' is not a finite number; use a finite number"),
        (13, "inf", "HPL.dat line 13 (threshold) is 'inf': 'inf' is not a finite number; use a finite number"),
        (19, "1 NDIVs", "HPL.dat line 19 (NDIVs) is '1 NDIVs': 1 is out of range; use an integer from 2 to 100000000"),
        (26, "3 SWAP", "HPL.dat line 26 (SWAP) is '3 SWAP': '3' is unknown; use one of 0 bin, 1 long, 2 mix"),
        (31, "0", "HPL.dat line 31 (memory alignment) is '0': 0 is out of range; use an integer from 1 to 100000000"),
    ],
)
def test_errors_name_the_line(number: int, line: str, message: str):
    with pytest.raises(UsageError) as caught:
        read_dat(edited(number, line), "HPL.dat")
    assert str(caught.value) == message


@for_each("number", range(5, 32))
def test_numbers_of_thousands_of_digits_are_refused_on_every_line(number: int):
    with pytest.raises(UsageError, match=rf"^HPL.dat line {number} .*999…") as caught:
        read_dat(edited(number, "9" * 5000), "HPL.dat")
    assert len(str(caught.value)) < 500


def test_an_unknown_broadcast_is_an_error_that_names_the_known_ones():
    with pytest.raises(
        UsageError, match=r"line 23 \(BCASTs\) is .*: '8' is unknown; use one of 0 1ring, 1 1ringM, .*7"
    ):
        read_dat(edited(23, "0 1 2 3 4 5 6 8"), "HPL.dat")


@for_each("kept", range(LINES))
def test_a_file_cut_short_anywhere_says_where_it_ends(kept: int):
    lines = LISTS.splitlines()[:kept]
    with pytest.raises(UsageError, match=f"the file ends after line {kept}, but it needs 31 lines"):
        read_dat("".join(f"{line}\n" for line in lines), "HPL.dat")


@for_each(
    "values",
    [
        {},
        {"n": (0,), "nb": (1,), "threshold": -1.5, "swap": "bin", "swap_threshold": 0, "order": "column"},
        {"threshold": 0.1 + 0.2, "l1_form": "no-transposed", "equilibration": False, "alignment": 1, "device_out": 7},
        {"n": tuple(range(20)), "bcast": ("ilib", "lib"), "output_file": "other.out", "device_out": 3},
    ],
)
def test_what_is_written_reads_back_the_same(values: dict[str, Any]):
    config = HplConfig(**{**read_dat(LISTS, "HPL.dat"), **values})
    assert HplConfig(**read_dat(write_dat(config), "HPL.dat")) == config


def test_a_grid_is_written_as_its_rows_and_columns():
    written = read_dat(write_dat(HplConfig(n=(100,), grid=((2, 3), (1, 6)))), "HPL.dat")
    assert (written["P"], written["Q"]) == ((2, 1), (3, 6))


@for_each(
    ("config", "message"),
    [
        (HplConfig(grid=((1, 1),)), "add -N"),
        (HplConfig(n=(10,), P=(1,)), "add --grid, or both -P and -Q"),
        (HplConfig(n=tuple(range(21)), grid=((1, 1),)), "at most 20 Ns, but 21 were given"),
    ],
)
def test_what_the_file_cannot_say_is_refused(config: HplConfig, message: str):
    with pytest.raises(UsageError, match=message):
        write_dat(config)
