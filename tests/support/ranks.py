"""Start real ranks under mpiexec or of torch.distributed, for one command or for many.

A start takes longer than most tests, because every rank loads Python, NumPy and Numba on few cores. Tests of the end of
a run (signals, crashes, mpiexec's exit code) need their own start. All other commands run one after the other on the
same ranks, each in its own folder.
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
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from mxpeak.comm.base import Communicator
from mxpeak.comm.transports.solo import Solo
from tests.support.forked_ranks import Check, run_checks

#: Seconds between polls for commands or for their end.
LOOK_S = 0.02
ROOT = Path(__file__).parents[2]
MPIEXEC = Path(sysconfig.get_path("scripts")) / "mpiexec"
PYTHON = [sys.executable, "-m", "mxpeak"]
#: Exit codes of mpiexec if a rank aborts with 1: MPICH's may report the SIGKILL that it sent to the other ranks.
ENDED_BY_A_RANK = (1, 9)
#: The start of torchrun's command, which continues with the number of ranks and Python's arguments.
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]

#: In CI a missing MPI is a failure.
needs_mpi = pytest.mark.skipif(
    not (os.environ.get("CI") or MPIEXEC.exists()), reason="there is no mpiexec beside this Python"
)


def mpiexec(ranks: int, *arguments: str, cwd: Path, timeout: float = 300.0) -> subprocess.CompletedProcess[str]:
    """Run `mxpeak ARGUMENTS` on its own ranks."""
    command = [str(MPIEXEC), "-n", str(ranks), *PYTHON, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout)


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a command: the exit code of every rank, and the output of all ranks."""

    codes: list[int]
    stdout: str
    stderr: str
    folder: Path

    @property
    def body(self) -> dict[str, Any]:
        """Return the result on stdout."""
        return json.loads(self.stdout)  # type: ignore[no-any-return]

    def file(self, name: str) -> dict[str, Any]:
        """Return a result in a file of its folder."""
        return json.loads((self.folder / name).read_text())  # type: ignore[no-any-return]

    def check(self, code: int) -> None:
        """Check that all ranks ended with this code and without a traceback."""
        assert set(self.codes) == {code}, (self.codes, self.stderr)
        assert "Traceback" not in self.stderr


class StandingRanks:
    """MPI ranks that wait for calls of any test; the first call, and the first after a failure, starts them."""

    def __init__(self, ranks: int, folder: Path):
        self._ranks, self._folder = ranks, folder
        self._calls = count()
        self._process: subprocess.Popen[bytes] | None = None

    def run(
        self, commands: Mapping[str, list[str]], folder: Path, module: str = __name__, function: str = "mpi_rank"
    ) -> dict[str, Ended]:
        """Run `mxpeak ARGUMENTS` for every entry, one after the other on the same ranks, in the folder of its name.

        module, function   the function that runs a rank's part in the given folder
        """
        prepare(commands, folder)
        self.call(module, function, str(folder))
        return what_ended(self._ranks, commands, folder)

    def call(self, module: str, function: str, *arguments: str, timeout: float = 300.0) -> None:
        """Call a function of a module on every rank; an error on one rank ends all ranks, and the test fails."""
        number = next(self._calls)
        self._leave(number, json.dumps([module, function, *arguments]))
        process, until = self._started(number), time.monotonic() + timeout
        while not (self._folder / f"{number}.done").exists():
            if process.poll() is not None or time.monotonic() > until:
                self.end()
                raise AssertionError((self._folder / "stderr").read_text()[-5000:])
            time.sleep(LOOK_S)

    def dismiss(self) -> None:
        """Let the ranks end after the last call, without waiting for them."""
        if self._process is not None:
            self._leave(next(self._calls), json.dumps([]))

    def end(self) -> None:
        """End the ranks."""
        if self._process is None:
            return
        self.dismiss()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()
        self._process = None

    def _leave(self, number: int, text: str) -> None:
        """Write a call by an atomic rename."""
        written = self._folder / f"{number}.written"
        written.write_text(text)
        written.rename(written.with_suffix(".call"))

    def _started(self, first: int) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            code = f"from tests.support.ranks import standing_rank; standing_rank({str(self._folder)!r}, {first})"
            with (self._folder / "stderr").open("w") as stderr:
                self._process = subprocess.Popen(
                    [str(MPIEXEC), "-n", str(self._ranks), sys.executable, "-c", code],
                    cwd=ROOT,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},  # of torch, which otherwise starts one thread per core
                    stdout=stderr,
                    stderr=stderr,
                )
        return self._process


