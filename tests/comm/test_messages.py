"""Test tensors as messages between thread ranks, device buffers that fail their test, and copies in other streams."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

if not os.environ.get("CI"):  # there, a missing torch is a failure
    pytest.importorskip("torch", reason="PyTorch is not installed")

import torch

from mxpeak.async_buffer import AsyncBuffer
from mxpeak.comm.base import Task
from mxpeak.comm.broadcast import BROADCASTS, broadcast
from mxpeak.comm.deferred import Posts
from mxpeak.comm.devices import check_device_messages
from mxpeak.comm.exchange import gather_everywhere_binary, gather_everywhere_ring
from mxpeak.comm.transports.solo import Done, Solo
from mxpeak.comm.transports.threads import Threads, run_ranks
from mxpeak.errors import UsageError
from mxpeak.kernels.torch.engine import messages
from mxpeak.kernels.torch.engine.messages import HostTensors, StagedTensors, tensor_transport
from tests.support.tensor_checks import Device, Staged, check_tensors


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_tensors_of_every_type_travel_between_thread_ranks(size: int) -> None:
    run_ranks(size, check_tensors)


def test_a_host_tensor_is_sent_from_where_it_lies() -> None:
    x = torch.zeros(5, dtype=torch.bfloat16)
    array = HostTensors().outgoing(x)
    array[:] = 0xFF
    assert x.isnan().all()
    assert array.nbytes == 10


def test_strided_tensors_are_refused() -> None:
    with pytest.raises(RuntimeError):
        HostTensors().outgoing(torch.zeros(6, 6)[:, :3])


def test_only_fp64_numbers_are_summed_over_ranks() -> None:
    with pytest.raises(UsageError, match=r"need fp64, but the tensor has the type torch\.bfloat16"):
        Solo().with_transport(HostTensors()).transport.numbers(torch.zeros(3, dtype=torch.bfloat16))


# --- the test at start


def willing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the communicator of thread ranks report that it reads device memory."""
    monkeypatch.setattr(Threads, "direct", lambda self, transport: self.with_transport(transport))


