"""Test how a report describes options that were not followed, such as a deeper look-ahead."""

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
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.kernels.contract.lu import PanelSolve
from mxpeak.kernels.host.lu.lu import HostLu
from mxpeak.records import Result, document
from mxpeak.report.html import html_report
from mxpeak.report.mxp_text import MxpText
from mxpeak.report.submission import submission
from mxpeak.report.text import verdict
from mxpeak.solvers.lu.panel_solves import PanelSolves, panel_solve_facts

SMALL: dict[str, Any] = {"n": (64,), "nb": (16,), "warmup": "none", "threads": 1}
DEPTH = "look-ahead of depth 1 (3 was requested)"


def on_ranks(count: int, bench: Any, config: Any, **origins: str) -> Result:
    results: list[list[Result]] = run_ranks(count, lambda comm: bench.run(config, comm, origins=origins))
    return results[0][0]


def test_a_depth_that_ran_as_one_is_in_the_text_and_in_the_result() -> None:
    for bench, config in ((hpl, HplConfig), (hpl_mxp, HplMxpConfig)):
        deep = on_ranks(2, bench, config(depth=(3,), **SMALL))
        assert (deep.problem["depth"], deep.problem["lookahead"]) == (3, 1)
        assert f"\n  {DEPTH}\n" in verdict(deep)
        assert "without effect" not in verdict(deep)  # no HPL.dat
        plain = on_ranks(1, bench, config(depth=(0,), **SMALL))
        assert (plain.problem["depth"], plain.problem["lookahead"]) == (0, 0)
        assert "look-ahead" not in verdict(plain)
    own = io.StringIO()
    MxpText(own, {}, datetime.now(UTC)).case(deep)
    assert DEPTH in own.getvalue()


def test_the_result_and_the_page_name_the_settings_that_had_no_effect() -> None:
    of_file = {"l1_form", "u_form", "equilibration", "alignment"}
    origins = {"alignment": "HPL.dat", "bcast": "flag", "depth": "flag"}
    expected = {1: {*of_file, "swap", "swap_threshold", "bcast", "split"}, 2: {*of_file, "swap", "swap_threshold"}}
    for ranks, unused in expected.items():
        result = on_ranks(ranks, hpl, HplConfig(depth=(3,), bcast=("lib",), split=0.0, **SMALL), **origins)
        assert set(result.problem["not_used"]) == unused | {"split"}
        assert result.problem["variant"].startswith("WR1")
        page = html_report(document([result]))
        assert ">8 (not used)<" in page
        unused_in_file = "settings of HPL.dat without effect on this run: ALIGN"
        assert unused_in_file in page
        assert f"\n  {unused_in_file}\n" in verdict(result)
        assert (">lib (not used)<" in page) == (ranks == 1)
        assert f"<p>{DEPTH}</p>" in page
    rows = on_ranks(2, hpl, HplConfig(P=(2,), split=0.5, **SMALL))
    assert set(rows.problem["not_used"]) == {*of_file, "bcast"}


def test_a_warning_names_each_flag_without_effect() -> None:
    def unused(result: Result) -> list[str]:
        return [warning.text for warning in result.warnings if warning.code == "unused"]

    rows = "there is one process row, whose rows move without messages"
    flags = HplConfig(bcast=("long",), swap="long", **SMALL)
    alone = on_ranks(1, hpl, flags, bcast="flag", swap="variable")
    assert unused(alone) == [f"--swap had no effect: {rows}", "--bcast had no effect: this grid broadcasts no panels"]
    assert unused(on_ranks(2, hpl, flags, bcast="flag", swap="file")) == [f"--swap had no effect: {rows}"]
    assert unused(on_ranks(1, hpl, flags, bcast="HPL.dat", swap="tuned")) == []
    mixed = on_ranks(1, hpl_mxp, HplMxpConfig(bcast=("long",), **SMALL), bcast="flag")
    assert unused(mixed) == ["--bcast had no effect: this grid broadcasts no panels"]


