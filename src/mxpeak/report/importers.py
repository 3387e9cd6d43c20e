"""Convert reports of HPL (Netlib, rocHPL, NVIDIA), HPCG and HPG-MxP to results.

A result contains the values of the report: problem, rate, time, residual and whether the check passed. A rate without
a check, as in a truncated log, counts as not passed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from mxpeak.records import MAX_INTEGER, SCHEMA_RESULT

#: T/V  N  NB  P  Q  Time  Gflops
HPL_LINE = re.compile(r"^W\S+\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)\s+([\d.eE+-]+)\s+([\d.eE+-]+)(?:\s|$)", re.MULTILINE)
#: The residual line; C libraries print a NaN as nan or -nan.
HPL_CHECK = re.compile(
    r"\|\|Ax-b\|\|_oo\s*/.*=\s*([-+]?(?:nan|inf|[\d.]+(?:e[-+]?\d+)?))[\s.]*(PASSED|FAILED)", re.IGNORECASE
)
#: Section::key=value
YAML_LINE = re.compile(r"^([^=\n]+)=(.*)$", re.MULTILINE)


def results_of_log(text: str) -> list[dict[str, Any]]:
    """Parse a report and return its results; empty if the format is unknown or the numbers are invalid."""
    try:
        return [*_hpl(text), *_hpcg(text)]
    except ValueError:
        return []


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
        if rating is None and f"Final Summary::{name} result is" not in values:
            continue
        sizes = {
            side: int(values[key])
            for prefix, section in (("n", "Local Domain Dimensions::n"), ("np", "Processor Dimensions::np"))
            for axis in "xyz"
            if (key := f"{section}{axis}") in values and (side := f"{prefix}{axis}")
        }
        ranks = int(values.get("Machine Summary::Distributed Processes", 1))
        yield _result(benchmark, rating is not None, sizes, 1e9 * float(rating or "nan"), None, None, ranks)


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
