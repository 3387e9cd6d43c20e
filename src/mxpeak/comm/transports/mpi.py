"""A communicator over MPI with mpi4py's buffer calls.

A wait calls MPI_Test in a loop that yields the core after every failed test (`comm.base.Idling`). MPICH polls inside
MPI_Wait: with more ranks than cores, a polling rank would block the rank that it waits for. A rank with its own core
loses less than a microsecond.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from math import inf
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import mpi4py

mpi4py.rc.thread_level = "funneled"  # only the main thread communicates, so MPI needs no locks

import numpy as np  # noqa: E402
from mpi4py import MPI  # noqa: E402

from mxpeak.comm import shutdown  # noqa: E402
from mxpeak.comm.base import (  # noqa: E402
    ARRAYS,
    LOOK_S,
    WAITED_FOR,
    Buffer,
    Communicator,
    DeviceTransport,
    Envelope,
    Idling,
    LibraryWait,
    Repeated,
    Request,
    Transport,
    arrival,
)
from mxpeak.comm.deferred import Posts  # noqa: E402
from mxpeak.errors import MxpeakError, UsageError  # noqa: E402


def _max_with_nan(inbuf: Any, inoutbuf: Any, datatype: MPI.Datatype) -> None:
    """Write the elementwise maximum of two fp64 buffers to `inoutbuf`, with NaN above any number.

    MPI_MAX may lose a NaN.
    """
    ours, theirs = np.frombuffer(inoutbuf), np.frombuffer(inbuf)
    np.maximum(ours, theirs, out=ours)


@cache
def _op(name: str) -> MPI.Op:
    if name == "sum":
        return MPI.SUM
    if name == "max":
        return MPI.Op.Create(_max_with_nan, commute=True)
    raise ValueError(f"unknown reduction {name!r}; use sum or max")


#: Requests that may never be complete, with the buffers that MPI may still read or write.
_abandoned: list[Any] = []

#: Messages of all groups that are posted but not started, because a device still uses their buffers.
_posts = Posts()


def _wait_for(request: Request) -> None:
    """Test a request until it is complete, and start posted messages and yield the core between tests."""
    test = request.test
    if test():
        return
    WAITED_FOR.append(request)
    idle = Idling()
    while not test():
        _posts.drive()
        idle()
    WAITED_FOR.pop()


def _completed_within(request: MPI.Request, limit_s: float) -> bool:
    """Test a request until it is complete or the time limit has passed, and return whether it is complete."""
    idle, end_s = Idling(), monotonic() + limit_s
    while not request.Test():
        if monotonic() > end_s:
            return False
        _posts.drive()
        idle()
    return True


class _Awaited:
    """An MPI request with a description, such as the rank that sends the message."""

    __slots__ = ("_what", "_who", "test")

    def __init__(self, test: Callable[[], bool], what: str, who: int | None = None):
        self.test = test
        self._what, self._who = what, who

    def wait(self) -> None:
        """Test the request until it is complete."""
        _wait_for(self)

    def about(self) -> str:
        """Return the description of the request, with the rank of the peer."""
        return self._what if self._who is None else f"{self._what} rank {self._who}"


def _pending(request: MPI.Request, what: str, who: int | None = None) -> _Awaited:
    return _Awaited(request.Test, what, who)


class _Persistent:
    """Persistent MPI messages, which need half of the time of new messages to start and complete."""

    def __init__(self, comm: MPI.Comm, world: Sequence[int], sends: Sequence[Envelope], receives: Sequence[Envelope]):
        self._requests: list[MPI.Prequest] = []
        self._running: list[tuple[MPI.Prequest, str]] = []
        for buffer, rank in receives:
            self._requests.append(comm.Recv_init(buffer, rank))
        for buffer, rank in sends:
            self._requests.append(comm.Send_init(buffer, rank))
        about = [f"a message from rank {world[rank]}" for _, rank in receives]
        about += [f"a message to be received by rank {world[rank]}" for _, rank in sends]
        self._all = list(zip(self._requests, about))

    def start(self) -> None:
        """Start all messages; the previous start must be complete."""
        if self._running:
            raise AssertionError("these messages are still in progress")
        MPI.Prequest.Startall(self._requests)
        self._running = self._all.copy()

    def test(self) -> bool:
        """Test the messages, and return whether all are complete."""
        while self._running and self._running[-1][0].Test():
            self._running.pop()
        return not self._running

    def wait(self) -> None:
        """Test the messages until all are complete."""
        _wait_for(self)

    def about(self) -> str:
        """Return the description of the last incomplete message, or '' if all messages are complete."""
        return self._running[-1][1] if self._running else ""

    def __del__(self) -> None:
        if MPI.Is_finalized():
            return
        for request, _ in self._running:  # cancel messages of an aborted step, which would match later ones
            request.Cancel()
            request.Wait()
        for request in self._requests:
            request.Free()


class Mpi(Communicator):
    """A communicator over a group of MPI ranks."""

    name = "mpi"

    def __init__(self, comm: Any, transport: Transport = ARRAYS):
        self._comm = comm
        self.transport = transport
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        #: Ranks in MPI_COMM_WORLD of the ranks of this group.
        self._world: list[int] = comm.Get_group().Translate_ranks(None, MPI.COMM_WORLD.Get_group())
        self._all = f"all {self.size} ranks of {self._world[0]} to {self._world[-1]}"
        # MPI errors become exceptions, so that the traceback of the failing rank is visible.
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        self._is_abandoned = False

    def _prepare_collective(self) -> None:
        """Start the posted messages; raise an error after a reduction that not all ranks joined in time."""
        if self._is_abandoned:
            raise MxpeakError(
                f"{self._all} cannot communicate, because an earlier error was raised on some ranks only; do not catch "
                "that error, or use a new communicator on all ranks, such as comm.Dup()"
            )
        _posts.flush()

    def direct(self, transport: DeviceTransport) -> Communicator | None:
        """Return this group with device buffers passed to MPI, or None if MPI reports no support on some rank."""
        return self.with_transport(transport) if self.agree(takes_devices(transport.kind)) else None

    def isend(self, buffer: Buffer, dest: int, tag: int = 0) -> Request:
        """Start MPI_Isend to rank `dest` as soon as the buffer's content is complete, and return the request."""

        def begin(memory: Any) -> Request:
            return _pending(self._comm.Isend(memory, dest, tag), "a message to be received by", self._world[dest])

        return _posts.post(self.transport.outgoing(buffer), begin, (id(self._comm), "send", dest, tag))

    def irecv(self, buffer: Buffer, source: int, tag: int = 0) -> Request:
        """Start MPI_Irecv from rank `source` as soon as no operation reads the buffer, and return the request."""

        def begin(memory: Any) -> Request:
            return _pending(self._comm.Irecv(memory, source, tag), "a message from", self._world[source])

        memory, land = self.transport.incoming(buffer)
        return arrival(_posts.post(memory, begin, (id(self._comm), "receive", source, tag)), land)

    def repeated(self, sends: Sequence[Envelope], receives: Sequence[Envelope]) -> Repeated | None:
        """Return persistent MPI requests, or None if the transport copies buffers."""
        return _Persistent(self._comm, self._world, sends, receives) if self.transport is ARRAYS else None

    def ibcast(self, buffer: Buffer, root: int) -> Request:
        """Start MPI_Ibcast from rank `root` as soon as the buffer is ready, and return the request."""

        def begin(memory: Any) -> Request:
            return _pending(self._comm.Ibcast(memory, root), "the broadcast of", self._world[root])

        memory, land = (self.transport.outgoing(buffer), None) if self.rank == root else self.transport.incoming(buffer)
        return arrival(_posts.post(memory, begin, (id(self._comm), "broadcast")), land)

    def allreduce(self, buffer: Buffer, op: str) -> None:
        """Reduce fp64 numbers on the host by MPI_Iallreduce, and yield the core while waiting."""
        if self.size > 1:
            self._prepare_collective()  # all ranks must start the collective operations of a group in the same order
            numbers, land = self.transport.numbers(buffer)
            _pending(self._comm.Iallreduce(MPI.IN_PLACE, numbers, _op(op)), f"a reduction over {self._all}").wait()
            if land is not None:
                land()

    def barrier(self) -> None:
        """Wait for all ranks by MPI_Ibarrier, and yield the core while waiting."""
        self._prepare_collective()
        _pending(self._comm.Ibarrier(), f"a barrier of {self._all}").wait()

    def bcast_object(self, obj: Any, root: int = 0) -> Any:
        """Return the object of rank `root`, broadcast as a pickle: first its length, then its bytes."""
        from pickle import dumps, loads

        self._prepare_collective()
        message = bytearray(dumps(obj)) if self.rank == root else bytearray()
        length = bytearray(len(message).to_bytes(8, "little"))
        _pending(self._comm.Ibcast(length, root), "the broadcast of", self._world[root]).wait()
        if self.rank != root:
            message = bytearray(int.from_bytes(length, "little"))
        _pending(self._comm.Ibcast(message, root), "the broadcast of", self._world[root]).wait()
        return obj if self.rank == root else loads(bytes(message))

    def gather_objects(self, obj: Any, root: int = 0) -> list[Any] | None:
        """Gather pickled objects along a binomial tree: the root receives log2 R messages and unpickles all objects."""
        from pickle import dumps, loads

        self._prepare_collective()
        position = (self.rank - root) % self.size
        packed, distance = [dumps(obj)], 1
        while distance < self.size and not position & distance:
            if position + distance < self.size:
                packed += self._taken((self.rank + distance) % self.size)
            distance *= 2
        if position:
            above = (self.rank - distance) % self.size
            request = self._comm.isend(packed, above, tag=7000)
            _Awaited(lambda: request.test()[0], "a message to be received by", self._world[above]).wait()
            return None
        return [loads(packed[(rank - root) % self.size]) for rank in range(self.size)]

    def _taken(self, source: int) -> list[bytes]:
        """Receive and return the pickled objects that rank `source` has gathered from its subtree."""
        _Awaited(partial(self._comm.iprobe, source, tag=7000), "a message from", self._world[source]).wait()
        taken: list[bytes] = self._comm.recv(source=source, tag=7000)
        return taken

    def split(self, color: int | None, key: int) -> Communicator | None:
        """Call MPI_Comm_split, and return the new group, or None if color is None.

        MPI_Comm_split blocks signals while it waits. The barrier before it does not.
        """
        self.barrier()
        part = self._comm.Split(MPI.UNDEFINED if color is None else color, key)
        return None if part == MPI.COMM_NULL else Mpi(part, self.transport)

    def free(self) -> None:
        """Call MPI_Comm_free."""
        self._comm.Free()

    def agree(self, ok: bool) -> bool:
        """Return whether `ok` is true on all ranks, by MPI_Iallreduce."""
        return bool(self.agree_within(ok, inf))

    def agree_within(self, ok: bool, limit_s: float) -> bool | None:
        """Return whether `ok` is true on all ranks, or None if not all of them call this method within the limit."""
        self._prepare_collective()
        flag = bytearray([0 if ok else 1])
        request = self._comm.Iallreduce(MPI.IN_PLACE, [flag, MPI.UNSIGNED_CHAR], MPI.MAX)
        if limit_s < inf and not _completed_within(request, limit_s):
            _abandoned.append((request, flag))
            self._is_abandoned = True
            return None
        _pending(request, f"the word of {self._all}").wait()
        return flag[0] == 0

    def all_fail_within(self, limit_s: float) -> bool:
        """Return whether all ranks call this method within the limit. Rank 0 counts them, and answers if all do."""
        others, end_s = self.size - 1, monotonic() + limit_s
        if self.rank:
            _abandoned.append(self._comm.isend(None, 0, tag=FAILED))  # rank 0 may never receive it
        missing, tag = (1, LEAVE) if self.rank else (others, FAILED)
        while missing and monotonic() < end_s:
            if self._comm.iprobe(tag=tag):
                self._comm.recv(tag=tag)
                missing -= 1
            else:
                sleep(LOOK_S)
        if self.rank == 0 and not missing:
            for rank in range(1, self.size):
                self._comm.send(None, rank, tag=LEAVE)
        return not missing

    def abort(self, code: int) -> None:
        """Call MPI_Abort, which ends every rank of the program with exit code `code`.

        The call aborts MPI_COMM_WORLD, because MPICH informs the ranks of another communicator by messages and waits
        until they have left.
        """
        MPI.COMM_WORLD.Abort(code)


