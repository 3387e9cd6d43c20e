"""Convert a trace of torch's profiler to the table of the modeled timeline."""

from __future__ import annotations

from typing import Any

from tests.support.queues.log import HOST, Op
from tests.support.queues.timeline import Bar, Played

#: Names of the trace entries that real runs add: the start of a step, and FACT on the host.
STEP, FACT = "mxpeak step ", "mxpeak FACT"
#: The profiler's categories of device work.
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def played_of(trace: dict[str, Any]) -> Played:
    """Return one rank's bars, and the times at which its device completes each step.

    A step ends when the main stream, the busiest one, has completed the work launched before the step started.
    """
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    launched = {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    done = [event for event in events if event.get("cat") in ON_DEVICE]
    if not done:
        raise ValueError(
            f"the trace has {len(events)} events and none of a device ({', '.join(ON_DEVICE)}): "
            "run with a GPU, and record ProfilerActivity.CUDA"
        )
    busy: dict[int, float] = {}
    for event in done:
        busy[_stream(event)] = busy.get(_stream(event), 0.0) + event["dur"]
    main = max(busy, key=lambda stream: busy[stream])
    on_main = sorted(
        (launched.get(event["args"]["correlation"], event["ts"]), _end(event))
        for event in done
        if _stream(event) == main
    )
    begun = sorted(
        (event["ts"], int(event["name"].removeprefix(STEP)))
        for event in events
        if event.get("cat") == "user_annotation" and event["name"].startswith(STEP)
    )
    first = min(event["ts"] for event in done)
    played = Played()
    for at, _ in begun:
        played.steps.append(max((end for launch, end in on_main if launch <= at), default=first))
    facts = [event for event in events if event.get("cat") == "user_annotation" and event["name"] == FACT]
    for event in sorted([*done, *facts], key=lambda event: float(event["ts"])):
        step = max((number for at, number in begun if at <= event["ts"]), default=0)
        lane, actor = _lane(event), HOST if event in facts else f"stream {_stream(event)}"
        op = Op(actor, event["name"], lane, (), (), "")
        played.bars.append(Bar(op, lane, step, 1e-6 * event["ts"], 1e-6 * _end(event)))
    played.steps = [1e-6 * end for end in played.steps]
    return played


def _stream(event: dict[str, Any]) -> int:
    return int(event["args"]["stream"])


def _end(event: dict[str, Any]) -> float:
    return float(event["ts"]) + float(event["dur"])


def _lane(event: dict[str, Any]) -> str:
    """Return a lane of `timeline.LANES`; kernels and copies within the device belong to the device."""
    name = event["name"].lower()
    if event["cat"] == "user_annotation":
        return "FACT"
    if event["cat"] == "gpu_memcpy" and any(way in name for way in ("htod", "dtoh", "hosttodevice", "devicetohost")):
        return "transfer"
    return "MPI" if "nccl" in name or "rccl" in name else "device"
