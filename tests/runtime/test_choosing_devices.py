"""Test which kernels compute on which device, the defaults for it, and the error if there is none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mxpeak.bench.hpl.config import HplConfig
from mxpeak.bench.hpl_mxp.config import HplMxpConfig
from mxpeak.comm.base import Communicator
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.errors import ResourceError, UsageError
from mxpeak.kernels import choose
from mxpeak.kernels.choose import device_failure, open_device, resolve
from mxpeak.options import Run
from mxpeak.runtime import memory
from mxpeak.runtime.memory import memory_budget
from mxpeak.runtime.placement import on_device
from mxpeak.spans import Spans, Step
from mxpeak.verbs.tune.candidates import default_nb


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `auto` find a GPU."""
    monkeypatch.setattr(choose, "has_gpu", lambda: True)


def test_auto_takes_the_host_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "has_gpu", lambda: False)
    assert resolve("auto", "auto") == ("host", "cpu")
    assert resolve("torch", "auto") == ("torch", "cpu")


@pytest.mark.usefixtures("gpu")
def test_auto_selects_a_gpu_unless_the_cpu_or_its_kernels_are_requested() -> None:
    assert resolve("auto", "auto") == ("torch", "cuda")
    assert resolve("torch", "auto") == ("torch", "cuda")
    assert resolve("host", "auto") == ("host", "cpu")
    assert resolve("auto", "cpu") == ("host", "cpu")
    assert resolve("auto", "cuda:1") == ("torch", "cuda:1")


@pytest.mark.parametrize("name", ["host", "reference"])
def test_kernels_of_the_cpu_are_refused_on_a_gpu(name: str) -> None:
    with pytest.raises(UsageError, match=f"--kernels {name} supports only the CPU, not --device cuda:0"):
        resolve(name, "cuda:0")
    with pytest.raises(UsageError, match="unknown kernels 'numpy'; use one of auto, reference, host, torch"):
        resolve("numpy", "cpu")


def test_a_gpus_driver_is_looked_for_before_torch_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    choose.has_gpu.cache_clear()
    monkeypatch.setattr(choose, "DRIVERS", ("/nowhere/nvidia0",))
    monkeypatch.setattr(choose, "find_spec", lambda name: pytest.fail("torch was looked for"))
    assert not choose.has_gpu()
    choose.has_gpu.cache_clear()


def test_without_torch_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "find_spec", lambda name: None)
    with pytest.raises(ResourceError, match=r"device cuda needs PyTorch, .*; run pip install"):
        open_device("cuda")


def test_a_gpu_that_does_not_exist_is_reported() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        with pytest.raises(ResourceError, match=r"device cuda:99 does not exist, because this machine has \d+ GPU"):
            open_device("cuda:99")
    else:
        with pytest.raises(ResourceError, match="device cuda is not available: torch"):
            open_device("cuda")


