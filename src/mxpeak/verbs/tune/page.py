"""Draw the measurements of `mxpeak tune` as a self-contained HTML page (Lu et al., OLCF HPL-AI, Figs. 3-7).

map         GEMM rates over (m, n, k)                                        Fig. 3
trailing    rates of GEMM and TRSM over the trailing size, of GETRF over NB  Figs. 5 and 6
ld          GEMM rates over m = n, by leading dimension                      Fig. 7
trials      rates of the whole benchmark over NB and over N_L                Fig. 4 and V-D
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import median
from typing import Any

from mxpeak.report import style
from mxpeak.report.plots import Series, heat_map, loglog
from mxpeak.verbs.tune.report import NAMES, by_layout, kernel_rate, tables

Record = Mapping[str, Any]
GFLOPS = "GFLOP/s per rank"


def page(body: Mapping[str, Any]) -> str:
    """Return the figures and the tables of a result of `mxpeak tune` as one HTML file."""
    shown = ["<h1>Measurements of mxpeak tune</h1>"]
    for (ranks, threads), records in by_layout(body["curves"]).items():
        title = f"{ranks} rank{'s' * (ranks > 1)} of {threads} thread{'s' * (threads > 1)}"
        shown.append(_section(title, [*_maps(records), *_trailing(records), *_leading_dimensions(records)]))
    for name in body["config"]["benchmarks"]:
        trials = [r for r in body["trials"] if r["benchmark"] == name and r["phase"] != "warm-up" and r["passed"]]
        shown.append(_section(f"Trials of {name}", _over_settings(name, trials)))
    shown.append(f"<h2>Tables</h2><pre>{html.escape(tables(body))}</pre>")
    return style.page("mxpeak tune", "\n".join(filter(None, shown)))


def _section(title: str, figures: Sequence[str]) -> str:
    drawn = "".join(figures)
    return f'<h2>{html.escape(title)}</h2><div class="figures">{drawn}</div>' if drawn else ""


def _formats(records: Sequence[Record], name: str) -> dict[str, list[Record]]:
    """Return the records of a kernel by format."""
    by_format: dict[str, list[Record]] = {}
    for record in records:
        if record["name"] == name:
            by_format.setdefault(str(record.get("precision")), []).append(record)
    return by_format


def _maps(records: Sequence[Record]) -> list[str]:
    """Return the map of GEMM rates over the shape of C and over k, per format."""
    figures = []
    for name, products in _formats(records, "gemm").items():
        rates = {(r["m"], r["n"], r["k"]): kernel_rate(r) / 1e9 for r in products}
        inner = sorted({k for _, _, k in rates})
        shapes = sorted({(m, n) for m, n, _ in rates}, key=lambda shape: (shape[0] * shape[1], shape))
        cells = [[rates.get((m, n, k)) for k in inner] for m, n in shapes]
        rows, columns = [f"{m}x{n}" for m, n in shapes], [str(k) for k in inner]
        caption = f"Rates of C -= A B in {GFLOPS}; C is m x n, and k is the inner dimension (NB in an LU)."
        figures.append(heat_map(f"GEMM in {name} over (m, n, k)", "k", "m x n", columns, rows, cells, caption))
    return figures


def _trailing(records: Sequence[Record]) -> list[str]:
    """Return the rates of GEMM and TRSM over the size of the trailing matrix by NB, and those of GETRF over NB."""
    figures = []
    for kernel, title in (("gemm", "GEMM"), ("trsm", "TRSM")):
        for name, measured in _formats(records, kernel).items():
            square = [r for r in measured if r.get("n", r["m"]) == r["m"]]
            lines = _lines(square, "m", "k", "NB = {}")
            series = [line for line in lines if len(line.points) > 1]  # the others were measured for one size only
            caption = f"Rate of {title} over the size of the trailing matrix, by block size."
            if series:
                figures.append(loglog(f"{title} in {name}", "trailing size", GFLOPS, series, caption=caption))
    blocks = [(name, r) for name in ("factor", "fact") for r in records if r["name"] == name]
    labels = {label: f"{NAMES[name]}, {r['precision']}" for name, r in blocks for label in [name]}
    series = [
        Series(
            text, sorted((r["k"], kernel_rate(r) / 1e9) for own, r in blocks if own == name), joined=name == "factor"
        )
        for name, text in labels.items()
    ]
    caption = "Rate of the factorization of a diagonal block (HPL-MxP), and of panels of several heights (HPL)."
    return [*figures, loglog("GETRF", "NB", GFLOPS, series, caption=caption)]


def _leading_dimensions(records: Sequence[Record]) -> list[str]:
    """Return the rates of GEMM over the size of C by leading dimension, per format."""
    figures = []
    for name, products in _formats(records, "ld").items():
        caption = f"Rate of C -= A B over m = n, k = {products[0]['k']}; LD is the leading dimension of C."
        series = _lines(products, "m", "ld", "LD = {}")
        figures.append(loglog(f"leading dimension, GEMM in {name}", "m = n", GFLOPS, series, caption=caption))
    return figures


def _lines(records: Sequence[Record], x: str, label: str, text: str) -> list[Series]:
    """Return a line of rates over `x` for each value of `label`; repeated measurements give their largest rate."""
    lines: dict[int, dict[int, float]] = {}
    for r in records:
        points = lines.setdefault(r[label], {})
        points[r[x]] = max(points.get(r[x], 0.0), kernel_rate(r) / 1e9)
    return [Series(text.format(key), sorted(points.items()), joined=True) for key, points in sorted(lines.items())]


def _over_settings(name: str, trials: Sequence[Record]) -> list[str]:
    """Return the rates of a benchmark over NB, and over N_L if trials had several orders."""
    figures = []
    several = len({_order(r) for r in trials if "n" in r["size"]}) > 1
    blocks = [
        (f"{_layout(r)}, N = {_order(r)}" if several else _layout(r), int(r["settings"]["nb"]), r)
        for r in trials
        if "nb" in r["settings"]
    ]
    by_block = _medians(blocks)
    if len({x for points in by_block.values() for x in points}) > 1:
        lines = "N, ranks and threads" if several else "ranks and threads"
        caption = f"Median rates of the trials that set NB, by {lines}; each trial is a complete run."
        series = [Series(label, sorted(points.items())) for label, points in by_block.items()]
        figures.append(loglog(f"{name} by block size", "NB", "GFLOP/s", series, caption=caption))
    orders = [(_layout(r), round(_order(r) / sqrt(r["ranks"])), r) for r in trials if "n" in r["size"]]
    by_order = _medians(orders)
    if len({x for points in by_order.values() for x in points}) > 1:
        caption = "Median rates of the trials by N_L = N / sqrt(P Q), the order of the matrix per rank."
        series = [Series(layout, sorted(points.items())) for layout, points in by_order.items()]
        figures.append(loglog(f"{name} by local size", "N_L", "GFLOP/s", series, caption=caption))
    return figures


def _order(trial: Record) -> int:
    """Return the order N of a trial, which its settings contain if N is searched."""
    return int(trial["settings"].get("n", trial["size"]["n"]))


def _layout(trial: Record) -> str:
    """Return the ranks and threads of a trial, such as 2x1."""
    return f"{trial['ranks']}x{trial['threads']}"


def _medians(points: Sequence[tuple[str, int, Record]]) -> dict[str, dict[int, float]]:
    """Return the median rate in GFLOP/s by the first two elements of each triple, a label and a number."""
    rates: dict[str, dict[int, list[float]]] = {}
    for label, x, r in points:
        rates.setdefault(label, {}).setdefault(x, []).append(r["rate_flops"] / 1e9)
    return {label: {x: median(each) for x, each in by_x.items()} for label, by_x in rates.items()}
