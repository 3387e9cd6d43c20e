"""Test the conversion of a profiler's trace, an invented one, to the table of the modeled timeline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.kernels.torch.engine.device import Device
from mxpeak.kernels.torch.kernels import TorchKernels
from tests.support.queues import profiled
from tests.support.queues.hiding import steps_of, table
from tests.support.queues.traces import FACT, STEP, played_of


def event(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    """Return an event with times in microseconds, as in the profiler's files."""
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 0, "tid": 0, "args": args}


def launch(correlation: int, at: float, what: dict[str, Any]) -> list[dict[str, Any]]:
    """Return an event of the device and the host's call that launched it."""
    what["args"]["correlation"] = correlation
    return [event("cuda_runtime", "cudaLaunchKernel", at, 1.0, correlation=correlation), what]


#: Two steps: the host is ahead of the device, a copy and FACT overlap the first update, a message overlaps the second.
TRACE = {
    "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
        event("user_annotation", f"{STEP}0", 0.0, 0.1),
        *launch(1, 1.0, event("kernel", "gemm", 10.0, 100.0, stream=7)),
        *launch(2, 2.0, event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 10.0, 20.0, stream=13)),
        event("user_annotation", FACT, 30.0, 40.0),
        event("gpu_user_annotation", f"{STEP}0", 10.0, 100.0),
        *launch(3, 70.0, event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 70.0, 10.0, stream=13)),
        event("user_annotation", f"{STEP}1", 80.0, 0.1),
        *launch(4, 81.0, event("kernel", "gemm", 120.0, 60.0, stream=7)),
        *launch(5, 82.0, event("kernel", "ncclDevKernel_SendRecv", 130.0, 30.0, stream=20)),
        event("user_annotation", f"{STEP}2", 90.0, 0.1),
    ]
}


def test_steps_end_with_what_was_launched_before_the_next_and_lanes_are_the_models() -> None:
    played = played_of(TRACE)
    first, second = steps_of(played)
    assert played.steps == pytest.approx([10e-6, 110e-6, 180e-6])
    assert (first.total, first.device) == pytest.approx((100e-6, 100e-6))
    assert first.others == pytest.approx({"FACT": 40e-6, "transfer": 30e-6, "MPI": 0.0})
    assert (second.total, second.device, second.others["MPI"]) == pytest.approx((70e-6, 60e-6, 30e-6))
    assert first.hides
    assert not second.hides
    assert table([first]).splitlines()[0].split() == ["step", "total", "device", "MPI", "FACT", "transfer"]
    text = profiled.beside("hpl", [first, second], [first])
    assert text.startswith("hpl: 0.1 ms in 1 steps, modelled 0.1 ms")


def test_a_trace_without_a_device_says_so() -> None:
    with pytest.raises(ValueError, match="none of a device"):
        played_of({"traceEvents": [event("user_annotation", f"{STEP}0", 0.0, 1.0)]})


@pytest.mark.parametrize("case", profiled.CASES, ids=lambda case: case.name)
def test_a_run_that_is_traced_writes_its_steps(case: profiled.Case, tmp_path: Path) -> None:
    """The CPU has no device to trace. HPL-MxP also logs step 0 when it begins."""
    kernels, blocks = TorchKernels(Device(torch.device("cpu"), triton=False), HostKernels(1)), 4
    trace = profiled.traced(kernels, replace(case, nb=16), blocks, tmp_path / "trace.json")
    steps = [one["name"] for one in trace["traceEvents"] if one.get("cat") == "user_annotation"]
    assert steps[-blocks:] == [f"{STEP}{k}" for k in range(1, blocks + 1)]