@pytest.mark.parametrize("size", [2, 3, 4])
def test_device_buffers_that_arrive_are_sent_directly(
    size: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    willing(monkeypatch)
    names = run_ranks(size, lambda comm: check_device_messages(comm, Device()).transport.name)
    assert names == [Device.name] * size
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("fault", ["wrong", "raises", "silent"])
@pytest.mark.parametrize("size", [2, 3])
def test_a_device_that_fails_on_one_rank_is_staged_on_all_and_one_sentence_says_so(
    fault: str, size: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    willing(monkeypatch)

    def body(comm: Any) -> str:
        checked = check_device_messages(comm, Device(fault if comm.rank == size - 1 else ""), patience_s=0.5)
        x = torch.tensor([float(comm.rank)], dtype=torch.float64)
        checked.allreduce(x, "sum")
        assert x[0] == size * (size - 1) / 2
        return str(checked.transport.name)

    assert run_ranks(size, body) == [Staged.name] * size
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "staged through made-up host memory: threads reports support for the memory" in err


def test_a_library_that_does_not_claim_device_memory_is_not_tried(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_ranks(2, lambda comm: check_device_messages(comm, Device("raises")).transport.name)
    assert names == [Staged.name] * 2
    assert "threads reports no support for the memory" in capsys.readouterr().err
    assert check_device_messages(Solo(), Device("raises")).transport.name == Staged.name


def test_a_forwarded_message_is_copied_to_the_device_once() -> None:
    """Ranks in the middle forward the device copy of a received message, and do not copy it back first."""

    def body(comm: Any) -> None:
        for name in BROADCASTS:
            staged = Staged()
            message = torch.arange(37.0) if comm.rank == 0 else torch.full((37,), torch.nan)
            Task(broadcast(name, comm.with_transport(staged), message, 0)).wait()
            assert message.tolist() == list(range(37))
            assert (staged.down, staged.up) == ((1, 0) if comm.rank == 0 else (0, 1)), name
        for gather in (gather_everywhere_ring, gather_everywhere_binary):
            staged = Staged()
            pieces = [torch.full((3,), float(r) if r == comm.rank else torch.nan) for r in range(comm.size)]
            Task(gather(comm.with_transport(staged), pieces, 60)).wait()
            assert [piece[0] for piece in pieces] == list(range(comm.size))
            assert (staged.down, staged.up) == (1, comm.size - 1)

    run_ranks(5, body)


# --- messages that begin when their buffers are ready


class Mark:
    """An event that is complete once `past` is set."""

    def __init__(self) -> None:
        self.past = False

    def query(self) -> bool:
        return self.past

    def synchronize(self) -> None:
        self.past = True


def test_messages_begin_when_their_buffers_are_ready_and_those_of_a_channel_in_the_order_of_posting() -> None:
    posts, begun, first, second = Posts(), [], Mark(), Mark()

    def begin(memory: Any) -> Done:
        begun.append(memory)
        return Done()

    message = posts.post(AsyncBuffer("a", first), begin, "rows")
    two = posts.post(AsyncBuffer("b", second), begin, "rows")
    three = posts.post("c", begin, "rows")
    second.past = True
    assert not two.test()
    assert not three.test()
    assert begun == []
    assert posts.post("pivot", begin, "pivots").test(), (
        "a host's message does not wait for a device's of another channel"
    )
    assert posts.post(AsyncBuffer("panel", second), begin, "panels").test()
    assert begun == ["pivot", "panel"]
    first.past = True
    assert three.test()
    assert begun[2:] == ["a", "b", "c"]
    assert message.test()
    posts.post(AsyncBuffer("d", Mark()), begin, "rows")
    posts.post(AsyncBuffer("e", Mark()), begin, "panels")
    posts.flush()
    assert begun[-2:] == ["d", "e"]
    part = AsyncBuffer(np.arange(6), Mark(), lambda memory: memory + 1)[2:4]
    assert part.shape == (2,)
    assert part.fulfilled().tolist() == [3, 4]


# --- staging, with streams that record their calls ----------


class Event(str):
    def __new__(cls, name: str, log: list[str]) -> Event:
        made = super().__new__(cls, name)
        made.log = log  # type: ignore[attr-defined]
        return made

    def synchronize(self) -> None:
        self.log.append(f"wait for {self}")  # type: ignore[attr-defined]


class Stream:
    def __init__(self, log: list[str], name: str):
        self.log, self.name = log, name

    def wait_stream(self, other: Stream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: str) -> None:
        self.log.append(f"{self.name} waits for {event}")

    def record_event(self) -> Event:
        self.log.append(f"event on {self.name}")
        return Event(f"event on {self.name}", self.log)

    def synchronize(self) -> None:
        self.log.append(f"wait for {self.name}")


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Stage host tensors as tensors of a GPU; return the log of the calls of their streams."""
    log: list[str] = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda where: Stream(log, "copies"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda where: Stream(log, "work"))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(StagedTensors, "_carries", lambda self, buffer: isinstance(buffer, torch.Tensor))
    monkeypatch.setattr(messages, "_pinned", torch.empty_like)
    return log


def on_cpu() -> Any:
    return messages.Device(torch.device("cpu"), triton=False, poison=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float8_e4m3fn])
def test_a_staged_message_is_a_copy_that_is_whole_when_it_is_sent(dtype: torch.dtype, streams: list[str]) -> None:
    staged, x = StagedTensors(on_cpu()), torch.ones(7, dtype=dtype)
    buffer = staged.outgoing(x)
    x.zero_()
    assert streams == ["copies waits for work", "event on copies"], "nobody has waited yet"
    assert np.array_equal(buffer.fulfilled(), messages.flat(torch.ones(7, dtype=dtype)).numpy())
    assert streams[2:] == ["wait for event on copies"]


def test_a_staged_arrival_waits_for_what_may_still_read_the_buffer_and_for_nothing_later(streams: list[str]) -> None:
    staged, x = StagedTensors(on_cpu()), torch.zeros(7)
    memory, land = staged.incoming(x)
    assert streams == ["event on work"]
    memory[:] = 5.0
    assert x.sum() == 0, "not before it has landed"
    assert land is not None
    land()
    assert x.tolist() == [5.0] * 7
    assert streams == ["event on work", "copies waits for event on work", "wait for copies"]


def test_staged_reductions_come_back_to_the_buffer(streams: list[str]) -> None:
    staged = StagedTensors(on_cpu())

    def body(comm: Any) -> None:
        x = torch.tensor([float(comm.rank), torch.nan if comm.rank == 1 else 0.0], dtype=torch.float64)
        comm.with_transport(staged).allreduce(x, "max")
        assert x[0] == 2
        assert x[1].isnan()

    run_ranks(3, body)


def test_the_cpu_needs_no_staging() -> None:
    assert isinstance(tensor_transport(on_cpu()), HostTensors)
