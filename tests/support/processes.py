"""Start processes that end with their test."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

#: Seconds in which a process must end after SIGTERM, because launchers first end their ranks.
PATIENCE_S = 10.0


@contextmanager
def started(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a process with pipes for its output, and end it with the block if it still runs."""
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
    """Wait for the first line of a process's output, and return it."""
    assert process.stdout is not None
    return process.stdout.readline()
