"""A Ramble application: the benchmarks of mxpeak over nodes and sizes, with figures of merit from the result file."""

from ramble.appkit import *


class Mxpeak(ExecutableApplication):
    """HPL, HPL-MxP, HPG-MxP and HPCG, with validation and the share of a limit measured in the same process."""

    name = "mxpeak"
    tags("benchmark", "linear-algebra", "hpl", "hpl-mxp", "hpcg", "hpg-mxp")

    with when("package_manager_family=spack"):
        software_spec("mxpeak", pkg_spec="py-mxpeak +mpi")
        required_package("mxpeak")

    # Ramble creates the result file before the run, so mxpeak prints the result instead of writing a file.
    executable(
        "execute",
        "mxpeak run {benchmark} {flags} --quiet --json -",
        use_mpi=True,
        redirect="{result_file}",
        output_capture=OUTPUT_CAPTURE.STDOUT,
    )

    workload("hpl", executables=["execute"])
    workload("hpl-mxp", executables=["execute"])
    workload("hpg-mxp", executables=["execute"])
    workload("hpcg", executables=["execute"])

    workload_variable(
        "benchmark", default="{workload_name}", description="Benchmark", workloads=["hpl", "hpl-mxp", "hpg-mxp", "hpcg"]
    )
    workload_variable("flags", default="--mem 80%", description="Flags of mxpeak run", workloads=["hpl", "hpl-mxp"])
    workload_variable(
        "flags", default="--nx 104 --rt 30m", description="Flags of mxpeak run", workloads=["hpg-mxp", "hpcg"]
    )
    workload_variable(
        "result_file",
        default="{experiment_run_dir}/result.json",
        description="Path of the result file",
        workloads=["hpl", "hpl-mxp", "hpg-mxp", "hpcg"],
    )

    # The figures of the first case have an indentation of eight blanks, and those of its limit of ten. The blanks are
    # written out, because Ramble expands numbers in braces.
    figure_of_merit(
        "Rate",
        log_file="{result_file}",
        fom_regex=r'^        "rate_flops": (?P<rate>[0-9.e+]+)',
        group_name="rate",
        units="FLOP/s",
    )
    figure_of_merit(
        "Share of limit",
        log_file="{result_file}",
        fom_regex=r'^        "fraction_of_limit": (?P<share>[0-9.e+-]+)',
        group_name="share",
        units="",
    )
    figure_of_merit(
        "Time",
        log_file="{result_file}",
        fom_regex=r'^        "time_s": (?P<time>[0-9.e+-]+)',
        group_name="time",
        units="s",
    )
    figure_of_merit(
        "Residual",
        log_file="{result_file}",
        fom_regex=r'^        "residual": (?P<residual>[0-9.e+-]+)',
        group_name="residual",
        units="",
    )

    success_criteria("valid", mode="string", match=r'^      "status": "valid"', file="{result_file}")
