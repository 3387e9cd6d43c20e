"""Convert reports of HPL (Netlib, rocHPL, NVIDIA), HPCG and HPG-MxP to results.

A result contains the values of the report: problem, rate, time, residual and whether the check passed. A rate without
a check, as in a truncated log, counts as not passed. Rates of HPG-MxP by ORNL's flop count are converted to the count
of the reference code, so that they can be compared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from mxpeak.errors import UsageError
from mxpeak.layout.stencil import Box
from mxpeak.perf.sparse_counts import ornl_mg_flops, reference_mg_flops, stencil_levels
from mxpeak.records import MAX_INTEGER, SCHEMA_RESULT

#: T/V  N  NB  P  Q  Time  Gflops
HPL_LINE = re.compile(r"^W\S+\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s+([\d.eE+-]+)\s+([\d.eE+-]+)(?:\s|$)", re.MULTILINE)
#: The residual line; C libraries print a NaN as nan or -nan.
HPL_CHECK = re.compile(
    r"\|\|Ax-b\|\|_oo\s*/.*=\s*([-+]?(?:nan|inf|[\d.]+(?:e[-+]?\d+)?))[\s.]*(PASSED|FAILED)", re.IGNORECASE
)
#: Section::key=value
YAML_LINE = re.compile(r"^([^=\n]+)=(.*)$", re.MULTILINE)
#: Value of the line of HPG-MxP's report that replaces the rating of a standalone solver.
STANDALONE = re.compile(r"standalone (mixed|double) solver")
#: Largest relative difference of a report's multigrid flops from ORNL's count, whose entries of coarse rows are
#: approximate. The two counts differ by a factor of about 1.9.
TOLERANCE = 0.1
#: Code and text of the warning about a converted rate.
CONVERTED = "converted-rate"
CONVERTED_TEXT = "the report uses ORNL's flop count, so its rate was converted to the count of the reference code"


def results_of_log(text: str) -> list[dict[str, Any]]:
    """Parse a report and return its results; empty if the format is unknown or the numbers are invalid."""
    try:
        return [*_hpl(text), *_hpcg(text)]
    except ValueError:
        return []


def warned_of(result: Mapping[str, Any], code: str) -> bool:
    """Return whether a result has a warning with this code."""
    return any(isinstance(each, Mapping) and each.get("code") == code for each in result.get("warnings") or ())


def _hpl(text: str) -> Iterator[dict[str, Any]]:
    lines = list(HPL_LINE.finditer(text))
    for line, after in zip(lines, [*lines[1:], None]):
        n, nb, P, Q = (int(word) for word in line.groups()[:4])
        time_s, gflops = float(line[5]), float(line[6])
        check = HPL_CHECK.search(text, line.end(), len(text) if after is None else after.start())
        passed = check is not None and check[2].upper() == "PASSED"
        residual, problem = None if check is None else float(check[1]), {"n": n, "nb": nb, "P": P, "Q": Q}
        yield _result("hpl", passed, problem, 1e9 * gflops, time_s, residual, P * Q)


def _hpcg(text: str) -> Iterator[dict[str, Any]]:
    values = {key.strip(): value.strip() for key, value in YAML_LINE.findall(text)}
    for name, benchmark in (("HPCG", "hpcg"), ("HPGMP", "hpg-mxp")):
        rating = values.get(f"Final Summary::{name} result is VALID with a GFLOP/s rating of")
        invalid = f"Final Summary::{name} result is" in values
        alone = STANDALONE.match(values.get(f"Final Summary::{name} result has no rating", ""))
        if rating is None and alone is None and not invalid:
            continue
        sizes = {
            side: int(values[key])
            for prefix, section in (("n", "Local Domain Dimensions::n"), ("np", "Processor Dimensions::np"))
            for axis in "xyz"
            if (key := f"{section}{axis}") in values and (side := f"{prefix}{axis}")
        }
        ranks = int(values.get("Machine Summary::Distributed Processes", 1))
        if alone is not None:
            yield _standalone(alone[1], values, not invalid, sizes, ranks)
            continue
        rate = 1e9 * float(rating or "nan")
        result = _result(benchmark, rating is not None, sizes, rate, None, None, ranks)
        if benchmark == "hpg-mxp":
            result["problem"] = {**sizes, "run_type": "benchmark"}
        if benchmark == "hpg-mxp" and (factor := _reference_over_ornl(values, sizes)) is not None:
            result["result"] |= {"rate_flops": _finite(factor * rate), "rate_flops_ornl": _finite(rate)}
            result["warnings"] = [{"code": CONVERTED, "text": CONVERTED_TEXT, "hint": ""}]
        yield result


def _standalone(
    solver: str, values: Mapping[str, str], passed: bool, sizes: Mapping[str, int], ranks: int
) -> dict[str, Any]:
    """Return the result of a standalone solver of HPG-MxP, which has raw rates by both flop counts but no rating."""
    result = _result("hpg-mxp", passed, dict(sizes), math.nan, None, None, ranks)
    result["problem"]["run_type"] = solver
    result["validation"]["type"] = "none"
    kind, of = ("raw", "") if solver == "mixed" else ("double", " (reference)")
    for counting, suffix in (("the reference code", ""), ("ORNL", "_ornl")):
        rate = values.get(f"Counting (mxpeak)::Raw Total in the counting of {counting}{of}", "nan")
        result["result"][f"{kind}_rate_flops{suffix}"] = _finite(1e9 * float(rate))
    return result


def _reference_over_ornl(values: Mapping[str, str], sizes: dict[str, int]) -> float | None:
    """Return the flops of a report of HPG-MxP by the count of the reference code, divided by those by ORNL's count.

    The result is None unless the multigrid flops of the report, for the same number of products, are those of ORNL's
    count.
    """
    keys = (f"Floating Point Operations Summary::{name}" for name in ("Raw SpMV", "Raw MG", "Total"))
    spmv, mg, total = (float(values.get(key) or "nan") for key in keys)
    if len(sizes) < 6 or not (spmv > 0.0 and mg > 0.0 and total > mg):
        return None
    try:
        levels = stencil_levels(Box(**sizes))
    except UsageError:  # a box that multigrid cannot coarsen
        return None
    calls = spmv / (2 * levels.nnz[0])  # multigrid is called as often as the product
    if abs(mg / (calls * sum(ornl_mg_flops(levels).values())) - 1.0) > TOLERANCE:
        return None
    return (total - mg + calls * sum(reference_mg_flops(levels).values())) / total


def _result(
    benchmark: str,
    passed: bool,
    problem: dict[str, Any],
    rate_flops: float,
    time_s: float | None,
    residual: float | None,
    ranks: int,
) -> dict[str, Any]:
    if any(value > MAX_INTEGER for value in problem.values()):
        raise ValueError("a size has more than 64 bits")
    time_s = _finite(time_s)
    return {
        "schema": SCHEMA_RESULT,
        "benchmark": benchmark,
        "status": "valid" if passed else "invalid",
        "problem": problem,
        "result": {"rate_flops": _finite(rate_flops), "time_s": time_s},
        "validation": {"passed": passed, "residual": _finite(residual)},
        "launch": {"ranks": ranks},
        "samples_s": [] if time_s is None else [time_s],
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
