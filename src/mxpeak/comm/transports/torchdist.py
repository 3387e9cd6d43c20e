"""A communicator over torch.distributed: Gloo for host memory, NCCL (RCCL on AMD) for GPU memory.

Groups are process groups of the library. They are created directly from the store of the ranks, under a name that all
members compute. Therefore, only the members of a new group communicate when it is created.
"""

from __future__ import annotations

import os
import socket
from atexit import register
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from datetime import timedelta
from functools import partial
from math import inf
from pickle import dumps, loads
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from mxpeak.async_buffer import fulfilled
from mxpeak.comm import shutdown
from mxpeak.comm.base import ARRAYS, Buffer, Communicator, DeviceTransport, LibraryWait, Request, Transport, arrival
from mxpeak.comm.shutdown import Watch, abort, exit_now, leave
from mxpeak.comm.transports import nccl
from mxpeak.comm.transports.gloo import MEETING, Group, as_bytes, as_tensor, await_work, no_error_of_its_own
from mxpeak.errors import MxpeakError, UsageError
from mxpeak.layout.cores import short_list

OBJECTS = 6600  # the tag of objects; a multiple of FAMILY
#: Actions that a rank runs when it ends, after it has waited for the other ranks.
_leaving: list[Callable[[], None]] = []


class _Collective:
    """A running collective operation; for GPU memory, the stream waits for it."""

    __slots__ = ("_buffer", "_what", "_work")

    def __init__(self, work: Any, buffer: Any, what: str):
        self._work, self._buffer, self._what = work, buffer, what

    def about(self) -> str:
        """Return the description of the operation, such as `the broadcast of rank 3`."""
        return self._what

    def test(self) -> bool:
        """Return whether the operation is complete; raise its error if it has failed.

        The library reports failed operations as complete.
        """
        if not self._work.is_completed():
            return False
        self.wait()  # raises the error of a failed operation without waiting
        return True

    def wait(self) -> None:
        """Wait for the operation on the host or, for GPU memory, in the current stream."""
        await_work(self._work, self._what)


