"""Test kernels that are compiled ahead for a GPU that need not exist, without Triton's interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the results of tests.triton.rehearse, and its stderr."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    environment.pop("TRITON_INTERPRET", None)  # read when kernels are decorated: so not in this process
    command = [sys.executable, "-m", "tests.triton.rehearse"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    body: dict[str, Any] = json.loads(done.stdout)
    return {**body, "stderr": done.stderr}


def test_all_that_a_use_launches_is_compiled_ahead_and_nothing_is_left_for_its_launches(report: dict[str, Any]) -> None:
    assert report["ahead"] == ["basis_kernel", "basis_kernel", "dot_kernel", "subtract_kernel"]
    assert report["after it"] == []


def test_a_failed_compilation_ahead_is_reported_and_launches_compile(report: dict[str, Any]) -> None:
    assert report["left behind by a compiler that fails"] == 0
    assert "compiled one after the other, not in parallel: RuntimeError: no compiler today" in report["stderr"]
