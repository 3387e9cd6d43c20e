"""Define the protocol of a communicator, and tasks: communication that overlaps computation.

A communication algorithm is a generator that yields requests and continues when the yielded request is complete.
`Task` runs the generator: call `test()` during a long update, and `wait()` when the data is needed. Therefore, a
broadcast over a ring needs only a few lines, and works with MPI, threads and torch.distributed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from os import sched_yield
from time import perf_counter, sleep
from typing import Any, Protocol

#: A contiguous buffer (array or tensor); communicators send its bytes in memory order.
Buffer = Any

#: Tags 3k, 3k + 1, 3k + 2 are a family. Messages of one family between two ranks are received in the order in which
#: they were sent, so a library without tags needs one ordered channel per family.
FAMILY = 3

#: A buffer, with the rank that receives or sends it.
Envelope = tuple[Buffer, int]

#: A function that copies a received or reduced message from message-passing memory to its buffer.
Landing = Callable[[], None]


class Transport(Protocol):
    """A conversion between a backend's buffers and the memory that message passing reads and writes.

    A transport returns buffers of another backend unchanged, for example NumPy arrays with a transport for tensors.
    """

    name: str

    def outgoing(self, buffer: Buffer) -> Any:
        """Return the buffer's content as an array, device memory or an `AsyncBuffer`, for a message to be sent."""

    def incoming(self, buffer: Buffer) -> tuple[Any, Landing | None]:
        """Return the memory into which a message is received, and a function that then copies it to the buffer.

        The function is None if no copy is necessary.
        """

    def numbers(self, buffer: Buffer) -> tuple[Any, Landing | None]:
        """Return a host array with the buffer's fp64 numbers for a reduction, which overwrites the array.

        Also return a function that copies the reduced array back to the buffer, or None if no copy is necessary.
        """


class Arrays:
    """The transport of NumPy arrays, which message passing reads and writes in place."""

    name = "arrays"

    def outgoing(self, buffer: Buffer) -> Any:
        """Return the buffer itself."""
        return buffer

    def incoming(self, buffer: Buffer) -> tuple[Any, Landing | None]:
        """Return the buffer itself, and None because no copy is necessary."""
        return buffer, None

    numbers = incoming


ARRAYS = Arrays()


class DeviceTransport(Transport, Protocol):
    """A transport that passes device memory to message passing.

    kind        cuda or hip, the vendor interface of the device
    device_id   an identifier that is unique among the devices of a host
    """

    kind: str
    device_id: str

    def staged(self) -> Transport:
        """Return the transport that copies the same buffers through host memory."""

    def pattern(self, number: int) -> Buffer:
        """Return a new device buffer with a test pattern that depends on `number`."""

    def blank(self) -> Buffer:
        """Return a new device buffer with the size of a test pattern but other content."""

    def equal(self, a: Buffer, b: Buffer) -> bool:
        """Return whether two test buffers have the same content."""


class Request(Protocol):
    """A non-blocking operation, such as a send, a receive or a communication algorithm."""

    def test(self) -> bool:
        """Advance the request and return whether it is complete."""

    def wait(self) -> None:
        """Wait until the request is complete."""


#: Longest interval in seconds at which a sleeping rank tests its request.
LOOK_S = 0.02
#: If yielding the core takes longer than this, another process has used it: there are more ranks than cores.
SHARED_S = 1e-4
#: The fraction of a wait that sleeping may add to it, and the shortest useful sleep.
LATER, NAP_S = 1 / 8, 1e-4
#: The requests that this process waits for, the innermost one last; the watchdog reports these requests.
WAITED_FOR: list[Request | LibraryWait] = []


class Idling:
    """A callable that yields the core between two tests of a wait, or sleeps if other processes need the core.

    Linux shares a core fairly among all runnable processes, including those that only poll. Without sleeping, one rank
    that computes while n - 1 ranks poll would get 1/n of the core.
    """

    __slots__ = ("_begun_s",)

    def __init__(self) -> None:
        self._begun_s = perf_counter()

    def __call__(self) -> None:
        """Yield the core, and sleep for a short time if another process has used it."""
        before_s = perf_counter()
        sched_yield()
        now_s = perf_counter()
        nap_s = LATER * (now_s - self._begun_s)
        if now_s - before_s > SHARED_S and nap_s > NAP_S:
            sleep(min(nap_s, LOOK_S))


class Repeated(Request, Protocol):
    """Persistent messages that are sent and received repeatedly, with the same buffers."""

    def start(self) -> None:
        """Start all messages; the messages of the previous start must be complete."""


def about(request: Request | LibraryWait | None) -> str:
    """Return the description of a request, such as `a message from rank 3`, or '' if the request has none.

    Ranks are numbered as in the whole program.
    """
    say: Callable[[], str] = getattr(request, "about", str)
    return say()


