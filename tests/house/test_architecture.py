"""docs/architecture.md draws the house that stands."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def house() -> ModuleType:
    spec = importlib.util.spec_from_file_location("house", DOCS / "house.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_modules_is_todays(house: ModuleType) -> None:
    assert house.PAGE.read_text(encoding="utf-8") == house.page(), "run: python docs/house.py --write"


def test_the_drawing_has_the_floors_that_are_checked(house: ModuleType) -> None:
    drawing = re.findall(r"^```\n(.*?)^```", house.PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)[0]
    drawn = [re.split(r"\s{2,}", line)[0].split(" | ") for line in drawing.splitlines()]
    assert [name for names in reversed(drawn) for name in names] == house.floors()


def test_every_module_says_what_it_is(house: ModuleType) -> None:
    silent = [
        str(file.relative_to(house.SOURCE))
        for file in house.SOURCE.rglob("*.py")
        if not re.search(r"\w.* \w", house.first_line(file)) and file.name != "__main__.py"
    ]
    assert silent == []
