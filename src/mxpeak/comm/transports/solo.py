"""Communicators that send no messages: for one rank, and for dry runs of many ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from mxpeak.comm.base import ARRAYS, Buffer, Communicator, DeviceTransport, Envelope, Request, Transport


class Done:
    """A request that is complete when it is created."""

    def test(self) -> bool:
        """Return True, because the request is complete."""
        return True

    def wait(self) -> None:
        """Return immediately, because the request is complete."""


class Solo:
    """The group that consists of the calling process alone."""

    name = "solo"
    rank = 0
    size = 1

    def __init__(self, transport: Transport = ARRAYS):
        self.transport = transport

    def with_transport(self, transport: Transport) -> Communicator:
        """Return a single-rank group with another transport."""
        return Solo(transport)

    def direct(self, transport: DeviceTransport) -> Communicator | None:
        """Return a single-rank group, which sends no messages and therefore supports any device."""
        return Solo(transport)

    def isend(self, buffer: Buffer, dest: int, tag: int = 0) -> Request:
        """Raise AssertionError, because there is no other rank."""
        raise AssertionError("a single rank has no other rank to send to")

    irecv = isend

    def repeated(self, sends: Sequence[Envelope], receives: Sequence[Envelope]) -> None:
        """Return None, because there is no other rank."""

    def ibcast(self, buffer: Buffer, root: int) -> Request:
        """Return a complete request, because the root is the only rank."""
        return Done()

    def allreduce(self, buffer: Buffer, op: str) -> None:
        """Leave the buffer unchanged, because it is the sum or the maximum over one rank."""

    def barrier(self) -> None:
        """Return immediately, because there is no other rank."""

    def bcast_object(self, obj: Any, root: int = 0) -> Any:
        """Return the object itself."""
        return obj

    def gather_objects(self, obj: Any, root: int = 0) -> list[Any] | None:
        """Return a list that contains only the object of this rank."""
        return [obj]

    def split(self, color: int | None, key: int) -> Communicator | None:
        """Return a single-rank group, or None if color is None."""
        return None if color is None else Solo(self.transport)

    def free(self) -> None:
        """Do nothing, because the group has no resources."""

    def agree(self, ok: bool) -> bool:
        """Return `ok`, because there is no other rank."""
        return ok

    def agree_within(self, ok: bool, limit_s: float) -> bool | None:
        """Return `ok`, because there is no other rank."""
        return ok

    def abort(self, code: int) -> None:
        """Flush stderr and end the process immediately with exit code `code`."""
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
        """Return a list that contains the object P times, once per rank."""
        return [obj] * self.size

    def split(self, color: int | None, key: int) -> Communicator | None:
        """Return a group of all P ranks for any color, or None if color is None."""
        return None if color is None else DryRunCommunicator(self.size)
