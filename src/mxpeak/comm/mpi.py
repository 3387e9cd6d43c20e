"""A communicator over MPI: mpi4py, buffer calls only.

Waiting is Test in a loop.  Where ranks outnumber cores, every failed Test gives the core away (`sched_yield`): MPICH
polls inside Wait, and a polling rank would keep the one it waits for from running.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from mxpeak.comm.base import Buffer, Communicator, Request

_OPS = {"sum": MPI.SUM, "max": MPI.MAX}


def _stay() -> None:
    """Poll again at once: this rank has its core to itself."""


class _Pending:
    """An MPI request under way, and what to do between two looks at it."""

    __slots__ = ("_idle", "_request", "test")

    def __init__(self, request: MPI.Request, idle: Callable[[], None]):
        self._request, self._idle = request, idle
        self.test: Callable[[], bool] = request.Test

    def wait(self) -> None:
        """Test until it is complete."""
        test, idle = self.test, self._idle
        while not test():
            idle()


class Mpi:
    """A group of MPI ranks."""

    def __init__(self, comm: Any, crowded: bool = False):
        self._comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.crowded = crowded
        self._idle = os.sched_yield if crowded and hasattr(os, "sched_yield") else _stay
        # MPI errors become exceptions, so that the traceback of the rank that failed is seen.
        comm.Set_errhandler(MPI.ERRORS_RETURN)

    def isend(self, buffer: Buffer, dest: int, tag: int = 0) -> Request:
        """MPI_Isend."""
        return _Pending(self._comm.Isend(buffer, dest, tag), self._idle)

    def irecv(self, buffer: Buffer, source: int, tag: int = 0) -> Request:
        """MPI_Irecv."""
        return _Pending(self._comm.Irecv(buffer, source, tag), self._idle)

    def ibcast(self, buffer: Buffer, root: int) -> Request:
        """MPI_Ibcast."""
        return _Pending(self._comm.Ibcast(buffer, root), self._idle)

    def allreduce(self, buffer: Buffer, op: str) -> None:
        """MPI_Iallreduce in place, waited for politely."""
        if self.size > 1:
            _Pending(self._comm.Iallreduce(MPI.IN_PLACE, buffer, _op(op)), self._idle).wait()

    def barrier(self) -> None:
        """MPI_Ibarrier, waited for politely."""
        _Pending(self._comm.Ibarrier(), self._idle).wait()

    def bcast_object(self, obj: Any, root: int = 0) -> Any:
        """A pickled broadcast: its length, then its bytes."""
        from pickle import dumps, loads

        message = bytearray(dumps(obj)) if self.rank == root else bytearray()
        length = bytearray(len(message).to_bytes(8, "little"))
        self.ibcast(length, root).wait()
        if self.rank != root:
            message = bytearray(int.from_bytes(length, "little"))
        self.ibcast(message, root).wait()
        return obj if self.rank == root else loads(bytes(message))

    def gather_objects(self, obj: Any, root: int = 0) -> list[Any] | None:
        """A pickled gather, one message a rank."""
        if self.rank != root:
            request = self._comm.isend(obj, root, tag=7000)
            while not request.test()[0]:
                self._idle()
            return None
        gathered: list[Any] = []
        for source in range(self.size):
            if source == root:
                gathered.append(obj)
                continue
            while not self._comm.iprobe(source, tag=7000):
                self._idle()
            gathered.append(self._comm.recv(source=source, tag=7000))
        return gathered

    def split(self, color: int | None, key: int) -> Communicator | None:
        """MPI_Comm_split; those with no color get no group."""
        part = self._comm.Split(MPI.UNDEFINED if color is None else color, key)
        return None if part == MPI.COMM_NULL else Mpi(part, self.crowded)

    def agree(self, ok: bool) -> bool:
        """One reduction of a flag."""
        flag = bytearray([0 if ok else 1])
        _Pending(self._comm.Iallreduce(MPI.IN_PLACE, [flag, MPI.UNSIGNED_CHAR], MPI.MAX), self._idle).wait()
        return flag[0] == 0

    def abort(self, code: int) -> None:
        """MPI_Abort: every rank of the program ends with `code`."""
        self._comm.Abort(code)


def _op(name: str) -> MPI.Op:
    try:
        return _OPS[name]
    except KeyError:
        raise ValueError(f"unknown reduction {name!r}; choose one of {', '.join(_OPS)}") from None


def world() -> Mpi:
    """All ranks that the launcher started; told apart by node, to see where ranks outnumber cores."""
    everybody = MPI.COMM_WORLD.Dup()
    node = everybody.Split_type(MPI.COMM_TYPE_SHARED, everybody.Get_rank())
    cores: set[int] = set().union(*node.allgather(os.sched_getaffinity(0)))
    return Mpi(everybody, crowded=node.Get_size() > len(cores))


def facts() -> dict[str, Any]:
    """What `doctor` says about MPI."""
    return {
        "library": MPI.Get_library_version().splitlines()[0].strip("\0 "),
        "standard": ".".join(map(str, MPI.Get_version())),
    }
