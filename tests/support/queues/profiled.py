"""Run HPL and HPL-MxP on a real device under torch's profiler, and the same runs on virtual queues."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from torch.profiler import profile, record_function, supported_activities

from mxpeak.comm.transports.solo import Solo
from mxpeak.kernels.host.lu.lu import HostLu
from mxpeak.precision import stored_as
from mxpeak.solvers.lu import lu, pivoted_lu
from mxpeak.spans import Spans
from tests.support.queues import windows
from tests.support.queues.hiding import StepTimes, table
from tests.support.queues.log import Log
from tests.support.queues.traces import FACT, STEP

#: Columns of the small blocks that represent large ones in the modeled run.
SMALL = 4


@dataclass(frozen=True)
class Case:
    """A benchmark on one device: NB, blocks, matrix, factorization, and the same run on virtual queues."""

    name: str
    nb: int
    blocks: int
    what: tuple[str, int, str]
    factored: Callable[[Any, Any, Spans], Any]
    modelled: Callable[[int], list[Log]]


HPL, MXP = pivoted_lu.PivotedLuOptions(split=0.5), lu.MixedLuOptions("fp16")
CASES = (
    Case(
        "hpl",
        512,
        48,
        ("hpl", 1, "fp64"),
        lambda A, kernels, spans: pivoted_lu.factorize(A, HPL, kernels, spans),
        lambda blocks: windows.hpl((1, 1), blocks, SMALL, range(blocks), HPL, "mpi"),
    ),
    Case(
        "hpl-mxp",
        1024,
        48,
        ("dominant-n", 0, stored_as("fp16")),
        lambda A, kernels, spans: lu.factorize(A, MXP, kernels, spans),
        lambda blocks: windows.hpl_mxp((1, 1), blocks, SMALL, range(blocks), MXP, "mpi"),
    ),
)


class TracedSpans(Spans):
    """Spans that record steps in the profiler's trace."""

    def step(self, index: int, count: int, done_flops: float) -> None:
        with record_function(f"{STEP}{index}"):
            pass
        super().step(index, count, done_flops)


def traced(kernels: Any, case: Case, blocks: int, file: Path) -> dict[str, Any]:
    """Return the trace of the second factorization, because the first one compiles kernels."""

    def factor() -> None:
        sizes = blocks * case.nb, case.nb
        windows.factor(
            Solo(), kernels, (1, 1), sizes, case.what, TracedSpans(stopwatch=kernels.stopwatch), case.factored
        )
        kernels.wait()

    def in_trace(*args: Any, **named: Any) -> Any:
        with record_function(FACT):
            return panel(*args, **named)

    factor()
    panel = HostLu.factor_panel
    with patch.object(HostLu, "factor_panel", in_trace), profile(activities=supported_activities()) as seen:
        factor()
    seen.export_chrome_trace(str(file))
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def beside(name: str, real: Sequence[StepTimes], modelled: Sequence[StepTimes]) -> str:
    """Return the measured and the modeled table, and the sums of their common steps."""
    both = list(zip(real, modelled))
    sums = [sum(one.total for one in steps) for steps in zip(*both)]
    text = f"{name}: {1e3 * sums[0]:.1f} ms in {len(both)} steps, modelled {1e3 * sums[1]:.1f} ms\n"
    return f"{text}\nreal\n{table(real)}\nmodelled\n{table(modelled)}\n"
