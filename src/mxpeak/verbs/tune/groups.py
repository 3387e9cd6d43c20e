"""Perform jobs on a group of ranks: ranks that are started for a job, or the ranks of a launcher."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
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
        """Perform a job, and write its measurements to its journal."""


class StartedRanks:
    """Local ranks that are started per job by `mxpeak tune --job FILE`, so that layouts may differ between jobs."""

    def do(self, job: TuneJob) -> None:
        """Start the ranks of a job and wait until they have ended."""
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
    """All ranks of a launcher. The other ranks wait in `serve` for the jobs of rank 0."""

    def __init__(self, comm: Communicator, say: Callable[[str], None]):
        self._comm, self._say = comm, say

    def do(self, job: TuneJob) -> None:
        """Perform a job on all ranks."""
        self._comm.bcast_object(job)
        perform(job, self._comm, self._say)

    def serve(self) -> None:
        """Perform the jobs of rank 0 on this rank until `dismiss` is called."""
        while (job := self._comm.bcast_object(None)) is not None:
            perform(job, self._comm, self._say)

    def dismiss(self) -> None:
        """Make the other ranks return from `serve`."""
        self._comm.bcast_object(None)
