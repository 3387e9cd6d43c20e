"""Format the results of `mxpeak study` as tables for the terminal, and as a self-contained HTML page with figures."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from mxpeak.records import three_digits
from mxpeak.report import style
from mxpeak.report.columns import table
from mxpeak.report.plots import Series, loglog
from mxpeak.verbs.study import on_ranks
from mxpeak.verbs.study.hpg_mxp_report import sweep_figures, sweep_table

Row = Sequence[str]


def tables(body: Mapping[str, Any]) -> str:
    """Return the tables and summaries of the studies in `body` as text."""
    parts = []
    for name, rows_of in TABLES.items():
        if name in body:
            rows, words = rows_of(body[name])
            parts.append(f"{name}: {words}\n{table(rows, left=False)}")
    if "aborted" in body:
        parts.append(f"The study is incomplete: {body['aborted']}\n")
    return "\n".join(parts)


def _by_order(cases: Sequence[Mapping[str, Any]]) -> dict[int, list[Mapping[str, Any]]]:
    groups: dict[int, list[Mapping[str, Any]]] = {}
    for case in cases:
        groups.setdefault(case["n"], []).append(case)
    return groups


def _middle(cases: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """Return the median of `key` over the cases in which it is not None."""
    values = [case[key] for case in cases if case[key] is not None]
    return float(median(values)) if values else None


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _pivot_table(part: Mapping[str, Any]) -> tuple[list[Row], str]:
    rows: list[Row] = [("N", "largest pivot", "sqrt(N)", "5/8 sqrt(N)", "N^0.45", "/sqrt(N)", "at", "late/sqrt(N)")]
    for n, cases in _by_order(part["cases"]).items():
        numbers = (_middle(cases, "largest"), n**0.5, 0.625 * n**0.5, n**0.45, _middle(cases, "over_sqrt_n"))
        at = _percent(_middle(cases, "position") or 0.0)
        rows.append((str(n), *map(three_digits, numbers), at, three_digits(_middle(cases, "late_over_sqrt_n"))))
    summary = part["summary"]
    return rows, (
        "the largest pivot that partial pivoting selects in random matrices; medians over the seeds\n"
        "  at: its position among the columns; late: the median pivot in the last tenth of them\n"
        f"  {_percent(summary['last_tenth'])} of {len(part['cases'])} matrices have it in the last tenth of the "
        f"columns, {_percent(summary['last_percent'])} in the last hundredth; it is above sqrt(N) in "
        f"{_percent(summary['above_sqrt_n'])}"
    )


def _norm_table(part: Mapping[str, Any]) -> tuple[list[Row], str]:
    names = ("norm_1", "norm_2", "norm_inf")
    rows: list[Row] = [("N", "1-norm", "2-norm", "inf-norm", "without: 1-norm", "2-norm", "inf-norm", "passed")]
    for n, cases in _by_order(part["cases"]).items():
        with_, without = ([case for case in cases if case["pivoting"] is wanted] for wanted in (True, False))
        cells = [
            f"{value:.1e}" if (value := _middle(chosen, name)) is not None else "none"
            for chosen in (with_, without)
            for name in names
        ]
        rows.append((str(n), *cells, f"{sum(case['passed'] for case in without)} of {len(without)}"))
    lost = part["summary"]["norm_inf"]["decades_lost"]
    words = (
        "norms of b - Ax with and without partial pivoting; medians over the seeds\n"
        "  passed: matrices that pass HPL's check without pivoting"
    )
    if lost is not None:
        least, middle, largest = (f"{lost[key]:.1f}" for key in ("least", "median", "most"))
        words += f"\n  without pivoting, the inf-norm is 10^{middle} times as large (10^{least} to 10^{largest})"
    return rows, words


def _gmres_table(part: Mapping[str, Any]) -> tuple[list[Row], str]:
    groups = _by_order(part["cases"])
    rows: list[Row] = [("c", *(f"N={n}" for n in groups), "factor 1/(c sqrt(3))", "predicted steps")]
    largest = list(groups.values())[-1]
    for c in sorted({case["diagonal_scale"] for case in part["cases"]}):
        steps = [_middle([case for case in cases if case["diagonal_scale"] == c], "steps") for cases in groups.values()]
        last = [case for case in largest if case["diagonal_scale"] == c]
        predicted = _middle(last, "predicted_steps")
        counts = [f"{s:g}" if s is not None else "> N" for s in steps]
        expected = "none" if predicted is None else f"{predicted:.0f}"
        rows.append((f"{c:g}", *counts, three_digits(last[0]["predicted_factor"]), expected))
    return rows, (
        "steps of GMRES without a preconditioner until HPL's check passes; the diagonal is c*sqrt(N)\n"
        "  predicted: by the circular law, at the largest N, counted as in the HPL-MxP rules"
    )


def _generator_table(part: Mapping[str, Any]) -> tuple[list[Row], str]:
    groups = _by_order(part["cases"])
    rows: list[Row] = [("generator", *(f"N={n}" for n in groups), "predicted steps")]
    for name in dict.fromkeys(case["generator"] for case in part["cases"]):
        own = {n: [case for case in cases if case["generator"] == name] for n, cases in groups.items()}
        steps = [_middle(chosen, "steps") for chosen in own.values()]
        predicted = _middle(list(own.values())[-1], "predicted_steps")
        counts = [f"{s:g}" if s is not None else "> N" for s in steps]
        rows.append((name, *counts, "none" if predicted is None else f"{predicted:.0f}"))
    return rows, (
        "steps of GMRES without a preconditioner until HPL's check passes; medians over the seeds\n"
        "  predicted: by the circular law, at the largest N"
    )


def _pivoting_table(part: Mapping[str, Any]) -> tuple[list[Row], str]:
    cases = part["cases"]
    kinds = list(dict.fromkeys(case["pivoting"] for case in cases))
    rows: list[Row] = [("generator", "N", *(f"growth, {k}" for k in kinds), *(f"steps, {k}" for k in kinds), "cond")]
    for name in dict.fromkeys(case["generator"] for case in cases):
        for n, group in _by_order([case for case in cases if case["generator"] == name]).items():
            by_kind = [[case for case in group if case["pivoting"] == kind] for kind in kinds]
            growth = [_middle(chosen, "growth") for chosen in by_kind]
            cells = [
                "overflow" if value is None and chosen else "" if value is None else three_digits(value)
                for value, chosen in zip(growth, by_kind)
            ]
            condition = _middle(by_kind[-1], "condition")
            counts = [_solved_steps(chosen) for chosen in by_kind]
            rows.append((name, str(n), *cells, *counts, "none" if condition is None else f"{condition:.1e}"))
    low, NB = cases[0]["precision"], on_ranks.NB
    one_block = any(case["n"] <= NB for case in cases)
    return rows, (
        f"growth of the LU of HPL-MxP in {low}, NB {NB}, and steps of GMRES with its factors; "
        "medians over the seeds\n"
        "  growth: max |u_ij| over the largest entry of the factored matrix; overflow: not finite\n"
        "  failed: the check of x fails after 50 steps, or the factors are not finite\n"
        "  *: the check of x passes, but the proof of the LU fails\n"
        "  cond: estimated condition number in the infinity norm, from the factors with partial pivoting"
        + f"\n  N up to {NB}: the matrix is one block, so no product is computed in {low}"
        * one_block
    )


def _solved_steps(cases: Sequence[Mapping[str, Any]]) -> str:
    """Return the median number of iterations of the solved cases, * without proven factors, and how many failed."""
    steps, failed = _middle(cases, "iterations"), sum(case["iterations"] is None for case in cases)
    if steps is None:
        return "failed" if cases else ""
    unproven = any(case["iterations"] is not None and not case["proven"] for case in cases)
    return f"{steps:g}" + "*" * unproven + (f" ({failed} failed)" if failed else "")


def _fact_table(part: Mapping[str, Any]) -> tuple[list[Row], str]:
    cases, threads = part["cases"], _threads(part)
    rates = {(case["m"], case["threads"]): case["rate_flops"] for case in cases}
    limits = {case["threads"]: case["dgemm_flops"] for case in cases}
    rows: list[Row] = [("M", *(f"{T} thread{'s' * (T > 1)}" for T in threads))]
    for m in sorted({case["m"] for case in cases}):
        rows.append((str(m), *(three_digits(rates[m, T] / 1e9) if (m, T) in rates else "" for T in threads)))
    rows.append(("DGEMM", *(three_digits(limits[T] / 1e9) for T in threads)))
    nb = cases[0]["nb"]
    return rows, (
        f"GFLOP/s of the panel factorization of M x {nb} numbers on one rank, M NB^2 - NB^3/3 flops\n"
        f"  DGEMM: products of inner dimension {nb} on the same threads"
    )


def _threads(part: Mapping[str, Any]) -> list[int]:
    return sorted({case["threads"] for case in part["cases"]})


TABLES: dict[str, Callable[[Mapping[str, Any]], tuple[list[Row], str]]] = {
    "pivots": _pivot_table,
    "norms": _norm_table,
    "gmres": _gmres_table,
    "generators": _generator_table,
    "pivoting": _pivoting_table,
    "fact": _fact_table,
    "hpg-mxp": sweep_table,
}


def page(body: Mapping[str, Any]) -> str:
    """Return the figures and tables as one self-contained HTML file."""
    drawn = {name: figure(body[name]) for name, figure in FIGURES.items() if name in body}
    parts = [f'<h2>{name}</h2><div class="figures">{figures}</div>' for name, figures in drawn.items()]
    machine, software = body["machine"], body["software"]
    versions = [f"{name} {software[name.lower()]}" for name in ("Python", "NumPy", "SciPy")]
    facts = ", ".join(filter(None, (machine["cpu_model"], f"{machine['logical_cores_allowed']} cores", *versions)))
    shown = [
        "<h1>Experiments of the papers</h1>",
        f'<p class="faint">{html.escape(facts)}{"" if set(drawn) == {"hpg-mxp"} else html.escape(_ranks(body))}</p>',
        *parts,
        f"<h2>Tables</h2><pre>{html.escape(tables(body))}</pre>",
    ]
    return style.page("mxpeak study", "\n".join(shown))


def _ranks(body: Mapping[str, Any]) -> str:
    """Return the number of ranks and the device of the studies on random matrices, as the end of a line."""
    ranks = int(body.get("ranks") or 1)
    return f"; {ranks} {'ranks' if ranks > 1 else 'rank'}, {body.get('device') or 'cpu'}; random entries"


def _pivot_figure(part: Mapping[str, Any]) -> str:
    orders = _by_order(part["cases"])
    late = [(n, (_middle(cases, "late_over_sqrt_n") or 0.0) * n**0.5) for n, cases in orders.items()]
    series = [
        Series("largest pivot", [(case["n"], case["largest"]) for case in part["cases"]]),
        Series("late, median", late),
        Series("√N", [(n, n**0.5) for n in orders], joined=True),
        Series("5/8·√N", [(n, 0.625 * n**0.5) for n in orders], joined=True),
        Series("N^0.45", [(n, n**0.45) for n in orders], joined=True),
    ]
    caption = "Largest |u_ii| that partial pivoting selects; late: the median pivot of the last tenth of the columns."
    return loglog("largest pivots", "order N", "pivot", series, caption=caption)


def _norm_figures(part: Mapping[str, Any]) -> str:
    names = {"norm_1": "1-norm", "norm_2": "2-norm", "norm_inf": "inf-norm"}
    both = [case[name] for case in part["cases"] for name in names if case[name]]
    figures = []
    for pivoting, caption in ((True, "With partial pivoting."), (False, "Without pivoting, on the same scale.")):
        chosen = [case for case in part["cases"] if case["pivoting"] is pivoting]
        series = [Series(label, [(case["n"], case[name]) for case in chosen]) for name, label in names.items()]
        title = f"norms of the residual {'with' if pivoting else 'without'} pivoting"
        figures.append(loglog(title, "order N", "norm of b - Ax", series, y_values=both, caption=caption))
    return "".join(figures)


def _gmres_figure(part: Mapping[str, Any]) -> str:
    groups = _by_order(part["cases"])
    series = [
        Series(f"N = {n}", [(case["diagonal_scale"], case["steps"]) for case in cases])
        for n, cases in list(groups.items())[-4:]
    ]
    largest = sorted(list(groups.values())[-1], key=lambda case: float(case["diagonal_scale"]))
    curve = [(case["diagonal_scale"], case["predicted_steps"]) for case in largest]
    series.append(Series("circular law", curve, joined=True))
    scales = [case["diagonal_scale"] for case in part["cases"]]
    series.append(Series("50 steps", [(min(scales), 50.0), (max(scales), 50.0)], joined=True))
    caption = "Steps until HPL's check passes without a preconditioner; with one, a refinement may take 50."
    return loglog("steps of unpreconditioned GMRES", "c of the diagonal c·√N", "steps", series, caption=caption)


def _generator_figure(part: Mapping[str, Any]) -> str:
    cases = part["cases"]
    series = [
        Series(name, [(case["n"], case["steps"]) for case in cases if case["generator"] == name])
        for name in dict.fromkeys(case["generator"] for case in cases)
    ]
    orders = [case["n"] for case in cases]
    series.append(Series("50 steps", [(min(orders), 50.0), (max(orders), 50.0)], joined=True))
    caption = "Steps until HPL's check passes without a preconditioner; cases that N steps do not solve are omitted."
    return loglog("steps of unpreconditioned GMRES by generator", "order N", "steps", series, caption=caption)


def _pivoting_figures(part: Mapping[str, Any]) -> str:
    cases, figures = part["cases"], []
    titles = {"none": "without pivoting", "butterfly": "with random butterflies", "partial": "with partial pivoting"}
    for key, label in (("growth", "growth"), ("iterations", "steps of refinement")):
        values = [case[key] for case in cases if case[key]]
        for kind in dict.fromkeys(case["pivoting"] for case in cases):
            series = [
                Series(name, [(c["n"], c[key]) for c in cases if (c["generator"], c["pivoting"]) == (name, kind)])
                for name in dict.fromkeys(case["generator"] for case in cases)
            ]
            caption = (
                f"{titles[kind]}, {cases[0]['precision']}, on the scale of all three figures; failures are omitted."
            )
            figures.append(
                loglog(f"{label} {titles[kind]}", "order N", label, series, y_values=values, caption=caption)
            )
    return "".join(figures)


def _fact_figure(part: Mapping[str, Any]) -> str:
    cases = part["cases"]
    series = []
    for T in _threads(part):
        own = [case for case in cases if case["threads"] == T]
        series.append(Series(f"T = {T}", [(case["m"], case["rate_flops"] / 1e9) for case in own], joined=True))
        series.append(Series(f"DGEMM, T = {T}", [(case["m"], case["dgemm_flops"] / 1e9) for case in own], joined=True))
    caption = f"Rate of FACT by the height M of the panel and the number of threads T, NB = {cases[0]['nb']}."
    return loglog("panel factorization", "rows M", "GFLOP/s", series, caption=caption)


FIGURES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "pivots": _pivot_figure,
    "norms": _norm_figures,
    "gmres": _gmres_figure,
    "generators": _generator_figure,
    "pivoting": _pivoting_figures,
    "fact": _fact_figure,
    "hpg-mxp": sweep_figures,
}
