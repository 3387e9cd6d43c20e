"""Send messages with tags through Gloo, and convert host buffers to tensors for torch.distributed."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count
from time import sleep
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from mxpeak.comm.base import LibraryWait
from mxpeak.comm.shutdown import ABORT_SEEN, POLL_S, SIGNAL_S
from mxpeak.errors import MxpeakError

#: Time within which the ranks of a group must connect.
MEETING = timedelta(minutes=5)
#: The libraries require a time limit for messages, but none is useful: ranks may sleep for hours while others run a
#: case. Ranks that wait for a rank detect its death immediately, and the watchdog reports a rank that stalls.
TIMEOUT = timedelta(days=365)
#: Tag of a message that no rank sends, and the time limit of its receive, with which a group closes its connections.
CLOSE, CLOSE_LIMIT = 6700, timedelta(milliseconds=1)


def _line(array: Any) -> Any:
    """Return a one-dimensional writable view of a contiguous array.

    A read-only array is copied, because torch rejects it; such an array can only be sent.
    """
    line = array.reshape(-1, order="A")
    assert array.size == 0 or np.shares_memory(line, array), "a communication buffer must be contiguous"
    return line if line.flags.writeable else line.copy()


def as_tensor(buffer: Any) -> torch.Tensor:
    """Return a one-dimensional tensor over the memory of a contiguous array or tensor."""
    if isinstance(buffer, torch.Tensor):
        return buffer.view(-1) if buffer.is_contiguous() else buffer.t().view(-1)
    return torch.from_numpy(_line(np.asarray(buffer)))


def as_bytes(buffer: Any) -> torch.Tensor:
    """Return a uint8 tensor over the memory of a contiguous buffer, because libraries do not support every type."""
    if isinstance(buffer, torch.Tensor):
        return as_tensor(buffer).view(torch.uint8)
    return torch.from_numpy(_line(np.asarray(buffer)).view(np.uint8))


@contextmanager
def no_error_of_its_own() -> Iterator[None]:
    """Return a context that prevents message errors if another rank has ended the program.

    After an error, the context waits until the `Watch` or torchrun's signal can end this process. If neither does, the
    context raises the error.
    """
    try:
        yield
    except RuntimeError:
        sleep(2 * POLL_S)
        if ABORT_SEEN.is_set():
            sleep(2 * SIGNAL_S)
        raise


def await_work(work: Any, what: str) -> None:
    """Wait until a collective operation is complete; raise no error if another rank has ended the program.

    The watchdog reports the description `what`.
    """
    with LibraryWait(what), no_error_of_its_own():
        work.wait()


class Message:
    """A send or receive with Gloo, and its description with the rank of the peer.

    Gloo can wait for a message but not test it; `test` therefore starts a thread that waits.
    """

    __slots__ = ("_buffer", "_error", "_waiter", "_what", "_work")

    def __init__(self, work: Any, buffer: Any, what: str):
        self._work, self._buffer, self._what = work, buffer, what  # the buffer must outlive the message
        self._waiter: threading.Thread | None = None
        self._error: Exception | None = None

    def about(self) -> str:
        """Return the description of the message, such as `a message from rank 3`."""
        return self._what

    def test(self) -> bool:
        """Return whether the waiting thread has completed the message; the first call starts the thread."""
        if self._waiter is None:
            self._waiter = threading.Thread(target=self._run, daemon=True)
            self._waiter.start()
        if self._waiter.is_alive():
            return False
        self.wait()
        return True

    def wait(self) -> None:
        """Wait for the message, and raise the error of the waiting thread if it failed."""
        with LibraryWait(self._what):
            if self._waiter is None:
                self._await_work()
                return
            self._waiter.join()
        if self._error is not None:
            raise self._error

    def _await_work(self) -> None:
        with no_error_of_its_own():
            self._work.wait(TIMEOUT)

    def _run(self) -> None:
        try:
            self._await_work()
        except Exception as error:
            self._error = error


@contextmanager
def quiet_stdout() -> Iterator[None]:
    """Redirect stdout to stderr within the context, because some builds of Gloo print a line per group on stdout."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


class Group:
    """The state that all communicators of a group share: store, Gloo process group, and a counter of splits.

    `world` contains the numbers of the ranks in the whole program. Raises RuntimeError if the ranks do not connect
    within MEETING.
    """

    def __init__(self, store: Any, rank: int, size: int, world: Sequence[int] | None = None):
        self.store, self.rank, self.size = store, rank, size
        self.world: Sequence[int] = range(size) if world is None else world
        self.everyone = f"all {size} ranks of {self.world[0]} to {self.world[-1]}"
        self.splits = count()
        self._is_closed = False
        with quiet_stdout(), LibraryWait(f"the connections of {self.everyone}"):
            self._gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, MEETING)
        self._gloo.set_timeout(TIMEOUT)

    @property
    def gloo(self) -> Any:
        """Return Gloo's process group; raise an error after `close`."""
        if self._is_closed:
            raise MxpeakError(
                f"{self.everyone} cannot communicate, because an earlier error was raised on some ranks only; do not "
                "catch that error"
            )
        return self._gloo

    def close(self) -> None:
        """Close the connections, so that the other ranks raise errors instead of waiting for this rank."""
        self._is_closed = True
        with suppress(RuntimeError):  # Gloo closes all connections of a group after a receive that is too late
            other = (self.rank + 1) % self.size
            self._gloo.recv([torch.empty(1)], other, CLOSE).wait(CLOSE_LIMIT)

    def send(self, message: torch.Tensor, dest: int, tag: int) -> Message:
        """Start to send to rank `dest`; if a rank has ended, Gloo raises the error here and not in `wait`."""
        with no_error_of_its_own():
            what = f"a message to be received by rank {self.world[dest]}"
            return Message(self.gloo.send([message], dest, tag), message, what)

    def recv(self, message: torch.Tensor, source: int, tag: int) -> Message:
        """Start to receive from rank `source`; if a rank has ended, Gloo raises the error here and not in `wait`."""
        with no_error_of_its_own():
            what = f"a message from rank {self.world[source]}"
            return Message(self.gloo.recv([message], source, tag), message, what)