class TorchDist(Communicator):
    """A communicator over torch.distributed; one that `direct` has returned sends tensors between GPUs with NCCL."""

    name = "torch"

    def __init__(self, group: Group, end: Callable[[int], None], transport: Transport = ARRAYS):
        self._group, self._end, self.transport = group, end, transport
        self._channels: nccl.Channels | None = None
        self.rank, self.size = group.rank, group.size

    def direct(self, transport: DeviceTransport) -> Communicator | None:
        """Return this group with NCCL between its GPUs, or None if NCCL is missing or ranks share a GPU."""
        location = (socket.gethostname(), transport.device_id, dist.is_nccl_available())
        locations = self._all_objects(location)
        if len({where[:2] for where in locations}) < self.size or not all(has_nccl for *_, has_nccl in locations):
            return None
        other = copy(self)
        try:
            other.transport, other._channels = ARRAYS, nccl.Channels(self._group)
        except RuntimeError:  # Gloo works without NCCL
            other._channels = None
        return other if self.agree(other._channels is not None) else None

    def isend(self, buffer: Buffer, dest: int, tag: int = 0) -> Request:
        """Start to send the buffer with Gloo, or post it in the NCCL channel of the tag if it is in GPU memory."""
        message = as_bytes(fulfilled(self.transport.outgoing(buffer)))
        if nccl.on_gpu(message):
            return self._channel(tag).post(lambda group: group.send([message], dest, 0), message)
        return self._group.send(message, dest, tag)

    def irecv(self, buffer: Buffer, source: int, tag: int = 0) -> Request:
        """Start to receive with Gloo, or post in the NCCL channel of the tag if the buffer is in GPU memory."""
        memory, land = self.transport.incoming(buffer)
        message = as_bytes(fulfilled(memory))
        if nccl.on_gpu(message):
            posted = self._channel(tag).post(lambda group: group.recv([message], source, 0), message)
            return arrival(posted, land)
        return arrival(self._group.recv(message, source, tag), land)

    def _channel(self, tag: int) -> nccl.Channel:
        assert self._channels is not None, "buffers on a GPU need a group made by direct, or a staging transport"
        return self._channels.of(tag)

    def ibcast(self, buffer: Buffer, root: int) -> Request:
        """Start the broadcast of Gloo or NCCL from rank `root`, and return a request."""
        memory, land = (self.transport.outgoing(buffer), None) if self.rank == root else self.transport.incoming(buffer)
        message = as_bytes(fulfilled(memory))
        work = self._collective(message).broadcast(message, root)
        return arrival(_Collective(work, message, self._broadcast_of(root)), land)

    def _collective(self, message: torch.Tensor) -> Any:
        """Return the process group for collectives of a message: NCCL for GPU memory, otherwise Gloo.

        For NCCL, start all posted messages first.
        """
        if not nccl.on_gpu(message):
            return self._group.gloo
        assert self._channels is not None, "buffers on a GPU need a group made by direct, or a staging transport"
        nccl.begin_all()
        return self._channels.collective

    def allreduce(self, buffer: Buffer, op: str) -> None:
        """Reduce the buffer in place by sum or max; the result is bitwise identical on all ranks.

        The results are identical because the library adds each number on a single rank or in ring order.
        """
        numbers, land = self.transport.numbers(buffer)
        x = as_tensor(numbers)
        if op == "sum":
            await_work(self._collective(x).allreduce(x, dist.ReduceOp.SUM), self._reduction)
        elif op == "max":
            self._max(x)
        else:
            raise ValueError(f"unknown reduction {op!r}; use sum or max")
        if land is not None:
            land()

    def _max(self, x: torch.Tensor) -> None:
        """Reduce x to its elementwise maximum in place, and its NaN flags separately; the library may lose NaN."""
        is_nan = x.isnan()
        both = torch.cat([x.masked_fill(is_nan, -torch.inf), is_nan.to(x.dtype)])
        await_work(self._collective(both).allreduce(both, dist.ReduceOp.MAX), self._reduction)
        largest, flags = both.chunk(2) if len(x) else (x, x)
        x.copy_(largest.masked_fill(flags > 0, torch.nan))

    def barrier(self) -> None:
        """Wait for all ranks by a reduction of one number on the host."""
        self.agree(True)

    def bcast_object(self, obj: Any, root: int = 0) -> Any:
        """Return the object of rank `root`, broadcast as a pickle: first its length, then its bytes."""
        message = _pickled(obj) if self.rank == root else torch.empty(0, dtype=torch.uint8)
        length = torch.tensor([len(message)])
        await_work(self._group.gloo.broadcast(length, root), self._broadcast_of(root))
        if self.rank != root:
            message = torch.empty(int(length), dtype=torch.uint8)
        await_work(self._group.gloo.broadcast(message, root), self._broadcast_of(root))
        return obj if self.rank == root else _unpickled(message)

    def gather_objects(self, obj: Any, root: int = 0) -> list[Any] | None:
        """Gather pickled objects on rank `root`, which receives a length and a message from every other rank."""
        if self.rank != root:
            message = _pickled(obj)
            self._group.send(torch.tensor([len(message)]), root, OBJECTS).wait()
            self._group.send(message, root, OBJECTS).wait()
            return None
        return [obj if source == root else self._object_of(source) for source in range(self.size)]

    def _object_of(self, source: int) -> Any:
        length = torch.empty(1, dtype=torch.int64)
        self._group.recv(length, source, OBJECTS).wait()
        message = torch.empty(int(length), dtype=torch.uint8)
        self._group.recv(message, source, OBJECTS).wait()
        return _unpickled(message)

    def _all_objects(self, obj: Any) -> list[Any]:
        return list(self.bcast_object(self.gather_objects(obj)))

    def split(self, color: int | None, key: int) -> Communicator | None:
        """Return the group of the ranks with the same color; its name contains the number of the split and the color.

        Only the members of a new group take part in its creation.
        """
        parts = self._all_objects((color, key, self.rank))
        number = next(self._group.splits)
        if color is None:
            return None
        members = [rank for c, _, rank in sorted(part for part in parts if part[0] == color)]
        store = dist.PrefixStore(f"{number}.{color}", self._group.store)
        world = [self._group.world[member] for member in members]
        try:
            with no_error_of_its_own():
                group = Group(store, members.index(self.rank), len(members), world)
        except RuntimeError as error:
            text = f"rank {self._group.world[self.rank]} could not connect to the ranks {short_list(world)}"
            raise MxpeakError(f"{text}: {' '.join(str(error).split())}") from None
        part = TorchDist(group, self._end, self.transport)
        part._channels = None if self._channels is None else nccl.Channels(part._group)
        return part

    def free(self) -> None:
        """Do nothing, because the process group ends when its last reference is deleted."""

    def agree(self, ok: bool) -> bool:
        """Return whether `ok` is true on all ranks, by a reduction on the host."""
        return bool(self.agree_within(ok, inf))

    def agree_within(self, ok: bool, limit_s: float) -> bool | None:
        """Return whether `ok` is true on all ranks, or None if not all of them call this method within the limit.

        After the limit, close the connections, so that the other ranks do not wait for this rank.
        """
        flag = torch.tensor([0 if ok else 1])
        work = self._group.gloo.allreduce(flag, dist.ReduceOp.MAX)
        if limit_s < inf and not self._is_complete_within(work, limit_s):
            self._group.close()
            return None
        await_work(work, self._reduction)
        return int(flag) == 0

    def _is_complete_within(self, work: Any, limit_s: float) -> bool:
        """Wait for a Gloo operation until the limit, and return whether it is complete. It may have failed."""
        with LibraryWait(self._reduction), suppress(RuntimeError):
            work.wait(timedelta(seconds=limit_s))
        return bool(work.is_completed())

    @property
    def _reduction(self) -> str:
        return f"a reduction over {self._group.everyone}"

    def _broadcast_of(self, root: int) -> str:
        return f"the broadcast of rank {self._group.world[root]}"

    def all_fail_within(self, limit_s: float) -> bool:
        """Return whether all ranks call this method within the limit."""
        return shutdown.all_fail_within(self._group.store, self.size, limit_s)

    def abort(self, code: int) -> None:
        """End all ranks with exit code `code`, which is written to the store that all ranks check."""
        self._end(code)


