"""A communicator over torch.distributed: Gloo for what lies in host memory, NCCL (RCCL on AMD) for what lies on GPUs.

Groups are made of the library's own process groups, straight from the store that the ranks meet at, by a name that all
members work out alike: so a group splits among its members alone, and nobody else has to take part.

Gloo has tags.  NCCL has none: it takes the messages between two ranks in the order in which they are begun, and ranks
that both receive first wait for each other for ever, unless what they begin is begun together.  So messages of GPUs
are posted, and begin together with the next test or wait, on whatever stream that is; what they wait for was marked
when they were posted, where their buffers were made.  And each family of tags has an order of its own, that is an NCCL
communicator of its own.  Within a family all ranks must post in the same order: any algorithm does that is correct with
blocking sends.  Between families no order is needed.  (MPI's messages of devices begin in `comm/posted.py`.)
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from atexit import register
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from datetime import timedelta
from functools import partial
from itertools import count
from pickle import dumps, loads
from time import sleep
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist

from mxpeak.comm.base import ARRAYS, FAMILY, Buffer, Communicator, DeviceTransport, Request, Transport, arrival
from mxpeak.comm.ending import LOOK_S, Watch, abort, exit_now, leave
from mxpeak.errors import UsageError
from mxpeak.promised import fulfilled

#: The libraries want a limit.  None is meant: ranks may sleep for hours while others run a case, a rank that dies is
#: noticed at once by those who wait for it, and the watchdog sees one that stalls.
TIMEOUT = timedelta(days=365)
#: All ranks have to be there by then.
MEETING = timedelta(minutes=5)
#: NCCL communicators for messages; families share them in turn, and those that are under way at once are neighbours.
CHANNELS = 4
OBJECTS = 6600  # the tag of objects; a multiple of FAMILY
#: What a rank does at its end, once it has met the others.
_leaving: list[Callable[[], None]] = []


# --- buffers


def _line(array: Any) -> Any:
    """The memory of a contiguous array as one writable vector; what is read-only can only be sent: a copy will do."""
    line = array.reshape(-1, order="A")
    assert array.size == 0 or np.shares_memory(line, array), "a communication buffer must be contiguous"
    return line if line.flags.writeable else line.copy()


def _tensor(buffer: Any) -> torch.Tensor:
    """A contiguous array or tensor as a flat tensor over the same memory."""
    if isinstance(buffer, torch.Tensor):
        return buffer.view(-1) if buffer.is_contiguous() else buffer.t().view(-1)
    return torch.from_numpy(_line(np.asarray(buffer)))


def _bytes(buffer: Any) -> torch.Tensor:
    """The same memory as bytes: messages need no type, and no library knows every type."""
    if isinstance(buffer, torch.Tensor):
        return _tensor(buffer).view(torch.uint8)
    return torch.from_numpy(_line(np.asarray(buffer)).view(np.uint8))


# --- Gloo


def _await(work: Any) -> None:
    """Wait for Gloo.  Where a message fails because another rank has ended the program, this one ends in silence."""
    try:
        work.wait()
    except RuntimeError:
        sleep(2 * LOOK_S)
        raise


class _Message:
    """A message of Gloo under way.

    Gloo knows how to wait for one, and not how to ask for it: whoever asks has a thread wait.
    """

    __slots__ = ("_buffer", "_error", "_waiter", "_work")

    def __init__(self, work: Any, buffer: Any):
        self._work, self._buffer = work, buffer  # the buffer has to outlive the message
        self._waiter: threading.Thread | None = None
        self._error: Exception | None = None

    def test(self) -> bool:
        """Whether the thread has returned."""
        if self._waiter is None:
            self._waiter = threading.Thread(target=self._run, daemon=True)
            self._waiter.start()
        if self._waiter.is_alive():
            return False
        self.wait()
        return True

    def wait(self) -> None:
        """Wait here, or for the thread that waits."""
        if self._waiter is None:
            _await(self._work)
            return
        self._waiter.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            _await(self._work)
        except Exception as error:
            self._error = error


class _Collective:
    """A collective operation under way; of GPUs, waiting for it is done by the stream."""

    __slots__ = ("_buffer", "_work")

    def __init__(self, work: Any, buffer: Any):
        self._work, self._buffer = work, buffer

    def test(self) -> bool:
        """Whether it is done; one that failed counts as done for the library, and is told here."""
        if not self._work.is_completed():
            return False
        self.wait()  # it is over: this raises what failed, and waits for nothing
        return True

    def wait(self) -> None:
        """Wait for the library."""
        _await(self._work)


@contextmanager
def _quiet_stdout() -> Iterator[None]:
    """What is written to stdout meanwhile goes to stderr: some builds of Gloo announce every group on stdout."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


