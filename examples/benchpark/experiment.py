"""A Benchpark experiment: a benchmark of mxpeak, weakly scaled over MPI ranks."""

import math

from benchpark.directives import maintainers, variant
from benchpark.experiment import Experiment
from benchpark.programming_model import ProgrammingModel, ProgrammingModelType
from benchpark.scaling import Scaling, ScalingMode


class Mxpeak(Experiment, ProgrammingModel(ProgrammingModelType.Mpionly), Scaling(ScalingMode.Weak)):
    """Run HPL, HPL-MxP, HPG-MxP or HPCG on {n_ranks} ranks, with the same size per rank."""

    variant("workload", default="hpl", values=("hpl", "hpl-mxp", "hpg-mxp", "hpcg"), description="Benchmark")
    variant("version", default="0.1.0", values=("main", "0.1.0"), description="Version of mxpeak")

    maintainers("mxpeak")

    def compute_applications_section(self):
        """Set the size: N of a dense system, which grows with the square root of the ranks, or the box of a rank."""
        test = self.spec.satisfies("exec_mode=test")
        self.add_experiment_variable("n_ranks", 1, True)
        if self.spec.satisfies("workload=hpl") or self.spec.satisfies("workload=hpl-mxp"):
            self.add_experiment_variable("n", 2000 if test else 40000, True)
            self.add_experiment_variable("flags", "-N {n}", False)
            size, total = "{n}*{n}/{n_ranks}", "{n}*{n}"
            scaled = {"n": lambda var, itr, dim, scaling_factor: round(var.val(dim) * math.sqrt(scaling_factor))}
        else:
            self.add_experiment_variable("nx", 32 if test else 104, True)
            self.add_experiment_variable("flags", "--nx {nx} --rt " + ("5" if test else "30m"), False)
            size, total = "{nx}**3", "{nx}**3*{n_ranks}"
            scaled = {"nx": lambda var, itr, dim, scaling_factor: var.val(dim)}
        scaled["n_ranks"] = lambda var, itr, dim, scaling_factor: var.val(dim) * scaling_factor
        self.register_scaling_config({ScalingMode.Weak: scaled})
        self.set_required_variables(n_resources="{n_ranks}", process_problem_size=size, total_problem_size=total)

    def compute_package_section(self):
        """Install mxpeak with MPI."""
        self.add_package_spec(self.name, [f"py-mxpeak{self.determine_version()} +mpi"])
