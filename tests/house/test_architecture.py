"""Test that the drawing of the architecture has the checked layers, and that every module has a docstring."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "project" / "architecture.md"


@pytest.fixture(scope="module")
def module_table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("module_table", ROOT / "tools" / "module_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_drawing_has_the_layers_that_are_checked(module_table: ModuleType) -> None:
    drawing = re.findall(r"^```\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)[0]
    drawn = [re.split(r"\s{2,}", line)[0].split(" | ") for line in drawing.splitlines()]
    assert [name for names in reversed(drawn) for name in names] == module_table.layers()


def test_every_module_has_a_docstring(module_table: ModuleType) -> None:
    missing = [
        str(file.relative_to(module_table.SOURCE))
        for file in module_table.SOURCE.rglob("*.py")
        if not re.search(r"\w.* \w", module_table.first_line(file)) and file.name != "__main__.py"
    ]
    assert missing == []


def test_a_folder_of_host_kernels_has_at_most_twelve_modules(module_table: ModuleType) -> None:
    folders = [folder for folder in (module_table.SOURCE / "kernels" / "host").rglob("*") if folder.is_dir()]
    sizes = {folder.name: len(list(folder.glob("[!_]*.py"))) for folder in folders if folder.name != "__pycache__"}
    assert len(sizes) >= 5
    assert {name: size for name, size in sizes.items() if size > 12} == {}
