"""Test with ReFrame that each benchmark is valid and reaches its share of the limit, which the same run measures.

    reframe -c examples/reframe --exec-policy=serial -r
    reframe -c examples/reframe --exec-policy=serial -r -n 'MxpeakTest.*=hpl( |$)' -S flags='-N,50000' -S num_tasks=8

A share needs no reference for each system, because it compares a machine with itself. ReFrame also logs the rates.
Tests that run on one machine at the same time slow each other, so use the serial policy.
"""

import json

import reframe as rfm
import reframe.utility.sanity as sn
import reframe.utility.typecheck as typ
from reframe.core.builtins import parameter, performance_function, run_before, sanity_function, variable

#: The least share of the limit, in percent; measured shares may be lower by the given part.
SHARES = {"hpl": (75, -0.1), "hpl-mxp": (50, -0.1), "hpg-mxp": (35, -0.2), "hpcg": (35, -0.2)}


@rfm.simple_test
class MxpeakTest(rfm.RunOnlyRegressionTest):
    """Run one benchmark, by default at a size that takes seconds."""

    descr = "mxpeak: linear algebra against the limits of the machine"
    benchmark = parameter(list(SHARES))
    flags = variable(typ.List[str], value=["--quick"])
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    executable = "mxpeak"
    time_limit = "30m"
    num_tasks = 1
    tags = {"mxpeak", "acceptance"}

    @run_before("run")
    def set_command(self):
        """Set the options; with --json -, stdout contains only the result file."""
        self.executable_opts = ["run", self.benchmark, *self.flags, "--json", "-", "--quiet", "--out", "mxpeak-out"]

    @run_before("performance")
    def set_reference(self):
        """Set the share that a benchmark must reach, which is the same on all systems."""
        least, lower = SHARES[self.benchmark]
        self.reference = {"*": {"share": (least, lower, None, "%")}}

    def results(self):
        """Return the results of the run."""
        with open(str(self.stdout), encoding="utf-8") as file:
            return json.load(file)["results"]

    @sanity_function
    def all_are_valid(self):
        """Check that every case is valid."""
        found = [one["status"] for one in self.results()]
        return sn.assert_true(found and set(found) == {"valid"}, f"the cases are {found}")

    @performance_function("GFLOP/s")
    def rate(self):
        """Return the best figure of merit."""
        return max(one["result"]["rate_flops"] for one in self.results()) / 1e9

    @performance_function("%")
    def share(self):
        """Return the best share of the limit; fail if the limit is unknown."""
        return 100 * max(one["result"]["fraction_of_limit"] for one in self.results())
