"""The protocol of a communicator, and tasks: communication that goes on while something else is computed.

A communication algorithm is a generator that yields requests; it goes on once the yielded request is complete.
`Task` drives it: `test()` from inside a long update, `wait()` when the data is needed.  So a broadcast over a ring
reads as two lines, and works over MPI, threads and torch.distributed alike.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from os import sched_yield
from time import perf_counter, sleep
from typing import Any, Protocol

#: A contiguous buffer (array or tensor): communicators send its bytes as they lie in memory.
Buffer = Any

#: Tags 3k, 3k + 1, 3k + 2 are a family: what one rank sends another with them is received in the order it was sent in.
#: So a library without tags needs an order of its own for each family, and no more.
FAMILY = 3

#: A buffer, and the rank that it is sent to or comes from.
Envelope = tuple[Buffer, int]

#: Brings to its buffer what message passing has received, or combined, elsewhere.
Landing = Callable[[], None]


class Transport(Protocol):
    """How a backend's buffers become what message passing reads and writes, and come back.

    Buffers of another kind (NumPy arrays, where tensors are transported) are handed on as they are.
    """

    name: str

    def outgoing(self, buffer: Buffer) -> Any:
        """The buffer's content as message passing may read it from now on."""

    def incoming(self, buffer: Buffer) -> tuple[Any, Landing | None]:
        """Where message passing may write from now on, and what brings it to the buffer once it has come."""

    def numbers(self, buffer: Buffer) -> tuple[Any, Landing | None]:
        """The buffer's fp64 numbers as an array on the host, to be combined in place, and what brings them back."""


class Arrays:
    """Buffers that message passing reads and writes where they are: NumPy arrays."""

    name = "arrays"

    def outgoing(self, buffer: Buffer) -> Any:
        """The buffer itself."""
        return buffer

    def incoming(self, buffer: Buffer) -> tuple[Any, Landing | None]:
        """The buffer itself."""
        return buffer, None

    numbers = incoming


ARRAYS = Arrays()


class DeviceTransport(Transport, Protocol):
    """A transport of buffers that lie in the memory of a device, and are handed to message passing there.

    kind        cuda or hip: whose device it is
    device_id   which of the host's devices it is
    """

    kind: str
    device_id: str

    def staged(self) -> Transport:
        """The same through host memory."""

    def known(self, number: int) -> Buffer:
        """A new device buffer, whose content depends on `number`."""

    def unknown(self) -> Buffer:
        """A new device buffer of the same size, of other content."""

    def equal(self, a: Buffer, b: Buffer) -> bool:
        """Whether two such buffers have the same content."""


class Request(Protocol):
    """One non-blocking send or receive under way."""

    def test(self) -> bool:
        """Whether it is complete; drives it a little further if not."""

    def wait(self) -> None:
        """Return once it is complete."""


#: How often a rank that sleeps looks for what it waits for, once it has waited a while.
LOOK_S = 0.02
#: A core that comes back later than this had somebody else to work for, who did more than look: ranks outnumber cores.
SHARED_S = 1e-4
#: The share of its time that a wait may last longer by sleeping, and the shortest sleep that is worth it.
LATER, NAP_S = 1 / 8, 1e-4
#: The requests that this process waits for, the innermost last: for whoever asks why nothing goes on.
WAITED_FOR: list[Request] = []


class Idling:
    """Between two looks of one wait, give the core to whoever else wants it.

    Where somebody does, sleep too: Linux shares a core fairly among all that are ready to run, those that only look
    included, so that one rank that computes while n - 1 look has an n-th of it.
    """

    __slots__ = ("_begun_s",)

    def __init__(self) -> None:
        self._begun_s = perf_counter()

    def __call__(self) -> None:
        """Between this look and the next."""
        before_s = perf_counter()
        sched_yield()
        now_s = perf_counter()
        nap_s = LATER * (now_s - self._begun_s)
        if now_s - before_s > SHARED_S and nap_s > NAP_S:
            sleep(min(nap_s, LOOK_S))


