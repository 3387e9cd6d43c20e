"""Run commands over MPI with wrong products on rank 1."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.runtime import launch
from tests.support.ranks import run_commands


def off_by_a_bit(folder: str) -> None:
    """Change the last bit of one entry in each product of rank 1."""

    def spoil(C: Any) -> None:
        C.view("i4")[-1, -1] += 1

    _run(folder, spoil)


def off_by_a_half(folder: str) -> None:
    """Add 1/2 to one entry in each product of rank 1."""

    def spoil(C: Any) -> None:
        C[-1, -1] += 0.5

    _run(folder, spoil)


def _run(folder: str, spoil: Callable[[Any], None]) -> None:
    comm = launch.start()
    right = HostKernels.subtract_product

    def wrong(self: HostKernels, C: Any, A: Any, B: Any) -> None:
        right(self, C, A, B)
        if C.size and comm.rank == 1:
            spoil(C)

    with patch.object(HostKernels, "subtract_product", wrong):
        run_commands(Path(folder), comm)
