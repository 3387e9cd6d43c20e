"""Test that every driver in benchmarks/ can be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMPORTS = """
import importlib, sys, traceback
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception:
        print(name, traceback.format_exc())
"""


def test_every_driver_can_be_imported() -> None:
    """Import them in a separate process, whose environment they may change, both as scripts and as a package.

    They import programs for comparisons only in functions, so these need not be installed.
    """
    pytest.importorskip("torch", reason="PyTorch is not installed")
    names = sorted(f"benchmarks.{file.stem}" for file in (ROOT / "benchmarks").glob("*.py"))
    assert len(names) > 20
    places = os.pathsep.join([*map(str, (ROOT, ROOT / "benchmarks")), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(
        [sys.executable, "-c", IMPORTS, *names], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": places}
    )
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr


def test_an_unknown_benchmark_is_refused_before_the_nodes_are_made() -> None:
    script = str(ROOT / "benchmarks/several_nodes.py")
    ended = subprocess.run([sys.executable, script, "hpk"], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "'hpk' is unknown; use one of hpl, hpl-mxp, hpg-mxp, hpcg, norms" in ended.stderr
