"""Define the fixtures of the tests of the library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import mxpeak as mx
from mxpeak.library import policy


@pytest.fixture(params=["host", "device"])
def solve(request: pytest.FixtureRequest) -> Any:
    """Provide `mx.gmres` on the host, and on torch's CPU, which runs the kernels of devices."""
    if request.param == "host":
        return mx.gmres
    import torch

    from mxpeak.kernels.torch.engine.device import Device
    from mxpeak.library.sparse.inputs import checked_options
    from mxpeak.library.sparse.solving import solve_on
    from mxpeak.solvers.gmres_driver import GmresOptions

    device = Device(torch.device("cpu"), triton=False, poison=True)

    def solved(A: Any, b: Any, precision: str = "mixed", *, x0: Any = None, **options: Any) -> Any:
        return solve_on(device, A, b, x0, checked_options(GmresOptions(precision, **options)))

    return solved


@pytest.fixture
def small_lu_up_to(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Return a function that makes fp32 factors faster than the small LU from this order on."""

    def change(n: int) -> None:
        monkeypatch.setitem(policy.FP32_FROM, ("small_lu", "real"), policy.Crossover(n, n))
        policy.own_precision_is_fastest.cache_clear()

    yield change
    monkeypatch.undo()
    policy.own_precision_is_fastest.cache_clear()
