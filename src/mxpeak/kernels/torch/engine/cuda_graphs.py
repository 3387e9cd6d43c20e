"""Operations that are several short launches, recorded as graphs when they come back and replayed from then on.

A colour of a coarse level is less work than its launch.  A graph holds addresses and sizes, not tensors: so its key has
every address that its launches see, and all else that they are told belongs to the owner of the `Replay`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Protocol

import torch

from mxpeak.kernels.torch.engine import compile_ahead
from mxpeak.kernels.torch.engine.device import Device

Work = Callable[[], None]
#: Graphs that one owner keeps: a restart cycle has about four operations on each of its vectors.
MOST = 512


class Recorder(Protocol):
    """What makes graphs."""

    def is_busy(self) -> bool:
        """Whether nothing can be recorded now: somebody does, whose graph the work becomes a part of, or rehearses."""

    def record(self, work: Work) -> Work:
        """Let `work` begin its launches, without running them; returns what runs them all."""


class GraphRecorder:
    """CUDA's and HIP's graphs.  What is recorded neither waits for the device nor makes tensors that it keeps."""

    def __init__(self, device: Device):
        self._stream = torch.cuda.Stream(device.where)  # the default one cannot be recorded
        self._pool = torch.cuda.graph_pool_handle()
        self._first: torch.cuda.CUDAGraph | None = None  # kept: torch gives up a pool that has no graph any more

    def is_busy(self) -> bool:
        return compile_ahead.is_rehearsing() or bool(torch.cuda.is_current_stream_capturing())

    def record(self, work: Work) -> Work:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")  # other threads may go on
            try:
                work()
            finally:
                graph.capture_end()
        self._first = self._first or graph
        replay: Work = graph.replay
        return replay


class Replay:
    """Runs work: the first time as it is, the second time recording it, from the third on as the graph that came of it.

    Of `most` keys those that were used longest ago are forgotten; without a recorder work is only run.
    """

    def __init__(self, recorder: Recorder | None, most: int = MOST):
        self._recorder, self._most = recorder, most
        self._graphs: OrderedDict[Hashable, Work | None] = OrderedDict()

    def __call__(self, key: Hashable, work: Work) -> None:
        """Run the work that `key` stands for; equal keys, equal work."""
        if self._recorder is None or self._recorder.is_busy():
            work()
            return
        if key not in self._graphs:
            work()  # compiles what is not compiled yet, which no recording may do
            self._graphs[key] = None
            if len(self._graphs) > self._most:
                self._graphs.popitem(last=False)
            return
        graph = self._graphs[key]
        if graph is None:
            graph = self._graphs[key] = self._recorder.record(work)
        self._graphs.move_to_end(key)
        graph()
