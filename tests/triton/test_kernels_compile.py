from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from tests.triton.compile_kernels import TARGETS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compilers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """One process a target, all at work."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    environment.pop("TRITON_INTERPRET", None)  # it is read when kernels are decorated: so not in this process
    with ExitStack() as open_pipes:
        started = {
            target: open_pipes.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.triton.compile_kernels", target],
                    cwd=ROOT,
                    env=environment,
                    text=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            )
            for target in TARGETS
        }
        yield started
        for one in started.values():
            one.kill()


@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel_compiles(compilers: dict[str, subprocess.Popen[str]], target: str) -> None:
    said, wrong = compilers[target].communicate(timeout=600)
    assert compilers[target].returncode == 0, wrong
    assert said.startswith(f"{target}: ")
