"""Test the text of a scan: at most 80 columns, with names, reasons, and the hosts to exclude."""

from __future__ import annotations

from typing import Any

import pytest

from mxpeak.report.scan_text import MAX_SHOWN, scan_text, verdict
from mxpeak.verbs.scan.command import excluded
from tests.support.scans import HOT, scan_body

BODIES: dict[str, dict[str, Any]] = {
    "alike": scan_body(4),
    "alone": scan_body(1),
    "two": scan_body(2, slow={1: 0.5}),
    "slow and wrong": scan_body(8, slow={2: 0.61}, wrong={5: "bbb", 6: "aba"}),
    "many": scan_body(1000, slow={17: 0.8, 999: 0.7}, wrong={500: "bbb"}, a_host=8),
    "undecided": scan_body(4, wrong={0: "bbb", 1: "bbb"}),
    "half slow": scan_body(4, slow={1: 0.76, 3: 0.76}),
    "most slow": scan_body(5, slow=dict.fromkeys(range(3), 0.76)),
    "scattered": scan_body(4, slow={0: 0.99, 1: 0.95, 2: 0.9}),
    "slow and open": scan_body(4, slow={1: 0.5}, wrong={0: "bbb", 1: "bbb"}),
    "changing": scan_body(3, wrong={0: "aba", 1: "aab"}),
    "GPUs": scan_body(
        8, slow={3: 0.7}, device="cuda:3", uuid="GPU-8a3e-5f1b-11", readings=HOT, host="a-host-of-a-very-long-name.{}"
    ),
    "kinds": scan_body(5, kinds="ooonn"),
    "one of a kind": scan_body(5, kinds="oooon"),
}


@pytest.mark.parametrize("name", BODIES)
def test_no_line_is_wider_than_80_columns(name: str) -> None:
    assert max(map(len, scan_text(BODIES[name]).splitlines())) <= 80


def test_agreement_of_all_ranks_is_reported() -> None:
    text = scan_text(BODIES["alike"])
    assert "all 4 ranks agree: none is slow, and all of one kind compute identical results\n" in text
    assert "exclude" not in text
    assert "SLOW" not in text
    assert "nothing" not in verdict(BODIES["alike"])
    assert "no other rank to compare it with" in scan_text(BODIES["alone"])
    assert "all 5 ranks agree" in scan_text(BODIES["kinds"])
    assert "no other rank is of the same kind: 1 rank" in scan_text(BODIES["one of a kind"])


def test_the_advice_for_undecided_rates_names_a_larger_order_if_rounds_are_short() -> None:
    undecided = BODIES["scattered"]
    assert "use more ranks or --rounds" in " ".join(verdict(undecided).split())
    body = {**undecided, "warnings": [{"code": "short", "text": "", "hint": ""}]}
    assert "use a larger -N, more ranks or --rounds" in " ".join(verdict(body).split())


def test_rates_that_spread_by_more_than_a_third_have_no_negative_bound() -> None:
    text = scan_text(scan_body(4, slow={1: 0.5, 2: 0.25, 3: 2.0}))
    (row,) = (line.split() for line in text.splitlines() if line.startswith("LU  "))
    assert row[-3:] == ["%", "-", "GFLOP/s"]


def test_slow_and_wrong_ranks_are_named_with_reasons() -> None:
    text = " ".join(scan_text(BODIES["slow and wrong"]).split())
    assert "SLOW rank 2 (node002, cores 0-3): LU at 61 % of the median in 3 of 3 rounds; GEMM at 61 %" in text
    assert "WRONG rank 5 (node005, cores 0-3): its results of LU differ from those of the majority" in text
    assert "WRONG rank 6 (node006, cores 0-3): its results of LU change from round to round" in text
    assert "of 8 ranks, 1 is slow and 2 are wrong exclude node[002,005-006]" in text


def test_the_table_has_medians_the_largest_deviation_and_a_verdict_per_unit() -> None:
    def rows(name: str) -> list[list[str]]:
        lines = scan_text(BODIES[name]).splitlines()
        head = next(k for k, line in enumerate(lines) if line.startswith("  rank  computes on"))
        return [line.split() for line in lines[head : head + 3 + len(BODIES[name]["ranks"])] if line]

    heads, units, first, *others = rows("slow and wrong")
    assert heads == ["rank", "computes", "on", "LU", "GEMM", "read", "deviation", "verdict", "host"]
    assert units == ["GFLOP/s", "TFLOP/s", "GB/s"]
    assert first == ["0", "cores", "0-3", "250", "1.25", "11.0", "-0.1", "%", "ok", "node000"]
    assert others[1] == ["2", "cores", "0-3", "153", "0.764", "6.72", "-38.9", "%", "SLOW", "node002"]
    assert [row[8] for row in others] == ["ok", "SLOW", "ok", "ok", "WRONG", "WRONG", "ok"]
    assert {row[8] for row in rows("half slow")[2:]} == {"undecided"}
    assert rows("alone")[2][6:] == ["-", "ok", "node000"]


@pytest.mark.parametrize("unit", ["rank", "group"])
def test_of_many_measures_the_table_has_those_that_fit(unit: str) -> None:
    body = scan_body(4)
    for rank in body["ranks"]:
        rank["rates"] |= {f"LU of {g} nodes": [1e12] for g in (2, 4, 8, 16)}
    text = scan_text({**body, "unit": unit})
    assert max(map(len, text.splitlines())) <= 80
    assert ("2 nodes" in text) == (unit == "group")
    assert "16 nodes" not in text


