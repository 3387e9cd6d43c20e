"""Real ranks under mpiexec or torchrun: one command on them, or many in one start.

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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

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
    ranks: int,
    commands: Mapping[str, list[str]],
    folder: Path,
    comm: str = "mpi",
    timeout: float = 300.0,
    **variables: str,
) -> dict[str, Ended]:
    """`mxpeak ARGUMENTS` for every entry, one after the other on the same ranks; each in the folder of its name.

    The ranks are connected by `comm`, MPI or torch.distributed, and have variables in their environment.
    """
    for name in commands:
        (folder / name).mkdir(exist_ok=True)
    (folder / "commands.json").write_text(json.dumps(commands))
    python = {"mpi": [str(MPIEXEC), "-n", str(ranks), sys.executable], "torch": [*TORCHRUN, str(ranks)]}[comm]
    run = subprocess.run(
        [*python, "-m", "tests.support.ranks", str(folder)],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert run.returncode == 0, run.stderr
    found = {}
    for name in commands:
        parts = [json.loads((folder / f"{name}.{rank}.json").read_text()) for rank in range(ranks)]
        codes, out, err = ([part[key] for part in parts] for key in ("code", "stdout", "stderr"))
        found[name] = Ended(codes, "".join(out), "".join(err), folder / name)
    return found


def main(folder: Path) -> None:
    """One rank's part of `commands_on_ranks`."""
    from mxpeak.cli.main import main
    from mxpeak.runtime import launch

    comm = launch.start()
    if comm.name == "torch":  # its ranks meet once
        launch.start = lambda asked="auto": comm
    for name, arguments in json.loads((folder / "commands.json").read_text()).items():
        out, err = io.StringIO(), io.StringIO()
        os.chdir(folder / name)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(arguments)
        said = {"code": code, "stdout": out.getvalue(), "stderr": err.getvalue()}
        (folder / f"{name}.{comm.rank}.json").write_text(json.dumps(said))
        comm.barrier()
    if comm.name == "torch":  # ends as the console script does
        sys.modules["mxpeak.comm.torchdist"].depart(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
