"""Solve ten systems, from easy to singular, with mxpeak, NumPy, SciPy, torch, JAX, and in fp32 without refinement.

    python benchmarks/mixed_precision.py -N 2000 --times --page docs/explanation/mixed-precision.md

The driver prints the correct digits of each x, and the errors and warnings of each library. With `--times`, it also
measures the time of each solve, on an otherwise idle machine. `--page` replaces the tables of a page. The reference
solutions are refined in long double, so they have at least three digits more than any x.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg

import mxpeak as mx
from mxpeak.perf.host import host_facts

PAUSE_S, COUNTED_S = 0.1, 0.005
Array = np.ndarray[Any, np.dtype[Any]]
Solver = Callable[[Any, Any], Any]
#: Steps of refinement of a reference solution.
STEPS = 40


# --- systems ------------------------------------------------------------------------------------------------------


def orthogonal(rng: np.random.Generator, n: int) -> Array:
    """Return a random orthogonal matrix."""
    Q: Array = np.linalg.qr(rng.standard_normal((n, n)))[0]
    return Q


def systems(n: int, seed: int) -> Iterator[tuple[str, Array, Array]]:
    """Return the names, matrices and right-hand sides of ten systems of order n."""
    rng = np.random.default_rng(seed)
    A, b = rng.standard_normal((n, n)), rng.standard_normal(n)
    yield "dominant diagonal", A + 3 * np.sqrt(n) * np.eye(n), b
    yield "random", A, b
    Q, V = orthogonal(rng, n), orthogonal(rng, n)
    for decades in (6, 9, 12):
        yield f"condition 10^{decades}", (Q * np.geomspace(1.0, 10.0**-decades, n)) @ V, b
    rows = 2.0 ** rng.integers(-70, 71, n)
    yield "rows of sizes 10^-21 to 10^21", (A + 3 * np.sqrt(n) * np.eye(n)) * rows[:, None], b * rows
    growth = np.eye(n)  # partial pivoting doubles the last column in each of 60 steps
    m = min(n, 60)
    growth[:m, :m] -= np.tril(np.ones((m, m)), -1)
    growth[: m - 1, m - 1] = 1.0
    yield "growth 2^59", growth, b
    yield "condition 10^15", (Q * np.geomspace(1.0, 1e-15, n)) @ V, b
    nearly = A.copy()
    nearly[-1] = nearly[:-1].sum(axis=0)
    yield "singular up to rounding", nearly, nearly @ np.ones(n)
    exactly = A.copy()
    exactly[:, -1] = 0.0
    yield "a column of zeros", exactly, b


def reference(A: Array, b: Array) -> Array | None:
    """Return A^-1 b, refined in long double, or None if A is singular up to rounding.

    Rows are scaled by powers of two first, which is exact.
    """
    with np.errstate(all="ignore"):
        scale = np.exp2(-np.round(np.log2(np.abs(A).max(axis=1))))
    if not np.isfinite(scale).all():
        return None
    A, b = A * scale[:, None], b * scale
    Q, R = np.linalg.qr(A)  # no growth
    if not np.abs(R.diagonal()).all() or np.linalg.cond(A, 1) > 1e15:
        return None
    wide, x = A.astype(np.longdouble), np.zeros(len(A), np.longdouble)
    last = np.inf
    for _ in range(STEPS):
        r = (b - wide @ x).astype(np.float64)
        step = scipy.linalg.solve_triangular(R, Q.T @ r)
        x = x + step
        size = float(np.abs(step).max() / np.abs(x).max())
        if size < 2.0**-60 or size >= last:
            return x if size < 1e-6 else None
        last = size
    return None


def digits(x: Any, y: Array | None) -> str:
    """Return the number of correct decimal digits of x, relative to its largest entry."""
    if x is None or y is None:
        return "–"
    error = np.abs(np.asarray(x) - y).max() / np.abs(y).max()
    return f"{max(0.0, min(16.0, -np.log10(float(error) or 1e-16))):.0f}" if np.isfinite(error) else "0"


# --- solvers ------------------------------------------------------------------------------------------------------


def by_mxpeak(A: Any, b: Any) -> Any:
    """Solve with mxpeak."""
    return mx.solve(A, b)[0]


def in_fp32(A: Any, b: Any) -> Any:
    """Solve in fp32 without refinement, as LinearSolve.jl's factorizations with 32 bits do."""
    A32, b32 = A.astype(np.float32), b.astype(np.float32)
    x32 = np.linalg.solve(A32, b32)
    return x32.astype(np.float64)