def test_defects_without_readable_counters_are_listed() -> None:
    unknown = "not checked, no counters: throttling of 4 ranks, memory errors of 4 ranks\n"
    assert unknown in scan_text(BODIES["alike"])
    assert "not checked" not in verdict(BODIES["alike"])
    assert "not checked" not in scan_text(BODIES["GPUs"])
    body = scan_body(2)
    body["ranks"][1] |= {"throttle_events": 0, "ecc_uncorrected": 0}
    assert "not checked, no counters: throttling of 1 rank, memory errors of 1 rank\n" in scan_text(body)


def test_adapters_with_errors_or_unreadable_counters_have_lines() -> None:
    adapter = {"host": "node000", "port": "mlx5_0/1", "errors": {}, "unreadable": 0}
    links = {"links": [], "link_count": 0, "link_spreads": {}, "link_measures": ["bandwidth", "latency"]}
    body = {**BODIES["alike"], **links, "slow_links": [], "wrong_links": [], "adapters": [adapter]}
    assert "ADAPTER" not in scan_text(body)
    body["adapters"] = [{**adapter, "errors": {"symbol_error": 2}}, {**adapter, "port": "mlx5_1/1", "unreadable": 12}]
    assert "ADAPTER  node000 mlx5_0/1: symbol_error +2\n" in scan_text(body)
    assert "ADAPTER  node000 mlx5_1/1: no permission to read 12 counters\n" in scan_text(body)


def test_of_two_the_slow_one_is_compared_with_the_best() -> None:
    assert "rank 1 (node001, cores 0-3): LU at 50 % of the best in 3 of 3" in " ".join(scan_text(BODIES["two"]).split())


def test_of_many_ranks_only_those_that_stand_out_have_lines() -> None:
    text = scan_text(BODIES["many"])
    rows = [line for line in text.splitlines() if " cores 0-3 " in line]
    assert [int(row.split()[0]) for row in rows] == [17, 500, 999]
    assert len(text.splitlines()) < 30
    assert "ranks 0-999" in text
    assert "exclude  node[002,062,124]\n" in text
    assert len(BODIES["many"]["ranks"]) == 1000
    assert "cores 0-3" not in scan_text(scan_body(MAX_SHOWN + 1))


def test_of_many_that_stand_out_the_first_have_lines_and_all_their_hosts_are_listed() -> None:
    text = scan_text(scan_body(100, slow=dict.fromkeys(range(40), 0.5)))
    assert text.count("SLOW  rank") == MAX_SHOWN
    assert f"and {40 - MAX_SHOWN} more; use --json FILE for all of them" in text
    assert "exclude  node[000-039]\n" in text


def test_undecided_results_exclude_no_host() -> None:
    text = scan_text(BODIES["undecided"])
    assert "UNDECIDED  ranks 0-3" in text
    assert verdict(BODIES["undecided"]).startswith("undecided: which results are correct (LU); ")
    assert "exclude" not in text
    assert "change from round to round on most ranks" in " ".join(scan_text(BODIES["changing"]).split())


def test_a_spread_beyond_the_tolerance_is_undecided_with_the_reason() -> None:
    body = BODIES["half slow"]
    assert (body["status"], body["slow"], body["exclude"]["hosts"]) == ("undecided", [], [])
    assert [(one["measure"], one["reason"], one["ranks"]) for one in body["undecided"]] == [
        (name, "spread", (0, 1, 2, 3)) for name in ("lu", "gemm", "read")
    ]
    text = " ".join(scan_text(body).split())
    assert "alike" not in text
    assert "the ranks' rates of LU spread by 20.1 %, more than --tolerance 5%, so none is typical" in text
    assert "undecided: which ranks are slow (LU, GEMM, read); use more ranks or --rounds" in text
    text = " ".join(scan_text(BODIES["most slow"]).split())
    assert "UNDECIDED ranks 3-4: LU is 31.8 % above the median" in text
    assert "UNDECIDED rank 2: LU is 7.1 % below the median, more than --tolerance 5%" in " ".join(
        scan_text(BODIES["scattered"]).split()
    )


def test_decided_and_undecided_measures_are_both_reported() -> None:
    lines = verdict(BODIES["slow and open"]).splitlines()
    assert BODIES["slow and open"]["status"] == "different"
    assert lines[0] == "of 4 ranks, 1 is slow"
    assert lines[1].startswith("undecided: which results are correct")
    assert lines[-1] == "exclude  node001"


def test_a_slow_device_is_listed_with_its_sensors() -> None:
    text = " ".join(scan_text(BODIES["GPUs"]).split())
    assert "rank 3 (a-host-of-a-very-long-name.3, cuda:3, GPU-8a3e-5f1b-11): LU at 70 %" in text
    assert "clock down to 1200 of 1980 MHz; up to 91 °C; up to 480 W; limited by hardware thermal slowdown" in text
    assert "7 corrected memory errors, 3 of them during the scan" in text


def test_hosts_to_leave_out_as_files() -> None:
    assert excluded(BODIES["slow and wrong"], "slurm") == "node[002,005-006]\n"
    assert excluded(BODIES["slow and wrong"], "hostfile") == "node002\nnode005\nnode006\n"
    for form in ("slurm", "hostfile"):
        assert excluded(BODIES["alike"], form) == excluded(BODIES["undecided"], form) == ""


def test_the_medians_are_over_all_ranks() -> None:
    body = BODIES["slow and wrong"]
    assert set(body["median"]) == {"lu", "gemm", "read"}
    assert body["median"]["lu"] == pytest.approx(2.5e11, rel=0.01)
