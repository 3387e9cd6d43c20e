"""Replace torch.cuda by a virtual GPU, and run ranks as threads with one GPU each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from time import sleep
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from mxpeak import spans
from mxpeak.comm import base, deferred
from mxpeak.comm import devices as messages
from mxpeak.comm.base import Communicator
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.kernels.host.lu.lu import HostLu
from mxpeak.kernels.torch.engine import device as devices
from mxpeak.kernels.torch.engine import tensors
from mxpeak.kernels.torch.lu import solves
from mxpeak.kernels.torch.sparse import setup
from mxpeak.solvers.lu import pipeline
from mxpeak.solvers.lu.panel import FactoredPanel
from tests.support.queues import rank as queues
from tests.support.queues import transports
from tests.support.queues.launches import single_launches
from tests.support.queues.log import HOST, Log, Step
from tests.support.queues.rank import Rank, here, playing
from tests.support.queues.tensors import Dispatch, pinned

#: Properties of the virtual chip, with torch's names.
CHIP = {
    "name": "virtual", "major": 9, "minor": 0, "multi_processor_count": 2, "total_memory": 1 << 34,
    "pci_domain_id": 0, "pci_bus_id": 1, "pci_device_id": 0,
}  # fmt: skip
#: Modules that poll for messages. Ranks are threads of one process here, so that polling delays the sender.
LOOKING = (base, messages, deferred, pipeline, transports)
NAP_S = 5e-4


class Eager:
    """Replace a graph by a function that runs the work again."""

    def __init__(self, device: Any):
        pass

    def is_busy(self) -> bool:
        return False

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        return work


def _chip(device: Any = None) -> Any:
    return SimpleNamespace(uuid=f"virtual-{here().number}", **CHIP)


def _opened(name: str, local_rank: int = 0) -> devices.Device:
    index = int(name.partition(":")[2] or 0)
    return devices.Device(torch.device("cuda", index), triton=False, poison=True)


def _tensor(make: Any) -> Any:
    """Return a `torch.tensor` that can create pinned tensors and tensors of virtual devices."""

    def tensor(values: Any, *, dtype: Any = None, device: Any = None, pin_memory: bool = False) -> Any:
        result = make(values, dtype=dtype)
        if pin_memory:
            return pinned(result)
        return result if device is None else result.to(device)

    return tensor


@contextmanager
def _noted(self: Any, name: str, **work: Any) -> Iterator[None]:
    """Time a phase, and record its name with the operations that start inside."""
    log = here().log
    before, log.phase = log.phase, name
    try:
        with _span(self, name, **work):
            yield
    finally:
        log.phase = before


def _stepped(self: Any, index: int, count: int, done_flops: float) -> None:
    here().log.records.append(Step(index))
    _step(self, index, count, done_flops)


def _factored(self: Any, work: Any, exchange: Any) -> Any:
    """Factor a panel on the host (FACT) together with the other ranks of the process column."""
    m, jb = work.A.shape
    flops, rank = float(m * jb**2 - jb**3 / 3), here()
    together = ("FACT", rank.panel, 1 if exchange is None else work.rows.P)
    rank.log.op(HOST, "FACT", "fact", (), flops=flops, message=together, sizes=(m, jb, jb))
    outcome = _factor(self, work, exchange)
    rank.log.op(HOST, "the end of FACT", "factored", ())
    return outcome


def _of_step(self: Any, *args: Any) -> None:
    here().panel = self.step.k
    _factor_step(self, *args)


_factor, _factor_step = HostLu.factor_panel, FactoredPanel.factor
_span, _step = spans.Spans.__call__, spans.Spans.step

CUDA = {
    "Stream": queues.new_stream, "Event": queues.Event, "current_stream": queues.current_stream,
    "stream": queues.stream, "synchronize": queues.synchronize, "device": lambda where: nullcontext(),
    "device_of": lambda tensor: nullcontext(), "set_device": lambda where: None, "current_device": lambda: 0,
    "get_device_properties": _chip, "get_device_capability": lambda device=None: (9, 0),
    "mem_get_info": lambda device=None: (1 << 34, 1 << 34), "memory_reserved": lambda device=None: 0,
    "memory_allocated": lambda device=None: 0, "_lazy_init": lambda: None,
}  # fmt: skip


@contextmanager
def virtual_gpus() -> Iterator[None]:
    """Replace torch.cuda and all devices by virtual ones."""
    with ExitStack() as stack:
        for name, value in CUDA.items():
            stack.enter_context(patch.object(torch.cuda, name, value))
        stack.enter_context(patch.object(torch, "tensor", _tensor(torch.tensor)))
        for module in LOOKING:
            stack.enter_context(patch.object(module, "sched_yield", lambda: sleep(NAP_S)))
        for module, name in ((devices, "open_device"), (tensors, "open_device"), (tensors, "device_at")):
            stack.enter_context(patch.object(module, name, _opened))
        stack.enter_context(patch.object(devices, "count", lambda: 1))
        stack.enter_context(patch.object(setup, "GraphRecorder", Eager))
        # A small panel then has as many blocks as the large panel that it represents.
        stack.enter_context(patch.multiple(solves, BLOCK=1, SMALL=1))
        stack.enter_context(patch.object(spans.Spans, "__call__", _noted))
        stack.enter_context(patch.object(spans.Spans, "step", _stepped))
        stack.enter_context(patch.object(HostLu, "factor_panel", _factored))
        stack.enter_context(patch.object(FactoredPanel, "factor", _of_step))
        stack.enter_context(patch.object(torch.backends.cuda, "preferred_linalg_library", lambda *which: "default"))
        stack.enter_context(single_launches())
        yield


def on_virtual_gpus(
    size: int, body: Callable[[Communicator], Any], transport: Callable[[Communicator], Communicator]
) -> tuple[list[Any], list[Log]]:
    """Run a function on ranks with one virtual GPU each; return the results and the logs."""
    ranks = [Rank(number) for number in range(size)]

    def main(comm: Communicator) -> Any:
        with playing(ranks[comm.rank]), Dispatch():
            return body(transport(comm))

    with virtual_gpus():
        results = run_ranks(size, main)
    return results, [rank.log for rank in ranks]
