"""Compare mxpeak.solve(assume_a="pos") with scipy.linalg.cho_factor and cho_solve, interleaved on the same systems.

    python benchmarks/cholesky.py -N 50,100,200,500,1000,4000,8000 --out result.json

A = X X^T / n + I with random X. Both solvers use SciPy's BLAS and its threads. Each round contains one measurement of
each solver, after a pause and a call that is not counted. A measurement repeats small systems for at least 5 ms.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
from solve import Solver, backward_error, timed, write_runs

import mxpeak as mx


def by_scipy(A: Any, b: Any) -> Any:
    """Solve with SciPy's Cholesky factorization."""
    return scipy.linalg.cho_solve(scipy.linalg.cho_factor(A), b)


def system(n: int, args: argparse.Namespace) -> tuple[Any, Any]:
    """Return a positive definite A and a random b."""
    rng = np.random.default_rng(args.seed)
    X = rng.standard_normal((n, n))
    if args.dtype.startswith("complex"):
        X = X + 1j * rng.standard_normal((n, n))
    A = X @ X.conj().T / n + np.eye(n)
    return A.astype(args.dtype), rng.standard_normal(n).astype(args.dtype)


def compare(n: int, repeat: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return the medians and quartiles over `repeat` rounds."""
    A, b = system(n, args)

    def by_mxpeak(A: Any, b: Any) -> Any:
        return mx.solve(A, b, assume_a="pos", precision=args.precision)[0]

    solvers: dict[str, Solver] = {"mxpeak": by_mxpeak, "scipy": by_scipy}
    times: dict[str, list[float]] = {who: [] for who in solvers}
    for _ in range(repeat):
        for who, solver in solvers.items():
            times[who].append(timed(solver, A, b))
    info: Any = mx.solve(A, b, assume_a="pos", precision=args.precision)[1]
    medians = {who: statistics.median(samples) for who, samples in times.items()}
    return {
        "n": n,
        "median_s": medians,
        "quartiles_s": {who: np.quantile(samples, [0.25, 0.75]).tolist() for who, samples in times.items()},
        "speed_over_scipy": medians["scipy"] / medians["mxpeak"],
        "backward_error": {who: backward_error(A, solver(A, b), b) for who, solver in solvers.items()},
        "factorization": info.factorization,
        "precision": info.precision,
        "iterations": info.iterations,
        "condition": info.condition,
        "phases_s": info.times,
        "times_s": times,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-N", "--n", default="50,100,200,500,1000,4000,8000")
    parser.add_argument("--dtype", default="float64", choices=("float64", "float32", "complex128", "complex64"))
    parser.add_argument("--precision", default="auto", help="precision of mxpeak's factors (default: %(default)s)")
    parser.add_argument("--repeat", type=int, help="rounds (default: 9 up to n = 2000, otherwise 5)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    print("     n   scipy ms  mxpeak ms  speed over scipy  quartiles   eta mx  factors  condition")
    for n in map(int, args.n.split(",")):
        row = compare(n, args.repeat or (9 if n <= 2000 else 5), args)
        rows.append(row)
        ms = {who: 1e3 * t for who, t in row["median_s"].items()}
        low, high = (1e3 * t for t in row["quartiles_s"]["mxpeak"])
        print(
            f"{n:6d} {ms['scipy']:10.3f} {ms['mxpeak']:10.3f} {row['speed_over_scipy']:10.2f} "
            f"{low:10.3f}-{high:.3f} {row['backward_error']['mxpeak']:8.1e} "
            f"{row['precision']:>5s}+{row['iterations']} {row['condition']:10.1e}",
            flush=True,
        )
    if args.out:
        write_runs(args.out, rows)


if __name__ == "__main__":
    main()
