"""Runs that are past: the results that lie in mxpeak-out/, the newest first, and what they tell of the next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mxpeak.records import read_json, results_of

#: The folder that takes results where --out names no other.
OUT = Path("mxpeak-out")


def result_files() -> list[Path]:
    """The result files of past runs, the newest first."""
    found = [file for file in OUT.glob("*/result.json") if file.is_file()]  # no link to a file that is gone
    return sorted(found, key=lambda file: file.stat().st_mtime, reverse=True)


def read_results(path: Path) -> list[Mapping[str, Any]]:
    """The results of a file; none where it is not readable as one."""
    try:
        return results_of(read_json(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return []


def past_results() -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Every result of past runs with its file, the newest file first."""
    for path in result_files():
        for one in read_results(path):
            yield path, one


def last_rate(benchmark: str, ranks: int, n: int = 0) -> float | None:
    """The rate of the newest valid result of a benchmark on as many ranks, and of an order of n/4 at least."""
    for _, one in past_results():
        if one.get("benchmark") == benchmark and one.get("status") in ("valid", "slow"):
            rate = one.get("result", {}).get("rate_flops")
            if 4 * (one.get("problem", {}).get("n") or 0) < n:
                continue
            if one.get("launch", {}).get("ranks", _ranks(one)) == ranks and isinstance(rate, int | float):
                return float(rate)
    return None


def _ranks(one: Mapping[str, Any]) -> int:
    problem = one.get("problem", {})
    return int(problem.get("P", 0) * problem.get("Q", 0))
