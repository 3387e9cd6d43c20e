"""The benchmarks that `mxpeak run` knows: one entry each.  Their modules are imported only when they run."""

from __future__ import annotations

from dataclasses import dataclass

from mxpeak.configs import HpcgConfig, HpgMxpConfig, HplConfig, HplMxpConfig, NormsConfig, RunConfig


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark by name: what it is, what it can be told, where its run() and dry_run() live, how to type it.

    `dat` is its positional input file and `dat_module` has that file's read_dat(); `format` is what --format calls its
    own report, `report` the name of that report's file, into which the time is put.  All of that is empty where a
    benchmark has none.  `in_flops`:
    whether its rate is one of flops.
    """

    name: str
    summary: str
    config: type[RunConfig]
    module: str
    example: str
    dat: str = ""
    dat_module: str = ""
    format: str = ""
    report: str = ""
    in_flops: bool = True


BENCHMARKS = {
    b.name: b
    for b in (
        Benchmark(
            name="hpl", summary="FP64 LU with partial pivoting", config=HplConfig, module="mxpeak.bench.hpl",
            example="mxpeak run hpl -N 20000 --nb 256 --ranks 4",
            dat="HPL.dat", dat_module="mxpeak.bench.hpl_dat", format="hpl", report="HPL.out",
        ),
        Benchmark(
            name="hpl-mxp", summary="mixed-precision LU without pivoting, refined to FP64", config=HplMxpConfig,
            module="mxpeak.bench.hpl_mxp", example="mxpeak run hpl-mxp -N 20000 --precision fp16 --submit submission",
            dat="HPL-MxP.dat", dat_module="mxpeak.bench.mxp_dat", format="mxp", report="HPL-MxP.out",
        ),
        Benchmark(
            name="hpg-mxp", summary="GMRES with multigrid on a sparse matrix, mixed against double precision",
            config=HpgMxpConfig, module="mxpeak.bench.hpg_mxp",
            example="mxpeak run hpg-mxp --nx 104 --rt 60 --ranks 2",
            format="hpcg", report="HPGMP-Benchmark_0.1_{:%Y-%m-%d_%H-%M-%S}.txt",
        ),
        Benchmark(
            name="hpcg", summary="conjugate gradients with multigrid on a sparse matrix, in double precision",
            config=HpcgConfig, module="mxpeak.bench.hpcg", example="mxpeak run hpcg --nx 104 --rt 60 --ranks 2",
            format="hpcg", report="HPCG-Benchmark_3.1_{:%Y-%m-%d_%H-%M-%S}.txt",
        ),
        Benchmark(
            name="norms", summary="max, one, infinity and Frobenius norms of any matrix, at the rate of memory",
            config=NormsConfig, module="mxpeak.bench.norms",
            example="mxpeak run norms -N 20000 --structure general,symmetric --dtype float64,bfloat16", in_flops=False,
        ),
    )
}  # fmt: skip