def awaited() -> Request | LibraryWait | None:
    """Return the innermost request that this process waits for, or None if it does not wait.

    Other threads may call this function.
    """
    return next(reversed(WAITED_FOR[:]), None)


class LibraryWait:
    """A context in which this process waits inside a library for something with a description."""

    __slots__ = ("_what",)

    def __init__(self, what: str):
        self._what = what

    def about(self) -> str:
        """Return the description."""
        return self._what

    def __enter__(self) -> None:
        WAITED_FOR.append(self)

    def __exit__(self, *error: object) -> None:
        WAITED_FOR.pop()


def waits_for() -> str:
    """Return the description of the request that this process waits for, or '' if it does not wait.

    Other threads may call this function.
    """
    return next((text for request in reversed(WAITED_FOR[:]) if (text := about(request))), "")


class Communicator(Protocol):
    """A group of ranks 0 … size-1. All methods except isend, irecv and with_transport are collective.

    name         the message passing library: solo, threads, mpi, torch or sockets
    transport    the conversion of buffers to messages, which groups inherit when they are split off
    """

    name: str
    rank: int
    size: int
    transport: Transport

    def with_transport(self, transport: Transport) -> Communicator:
        """Return a communicator of the same ranks with another transport."""
        other = copy(self)
        other.transport = transport
        return other

    def direct(self, transport: DeviceTransport) -> Communicator | None:
        """Return a communicator of the same ranks that sends device memory, or None if the library cannot."""

    def isend(self, buffer: Buffer, dest: int, tag: int = 0) -> Request:
        """Start to send `buffer` to rank `dest`; the buffer must not change until the request is complete."""

    def irecv(self, buffer: Buffer, source: int, tag: int = 0) -> Request:
        """Start to receive a message from rank `source` into `buffer`."""

    def repeated(self, sends: Sequence[Envelope], receives: Sequence[Envelope]) -> Repeated | None:
        """Return persistent messages in host memory, or None if the library has nothing faster than isend and irecv."""
        return None

    def ibcast(self, buffer: Buffer, root: int) -> Request:
        """Start the library's broadcast of `buffer` from `root`."""

    def allreduce(self, buffer: Buffer, op: str) -> None:
        """Reduce the fp64 numbers of `buffer` in place over all ranks; `op` is sum or max."""

    def barrier(self) -> None:
        """Wait until all ranks have called `barrier`."""

    def bcast_object(self, obj: Any, root: int = 0) -> Any:
        """Return the small Python object `obj` of rank `root` on all ranks; do not use this in timed loops."""

    def gather_objects(self, obj: Any, root: int = 0) -> list[Any] | None:
        """Return the small Python objects of all ranks on rank `root`, in rank order, and None on the other ranks."""

    def split(self, color: int | None, key: int) -> Communicator | None:
        """Return a communicator of the ranks with the same color, ordered by key; return None if color is None."""

    def free(self) -> None:
        """Release a communicator that `split` created, because libraries limit the number of communicators."""

    def agree(self, ok: bool) -> bool:
        """Return whether `ok` is true on all ranks."""

    def agree_within(self, ok: bool, limit_s: float) -> bool | None:
        """Return whether `ok` is true on all ranks, or None if not all of them call this method within the limit.

        Virtual ranks have their own limit. After None, the communicator must not be used again.
        """
        return self.agree(ok)

    def abort(self, code: int) -> None:
        """End all ranks of the program immediately with exit code `code`."""


class Arrival:
    """A receive whose message is copied to its buffer after its arrival."""

    __slots__ = ("_land", "_request")

    def __init__(self, request: Request, land: Landing):
        self._request = request
        self._land: Landing | None = land

    def test(self) -> bool:
        """Return whether the message has arrived; if it has, copy it to its buffer."""
        if self._land is not None and self._request.test():
            self._bring()
        return self._land is None

    def wait(self) -> None:
        """Wait for the message and copy it to its buffer."""
        if self._land is not None:
            self._request.wait()
            self._bring()

    @property
    def in_stream(self) -> bool:
        """Return whether a device's stream, instead of the host, waits for the receive."""
        return waits_in_stream(self._request)

    def about(self) -> str:
        """Return the description of the receive, such as `a message from rank 3`."""
        return about(self._request)

    def _bring(self) -> None:
        assert self._land is not None
        self._land()
        self._land = None


def arrival(request: Request, land: Landing | None) -> Request:
    """Return a receive that calls `land` after its message has arrived, or the request itself if `land` is None."""
    return request if land is None else Arrival(request, land)


#: A communication algorithm, a generator that yields each request that it waits for.
Steps = Generator[Request, None, None]


