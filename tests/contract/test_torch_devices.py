"""Test the facts about the chip of a torch device."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from mxpeak.kernels.torch.engine.device import Device


@pytest.mark.parametrize(("chip", "fast"), [((7, 0), False), ((8, 0), True), ((8, 6), False), ((9, 0), True)])
def test_chips_made_for_fp64_are_known(chip: tuple[int, int], fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", None)
    facts = SimpleNamespace(major=chip[0], minor=chip[1])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
    assert Device(torch.device("cuda", 0), triton=False).has_fast_fp64 == fast
    assert not Device(torch.device("cpu"), triton=False).has_fast_fp64


@pytest.mark.parametrize(("chip", "fast"), [("gfx90a:sramecc+", True), ("gfx942", True), ("gfx1100", False)])
def test_amds_chips_made_for_fp64_are_known(chip: str, fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(gcnArchName=chip))
    assert Device(torch.device("cuda", 0), triton=False).has_fast_fp64 == fast
