"""Compare the report of HPL with that of Netlib 2.3, byte by byte."""

from __future__ import annotations

import dataclasses
import io
import math
import re
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from mxpeak.bench.hpl.config import HplCase, HplConfig
from mxpeak.bench.hpl.input import read_dat
from mxpeak.records import Result
from mxpeak.report.hpl_text import HplText

HERE = Path(__file__).parent
PHASES = {"rfact": 1.25, "pfact": 0.75, "mxswp": 0.5, "update": 30.0, "laswp": 2.0, "ptrsv": 0.125}
NORMS = {"residual": 1.5, "A_inf": 2600.25, "A_one": 2599.5, "x_inf": 12.0, "x_one": 40000.0, "b_inf": 0.499999}


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def result_of(case: HplCase, *, passed: bool = True, residual: float | None = 3.25e-3) -> Result:
    flops = (2 / 3 * case.n + 3 / 2) * case.n**2
    return Result(
        benchmark="hpl",
        status="valid" if passed else "invalid",
        run={"start_unix": 1_700_000_000.25, "end_unix": 1_700_000_032.75},
        problem={"variant": case.tag, "n": case.n, "nb": case.nb, "P": case.P, "Q": case.Q},
        result={"time_s": 32.5, "rate_flops": flops / 32.5},
        validation={"passed": passed, "residual": residual, "threshold": case.threshold, "norms": NORMS},
        phases={name: {"max_s": max_s, "time_s": max_s} for name, max_s in PHASES.items()},
    )


def report(config: HplConfig, ranks: int, *outcomes: dict[str, Any], skipped: int = 0) -> str:
    stream = io.StringIO()
    cases = list(config.cases(ranks))
    text = HplText(stream, config.as_run(cases[0], ranks), datetime.now())
    text.header()
    for case, outcome in zip(cases, outcomes, strict=False):
        text.case(result_of(case, **outcome))
    for _ in range(skipped):
        text.skipped()
    failed = sum(not o.get("passed", True) for o in outcomes)
    text.footer(len(outcomes) - failed, failed, skipped)
    return stream.getvalue()


def config(**values: Any) -> HplConfig:
    return HplConfig(**{"n": (20000, 20480), "nb": (256,), "grid": ((2, 2),), **values})


def test_the_checked_report_is_the_golden_one():
    assert report(config(), 4, {}, {}) == (HERE / "checked.txt").read_text()


def test_the_failed_report_is_the_golden_one_with_its_six_norms():
    failed = {"passed": False, "residual": 4.5e8}
    assert report(config(), 4, {}, failed, skipped=1) == (HERE / "failed.txt").read_text()


def test_the_unchecked_report_is_the_golden_one_with_one_head_and_closing_rules():
    assert report(config(threshold=0.0), 4, {}, {}) == (HERE / "unchecked.txt").read_text()


def test_long_lists_go_on_in_a_second_and_third_line_as_in_the_golden_report():
    lists = HplConfig(**read_dat((HERE / "lists.dat").read_text(), "lists.dat"))
    lists = dataclasses.replace(lists, nb=tuple(range(1, 19)))
    assert report(lists, 4, {}) == (HERE / "lists.txt").read_text()


@pytest.mark.parametrize("bcast", ["lib", "ilib"])
def test_broadcasts_that_hpl_does_not_know_show_their_name_and_digit(bcast: str):
    text = report(config(bcast=(bcast,)), 4, {})
    assert f"\nBCAST  :{bcast:>8} \n" in text
    assert f"\nWR1{6 if bcast == 'lib' else 7}R2L16" in text


def test_the_variant_and_the_header_state_the_look_ahead_depth_that_runs():
    text = report(config(n=(20000,), depth=(0, 3)), 4, {}, {})
    assert "\nDEPTH  :       0        1 \n" in text
    assert re.findall(r"^WR\d1R2L16", text, re.MULTILINE) == ["WR01R2L16", "WR11R2L16"]


