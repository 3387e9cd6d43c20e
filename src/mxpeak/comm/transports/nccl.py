"""NCCL (RCCL on AMD): messages between GPUs, started in groups, each after the work on its buffer.

NCCL has no tags. It matches the messages between two ranks in the order in which they start. If both ranks start to
receive before they send, they deadlock, unless their messages start in one group. Messages between GPUs are therefore
posted first. The next test or wait of any message starts all posted messages together, after the events of the streams
that wrote their buffers.

Each family of tags has its own order, and thus its own NCCL communicator. Within a family, all ranks must post in the
same order, which holds for any algorithm that is correct with blocking sends. (`comm/deferred.py` starts MPI's
messages in device memory.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from mxpeak.comm.base import FAMILY, LibraryWait
from mxpeak.comm.transports.gloo import TIMEOUT, Group

#: Communicators for messages. Families of tags share communicators cyclically, so that concurrent families have
#: different ones.
CHANNELS = 4


class Posted:
    """A posted message between GPUs. The first test or wait of any message starts all posted messages.

    ready     the event of the buffer, after the work of the stream that wrote it or still reads it
    waited    whether a stream waits for the message already, so that later work in that stream may use the buffer
    """

    __slots__ = ("begin", "ready", "waited", "work")
    in_stream = True

    def __init__(self, begin: Callable[[Any], Any], message: torch.Tensor):
        self.begin = begin
        self.ready = torch.cuda.current_stream(message.device).record_event() if message.is_cuda else None
        self.work: Any = None
        self.waited = False

    def test(self) -> bool:
        """Start all posted messages, and return whether the GPU has finished this one or a stream waits for it."""
        begin_all()
        return self.waited or bool(self.work.is_completed())

    def wait(self) -> None:
        """Start all posted messages, and make the current stream wait for this message."""
        begin_all()
        self.work.wait()
        self.waited = True


def on_gpu(message: torch.Tensor) -> bool:
    """Return whether a message is in GPU memory; NCCL sends GPU memory, and Gloo sends host memory."""
    return bool(message.is_cuda)


def connected(store: Any, rank: int, size: int) -> Any:
    """Create and return an NCCL communicator on this rank's current GPU. Collective over the group."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = TIMEOUT
    nccl = dist.ProcessGroupNCCL(store, rank, size, options)
    # NCCL connects all ranks of a communicator at its first use, but some messages involve only a few of them.
    nccl.allreduce(torch.zeros(1, device="cuda")).wait()
    torch.cuda.current_stream().synchronize()
    return nccl


class Channel:
    """An NCCL communicator, and the messages that are posted in it but not started."""

    def __init__(self, nccl: Any):
        self.nccl = nccl
        self.posted: list[Posted] = []
        self._stream: Any = None

    def post(self, begin: Callable[[Any], Any], message: torch.Tensor) -> Posted:
        """Post a message; the call begin(nccl) will start it."""
        request = Posted(begin, message)
        self.posted.append(request)
        _waiting.setdefault(self)
        return request

    def begin(self) -> None:
        """Start the posted messages in one NCCL group, after the events of their buffers."""
        with self._behind([request.ready for request in self.posted if request.ready is not None]):
            self.nccl._start_coalescing()
            for request in self.posted:
                request.begin(self.nccl)
            work = self.nccl._end_coalescing()
        for request in self.posted:
            request.work = work
        self.posted = []

    @contextmanager
    def _behind(self, events: list[Any]) -> Iterator[None]:
        """Return a context with a stream that waits only for `events`; NCCL waits for the current stream."""
        if not events:
            yield
            return
        if self._stream is None:
            self._stream = torch.cuda.Stream(priority=-1)
        for event in events:
            self._stream.wait_event(event)
        with torch.cuda.stream(self._stream):
            yield


#: Channels with messages that are not started, in posting order.
_waiting: dict[Channel, None] = {}


def begin_all() -> None:
    """Start all posted messages, channel by channel, in the order in which the channels got their first message."""
    while _waiting:
        channel = next(iter(_waiting))
        del _waiting[channel]
        channel.begin()


class Channels:
    """The NCCL communicators of a group: one for collective operations, and several channels for messages."""

    def __init__(self, group: Group):
        stores = [dist.PrefixStore(f"nccl{i}", group.store) for i in range(1 + CHANNELS)]
        with LibraryWait(f"the NCCL connections of {group.everyone}"):
            self.collective, *others = [connected(store, group.rank, group.size) for store in stores]
        self._messages = [Channel(nccl) for nccl in others]

    def of(self, tag: int) -> Channel:
        """Return the channel for messages with this tag."""
        return self._messages[tag // FAMILY % CHANNELS]
