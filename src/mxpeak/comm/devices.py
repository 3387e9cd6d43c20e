"""Device buffers as messages: tried at start with a known buffer both ways, and staged where that fails."""

from __future__ import annotations

import sys
from contextlib import suppress
from os import sched_yield
from time import monotonic

from mxpeak.comm.base import Communicator, DeviceTransport, Request

#: A message of the test that takes longer will never come.
PATIENCE_S = 30.0
TAG = 6900  # a multiple of FAMILY

#: Messages that failed their test: the library may still write to them.
_abandoned: list[object] = []


def check_device_messages(
    comm: Communicator, transport: DeviceTransport, patience_s: float = PATIENCE_S
) -> Communicator:
    """The group with device buffers as messages, or with the same staged through host memory where they do not work.

    Neighbours in a ring exchange a known buffer both ways, where the library says that it can.  What is done instead is
    said in one sentence by rank 0.  Collective over comm.
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
    """Whether what the neighbours sent is here, from either side; an error of the library is a no."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    mine, from_left, from_right = transport.known(comm.rank), transport.unknown(), transport.unknown()
    under_way: list[Request] = []
    try:
        for dest, into, source in ((right, from_left, left), (left, from_right, right)):
            under_way.append(comm.irecv(into, source, TAG))
            under_way.append(comm.isend(mine, dest, TAG))
            _wait(under_way, monotonic() + patience_s)
        return transport.equal(from_left, transport.known(left)) and transport.equal(from_right, transport.known(right))
    except Exception:  # whatever it is, these messages do not work
        _abandoned.extend([mine, from_left, from_right, *under_way])
        return False


def _wait(under_way: list[Request], until: float) -> None:
    while not all([request.test() for request in under_way]):
        if monotonic() > until:
            raise TimeoutError
        sched_yield()
