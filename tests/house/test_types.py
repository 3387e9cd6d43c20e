"""What editors complete and type checkers read is today's: the settings of the configs, and the public names."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

import mxpeak as mx
from mxpeak.bench.registry import BENCHMARKS
from mxpeak.library import run_settings
from mxpeak.options import options

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", BENCHMARKS)
def test_editors_complete_every_setting_of_a_benchmark(name: str) -> None:
    known = {o.name for o in options(BENCHMARKS[name].config)}
    prefix = "".join(word.capitalize() for word in name.split("-"))
    assert set(getattr(run_settings, f"{prefix}Cases").__annotations__) == known
    assert set(getattr(run_settings, f"{prefix}Case").__annotations__) == known - {"study", "ranks_list"}


def test_the_stub_has_every_public_name_and_its_home() -> None:
    stub = ast.parse((ROOT / "src" / "mxpeak" / "__init__.pyi").read_text("utf-8"))
    found = {name.asname: node.module for node in stub.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert sorted([*found, "__version__"]) == sorted(mx.__all__)
    for name, home in found.items():
        bound = getattr(mx, str(name))  # which imports its home
        assert getattr(import_module(str(home)), str(name)) is bound