def test_hpl_mxp_on_one_host_process_has_no_look_ahead() -> None:
    deep = on_ranks(1, hpl_mxp, HplMxpConfig(depth=(3,), **SMALL))
    assert (deep.problem["depth"], deep.problem["lookahead"]) == (3, 0)
    assert "look-ahead of depth 0 (3 was requested)" in verdict(deep)
    usual = on_ranks(1, hpl_mxp, HplMxpConfig(**SMALL))
    assert (usual.problem["depth"], usual.problem["lookahead"]) == (1, 0)
    assert "look-ahead" not in verdict(usual)


def test_a_split_without_effect_causes_a_warning_unless_it_is_a_default() -> None:
    config = HplConfig(split=0.5, **SMALL)
    for origin, told in (("flag", ["--split 0.5"]), ("tuned", ["--split 0.5"]), ("auto", [])):
        found = on_ranks(1, hpl, config, split=origin)
        assert [w.text.split(" had no effect")[0] for w in found.warnings if w.code == "split"] == told


SINGLE = "NB = 80 exceeds N = 64, so the matrix is a single block of order 64"


@pytest.mark.parametrize(("bench", "config"), [(hpl, HplConfig), (hpl_mxp, HplMxpConfig)])
@pytest.mark.parametrize(
    ("nb", "origin", "ranks", "expected"),
    [
        (80, "flag", 1, [SINGLE]),
        (80, "HPL.dat", 2, [f"{SINGLE} on one of 2 ranks"]),
        (80, "tuned", 1, [SINGLE]),
        (80, "default", 1, []),
        (64, "flag", 1, []),
    ],
)
def test_a_chosen_nb_that_exceeds_n_is_a_caution(
    bench: Any, config: Any, nb: int, origin: str, ranks: int, expected: list[str]
) -> None:
    settings = config(**{**SMALL, "nb": (nb,)})
    result = on_ranks(ranks, bench, settings, nb=origin)
    found = [warning for warning in result.warnings if warning.code == "one-block"]
    assert [warning.text for warning in found] == expected
    assert {warning.hint for warning in found} <= {"use --nb 64 or less, or -N 80 or more"}
    assert result.passed
    described = run_ranks(ranks, lambda comm: bench.dry_run(settings, comm, {"nb": origin}).text)[0]
    lines = [line for line in described.splitlines() if "single block" in line]
    assert lines == [f"  {warning.text}; {warning.hint}" for warning in found]


def test_an_empty_matrix_has_no_caution_about_nb() -> None:
    """The HPL.dat of Netlib may contain N = 0."""
    settings = HplConfig(**{**SMALL, "n": (0,)})
    assert [warning.code for warning in on_ranks(1, hpl, settings, nb="HPL.dat").warnings] == []
    assert "single block" not in run_ranks(1, lambda comm: hpl.dry_run(settings, comm, {"nb": "HPL.dat"}).text)[0]


def test_a_matrix_is_balanced_where_that_is_asked() -> None:
    """A balanced matrix has a largest entry of about 1, and x solves the original system."""
    for scaling, balanced in (("none", False), ("auto", True)):
        result = on_ranks(2, hpl_mxp, HplMxpConfig(scaling=scaling, diagonal_scale=(64.0,), mode="explore", **SMALL))
        assert ("balance" in result.phases) == balanced
        assert (result.telemetry["growth"]["largest"] <= 2.0) == balanced, "the diagonal holds 512"
        assert result.validation["passed"]


