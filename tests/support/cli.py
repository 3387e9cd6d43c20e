"""Provide a command line with fake benchmarks and a fake launcher that compute nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mxpeak.bench.registry import BENCHMARKS
from mxpeak.records import Caution, Result
from mxpeak.runtime import launch, launcher
from mxpeak.spans import Spans

#: An input file of HPL with several cases.
DAT = (Path(__file__).parents[1] / "golden" / "lists.dat").read_text()


class Comm:
    """One rank of `size`, without the other ranks."""

    name = "solo"

    def __init__(self, rank: int = 0, size: int = 1):
        self.rank, self.size = rank, size
        self.aborted: list[int] = []

    def ibcast(self, buffer: Any, root: int) -> Any:
        """Return rank 0's value immediately."""
        return SimpleNamespace(test=lambda: True)

    def bcast_object(self, obj: Any, root: int = 0) -> Any:
        return obj

    def barrier(self) -> None:
        """All others have come."""

    def abort(self, code: int) -> None:
        self.aborted.append(code)


class Bench:
    """A benchmark that computes nothing: each case ends immediately with the result of `outcome`."""

    def __init__(self, outcome: Callable[[Any], Any] | None = None) -> None:
        self.calls: list[SimpleNamespace] = []
        self.outcome = outcome or hpl_result

    def run(
        self,
        config: Any,
        comm: Any,
        *,
        origins: Any,
        observers: Any,
        on_begin: Any,
        on_case: Any,
        argv: Any,
        **hooks: Any,
    ) -> list[Result]:
        self.calls.append(SimpleNamespace(config=config, origins=origins, argv=argv))
        results = []
        # HPG-MxP and HPCG are not shown here, because their results have other sections
        for case in config.cases(comm.size, n=[1000]) if hasattr(config, "cases") else ():
            on_begin(case)
            spans = Spans(observers=observers)
            spans.start(case.tag, 1e9)
            spans.step(1, 1, 1e9)
            spans.finish()
            result = self.outcome(case)
            if isinstance(result, BaseException):
                raise result
            on_case(case, result)
            results += [result] if result else []
        return results

    def dry_run(self, config: Any, comm: Any, settings: object) -> str:
        return "memory 8 MiB a rank\n"


def hpl_result(case: Any, status: str = "valid", rate_flops: float = 2e9) -> Result:
    return Result(
        benchmark="hpl",
        status=status,
        run={"start_unix": 1.7e9, "end_unix": 1.7e9},
        problem={
            "n": case.n,
            "nb": case.nb,
            "P": case.P,
            "Q": case.Q,
            "variant": case.tag,
            "precision": "fp32",
            "generator": "sqrt-n",
            "refine": "gmres",
            "seed": case.seed,
        },
        result={"rate_flops": rate_flops, "time_s": 0.5, "fraction_of_limit": None, "limit": None, "emulated": False},
        validation={
            "passed": status == "valid",
            "residual": 1e-3,
            "threshold": 16.0,
            "formula": "f",
            "iterations": None,
        },
        warnings=[Caution("busy", "other load", "stop it")],
    )


def nothing_from_outside(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Work in an empty folder without MXPEAK_* variables, but keep the cache of compiled kernels."""
    monkeypatch.chdir(folder)
    for name in [name for name in os.environ if name.startswith("MXPEAK_") and name != "MXPEAK_CACHE_DIR"]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)


def use_fakes(monkeypatch: pytest.MonkeyPatch, folder: Path, comm: Comm, default: Any, **benches: Any) -> None:
    """Work in an empty folder without MXPEAK_* variables, with a fake launcher and these benchmarks by name."""
    nothing_from_outside(monkeypatch, folder)
    monkeypatch.setattr(launcher, "launched", lambda: comm.size > 1)
    monkeypatch.setattr(launcher, "launcher", lambda: ("fake", comm.rank, comm.size))
    fakes = {
        "start": lambda *wish: comm,
        "confirm": lambda *wish: None,
        "respawn": lambda ranks, argv, comm: 100 + ranks,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(launch, name, fake)
    monkeypatch.setattr("mxpeak.cli.observers.ranks_of_this_node", lambda session: ({}, True))
    monkeypatch.setattr("mxpeak.cli.dry_run.map_of_a_node", lambda *_: (["rank  GPU  cores", "0     -    0-3"], []))
    for benchmark in BENCHMARKS.values():
        fake = benches.get(benchmark.name.replace("-", "_"), default)
        monkeypatch.setitem(sys.modules, benchmark.module, fake)


def only_folder() -> Path:
    """Return the only folder of results."""
    (folder,) = Path("mxpeak-out").iterdir()
    return folder
