from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from tests.triton.compile_kernels import TARGETS

ROOT = Path(__file__).parents[2]


#: The targets of each vendor, whose compiler is loaded once for them.
VENDORS = [[name for name, (vendor, *_) in TARGETS.items() if vendor == one] for one in ("cuda", "hip")]
Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    """One process a vendor, both at work: how it ended, by targets."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    environment.pop("TRITON_INTERPRET", None)  # it is read when kernels are decorated: so not in this process

    def compile_for(targets: list[str]) -> Done:
        command = [sys.executable, "-m", "tests.triton.compile_kernels", *targets]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)

    with ThreadPoolExecutor() as both:
        return {target: done for targets, done in zip(VENDORS, both.map(compile_for, VENDORS)) for target in targets}


@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel_compiles(compiled: dict[str, Done], target: str) -> None:
    done = compiled[target]
    wrong = [line for line in done.stderr.splitlines() if line.startswith(f"{target} ")]
    assert not wrong
    assert f"{target}: " in done.stdout, done.stderr
