"""Start messages when their buffers are ready, without waiting for the device.

MPI has no streams: it may receive a buffer only after its content is complete and all reads of the memory that it
overwrites have finished. A message is therefore posted with the event of its buffer, and started by the next test or
wait for any message after the event.

MPI distinguishes two messages by group, ranks and tag. Messages of one channel, which share all three, start in
posting order, and no other messages wait for them. The pivots that a host exchanges during FACT therefore do not wait
for rows that a device has not gathered yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from os import sched_yield
from typing import Any

from mxpeak.async_buffer import AsyncBuffer
from mxpeak.comm.base import WAITED_FOR, Request, about


class _Later:
    """A posted message; its `request` is None until the message starts."""

    __slots__ = ("_begin", "_memory", "_posts", "request")

    def __init__(self, posts: Posts, memory: AsyncBuffer, begin: Callable[[Any], Request]):
        self._posts, self._memory, self._begin = posts, memory, begin
        self.request: Request | None = None

    @property
    def ready(self) -> bool:
        """Return whether the message's memory is ready, so that the message can be started."""
        return self._memory.ready.query()

    def begin(self) -> None:
        """Start the message with the message passing library."""
        self.request = self._begin(self._memory.fulfilled())

    def test(self) -> bool:
        """Start all ready messages, and return whether this message is started and complete."""
        self._posts.drive()
        return self.request is not None and self.request.test()

    def wait(self) -> None:
        """Wait until the message can be started and is complete."""
        WAITED_FOR.append(self)
        while self.request is None:
            self._posts.drive()
            sched_yield()
        WAITED_FOR.pop()
        self.request.wait()

    def about(self) -> str:
        """Return the description of the started message, or of this rank's device if the message waits for it."""
        return "this rank's device" if self.request is None else about(self.request)


class Posts:
    """The messages of a process that are posted but not started, by channel."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, deque[_Later]] = {}

    def post(self, memory: Any, begin: Callable[[Any], Request], channel: Hashable) -> Request:
        """Post a message, and return its request.

        The message starts when its memory is ready and it is first in its channel.
        """
        self.drive()
        if not isinstance(memory, AsyncBuffer):
            if channel not in self._waiting:
                return begin(memory)
            memory = AsyncBuffer(memory, _Past())
        later = _Later(self, memory, begin)
        self._waiting.setdefault(channel, deque()).append(later)
        self.drive()
        return later

    def drive(self) -> None:
        """Start all messages that are ready and not preceded by another message of their channel."""
        for channel, queue in list(self._waiting.items()):
            while queue and queue[0].ready:
                queue.popleft().begin()
            if not queue:
                del self._waiting[channel]

    def flush(self) -> None:
        """Start all posted messages channel by channel, and wait for the device if their memory is not ready."""
        while self._waiting:
            channel = next(iter(self._waiting))
            for later in self._waiting.pop(channel):
                later.begin()


class _Past:
    """An event that has already occurred."""

    def query(self) -> bool:
        """Return True, because the event has occurred."""
        return True

    def synchronize(self) -> None:
        """Return immediately, because the event has occurred."""
