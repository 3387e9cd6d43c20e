"""Every kernel is tested on every backend."""

from __future__ import annotations

import pytest

from tests.support.backends import BACKENDS, TORCH, Backend, backend_named


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each backend in turn, the reference included."""
    return backend_named(request.param)


@pytest.fixture(scope="module", params=TORCH)
def torch_backend(request: pytest.FixtureRequest) -> Backend:
    """Both forms of the torch backend, for what only tensors have."""
    return backend_named(request.param)
