"""Compare the types for editors and type checkers with the settings of the configs and the public names."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import mxpeak as mx
from mxpeak.bench.registry import BENCHMARKS
from mxpeak.options import options

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run_stub() -> str:
    """Return the stub of mxpeak.run, as a wheel contains it."""
    return subprocess.run(
        [sys.executable, ROOT / "tools" / "typed_settings.py"], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("name", BENCHMARKS)
def test_editors_complete_every_setting_of_a_benchmark(name: str, run_stub: str) -> None:
    stub = {node.name: node for node in ast.parse(run_stub).body if isinstance(node, ast.ClassDef)}

    def settings(kind: str) -> set[str]:
        node = stub[kind]
        own = {str(line.target.id) for line in node.body if isinstance(line, ast.AnnAssign)}  # type: ignore[union-attr]
        base = node.bases[0].id  # type: ignore[attr-defined]
        return own | (settings(base) if base in stub else set())

    names = {o.name for o in options(BENCHMARKS[name].config)}
    prefix = "".join(word.capitalize() for word in name.split("-"))
    assert settings(f"{prefix}Cases") == names
    assert settings(f"{prefix}Case") == names - {"study", "ranks_list"}


def test_type_checkers_know_the_settings_and_the_results(run_stub: str, tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    package, stub = ROOT / "src" / "mxpeak", tmp_path / "run.pyi"
    stub.write_text(run_stub, encoding="utf-8")
    files = [ROOT / "tests/library/typed_calls.py", package / "__init__.pyi", package / "library" / "run.py"]
    command = ["-m", "mypy", "--strict", "--config-file", "", "--follow-imports", "skip", "--cache-dir", tmp_path]
    shadow = ["--shadow-file", package / "library" / "run.py", stub]
    checked = subprocess.run(
        [sys.executable, *command, *shadow, *files, package / "records.py"],
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert "4 source files" in checked.stdout
    assert [line for line in checked.stdout.splitlines() if "typed_calls" in line] == []


def test_the_stub_has_every_public_name_and_its_home() -> None:
    stub = ast.parse((ROOT / "src" / "mxpeak" / "__init__.pyi").read_text("utf-8"))
    found = {name.asname: node.module for node in stub.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert sorted([*found, "__version__"]) == sorted(mx.__all__)
    for name, home in found.items():
        bound = getattr(mx, str(name))  # which imports the module that defines it
        assert getattr(import_module(str(home)), str(name)) is bound
