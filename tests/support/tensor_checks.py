"""Check tensors with any communicator, on thread ranks, under mpiexec and under torchrun.

The tensors are in host memory, or in the memory that the communicator's transport reads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mxpeak.comm.base import ARRAYS, Task, all_of
from mxpeak.comm.broadcast import BROADCASTS, broadcast
from mxpeak.comm.exchange import allreduce_by, gather_everywhere_binary, gather_everywhere_ring, scatter
from mxpeak.kernels.torch.engine.device import TYPES
from mxpeak.kernels.torch.engine.messages import HostTensors

#: Numbers that are exact in every format; fp8 has no numbers above 448, and none between 16 and 18.
NUMBERS = [0.0, 1.0, -2.0, 3.0, 0.5, -8.0, 12.0, 1.5, 6.0, -0.25, 7.0]


CPU = torch.device("cpu")


def numbers(dtype: torch.dtype, first: int, where: torch.device = CPU) -> torch.Tensor:
    """Return eleven numbers that depend on `first`."""
    turn = first % len(NUMBERS)
    return torch.tensor(NUMBERS[turn:] + NUMBERS[:turn]).to(dtype).to(where)


def nothing(dtype: torch.dtype, *shape: int, where: torch.device = CPU) -> torch.Tensor:
    """Return a tensor of NaN."""
    made = torch.empty(shape or (len(NUMBERS),), dtype=dtype, device=where)
    made.view(torch.uint8).fill_(0xFF)
    return made


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.to(torch.float64), b.to(torch.float64))


def check_tensors(group: Any, transport: Any = None, where: torch.device = CPU) -> None:
    """Check every operation on tensors of every type against a known result."""
    comm = group.with_transport(transport or HostTensors())
    for dtype in dict.fromkeys(TYPES.values()):
        _check_messages(comm, dtype, where)
        _check_algorithms(comm, dtype, where)
    _check_reductions(comm, where)
    _check_columns(comm, where)
    part = comm.split(comm.rank % 2, comm.rank)
    assert part.transport is comm.transport, "a group that is split off has the same transport"
    _check_messages(part, torch.bfloat16, where)
    assert group.transport is ARRAYS, "another transport makes another group"


def _check_messages(comm: Any, dtype: torch.dtype, where: torch.device) -> None:
    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    if size > 1:
        into = nothing(dtype, where=where)
        Task(all_of([comm.irecv(into, left, 3), comm.isend(numbers(dtype, rank, where), right, 3)])).wait()
        assert same(into, numbers(dtype, left, where))
    for root in range(size):
        message = numbers(dtype, root, where) if rank == root else nothing(dtype, where=where)
        comm.ibcast(message, root).wait()
        assert same(message, numbers(dtype, root, where))


def _check_algorithms(comm: Any, dtype: torch.dtype, where: torch.device) -> None:
    rank, size = comm.rank, comm.size
    sent, empty = [numbers(dtype, r, where) for r in range(size)], nothing(dtype, where=where)
    for name in BROADCASTS:
        message = sent[rank].clone() if rank == size - 1 else empty.clone()
        task = Task(broadcast(name, comm, message, size - 1))
        task.test()
        task.wait()
        assert same(message, sent[-1]), name
    for gather in (gather_everywhere_ring, gather_everywhere_binary):
        pieces = [(sent[r] if r == rank else empty).clone()[:r] for r in range(size)]
        Task(gather(comm, pieces, 60)).wait()
        assert all(same(piece, sent[r][:r]) for r, piece in enumerate(pieces))
    parts = [(sent[r] if rank == 0 else empty).clone()[: r + 1] for r in range(size)]
    Task(scatter(comm, parts, parts[rank], 0, 63)).wait()
    assert same(parts[rank], sent[rank][: rank + 1])


def _check_reductions(comm: Any, where: torch.device) -> None:
    rank, size = comm.rank, comm.size
    total = torch.tensor([1.0, float(rank)], dtype=torch.float64, device=where)
    comm.allreduce(total, "sum")
    assert total.tolist() == [size, size * (size - 1) / 2]
    for odd_one in range(size):
        values = [float(-rank), torch.nan if rank == odd_one else 1.0, -torch.inf, torch.inf if rank == odd_one else 0]
        largest = torch.tensor(values, dtype=torch.float64, device=where)
        comm.allreduce(largest[1:], "max")
        assert largest[0] == -rank, "what lies beside is left alone"
        assert largest[1].isnan(), "a NaN on one rank must reach all"
        assert largest[2:].tolist() == [-torch.inf, torch.inf]
    array = np.array([float(rank)])  # a NumPy array is sent without conversion
    comm.allreduce(array, "max")
    assert array[0] == size - 1
    mine, theirs = torch.tensor([float(rank)], device=where), torch.empty(1, device=where)
    allreduce_by(comm, mine, theirs, lambda a, b: a.add_(b))
    assert mine[0] == size * (size - 1) / 2


def _check_columns(comm: Any, where: torch.device) -> None:
    """Check the broadcast of a column-major panel."""
    whole = torch.arange(12.0, device=where).view(4, 3).t()
    panel = whole if comm.rank == 0 else nothing(torch.float32, 4, 3, where=where).t()
    comm.ibcast(panel, 0).wait()
    assert torch.equal(panel, whole)


class Device:
    """A transport with host memory as device memory, and with faults in message passing.

    fault    wrong: sends other numbers; raises: the library raises an error; silent: a message never arrives
    """

    name, kind, device_id = "made-up device memory", "cuda", "0"

    def __init__(self, fault: str = ""):
        self.fault = fault
        self.stages = Staged()

    def outgoing(self, buffer: Any) -> Any:
        if self.fault == "raises":
            raise RuntimeError("a made-up refusal")
        return buffer.numpy() + 1 if self.fault == "wrong" else buffer.numpy()

    def incoming(self, buffer: Any) -> Any:
        if self.fault == "silent":
            return np.empty_like(buffer.numpy()), None
        return buffer.numpy(), None

    def numbers(self, buffer: Any) -> Any:
        return self.stages.numbers(buffer)

    def staged(self) -> Staged:
        return self.stages

    def pattern(self, number: int) -> torch.Tensor:
        return torch.arange(1001.0) + number

    def blank(self) -> torch.Tensor:
        return torch.zeros(1001)

    def equal(self, a: torch.Tensor, b: torch.Tensor) -> bool:
        return torch.equal(a, b)


class Staged:
    """Send messages through copies, and count these."""

    name = "made-up host memory"

    def __init__(self) -> None:
        self.down = self.up = 0

    def outgoing(self, buffer: Any) -> Any:
        self.down += 1
        return buffer.numpy().copy()

    def incoming(self, buffer: Any) -> Any:
        memory = np.full_like(buffer.numpy(), np.nan)
        return memory, lambda: self._land(memory, buffer)

    def numbers(self, buffer: Any) -> Any:
        memory = self.outgoing(buffer)
        return memory, lambda: self._land(memory, buffer)

    def _land(self, memory: Any, buffer: Any) -> None:
        self.up += 1
        buffer.copy_(torch.from_numpy(memory))
