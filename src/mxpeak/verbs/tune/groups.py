"""Who does a job: ranks that are started for it, or those that a launcher has started already."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from mxpeak.comm.base import Communicator
from mxpeak.errors import ExitCode, MxpeakError, UsageError
from mxpeak.runtime.launch import spawn
from mxpeak.verbs.tune.job import Job, perform


class Stopped(Exception):  # noqa: N818  (it is no error: the user asked for it)
    """Ranks were ended by a signal; `code` is what the whole ends with."""

    def __init__(self, code: int):
        super().__init__(code)
        self.code = code


class Group(Protocol):
    """What does jobs."""

    def do(self, job: Job) -> None:
        """Do a job; what it measures is in its journal."""


class Spawned:
    """A group of local ranks a job: `mxpeak tune --job FILE`, so that layouts may differ from job to job."""

    def do(self, job: Job) -> None:
        """Start the ranks and wait for them."""
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


class Standing:
    """All ranks that a launcher started; the others wait in `serve` for what rank 0 does."""

    def __init__(self, comm: Communicator, say: Callable[[str], None]):
        self._comm, self._say = comm, say

    def do(self, job: Job) -> None:
        """Do it together with all ranks."""
        self._comm.bcast_object(job)
        perform(job, self._comm, self._say)

    def serve(self) -> None:
        """Do what rank 0 asks for until it is done."""
        while (job := self._comm.bcast_object(None)) is not None:
            perform(job, self._comm, self._say)

    def dismiss(self) -> None:
        """Let the others go."""
        self._comm.bcast_object(None)