def solvers() -> dict[str, Solver]:
    """Return the solvers of the libraries that are installed."""
    functions: dict[str, Solver] = {"mxpeak": by_mxpeak, "NumPy": np.linalg.solve, "SciPy": scipy.linalg.solve}
    try:
        import torch

        functions["torch"] = lambda A, b: torch.linalg.solve(torch.from_numpy(A), torch.from_numpy(b)).numpy()
    except ModuleNotFoundError:
        pass
    try:
        jax: Any = import_module("jax")
        jax.config.update("jax_enable_x64", True)
        functions["JAX"] = lambda A, b: np.asarray(jax.numpy.linalg.solve(A, b))
    except ModuleNotFoundError:
        pass
    return functions | {"fp32 only": in_fp32}


def answer(solver: Solver, A: Array, b: Array) -> tuple[Any, str]:
    """Return x, or None after an error, and the names of the errors and warnings."""
    with warnings.catch_warnings(record=True) as caught, np.errstate(all="ignore"):
        warnings.simplefilter("always")
        try:
            x = solver(A, b)
        except Exception as error:
            return None, type(error).__name__.strip("_")
    names = [warning.category.__name__ for warning in caught]
    if not np.isfinite(x).all():
        names.append("x is not finite")
    return x, ", ".join(dict.fromkeys(names)) or "–"


def timed(solver: Solver, A: Array, b: Array) -> float:
    """Return the seconds per call, after a pause."""
    time.sleep(PAUSE_S)
    calls, begin = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < COUNTED_S or not calls:
        answer(solver, A, b)
        calls += 1
    return elapsed / calls


# --- tables -------------------------------------------------------------------------------------------------------


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines).replace("| --- ", "|---").replace("--- |", "---|")


def tables(n: int, seed: int, repeat: int) -> dict[str, str]:
    """Return the tables of digits, reports and, if `repeat` is not 0, times."""
    by_name = solvers()
    parts: dict[str, list[list[str]]] = {"digits": [], "reports": [], "times": []}
    for name, A, b in systems(n, seed):
        y = reference(A, b)
        answers = {solver: answer(solve, A, b) for solver, solve in by_name.items()}
        parts["digits"].append([name, *(digits(x, y) for x, _ in answers.values())])
        parts["reports"].append([name, *(report for _, report in answers.values())])
        times: dict[str, list[float]] = {solver: [] for solver in by_name}
        for _ in range(repeat):
            for solver, solve in by_name.items():
                times[solver].append(timed(solve, A, b))
        if repeat:
            parts["times"].append([name, *(f"{statistics.median(ts):.3f}" for ts in times.values())])
        print(f"{name}: {answers['mxpeak'][1]}", file=sys.stderr)
    head = [f"system, n = {n}", *by_name]
    return {key: table(head, rows) for key, rows in parts.items() if rows}


def replaced(page: str, name: str, text: str) -> str:
    """Return the page with another text between the comments that enclose this table."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if len(pattern.findall(page)) != 1:
        raise SystemExit(f"the page has no comments {begin} and {end}; use a page that has them")
    return pattern.sub(lambda _: f"{begin}\n\n{text}\n\n{end}", page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-N", type=int, default=2000, help="order of the systems")
    parser.add_argument("--times", action="store_true", help="also measure times, on an idle machine")
    parser.add_argument("--repeat", type=int, default=5, help="number of measurements of each time")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random numbers")
    parser.add_argument("--page", type=Path, help="page whose tables to replace")
    args = parser.parse_args()
    rows = tables(args.N, args.seed, args.repeat if args.times else 0)
    if args.times:
        facts = host_facts()
        day = time.strftime("%d %B %Y").lstrip("0")
        rows["times"] = (
            f"Seconds, medians of {args.repeat}, on {facts['logical_cores_allowed']} cores of an {facts['cpu_model']}, "
            f"measured on {day} by `python benchmarks/mixed_precision.py {' '.join(sys.argv[1:])}`:\n\n" + rows["times"]
        )
    if args.page is None:
        print("\n\n".join(rows.values()))
        return
    page = args.page.read_text(encoding="utf-8")
    for name, text in rows.items():
        page = replaced(page, name, text)
    args.page.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
