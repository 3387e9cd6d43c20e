"""Define functions that tests call on all ranks of torch.distributed."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from mxpeak.comm.base import Task, all_of, waits_for
from mxpeak.comm.devices import check_device_messages
from mxpeak.comm.transports import gloo, nccl, torchdist
from mxpeak.runtime.launch import local_rank, start
from tests.support.communicator_checks import check
from tests.support.tensor_checks import Device, Staged, check_tensors

PATIENCE = timedelta(seconds=60)


def communicate() -> None:
    """Run all checks of messages after one start, because a start takes longer than the checks."""
    comm: Any = start("torch")
    messages(comm)
    channels(comm)


def messages(comm: Any) -> None:
    """Check all operations of a communicator with arrays and with tensors."""
    assert comm.name == "torch"
    assert local_rank(comm) == comm.rank
    check(comm)
    check_tensors(comm)
    _tags_out_of_order(comm)
    _nested_groups(comm)
    _arrays_of_any_kind(comm)
    assert check_device_messages(comm, Device("raises")).transport.name == Staged.name, "this torch has no NCCL"


def _tags_out_of_order(comm: Any) -> None:
    """Check that messages with the same tag arrive in order, independent of the order of the receives."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.size == 1:
        return
    out = [np.array([float(i)]) for i in range(5)]
    sends = [comm.isend(x, right, tag) for x, tag in zip(out, [9, 3, 9, 30, 3])]
    into = [np.empty(1) for _ in range(5)]
    receives = [comm.irecv(x, left, tag) for x, tag in zip(into, [30, 3, 3, 9, 9])]
    for request in reversed(receives):
        while not request.test():
            time.sleep(0.001)
    Task(all_of(sends)).wait()
    assert [x[0] for x in into] == [3, 1, 4, 0, 2]


def _nested_groups(comm: Any) -> None:
    """Check splits of split groups, in which only the members of each group take part."""
    column = comm.split(comm.rank % 2, -comm.rank)
    if comm.rank % 2 == 0:  # the other column splits nothing here
        for _ in range(3):
            column = column.split(0, column.rank)
    alone = comm.split(comm.rank, 0)
    assert (alone.rank, alone.size) == (0, 1)
    inner = column.split(7 if column.rank == 0 else None, 0)
    assert (inner is None) == (column.rank != 0)
    members = column.bcast_object(column.gather_objects(comm.rank))
    assert members == [r for r in reversed(range(comm.size)) if r % 2 == comm.rank % 2]
    x = np.array([float(comm.rank)])
    column.allreduce(x, "sum")
    assert x[0] == sum(members)


def _arrays_of_any_kind(comm: Any) -> None:
    """Check arrays with types that torch lacks, column-major, empty and read-only, and the refusal of others."""
    from ml_dtypes import bfloat16

    for dtype in (bfloat16, np.uint16, np.complex64, np.int64, np.float16):
        array = np.asfortranarray(np.arange(6).reshape(2, 3).astype(dtype))
        array = array if comm.rank == 0 else np.zeros_like(array)
        array.flags.writeable = comm.rank != 0
        comm.ibcast(array, 0).wait()
        assert (array == np.arange(6).reshape(2, 3).astype(dtype)).all()
    comm.allreduce(np.empty(0), "max")
    comm.ibcast(np.empty(0), 0).wait()
    try:
        comm.ibcast(np.zeros((4, 4))[:, :2], 0)
    except AssertionError as error:
        assert "contiguous" in str(error)  # noqa: PT017
    else:
        raise AssertionError("a strided buffer was sent")


# --- a substitute for NCCL: no tags, operations in the order of their start, sends that wait for their receives


class Work:
    """One batch or collective operation, which the channel's thread runs."""

    def __init__(self, body: Callable[[], None]):
        self.body, self.over, self.error = body, threading.Event(), None

    def run(self) -> None:
        try:
            self.body()
        except Exception as error:
            self.error = error
        self.over.set()

    def is_completed(self) -> bool:
        return self.over.is_set()

    def wait(self) -> None:
        assert self.over.wait(60), "a message in order never came"
        if self.error is not None:
            raise self.error


