"""Send messages with tags through Gloo, and convert host memory for torch.distributed."""

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

#: The libraries require a time limit, but none is useful: ranks may sleep for hours while others run a case. A rank
#: that dies is noticed immediately by the ranks that wait for it, and the watchdog reports a rank that stalls.
TIMEOUT = timedelta(days=365)


def _line(array: Any) -> Any:
    """Return the memory of a contiguous array as a writable vector.

    Read-only memory can only be sent, so it is copied.
    """
    line = array.reshape(-1, order="A")
    assert array.size == 0 or np.shares_memory(line, array), "a communication buffer must be contiguous"
    return line if line.flags.writeable else line.copy()


def as_tensor(buffer: Any) -> torch.Tensor:
    """Return a contiguous array or tensor as a flat tensor over the same memory."""
    if isinstance(buffer, torch.Tensor):
        return buffer.view(-1) if buffer.is_contiguous() else buffer.t().view(-1)
    return torch.from_numpy(_line(np.asarray(buffer)))


def as_bytes(buffer: Any) -> torch.Tensor:
    """Return the same memory as bytes, because libraries do not support every type."""
    if isinstance(buffer, torch.Tensor):
        return as_tensor(buffer).view(torch.uint8)
    return torch.from_numpy(_line(np.asarray(buffer)).view(np.uint8))


@contextmanager
def no_error_of_its_own() -> Iterator[None]:
    """End this process silently if a message fails because another rank has ended the program.

    The process detects the end through the store or torchrun's signal, shortly after the connection is closed.
    """
    try:
        yield
    except RuntimeError:
        sleep(2 * POLL_S)
        if ABORT_SEEN.is_set():
            sleep(2 * SIGNAL_S)
        raise


def await_work(work: Any) -> None:
    """Wait until a Gloo operation is complete."""
    with no_error_of_its_own():
        work.wait()


class Message:
    """A message in Gloo.

    Gloo can wait for a message but not test it; `test` therefore starts a thread that waits.
    """

    __slots__ = ("_buffer", "_error", "_waiter", "_work")

    def __init__(self, work: Any, buffer: Any):
        self._work, self._buffer = work, buffer  # the buffer must outlive the message
        self._waiter: threading.Thread | None = None
        self._error: Exception | None = None

    def test(self) -> bool:
        """Return whether the message is complete according to the waiting thread."""
        if self._waiter is None:
            self._waiter = threading.Thread(target=self._run, daemon=True)
            self._waiter.start()
        if self._waiter.is_alive():
            return False
        self.wait()
        return True

    def wait(self) -> None:
        """Wait for the message, or for the thread that already waits for it."""
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
    """Redirect stdout to stderr, because some builds of Gloo print a line for every group on stdout."""
    sys.stdout.flush()
    stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)


class Group:
    """The shared state of a group: its store, its Gloo process group, and the number of groups split off."""

    def __init__(self, store: Any, rank: int, size: int):
        self.store, self.rank, self.size = store, rank, size
        self.splits = count()
        with quiet_stdout():
            self.gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, TIMEOUT)

    def send(self, message: torch.Tensor, dest: int, tag: int) -> Message:
        """Post a send; if a rank has ended, Gloo raises the error here rather than in `wait`."""
        with no_error_of_its_own():
            return Message(self.gloo.send([message], dest, tag), message)

    def recv(self, message: torch.Tensor, source: int, tag: int) -> Message:
        """Post a receive; if a rank has ended, Gloo raises the error here rather than in `wait`."""
        with no_error_of_its_own():
            return Message(self.gloo.recv([message], source, tag), message)