def test_settings_of_the_input_file_that_mxpeak_ignores_are_marked_wherever_they_appear():
    text = report(config(l1_form="no-transposed", equilibration=False, alignment=4), 4, {})
    for line in (
        "L1     : no-transposed form (not used by mxpeak)",
        "U      : transposed form (not used by mxpeak)",
        "EQUIL  : no (not used by mxpeak)",
        "ALIGN  : 4 double precision words (not used by mxpeak)",
    ):
        assert f"\n{line}\n" in text


@pytest.mark.parametrize("library", [None, "torch.linalg.lu_factor_ex"])
def test_a_library_that_factored_the_panels_has_a_line_that_no_parser_takes_for_a_result(library: str | None):
    case = next(config().cases(4))
    result, stream = result_of(case), io.StringIO()
    result.problem["panel_library"] = library
    HplText(stream, {"threshold": 16.0}, datetime.now()).case(result)
    line = f"\nHPL_pdgesv() panels by {library}: PFACT, NBMIN, NDIV and RFACT were not used\n"
    assert (line in stream.getvalue()) == (library is not None)
    for regex in PARSERS.values():
        assert len(re.findall(regex, stream.getvalue(), re.MULTILINE)) == 1


def test_a_phase_that_took_no_time_has_no_line():
    case = next(config().cases(4))
    result = result_of(case)
    result.phases["mxswp"]["max_s"] = 0.0
    del result.phases["ptrsv"]
    stream = io.StringIO()
    HplText(stream, {"threshold": 16.0}, datetime.now()).case(result)
    assert "mxswp" not in stream.getvalue()
    assert "up tr sv" not in stream.getvalue()
    assert "laswp" in stream.getvalue()


@pytest.mark.parametrize("residual", [None, math.nan])
def test_a_residual_that_is_no_number_fails_without_norms(residual: float | None):
    text = report(config(), 4, {"passed": False, "residual": residual})
    assert re.search(r"\)\*N\)= +nan \.{6} FAILED\n=", text)


PARSERS = {
    "ReFrame site checks": r"^W[R|C]\S+\s+\d+\s+\d+\s+\d+\s+\d+\s+\d[\d.]+\s+(?P<gflops>\d[\d.eE+]+)",
    "ReFrame HPLBase": r"^\S+\s+\d+\s+\d+\s+\d+\s+\d+\s+\d+\.\d+\s+(?P<gflops>\d+\.\d+e\+\d+)$",
    "Ramble": r".*\s+(?P<N>[0-9]+)\s+(?P<NB>[0-9]+)\s+(?P<P>[0-9]+)\s+(?P<Q>[0-9]+)\s+(?P<time>[0-9]+\.[0-9]+)"
    r"\s+(?P<gflops>[0-9].*)\n",
}


@pytest.mark.parametrize("regex", PARSERS.values(), ids=PARSERS)
def test_each_known_parser_finds_every_rate(regex: str):
    rates = [float(m["gflops"]) for m in re.finditer(regex, report(config(), 4, {}, {}), re.MULTILINE)]
    expected = [result_of(case).result["rate_flops"] / 1e9 for case in config().cases(4)]
    assert rates == pytest.approx(expected, rel=1e-4)


def test_ramble_reads_order_block_and_grid():
    match = re.search(PARSERS["Ramble"], report(config(grid=((1, 4),)), 4, {}))
    assert match
    assert (match["N"], match["NB"], match["P"], match["Q"], match["time"]) == ("20000", "256", "1", "4", "32.50")


def test_sanity_strings_of_reframe_and_easybuild_are_there():
    text = report(config(), 4, {}, {})
    assert "tests with the following results:" in text
    assert "0 tests completed and failed residual checks" in text
    assert "0 tests skipped because of illegal input values." in text
    assert re.search(r"(\d+) tests completed and passed", text)[1] == "2"  # type: ignore[index]
    assert re.search(r"(\d+) tests completed and failed", text)[1] == "0"  # type: ignore[index]


def test_hplx_finds_the_line_after_the_exact_header_and_rule():
    lines = report(config(), 4, {}).splitlines()
    head = lines.index("T/V                N    NB     P     Q               Time                 Gflops")
    assert lines[head + 2].split() == ["WR11R2L16", "20000", "256", "2", "2", "32.50", "1.6412e+02"]
