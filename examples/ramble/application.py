"""A Ramble application: mxpeak's benchmarks over nodes and sizes, with figures of merit from the result file."""

from ramble.appkit import *


class Mxpeak(ExecutableApplication):
    """HPL, HPL-MxP, HPG-MxP and HPCG, with validation and the share of a limit measured in the same process."""

    name = "mxpeak"
    tags("benchmark", "linear-algebra", "hpl", "hpl-mxp", "hpcg", "hpg-mxp")

    software_spec("mxpeak", pkg_spec="py-mxpeak +mpi", package_manager="spack*")

    executable(
        "execute",
        "mxpeak run {benchmark} {flags} --quiet --out {experiment_run_dir}/mxpeak-out --json {result_file}",
        use_mpi=True,
    )

    workload("hpl", executables=["execute"])
    workload("hpl-mxp", executables=["execute"])
    workload("hpg-mxp", executables=["execute"])
    workload("hpcg", executables=["execute"])

    workload_variable(
        "benchmark",
        default="{workload_name}",
        description="What is run",
        workloads=["hpl", "hpl-mxp", "hpg-mxp", "hpcg"],
    )
    workload_variable("flags", default="--mem 80%", description="Flags of mxpeak run", workloads=["hpl", "hpl-mxp"])
    workload_variable(
        "flags", default="--nx 104 --rt 30m", description="Flags of mxpeak run", workloads=["hpg-mxp", "hpcg"]
    )
    workload_variable(
        "result_file",
        default="{experiment_run_dir}/result.json",
        description="Where the result goes",
        workloads=["hpl", "hpl-mxp", "hpg-mxp", "hpcg"],
    )

    # The figures of the first case: in the file they stand eight blanks deep, those of its limit ten.
    figure_of_merit(
        "Rate",
        log_file="{result_file}",
        fom_regex=r'^ {8}"rate_flops": (?P<rate>[0-9.e+]+)',
        group_name="rate",
        units="FLOP/s",
    )
    figure_of_merit(
        "Share of limit",
        log_file="{result_file}",
        fom_regex=r'^ {8}"fraction_of_limit": (?P<share>[0-9.e+-]+)',
        group_name="share",
        units="",
    )
    figure_of_merit(
        "Time", log_file="{result_file}", fom_regex=r'^ {8}"time_s": (?P<time>[0-9.e+-]+)', group_name="time", units="s"
    )
    figure_of_merit(
        "Residual",
        log_file="{result_file}",
        fom_regex=r'^ {8}"residual": (?P<residual>[0-9.e+-]+)',
        group_name="residual",
        units="",
    )

    success_criteria("valid", mode="string", match=r'^ {6}"status": "valid"', file="{result_file}")
