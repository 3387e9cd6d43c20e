"""mxpeak.solve beside numpy.linalg.solve and scipy.linalg.solve: same systems, calls interleaved, medians of each.

    python benchmarks/solve.py -N 500,1000,2000,4000,8000 --out result.json

All three use the BLAS threads that the environment gives them (OPENBLAS_NUM_THREADS and the like).  NumPy and SciPy
bring a BLAS and a pool of threads each, which go on spinning for a moment after a call: so there is a pause between
calls.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg

import mxpeak as mx
from mxpeak.kernels.host.blas import blas_facts
from mxpeak.perf.host import host_facts, software_facts

U = 2.0**-53
PAUSE_S = 0.2
Solver = Callable[[Any, Any], Any]
SOLVERS: dict[str, Solver] = {
    "mxpeak": lambda A, b: mx.solve(A, b)[0],
    "numpy": np.linalg.solve,
    "scipy": scipy.linalg.solve,
}


def backward_error(A: Any, x: Any, b: Any) -> float:
    """||b - A x|| / ((||A||·||x|| + ||b||)·n·u) in the infinity norm."""
    A_inf = max(float(np.abs(A[i : i + 256]).sum(axis=1).max()) for i in range(0, len(A), 256))
    return float(np.abs(b - A @ x).max() / ((A_inf * np.abs(x).max() + np.abs(b).max()) * len(A) * U))


def compare(n: int, repeat: int, seed: int, order: str) -> dict[str, Any]:
    """Medians over `repeat` rounds after one round that is not counted; normal entries."""
    rng = np.random.default_rng(seed)
    A, b = np.asarray(rng.standard_normal((n, n)), order=order), rng.standard_normal(n)  # type: ignore[call-overload]
    times: dict[str, list[float]] = {who: [] for who in SOLVERS}
    errors: dict[str, float] = {}
    for round_ in range(repeat + 1):
        for who, solver in SOLVERS.items():
            time.sleep(PAUSE_S)
            begin = time.perf_counter()
            x = solver(A, b)
            elapsed = time.perf_counter() - begin
            if round_:
                times[who].append(elapsed)
            errors[who] = backward_error(A, x, b)
    info = mx.solve(A, b)[1]
    medians = {who: statistics.median(found) for who, found in times.items()}
    return {
        "n": n,
        "seed": seed,
        "order": order,
        "median_s": medians,
        "best_s": {who: min(t) for who, t in times.items()},
        "numpy_over_mxpeak": medians["numpy"] / medians["mxpeak"],
        "scipy_over_mxpeak": medians["scipy"] / medians["mxpeak"],
        "backward_error": errors,
        "precision": info.precision,
        "iterations": info.iterations,
        "condition": info.condition,
        "growth": info.growth,
        "fallback": info.fallback,
        "phases_s": info.times,
        "times_s": times,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-N", "--n", default="500,1000,2000,4000,8000")
    parser.add_argument("--repeat", type=int, help="rounds (default: 21 up to n = 1000, 9 up to 4000, else 5)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--order", choices=("C", "F"), default="C")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    print("     n   numpy ms   scipy ms  mxpeak ms   numpy/mx   scipy/mx   eta numpy      eta mx  steps  condition")
    for n in map(int, args.n.split(",")):
        repeat = args.repeat or (21 if n <= 1000 else 9 if n <= 4000 else 5)
        row = compare(n, repeat, args.seed, args.order)
        rows.append(row)
        ms = {who: 1e3 * t for who, t in row["median_s"].items()}
        print(
            f"{n:6d} {ms['numpy']:10.2f} {ms['scipy']:10.2f} {ms['mxpeak']:10.2f} {row['numpy_over_mxpeak']:10.2f} "
            f"{row['scipy_over_mxpeak']:10.2f} {row['backward_error']['numpy']:11.1e} "
            f"{row['backward_error']['mxpeak']:11.1e} {row['iterations']:6d} {row['condition']:10.1e}",
            flush=True,
        )
    if args.out:
        facts = {
            "command": re.sub(r" --out \S+", "", " ".join(["python", *sys.argv])),
            "machine": host_facts(),
            "software": software_facts(),
            "scipy_blas": blas_facts(),
        }
        args.out.write_text(json.dumps({**facts, "runs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
