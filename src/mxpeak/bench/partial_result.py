"""What is known of a case that was not brought to its end, by rank 0 alone: the others may not answer any more."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from mxpeak.bench.timeline import columns
from mxpeak.comm.base import Communicator
from mxpeak.errors import StoppedError
from mxpeak.records import Result
from mxpeak.runtime.facts import Facts
from mxpeak.spans import Row, Spans, Step

#: How often in a computation all ranks ask rank 0 whether to go on.
LOOKS = 50


@dataclass(slots=True)
class CaseInProgress:
    """A case that has begun: the spans of what is being computed; what has been, and what it comes to."""

    case: Any
    begun_unix: float = field(default_factory=time.time)
    spans: Spans | None = None
    samples_s: list[float] = field(default_factory=list)
    so_far: Partial | None = None


@dataclass(frozen=True, slots=True)
class Partial:
    """What the solves that are over come to.

    computation   the part of the run that they are of
    rate_flops    by the benchmark's own formula, of these solves alone
    passed        whether all that has been validated by now has passed
    """

    computation: str
    rate_flops: float
    passed: bool


def aborted(benchmark: str, under_way: CaseInProgress, facts: Facts, why: str) -> Result:
    """The result of a case that ended early: no rate and no validation, but what was found by then."""
    spans = under_way.spans or Spans()
    return Result(
        benchmark=benchmark,
        status="aborted",
        **facts.sections(under_way.begun_unix, time.time()),
        problem=_told(under_way.case),
        result={"rate_flops": None, "time_s": None, "fraction_of_limit": None, "limit": None},
        validation={
            "passed": None,
            "residual": None,
            "threshold": None,
            "formula": "none: the run did not finish",
            "iterations": None,
            "outcome": why,
        },
        samples_s=list(under_way.samples_s),
        phases={name: _phase(phase) for name, phase in spans.known_phases.items()},
        telemetry={"steps": _own_steps(spans), "aborted": {"reason": why, **_progress(spans), **_finished(under_way)}},
        warnings=list(facts.cautions),
    )


def _told(case: Any) -> dict[str, Any]:
    """What the case was told, as far as JSON has it."""
    told = dataclasses.asdict(case) if dataclasses.is_dataclass(case) and not isinstance(case, type) else {}
    return {
        name: value for name, value in told.items() if isinstance(value, int | float | str | tuple) and value != "auto"
    }


def _phase(phase: Any) -> dict[str, Any]:
    times = {"time_s": phase.time_s, "max_s": phase.time_s, "min_s": phase.time_s}
    return {**times, "flops": phase.flops, "bytes": phase.bytes, "calls": phase.calls}


def _finished(under_way: CaseInProgress) -> dict[str, Any]:
    """The solves that are over, where they come to something by themselves."""
    if under_way.so_far is None:
        return {}
    solves = {"solves": len(under_way.samples_s), "time_s": sum(under_way.samples_s)}
    return {"finished": {**dataclasses.asdict(under_way.so_far), **solves}}


def _progress(spans: Spans) -> dict[str, Any]:
    """How far the computation had come."""
    rows = spans.rows
    last = rows[-1] if rows else Row(0, 0.0, 0.0, {})
    return {
        "computation": spans.label,
        "step": last.index,
        "elapsed_s": last.elapsed_s,
        "done_flops": last.done_flops,
        "total_flops": spans.total_flops,
    }


def _own_steps(spans: Spans) -> dict[str, Any]:
    rows = [Row(0, 0.0, 0.0, {}), *spans.rows]
    names = list(rows[-1].phases)
    own = [
        after.phases.get(name, 0.0) - before.phases.get(name, 0.0) for name in names for before, after in pairwise(rows)
    ]
    return {**columns(rows[1:], names, own, own), "ranks": 1}


def asked(comm: Communicator, stop: Callable[[], str | None]) -> Callable[[Step], None]:
    """What all ranks do at each step: now and then hear from rank 0 whether to go on, else leave together.

    `stop` says on rank 0 why not to go on.  All ranks count the same flops, so they ask at the same steps: it costs as
    many small broadcasts.  Collective.
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
