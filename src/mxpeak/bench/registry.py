"""The benchmarks by name. The module of a benchmark is imported only when it runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from mxpeak.bench.hpcg.config import HpcgConfig
from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
from mxpeak.bench.hpl.config import HplConfig
from mxpeak.bench.hpl_mxp.config import HplMxpConfig
from mxpeak.bench.norms.config import NormsConfig
from mxpeak.configs.run import RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """A benchmark's positional input file.

    name     usual name of the file, such as HPL.dat
    reader   "module:function" that returns settings by name from the text and the path
    writer   "module:function" that returns the text for a configuration; may be empty
    """

    name: str
    reader: str
    writer: str = ""

    @classmethod
    def of(cls, name: str, module: str) -> InputFile:
        """Return the input file whose reader and writer are the functions `read_dat` and `write_dat` of a module."""
        return cls(name=name, reader=f"{module}:read_dat", writer=f"{module}:write_dat")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFormat:
    """A report in the format of the benchmark's original code.

    format   value of --format
    file     name of the file in the results folder; the start time is formatted into it
    writer   "module:class" of a subclass of `report.native_report.OwnReport`
    """

    format: str
    file: str
    writer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """The registration of a benchmark.

    name         name that the user types after `mxpeak run`
    summary      line of the help
    config       class of its options, a subclass of `RunConfig`
    module       module with run(), dry_run() and, if the benchmark has rules, forewarnings()
    example      example of the help
    title        name as its authors write it; by default the name
    kind         "lu" or "sparse" if `simulate`, `plan` and `tune` support it
    input        positional input file
    report       report in the format of the original code
    lines        "module:class" of a subclass of `report.summaries.Lines`: texts of the scoreboard and the HTML page
    submission   "module:function" that returns the files for the form of a list; needs config.submission_folder
    schema       JSON Schema that its results match in addition to schema/result-1.json
    in_flops     whether the rate is in FLOP/s
    """

    name: str
    summary: str
    config: type[RunConfig]
    module: str
    example: str
    title: str = ""
    kind: Literal["", "lu", "sparse"] = ""
    input: InputFile | None = None
    report: ReportFormat | None = None
    lines: str = ""
    submission: str = ""
    schema: Mapping[str, Any] | None = field(default=None, hash=False)
    in_flops: bool = True


#: Names that a result file may have for a benchmark.
NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]*")
#: Every benchmark, in the order in which `mxpeak run all` runs them.
BENCHMARKS: dict[str, Benchmark] = {}


def register(benchmark: Benchmark) -> None:
    """Register a benchmark for the command line and `mxpeak.run`; raise a ValueError for an invalid or used name."""
    if benchmark.name in BENCHMARKS or benchmark.name == "all":
        raise ValueError(f"the benchmark {benchmark.name} is already registered; use another name")
    if not NAME.fullmatch(benchmark.name):
        raise ValueError(
            f"{benchmark.name!r} is not a valid name for a benchmark; use letters, digits, '.', '_' and '-'"
        )
    if benchmark.report is not None and not benchmark.report.format:
        raise ValueError(f"the report of {benchmark.name} has no format name; add a value of --format")
    if benchmark.report is not None and benchmark.report.format == "text":
        raise ValueError(
            f"--format text selects the report of mxpeak; use another format name for the report of {benchmark.name}"
        )
    BENCHMARKS[benchmark.name] = benchmark


def of_kind(*kinds: str) -> tuple[str, ...]:
    """Return the names of the benchmarks of these kinds."""
    return tuple(name for name, benchmark in BENCHMARKS.items() if benchmark.kind in kinds)


def kind_of(name: str) -> str:
    """Return the kind of a benchmark, or "" if it has none or is not registered."""
    return BENCHMARKS[name].kind if name in BENCHMARKS else ""


def load(name: str) -> Any:
    """Import and return the object that "module:attribute" names."""
    module, attribute = name.split(":")
    return getattr(import_module(module), attribute)


register(
    Benchmark(
        name="hpl",
        summary="LU with partial pivoting in fp64",
        config=HplConfig,
        module="mxpeak.bench.hpl.run",
        example="mxpeak run hpl -N 20000 --nb 256 --ranks 4",
        title="HPL",
        kind="lu",
        lines="mxpeak.report.lu_text:LuLines",
        input=InputFile.of("HPL.dat", "mxpeak.bench.hpl.input"),
        report=ReportFormat(format="hpl", file="HPL.out", writer="mxpeak.report.hpl_text:HplText"),
    )
)
register(
    Benchmark(
        name="hpl-mxp",
        summary="mixed-precision LU, refined to fp64 accuracy",
        config=HplMxpConfig,
        module="mxpeak.bench.hpl_mxp.run",
        example="mxpeak run hpl-mxp -N 20000 --precision fp16 --submit submission",
        title="HPL-MxP",
        kind="lu",
        lines="mxpeak.report.lu_text:MxpLines",
        input=InputFile.of("HPL-MxP.dat", "mxpeak.bench.hpl_mxp.input"),
        report=ReportFormat(format="mxp", file="HPL-MxP.out", writer="mxpeak.report.mxp_text:MxpText"),
        submission="mxpeak.report.submission:submission_files",
    )
)
register(
    Benchmark(
        name="hpg-mxp",
        summary="mixed-precision sparse GMRES with multigrid",
        config=HpgMxpConfig,
        module="mxpeak.bench.hpg_mxp.run",
        example="mxpeak run hpg-mxp --nx 104 --rt 60 --ranks 2",
        title="HPG-MxP",
        kind="sparse",
        lines="mxpeak.report.sparse_text:HpgMxpLines",
        input=InputFile.of("hpgmp.dat", "mxpeak.bench.hpg_mxp.dat"),
        report=ReportFormat(
            format="hpcg",
            file="HPGMP-Benchmark_0.1_{:%Y-%m-%d_%H-%M-%S}.txt",
            writer="mxpeak.report.hpgmp_text:HpgMpText",
        ),
    )
)
register(
    Benchmark(
        name="hpcg",
        summary="sparse conjugate gradients with multigrid",
        config=HpcgConfig,
        module="mxpeak.bench.hpcg.run",
        example="mxpeak run hpcg --nx 104 --rt 60 --ranks 2",
        title="HPCG",
        kind="sparse",
        lines="mxpeak.report.sparse_text:HpcgLines",
        input=InputFile.of("hpcg.dat", "mxpeak.bench.hpcg.input"),
        report=ReportFormat(
            format="hpcg", file="HPCG-Benchmark_3.1_{:%Y-%m-%d_%H-%M-%S}.txt", writer="mxpeak.report.hpcg_text:HpcgText"
        ),
    )
)
register(
    Benchmark(
        name="norms",
        summary="matrix norms at memory bandwidth",
        config=NormsConfig,
        module="mxpeak.bench.norms.run",
        example="mxpeak run norms -N 20000 --kind one,fro --dtype float64,float32",
        title="Norms",
        lines="mxpeak.report.norms_text:NormsLines",
        in_flops=False,
    )
)