# --- defaults ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("gpu")
def test_a_gpu_has_defaults_of_its_own_which_give_way_to_what_was_asked_for() -> None:
    run = on_device(Run(HplMxpConfig()))
    config = run.config
    assert (config.kernels, config.device, config.nb, config.precision) == ("torch", "cuda", (1024,), ("fp16",))
    assert run.section()["nb"] == {"value": (1024,), "origin": "auto"}
    run = on_device(Run(HplMxpConfig(precision=("bf16",)), {"nb": "flag"}))
    assert (run.config.nb, run.config.precision) == ((320,), ("bf16",))
    assert run.origins["nb"] == "flag"
    assert on_device(Run(HplConfig(nb=(96,)))).config.nb == (96,)
    assert on_device(Run(HplConfig())).config.nb == (512,)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("name", "hpl", "mxp"),
    [
        ("AMD Instinct MI250X", 512, 3072),
        ("Tesla V100-SXM2-16GB", 512, 768),
        ("NVIDIA H200", 512, 2048),
        ("NVIDIA H100 80GB HBM3", 512, 2048),
    ],
)
def test_nb_is_the_one_that_was_found_best_on_a_chip(
    name: str, hpl: int, mxp: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mxpeak.kernels.torch.engine.device.name_of", lambda device: name)
    assert on_device(Run(HplConfig())).config.nb == (hpl,)
    assert on_device(Run(HplMxpConfig())).config.nb == (mxp,)
    assert on_device(Run(HplMxpConfig(nb=(2048,)), {"nb": "tuned"})).config.nb == (2048,)
    assert default_nb("hpl-mxp", on_gpu=True, native=[]) == mxp


@pytest.mark.usefixtures("gpu")
def test_a_small_matrix_has_small_blocks_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mxpeak.kernels.torch.engine.device.name_of", lambda device: "NVIDIA H100 80GB HBM3")
    for n, nb in ((100, 256), (8000, 256), (8192, 512), (32767, 1024), (32768, 2048), (200_000, 2048)):
        assert on_device(Run(HplMxpConfig(n=(100, n)))).config.nb == (nb,)
    monkeypatch.setattr("mxpeak.kernels.torch.engine.device.name_of", lambda device: "Tesla V100-SXM2-16GB")
    assert on_device(Run(HplMxpConfig(n=(100,)))).config.nb == (384,)
    assert on_device(Run(HplMxpConfig(n=(100,), nb=(2048,)), {"nb": "flag"})).config.nb == (2048,)


def test_on_the_host_nothing_changes_but_auto() -> None:
    run = on_device(Run(HplConfig(device="cpu")))
    assert (run.config.kernels, run.config.nb) == ("host", HplConfig().nb)
    assert run.section() == {"kernels": {"value": "host", "origin": "auto"}}


# --- memory -----------------------------------------------------------------------------------------------------


class Gpu:
    """A GPU of 100 bytes, of which 80 are free."""

    def __init__(self, name: str, local_rank: int):
        self.where = f"cuda:{local_rank % 2}" if name == "cuda" else name

    def memory(self) -> tuple[int, int]:
        return 100, 80


@pytest.mark.parametrize(("ranks", "device", "each"), [(1, "cuda", 80), (2, "cuda", 80), (4, "cuda", 40)])
def test_a_nodes_budget_is_what_its_ranks_have_on_their_gpus(
    monkeypatch: pytest.MonkeyPatch, ranks: int, device: str, each: int
) -> None:
    monkeypatch.setattr(memory, "open_device", Gpu)
    config = HplConfig(kernels="torch", device=device, mem="100%")

    def budget(comm: Communicator) -> Any:
        return memory_budget(Run(config), comm)

    for node_budget in run_ranks(ranks, budget):
        assert node_budget.ranks_a_node == ranks
        assert node_budget.limit == int(memory.MARGIN * each * ranks)
        assert "GPU" in node_budget.too_large(lambda n, nb, P, Q: {"matrix": 8 * n * n, "total": 8 * n * n}, 9, 1, 1, 1)


def test_a_gpu_that_one_rank_has_not_stops_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(name: str, local_rank: int) -> Gpu:
        if local_rank == 1:
            raise ResourceError("no such device here")
        return Gpu(name, local_rank)

    monkeypatch.setattr(memory, "open_device", opened)

    def budget(comm: Communicator) -> str:
        with pytest.raises(ResourceError, match="no such device here") as caught:
            memory_budget(Run(HplConfig(kernels="torch", device="cuda")), comm)
        return str(caught.value)

    assert run_ranks(3, budget) == ["rank 1: no such device here"] * 3


# --- failures ---------------------------------------------------------------------------------------------------


class OutOfMemoryError(RuntimeError):
    """As torch's is called."""


def test_device_failures_are_distinguished_from_programming_errors() -> None:
    assert "out of memory" in (device_failure(OutOfMemoryError("CUDA out of memory. Tried to allocate")) or "")
    gone = device_failure(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert gone is not None
    assert "the device failed" in gone
    assert device_failure(RuntimeError("size mismatch")) is None
    assert device_failure(ValueError("CUDA")) is None


# --- work in the background --------------------------------------------------------------------------------------


class Background:
    """A device whose work takes one second per mark; `done` lists the marks for which a caller waited."""

    lag = 2

    def __init__(self) -> None:
        self.now, self.done = 0, list[int]()

    def mark(self) -> int:
        self.now += 1
        return self.now

    def seconds(self, begin: int, end: int) -> float:
        self.done.append(end)
        return float(end - begin)


def test_spans_on_a_device_do_not_wait_until_they_are_read() -> None:
    device = Background()
    spans = Spans((), device)
    spans.start("work", 1.0)
    with spans("outer"), spans("inner", flops=3.0):
        pass
    assert device.done == []
    assert {name: phase.time_s for name, phase in spans.phases.items()} == {"inner": 1.0, "outer": 3.0}
    assert spans.phases["inner"].flops == 3.0
    assert spans.time_of("none") == 0.0


def test_observers_see_the_steps_that_are_done_and_not_those_that_have_begun() -> None:
    device, seen = Background(), list[int]()

    def note(step: Step) -> None:
        assert device.done, "the step was waited for"
        seen.append(step.index)

    watcher = SimpleNamespace(start=lambda *_: None, finish=lambda *_: None, step=note)
    spans = Spans([watcher], device)
    spans.start("work", 1.0)
    for k in range(1, 5):
        spans.step(k, 4, float(k))
        assert seen == list(range(1, k - 1))
    spans.finish()
    assert seen == [1, 2, 3, 4]
