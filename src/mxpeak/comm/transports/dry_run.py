"""Ranks that are only thought of: what a run on so many would do is asked of one process, and no MPI is needed."""

from __future__ import annotations

from typing import Any

from mxpeak.comm.base import Communicator
from mxpeak.comm.transports.solo import Solo


class DryRunCommunicator(Solo):
    """So many ranks of this host, each of which would say what the calling process says."""

    name = "auto"  # what would join them is not known yet

    def __init__(self, size: int):
        super().__init__()
        self.size = size

    def gather_objects(self, obj: Any, root: int = 0) -> list[Any] | None:
        """What everybody would say."""
        return [obj] * self.size

    def split(self, color: int | None, key: int) -> Communicator | None:
        """All of them are in one part."""
        return None if color is None else DryRunCommunicator(self.size)
