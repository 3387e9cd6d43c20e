"""Test that work is run, recorded and replayed, and that graphs are distinguished by all values that they depend on."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch

from mxpeak.kernels.contract.sparse import Part
from mxpeak.kernels.host.engine.team import Team
from mxpeak.kernels.host.sparse.sparse import HostSparse
from mxpeak.kernels.torch.engine.cuda_graphs import GraphRecorder, Replay
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.sparse.sparse import TorchSparse
from tests.support.sparse_matrices import order_of, rows_of


class FakeRecorder:
    """A recorder that counts recordings, and replays by calling."""

    def __init__(self) -> None:
        self.busy, self.recorded, self.replayed = False, 0, 0

    def is_busy(self) -> bool:
        return self.busy

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            work()

        return replay


def test_work_is_run_then_recorded_then_replayed_and_what_is_not_used_is_forgotten() -> None:
    recorder, done = FakeRecorder(), []
    replay = Replay(recorder, max_graphs=2)

    def run(*keys: str) -> tuple[int, int, int]:
        for key in keys:
            replay(key, lambda key=key: done.append(key))
        return len(done), recorder.recorded, recorder.replayed

    assert run("a") == (1, 0, 0)
    assert run("a") == (2, 1, 1)
    assert run("a", "a") == (4, 1, 3)
    assert run("b", "a", "c") == (7, 1, 4)  # b, the least recently used, is dropped
    assert run("a", "b") == (9, 1, 5)  # and c is dropped for b
    assert run("b") == (10, 2, 6)
    assert run("c") == (11, 2, 6)
    recorder.busy = True  # another graph is being recorded
    assert run("b", "new", "new") == (14, 2, 6)
    assert done == ["a", "a", "a", "a", "b", "a", "c", "a", "b", "b", "c", "b", "new", "new"]


def test_a_recorder_keeps_its_first_graph_and_thereby_the_memory_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """This is needed with torch, whose memory pool ends with its last graph and cannot be used again."""
    alive: weakref.WeakSet[Any] = weakref.WeakSet()

    class Graph:
        def capture_begin(self, pool: str, capture_error_mode: str) -> None:
            assert alive or not Graph.begun, "the pool is gone"
            Graph.begun = True
            alive.add(self)

        def capture_end(self) -> None: ...

        def replay(self) -> None: ...

        begun = False

    for name, value in (("Stream", lambda where: None), ("graph_pool_handle", lambda: "pool"), ("CUDAGraph", Graph)):
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    recorder = GraphRecorder(Device(torch.device("cpu"), triton=False))
    for _ in range(3):
        recorder.record(lambda: None)()  # and the graph is freed


def test_without_a_recorder_work_is_only_run() -> None:
    done: list[int] = []
    replay = Replay(None)
    for k in range(3):
        replay("always", lambda k=k: done.append(k))
    assert done == [0, 1, 2]


def test_graphs_are_distinguished_by_vectors_and_operation() -> None:
    """Each operation is called three times with each of two sets of vectors: one run, one recording, two replays."""
    device, name = Device(torch.device("cpu"), triton=False), "a small box between others"
    kernels = TorchSparse(device, 1, lambda: HostSparse(Team(1)))
    kernels._recorder = recorder = FakeRecorder()
    A = kernels.store(rows_of(kernels, name), order_of(kernels, name, "greedy"), "fp64", "fp64", "packed")
    rows = torch.tensor([1, 5], dtype=torch.int32)
    new = partial(torch.zeros, A.n, dtype=torch.float64)
    vectors = [(new(), kernels.halo_vector(A), new()) for _ in range(2)]
    for _ in range(3):
        for b, x, y in vectors:
            kernels.sweep_from_zero(A, b, x)
            kernels.sweep_from_zero(A, b, x, keep=y)
            kernels.sweep_backward(A, y, x)
            kernels.sweep_forward(A, b, x, part=Part.BOUNDARY)
            kernels.matvec(y, A, x, part=Part.INTERIOR)
            kernels.matvec(y, A, x, part=Part.BOUNDARY)
            kernels.residual_at(A, b, x, rows, y[:2], swept=True, part=Part.INTERIOR)
            kernels.residual_at(A, b, x, rows, y[:2], swept=False, part=Part.INTERIOR)
    assert (recorder.recorded, recorder.replayed) == (2 * 8, 2 * 2 * 8)
