"""Draw the charts of the results pages from benchmarks/results/:  python tools/charts.py

Bars and lines are SVG; colors follow the reader's light or dark mode.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
IMAGES = ROOT / "docs" / "images" / "results"
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #24292f; }
  .small { font-size: 11px; } .title { font-weight: 600; }
  .axis { stroke: #8c959f; stroke-width: 1; } .grid { stroke: #d0d7de; stroke-width: 1; }
  .one { stroke: #57606a; stroke-width: 1.5; stroke-dasharray: 4 3; } .range { stroke: #24292f; stroke-width: 1.5; }
  .s0 { fill: #2f6f9f; } .s1 { fill: #c0652b; } .l0 { stroke: #2f6f9f; } .l1 { stroke: #c0652b; }
  .l2 { stroke: #4f8a4f; } .l3 { stroke: #7d5ba6; } .l0, .l1, .l2, .l3 { fill: none; stroke-width: 2; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .grid { stroke: #3d444d; } .axis, .one { stroke: #9da7b3; } .range { stroke: #e6edf3; }
  }
"""


@dataclass(frozen=True)
class Bar:
    """One bar: its label, its value, the range of single runs, and the text at its end."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    text: str = ""


def read(name: str) -> Any:
    """Return a result file by its name."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def save(name: str, width: int, height: int, description: str, elements: Sequence[str]) -> None:
    """Write a chart."""
    body = "\n".join(elements)
    (IMAGES / f"{name}.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(description)}">\n<style>{STYLE}</style>\n{body}\n</svg>\n',
        encoding="utf-8",
    )


