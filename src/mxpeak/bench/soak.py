"""A soak test: repeat one case for hours; all runs must give bitwise identical results on each rank.

The computation is deterministic. If the factors or the solution of two runs on the same ranks and threads differ,
hardware or system software has failed. The residual does not show a flip of a low bit.
"""

from __future__ import annotations

import socket
import time
from collections import Counter
from typing import Any

from mxpeak.comm.base import Communicator
from mxpeak.kernels.contract import Kernels, Matrix, Vector
from mxpeak.options import seconds
from mxpeak.records import Caution, Result

#: The largest number of runs of a soak test.
MAX_RUNS = 10_000
#: The maximum number of runs and ranks with different results that a message lists.
LISTED = 8


def bits_of(kernels: Kernels, A: Matrix, x: Vector) -> str:
    """Return a digest of this rank's factors and its part of x."""
    parts = [M for M in (A, x.reshape((1, -1))) if min(M.shape)]
    return " ".join(kernels.digest(M) for M in parts)


class Soak:
    """Compares the digests of the repeated runs on this rank, and measures the remaining time."""

    def __init__(self, length: str, comm: Communicator):
        self._length, self._comm, self._begin = seconds(length), comm, time.monotonic()
        self._bits: list[str] = []

    def continues_after(self, bits: str) -> bool:
        """Record the digest of a run, and return whether another run follows. Collective.

        A soak test has at least two runs. Further runs start until its time has passed, up to MAX_RUNS in total.
        """
        self._bits.append(bits)
        spent = time.monotonic() - self._begin
        continues = len(self._bits) < 2 or (spent < self._length and len(self._bits) < MAX_RUNS)
        return bool(self._comm.bcast_object(continues))

    def record_in(self, result: Result | None) -> None:
        """Record the number of runs in a result, and make the result invalid if a run differs from most runs.

        Collective.
        """
        usual = Counter(self._bits).most_common(1)[0][0]
        runs_here = [k for k, bits in enumerate(self._bits, 1) if bits != usual]
        ranks = self._comm.gather_objects((socket.gethostname(), runs_here))
        if result is None or ranks is None:
            return
        differ = [{"rank": rank, "host": host, "runs": runs} for rank, (host, runs) in enumerate(ranks) if runs]
        spent = time.monotonic() - self._begin
        result.telemetry["soak"] = {"runs": len(self._bits), "seconds": spent, "differ": differ}
        if differ:
            text, hint = _difference_text(differ, len(self._bits)), "test these hosts with mxpeak scan, and remove them"
            result.status = "invalid"
            result.validation.update(passed=False, outcome=text)
            result.warnings.append(Caution("soak", text, hint))


def _difference_text(differ: list[dict[str, Any]], runs: int) -> str:
    """Return a message about the runs whose results differ from those of most runs."""
    parts = []
    for rank in differ[:LISTED]:
        listed = ", ".join(map(str, rank["runs"][:LISTED])) + " …" * (len(rank["runs"]) > LISTED)
        parts.append(f"run {listed} on rank {rank['rank']} ({rank['host']})")
    more = f" and {len(differ) - LISTED} more ranks" if len(differ) > LISTED else ""
    return f"of {runs} runs of the same case, these are not bitwise identical to most: {'; '.join(parts)}{more}"
