"""Messages that are begun when their buffers are ready: until then a device works on them, and nobody waits for it.

MPI knows no queues of work: it may be told of a buffer only once its content is there, and nothing reads any more what
it will overwrite.  So a message is posted with the event of its buffer, and begun by whoever next tests or waits for
any message and finds the event past.

MPI tells two messages apart by group, ranks and tag.  So those of one channel, which have all three in common, begin in
the order in which they were posted, and no other waits for them: the pivots that a host exchanges during FACT do not
stand behind rows that a device has yet to gather.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from os import sched_yield
from typing import Any

from mxpeak.async_buffer import AsyncBuffer
from mxpeak.comm.base import WAITED_FOR, Request, about


class _Later:
    """A message that is posted; a request of the library's once it is begun."""

    __slots__ = ("_begin", "_memory", "_posts", "request")

    def __init__(self, posts: Posts, memory: AsyncBuffer, begin: Callable[[Any], Request]):
        self._posts, self._memory, self._begin = posts, memory, begin
        self.request: Request | None = None

    @property
    def ready(self) -> bool:
        """Whether it can be begun."""
        return self._memory.ready.query()

    def begin(self) -> None:
        """Hand it to the library."""
        self.request = self._begin(self._memory.fulfilled())

    def test(self) -> bool:
        """Whether it is begun and complete."""
        self._posts.drive()
        return self.request is not None and self.request.test()

    def wait(self) -> None:
        """Begin it, after those of its channel that were posted before, and wait for it."""
        WAITED_FOR.append(self)
        while self.request is None:
            self._posts.drive()
            sched_yield()
        WAITED_FOR.pop()
        self.request.wait()

    def about(self) -> str:
        """What it stands for."""
        return "this rank's device" if self.request is None else about(self.request)


class Posts:
    """The messages of a process that are posted and not begun, by channel."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, deque[_Later]] = {}

    def post(self, memory: Any, begin: Callable[[Any], Request], channel: Hashable) -> Request:
        """A message, begun at once where its memory is there and no other of its channel waits."""
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
        """Begin what is ready."""
        for channel, queue in list(self._waiting.items()):
            while queue and queue[0].ready:
                queue.popleft().begin()
            if not queue:
                del self._waiting[channel]

    def flush(self) -> None:
        """Begin all; waits for the device."""
        while self._waiting:
            channel = next(iter(self._waiting))
            for later in self._waiting.pop(channel):
                later.begin()


class _Past:
    """An event that is past."""

    def query(self) -> bool:
        """It is."""
        return True

    def synchronize(self) -> None:
        """At once."""
