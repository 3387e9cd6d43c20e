"""Compare mxpeak.lstsq with scipy.linalg.lstsq and its three drivers, interleaved on the same problems.

    python benchmarks/least_squares.py --shapes 8000x2000,4000x500 --drivers gelsy,gelsd --out result.json

A has normal entries. All solvers use SciPy's BLAS and its threads. A problem of small size is solved repeatedly for at
least 5 ms. Each round contains one measurement of each solver, after a pause and, in the first round, a call that is
not counted. Times are medians over the rounds. The backward error is that of `mxpeak.lstsq` for x and b - A x.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg

import mxpeak as mx
from mxpeak.kernels.host.engine.blas import blas_facts
from mxpeak.perf.host import host_facts, software_facts

PAUSE_S, COUNTED_S = 0.1, 0.005
Solver = Callable[[Any, Any], Any]


def by_scipy(A: Any, b: Any, driver: str) -> Any:
    """Solve with one of SciPy's drivers."""
    return scipy.linalg.lstsq(A, b, lapack_driver=driver)[0]


def by_mxpeak(A: Any, b: Any, precision: str) -> Any:
    """Solve with mxpeak."""
    return mx.lstsq(A, b, precision=precision)[0]


def orthogonality(A: Any, x: Any, b: Any) -> float:
    """Return max_j |a_j^H r| / (||a_j|| ||r||) for r = b - A x, in units of m·u."""
    r = b - A @ x
    norms = np.linalg.norm(A, axis=0) * np.linalg.norm(r)
    return float((np.abs(A.conj().T @ r) / norms).max() / (len(A) * np.finfo(A.dtype).eps / 2))


def timed(solver: Solver, A: Any, b: Any) -> float:
    """Return the seconds per call, after a pause."""
    time.sleep(PAUSE_S)
    calls, begin = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < COUNTED_S or not calls:
        solver(A, b)
        calls += 1
    return elapsed / calls


def measured(m: int, n: int, solvers: dict[str, Solver], args: argparse.Namespace) -> dict[str, Any]:
    """Return the median times of all solvers, their ratios to mxpeak, and their errors."""
    rng = np.random.default_rng(args.seed)
    A, b = rng.standard_normal((m, n)).astype(args.dtype), rng.standard_normal(m).astype(args.dtype)
    errors = {name: orthogonality(A, solver(A, b), b) for name, solver in solvers.items()}  # the calls are not counted
    times: dict[str, list[float]] = {name: [] for name in solvers}
    for _ in range(args.repeat):
        for name, solver in solvers.items():
            times[name].append(timed(solver, A, b))
    ours = times["mxpeak"]
    ratios = {name: [t / o for t, o in zip(ts, ours)] for name, ts in times.items() if name != "mxpeak"}
    info = mx.lstsq(A, b, precision=args.precision)[1]
    return {
        "m": m,
        "n": n,
        "seconds": {name: statistics.median(ts) for name, ts in times.items()},
        "speedup": {name: statistics.median(rs) for name, rs in ratios.items()},
        "all_seconds": times,
        "orthogonality": errors,
        "precision": info.precision,
        "iterations": info.iterations,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="8000x2000", help="comma-separated shapes of A")
    parser.add_argument("--drivers", default="gelsy", help="comma-separated drivers of SciPy")
    parser.add_argument("--repeat", type=int, default=3, help="number of rounds")
    parser.add_argument("--precision", default="auto", help="precision of the QR")
    parser.add_argument("--dtype", default="float64", help="data type of A and b")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random numbers")
    parser.add_argument("--out", type=Path, help="file for the results")
    args = parser.parse_args()
    solvers: dict[str, Solver] = {"mxpeak": partial(by_mxpeak, precision=args.precision)}
    solvers |= {driver: partial(by_scipy, driver=driver) for driver in args.drivers.split(",")}
    rows = []
    for shape in args.shapes.split(","):
        m, n = map(int, shape.split("x"))
        row = measured(m, n, solvers, args)
        rows.append(row)
        times = ", ".join(f"{name} {seconds:.4g} s" for name, seconds in row["seconds"].items())
        speedups = ", ".join(f"{name} {ratio:.2f}" for name, ratio in row["speedup"].items())
        print(f"{shape}: {times}; speedup over {speedups} (QR in {row['precision']}, {row['iterations']} steps)")
        sys.stdout.flush()
    if args.out:
        facts = {"host": host_facts(), "software": software_facts(), "blas": blas_facts()}
        args.out.write_text(json.dumps({"command": sys.argv[1:], **facts, "rows": rows}, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