def standing_rank(folder: str, first: int) -> None:
    """Run one rank's part of `StandingRanks`. It sleeps between polls, because a rank that waits in MPI uses a core.

    Within a call it waits as on a shared core; otherwise waits would take half of the time of calls.
    """
    from mxpeak.comm import base
    from mxpeak.comm.transports.mpi import world

    base.SHARED_S = -1.0
    comm = world()
    for number in count(first):
        os.chdir(ROOT)
        while not (call := Path(folder) / f"{number}.call").exists():
            time.sleep(LOOK_S)
        if not (what := json.loads(call.read_text())):
            return
        module, function, *arguments = what
        try:
            getattr(import_module(module), function)(*arguments)
        except BaseException:
            traceback.print_exc()
            comm.abort(1)
        comm.barrier()
        if comm.rank == 0:
            call.with_suffix(".done").touch()


def commands_of_torch(
    ranks: int, commands: Mapping[str, list[str]], folder: Path, **variables: str
) -> dict[str, Ended]:
    """Run `mxpeak ARGUMENTS` for every entry, one after the other on the same ranks of torch.distributed."""
    prepare(commands, folder)
    check = Check(ranks, "tests.support.ranks", "torch_rank", (str(folder),))
    ended = run_checks({"ranks": check}, folder, **variables)["ranks"]
    assert ended.codes == [0] * ranks, ended.stderr
    return what_ended(ranks, commands, folder)


def commands_here(commands: Mapping[str, list[str]], folder: Path) -> dict[str, Ended]:
    """Run `mxpeak ARGUMENTS` for every entry in this process as a single rank."""
    prepare(commands, folder)
    with contextlib.chdir(folder):
        run_commands(folder, Solo())
    return what_ended(1, commands, folder)


def mpi_rank(folder: str) -> None:
    """Run one rank's part of commands over MPI."""
    from mxpeak.runtime import launch

    run_commands(Path(folder), launch.start())


def torch_rank() -> None:
    """Run one rank's part of commands over torch.distributed, with one rendezvous."""
    from mxpeak.runtime import launch

    comm = launch.start()
    launch.start = lambda asked="auto", device="auto": comm
    run_commands(Path(sys.argv[1]), comm)


def prepare(commands: Mapping[str, list[str]], folder: Path) -> None:
    """Create a folder for each command, and write the commands to a file for the ranks."""
    for name in commands:
        (folder / name).mkdir(exist_ok=True)
    (folder / "commands.json").write_text(json.dumps(commands))


def run_commands(folder: Path, comm: Communicator) -> None:
    """Run one rank's part of all commands."""
    from mxpeak.cli.main import main

    for name, arguments in json.loads((folder / "commands.json").read_text()).items():
        out, err = io.StringIO(), io.StringIO()
        os.chdir(folder / name)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(arguments)
        said = {"code": code, "stdout": out.getvalue(), "stderr": err.getvalue()}
        (folder / f"{name}.{comm.rank}.json").write_text(json.dumps(said))
        comm.barrier()


def what_ended(ranks: int, commands: Mapping[str, list[str]], folder: Path) -> dict[str, Ended]:
    """Return the ends of the commands on all ranks."""
    ended = {}
    for name in commands:
        parts = [json.loads((folder / f"{name}.{rank}.json").read_text()) for rank in range(ranks)]
        codes, out, err = ([part[key] for part in parts] for key in ("code", "stdout", "stderr"))
        ended[name] = Ended(codes, "".join(out), "".join(err), folder / name)
    return ended
