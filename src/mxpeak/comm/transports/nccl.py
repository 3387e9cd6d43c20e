"""NCCL (RCCL on AMD): messages between GPUs, begun together, each behind what made its buffer.

NCCL has no tags: it takes the messages between two ranks in the order in which they are begun, and ranks that both
receive first wait for each other for ever, unless what they begin is begun together.  So messages of GPUs are posted,
and begin together with the next test or wait, on whatever stream that is; what they wait for was marked when they were
posted, where their buffers were made.  And each family of tags has an order of its own, that is an NCCL communicator of
its own.  Within a family all ranks must post in the same order: any algorithm does that is correct with blocking sends.
Between families no order is needed.  (MPI's messages of devices begin in `comm/deferred.py`.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from mxpeak.comm.base import FAMILY
from mxpeak.comm.transports.gloo import TIMEOUT, Group

#: Communicators for messages; families of tags share them in turn, and those that are under way at once are neighbours.
CHANNELS = 4


class Posted:
    """A message between GPUs: posted, and begun with all others at the first test or wait of one.

    ready     the event of its buffer: what the stream that made it, or still read it, had begun by then
    waited    whether a stream waits for it already, so that what comes next in that stream may use the buffer
    """

    __slots__ = ("begin", "ready", "waited", "work")
    in_stream = True

    def __init__(self, begin: Callable[[Any], Any], message: torch.Tensor):
        self.begin = begin
        self.ready = torch.cuda.current_stream(message.device).record_event() if message.is_cuda else None
        self.work: Any = None
        self.waited = False

    def test(self) -> bool:
        """Whether the GPU has done it, or a stream waits for it."""
        begin_all()
        return self.waited or bool(self.work.is_completed())

    def wait(self) -> None:
        """Have the current stream wait for it."""
        begin_all()
        self.work.wait()
        self.waited = True


def on_gpu(message: torch.Tensor) -> bool:
    """Whether NCCL carries it: Gloo takes what lies in host memory."""
    return bool(message.is_cuda)


def connected(store: Any, rank: int, size: int) -> Any:
    """An NCCL communicator on this rank's GPU, the current one.  Collective over the group."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = TIMEOUT
    nccl = dist.ProcessGroupNCCL(store, rank, size, options)
    # NCCL connects all ranks of a communicator at its first use; some messages concern only a few of them.
    nccl.allreduce(torch.zeros(1, device="cuda")).wait()
    torch.cuda.current_stream().synchronize()
    return nccl


class Channel:
    """One NCCL communicator, and the messages posted in it and not begun."""

    def __init__(self, nccl: Any):
        self.nccl = nccl
        self.posted: list[Posted] = []
        self._stream: Any = None

    def post(self, begin: Callable[[Any], Any], message: torch.Tensor) -> Posted:
        """To be begun by begin(nccl), which reads or writes the message."""
        request = Posted(begin, message)
        self.posted.append(request)
        _waiting.setdefault(self)
        return request

    def begin(self) -> None:
        """Begin what has been posted, together."""
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
        """What NCCL begins inside comes after these events, and after nothing else: it waits for the current stream."""
        if not events:
            yield
            return
        if self._stream is None:
            self._stream = torch.cuda.Stream(priority=-1)
        for event in events:
            self._stream.wait_event(event)
        with torch.cuda.stream(self._stream):
            yield


#: Channels with messages that are not begun, in the order in which they were posted.
_waiting: dict[Channel, None] = {}


def begin_all() -> None:
    """Begin all messages that are posted, channel by channel, in the order of each channel's first."""
    while _waiting:
        channel = next(iter(_waiting))
        del _waiting[channel]
        channel.begin()


class Channels:
    """The NCCL communicators of a group: one for its collective operations, the others for messages."""

    def __init__(self, group: Group):
        stores = [dist.PrefixStore(f"nccl{i}", group.store) for i in range(1 + CHANNELS)]
        self.collective, *others = [connected(store, group.rank, group.size) for store in stores]
        self._messages = [Channel(nccl) for nccl in others]

    def of(self, tag: int) -> Channel:
        """That of the tag's family."""
        return self._messages[tag // FAMILY % CHANNELS]
