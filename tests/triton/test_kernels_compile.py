from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from tests.triton.compile_kernels import TARGETS

ROOT = Path(__file__).parents[2]


Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Run a process that compiles for all targets."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    environment.pop("TRITON_INTERPRET", None)  # read when kernels are decorated: so not in this process
    command = [sys.executable, "-m", "tests.triton.compile_kernels"]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel_compiles(compiled: Done, target: str) -> None:
    assert not [line for line in compiled.stderr.splitlines() if line.startswith(f"{target} ")]
    assert f"{target}: " in compiled.stdout, compiled.stderr
