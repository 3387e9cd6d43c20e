"""Test that several virtual GPUs compute norms before the host waits for one of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from mxpeak.comm.base import Communicator
from mxpeak.errors import ResourceError
from mxpeak.kernels.contract.norms import Tile
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.norms.norms import TorchNorms
from mxpeak.layout.index_map import consecutive
from mxpeak.layout.structure import Band
from mxpeak.runtime import placement
from tests.support.queues import device as virtual
from tests.support.queues import runs
from tests.support.queues.device import on_virtual_gpus
from tests.support.queues.log import HOST, Op, Wait
from tests.support.queues.races import races
from tests.support.queues.transports import mpi

ROWS, COLUMNS = 6, 5


def test_every_device_has_begun_before_the_host_waits() -> None:
    values = np.random.default_rng(0).standard_normal((3 * ROWS, COLUMNS))
    begun: list[int] = []

    def body(comm: Communicator) -> tuple[float, list[float]]:
        devices = [Device(torch.device("cuda", i), triton=False) for i in range(3)]
        tiles = [
            Tile(device.tensor(values[i * ROWS : (i + 1) * ROWS]), consecutive(ROWS), consecutive(COLUMNS), i * ROWS, 0)
            for i, device in enumerate(devices)
        ]
        norms = TorchNorms(*devices)
        begun.append(len(log_of()))
        parts = norms.norm_pass(tiles, Band(), ("max", "columns"), 3 * ROWS, COLUMNS)
        return parts.top, parts.by_column.tolist()

    def log_of() -> list[object]:
        from tests.support.queues.rank import here

        return list(here().log.records)

    with mpi() as of:
        ((top, sums),), (log,) = on_virtual_gpus(1, body, of)
    assert top == np.abs(values).max()
    assert np.allclose(sums, np.abs(values).sum(axis=0), rtol=1e-15)
    assert not races(log)
    after = log.records[begun[0] :]
    first_number = next(k for k, one in enumerate(after) if isinstance(one, Wait) and one.actor == HOST and one.number)
    actors = {one.actor for one in after[:first_number] if isinstance(one, Op)}
    assert {"main 0", "main 1", "main 2"} <= actors


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_benchmark_uses_several_devices_per_rank(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    """Whole runs: every device stores and reads tiles, values are checked, and no two operations race."""
    monkeypatch.setattr(placement, "gpu_buses", lambda device: [f"0000:{k:02x}:00.0" for k in range(2 * ranks)])
    monkeypatch.setattr(
        virtual, "_opened", lambda name, number=0: Device(torch.device("cuda", number), triton=False, poison=True)
    )
    asked: dict[str, Any] = {"layout": ("tiles",), "nb": (4,), "devices_per_rank": 2, "n": (17,)}
    results, logs = runs.benchmark("norms", (1, ranks), "mpi", **asked, trans=("n", "t"))
    assert all(result.passed for result in results[0])
    assert {result.problem["devices_per_rank"] for result in results[0]} == {2}
    used = {one.actor for log in logs for one in log.records if isinstance(one, Op) and one.actor != HOST}
    assert used >= {f"main {device}" for device in range(2 * ranks)}
    assert [len(races(log)) for log in logs] == [0] * ranks


def test_too_few_devices_are_refused_with_the_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "gpu_buses", lambda device: ["0000:00:00.0", "0000:01:00.0"])
    with pytest.raises(ResourceError, match=r"need 2\*4 = 8 devices, but 2 are visible; use --devices-per-rank 1"):
        runs.benchmark("norms", (1, 2), "mpi", layout=("tiles",), devices_per_rank=4)
