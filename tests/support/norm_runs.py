"""Run the norms benchmark on virtual ranks for tests of the benchmark and of its command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mxpeak.bench import limits
from mxpeak.bench.norms import run as bench
from mxpeak.bench.norms.config import NormsConfig
from mxpeak.comm.transports.solo import Solo
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.records import Result
from tests.support.cli import nothing_from_outside

M, N, NB = 11, 14, 4


def bare(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Use an empty folder, no outside settings, and one timed run per case."""
    nothing_from_outside(monkeypatch, folder)
    monkeypatch.setattr(bench, "NORM_S", 0.0)
    monkeypatch.setattr(limits, "MAX_S", 0.0)
    monkeypatch.setattr("mxpeak.runtime.compile.SILENT_S", 1e3)


def measured(ranks: int = 1, **values: Any) -> list[Result]:
    """Run a configuration, with several ranks on threads, and return the results."""
    config = NormsConfig(**{"n": (N,), "nb": (NB,), "threads": 1, **values})
    if ranks == 1:
        return bench.run(config, Solo())
    return run_ranks(ranks, lambda comm: bench.run(config, comm))[0]  # type: ignore[no-any-return]


def value(result: Result, kind: str) -> float:
    """Return a norm of a result."""
    found = result.result.get("values") or {result.problem["kind"]: result.result["value"]}
    return float(found[kind])
