"""What a report says of options that were not followed: a deeper look-ahead, and panels that a library factors."""

from __future__ import annotations

import io
import os
from datetime import UTC, datetime
from typing import Any

import pytest

from mxpeak.bench.hpl import run as hpl
from mxpeak.bench.hpl.config import HplConfig
from mxpeak.bench.hpl_mxp import run as hpl_mxp
from mxpeak.bench.hpl_mxp.config import HplMxpConfig
from mxpeak.comm.threads import run_ranks
from mxpeak.options import Setting
from mxpeak.records import Result, document
from mxpeak.report.html import html_report
from mxpeak.report.mxp_text import MxpText
from mxpeak.report.text import verdict

SMALL: dict[str, Any] = {"n": (64,), "nb": (16,), "warmup": "none", "threads": 1}
DEPTH = "look-ahead of depth 1 (3 was requested)"


def on_ranks(count: int, bench: Any, config: Any, **settings: Setting) -> Result:
    results: list[list[Result]] = run_ranks(count, lambda comm: bench.run(config, comm, settings=settings))
    return results[0][0]


def test_a_depth_that_ran_as_one_is_in_the_text_and_in_the_result() -> None:
    for bench, config in ((hpl, HplConfig), (hpl_mxp, HplMxpConfig)):
        deep = on_ranks(2, bench, config(depth=(3,), **SMALL))
        assert (deep.problem["depth"], deep.problem["lookahead"]) == (3, 1)
        assert f"\n  {DEPTH}\n" in verdict(deep)
        plain = on_ranks(1, bench, config(depth=(0,), **SMALL))
        assert (plain.problem["depth"], plain.problem["lookahead"]) == (0, 0)
        assert "look-ahead" not in verdict(plain)
    own = io.StringIO()
    MxpText(own, {}, datetime.now(UTC)).case(deep)
    assert DEPTH in own.getvalue()


def test_the_result_and_the_page_name_the_settings_that_had_no_effect() -> None:
    of_file = {"l1_form", "u_form", "equilibration", "alignment"}
    settings = {"alignment": Setting(8, "HPL.dat"), "bcast": Setting(("lib",), "flag"), "depth": Setting((3,), "flag")}
    expected = {1: {*of_file, "swap", "swap_threshold", "bcast", "split"}, 2: {*of_file, "swap", "swap_threshold"}}
    for ranks, unused in expected.items():
        found = on_ranks(ranks, hpl, HplConfig(depth=(3,), split=0.0, **SMALL), **settings)
        assert set(found.problem["not_used"]) == unused | {"split"}
        assert found.problem["variant"].startswith("WR1")
        page = html_report(document([found]))
        assert ">8 (not used)<" in page
        assert (">lib (not used)<" in page) == (ranks == 1)
        assert f"<p>{DEPTH}</p>" in page
    rows = on_ranks(2, hpl, HplConfig(P=(2,), split=0.5, **SMALL))
    assert set(rows.problem["not_used"]) == {*of_file, "bcast"}


def test_one_process_of_the_host_has_nothing_that_goes_on_beside_hpl_mxps_update() -> None:
    deep = on_ranks(1, hpl_mxp, HplMxpConfig(depth=(3,), **SMALL))
    assert (deep.problem["depth"], deep.problem["lookahead"]) == (3, 0)
    assert "look-ahead of depth 0 (3 was requested)" in verdict(deep)
    usual = on_ranks(1, hpl_mxp, HplMxpConfig(**SMALL))
    assert (usual.problem["depth"], usual.problem["lookahead"]) == (1, 0)
    assert "look-ahead" not in verdict(usual)


def test_a_split_that_splits_nothing_is_told_of_unless_it_is_a_devices_default() -> None:
    config = HplConfig(split=0.5, **SMALL)
    for origin, told in (("flag", ["--split 0.5"]), ("tuned", ["--split 0.5"]), ("auto", [])):
        found = on_ranks(1, hpl, config, split=Setting(0.5, origin))
        assert [w.text.split(" had no effect")[0] for w in found.warnings if w.code == "split"] == told


def test_a_matrix_is_balanced_where_that_is_asked() -> None:
    """Its largest entry is about 1 then, and x solves the system as it was."""
    for scaling, balanced in (("none", False), ("auto", True)):
        found = on_ranks(2, hpl_mxp, HplMxpConfig(scaling=scaling, diagonal_scale=(64.0,), mode="explore", **SMALL))
        assert ("balance" in found.phases) == balanced
        assert (found.telemetry["growth"]["largest"] <= 2.0) == balanced, "the diagonal holds 512"
        assert found.validation["passed"]


def test_panels_of_a_device_are_the_librarys_with_one_process_row_only() -> None:
    if not os.environ.get("CI"):  # there, a missing torch is a failure
        pytest.importorskip("torch", reason="PyTorch is not installed")
    library = "torch.linalg.lu_factor_ex"
    config = HplConfig(kernels="torch", device="cpu", nbmin=(4,), **SMALL)
    typed = on_ranks(1, hpl, config, nbmin=Setting((4,), "flag"), ndiv=Setting((2,), "default"))
    assert typed.problem["panel_library"] == library
    assert {"pfact", "rfact", "nbmin", "ndiv"} <= set(typed.problem["not_used"])
    assert f"\n  panels factored by {library}: pfact, rfact, nbmin and ndiv are not used\n" in verdict(typed)
    assert [w.text.split(" had")[0] for w in typed.warnings if w.code == "panel"] == ["nbmin"]
    assert not [w for w in on_ranks(1, hpl, config).warnings if w.code == "panel"]
    two = on_ranks(2, hpl, HplConfig(kernels="torch", device="cpu", P=(2,), **SMALL), nbmin=Setting((8,), "flag"))
    for result in (two, on_ranks(1, hpl, HplConfig(**SMALL), nbmin=Setting((8,), "flag"))):
        assert result.problem["panel_library"] is None
        assert {"pfact", "rfact", "nbmin", "ndiv"}.isdisjoint(result.problem["not_used"])
        assert "panels factored by" not in verdict(result)
        assert not [w for w in result.warnings if w.code == "panel"]
