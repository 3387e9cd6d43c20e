"""Test messages in device memory at the start, and stage them through host memory if the test fails."""

from __future__ import annotations

import sys
from contextlib import suppress
from os import sched_yield
from time import monotonic

from mxpeak.comm.base import Communicator, DeviceTransport, Request

#: Seconds after which a message of the test counts as lost.
PATIENCE_S = 30.0
TAG = 6900  # a multiple of FAMILY

#: Messages that failed their test: the library may still write to their buffers.
_abandoned: list[object] = []


def check_device_messages(
    comm: Communicator, transport: DeviceTransport, patience_s: float = PATIENCE_S
) -> Communicator:
    """Return the group with messages in device memory, or with messages staged through host memory if the test fails.

    If the library reports support, neighbors in a ring exchange a test pattern in both directions. If messages are
    staged, rank 0 prints the reason. Collective over comm.
    """
    staged = comm.with_transport(transport.staged())
    if comm.size == 1:
        return staged
    direct = comm.direct(transport)
    if direct is None:
        _say(comm, transport, f"{comm.name} reports no support for the memory of these devices ({transport.kind})")
        return staged
    if not comm.agree(_works(direct, transport, patience_s)):
        _say(comm, transport, f"{comm.name} reports support for the memory of these devices, but lost a test message")
        return staged
    return direct


def _say(comm: Communicator, transport: DeviceTransport, why: str) -> None:
    remedy = "; if it supports it, set MXPEAK_GPU_AWARE_MPI=yes" if comm.name == "mpi" and "no support" in why else ""
    if comm.rank == 0:
        with suppress(OSError):  # a broken stderr must not end a run
            text = f"note: messages are staged through {transport.staged().name}: {why}{remedy}"
            print(text, file=sys.stderr, flush=True)


def _works(comm: Communicator, transport: DeviceTransport, patience_s: float) -> bool:
    """Exchange test patterns with both neighbors, and return whether both patterns arrived unchanged in time.

    An error of the library counts as a failure.
    """
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    pattern, from_left, from_right = transport.pattern(comm.rank), transport.blank(), transport.blank()
    under_way: list[Request] = []
    try:
        for dest, into, source in ((right, from_left, left), (left, from_right, right)):
            under_way.append(comm.irecv(into, source, TAG))
            under_way.append(comm.isend(pattern, dest, TAG))
            _wait(under_way, monotonic() + patience_s)
        return transport.equal(from_left, transport.pattern(left)) and transport.equal(
            from_right, transport.pattern(right)
        )
    except Exception:  # any error means that these messages do not work
        _abandoned.extend([pattern, from_left, from_right, *under_way])
        return False


def _wait(under_way: list[Request], until: float) -> None:
    while not all([request.test() for request in under_way]):
        if monotonic() > until:
            raise TimeoutError
        sched_yield()
