"""The benchmarks that `mxpeak run` knows: one line each.  Their modules are imported only when they run."""

from __future__ import annotations

from dataclasses import dataclass

from mxpeak.configs import HplConfig, RunConfig


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark by name: what it is, what it can be told, where its run() and dry_run() live, how to type it."""

    name: str
    summary: str
    config: type[RunConfig]
    module: str
    example: str


BENCHMARKS = {
    b.name: b
    for b in (
        Benchmark("hpl", "FP64 LU with partial pivoting", HplConfig, "mxpeak.bench.hpl",
                  "mxpeak run hpl -N 20000 --nb 256 --ranks 4"),
    )
}  # fmt: skip
