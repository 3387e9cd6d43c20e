"""Format the result of `mxpeak tune`: tables of kernels, the check of each benchmark, and the stored settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from mxpeak.records import bytes_rate_text, rate_text, three_digits

Record = Mapping[str, Any]
VERDICTS = {
    "faster": "faster than the defaults",
    "equal": "no slower than the defaults, within the noise",
    "slower": "no faster than the defaults, which stay in use",
    "failed": "a run failed, so the defaults stay in use",
    "undecided": "no clear difference so far",
}
NAMES = {"trsm": "TRSM", "factor": "GETRF, block", "fact": "GETRF, panel"}


def tables(body: Mapping[str, Any]) -> str:
    """Return the report of `mxpeak tune`, 80 columns wide."""
    parts = [_layout(records, *layout) for layout, records in by_layout(body["curves"]).items()]
    parts += [_libraries(name, records) for name, records in body.get("libraries", {}).items()]
    parts += [_check(name, check) for name, check in body["check"].items()]
    parts.append(_stored(body))
    return "\n".join(filter(None, parts))


def by_layout(records: Sequence[Record]) -> dict[tuple[int, int], list[Record]]:
    """Return the measured kernels by number of ranks and of threads."""
    layouts: dict[tuple[int, int], list[Record]] = {}
    for record in records:
        layouts.setdefault((record["ranks"], record["threads"]), []).append(record)
    return layouts


def _layout(records: Sequence[Record], ranks: int, threads: int) -> str:
    """Return a table of the kernel rates of one layout, in GFLOP/s per rank."""
    rates = {r["name"]: max(o["rate"] for o in records if o["name"] == r["name"]) for r in records if "rate" in r}
    lines = [f"{ranks} rank{'s' * (ranks > 1)} of {threads} thread{'s' * (threads > 1)}, GFLOP/s per rank"]
    for name in dict.fromkeys(r["precision"] for r in records if r["name"] == "gemm"):
        lines += _gemm([r for r in records if r["name"] == "gemm" and r["precision"] == name], name)
    lines += _by_block(records)
    lines += _leading_dimensions([r for r in records if r["name"] == "ld"])
    if "read" in rates:
        lines.append(f"  memory read at {bytes_rate_text(rates['read'])}")
    lines += _messages(records)
    return "\n".join(lines) + "\n"


def _gemm(records: Sequence[Record], name: str) -> list[str]:
    """Return the lines of GEMM rates in one precision, with a row per order of C and a column per inner dimension."""
    square = [r for r in records if r["m"] == r["n"]]
    inner = sorted({r["k"] for r in square})
    lines = [_row(f"GEMM {name}, m=n", "k", *inner)]
    for side in sorted({r["m"] for r in square}):
        of = {r["k"]: r["rate"] for r in square if r["m"] == side}
        lines.append(_row("", side, *(three_digits(of[k] / 1e9) if k in of else "" for k in inner)))
    return lines


def _by_block(records: Sequence[Record]) -> list[str]:
    """Return the lines of the rates of the other kernels of an LU step, with a column per NB."""
    inner = sorted({r["k"] for r in records if r["name"] in NAMES})
    if not inner:
        return []
    lines = [_row("by NB", "NB", *inner)]
    for name, title in NAMES.items():
        for low in dict.fromkeys(r["precision"] for r in records if r["name"] == name):
            cells = []
            for k in inner:
                measured = [r for r in records if (r["name"], r.get("precision"), r.get("k")) == (name, low, k)]
                cells.append(three_digits(max(map(kernel_rate, measured)) / 1e9) if measured else "")
            lines.append(_row(title, low, *cells))
    return lines


def kernel_rate(record: Record) -> float:
    """Return the FLOP/s of a measured kernel; the factorization of a panel of m rows has m NB² - NB³/3 flops."""
    if "rate" in record:
        return float(record["rate"])
    m, k = record["m"], record["k"]
    return float((m * k**2 - k**3 / 3) / record["seconds"])


def _leading_dimensions(records: Sequence[Record]) -> list[str]:
    """Return a line per format with the rates of the largest product by leading dimension, and the largest effect."""
    if not records:
        return []
    m = max(r["m"] for r in records)
    largest = sorted((r for r in records if r["m"] == m), key=lambda r: int(r["ld"]))
    lines = [_row("by leading dim.", "ld", *dict.fromkeys(r["ld"] for r in largest))]
    effects = []
    for name in dict.fromkeys(r["precision"] for r in largest):
        rates = [r["rate"] for r in largest if r["precision"] == name]
        lines.append(_row(f"GEMM {name}", f"k={largest[0]['k']}", *(three_digits(rate / 1e9) for rate in rates)))
        effects.append(f"{100 * (max(rates) / min(rates) - 1):.1f} % in {name}")
    return [*lines, f"  the leading dimension changes the rate by at most {', '.join(effects)}"]


def _messages(records: Sequence[Record]) -> list[str]:
    """Return lines with the latency and bandwidth of messages, and the times of the broadcasts of the longest message.

    The broadcasts are sorted by time, the fastest first.
    """
    back = [r for r in records if r["name"] == "pingpong"]
    if not back:
        return []
    short, long = min(back, key=lambda r: int(r["bytes"])), max(back, key=lambda r: int(r["bytes"]))
    lines = [f"  messages: {short['seconds'] * 1e6:.3g} µs, {bytes_rate_text(long['bytes'] / long['seconds'])}"]
    sent = [r for r in records if r["name"] == "bcast"]
    if sent:
        size = max(r["bytes"] for r in sent)
        ordered = sorted((r for r in sent if r["bytes"] == size), key=lambda r: float(r["seconds"]))
        times = ", ".join(f"{r['bcast']} {r['seconds'] * 1e3:.3g} ms" for r in ordered)
        lines.append(f"  broadcasts of {size / 2**20:.3g} MiB: {times}")
    return lines


def _row(head: str, name: object, *cells: object) -> str:
    return f"  {head:<15} {name!s:>5} " + "".join(f"{cell!s:>8}" for cell in cells)


def _libraries(name: str, records: Sequence[Record]) -> str:
    """Return a table of the median rates of the search, with a row per BLAS library and a column per layout."""
    layouts = list(dict.fromkeys(r["layout"] for r in records))
    lines = [f"BLAS libraries of {name} with the default NB, median GFLOP/s in the search"]
    lines.append(f"  {'ranks x threads':<24}" + "".join(f"{layout:>10}" for layout in layouts))
    for library in dict.fromkeys(r["blas"] for r in records):
        rates = {r["layout"]: r["rates_flops"] for r in records if r["blas"] == library}
        cells = [_rate_cell(rates.get(layout, [])) for layout in layouts]
        lines.append(f"  {Path(library).name:<24}" + "".join(f"{cell:>10}" for cell in cells))
    return "\n".join(lines) + "\n"


def _rate_cell(rates: Sequence[float]) -> str:
    """Return the median of rates in GFLOP/s; "failed" if a run failed, and "not run" without runs."""
    if not rates:
        return "not run"
    return "failed" if 0.0 in rates else three_digits(median(rates) / 1e9)


def _check(name: str, check: Mapping[str, Any]) -> str:
    """Return the text of the check of a benchmark: all rates, medians, spreads and the verdict."""
    candidate = check.get("candidate_text", "the winner")
    size = check["size"]
    problem = f"N = {size['n']}" if "n" in size else "x".join(map(str, size.values())) + " per rank"
    runs = "alternately" if check.get("complete", True) else "all runs until the budget ended"
    lines = [f"check of {name}, {problem}: the defaults and {candidate}, {runs}"]
    for name in ("defaults", "tuned"):
        rates_of = check[name]
        rates = " ".join(three_digits(rate / 1e9) for rate in rates_of["rates_flops"])
        spread = "unknown" if rates_of["spread"] is None else f"{100 * rates_of['spread']:.1f} %"
        lines.append(f"  {name:<8}  {rates}  median {rate_text(rates_of['median'])}, spread {spread}")
    gain = check["gain"]
    change = "" if gain is None else f"{100 * gain:+.1f} %, noise {100 * (check['noise'] or 0):.1f} %: "
    kept = f"stored: {check['stored']}" if check["stored"] else "nothing is stored"
    lines.append(f"  {change}{VERDICTS[check['verdict']]}; {kept}")
    return "\n".join(lines) + "\n"


def _stored(body: Mapping[str, Any]) -> str:
    """Return lines that state where the settings are stored and how to use them, followed by the notes."""
    lines = [f"stored in {body['store']}; mxpeak run uses it, unless you add --tuned no"] if body["winners"] else []
    if body["machine"]["tables"]:
        lines.append("to simulate this machine: mxpeak simulate BENCHMARK --machine tuned")
    lines += [f"note: {text}" for text in body["notes"]]
    return "\n".join(lines) + "\n"