class InOrder:
    """A channel with NCCL's rules over Gloo: a batch starts when the previous one is complete on this rank."""

    begun = 0

    def __init__(self, store: Any, rank: int, size: int):
        self.gloo = dist.ProcessGroupGloo(dist.PrefixStore("in order", store), rank, size, PATIENCE)
        self.works: queue.SimpleQueue[Work] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            self.works.get().run()

    def _begin(self, body: Callable[[], None]) -> Work:
        InOrder.begun += 1
        work = Work(body)
        self.works.put(work)
        return work

    def allreduce(self, x: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> Work:
        return self._begin(lambda: self.gloo.allreduce(x, op).wait())

    def broadcast(self, x: torch.Tensor, root: int) -> Work:
        return self._begin(lambda: self.gloo.broadcast(x, root).wait())

    def _start_coalescing(self) -> None:
        self.batch: list[tuple[str, torch.Tensor, int]] = []

    def send(self, tensors: list[torch.Tensor], dest: int, tag: int) -> None:
        self.batch.append(("send", tensors[0], dest))

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> None:
        self.batch.append(("receive", tensors[0], source))

    def _end_coalescing(self) -> Work:
        batch = self.batch

        def body() -> None:
            marks = [torch.zeros(1) for _ in batch]
            under_way = []
            for (kind, x, other), mark in zip(batch, marks):
                send = kind == "send"
                first = self.gloo.send([x], other, 0) if send else self.gloo.recv([x], other, 0)
                under_way.append((first, self.gloo.recv([mark], other, 1) if send else None, other))
            for first, _, _ in under_way:
                first.wait()
            answers = [self.gloo.send([torch.ones(1)], other, 1) for _, answer, other in under_way if answer is None]
            for waiting in [answer for _, answer, _ in under_way if answer is not None] + answers:
                waiting.wait()

        return self._begin(body)


def _on_stand_in(comm: Any) -> None:
    """Treat all buffers as GPU buffers, and give all groups channels of the substitute."""
    nccl.connected = InOrder
    nccl.on_gpu = lambda message: True
    comm._channels = nccl.Channels(comm._group)


def channels(comm: Any) -> None:
    """Check messages without tags, in order, with blocking sends: no deadlock and no mix-up."""
    _on_stand_in(comm)
    check(comm)
    check_tensors(comm)
    _nested_groups(comm)
    assert InOrder.begun > (100 if comm.size > 1 else 0)
    _families_in_any_order(comm)


def _families_in_any_order(comm: Any) -> None:
    """Check messages of several families that the ranks post in different orders."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    if comm.size == 1:
        return
    tags = [7200, 7203, 7206, 7101]
    order = np.random.default_rng(comm.rank).permutation(4).tolist()
    out = {tag: np.array([float(tag + comm.rank)]) for tag in tags}
    into = {tag: np.empty(1) for tag in tags}
    tasks = []
    for i in order:
        tag = tags[i]
        tasks.append(Task(all_of([comm.irecv(into[tag], left, tag), comm.isend(out[tag], right, tag)])))
    for task in tasks:
        task.wait()
    assert [into[tag][0] for tag in tags] == [tag + left for tag in tags]


def mxpeak() -> None:
    """Run a benchmark of mxpeak on the substitute."""
    from mxpeak.cli.main import main
    from mxpeak.runtime import launch

    comm: Any = start("torch")
    _on_stand_in(comm)
    launch.start = lambda asked="auto", device="auto": comm
    code = main(sys.argv[1:])
    assert InOrder.begun > 10
    sys.exit(code)


def alone() -> None:
    """Run a benchmark of mxpeak without changes."""
    from mxpeak.cli.main import main

    sys.exit(main(sys.argv[1:]))


def raises() -> None:
    """Run a benchmark of mxpeak with a bug on rank 1."""
    from mxpeak.solvers.lu.panel import FactoredPanel

    def broken(*arguments: Any) -> None:
        raise FloatingPointError("a made-up fault")

    if os.environ["RANK"] == "1":
        FactoredPanel.factor = broken  # type: ignore[method-assign]
    alone()


def scan_delayed() -> None:
    """Run a scan of links in which rank 1 does not answer the second message of rank 0."""
    from mxpeak.verbs.scan import links

    receive, count = links.Meeting._receive, iter(range(9))

    def late(meeting: Any, partner: int) -> None:
        if meeting._comm.rank == 1 and next(count) == 1:
            time.sleep(60.0)
        receive(meeting, partner)

    links.Meeting._receive = late  # type: ignore[method-assign]
    links.SIDE = 96
    alone()


def ends() -> None:
    """End one rank while the others wait, compute, or wait for each other."""
    comm: Any = start("torch")
    x = np.zeros(3)
    if comm.rank == 1:
        time.sleep(0.3)
        print("the end", flush=True)
        if sys.argv[1] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        comm.abort(int(sys.argv[1]))
    if comm.rank == 0 and sys.argv[1] == "killed":  # a rank that polls must also detect the end
        asked = comm.ibcast(x, 1)
        while not asked.test():
            time.sleep(0.01)
        sys.exit("a broadcast of a killed rank seemed to have come")
    if comm.rank == 0:
        comm.irecv(x, 1, 3).wait()
    if comm.rank == 2:  # a rank that computes detects the end of another rank at its next message
        time.sleep(2 if sys.argv[1] == "killed" else 60)
    comm.barrier()


def operator() -> None:
    """Raise an error in a function on rank 1 while rank 0 waits in it or not, as an uncaught error of a script."""
    import mxpeak as mx
    from mxpeak.distributed import rank_group
    from mxpeak.library.communicators import communicator

    kind = sys.argv[1]
    rank_group.PATIENCE_S = rank_group.FIRST_PATIENCE_S = 1.0
    world = communicator("world")
    groups = {"alone": None, "other group": world.split(0, world.rank), "same group": world}
    group = groups.get(kind, groups["other group"])

    def multiply(x: Any) -> Any:
        if world.rank == 1:
            raise OSError("the table is gone")
        if group is not None:
            group.bcast_object(None, root=1)
        return 2.0 * x

    try:
        try:
            mx.gmres(multiply, np.arange(100.0), comm="world")
        except mx.MxpeakError as error:
            if kind != "caught":
                raise
            print(error, file=sys.stderr, flush=True)
            mx.gmres(lambda x: 2.0 * x, np.arange(100.0), comm="world")
        print("went on", flush=True)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


def describes() -> None:
    """Print the watchdog's description while ranks 1 and 2, which form a group, wait for each other."""
    comm: Any = start("torch")
    part = comm.split(None if comm.rank == 0 else 0, comm.rank)
    x = np.zeros(1)
    for wait in (
        lambda: part.irecv(x, 0, 3).wait() if comm.rank == 2 else part.isend(x, 1, 3).wait(),
        lambda: Task(all_of([part.ibcast(x, 0)])).wait(),
        lambda: part.bcast_object("object"),
        lambda: part.barrier(),
        lambda: part.split(0, 0),
    ):
        if comm.rank == 1:
            time.sleep(0.3)
        if comm.rank == 2:
            threading.Timer(0.15, lambda: print(waits_for(), flush=True)).start()
        if comm.rank > 0:
            wait()
    assert not waits_for()
    comm.barrier()


def connects_alone() -> None:
    """Let rank 1 miss rank 0's time limit for connecting to a new group."""
    comm: Any = start("torch")
    if comm.rank == 1:
        torchdist.Group = lambda *arguments: time.sleep(4) or sys.exit(0)  # type: ignore[attr-defined,misc]
    gloo.MEETING = timedelta(seconds=1)
    comm.split(0, comm.rank)


def posts_late() -> None:
    """Post a message to a rank that has ended, just before the signal that reports its end."""
    comm: Any = start("torch")
    x = np.zeros(3)
    if comm.rank == 1:
        comm.isend(x, 0, 3).wait()
        os._exit(0)
    comm.irecv(x, 1, 3).wait()
    time.sleep(0.5)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        comm.isend(x, 1, 4)
    except KeyboardInterrupt:
        print("heard", flush=True)
        os._exit(0)