class _Group:
    """What a group has once: its store, its process group of Gloo, and the number of groups split off it."""

    def __init__(self, store: Any, rank: int, size: int):
        self.store, self.rank, self.size = store, rank, size
        self.splits = count()
        with _quiet_stdout():
            self.gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, TIMEOUT)


# --- NCCL


class _Posted:
    """A message between GPUs: posted, and begun with all others at the first test or wait of one.

    ready    the event of its buffer: what the stream that made it, or still read it, had begun by then
    """

    __slots__ = ("begin", "ready", "work")

    def __init__(self, begin: Callable[[Any], Any], message: torch.Tensor):
        self.begin = begin
        self.ready = torch.cuda.current_stream(message.device).record_event() if message.is_cuda else None
        self.work: Any = None

    def test(self) -> bool:
        """Whether the GPU has done it."""
        _begin_all()
        return bool(self.work.is_completed())

    def wait(self) -> None:
        """Have the current stream wait for it."""
        _begin_all()
        self.work.wait()


def _on_gpu(message: torch.Tensor) -> bool:
    return bool(message.is_cuda)


def _nccl(store: Any, rank: int, size: int) -> Any:
    """An NCCL communicator on this rank's GPU, the current one.  Collective over the group."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = TIMEOUT
    nccl = dist.ProcessGroupNCCL(store, rank, size, options)
    # NCCL connects all ranks of a communicator at its first use; some messages concern only a few of them.
    nccl.allreduce(torch.zeros(1, device="cuda")).wait()
    torch.cuda.current_stream().synchronize()
    return nccl


class _Channel:
    """One NCCL communicator, and the messages posted in it and not begun."""

    def __init__(self, nccl: Any):
        self.nccl = nccl
        self.posted: list[_Posted] = []
        self._stream: Any = None

    def post(self, begin: Callable[[Any], Any], message: torch.Tensor) -> _Posted:
        """To be begun by begin(nccl), which reads or writes the message."""
        request = _Posted(begin, message)
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
_waiting: dict[_Channel, None] = {}


def _begin_all() -> None:
    while _waiting:
        channel = next(iter(_waiting))
        del _waiting[channel]
        channel.begin()


class _Channels:
    """The NCCL communicators of a group: one for its collective operations, the others for messages."""

    def __init__(self, group: _Group):
        stores = [dist.PrefixStore(f"nccl{i}", group.store) for i in range(1 + CHANNELS)]
        self.collective, *others = [_nccl(store, group.rank, group.size) for store in stores]
        self._messages = [_Channel(nccl) for nccl in others]

    def of(self, tag: int) -> _Channel:
        """That of the tag's family."""
        return self._messages[tag // FAMILY % CHANNELS]


# --- the communicator


class TorchDist:
    """A group of ranks of torch.distributed; tensors on GPUs are sent as they are once `direct` has made channels."""

    name = "torch"

    def __init__(self, group: _Group, end: Callable[[int], None], transport: Transport = ARRAYS):
        self._group, self._end, self.transport = group, end, transport
        self._channels: _Channels | None = None
        self.rank, self.size = group.rank, group.size

    def with_transport(self, transport: Transport) -> Communicator:
        """This group with another transport."""
        other = copy(self)
        other.transport = transport
        return other

    def direct(self, transport: DeviceTransport) -> Communicator | None:
        """This group with NCCL between its GPUs; None without NCCL, or where ranks share a GPU: it refuses that."""
        mine = (socket.gethostname(), transport.device_id, dist.is_nccl_available())
        found = self._all_objects(mine)
        if len({where[:2] for where in found}) < self.size or not all(has_nccl for *_, has_nccl in found):
            return None
        other = copy(self)
        try:
            other.transport, other._channels = ARRAYS, _Channels(self._group)
        except RuntimeError:  # whatever NCCL does not like here, Gloo does without it
            other._channels = None
        return other if self.agree(other._channels is not None) else None

    def isend(self, buffer: Buffer, dest: int, tag: int = 0) -> Request:
        """Send with a tag, or post in the family's channel."""
        message = _bytes(fulfilled(self.transport.outgoing(buffer)))
        if _on_gpu(message):
            return self._channel(tag).post(lambda nccl: nccl.send([message], dest, 0), message)
        return _Message(self._group.gloo.send([message], dest, tag), message)

    def irecv(self, buffer: Buffer, source: int, tag: int = 0) -> Request:
        """Receive with a tag, or post in the family's channel."""
        memory, land = self.transport.incoming(buffer)
        message = _bytes(fulfilled(memory))
        if _on_gpu(message):
            posted = self._channel(tag).post(lambda nccl: nccl.recv([message], source, 0), message)
            return arrival(posted, land)
        return arrival(_Message(self._group.gloo.recv([message], source, tag), message), land)

    def _channel(self, tag: int) -> _Channel:
        assert self._channels is not None, "buffers on a GPU need a group made by direct, or a staging transport"
        return self._channels.of(tag)

    def ibcast(self, buffer: Buffer, root: int) -> Request:
        """The library's broadcast."""
        memory, land = (self.transport.outgoing(buffer), None) if self.rank == root else self.transport.incoming(buffer)
        message = _bytes(fulfilled(memory))
        return arrival(_Collective(self._collective(message).broadcast(message, root), message), land)

    def _collective(self, message: torch.Tensor) -> Any:
        """Who does collective operations where this message lies."""
        if not _on_gpu(message):
            return self._group.gloo
        assert self._channels is not None, "buffers on a GPU need a group made by direct, or a staging transport"
        _begin_all()
        return self._channels.collective

    def allreduce(self, buffer: Buffer, op: str) -> None:
        """The library's, in place; all ranks get the same bits, for one rank or ring adds and the others copy."""
        numbers, land = self.transport.numbers(buffer)
        x = _tensor(numbers)
        if op == "sum":
            _await(self._collective(x).allreduce(x, dist.ReduceOp.SUM))
        elif op == "max":
            self._max(x)
        else:
            raise ValueError(f"unknown reduction {op!r}; choose sum or max")
        if land is not None:
            land()

    def _max(self, x: torch.Tensor) -> None:
        """max over numbers, and over flags that say where one is NaN: the libraries' own may lose a NaN."""
        is_nan = x.isnan()
        both = torch.cat([x.masked_fill(is_nan, -torch.inf), is_nan.to(x.dtype)])
        _await(self._collective(both).allreduce(both, dist.ReduceOp.MAX))
        largest, flags = both.chunk(2) if len(x) else (x, x)
        x.copy_(largest.masked_fill(flags > 0, torch.nan))

    def barrier(self) -> None:
        """A reduction of nothing much on the host."""
        self.agree(True)

    def bcast_object(self, obj: Any, root: int = 0) -> Any:
        """A pickled broadcast: its length, then its bytes."""
        message = _pickled(obj) if self.rank == root else torch.empty(0, dtype=torch.uint8)
        length = torch.tensor([len(message)])
        _await(self._group.gloo.broadcast(length, root))
        if self.rank != root:
            message = torch.empty(int(length), dtype=torch.uint8)
        _await(self._group.gloo.broadcast(message, root))
        return obj if self.rank == root else _unpickled(message)

    def gather_objects(self, obj: Any, root: int = 0) -> list[Any] | None:
        """A pickled gather, a length and a message a rank."""
        gloo = self._group.gloo
        if self.rank != root:
            message = _pickled(obj)
            _await(gloo.send([torch.tensor([len(message)])], root, OBJECTS))
            _await(gloo.send([message], root, OBJECTS))
            return None
        return [obj if source == root else self._object_of(source) for source in range(self.size)]

    def _object_of(self, source: int) -> Any:
        gloo, length = self._group.gloo, torch.empty(1, dtype=torch.int64)
        _await(gloo.recv([length], source, OBJECTS))
        message = torch.empty(int(length), dtype=torch.uint8)
        _await(gloo.recv([message], source, OBJECTS))
        return _unpickled(message)

    def _all_objects(self, obj: Any) -> list[Any]:
        return list(self.bcast_object(self.gather_objects(obj)))

    def split(self, color: int | None, key: int) -> Communicator | None:
        """A process group among the members alone, named by the number of this split and its color."""
        parts = self._all_objects((color, key, self.rank))
        number = next(self._group.splits)
        if color is None:
            return None
        members = [rank for c, _, rank in sorted(part for part in parts if part[0] == color)]
        store = dist.PrefixStore(f"{number}.{color}", self._group.store)
        part = TorchDist(_Group(store, members.index(self.rank), len(members)), self._end, self.transport)
        part._channels = None if self._channels is None else _Channels(part._group)
        return part

    def free(self) -> None:
        """Its process group ends with its last user."""

    def agree(self, ok: bool) -> bool:
        """One reduction of a flag on the host."""
        flag = torch.tensor([0 if ok else 1])
        _await(self._group.gloo.allreduce(flag, dist.ReduceOp.MAX))
        return int(flag) == 0

    def abort(self, code: int) -> None:
        """End all ranks with `code`: it is left at the store, where all look for it."""
        self._end(code)


def _pickled(obj: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(dumps(obj)), dtype=torch.uint8)


def _unpickled(message: torch.Tensor) -> Any:
    return loads(message.numpy().tobytes())


# --- the beginning and the end


def world(rank: int, size: int) -> TorchDist:
    """All ranks that the launcher started; they meet at MASTER_ADDR and MASTER_PORT.  Collective."""
    if size == 1:
        return TorchDist(_Group(dist.HashStore(), 0, 1), exit_now)
    host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    try:
        store, _, _ = next(dist.rendezvous("env://", rank, size, timeout=MEETING))
        watch = Watch(dist.TCPStore(host, int(port), timeout=MEETING), size)
        group = _Group(dist.PrefixStore("world", store), rank, size)
    except (RuntimeError, ValueError) as error:
        text = f"rank {rank} of {size} did not meet the others at MASTER_ADDR:MASTER_PORT = {host}:{port}"
        raise UsageError(f"{text}: {' '.join(str(error).split())}; start all {size} ranks with the same two") from None
    _leaving.append(partial(leave, store, size, watch))
    register(_leaving[-1])
    return TorchDist(group, lambda code: abort(store, code))


def depart(code: int) -> NoReturn:
    """End this rank with everybody's consent: threads of the library outlive Python, and then end it by a signal."""
    for farewell in _leaving:
        farewell()
    exit_now(code)


def run_ranks(ranks: int, argv: list[str]) -> int:
    """Start `ranks` local ranks of `mxpeak argv …` under torchrun and return their exit code.

    torchrun itself ends with 1 whatever its ranks end with; here the first rank's own code is passed on.
    """
    import logging

    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)  # the ranks say themselves what is wrong
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does, with a warning
    try:
        run.run(run.parse_args(["--standalone", f"--nproc-per-node={ranks}", "-m", "--", "mxpeak", *argv]))
    except ChildFailedError as failed:
        code = int(failed.get_first_failure()[1].exitcode)
        return code if code >= 0 else 128 - code
    except SignalException as told:
        return 128 + int(told.sigval)
    return 0