class Repeated(Request, Protocol):
    """Messages that are sent and received again and again, from and into the same buffers."""

    def start(self) -> None:
        """Begin them; those of the last time are complete."""


def about(request: Request | None) -> str:
    """What a request stands for, such as `a message from rank 3`, by the whole program's ranks; empty if unknown."""
    say: Callable[[], str] = getattr(request, "about", str)
    return say()


def awaited() -> Request | None:
    """The request that this process waits for, if any; may be asked by another thread."""
    return next(reversed(WAITED_FOR[:]), None)


def waits_for() -> str:
    """What this process waits for, as far as its communicators say; may be asked by another thread."""
    return next((text for request in reversed(WAITED_FOR[:]) if (text := about(request))), "")


class Communicator(Protocol):
    """A group of ranks 0 … size-1 that talk to each other.  All but isend, irecv and with_transport are collective.

    name         the message passing underneath: solo, threads, mpi or torch
    transport    how buffers become messages; groups that are split off have the same
    """

    name: str
    rank: int
    size: int
    transport: Transport

    def with_transport(self, transport: Transport) -> Communicator:
        """This very group, with buffers that become messages by `transport`."""

    def direct(self, transport: DeviceTransport) -> Communicator | None:
        """This group with a device's own buffers as messages; None where the library does not say that it can."""

    def isend(self, buffer: Buffer, dest: int, tag: int = 0) -> Request:
        """Begin to send `buffer`, which must stay as it is until the request is complete."""

    def irecv(self, buffer: Buffer, source: int, tag: int = 0) -> Request:
        """Begin to receive into `buffer`."""

    def repeated(self, sends: Sequence[Envelope], receives: Sequence[Envelope]) -> Repeated | None:
        """Messages in the host's memory to be begun again and again; None where the library has no quicker way."""

    def ibcast(self, buffer: Buffer, root: int) -> Request:
        """Begin the library's own broadcast of `buffer` from `root`."""

    def allreduce(self, buffer: Buffer, op: str) -> None:
        """Combine everybody's `buffer` in place by op: sum or max."""

    def barrier(self) -> None:
        """Return once everybody has come here."""

    def bcast_object(self, obj: Any, root: int = 0) -> Any:
        """A small Python object of `root`, everywhere (control plane; never inside a timed loop)."""

    def gather_objects(self, obj: Any, root: int = 0) -> list[Any] | None:
        """Everybody's small Python object, in the order of ranks, on `root`; None elsewhere."""

    def split(self, color: int | None, key: int) -> Communicator | None:
        """The group of those that gave the same color, ordered by key; None for those that gave None."""

    def free(self) -> None:
        """Give up a group that was split off: libraries have a limited number."""

    def agree(self, ok: bool) -> bool:
        """Whether everybody is ok."""

    def abort(self, code: int) -> None:
        """End all ranks of the whole program at once with exit code `code`."""


class Arrival:
    """A receive whose message lies elsewhere when it has come, and is brought to its buffer then."""

    __slots__ = ("_land", "_request")

    def __init__(self, request: Request, land: Landing):
        self._request = request
        self._land: Landing | None = land

    def test(self) -> bool:
        """Whether it has come; brings it home."""
        if self._land is not None and self._request.test():
            self._bring()
        return self._land is None

    def wait(self) -> None:
        """Wait for it, and bring it home."""
        if self._land is not None:
            self._request.wait()
            self._bring()

    @property
    def in_stream(self) -> bool:
        """Whether a device's stream does the waiting for its receive."""
        return waits_in_stream(self._request)

    def about(self) -> str:
        """What its receive stands for."""
        return about(self._request)

    def _bring(self) -> None:
        assert self._land is not None
        self._land()
        self._land = None


def arrival(request: Request, land: Landing | None) -> Request:
    """A receive, with what is to be done once its message has come."""
    return request if land is None else Arrival(request, land)


