"""A Spack recipe for a dependency of mxpeak that Spack's own repository lacked in July 2026."""

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyArrayApiCompat(PythonPackage):
    """A wrapper around NumPy and other array libraries that makes them compatible with the Array API standard."""

    homepage = "https://data-apis.org/array-api-compat"
    pypi = "array_api_compat/array_api_compat-1.14.0.tar.gz"

    license("MIT")

    version("1.14.0", sha256="c819ba707f5c507800cb545f7e6348ff1ecc46538381d9ad9b371ffc9cd6d784")

    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")  # the form of the license in its pyproject.toml
    depends_on("py-setuptools-scm", type="build")
