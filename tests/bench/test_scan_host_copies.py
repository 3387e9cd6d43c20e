"""Test the rates of copies between a device and its host in a scan, and a copy that changes a bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mxpeak.comm.transports.solo import Solo
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.perf.sensors.contract import Sensors
from mxpeak.report.scan_text import scan_text
from mxpeak.spans import Spans
from mxpeak.verbs.scan import run as scan_run
from mxpeak.verbs.scan.config import ScanConfig
from mxpeak.verbs.scan.host_copies import HostCopies
from mxpeak.verbs.scan.probes import Size
from mxpeak.verbs.scan.units import Unit
from tests.support.scans import scan_body

SIDE = 96


class Staged:
    """Copies between arrays, one of which simulates device memory; `spoils` names the direction with an error."""

    def __init__(self, spoils: str = ""):
        self._spoils = spoils

    def outgoing(self, buffer: Any) -> Any:
        return self._copy(buffer.reshape(-1), "d2h")

    def incoming(self, buffer: Any) -> Any:
        memory = np.full(buffer.size, np.nan)

        def land() -> None:
            buffer.reshape(-1)[:] = self._copy(memory, "h2d")

        return memory, land

    def _copy(self, values: Any, direction: str) -> Any:
        copied = values.copy()
        if direction == self._spoils:
            copied.view(np.uint64)[7] ^= 1
        return copied


def measured(spoils: str) -> scan_run.Record:
    """Return the record of one rank."""
    kernels, comm = HostKernels(1), Solo()
    record = scan_run.Record({}, "invented")
    copies = HostCopies(kernels, comm, Staged(spoils), SIDE)
    config = ScanConfig(rounds=2, warmup="none")
    unit = Unit(comm, "0", 1)
    scan_run.measure(record, Size(64, 16, "fp32"), config, kernels, comm, Spans(), Sensors(), unit, copies)
    return record


@pytest.mark.parametrize("spoils", ["", "d2h", "h2d"])
def test_copies_have_rates_and_a_changed_bit_in_either_direction_changes_the_result(spoils: str) -> None:
    record = measured(spoils)
    assert list(record.rates) == ["lu", "gemm", "read", "d2h", "h2d"]
    assert all(len(rounds) == 2 and min(rounds) > 0 for rounds in record.rates.values())
    assert record.bits.keys() == {"lu", "gemm", "h2d"}
    assert len(set(record.bits["h2d"])) == 1
    assert (record.bits["h2d"] == measured("").bits["h2d"]) == (not spoils)


def test_copies_are_in_the_table_of_the_peers_in_bytes() -> None:
    body = scan_body(4, copies=True)
    lines = [line.split() for line in scan_text(body).splitlines()]
    assert ["D2H", "55.2", "55.1", "55.0", "0.1", "%", "52.3", "GB/s"] in [line[:8] for line in lines]
