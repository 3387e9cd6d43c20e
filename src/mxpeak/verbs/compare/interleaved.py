"""Run two commands alternately and compare the medians of their rates."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from mxpeak.cli.run_history import results_in
from mxpeak.errors import UsageError

if TYPE_CHECKING:
    from mxpeak.cli.session import Session

#: Flags that a command must not contain, because `compare` sets the output of each run and reads its result.
OWN = ("--out", "--json", "--dry-run", "--print-dat")
#: Largest number of characters of a failed command's output in an error message.
TAIL = 2000


@dataclass
class Command:
    """A command to run, with its results by round."""

    name: str
    text: str
    words: list[str]
    rounds: list[list[Any]] = field(default_factory=list)


class EndedError(Exception):
    """Raised when a signal has ended a run; it also ends the comparison."""

    def __init__(self, name: str, code: int):
        super().__init__(f"{name} was ended by signal {code - 128}")
        self.code = code


def command(name: str, text: str) -> Command:
    """Return the command for a shell-like text; raise a UsageError if the command does not run a benchmark.

    `mxpeak` is run with this Python interpreter.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"{name}: {text!r} is not a valid command: {error}; use quotes around the whole command"
        ) from None
    if words and "=" in words[0]:
        raise UsageError(f"{name}: {text!r} sets a variable, which needs a shell or env; use 'env {text}'")
    if "run" not in words:
        raise UsageError(
            f"{name}: --rounds needs commands that run a benchmark, but {text!r} does not; use a quoted "
            "command such as 'mxpeak run hpl -N 8000' or 'mxpeak run hpl --config RESULT.json', or remove "
            "--rounds"
        )
    if own := [word for word in words if word.split("=")[0] in OWN]:
        raise UsageError(f"{name}: mxpeak compare creates a folder for each run; remove {' '.join(own)}")
    return Command(name, text, [sys.executable, "-m", *words] if words[0] == "mxpeak" else words)


def run_in_turns(texts: tuple[str, str], rounds: int, session: Session) -> tuple[Command, Command, Path]:
    """Run two commands alternately for one warm-up round and `rounds` rounds.

    Return both commands with their results, and the folder that contains all runs.
    """
    from mxpeak.cli.output import new_folder
    from mxpeak.records import figure_text
    from mxpeak.report.compare import nothing_in_common, pairs
    from mxpeak.runtime.launcher import launched

    first, second = map(command, "AB", texts)
    if launched():
        raise UsageError(
            "mxpeak compare --rounds must not run under a launcher; use the launcher inside A and B, for "
            "example 'mpiexec -n 4 mxpeak …'"
        )
    folder = new_folder(None, "compare", (), "use another working folder")
    try:
        for turn in range(rounds + 1):
            for of_turn in (second, first) if turn % 2 else (first, second):
                results = _run(of_turn, folder.path / f"{of_turn.name}{turn}")
                rates = ", ".join(figure_text(body.get("result") or {}) for body in results[:3])
                label = f"round {turn} of {rounds}" if turn else "not counted"  # the first run compiles kernels
                session.log(f"{label}: {of_turn.name}  {rates}")
                of_turn.rounds.append(results)
            if not list(pairs(first.rounds[-1], second.rounds[-1])):
                raise UsageError(nothing_in_common("AB", first.rounds[-1], second.rounds[-1]))
    except EndedError as ended:
        session.log(f"mxpeak: {ended}; the finished runs are in {folder.path}/")
        raise
    finally:
        folder.close()
    for of_turn in (first, second):
        del of_turn.rounds[0]
    return first, second, folder.path


def _run(command: Command, folder: Path) -> list[Any]:
    """Run a command and return its results; raise EndedError if a signal ended the command."""
    from mxpeak.runtime.launch import code_of

    words = [*command.words, "--quiet", "--out", str(folder)]
    with TemporaryFile("w+", errors="replace") as stderr:
        try:
            code = code_of(words, stdout=subprocess.DEVNULL, stderr=stderr)
        except OSError as error:
            raise UsageError(
                f"{command.name}: mxpeak cannot start {command.words[0]}: {error.strerror}; use a command that this "
                "shell can run"
            ) from None
        if code > 128:
            raise EndedError(command.name, code)
        stderr.seek(0)
        tail = stderr.read()[-TAIL:].strip()
    if not (folder / "result.json").exists():
        raise UsageError(f"{command.name}: {command.text} ended with exit code {code} and without a result:\n{tail}")
    return list(results_in(folder / "result.json"))
