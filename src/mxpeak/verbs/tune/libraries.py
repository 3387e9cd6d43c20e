"""Check the BLAS libraries that `mxpeak tune --blas` compares, on the ranks that will use them."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mxpeak.errors import ResourceError
from mxpeak.perf.tuned import read_journal
from mxpeak.verbs.tune.groups import RankPool, Stopped
from mxpeak.verbs.tune.job import TuneJob
from mxpeak.verbs.tune.plan import TunePlan

#: Signals of a process that a library has crashed, for example a library for a newer processor.
CRASHES = {128 + number for number in (signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV)}


def checked_libraries(plan: TunePlan, names: Sequence[str], group: RankPool) -> dict[str, dict[str, Any]]:
    """Open BLAS libraries on the ranks of the first layout, and return the file of each.

    A library that cannot be opened, gives wrong results or crashes is refused with a ResourceError.
    """
    layout, crash = plan.layouts[0], 0
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "libraries.jsonl"
        job = TuneJob(
            ranks=layout.ranks, threads=layout.threads, tasks=[{"do": "libraries", "names": list(names)}],
            journal=str(journal), until_unix=time.time() + 3600.0, device=plan.device, kernels=plan.kernels,
            comm=plan.comm, quiet=plan.quiet,
        )  # fmt: skip
        try:
            group.do(job)
        except Stopped as stopped:
            if stopped.code not in CRASHES:
                raise
            crash = stopped.code
        records = read_journal(journal.read_text(encoding="utf-8"))[0] if journal.exists() else []
    for record in records:
        if record["refused"]:
            raise ResourceError(record["refused"])
    files = {record["name"]: record["file"] for record in records}
    if missing := [name for name in names if name not in files]:
        reason = f"crashes with {signal.Signals(crash - 128).name}" if crash else "could not be checked"
        raise ResourceError(f"--blas {missing[0]}: the library {reason}; use another library")
    return files
