"""The protocol of a communicator, and tasks: communication that goes on while something else is computed.

A communication algorithm is a generator that yields requests; it goes on once the yielded request is complete.
`Task` drives it: `progress()` from inside a long update, `wait()` when the data is needed.  So a broadcast over a ring
reads as two lines, and works over MPI, threads and torch.distributed alike.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from os import sched_yield
from typing import Any, Protocol

#: A contiguous buffer (array or tensor): communicators send its bytes as they lie in memory.
Buffer = Any


class Request(Protocol):
    """One non-blocking send or receive under way."""

    def test(self) -> bool:
        """Whether it is complete; drives it a little further if not."""

    def wait(self) -> None:
        """Return once it is complete."""


class Communicator(Protocol):
    """A group of ranks 0 … size-1 that talk to each other.  All methods but isend and irecv are collective."""

    rank: int
    size: int

    def isend(self, buffer: Buffer, dest: int, tag: int = 0) -> Request:
        """Begin to send `buffer`, which must stay as it is until the request is complete."""

    def irecv(self, buffer: Buffer, source: int, tag: int = 0) -> Request:
        """Begin to receive into `buffer`."""

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

    def agree(self, ok: bool) -> bool:
        """Whether everybody is ok."""

    def abort(self, code: int) -> None:
        """End all ranks of the whole program at once with exit code `code`."""


#: A communication algorithm: yields each request that it waits for.
Steps = Generator[Request, None, None]


class Task:
    """A communication algorithm under way; made by calling it, driven by `progress` and `wait`."""

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
    def done(self) -> bool:
        """Whether the algorithm has ended on this rank."""
        return self._steps is None

    def progress(self) -> bool:
        """Go as far as is possible without waiting; whether the algorithm has ended."""
        while self._pending is not None and self._pending.test():
            self._advance()
        return self.done

    def wait(self) -> None:
        """Go to the end."""
        while self._pending is not None:
            self._pending.wait()
            self._advance()


def wait_for(tasks: Sequence[Task], others: Sequence[Task] = ()) -> None:
    """Go to the end of all tasks, driving them and `others` in turn: what has arrived is passed on meanwhile."""
    while not all([task.progress() for task in tasks]):
        for task in others:
            task.progress()
        sched_yield()


def in_turn(*algorithms: Steps) -> Steps:
    """One communication algorithm after the other, as one."""
    for steps in algorithms:
        yield from steps


def all_of(requests: Iterable[Request]) -> Steps:
    """Wait for every one of several requests that are under way together."""
    yield from list(requests)