def _pickled(obj: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(dumps(obj)), dtype=torch.uint8)


def _unpickled(message: torch.Tensor) -> Any:
    return loads(message.numpy().tobytes())


def world(rank: int, size: int) -> TorchDist:
    """Connect to the store at MASTER_ADDR and MASTER_PORT, and return the communicator of all ranks. Collective.

    Raises UsageError if the ranks cannot connect.
    """
    if size == 1:
        return TorchDist(Group(dist.HashStore(), 0, 1), exit_now)
    host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    try:
        store, _, _ = next(dist.rendezvous("env://", rank, size, timeout=MEETING))
        watch = Watch(dist.TCPStore(host, int(port), timeout=MEETING), size)
        group = Group(dist.PrefixStore("world", store), rank, size)
    except (RuntimeError, ValueError) as error:
        text = f"rank {rank} of {size} could not connect at MASTER_ADDR:MASTER_PORT = {host}:{port}"
        raise UsageError(f"{text}: {' '.join(str(error).split())}; use the same values for all {size} ranks") from None
    _leaving.append(partial(leave, store, size, watch))
    register(_leaving[-1])
    return TorchDist(group, lambda code: abort(store, code))


def end_all_after_uncaught_errors(comm: TorchDist) -> None:
    """Make an uncaught exception on one of all ranks end all ranks, unless this process is interactive."""
    if comm.size > 1:
        shutdown.end_all_after_uncaught_errors(lambda: not comm.all_fail_within(shutdown.LEAVE_S), comm.abort)


def depart(code: int) -> NoReturn:
    """Wait for the other ranks and exit with `code` without Python's finalization.

    Threads of the library outlive Python's finalization and may crash.
    """
    for farewell in _leaving:
        farewell()
    exit_now(code)


def run_ranks(ranks: int, argv: list[str]) -> int:
    """Start `ranks` local ranks of `mxpeak argv …` under torchrun, and return the exit code of the first failed rank.

    Return 0 if no rank fails. torchrun itself always exits with 1 if a rank fails.
    """
    import logging

    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)  # the ranks report their errors themselves
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does, with a warning
    try:
        run.run(run.parse_args(["--standalone", f"--nproc-per-node={ranks}", "-m", "--", "mxpeak", *argv]))
    except ChildFailedError as failed:
        code = int(failed.get_first_failure()[1].exitcode)
        return code if code >= 0 else 128 - code
    except SignalException as received:
        return 128 + int(received.sigval)
    return 0
