"""Format the study of HPG-MxP's optimizations as a table, and as figures of rates, speed-ups and times per motif."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2
from typing import Any

from mxpeak.perf.sparse_counts import HPG_MXP_MOTIFS
from mxpeak.records import rate_text, three_digits
from mxpeak.report.plots import Axis, PlotCurve, curves, stacked, unit_of

Case = Mapping[str, Any]
#: The motifs with columns of their own; the others take little time (paper, fig. 7).
SHOWN = ("gs", "ortho", "spmv", "restriction")


def sweep_table(part: Mapping[str, Any]) -> tuple[list[Sequence[str]], str]:
    """Return the rows of the table, and the text above it."""
    rows: list[Sequence[str]] = [("ranks", "step", "rate", "/reference", "mixed/double", "penalty", *SHOWN, "other")]
    for case in part["cases"]:
        over, speedup, penalty = (_times(case[name]) for name in ("over_reference", "speedup", "penalty"))
        rate = rate_text(case["rate_flops"]) if case["rate_flops"] is not None else f"no rate: {case['status']}"
        rows.append((str(case["ranks"]), case["step"], rate, over, speedup, penalty, *_shares(case)))
    errors = [(case["step"], case["ranks"], case["error"]) for case in part["cases"] if "error" in case]
    return rows, (
        "HPG-MxP from the reference algorithm to the full code; every step adds an optimization\n"
        "  rate: penalized, by the flop count of the reference code\n"
        "  mixed/double: penalized rate of the mixed solver over that of the double solver\n"
        "  gs to other: shares of the time of the mixed solver"
        + "".join(f"\n  {step}, {ranks} rank{'s' * (ranks > 1)}: {error}" for step, ranks, error in errors)
    )


def _times(value: float | None) -> str:
    return "" if value is None else three_digits(value)


def _shares(case: Case) -> list[str]:
    """Return the shares of the mixed solver's time as text, by motif, and the share of all other work."""
    seconds = case["seconds_per_solve"]["mixed"]
    if seconds is None:
        return [""] * (len(SHOWN) + 1)
    shares = [seconds[name] / seconds["total"] for name in SHOWN]
    return [f"{100 * share:.0f} %" for share in (*shares, 1.0 - sum(shares))]


def sweep_figures(part: Mapping[str, Any]) -> str:
    """Return the HTML figures: rate per rank by ranks, speed-up by motif, and time per motif."""
    cases = [case for case in part["cases"] if case["rate_flops"] is not None]
    if not cases:
        return ""
    largest = max(case["ranks"] for case in cases)
    last = [case for case in cases if case["ranks"] == largest]
    return _rate_figure(cases) + _speedup_figure([last[0], last[-1]]) + _time_figure(last)


def _rate_figure(cases: Sequence[Case]) -> str:
    """Return the figure of the rate per rank of each step over the number of ranks (paper, fig. 4)."""
    scale, unit = unit_of([case["rate_flops"] / case["ranks"] for case in cases], "flop/s")
    counts = sorted({case["ranks"] for case in cases})
    series = []
    for k, step in enumerate(dict.fromkeys(case["step"] for case in cases)):
        of_step = [case for case in cases if case["step"] == step]
        points = [(log2(case["ranks"]), scale * case["rate_flops"] / case["ranks"]) for case in of_step]
        tooltips = [f"{case['ranks']} ranks, {step}: {rate_text(case['rate_flops'])}" for case in of_step]
        series.append(PlotCurve(step, points, tooltips, colour=k % 8, mark="circle"))
    y = Axis.from_zero(max(value for curve in series for _, value in curve.points))
    x = Axis.through([(log2(ranks), str(ranks)) for ranks in counts])
    return curves("Rate per rank by optimization", "ranks", f"{unit} per rank", x, y, series)


def _speedup_figure(both: Sequence[Case]) -> str:
    """Return the figure of the speed-up of each motif, for the reference algorithm and the full code (fig. 5)."""
    motifs = (*SHOWN, "total")
    x = Axis.through([(float(k), name) for k, name in enumerate(motifs)])
    series = []
    for k, case in enumerate(both):
        speedups = [case["speedup_by_motif"][name] or 0.0 for name in motifs]
        tooltips = [f"{case['step']}, {name}: {three_digits(value)}" for name, value in zip(motifs, speedups)]
        points = list(enumerate(map(float, speedups)))
        series.append(PlotCurve(case["step"], points, tooltips, colour=k, mark="circle", joined=False))
    y = Axis.from_zero(max(value for curve in series for _, value in curve.points))
    title = f"Penalized speed-up of mixed over double precision, {both[0]['ranks']} ranks"
    return curves(title, "motif", "double time / mixed time", x, y, series)


def _time_figure(cases: Sequence[Case]) -> str:
    """Return the figure of the seconds per mixed solve by motif and step (paper, fig. 7)."""
    seconds = [case["seconds_per_solve"]["mixed"] for case in cases]
    layers = [(name, [each[name] for each in seconds]) for name in HPG_MXP_MOTIFS]
    layers.append(("other", [max(0.0, each["total"] - sum(each[name] for name in HPG_MXP_MOTIFS)) for each in seconds]))
    x = Axis.through([(k + 0.5, str(k + 1)) for k in range(len(cases))])
    x = Axis(0.0, float(len(cases)), x.ticks)
    caption = "; ".join(f"{k}: {case['step']}" for k, case in enumerate(cases, start=1))
    title = f"Time per mixed solve, {cases[0]['ranks']} ranks"
    return stacked(title, "step", "s", x, list(map(float, range(len(cases) + 1))), layers, caption=caption)
