"""Test which operations the detector of races reports, and which it does not report."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from mxpeak.comm.base import Communicator
from mxpeak.kernels.torch.engine.device import Device
from tests.support.queues.device import on_virtual_gpus
from tests.support.queues.races import Race, races
from tests.support.queues.transports import mpi

WHERE = torch.device("cuda", 0)


def races_of(body: Callable[[Device], Any]) -> list[Race]:
    """Return the races among the operations that a function starts on one virtual GPU."""
    with mpi() as of:
        _, (log,) = on_virtual_gpus(1, lambda comm: body(Device(WHERE, triton=False)), of)
    return races(log)


def begun_aside(device: Device, *, joined: bool = False, columns: slice = slice(None)) -> None:
    """Write a matrix in the side stream and read some of its columns in the main stream."""
    A = torch.zeros(6, 8, device=WHERE)
    with device.side_stream():
        A[:, :4].fill_(1.0)
    if joined:
        device.join()
    A[:, columns].sum()
    device.wait()


def test_a_read_that_nothing_orders_after_a_write_names_both() -> None:
    (race,) = races_of(begun_aside)
    first, second = str(race).split("\n  and  ")
    assert "fill_" in first
    assert "stream 1" in first
    assert "sum" in second
    assert "main" in second


def test_what_an_event_orders_or_lies_in_other_columns_is_no_race() -> None:
    assert not races_of(lambda device: begun_aside(device, joined=True))
    assert not races_of(lambda device: begun_aside(device, columns=slice(4, None)))
    assert len(races_of(lambda device: begun_aside(device, columns=slice(3, None)))) == 1


@pytest.mark.parametrize("waits", [True, False])
def test_the_host_must_wait_for_a_copy_before_it_reads_it(waits: bool) -> None:
    def body(device: Device) -> None:
        x = torch.ones(4, device=WHERE)
        there = torch.empty(4, pin_memory=True)
        there.copy_(x, non_blocking=True)
        if waits:
            torch.cuda.current_stream(WHERE).synchronize()
        there.tolist()

    races = races_of(body)
    assert bool(races) != waits
    assert waits or "read by the host" in str(races[0])


@pytest.mark.parametrize("joined", [True, False])
def test_memory_may_end_only_after_every_stream_is_done_with_it(joined: bool) -> None:
    def body(device: Device) -> None:
        x = torch.ones(4, device=WHERE)
        with device.side_stream():
            x.add_(1.0)
        if joined:
            device.join()
        del x

    races = races_of(body)
    assert bool(races) != joined
    assert joined or "the end of the memory" in str(races[0])


@pytest.mark.parametrize("waits", [True, False])
def test_a_buffer_may_be_written_again_only_after_its_message(waits: bool) -> None:
    """MPI may read it until the request is complete, even if the message was sent long ago."""

    def body(comm: Communicator) -> None:
        transport = Device(WHERE, triton=False)
        x = torch.ones(4, device=WHERE)
        torch.cuda.current_stream(WHERE).synchronize()
        if comm.rank == 0:
            request = comm.isend(x, 1)
            if waits:
                request.wait()
            x.fill_(2.0)
        else:
            comm.irecv(x, 0).wait()
        transport.wait()

    with mpi() as of:
        _, logs = on_virtual_gpus(2, body, of)
    races_of_sender = races(logs[0])
    assert bool(races_of_sender) != waits
    assert waits or "MPI send" in str(races_of_sender[0])
    assert not races(logs[1])


def test_numbers_that_the_host_reads_are_waited_for_and_counted() -> None:
    def body(comm: Communicator) -> float:
        with nullcontext():
            return float(torch.full((3,), 2.0, device=WHERE).sum())

    with mpi() as of:
        (value,), (log,) = on_virtual_gpus(1, body, of)
    assert value == 6.0
    assert sum(getattr(record, "number", False) for record in log.records) == 1
