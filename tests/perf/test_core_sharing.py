"""Ranks that factor panels for their GPUs in turn share the cores of their process row (rocHPL, §III-B)."""

from __future__ import annotations

from typing import Any

import pytest

from mxpeak.bench.harness import panel_row
from mxpeak.bench.hpl.config import HplConfig
from mxpeak.bench.hpl_mxp.config import HplMxpConfig
from mxpeak.comm.threads import run_ranks
from mxpeak.configs.run import PlaceConfig
from mxpeak.runtime import placement

GPU: dict[str, Any] = {"kernels": "torch", "device": "cuda"}


def cores_of(config: PlaceConfig, monkeypatch: pytest.MonkeyPatch, threads: int | None = None) -> list[tuple[Any, int]]:
    """The cores and threads of 8 ranks on a node of 64 cores."""
    monkeypatch.setattr(placement, "one_core_each", lambda: list(range(64)))
    monkeypatch.setattr(placement, "bind", lambda cores: list(range(64)))

    def body(comm: Any) -> tuple[Any, int]:
        found = placement.bind_to_cores(comm, threads, row=panel_row(config, comm))
        return found.cores, found.threads

    return run_ranks(8, body)


@pytest.mark.parametrize(("grid", "each"), [((4, 2), 15), ((2, 4), 29), ((8, 1), 8)])
def test_fact_gets_the_cores_of_the_ranks_that_wait(
    grid: tuple[int, int], each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = cores_of(HplConfig(grid=(grid,), **GPU), monkeypatch)
    assert [(len(cores), threads) for cores, threads in found] == [(each, each)] * 8
    assert [cores[0] for cores, _ in found] == list(range(0, 64, 8))


def test_the_number_of_threads_is_the_users_where_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {threads for _, threads in cores_of(HplConfig(grid=((4, 2),), **GPU), monkeypatch, 4)} == {4}


@pytest.mark.parametrize(
    "config",
    [
        HplConfig(grid=((1, 8),), **GPU),  # the library factors panels on the device
        HplConfig(grid=((4, 2), (2, 4)), **GPU),  # of two grids a rank has two rows
        HplConfig(grid=((4, 2),), kernels="host", device="cpu"),  # all cores compute all the time
        HplMxpConfig(grid=((4, 2),), **GPU),
    ],
)
def test_elsewhere_each_rank_keeps_to_its_own_share(config: PlaceConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [len(cores) for cores, _ in cores_of(config, monkeypatch)] == [8] * 8
