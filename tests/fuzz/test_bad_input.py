"""Test that any file or command line is accepted or refused with a message, without a traceback or a hang.

Each reader gets a few hundred texts; TEST_FUZZ=10000 sets another number, and prints how many were accepted.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.fuzzing import DOORS, try_one

CASES = int(os.environ.get("TEST_FUZZ", "60"))


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run in an empty folder, so that relative names refer to no file."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", DOORS)
def test_bad_input_is_refused_in_words(name: str, tmp_path: Path) -> None:
    taken = 0
    for seed in range(CASES):
        try:
            taken += try_one(name, seed, tmp_path) is None
        except Exception as error:
            raise AssertionError(f"{name}, seed {seed}: {type(error).__name__}: {error}") from error
    print(f"{name}: {taken} of {CASES} texts were taken")
    assert taken < CASES, "some of them are bad"
