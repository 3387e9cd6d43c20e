"""What all tests share."""

from __future__ import annotations

import os

# Triton's kernels are interpreted on the CPU and compiled on a GPU, unless whoever starts the tests says otherwise: it
# is read when they are decorated, so before anything imports them.
os.environ.setdefault("TRITON_INTERPRET", "0" if os.environ.get("TEST_DEVICE") == "cuda" else "1")

import numpy as np
import pytest

from mxpeak.errors import ResourceError
from mxpeak.kernels.choose import open_device
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.kernels.reference.kernels import ReferenceKernels


def pytest_configure() -> None:
    """With TEST_DEVICE=cuda the torch backend is tested on a GPU: tests do not begin where there is none."""
    where = os.environ.get("TEST_DEVICE", "cpu")
    if where not in ("cpu", "cuda"):
        raise pytest.UsageError(f"TEST_DEVICE={where}: tests run on cpu or cuda")
    if where == "cuda":
        try:
            open_device("cuda")
        except ResourceError as error:
            raise pytest.UsageError(f"TEST_DEVICE=cuda: {error}; leave it out to test on the CPU") from error


@pytest.hookimpl(tryfirst=True)  # before the workers' own, which reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of several workers each takes whole files, and one all that start ranks of their own, which fill the cores."""
    for item in items:
        file = str(item.path)
        alone = f"{os.sep}mpi{os.sep}" in file or file.endswith(("test_torchdist.py", "test_torch_benchmarks.py"))
        item.add_marker(pytest.mark.xdist_group("ranks" if alone else file))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20261121)


@pytest.fixture(params=["host", "host with 3 threads"])
def host(request: pytest.FixtureRequest) -> HostKernels:
    """The host kernels, whose new arrays are full of NaN."""
    return HostKernels(1 if request.param == "host" else 3, poison=True)


@pytest.fixture
def reference() -> ReferenceKernels:
    return ReferenceKernels()
