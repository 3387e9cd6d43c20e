"""Communicators that send no messages: for one rank, and for dry runs of many ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from mxpeak.comm.base import ARRAYS, Buffer, Communicator, DeviceTransport, Envelope, Request, Transport


class Done:
    """A request that is complete from the start."""

    def test(self) -> bool:
        """Return True."""
        return True

    def wait(self) -> None:
        """Return immediately."""


class Solo:
    """The group that consists of the calling process alone."""

    name = "solo"
    rank = 0
    size = 1

    def __init__(self, transport: Transport = ARRAYS):
        self.transport = transport

    def with_transport(self, transport: Transport) -> Communicator:
        """Return this group, which has no messages."""
        return Solo(transport)

    def direct(self, transport: DeviceTransport) -> Communicator | None:
        """Return this group, which has no messages."""
        return Solo(transport)

    def isend(self, buffer: Buffer, dest: int, tag: int = 0) -> Request:
        """Raise an error, because there is no other rank."""
        raise AssertionError("a single rank has no other rank to send to")

    irecv = isend

    def repeated(self, sends: Sequence[Envelope], receives: Sequence[Envelope]) -> None:
        """Return None, because there is no other rank."""

    def ibcast(self, buffer: Buffer, root: int) -> Request:
        """Return a complete request."""
        return Done()

    def allreduce(self, buffer: Buffer, op: str) -> None:
        """Leave the buffer unchanged, because it is the sum or the maximum over one rank."""

    def barrier(self) -> None:
        """Return immediately."""

    def bcast_object(self, obj: Any, root: int = 0) -> Any:
        """Return the object itself."""
        return obj

    def gather_objects(self, obj: Any, root: int = 0) -> list[Any] | None:
        """Return a list that contains only the object."""
        return [obj]

    def split(self, color: int | None, key: int) -> Communicator | None:
        """Return this group, or None for color None."""
        return None if color is None else Solo(self.transport)

    def free(self) -> None:
        """Do nothing."""

    def agree(self, ok: bool) -> bool:
        """Return `ok`."""
        return ok

    def abort(self, code: int) -> None:
        """End the process immediately."""
        if sys.stderr is not None:
            sys.stderr.flush()
        os._exit(code)


class DryRunCommunicator(Solo):
    """A communicator for dry runs: the calling process answers for P ranks of this host."""

    name = "auto"  # the transport of the planned run is unknown

    def __init__(self, size: int):
        super().__init__()
        self.size = size

    def gather_objects(self, obj: Any, root: int = 0) -> list[Any] | None:
        """Return a list that contains the object P times."""
        return [obj] * self.size

    def split(self, color: int | None, key: int) -> Communicator | None:
        """Return this group for any color: all P ranks are one group."""
        return None if color is None else DryRunCommunicator(self.size)
