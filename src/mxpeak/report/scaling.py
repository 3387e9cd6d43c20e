"""Show a scaling study as a table for the terminal, and as two plots for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2
from typing import Any

from mxpeak.records import PASSED, Result, bytes_rate_text, rate_text, size_text, three_digits
from mxpeak.report.columns import table
from mxpeak.report.command import OPTIONS, flag_value, values_of
from mxpeak.report.plots import MARKS, Axis, PlotCurve, curves, drawable, unit_of
from mxpeak.report.summaries import case_text

#: Settings that are the size of a problem, and the maximum number of curves over the size.
SIZES, MAX_CURVES = ("m", "n"), 8

Study = Mapping[str, Any]
Point = Mapping[str, Any]


def study_table(study: Study) -> str:
    """Return a table with a row per number of ranks, followed by the source of the expected rates."""
    head = ["ranks", "problem", "per rank", "time", "rate", "efficiency", "expected", ""]
    rows = table([head, *(_row(study, point) for point in study["points"])], left=False)
    what = "constant memory per rank" if study["kind"] == "weak" else "the same problem"
    threads = f"{study['threads']} thread{'s' * (study['threads'] > 1)} per rank"
    title = f"  {study['kind']} scaling: {what}, {threads}"
    crowded = any(point["oversubscribed"] for point in study["points"])
    note = "  * ranks share cores, which lowers the efficiency\n" if crowded else ""
    return f"{title}\n{rows}  expected: {study['expected']['text']}\n{note}{_validation_table(study)}"


def _validation_table(study: Study) -> str:
    """Return the iterations of both solvers of HPG-MxP by validation and ranks; empty for other benchmarks."""
    types = _validation_types(study)
    if not types:
        return ""
    head = ["ranks", *(word for name in types for word in (f"{name}: n_d", "n_ir", "n_d/n_ir", "residual"))]
    rows = [head]
    for point in study["points"]:
        by_type = {each["type"]: each for each in point.get("validations") or ()}
        cells = [cell for name in types for cell in _validation_cells(by_type.get(name))]
        rows.append([str(point["ranks"]), *cells])
    title = "validation: iterations of the double (n_d) and the mixed solver (n_ir), residual of the double solver"
    return f"  {title}\n{table(rows, left=False)}"


def _validation_types(study: Study) -> list[str]:
    """Return the types of the validations of a study, each once."""
    checks = (each for point in study["points"] for each in point.get("validations") or ())
    return list(dict.fromkeys(str(each["type"]) for each in checks))


def _validation_cells(check: Mapping[str, Any] | None) -> list[str]:
    if check is None:
        return [""] * 4
    failed = "" if check["passed"] else " FAILED"
    counts = [str(check[name]) for name in ("double_iterations", "mixed_iterations")]
    return [*counts, three_digits(check["ratio"]), three_digits(check["double_residual"]) + failed]


def _row(study: Study, point: Point) -> list[str]:
    held, time_s = point["bytes_per_rank"], point["time_s"]
    return [
        str(point["ranks"]) + "*" * bool(point["oversubscribed"]),
        problem_text(point["problem"]),
        "" if held is None else size_text(held),
        point["status"] if time_s is None else f"{three_digits(time_s)} s",
        _rate(study, point["rate"]),
        _percent(point["efficiency"]),
        _rate(study, point["expected_rate"]),
        _percent(point["expected_efficiency"]),
    ]


def problem_text(problem: Mapping[str, Any]) -> str:
    """Return the size and the process grid of a problem as text."""
    if "nx" in problem:
        return f"{_times(problem, 'n')} on {_times(problem, 'np')}"
    return f"N {problem['n']} on {problem['P']}x{problem['Q']}" if "P" in problem else ""


def _times(problem: Mapping[str, Any], kind: str) -> str:
    return "x".join(str(problem[f"{kind}{axis}"]) for axis in "xyz")


def _rate(study: Study, rate: float | None) -> str:
    if rate is None:
        return ""
    return bytes_rate_text(rate) if study["unit"] == "byte/s" else rate_text(rate)


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"


def study_figures(study: Study) -> str:
    """Return the HTML figures of the measured and the expected efficiency and rate over the number of ranks."""
    shown = [point for point in study["points"] if point["rate"]]
    if not shown:
        return ""
    ranks = Axis.through([(log2(point["ranks"]), str(point["ranks"])) for point in shown])
    efficiency = [
        _curve(study, shown, "expected_efficiency", 100.0, "expected", behind=True),
        _curve(study, shown, "efficiency", 100.0, "measured"),
    ]
    scale, unit = unit_of([point["rate"] for point in shown], study["unit"])
    rates = [
        _curve(study, shown, "expected_rate", scale, "expected", behind=True),
        _curve(study, shown, "rate", scale, "measured"),
    ]
    what = "at constant memory per rank" if study["kind"] == "weak" else "for one problem"
    return (
        curves(f"Efficiency {what}", "ranks", "efficiency in %", ranks, _from_zero(efficiency), efficiency)
        + curves(f"Rate {what}", "ranks", unit, ranks, _from_zero(rates), rates)
        + _ratio_figure(study, ranks)
    )


def _ratio_figure(study: Study, ranks: Axis) -> str:
    """Return the HTML figure of n_d / n_ir by validation over the number of ranks; empty without a validation."""
    series = []
    for k, name in enumerate(_validation_types(study)):
        cases = [
            (point["ranks"], each)
            for point in study["points"]
            for each in point.get("validations") or ()
            if each["type"] == name and each["ratio"] is not None and drawable([each["ratio"]])
        ]
        points = [(log2(count), each["ratio"]) for count, each in cases]
        tooltips = [
            f"{count} ranks, {name}: {each['double_iterations']} / {each['mixed_iterations']} = "
            f"{three_digits(each['ratio'])}"
            for count, each in cases
        ]
        series.append(PlotCurve(name, points, tooltips, colour=k, mark="circle"))
    if not any(curve.points for curve in series):
        return ""
    title = "Iterations of double over those of mixed precision"
    return curves(title, "ranks", "n_d / n_ir", ranks, _from_zero(series), series)


def _curve(
    study: Study, points: Sequence[Point], name: str, scale: float, label: str, *, behind: bool = False
) -> PlotCurve:
    measured = [point for point in points if point[name] is not None]
    kind = _percent if "efficiency" in name else lambda rate: _rate(study, rate)
    return PlotCurve(
        f"{label} ({study['expected']['source']})" if behind else label,
        [(log2(point["ranks"]), scale * point[name]) for point in measured],
        [f"{each['ranks']} ranks, {problem_text(each['problem'])}: {label} {kind(each[name])}" for each in measured],
        colour=1 if behind else 0,
        dashed=behind,
        mark="circle",
    )


def _from_zero(series: Sequence[PlotCurve]) -> Axis:
    return Axis.from_zero(max((y for curve in series for _, y in curve.points), default=1.0))


def ranks_figures(name: str, results: Sequence[Mapping[str, Any]]) -> str:
    """Return an HTML figure of the rate over the number of ranks for each processor and precision.

    A figure needs results with at least two numbers of ranks.
    """
    kinds: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for result in results:
        machine, problem = result.get("machine") or {}, result.get("problem") or {}
        precision, where = problem.get("precision"), (str(machine.get(k)) for k in ("cpu_model", "device_name"))
        word = precision if isinstance(precision, str) else ""
        kinds.setdefault((*where, str(precision), word), []).append(result)
    titles = (f"Rate of {name} by number of ranks{', ' * bool(kind[-1])}{kind[-1]}" for kind in kinds)
    return "".join(_ranks_figure(title, group) for title, group in zip(titles, kinds.values()))


def _ranks_figure(title: str, results: Sequence[Mapping[str, Any]]) -> str:
    """Return the HTML figure of the fastest valid rate per number of ranks, with linear scaling from the smallest."""
    unit, best = "flop/s", dict[int, tuple[float, str]]()
    for result in results:
        figures, ranks = result.get("result") or {}, (result.get("launch") or {}).get("ranks")
        unit = "byte/s" if "rate_bytes" in figures else unit
        rate = figures.get("rate_bytes") or figures.get("rate_flops")
        if ranks and rate and drawable([rate]) and result.get("status") in PASSED:
            best[ranks] = max(best.get(ranks, (0.0, "")), (rate, case_text(Result.from_dict(result))))
    if len(best) < 2:
        return ""
    counts = sorted(best)
    first = best[counts[0]][0] / counts[0]
    scale, shown = unit_of([rate for rate, _ in best.values()], unit)
    label = f"linear scaling from {counts[0]} rank{'s' * (counts[0] > 1)}"
    ideal = PlotCurve(label, [(log2(ranks), scale * first * ranks) for ranks in counts], colour=1, dashed=True)
    points = [(log2(ranks), scale * best[ranks][0]) for ranks in counts]
    tooltips = [_of_ranks(ranks, *best[ranks], first, unit) for ranks in counts]
    both = [ideal, PlotCurve("measured", points, tooltips, mark="circle")]
    x = Axis.through([(log2(ranks), str(ranks)) for ranks in counts])
    return curves(title, "ranks", shown, x, _from_zero(both), both)


def sizes_figure(name: str, results: Sequence[Mapping[str, Any]]) -> str:
    """Return the HTML figure of the rate over N with a curve per combination of the other settings.

    A curve needs valid results for at least two N. The fastest MAX_CURVES curves are drawn.
    """
    valid = [Result.from_dict(result) for result in results if result.get("status") in PASSED]
    rates = [result.result.get("rate_bytes") or result.result.get("rate_flops") for result in valid]
    rated = [(result, values_of(result), rate) for result, rate in zip(valid, rates) if rate and drawable([rate])]
    rated = [(result, case, rate) for result, case, rate in rated if isinstance(case.get("n"), int)]
    values = {option: {str(case.get(option)) for _, case, _ in rated} for option in OPTIONS}
    names = [option for option in OPTIONS if option not in SIZES and len(values[option]) > 1]
    best: dict[str, dict[int, tuple[float, str]]] = {}
    for result, case, rate in rated:
        label = " ".join(flag_value(case.get(option)) for option in names) or name
        of_label, point = best.setdefault(label, {}), (float(rate), case_text(result))
        of_label[case["n"]] = max(of_label.get(case["n"], point), point)
    drawn = sorted((label for label in best if len(best[label]) > 1), key=lambda label: -max(best[label].values())[0])
    if not drawn:
        return ""
    unit = "byte/s" if "rate_bytes" in rated[0][0].result else "flop/s"
    scale, shown = unit_of([rate for label in drawn for rate, _ in best[label].values()], unit)
    text = bytes_rate_text if unit == "byte/s" else rate_text
    series = [
        PlotCurve(
            label,
            [(float(n), scale * best[label][n][0]) for n in sorted(best[label])],
            [f"{best[label][n][1]}: {text(best[label][n][0])}" for n in sorted(best[label])],
            colour=k,
            mark=MARKS[k % len(MARKS)],
        )
        for k, label in enumerate(drawn[:MAX_CURVES])
    ]
    x = Axis.from_zero(max(n for curve in series for n, _ in curve.points), whole=True)
    return curves(f"Rate of {name} by N", "N", shown, x, _from_zero(series), series)


def _of_ranks(ranks: int, rate: float, case: str, first: float, unit: str) -> str:
    """Return the tooltip of a point: ranks, case, rate and share of linear scaling from the rate per rank `first`."""
    shown_rate = bytes_rate_text(rate) if unit == "byte/s" else rate_text(rate)
    return f"{ranks} ranks, {case}: {shown_rate}, {100 * rate / ranks / first:.1f} % of linear scaling"
