"""A Spack recipe that installs mxpeak from its repository, with or without MPI and GPUs."""

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyMxpeak(PythonPackage):
    """The supercomputer benchmarks HPL, HPL-MxP, HPG-MxP and HPCG, distributed norms and mixed-precision solvers."""

    homepage = "https://github.com/mxpeak/mxpeak"
    git = "https://github.com/mxpeak/mxpeak.git"

    license("BSD-3-Clause")

    version("main", branch="main")
    version("0.1.0", tag="v0.1.0")

    variant("mpi", default=True, description="Run on several ranks with MPI")
    variant("gpu", default=False, description="Run on GPUs, with PyTorch and Triton")
    variant("amg", default=False, description="Use the multigrid levels of PyAMG as a preconditioner")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-hatchling@1.24:", type="build")
    depends_on("py-numpy@1.26:", type=("build", "run"))
    depends_on("py-scipy@1.13:", type=("build", "run"))
    depends_on("py-numba@0.62:0.68", type=("build", "run"))
    depends_on("py-threadpoolctl@3.5:", type=("build", "run"))
    depends_on("py-ml-dtypes@0.4:", type=("build", "run"))
    depends_on("py-array-api-compat@1.9:", type=("build", "run"))
    depends_on("py-rich@13:", type=("build", "run"))
    depends_on("py-mpi4py@4.1:", type=("build", "run"), when="+mpi")
    depends_on("py-torch@2.9:", type=("build", "run"), when="+gpu")
    depends_on("py-triton", type=("build", "run"), when="+gpu")  # a wheel of PyTorch brings it along
    depends_on("py-pyamg@5.2:", type=("build", "run"), when="+amg")

    def test_small_system(self):
        """Inspect the machine, and solve and check a small system of equations: spack test run py-mxpeak"""
        mxpeak = Executable(self.prefix.bin.mxpeak)
        mxpeak("doctor")
        mxpeak("run", "hpl", "-N", "500", "--threads", "1", "--out", "mxpeak-out")
