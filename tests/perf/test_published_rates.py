"""Test the published rates of device models: known names, unknown names, and their display."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from mxpeak.perf.published import TITLES, _models, published_rates
from mxpeak.report.html import html_report
from mxpeak.verbs.peak import text_of

RECORDED = json.loads((Path(__file__).parents[1] / "golden" / "recorded.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("model", "peak"),
    [
        ("Tesla V100-SXM2-16GB", 7.8e12),
        ("NVIDIA A100-SXM4-40GB", 19.5e12),
        ("NVIDIA A100-SXM4-80GB", 19.5e12),
        ("NVIDIA H100 80GB HBM3", 67e12),
        ("NVIDIA H200", 67e12),
        ("NVIDIA GH200 480GB", 67e12),
        ("NVIDIA B200", 37e12),
        ("AMD Instinct MI250X", 47.9e12),
        ("AMD Instinct MI300A", 122.6e12),
        ("AMD Instinct MI300X", 163.4e12),
    ],
)
def test_names_of_drivers_are_found(model: str, peak: float) -> None:
    rates = {rate.name: rate for rate in published_rates(model)}
    assert rates["FP64 peak"].rate == peak
    assert all(rate.source for rate in rates.values())


@pytest.mark.parametrize(
    "model", ["", "None", "Intel(R) Xeon(R) Processor @ 2.50GHz", "NVIDIA GB200", "NVIDIA H100 PCIe", "NVIDIA H200 NVL"]
)
def test_nothing_is_shown_of_other_models(model: str) -> None:
    assert published_rates(model) == ()


def test_every_entry_has_only_known_rates_below_its_peak() -> None:
    for name, entry in _models().items():
        assert set(entry) <= {"names", *TITLES}, name
        assert {"peak_fp64", "peak_fp16", "peak_read"} <= set(entry)
        for rate in ("dgemm", "hpl"):
            assert entry.get(rate, {"value": 0})["value"] <= entry["peak_fp64"]["value"], name
        assert entry.get("hpl_mxp", {"value": 0})["value"] <= entry["peak_fp16"]["value"], name


def test_each_bracketed_source_is_defined() -> None:
    text = (Path(__file__).parents[2] / "src/mxpeak/perf/published.toml").read_text(encoding="utf-8")
    head, _, body = text.partition("[v100")
    for line in body.splitlines():
        if 'source = "[' in line:
            name = line.split('source = "[')[1].split("]")[0]
            assert f"[{name}]" in head


def test_peak_and_the_page_show_them() -> None:
    rates = [rate.as_dict() for rate in published_rates("NVIDIA H200")]
    body = {
        "rates": [{"name": "DGEMM", "rate_flops": 6e13, "burst": 6e13}],
        "balance": {"flops_per_byte": 14.0},
        "published": {"model": "NVIDIA H200", "rates": rates},
    }
    assert "published rates of one NVIDIA H200:\nFP64 peak      67.0 TFLOP/s  NVIDIA H200 data sheet" in text_of(body)
    assert "published" not in text_of({**body, "published": None})
    document = copy.deepcopy(RECORDED)
    assert "Published rates" not in html_report(document)
    for result in document["results"]:
        result["machine"]["device_name"] = "NVIDIA H200"
    page = html_report(document)
    assert page.count("Published rates of one NVIDIA H200") == 1
    assert "4.80 TB/s" in page