class Task:
    """A running communication algorithm. A task is also a request: `test` and `wait` continue the algorithm."""

    __slots__ = ("_pending", "_steps")

    def __init__(self, steps: Steps):
        self._steps: Steps | None = steps
        self._pending: Request | None = None
        self._advance()

    def _advance(self) -> None:
        assert self._steps is not None
        try:
            self._pending = next(self._steps)
        except StopIteration:
            self._steps = self._pending = None

    @property
    def pending(self) -> Request | None:
        """Return the request that the algorithm waits for, or None if it has ended on this rank."""
        return self._pending

    @property
    def done(self) -> bool:
        """Return whether the algorithm has ended on this rank."""
        return self._steps is None

    def about(self) -> str:
        """Return the description of the pending request, or '' if the algorithm has ended."""
        return about(self._pending) if self._pending is not None else ""

    def test(self) -> bool:
        """Continue as far as possible without waiting, and return whether the algorithm has ended."""
        while self._pending is not None and self._pending.test():
            self._advance()
        return self.done

    @property
    def in_stream(self) -> bool:
        """Return whether a device's stream, instead of the host, waits for the pending request."""
        return waits_in_stream(self._pending)

    def wait_polling(self, look: Callable[[], object]) -> None:
        """Run the algorithm to its end, and call `look` between the tests of pending requests.

        If a device's stream waits for the pending request, the host does not wait and `look` is not called.
        """
        WAITED_FOR.append(self)
        idle = Idling()
        while not self.in_stream and not self.test():
            look()
            idle()
        WAITED_FOR.pop()
        self.wait()

    def rest(self) -> Steps:
        """Yield the remaining requests of the algorithm, so that another algorithm can continue it."""
        while self._pending is not None:
            yield self._pending
            self._advance()

    def wait(self, waiting: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        """Run the algorithm to its end; each wait for a request is inside a context `waiting()`."""
        while self._pending is not None:
            with waiting():
                self._pending.wait()
            self._advance()


def waits_in_stream(request: Any) -> bool:
    """Return whether a device's stream waits for a request instead of the host, which continues immediately."""
    return bool(getattr(request, "in_stream", False))


class _FirstOf:
    """A request that is complete when one of several requests is complete; each test advances all requests."""

    __slots__ = ("_requests",)

    def __init__(self, requests: Sequence[Request]):
        self._requests = requests

    def test(self) -> bool:
        """Test all requests and return whether one of them is complete."""
        return any([request.test() for request in self._requests])

    def wait(self) -> None:
        """Test all requests until one is complete, and yield the core between tests.

        If device streams wait for all requests, the host continues immediately.
        """
        if self.in_stream:
            for request in self._requests:
                request.wait()
            return
        WAITED_FOR.append(self)
        idle = Idling()
        while not self.test():
            idle()
        WAITED_FOR.pop()

    @property
    def in_stream(self) -> bool:
        """Return whether device streams, instead of the host, wait for all of the requests."""
        return all(map(waits_in_stream, self._requests))

    def about(self) -> str:
        """Return the different descriptions of the requests, separated by commas."""
        return ", ".join(dict.fromkeys(filter(None, map(about, self._requests))))


def together(*algorithms: Steps) -> Steps:
    """Run several communication algorithms concurrently, as one algorithm; they start in the given order.

    While one algorithm waits for its message, another one forwards its own message.
    """
    tasks = [Task(steps) for steps in algorithms]
    while len(tasks := [task for task in tasks if not task.test()]) > 1:
        yield _FirstOf([task.pending for task in tasks if task.pending is not None])
    for last in tasks:
        yield from last.rest()


def behind(first: Request, steps: Steps) -> Steps:
    """Wait until a request is complete, then run a communication algorithm."""
    yield first
    yield from steps


def all_of(requests: Iterable[Request]) -> Steps:
    """Wait until all of the given requests are complete."""
    yield from list(requests)


def passing_on(
    comm: Communicator,
    buffers: Sequence[Buffer],
    own: Iterable[int],
    algorithm: Callable[[Communicator, list[Any]], Steps],
) -> Steps:
    """Return an algorithm that forwards messages and copies each buffer to or from the device only once.

    `own` contains the indices of the buffers whose content comes from this rank. These buffers are read by this call,
    not when the algorithm starts. Received buffers are forwarded from the memory in which they arrived, without a
    second copy from the device.
    """
    here = set(own)
    crossed = [
        (comm.transport.outgoing(buffer), None) if i in here else comm.transport.incoming(buffer)
        for i, buffer in enumerate(buffers)
    ]
    bare = comm if comm.transport is ARRAYS else comm.with_transport(ARRAYS)
    steps = algorithm(bare, [memory for memory, _ in crossed])
    return _landing(steps, [land for _, land in crossed if land is not None])


def _landing(steps: Steps, landings: list[Landing]) -> Steps:
    yield from steps
    for land in landings:
        land()


def meet_asleep(comm: Communicator) -> None:
    """Sleep until rank 0 calls this function, without a time limit. Collective over comm."""
    request, pause_s = comm.ibcast(bytearray(1), 0), LOOK_S / 512
    while not request.test():
        sleep(pause_s)
        pause_s = min(2 * pause_s, LOOK_S)