#: Functions by which MPI libraries report support for a kind of device memory.
QUERIES = {
    "cuda": ("MPIX_Query_cuda_support",),
    "hip": ("MPIX_Query_rocm_support", "MPIX_Query_hip_support"),  # Open MPI's and MPICH's names
}


def takes_devices(kind: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the environment or the MPI library reports support for device memory (`kind` is cuda or hip).

    An MPI library without support may crash. Therefore, device memory is used only if the library or the user confirms
    support.
    """
    answer = environ.get("MXPEAK_GPU_AWARE_MPI")
    if answer is not None:
        if answer not in ("yes", "no"):
            raise UsageError(f"MXPEAK_GPU_AWARE_MPI={answer} is unknown; use yes or no, or unset the variable")
        return answer == "yes"
    if environ.get("MPIR_CVAR_ENABLE_GPU", "1").lower() in ("0", "no", "off", "false"):
        return False
    if "CRAY MPICH" in library_version().upper():
        return environ.get("MPICH_GPU_SUPPORT_ENABLED") == "1"
    return any(_answers(library, name) for library in libraries() for name in QUERIES[kind])


def library_version() -> str:
    """Return the version text of the MPI library, which may have several lines."""
    return str(MPI.Get_library_version())


def libraries() -> set[str]:
    """Return the paths of the MPI libraries that this process has loaded."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    return {line.split()[-1] for line in lines if "libmpi" in line.rpartition("/")[2]}


def _answers(library: str, name: str) -> bool:
    """Call a function of a library without arguments, and return whether it exists and returns true."""
    try:
        return bool(getattr(ctypes.CDLL(library), name)())
    except (AttributeError, OSError):
        return False


@cache
def _attribute() -> int:
    return MPI.Comm.Create_keyval()


def of_user(comm: Any) -> Mpi:
    """Return a duplicate of a user's communicator. Collective.

    The duplicate is created once and stored with the user's communicator, because MPI limits the number of
    communicators.
    """
    duplicate = comm.Get_attr(_attribute())
    if duplicate is None:
        duplicate = Mpi(comm.Dup())
        comm.Set_attr(_attribute(), duplicate)
        end_all_after_uncaught_errors(duplicate)
    return duplicate  # type: ignore[no-any-return]


#: Tags of the messages by which ranks with an uncaught error find out whether all ranks have one.
FAILED, LEAVE = 7901, 7902


def end_all_after_uncaught_errors(comm: Mpi) -> None:
    """Make an uncaught exception on one rank of MPI_COMM_WORLD end all ranks, unless this process is interactive.

    Otherwise, the other ranks would wait for this rank, which waits for them in MPI_Finalize.
    """

    def fails_alone() -> bool:
        return not (MPI.Is_finalized() or comm.all_fail_within(shutdown.LEAVE_S))

    if comm.size == MPI.COMM_WORLD.Get_size() > 1:
        shutdown.end_all_after_uncaught_errors(fails_alone, comm.abort)


def world() -> Mpi:
    """Initialize MPI if necessary, and return a communicator of all ranks that the launcher started. Collective."""
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_FUNNELED)
    return Mpi(MPI.COMM_WORLD.Dup())


def finalize() -> None:
    """Finalize MPI while the threads of Python continue. Do nothing if there is only one MPI rank.

    At the end of Python's finalization, MPI for Python would finalize MPI, but the watchdog has ended by then. Its
    function for MPI_Finalize also stops all threads of Python. This function therefore calls the library directly. It
    does nothing if the library's function is not visible, as with some static libraries.

    After this function, the process must end by `exit`, not by `_exit`. MPICH disconnects from mpiexec in a handler of
    `exit`. Without it, mpiexec kills the other ranks.
    """
    if not MPI.Is_initialized() or MPI.Is_finalized() or MPI.COMM_WORLD.Get_size() == 1:
        return
    with suppress(OSError, AttributeError), LibraryWait(f"MPI_Finalize of all {MPI.COMM_WORLD.Get_size()} ranks"):
        ctypes.CDLL(MPI.__file__).MPI_Finalize()
