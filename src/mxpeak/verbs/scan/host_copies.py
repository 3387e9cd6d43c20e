"""Measure the copies between a device and pinned host memory, and check them bitwise.

All ranks copy at the same time, as in a run that sends messages through host memory. Each copy uses the memory and the
stream of such messages.
"""

from __future__ import annotations

from typing import Any

from mxpeak.async_buffer import fulfilled
from mxpeak.comm.base import Communicator, Transport
from mxpeak.kernels.contract import Kernels
from mxpeak.verbs.scan.links import GPU_SIDE, pattern
from mxpeak.verbs.scan.probes import Probe

#: Copies in each direction per round, of 72 MiB each.
COPIES = 16


class HostCopies:
    """The buffers of a rank for copies: a pattern on the device, and device memory that receives the pattern again."""

    def __init__(self, kernels: Kernels, comm: Communicator, staged: Transport, side: int = GPU_SIDE):
        self._kernels, self._staged = kernels, staged
        self._pattern = pattern(kernels, comm, side)
        self._received = kernels.buffer(side * side).reshape((side, side))
        self._amount = COPIES * 8.0 * side * side
        self._land: Any = None

    def probes(self, unit_ranks: int) -> list[Probe]:
        """Return the measures of the copies to the host and to the device, for units of `unit_ranks` ranks."""
        amount = unit_ranks * self._amount
        return [
            Probe("d2h", amount, self._to_host, lambda: [self._to_host() for _ in range(COPIES)]),
            Probe("h2d", amount, self._prepare, lambda: [self._land() for _ in range(COPIES)], self._bits),
        ]

    def _to_host(self) -> Any:
        return fulfilled(self._staged.outgoing(self._pattern))

    def _prepare(self) -> None:
        """Copy the pattern to the host memory from which the device will read it, and clear the device memory."""
        memory, self._land = self._staged.incoming(self._received)
        memory[:] = self._to_host()
        self._received[:] = 0.0

    def _bits(self) -> str:
        """Return the digest of the pattern after a copy to the host and a copy back to the device."""
        return self._kernels.digest(self._received)
