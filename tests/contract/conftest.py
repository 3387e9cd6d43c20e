"""Run the test of every kernel on every backend."""

from __future__ import annotations

import pytest

from mxpeak.kernels.host.norms import tile_table
from tests.support.backends import BACKENDS, TORCH, Backend, backend_named
from tests.support.norm_backends import Norms, norms_of


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Run a test on each backend, including the reference."""
    return backend_named(request.param)


@pytest.fixture(scope="module", params=TORCH)
def torch_backend(request: pytest.FixtureRequest) -> Backend:
    """Run a test of tensors on both forms of the torch backend."""
    return backend_named(request.param)


@pytest.fixture(params=BACKENDS[1:])
def norms(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Norms:
    """Run on each backend in small steps: pieces of 8 entries per line, programs of 2×4 lanes, 3 tiles per launch."""
    for name, value in {"SERIAL_BELOW": -1, "PIECE": 8}.items():
        monkeypatch.setattr(tile_table, name, value)
    if TORCH:
        from mxpeak.kernels.torch.engine import tile_table as norm_table
        from mxpeak.kernels.torch.norms import check, plain

        sizes = {"THREADS": 8, "LANES": 2, "WIDTH": 64, "PROGRAMS": 1, "MAX_LINES": 16, "BATCH": 3}
        for name, value in sizes.items():
            monkeypatch.setattr(norm_table, name, value)
        for module in (plain, check):
            monkeypatch.setattr(module, "STRIP", 100)
    return norms_of(request.param)
