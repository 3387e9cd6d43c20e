"""Norms of a matrix on several virtual GPUs: all of them work before the host waits for one."""

from __future__ import annotations

import numpy as np
import torch

from mxpeak.comm.base import Communicator
from mxpeak.kernels.contract.norms import Tile
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.norms.norms import TorchNorms
from mxpeak.layout.index_map import consecutive
from mxpeak.layout.structure import Band
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
            Tile(one.tensor(values[i * ROWS : (i + 1) * ROWS]), consecutive(ROWS), consecutive(COLUMNS), i * ROWS, 0)
            for i, one in enumerate(devices)
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
