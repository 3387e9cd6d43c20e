"""Test that hpcg.dat and hpgmp.dat with four or five lines are read, and that errors name the line."""

from __future__ import annotations

from typing import Any

import pytest

from mxpeak.bench.hpcg.config import HpcgConfig
from mxpeak.bench.hpcg.input import read_dat, write_dat
from mxpeak.bench.hpg_mxp import dat as hpgmp
from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
from mxpeak.errors import UsageError

DAT = "HPCG benchmark input file\nSandia National Laboratories; University of Tennessee, Knoxville\n104 96 88\n60\n"
BOX = {"nx": 104, "ny": 96, "nz": 88, "rt": 60.0}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (DAT, BOX),
        (DAT.replace("\n", "\r\n"), BOX),
        (DAT.replace("104 96 88", "104\t96 88 points of a rank").rstrip(), BOX),
        (DAT + "\n", BOX),
        (DAT + "4 2 1\n", {**BOX, "npx": 4, "npy": 2, "npz": 1}),
        (DAT + "0 0 0\n", BOX),
        (DAT + "4 0 0\n", {**BOX, "npx": 4}),
    ],
)
def test_box_seconds_and_process_grid_are_read(text: str, found: dict[str, Any]):
    assert read_dat(text, "hpcg.dat") == found


@pytest.mark.parametrize("config", [HpcgConfig(**BOX), HpcgConfig(**BOX, npx=4, npy=2, npz=1)])
def test_what_is_written_reads_the_same(config: HpcgConfig):
    assert HpcgConfig(**read_dat(write_dat(config), "hpcg.dat")) == config


@pytest.mark.parametrize(("rt", "line"), [(1728000.0, "1728000"), (0.5, "1"), (60.4, "60")])
def test_seconds_are_written_as_hpcg_reads_them(rt: float, line: str):
    assert write_dat(HpcgConfig(**{**BOX, "rt": rt})).splitlines()[3] == line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            DAT.replace("88", ""),
            (
                "hpcg.dat line 3 (nx ny nz) is '104 96': the line needs 3 values, but the line contains 2; add "
                "the missing values"
            ),
        ),
        (
            DAT.replace("88", "0"),
            "hpcg.dat line 3 (nx ny nz) is '104 96 0': 0 is out of range; use an integer from 1 to ",
        ),
        (DAT.replace("60", "0"), "hpcg.dat line 4 (seconds) is '0': 0 seconds is too short to measure; use 1800"),
        (DAT.replace("60\n", ""), "hpcg.dat line 4 (seconds): the file ends after line 3, but it needs 4 lines"),
        (
            DAT + "2 two 1\n",
            (
                "hpcg.dat line 5 (npx npy npz) is '2 two 1': the line needs 3 values, but the line contains 1; "
                "add the missing values"
            ),
        ),
    ],
)
def test_errors_name_the_line(text: str, message: str):
    with pytest.raises(UsageError) as found:
        read_dat(text, "hpcg.dat")
    assert message in str(found.value)


@pytest.mark.parametrize("seconds", ["-1", "-0.5", "1800"])
def test_hpgmp_dat_with_negative_seconds_selects_the_official_time(seconds: str):
    text = f"HPGMP benchmark input file\nORNL\n320 320 160\n{seconds}\n2 2 2\n"
    found = hpgmp.read_dat(text, "hpgmp.dat")
    assert found == {"nx": 320, "ny": 320, "nz": 160, "rt": 1800.0, "npx": 2, "npy": 2, "npz": 2}
    assert hpgmp.read_dat(hpgmp.write_dat(HpgMxpConfig(**found)), "hpgmp.dat") == found


@pytest.mark.parametrize(
    ("seconds", "message"), [("0", "0 seconds is too short"), ("nan", "'nan' is not a finite number")]
)
def test_hpgmp_dat_needs_a_time_that_can_be_measured(seconds: str, message: str):
    with pytest.raises(UsageError) as found:
        hpgmp.read_dat(f"\n\n104 104 104\n{seconds}\n", "hpgmp.dat")
    assert message in str(found.value)
