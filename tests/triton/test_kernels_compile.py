from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.triton.compile_kernels import TARGETS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel_compiles(target: str, tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)  # it is read when kernels are decorated: a process of its own
    command = [sys.executable, "-m", "tests.triton.compile_kernels", target]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{target}: ")
