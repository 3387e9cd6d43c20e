"""The benchmarks by name: what each has, and where it lies.  Their modules are imported only when they run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from mxpeak.bench.hpcg.config import HpcgConfig
from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
from mxpeak.bench.hpl.config import HplConfig
from mxpeak.bench.hpl_mxp.config import HplMxpConfig
from mxpeak.bench.norms.config import NormsConfig
from mxpeak.configs.run import RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """A benchmark's positional input file.

    name     as its community calls it: HPL.dat
    reader   "module:function" from its text and path to settings by name
    writer   "module:function" from a configuration to its text, if there is one
    """

    name: str
    reader: str
    writer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFormat:
    """A benchmark's own report, besides the text that all have.

    format   what --format calls it
    file     its file among the results, into which the time is put
    writer   "module:class", a `report.own.OwnReport`
    """

    format: str
    file: str
    writer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A benchmark.

    name         what is typed after `mxpeak run`
    summary      its line of the help
    config       its options, a subclass of `RunConfig`
    module       where its run(), dry_run() and, if rules may be broken, forewarnings() are
    example      how to type it
    input        its positional input file, if it has one
    report       its own report, if it has one
    submission   "module:function" to the files for a list's form, if its config has a `submission_folder`
    in_flops     whether its rate is one of flops
    """

    name: str
    summary: str
    config: type[RunConfig]
    module: str
    example: str
    input: InputFile | None = None
    report: ReportFormat | None = None
    submission: str = ""
    in_flops: bool = True


#: Names that a result file may have for a benchmark.
NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]*")
#: Every benchmark, in the order in which `mxpeak run all` runs them.
BENCHMARKS: dict[str, Benchmark] = {}


def register(benchmark: Benchmark) -> None:
    """Make a benchmark known to the command line and to `mxpeak.run`."""
    if benchmark.name in BENCHMARKS or benchmark.name == "all":
        raise ValueError(f"the benchmark {benchmark.name} is already registered; use another name")
    if not NAME.fullmatch(benchmark.name):
        raise ValueError(
            f"{benchmark.name!r} is not a valid name for a benchmark; use letters, digits, '.', '_' and '-'"
        )
    if benchmark.report is not None and (benchmark.report.format == "text" or not benchmark.report.format):
        raise ValueError(
            f"another benchmark already has --format {benchmark.report.format}; use another format name for the "
            f"report of {benchmark.name}"
        )
    BENCHMARKS[benchmark.name] = benchmark


def load(name: str) -> Any:
    """What "module:attribute" names, imported now and not before."""
    module, attribute = name.split(":")
    return getattr(import_module(module), attribute)


register(
    Benchmark(
        name="hpl",
        summary="LU with partial pivoting in fp64",
        config=HplConfig,
        module="mxpeak.bench.hpl.run",
        example="mxpeak run hpl -N 20000 --nb 256 --ranks 4",
        input=InputFile(
            name="HPL.dat", reader="mxpeak.bench.hpl.input:read_dat", writer="mxpeak.bench.hpl.input:write_dat"
        ),
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
        input=InputFile(
            name="HPL-MxP.dat",
            reader="mxpeak.bench.hpl_mxp.input:read_dat",
            writer="mxpeak.bench.hpl_mxp.input:write_dat",
        ),
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
        input=InputFile(
            name="hpcg.dat", reader="mxpeak.bench.hpcg.input:read_dat", writer="mxpeak.bench.hpcg.input:write_dat"
        ),
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
        in_flops=False,
    )
)
