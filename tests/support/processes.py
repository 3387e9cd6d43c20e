"""Start processes that end with their test."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

#: What a process is granted to end after SIGTERM: launchers end their ranks meanwhile.
PATIENCE_S = 10.0


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process with pipes for what it prints; ended, if it still runs, when the block is left."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes, **options) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.communicate(timeout=PATIENCE_S)
                except subprocess.TimeoutExpired:
                    process.kill()


def first_line(process: subprocess.Popen[str]) -> str:
    """The first line that it prints, once it has."""
    assert process.stdout is not None
    return process.stdout.readline()
