"""Test that a rehearsal requests exactly the kernels that the first use launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from mxpeak.bench import sparse
from mxpeak.bench.hpcg import check
from mxpeak.bench.hpcg import run as hpcg
from mxpeak.bench.hpcg.config import HpcgConfig
from mxpeak.bench.hpg_mxp import run as hpg_mxp
from mxpeak.bench.hpg_mxp.config import HpgMxpConfig
from mxpeak.bench.norms import run as norms
from mxpeak.bench.norms.config import NormsConfig
from mxpeak.comm.transports.solo import Solo
from mxpeak.kernels import choose
from mxpeak.kernels.torch.engine import compile_ahead
from mxpeak.verbs.scan import run as scan
from mxpeak.verbs.scan.config import ScanConfig
from tests.support.torch_devices import ON_GPU, torch_device

pytestmark = pytest.mark.skipif(ON_GPU, reason="Triton's interpreter launches here")

ON_TORCH: dict[str, Any] = {"kernels": "torch", "device": "cpu", "threads": 1}
#: Benchmarks whose first use launches kernels, with the settings for a short run.
RUNS = {
    "hpg-mxp": (hpg_mxp.run, sparse, HpgMxpConfig(nx=16, restart=12, precision="bf16", quick=True, **ON_TORCH)),
    "hpcg": (hpcg.run, sparse, HpcgConfig(nx=16, quick=True, **ON_TORCH)),
    "norms": (norms.run, norms, NormsConfig(n=(64,), **ON_TORCH)),
    "scan": (scan.run_scan, scan, ScanConfig(n=64, nb=16, precision="fp32", **ON_TORCH)),
}


class Ready(Exception):  # noqa: N818  (not an error: it stops the run before the part that is not tested)
    """Raised after all kernels are compiled."""


def form(kernel: Any, args: tuple[Any, ...], constants: dict[str, Any]) -> tuple[Any, ...]:
    """Return everything that makes Triton compile a new form of a kernel."""

    def kind(value: Any) -> tuple[Any, ...]:
        if isinstance(value, torch.Tensor):
            return value.dtype, value.data_ptr() % 16 == 0
        if isinstance(value, tuple):
            return tuple(map(kind, value))
        return type(value), value == 1, value % 16 == 0, value < 2**31

    return kernel.fn.__qualname__, tuple(map(kind, args)), tuple(constants.items())


@pytest.mark.parametrize("name", RUNS)
def test_a_rehearsal_asks_for_what_the_use_launches(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    run, where, config = RUNS[name]
    rehearsed: set[Any] = set()
    launched: set[Any] = set()
    launch = compile_ahead.launch

    def noted(kernel: Any, grid: Any, *args: Any, **constants: Any) -> None:
        (rehearsed if compile_ahead.is_rehearsing() else launched).add(form(kernel, args, constants))
        if not compile_ahead.is_rehearsing():
            launch(kernel, grid, *args, **constants)

    def both(comm: Any, what: str, use: Callable[[], None], *arguments: Any) -> None:
        with compile_ahead.rehearsal():
            use()
        use()
        raise Ready

    # The tests of HPCG itself solve each system once and stop after a few steps. A rehearsal does not: it uses all
    for setting, value in {"CALLS": 1, "MAX_STEPS": 5, "TOLERANCE": 0.1}.items():
        monkeypatch.setattr(check, setting, value)
    for module in (sparse, hpcg):  # levels of 64 rows, 8 and 1
        monkeypatch.setattr(module, "TINY", 4)
        monkeypatch.setattr(module, "LEVELS", 3)
    monkeypatch.setattr(compile_ahead, "launch", noted)
    monkeypatch.setattr(where, "compile_in_turn", both)
    monkeypatch.setattr(choose, "open_device", lambda *told: torch_device(triton=True))
    with pytest.raises(Ready):
        run(config, Solo())
    assert launched
    assert rehearsed == launched
