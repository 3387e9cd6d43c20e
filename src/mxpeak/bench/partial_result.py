"""Build the result of an aborted case, which rank 0 assembles without communication."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from mxpeak.bench.timeline import columns
from mxpeak.comm.base import Communicator
from mxpeak.errors import StoppedError
from mxpeak.options import Run
from mxpeak.records import Result
from mxpeak.runtime.facts import Facts, facts_at_start
from mxpeak.spans import Spans, Step, StepRow

#: The maximum number of times per computation at which all ranks check whether rank 0 stops the run.
LOOKS = 50
#: Settings with the size of a problem, which the result of a run without a case contains if they have one value.
SIZES = ("n", "m", "nb", "nx", "ny", "nz")


@dataclass(slots=True)
class CaseInProgress:
    """A case that has begun, with its current spans, its finished measurements and their result so far."""

    case: Any
    begun_unix: float = field(default_factory=time.time)
    spans: Spans | None = None
    samples_s: list[float] = field(default_factory=list)
    so_far: Partial | None = None


@dataclass(frozen=True, slots=True)
class Partial:
    """The result of the solves that have finished.

    computation   part of the run to which the solves belong
    rate_flops    rate of these solves by the formula of the benchmark
    passed        whether all validations so far have passed; None if the run has no validation
    """

    computation: str
    rate_flops: float
    passed: bool | None


def aborted(benchmark: str, in_progress: CaseInProgress, facts: Facts, why: str) -> Result:
    """Return the result of a case that ended early, with its measurements but without rate and validation."""
    spans = in_progress.spans or Spans()
    return Result(
        benchmark=benchmark,
        status="aborted",
        **facts.sections(in_progress.begun_unix, time.time()),
        problem=_parameters(in_progress.case),
        result=dict.fromkeys(("rate_flops", "time_s", "fraction_of_limit", "limit")),
        validation={
            **dict.fromkeys(("passed", "residual", "threshold", "iterations")),
            "formula": "none: the run did not finish",
            "outcome": why,
        },
        samples_s=list(in_progress.samples_s),
        phases={name: _phase(phase) for name, phase in spans.known_phases.items()},
        telemetry={
            "steps": _own_steps(spans),
            "aborted": {"reason": why, **_progress(spans), **_finished(in_progress)},
        },
        warnings=list(facts.cautions),
    )


def aborted_at_start(benchmark: str, run: Run[Any], comm: Communicator, argv: Sequence[str], why: str) -> Result:
    """Return the result of a benchmark that ended before its first case began, with its settings but without cases."""
    in_progress = CaseInProgress(None)
    result = aborted(benchmark, in_progress, facts_at_start(argv, run, comm), why)
    for name in SIZES:
        value = getattr(run.config, name, None)
        one = value[0] if isinstance(value, tuple) and len(value) == 1 else value
        if isinstance(one, int):
            result.problem[name] = one
    return result


def _parameters(case: Any) -> dict[str, Any]:
    """Return the parameters of a case that JSON can represent."""
    values = dataclasses.asdict(case) if dataclasses.is_dataclass(case) and not isinstance(case, type) else {}
    return {k: v for k, v in values.items() if isinstance(v, int | float | str | tuple) and v != "auto"}


def _phase(phase: Any) -> dict[str, Any]:
    """Return the times, flops, bytes and calls of a phase on this rank, in the format of a result."""
    times = {"time_s": phase.time_s, "max_s": phase.time_s, "min_s": phase.time_s}
    return {**times, "flops": phase.flops, "bytes": phase.bytes, "calls": phase.calls}


def _finished(in_progress: CaseInProgress) -> dict[str, Any]:
    """Return the section about the finished solves; empty if no solve has finished."""
    if in_progress.so_far is None:
        return {}
    solves = {"solves": len(in_progress.samples_s), "time_s": sum(in_progress.samples_s)}
    return {"finished": {**dataclasses.asdict(in_progress.so_far), **solves}}


def _progress(spans: Spans) -> dict[str, Any]:
    """Return the name, the step, the time and the finished and total flops of the current computation."""
    rows = spans.rows
    last = rows[-1] if rows else StepRow(0, 0.0, 0.0, {})
    return {
        "computation": spans.label,
        "step": last.index,
        "elapsed_s": last.elapsed_s,
        "done_flops": last.done_flops,
        "total_flops": spans.total_flops,
    }


def _own_steps(spans: Spans) -> dict[str, Any]:
    """Return the step table of this rank."""
    rows = [StepRow(0, 0.0, 0.0, {}), *spans.rows]
    names = list(rows[-1].phases)
    own = [
        after.phases.get(name, 0.0) - before.phases.get(name, 0.0) for name in names for before, after in pairwise(rows)
    ]
    return {**columns(rows[1:], names, own, own), "ranks": 1}


def stop_together(comm: Communicator, stop: Callable[[], str | None]) -> Callable[[Step], None]:
    """Return a callback, called at each step, that stops all ranks together if `stop` returns a reason on rank 0.

    All ranks count the same flops, so they check at the same steps, at most LOOKS times per computation. Collective.
    """
    seen = 0

    def look(step: Step) -> None:
        nonlocal seen
        part = int(LOOKS * step.done_flops / step.total_flops) if step.total_flops else 0
        if part != seen and step.index < step.count:
            seen = part
            why = comm.bcast_object(stop() if comm.rank == 0 else None)
            if why is not None:
                raise StoppedError(why)

    return look
