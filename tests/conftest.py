"""What all tests share."""

from __future__ import annotations

import os

# Triton's kernels are interpreted, on the CPU, unless whoever starts the tests says otherwise: it is read when they are
# decorated, so before anything imports them.
os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
import pytest

from mxpeak.kernels.host.backend import HostKernels
from mxpeak.kernels.reference.backend import ReferenceKernels

#: Unit roundoff of fp64.
U = 2.0**-53


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
