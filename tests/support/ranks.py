"""Real ranks under mpiexec, or of torch.distributed: one command on them, or many in one start.

A start costs more than most of what tests ask of it: every rank loads Python, NumPy and Numba, on few cores.
What is to be shown about the ends of a run (signals, crashes, mpiexec's exit code) needs a start of its own; all else
runs in turn on the same ranks, as `mxpeak` would, in a folder each.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from mxpeak.comm.base import Communicator
from tests.support.forked_ranks import Check, run_checks

#: How often those who wait for commands or their end look for them.
LOOK_S = 0.02
ROOT = Path(__file__).parents[2]
MPIEXEC = Path(sysconfig.get_path("scripts")) / "mpiexec"
PYTHON = [sys.executable, "-m", "mxpeak"]
#: With a number of ranks after it, torchrun runs what Python would run.
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]

#: In CI a missing MPI is a failure.
needs_mpi = pytest.mark.skipif(
    not (os.environ.get("CI") or MPIEXEC.exists()), reason="there is no mpiexec beside this Python"
)


def mpiexec(ranks: int, *arguments: str, cwd: Path, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
    """`mxpeak ARGUMENTS` on its own ranks."""
    command = [str(MPIEXEC), "-n", str(ranks), *PYTHON, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout)


def call_on_ranks(
    ranks: int, module: str, function: str, *arguments: str, timeout: float = 300.0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """A function of a test module on every rank, with variables in its environment."""
    code = f"from {module} import {function}; {function}(*{arguments})"
    return subprocess.run(
        [str(MPIEXEC), "-n", str(ranks), sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@dataclass(frozen=True, slots=True)
class Ended:
    """How one command ended: the exit code of every rank, and what all of them wrote."""

    codes: list[int]
    stdout: str
    stderr: str
    folder: Path

    @property
    def body(self) -> dict[str, Any]:
        """The result on stdout."""
        return json.loads(self.stdout)  # type: ignore[no-any-return]

    def file(self, name: str) -> dict[str, Any]:
        """A result in a file of its folder."""
        return json.loads((self.folder / name).read_text())  # type: ignore[no-any-return]

    def check(self, code: int) -> None:
        """All ranks ended with this code, none of them with a traceback."""
        assert set(self.codes) == {code}, (self.codes, self.stderr)
        assert "Traceback" not in self.stderr


def commands_on_ranks(
    ranks: int, commands: Mapping[str, list[str]], folder: Path, comm: str = "mpi", **variables: str
) -> dict[str, Ended]:
    """`mxpeak ARGUMENTS` for every entry, one after the other on the same ranks; each in the folder of its name.

    The ranks are connected by `comm`, MPI or torch.distributed, and have variables in their environment.
    """
    prepare(commands, folder)
    if comm == "torch":
        one = {"ranks": Check(ranks, "tests.support.ranks", "torch_rank", (str(folder),))}
        ended = run_checks(one, folder, **variables)["ranks"]
        assert ended.codes == [0] * ranks, ended.stderr
    else:
        run = call_on_ranks(ranks, "tests.support.ranks", "mpi_rank", str(folder), **variables)
        assert run.returncode == 0, run.stderr
    return what_ended(ranks, commands, folder)


class StandingRanks:
    """MPI ranks that wait for commands, and after them for those of other tests: a start serves them all."""

    def __init__(self, ranks: int, folder: Path):
        self._ranks, self._folder, self._calls = ranks, folder, count()
        self._errors = (folder / "stderr").open("w")
        code = f"from tests.support.ranks import standing_rank; standing_rank({str(folder)!r})"
        command = [str(MPIEXEC), "-n", str(ranks), sys.executable, "-c", code]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=self._errors, stderr=self._errors)

    def run(self, commands: Mapping[str, list[str]], folder: Path, timeout: float = 300.0) -> dict[str, Ended]:
        """`mxpeak ARGUMENTS` for every entry, one after the other; each in the folder of its name."""
        prepare(commands, folder)
        self._call(str(folder))
        until = time.monotonic() + timeout
        while not (folder / "done").exists():
            if self._process.poll() is not None or time.monotonic() > until:
                self._process.terminate()
                raise AssertionError((self._folder / "stderr").read_text())
            time.sleep(LOOK_S)
        return what_ended(self._ranks, commands, folder)

    def end(self) -> None:
        """They wait no longer."""
        self._call("")
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.terminate()
        self._errors.close()

    def _call(self, what: str) -> None:
        """Leave a message, which appears whole."""
        call = self._folder / f"{next(self._calls)}.call"
        call.with_suffix(".written").write_text(what)
        call.with_suffix(".written").rename(call)


def standing_rank(folder: str) -> None:
    """One rank's part of `StandingRanks`.  It waits asleep: a rank that waits in MPI takes a core."""
    from mxpeak.comm.mpi import world

    comm = world()
    for call in count():
        while not (path := Path(folder) / f"{call}.call").exists():
            time.sleep(LOOK_S)
        if not (commands := path.read_text()):
            return
        run_commands(Path(commands), comm)


def mpi_rank(folder: str) -> None:
    """One rank's part of `commands_on_ranks` over MPI."""
    from mxpeak.runtime import launch

    run_commands(Path(folder), launch.start())


def torch_rank() -> None:
    """One rank's part of `commands_on_ranks` over torch.distributed, whose ranks meet once."""
    from mxpeak.runtime import launch

    comm = launch.start()
    launch.start = lambda asked="auto": comm
    run_commands(Path(sys.argv[1]), comm)


def prepare(commands: Mapping[str, list[str]], folder: Path) -> None:
    """A folder for each command, and the commands where the ranks find them."""
    for name in commands:
        (folder / name).mkdir(exist_ok=True)
    (folder / "commands.json").write_text(json.dumps(commands))


def run_commands(folder: Path, comm: Communicator) -> None:
    """One rank's part of all commands."""
    from mxpeak.cli.main import main

    for name, arguments in json.loads((folder / "commands.json").read_text()).items():
        out, err = io.StringIO(), io.StringIO()
        os.chdir(folder / name)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(arguments)
        said = {"code": code, "stdout": out.getvalue(), "stderr": err.getvalue()}
        (folder / f"{name}.{comm.rank}.json").write_text(json.dumps(said))
        comm.barrier()
    if comm.rank == 0:
        (folder / "done").touch()


def what_ended(ranks: int, commands: Mapping[str, list[str]], folder: Path) -> dict[str, Ended]:
    """How the commands ended on all ranks."""
    found = {}
    for name in commands:
        parts = [json.loads((folder / f"{name}.{rank}.json").read_text()) for rank in range(ranks)]
        codes, out, err = ([part[key] for part in parts] for key in ("code", "stdout", "stderr"))
        found[name] = Ended(codes, "".join(out), "".join(err), folder / name)
    return found
