"""Groups of ranks that perform jobs: ranks that are started for each job, or the ranks of a launcher."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from mxpeak.comm.base import Communicator
from mxpeak.errors import ExitCode, MxpeakError, UsageError
from mxpeak.runtime.launch import spawn
from mxpeak.verbs.tune.job import TuneJob, perform


class Stopped(Exception):  # noqa: N818  (it is no error: the user asked for it)
    """Raised if a signal has ended the ranks; `code` is the exit code of tune."""

    def __init__(self, code: int):
        super().__init__(code)
        self.code = code


class RankPool(Protocol):
    """A group of ranks that performs jobs."""

    def do(self, job: TuneJob) -> None:
        """Perform a job, and write its measurements to the journal of the job."""


class StartedRanks:
    """Local ranks that are started for each job by `mxpeak tune --job FILE`. Layouts may differ between jobs."""

    def do(self, job: TuneJob) -> None:
        """Start the ranks of a job, wait until they have ended, and raise an error if they failed."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "job.json"
            file.write_text(json.dumps(job.as_dict()), encoding="utf-8")
            code = spawn(job.ranks, ["tune", "--job", str(file)], job.comm)
        if code > 128:
            raise Stopped(code)
        if code == ExitCode.USAGE:
            raise UsageError(
                f"mxpeak tune could not start {job.ranks} ranks of {job.threads} threads; see the messages "
                "above for the reason"
            )
        if code != ExitCode.VALID:
            raise MxpeakError(
                f"the ranks of mxpeak tune ended with exit code {code}; see the messages above for the reason"
            )


class LaunchedRanks:
    """All ranks of a launcher. Rank 0 calls `do`, and the other ranks wait in `serve`."""

    def __init__(self, comm: Communicator, say: Callable[[str], None]):
        self._comm, self._say = comm, say

    def do(self, job: TuneJob) -> None:
        """Send a job from rank 0 to the other ranks, and perform it on all ranks."""
        self._comm.bcast_object(job)
        perform(job, self._comm, self._say)

    def serve(self) -> None:
        """Receive and perform the jobs of rank 0 on this rank until rank 0 calls `dismiss`.

        All ranks raise the error of a job. Rank 0 reports it and calls `dismiss`, for which the other ranks wait.
        """
        while (job := self._comm.bcast_object(None)) is not None:
            with suppress(MxpeakError):
                perform(job, self._comm, self._say)

    def dismiss(self) -> None:
        """End `serve` on the other ranks."""
        self._comm.bcast_object(None)
