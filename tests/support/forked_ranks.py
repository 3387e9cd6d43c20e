"""Fork ranks of torch.distributed from one process that has loaded all modules.

A rank needs seconds to load PyTorch and the kernels, and most checks take less. The checks run one after the other,
each on its own ranks. Tests of torchrun itself need torchrun.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Modules that ranks need, imported before the fork.
NEEDED = (
    "mxpeak.cli.main",
    "mxpeak.runtime.launch",
    "mxpeak.comm.transports.torchdist",
    "mxpeak.kernels.torch.kernels",
    "mxpeak.kernels.host.kernels",
)
#: Seconds in which the ranks of a check must end.
PATIENCE_S = 100.0


@dataclass(frozen=True, slots=True)
class Check:
    """A function of a module, called on a number of ranks with arguments in sys.argv."""

    ranks: int
    module: str
    function: str
    arguments: tuple[str, ...] = ()
    folder: str = str(ROOT)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The exit codes of the ranks, negative for signals, and the output of each rank."""

    codes: list[int]
    stdout: list[str]
    stderr: list[str]


def run_checks(checks: Mapping[str, Check], folder: Path, **variables: str) -> dict[str, Outcome]:
    """Run checks with these environment variables, and return their outcomes by name."""
    plan = {name: [one.ranks, one.module, one.function, one.arguments, one.folder] for name, one in checks.items()}
    (folder / "plan.json").write_text(json.dumps(plan))
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.forked_ranks", str(folder)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=60 + len(checks) * PATIENCE_S,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads((folder / "outcomes.json").read_text())
    return {name: Outcome(**outcome) for name, outcome in found.items()}


def main(folder: Path) -> None:
    """Run the checks of a plan one after the other, and write their outcomes."""
    for module in NEEDED:
        import_module(module)
    outcomes = {}
    for name, (ranks, module, function, arguments, where) in json.loads((folder / "plan.json").read_text()).items():
        check, port = Check(ranks, module, function, tuple(arguments), where), free_port()
        written = [(folder / f"{name}.{rank}.out", folder / f"{name}.{rank}.err") for rank in range(ranks)]
        codes = all_ended([fork(rank, check, port, *files) for rank, files in enumerate(written)])
        out, err = ([file.read_text() for file in files] for files in zip(*written))
        outcomes[name] = {"codes": codes, "stdout": out, "stderr": err}
    (folder / "outcomes.json").write_text(json.dumps(outcomes))


def free_port() -> int:
    """Return a free port for the rendezvous of the ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def fork(rank: int, check: Check, port: int, out: Path, err: Path) -> int:
    """Start one rank of a check, and return its process ID."""
    child = os.fork()
    if not child:
        for stream, file in ((1, out), (2, err)):
            os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), stream)
        size = str(check.ranks)
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.chdir(check.folder)
        sys.argv = [check.module, *check.arguments]
        become(check)
    return child


def become(check: Check) -> None:
    """Run the check as a rank in this process, and exit like the console script."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background processes of a shell ignore it
    code = 1
    try:
        getattr(import_module(check.module), check.function)()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.modules["mxpeak.comm.transports.torchdist"].depart(code)


def all_ended(ranks: list[int]) -> list[int]:
    """Return the exit codes of the ranks, and kill ranks that do not end in time."""
    codes: dict[int, int] = {}
    patient_until = time.monotonic() + PATIENCE_S
    while len(codes) < len(ranks):
        for rank in set(ranks) - set(codes):
            if time.monotonic() > patient_until:
                os.kill(rank, signal.SIGKILL)
            ended, status = os.waitpid(rank, os.WNOHANG)
            if ended:
                codes[rank] = os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return [codes[rank] for rank in ranks]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
