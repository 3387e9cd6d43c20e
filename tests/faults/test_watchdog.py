"""A rank that no longer answers: the others say whom they wait for, and the job ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

from tests.support.processes import started
from tests.support.ranks import PYTHON, needs_mpi
from tests.support.result_file import VALIDATOR

pytestmark = needs_mpi

WAITS = r"this rank waits for (a message (from|to be taken by) rank 1|.* all 2 ranks of 0 to 1)$"


def test_a_rank_that_is_stopped_is_named_by_the_one_that_waits_for_it(tmp_path: Path) -> None:
    command = [*PYTHON, "run", "hpl", "-N", "5000", "--nb", "8", "--grid", "1x2", "--ranks", "2"]
    command += ["--warmup", "none", "--watchdog", "5,3", "--events", "events", "--out", "results"]
    with started(command, cwd=tmp_path) as run:
        victim = rank_at_work(1, tmp_path, run)
        os.kill(victim, signal.SIGSTOP)
        _, err = run.communicate(timeout=240)
    assert run.returncode == 6, err
    assert "[rank 0 " in err
    assert re.search(WAITS, err, re.MULTILINE)
    assert "[rank 1 " not in err
    assert gone(victim), "it was ended with the others"
    result = json.loads((tmp_path / "results" / "result.json").read_text())
    VALIDATOR.validate(result)
    assert result["status"] == "aborted"
    assert re.search(WAITS, result["telemetry"]["aborted"]["reason"])


def rank_at_work(rank: int, folder: Path, run: subprocess.Popen[str]) -> int:
    """The process of a rank that runs in this folder, once steps have been done."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and run.poll() is None:
        events = folder / "events"
        if events.exists() and '"step"' in events.read_text():
            (found,) = [int(entry.name) for entry in Path("/proc").iterdir() if is_rank(entry, rank, folder)]
            return found
        time.sleep(0.1)
    raise AssertionError("no step was done")


def gone(pid: int) -> bool:
    """Whether a process has ended, or does within 15 seconds: the launcher may have ended before it is."""
    deadline = time.monotonic() + 15
    while (there := Path(f"/proc/{pid}").exists()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not there


def is_rank(process: Path, rank: int, folder: Path) -> bool:
    try:
        environ = (process / "environ").read_bytes().split(b"\0")
        here = (process / "cwd").resolve() == folder.resolve()
    except OSError:
        return False
    return here and f"PMI_RANK={rank}".encode() in environ