#: A communication algorithm: yields each request that it waits for.
Steps = Generator[Request, None, None]


class Task:
    """A communication algorithm under way; made by calling it, driven by `test` and `wait`: it is a request itself."""

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
        """The request that the algorithm waits for; None once it has ended on this rank."""
        return self._pending

    @property
    def done(self) -> bool:
        """Whether the algorithm has ended on this rank."""
        return self._steps is None

    def about(self) -> str:
        """What it waits for."""
        return about(self._pending) if self._pending is not None else ""

    def test(self) -> bool:
        """Go as far as is possible without waiting; whether the algorithm has ended."""
        while self._pending is not None and self._pending.test():
            self._advance()
        return self.done

    @property
    def in_stream(self) -> bool:
        """Whether a device's stream does the waiting for what it waits for."""
        return waits_in_stream(self._pending)

    def wait_beside(self, look: Callable[[], object]) -> None:
        """Go to the end; look after something else until then, unless a stream does the waiting."""
        WAITED_FOR.append(self)
        idle = Idling()
        while not self.in_stream and not self.test():
            look()
            idle()
        WAITED_FOR.pop()
        self.wait()

    def rest(self) -> Steps:
        """What is left of the algorithm, as one."""
        while self._pending is not None:
            yield self._pending
            self._advance()

    def wait(self, waiting: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        """Go to the end; each wait for a request is inside `waiting()`, what the algorithm does between them is not."""
        while self._pending is not None:
            with waiting():
                self._pending.wait()
            self._advance()


def waits_in_stream(request: Any) -> bool:
    """Whether a device's stream does the waiting for a request, and the host goes on at once."""
    return bool(getattr(request, "in_stream", False))


class _FirstOf:
    """Complete as soon as one of several requests is; each test drives all of them."""

    __slots__ = ("_requests",)

    def __init__(self, requests: Sequence[Request]):
        self._requests = requests

    def test(self) -> bool:
        """Whether one of them is complete."""
        return any([request.test() for request in self._requests])

    def wait(self) -> None:
        """Drive them in turn, and give the core to whoever else wants it; what a stream waits for is left to it."""
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
        """Whether a device's stream does the waiting for all of them."""
        return all(map(waits_in_stream, self._requests))

    def about(self) -> str:
        """What all of them stand for."""
        return ", ".join(dict.fromkeys(filter(None, map(about, self._requests))))


def together(*algorithms: Steps) -> Steps:
    """Several communication algorithms at once, as one: all begin, in this order; each goes on when its request allows.

    While one waits for its message, another passes on what it has received.
    """
    tasks = [Task(steps) for steps in algorithms]
    while len(tasks := [task for task in tasks if not task.test()]) > 1:
        yield _FirstOf([task.pending for task in tasks if task.pending is not None])
    for last in tasks:
        yield from last.rest()


def behind(first: Request, steps: Steps) -> Steps:
    """A communication algorithm that begins once a request is complete."""
    yield first
    yield from steps


def all_of(requests: Iterable[Request]) -> Steps:
    """Wait for every one of several requests that are under way together."""
    yield from list(requests)


def passing_on(
    comm: Communicator,
    buffers: Sequence[Buffer],
    mine: Iterable[int],
    algorithm: Callable[[Communicator, list[Any]], Steps],
) -> Steps:
    """Run an algorithm that passes messages on; each buffer crosses to or from the device once.

    `mine` are the numbers of the buffers whose content comes from here; they are read now, not when the steps begin.
    What came from elsewhere is sent on from where it came to, and not fetched back from a device.
    """
    here = set(mine)
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
    """Return once rank 0 has come here, however long that takes: the others sleep.  Collective over comm."""
    request, pause_s = comm.ibcast(bytearray(1), 0), LOOK_S / 512
    while not request.test():
        sleep(pause_s)
        pause_s = min(2 * pause_s, LOOK_S)