def test_hpl_mxp_records_how_its_panels_were_solved_and_says_it_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a device whose kernels solve by products, with blocks that are small enough for several per panel."""
    if not os.environ.get("CI"):  # there, a missing torch is a failure
        pytest.importorskip("torch", reason="PyTorch is not installed")
    from mxpeak.kernels.torch.lu.lu import TorchLu

    constructor = TorchLu.__init__

    def inverting(self: Any, *given: Any) -> None:
        constructor(self, *given)
        self.trsm = "inverse"

    monkeypatch.setattr(TorchLu, "__init__", inverting)
    for name, size in (("BLOCK", 8), ("SMALL", 4)):
        monkeypatch.setattr(f"mxpeak.kernels.torch.lu.solves.{name}", size)
    low = "panels solved by products with bf16 operands and fp32 inverses of diagonal blocks"
    wide = "panels solved by products and inverses of diagonal blocks in fp32"
    for asked, operands, phrase in (("low", "bf16", low), ("fp32", "fp32", wide)):
        config = HplMxpConfig(kernels="torch", device="cpu", precision=("bf16",), panel_solves=asked, **SMALL)
        for ranks in (1, 2):
            result = on_ranks(ranks, hpl_mxp, config)
            assert result.validation["passed"]
            assert result.result["panel_solves"] == {"operands": operands, "method": "blocked-inverse", "share": 1.0}
        own = io.StringIO()
        MxpText(own, {}, datetime.now(UTC)).case(result)
        page, form = html_report(document([result])), submission(result, [], "HPL-MxP.out")["algorithm"]
        for text in (verdict(result), own.getvalue(), page, form):
            assert phrase in text


def test_the_hosts_panel_solves_are_in_fp32_where_it_has_no_products_of_16_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mxpeak.kernels.host.engine.matrix_engines.chosen", lambda: ())
    for precision, operands in (("fp16", "fp32"), ("fp64", "fp64")):
        found = on_ranks(2, hpl_mxp, HplMxpConfig(kernels="host", precision=(precision,), **SMALL))
        assert found.result["panel_solves"]["operands"] == operands
    single = on_ranks(1, hpl_mxp, HplMxpConfig(**{**SMALL, "nb": (64,)}))
    assert single.result["panel_solves"] is None, "a single block has no panels"
    assert "panels solved" not in verdict(single)


@pytest.mark.parametrize("trsm", ["library", "kernel"])
def test_hpl_records_how_it_solves_for_u(trsm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original = HostLu.__init__

    def chosen(self: Any, *arguments: Any) -> None:
        original(self, *arguments)
        self.trsm = trsm

    monkeypatch.setattr(HostLu, "__init__", chosen)
    for ranks in (1, 2):
        result = on_ranks(ranks, hpl, HplConfig(kernels="host", **SMALL))
        assert result.validation["passed"]
        assert result.result["panel_solves"] == {"operands": "fp64", "method": "library", "share": 1.0}
        assert "U12 solved by triangular solves in fp64" in verdict(result)


def test_one_low_solve_is_enough_for_the_record_to_be_low() -> None:
    own, theirs = PanelSolves(), PanelSolves()
    assert panel_solve_facts([own, theirs]) is None
    own[PanelSolve("fp32", "library")] += 300
    theirs[PanelSolve("bf16", "blocked-inverse")] += 100
    assert panel_solve_facts([own, theirs]) == {"operands": "bf16", "method": "blocked-inverse", "share": 0.25}
    theirs[PanelSolve("fp8", "blocked-inverse")] += 0
    assert panel_solve_facts([own, theirs]) == {"operands": "bf16", "method": "blocked-inverse", "share": 0.25}


def test_panels_of_a_device_are_the_librarys_with_one_process_row_only() -> None:
    if not os.environ.get("CI"):  # there, a missing torch is a failure
        pytest.importorskip("torch", reason="PyTorch is not installed")
    library = "torch.linalg.lu_factor_ex"
    config = HplConfig(kernels="torch", device="cpu", nbmin=(4,), **SMALL)
    typed = on_ranks(1, hpl, config, nbmin="flag", ndiv="default")
    assert typed.problem["panel_library"] == library
    assert {"pfact", "rfact", "nbmin", "ndiv"} <= set(typed.problem["not_used"])
    assert f"\n  panels factored by {library}: pfact, rfact, nbmin and ndiv are not used\n" in verdict(typed)
    assert [w.text.split(" had")[0] for w in typed.warnings if w.code == "panel"] == ["nbmin"]
    assert not [w for w in on_ranks(1, hpl, config).warnings if w.code == "panel"]
    two = on_ranks(2, hpl, HplConfig(kernels="torch", device="cpu", P=(2,), **SMALL), nbmin="flag")
    for result in (two, on_ranks(1, hpl, HplConfig(**SMALL), nbmin="flag")):
        assert result.problem["panel_library"] is None
        assert {"pfact", "rfact", "nbmin", "ndiv"}.isdisjoint(result.problem["not_used"])
        assert "panels factored by" not in verdict(result)
        assert not [w for w in result.warnings if w.code == "panel"]
