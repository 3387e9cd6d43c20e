"""Send messages with tags through Gloo, and convert host buffers to tensors for torch.distributed."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from time import sleep
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from mxpeak.comm.shutdown import ABORT_SEEN, POLL_S, SIGNAL_S

#: The libraries require a time limit, but none is useful: ranks may sleep for hours while others run a case. Ranks
#: that wait for a rank detect its death immediately, and the watchdog reports a rank that stalls.
TIMEOUT = timedelta(days=365)


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


def await_work(work: Any) -> None:
    """Wait until a Gloo operation is complete; raise no error if another rank has ended the program."""
    with no_error_of_its_own():
        work.wait()


class Message:
    """A send or receive with Gloo.

    Gloo can wait for a message but not test it; `test` therefore starts a thread that waits.
    """

    __slots__ = ("_buffer", "_error", "_waiter", "_work")

    def __init__(self, work: Any, buffer: Any):
        self._work, self._buffer = work, buffer  # the buffer must outlive the message
        self._waiter: threading.Thread | None = None
        self._error: Exception | None = None

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
        if self._waiter is None:
            await_work(self._work)
            return
        self._waiter.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            await_work(self._work)
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
    """The state that all communicators of a group share: store, Gloo process group, and a counter of splits."""

    def __init__(self, store: Any, rank: int, size: int):
        self.store, self.rank, self.size = store, rank, size
        self.splits = count()
        with quiet_stdout():
            self.gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, TIMEOUT)

    def send(self, message: torch.Tensor, dest: int, tag: int) -> Message:
        """Start to send to rank `dest`; if a rank has ended, Gloo raises the error here and not in `wait`."""
        with no_error_of_its_own():
            return Message(self.gloo.send([message], dest, tag), message)

    def recv(self, message: torch.Tensor, source: int, tag: int) -> Message:
        """Start to receive from rank `source`; if a rank has ended, Gloo raises the error here and not in `wait`."""
        with no_error_of_its_own():
            return Message(self.gloo.recv([message], source, tag), message)
