"""Compare mxpeak.solve with numpy.linalg.solve and scipy.linalg.solve: same systems, alternating calls, and medians.

    python benchmarks/solve.py -N 50,100,500,1000,4000 --sides 1,8,64,500 --out result.json

All three use the number of BLAS threads that the environment sets, for example by OPENBLAS_NUM_THREADS. NumPy and SciPy
have separate BLAS libraries, whose threads continue to spin after a call. Therefore, a pause separates the solvers. In
each round, every solver first solves once without being counted, and then repeatedly for at least 5 ms.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg

import mxpeak as mx
from mxpeak.kernels.host.engine.blas import blas_facts
from mxpeak.perf.host import host_facts, software_facts

PAUSE_S, COUNTED_S = 0.1, 0.005
Solver = Callable[[Any, Any], Any]
SOLVERS: dict[str, Solver] = {"numpy": np.linalg.solve, "scipy": scipy.linalg.solve}


def backward_error(A: Any, x: Any, b: Any) -> float:
    """Return the largest ||b - A x|| / ((||A||·||x|| + ||b||)·n·u) over all columns, in the infinity norm."""
    A_inf = max(float(np.abs(A[i : i + 256]).sum(axis=1).max()) for i in range(0, len(A), 256))
    sizes = A_inf * np.abs(x).max(axis=0) + np.abs(b).max(axis=0)
    return float((np.abs(b - A @ x).max(axis=0) / sizes).max() / (len(A) * np.finfo(A.dtype).eps / 2))


def system(n: int, sides: int, args: argparse.Namespace) -> tuple[Any, Any]:
    """Return A and b with normal entries, or with a diagonally dominant A or an A with decaying singular values.

    With --single, only the last singular value is small.
    """
    rng = np.random.default_rng(args.seed)

    def normal(*shape: int) -> Any:
        values = rng.standard_normal(shape)
        return values + 1j * rng.standard_normal(shape) if args.dtype.startswith("complex") else values

    A = normal(n, n)
    if args.decades:
        values = np.geomspace(1.0, 10.0**-args.decades, n)
        values[:-1] = 1.0 if args.single else values[:-1]
        A = np.linalg.qr(A)[0] * values @ np.linalg.qr(normal(n, n))[0]
    if args.dominant:
        np.fill_diagonal(A, 0.0)
        np.fill_diagonal(A, np.abs(A).sum(axis=1) / args.dominant)
    b = normal(n) if sides == 1 else normal(n, sides)
    return np.asarray(A.astype(args.dtype), order=args.order), b.astype(args.dtype)


def timed(solver: Solver, A: Any, b: Any) -> float:
    """Return the time per call in seconds, after a pause and a call that is not counted."""
    time.sleep(PAUSE_S)
    begin = time.perf_counter()
    solver(A, b)
    calls = max(1, int(COUNTED_S / (time.perf_counter() - begin)))
    begin = time.perf_counter()
    for _ in range(calls):
        solver(A, b)
    return (time.perf_counter() - begin) / calls


def compare(n: int, sides: int, repeat: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return the medians and quartiles over `repeat` rounds."""
    A, b = system(n, sides, args)
    solvers: dict[str, Solver] = {"mxpeak": lambda A, b: mx.solve(A, b, precision=args.precision)[0], **SOLVERS}
    times: dict[str, list[float]] = {who: [] for who in solvers}
    for _ in range(repeat):
        for who, solver in solvers.items():
            times[who].append(timed(solver, A, b))
    info: Any = mx.solve(A, b, precision=args.precision)[1]
    medians = {who: statistics.median(samples) for who, samples in times.items()}
    return {
        "n": n,
        "sides": sides,
        "median_s": medians,
        "quartiles_s": {who: np.quantile(samples, [0.25, 0.75]).tolist() for who, samples in times.items()},
        "speed_of_the_better": min(medians["numpy"], medians["scipy"]) / medians["mxpeak"],
        "backward_error": {who: backward_error(A, solver(A, b), b) for who, solver in solvers.items()},
        "precision": info.precision,
        "iterations": info.iterations,
        "condition": info.condition,
        "growth": info.growth,
        "fallback": info.fallback,
        "phases_s": info.times,
        "times_s": times,
    }


def write_runs(file: Path, rows: list[dict[str, Any]]) -> None:
    """Write the results with the command, the machine and the software."""
    facts = {
        "command": re.sub(r" --out \S+", "", " ".join(["python", *sys.argv])),
        "machine": host_facts(),
        "software": software_facts(),
        "scipy_blas": blas_facts(),
    }
    file.write_text(json.dumps({**facts, "runs": rows}, indent=1) + "\n")


def main() -> None:
    warnings.simplefilter("ignore", mx.IllConditionedWarning)
    warnings.simplefilter("ignore", scipy.linalg.LinAlgWarning)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-N", "--n", default="50,100,200,500,1000,2000,4000")
    parser.add_argument("--sides", default="1", help="right-hand sides: 1,8,64,500")
    parser.add_argument("--dtype", default="float64", choices=("float64", "float32", "complex128", "complex64"))
    parser.add_argument("--decades", type=float, default=0.0, help="decades of A's singular values (default: random A)")
    parser.add_argument("--single", action="store_true", help="only the last of the singular values is small")
    parser.add_argument("--dominant", type=float, default=0.0, help="sum of other entries of a row as a share of a_ii")
    parser.add_argument("--precision", default="auto", help="precision of mxpeak's factors (default: %(default)s)")
    parser.add_argument("--repeat", type=int, help="number of rounds (default: 9 up to n = 2000, otherwise 5)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--order", choices=("C", "F"), default="C")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    print("     n sides   numpy ms   scipy ms  mxpeak ms  speed of the better  quartiles   eta mx  factors  condition")
    for n, sides in product(map(int, args.n.split(",")), map(int, args.sides.split(","))):
        row = compare(n, sides, args.repeat or (9 if n <= 2000 else 5), args)
        rows.append(row)
        ms = {who: 1e3 * t for who, t in row["median_s"].items()}
        low, high = (1e3 * t for t in row["quartiles_s"]["mxpeak"])
        print(
            f"{n:6d} {sides:5d} {ms['numpy']:10.3f} {ms['scipy']:10.3f} {ms['mxpeak']:10.3f} "
            f"{row['speed_of_the_better']:10.2f} {low:10.3f}-{high:.3f} {row['backward_error']['mxpeak']:8.1e} "
            f"{row['precision']:>5s}+{row['iterations']} {row['condition']:10.1e}",
            flush=True,
        )
    if args.out:
        write_runs(args.out, rows)


if __name__ == "__main__":
    main()
