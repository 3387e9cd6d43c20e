"""Record operations of several short launches as graphs and replay them.

On a coarse multigrid level, launching the kernel of one color costs more than running it. A graph contains addresses
and sizes instead of tensors. Therefore, the key of a graph contains every address that its launches use. All other
arguments of the launches are the same for every graph of one `Replay`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Protocol

import torch

from mxpeak.kernels.torch.engine import compile_ahead
from mxpeak.kernels.torch.engine.device import Device

Work = Callable[[], None]
#: Maximum number of graphs per owner: a restart cycle has about four operations on each of its vectors.
MAX_GRAPHS = 512


class Recorder(Protocol):
    """An object that records launches as graphs, such as `GraphRecorder`."""

    def is_busy(self) -> bool:
        """Return whether recording is impossible, because another graph is being recorded or a rehearsal is running."""

    def record(self, work: Work) -> Work:
        """Record the launches of `work` without running them, and return a function that runs them."""


class GraphRecorder:
    """A recorder of CUDA or HIP graphs.

    Recorded work must not wait for the device. It must not allocate tensors that are still in use after the recording.
    """

    def __init__(self, device: Device):
        self._stream = torch.cuda.Stream(device.where)  # the default stream cannot be recorded
        self._pool = torch.cuda.graph_pool_handle()
        self._first: torch.cuda.CUDAGraph | None = None  # torch frees a pool that has no graph

    def is_busy(self) -> bool:
        return compile_ahead.is_rehearsing() or bool(torch.cuda.is_current_stream_capturing())

    def record(self, work: Work) -> Work:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            graph.capture_begin(
                pool=self._pool, capture_error_mode="thread_local"
            )  # other threads may continue to launch
            try:
                work()
            finally:
                graph.capture_end()
        self._first = self._first or graph
        replay: Work = graph.replay
        return replay


class Replay:
    """A cache of graphs: work is run directly the first time, recorded the second time, and replayed from then on.

    The least recently used graphs beyond `max_graphs` are dropped. Without a recorder, work is always run directly.
    """

    def __init__(self, recorder: Recorder | None, max_graphs: int = MAX_GRAPHS):
        self._recorder, self._max_graphs = recorder, max_graphs
        self._graphs: OrderedDict[Hashable, Work | None] = OrderedDict()

    def __call__(self, key: Hashable, work: Work) -> None:
        """Run `work`, or replay its graph; calls with equal keys must make the same launches."""
        if self._recorder is None or self._recorder.is_busy():
            work()
            return
        if key not in self._graphs:
            work()  # compiles its kernels, which is not possible while recording
            self._graphs[key] = None
            if len(self._graphs) > self._max_graphs:
                self._graphs.popitem(last=False)
            return
        graph = self._graphs[key]
        if graph is None:
            graph = self._graphs[key] = self._recorder.record(work)
        self._graphs.move_to_end(key)
        graph()
