"""Run a command on a pseudo-terminal, and return the lines that remain on the screen."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

#: What a terminal obeys: CSI sequences, and the characters that move the cursor.
CONTROL = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")
COLUMNS = 100


def screen(text: str) -> list[str]:
    """Return the lines that this output leaves on a screen, without trailing blanks."""
    lines, row, column = [""], 0, 0
    for match in CONTROL.finditer(text):
        number, code, move, written = match[1] or "", match[2], match[3], match[4]
        if written is not None:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + written + line[column + len(written) :]
            column += len(written)
        elif move == "\r":
            column = 0
        elif move == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif code == "A":
            row = max(0, row - int(number or 1))
        elif code == "K":
            lines[row] = "" if number == "2" else lines[row][:column]
    return [line.rstrip() for line in lines]


def on_terminal(argv: list[str], folder: Path, environ: Mapping[str, str] | None = None) -> tuple[int, list[str]]:
    """Run mxpeak with its output on a terminal of 100 columns; return the exit code and the lines that it leaves."""
    master, slave = pty.openpty()
    variables = {**os.environ, "TERM": "xterm", "COLUMNS": str(COLUMNS), **(environ or {})}
    variables.pop("NO_COLOR", None)
    run = subprocess.Popen(
        [sys.executable, "-m", "mxpeak", *argv], cwd=folder, env=variables, stdin=slave, stdout=slave, stderr=slave
    )
    os.close(slave)
    seen = b""
    while True:
        try:
            some = os.read(master, 65536)
        except OSError:  # the last process that had the terminal open has ended
            break
        if not some:
            break
        seen += some
    os.close(master)
    return run.wait(), screen(seen.decode(errors="replace"))
