"""A communicator for dry runs: one process answers for P ranks, without MPI."""

from __future__ import annotations

from typing import Any

from mxpeak.comm.base import Communicator
from mxpeak.comm.transports.solo import Solo


class DryRunCommunicator(Solo):
    """P ranks of this host, all of which answer like the calling process."""

    name = "auto"  # the transport of the planned run is unknown

    def __init__(self, size: int):
        super().__init__()
        self.size = size

    def gather_objects(self, obj: Any, root: int = 0) -> list[Any] | None:
        """Return the object P times."""
        return [obj] * self.size

    def split(self, color: int | None, key: int) -> Communicator | None:
        """Return all ranks as one group."""
        return None if color is None else DryRunCommunicator(self.size)