def text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """Return a line of text."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """Return a line."""
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def bars(
    name: str, title: str, rows: Sequence[Bar], ticks: Sequence[float], unit: str, mark: float | None = None
) -> None:
    """Draw horizontal bars from 0, with the range of single runs, and a dashed line at `mark`."""
    left, right, top, step = 250, 640, 46, 30
    height = top + step * len(rows) + 34
    scale = (right - left) / ticks[-1]
    out = [text(10, 22, title, "title")]
    for tick in ticks:
        x = left + scale * tick
        out += [line(x, top - 6, x, height - 28, "grid"), text(x, height - 10, f"{tick:g}{unit}", "small", "middle")]
    for index, row in enumerate(rows):
        y = top + step * index
        end = left + scale * min(row.value, ticks[-1])
        out += [
            text(left - 10, y + 15, row.label, "", "end"),
            f'<rect class="s0" x="{left}" y="{y}" width="{end - left:.1f}" height="20" rx="2"/>',
        ]
        if row.low is not None and row.high is not None:
            out.append(line(left + scale * row.low, y + 10, left + scale * row.high, y + 10, "range"))
            end = max(end, left + scale * row.high)
        out.append(text(end + 8, y + 15, row.text or f"{row.value:.2f}{unit}", "small"))
    if mark is not None:
        out.append(line(left + scale * mark, top - 6, left + scale * mark, height - 28, "one"))
    save(name, 720, height, title, out)


def curves(
    name: str, title: str, series: dict[str, list[tuple[float, float]]], top_value: float, marks: Sequence[int]
) -> None:
    """Draw lines over a logarithmic axis, with a dashed line at 1."""
    left, right, top, bottom = 60, 560, 40, 300
    low, high = math.log(marks[0]), math.log(marks[-1])

    def place(x: float, y: float) -> tuple[float, float]:
        return left + (right - left) * (math.log(x) - low) / (high - low), bottom - (bottom - top) * y / top_value

    out = [text(10, 22, title, "title")]
    for value in range(int(top_value) + 1):
        y = place(marks[0], value)[1]
        out += [line(left, y, right, y, "grid"), text(left - 8, y + 4, f"{value}", "small", "end")]
    for mark in marks:
        x = place(mark, 0)[0]
        out += [line(x, bottom, x, bottom + 5, "axis"), text(x, bottom + 20, f"{mark:,}", "small", "middle")]
    out.append(line(left, place(1, 1)[1], right, place(1, 1)[1], "one"))
    out.append(text((left + right) / 2, bottom + 38, "order n of the system", "small", "middle"))
    for index, (label, points) in enumerate(series.items()):
        path = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in points)
        out.append(f'<polyline class="l{index}" points="{path}"/>')
        y = 60 + 34 * index
        out += [line(right + 12, y - 4, right + 34, y - 4, f"l{index}")]
        out += [text(right + 40, y + 15 * part, words, "small") for part, words in enumerate(label.split("|"))]
    save(name, 720, 350, title, out)


# --- the charts -------------------------------------------------------------------------------------------------


def ratio(label: str, own: Sequence[float], theirs: Sequence[float]) -> Bar:
    """Return the ratio of medians, with the ratios of the paired runs as its range."""
    pairs = [a / b for a, b in zip(own, theirs, strict=True)]
    return Bar(label, median(own) / median(theirs), min(pairs), max(pairs))


def hpl(name: str, label: str) -> Bar:
    """Return mxpeak over Netlib HPL, each with its best block size."""
    body = read(name)
    best = {code: body["summary"][code]["nb"] for code in ("netlib", "mxpeak")}
    mine = [run["mxpeak_flops"] for run in body["runs"] if run["nb"] == best["mxpeak"]]
    theirs = [run["netlib_flops"] for run in body["runs"] if run["nb"] == best["netlib"]]
    return ratio(label, mine, theirs)


def sparse(name: str, label: str) -> Bar:
    """Return mxpeak's official figure over the reference code's."""
    (row,) = read(name)["rows"]
    return ratio(label, *([run["rate_flops"] for run in row[code]] for code in ("mxpeak", "reference")))


def peers() -> None:
    """Compare benchmarks with their reference codes."""
    norms = {row["type"]: row for row in read("norms-vs-scalapack-2x1")["sections"]["rates"]}["d"]
    rows = [
        hpl("hpl-n10000-1x2-avx512", "HPL, N = 10,000, 2 ranks"),
        hpl("hpl-n10000-1x1t2-avx2", "HPL, N = 10,000, 2 threads"),
        sparse("hpcg-peers-xeon-amx-64-2x1", "HPCG, 64³, 2 ranks"),
        sparse("hpcg-peers-xeon-amx-104-2x1", "HPCG, 104³, 2 ranks"),
        sparse("hpg-mxp-peers-xeon-amx-32", "HPG-MxP, 32³, 2 ranks"),
        sparse("hpg-mxp-peers-xeon-amx-64", "HPG-MxP, 64³, 2 ranks"),
        *(
            Bar(f"norm {kind}, fp64, 2 ranks", norms["mxpeak_bytes_s"][kind] / norms["scalapack_bytes_s"][kind])
            for kind in ("max", "one", "fro")
        ),
    ]
    bars("peers", "Rate of mxpeak divided by the rate of the reference code", rows, (0, 1, 2, 3, 4, 5), "×", 1)


def mixed() -> None:
    """Compare HPL-MxP with HPL."""
    files = {
        "fp32, AMD EPYC (Zen 4)": "hpl-mxp-n10000-1x1t2-zen4",
        "fp32, AMD EPYC (AVX2)": "hpl-mxp-n20000-1x1t2-avx2",
        "fp32, Intel Xeon (AVX-512)": "hpl-mxp-n10000-1x1t2-avx512-again",
        "bf16, AMD EPYC (Zen 4)": "hpl-mxp-bf16-n20000-1x1t2-zen4-registers",
        "bf16, Intel Xeon (AMX)": "hpl-mxp-bf16-n20000-1x1t2-amx-again",
    }
    rows = [Bar(label, read(name)["summary"]["ratio_of_medians"]) for label, name in files.items()]
    bars("hpl-mxp", "Rate of HPL-MxP divided by the rate of HPL", rows, (0, 1, 2, 3, 4, 5), "×", 1)


def solve() -> None:
    """Compare `solve` with NumPy over the order."""
    series = {}
    for name, machine in (("solve-zen4-fp64", "AMD EPYC (Zen 4)"), ("solve-xeon-fp64", "Intel Xeon")):
        for sides, words in ((1, "1 right-hand side"), (500, "500 right-hand sides")):
            series[f"{machine}|{words}"] = [
                (run["n"], run["median_s"]["numpy"] / run["median_s"]["mxpeak"])
                for run in read(name)["runs"]
                if run["sides"] == sides
            ]
    curves("solve", "Time of numpy.linalg.solve divided by the time of mxpeak.solve", series, 4, (50, 200, 1000, 8000))


def gmres() -> None:
    """Compare `gmres` with the best of its peers, matrix by matrix."""
    rows = [
        Bar(
            f"{row['kind']}, n = {row['n']:,}",
            row["ratio_of_medians"] or 0.0,
            text="" if row["best_peer"] else "no peer in 10 s",
        )
        for row in read("gmres-peers-xeon-amx")["rows"]
    ]
    bars("gmres", "Time of the fastest peer divided by the time of mxpeak.gmres", rows, (0, 0.5, 1, 1.5, 2), "×", 1)


def gpus() -> None:
    """Show the share of the measured limit on an H100 and an H200."""
    files = {
        "HPL, H100": "gpu-h100-hpl",
        "HPL, H200": "gpu-h200-hpl",
        "HPL-MxP, fp16, H100": "gpu-h100-hpl-mxp",
        "HPL-MxP, fp16, H200": "gpu-h200-hpl-mxp",
        "HPCG, H200": "gpu-h200-hpcg",
        "HPG-MxP, H200": "gpu-h200-hpg-mxp",
    }
    rows = []
    for label, name in files.items():
        body = read(name)
        body = body["results"][0] if body.get("results") else body
        rate, share = body["result"]["rate_flops"], body["result"]["fraction_of_limit"]
        words = f"{rate / 1e12:.1f} TFLOP/s" if rate > 1e12 else f"{rate / 1e9:.0f} GFLOP/s"
        rows.append(Bar(label, 100 * share, text=f"{100 * share:.0f} %, {words}"))
    norms = [
        body["result"]["fraction_of_limit"]
        for body in read("gpu-h200-norms")["results"]
        if body["problem"]["dtype"] == "float64"
    ]
    rows.append(
        Bar(
            "norms, fp64, H200", 100 * median(norms), 100 * min(norms), 100 * max(norms), f"{100 * median(norms):.0f} %"
        )
    )
    bars("gpus", "Share of the limit that was measured in the same process", rows, (0, 25, 50, 75, 100), " %")


if __name__ == "__main__":
    IMAGES.mkdir(parents=True, exist_ok=True)
    for draw in (peers, mixed, solve, gmres, gpus):
        draw()
