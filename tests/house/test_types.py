"""What editors complete and type checkers read is today's: the settings of the configs, and the public names."""

from __future__ import annotations

import ast
import runpy
from importlib import import_module
from pathlib import Path

import mxpeak as mx

ROOT = Path(__file__).parents[2]


def test_the_types_of_settings_are_those_of_the_configs() -> None:
    file = ROOT / "src" / "mxpeak" / "library" / "run_settings.py"
    assert file.read_text("utf-8") == runpy.run_path(str(ROOT / "tools" / "typed_settings.py"))["module"](), (
        "run: python tools/typed_settings.py --write"
    )


def test_the_stub_has_every_public_name_and_its_home() -> None:
    stub = ast.parse((ROOT / "src" / "mxpeak" / "__init__.pyi").read_text("utf-8"))
    found = {name.asname: node.module for node in stub.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert sorted([*found, "__version__"]) == sorted(mx.__all__)
    for name, home in found.items():
        bound = getattr(mx, str(name))  # which imports its home
        assert getattr(import_module(str(home)), str(name)) is bound
