"""A communicator of one rank: nothing to send, nobody to wait for."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from mxpeak.comm.base import ARRAYS, Buffer, Communicator, DeviceTransport, Envelope, Request, Transport


class Done:
    """A request that was complete from the start."""

    def test(self) -> bool:
        """Yes."""
        return True

    def wait(self) -> None:
        """Return at once."""


class Solo:
    """The group of the calling process alone."""

    name = "solo"
    rank = 0
    size = 1

    def __init__(self, transport: Transport = ARRAYS):
        self.transport = transport

    def with_transport(self, transport: Transport) -> Communicator:
        """The same rank; there are no messages."""
        return Solo(transport)

    def direct(self, transport: DeviceTransport) -> Communicator | None:
        """The same rank; there are no messages."""
        return Solo(transport)

    def isend(self, buffer: Buffer, dest: int, tag: int = 0) -> Request:
        """Never called by a correct algorithm: there is nobody else."""
        raise AssertionError("a single rank has no other rank to send to")

    irecv = isend

    def repeated(self, sends: Sequence[Envelope], receives: Sequence[Envelope]) -> None:
        """There is no quicker way."""

    def ibcast(self, buffer: Buffer, root: int) -> Request:
        """The only rank has it already."""
        return Done()

    def allreduce(self, buffer: Buffer, op: str) -> None:
        """The only contribution is the result."""

    def barrier(self) -> None:
        """Everybody is here."""

    def bcast_object(self, obj: Any, root: int = 0) -> Any:
        """The object itself."""
        return obj

    def gather_objects(self, obj: Any, root: int = 0) -> list[Any] | None:
        """The list of the one object."""
        return [obj]

    def split(self, color: int | None, key: int) -> Communicator | None:
        """The same group, or none."""
        return None if color is None else Solo(self.transport)

    def free(self) -> None:
        """There is nothing to give up."""

    def agree(self, ok: bool) -> bool:
        """What the only rank says."""
        return ok

    def abort(self, code: int) -> None:
        """End the process at once."""
        if sys.stderr is not None:
            sys.stderr.flush()
        os._exit(code)
