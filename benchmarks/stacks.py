"""mxpeak.solve compared with numpy.linalg.solve on stacks of small systems, interleaved, with quartiles.

    python benchmarks/stacks.py -n 4,8,16,32,64 --systems 10000 --dtype float64,float32 --out result.json

Each round times one call of each solver. NumPy solves the systems of a stack with one thread; mxpeak uses as many
threads as SciPy's BLAS (OPENBLAS_NUM_THREADS), and its calls include the checks of all systems.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import mxpeak as mx
from mxpeak.kernels.host.engine.blas import own_threads
from mxpeak.perf.host import host_facts, software_facts


def seconds(solve: Any, A: Any, b: Any) -> float:
    begin = time.perf_counter()
    solve(A, b)
    return time.perf_counter() - begin


def worst_error(A: Any, x: Any, b: Any) -> float:
    """Return the largest ||b - A x|| / ((||A||·||x|| + ||b||)·n·u) of all systems, with a residual in long double."""
    r = b.astype(np.longdouble) - np.einsum("sij,sjk->sik", A.astype(np.longdouble), x.astype(np.longdouble))
    scale = np.abs(A).sum(-1).max(-1) * np.abs(x).max((-1, -2)) + np.abs(b).max((-1, -2))
    return float((np.abs(r).max((-1, -2)) / scale).max() / (A.shape[-1] * np.finfo(A.dtype).eps / 2))


def compare(n: int, rhs: int, dtype: str, args: argparse.Namespace) -> dict[str, Any]:
    rng = np.random.default_rng(args.seed)
    A = rng.standard_normal((args.systems, n, n)).astype(dtype)
    b = rng.standard_normal((args.systems, n, rhs)).astype(dtype)
    solvers = {"numpy": np.linalg.solve, "mxpeak": lambda A, b: mx.solve(A, b)[0]}
    times: dict[str, list[float]] = {who: [] for who in solvers}
    for solve in solvers.values():
        solve(A, b)
    for _ in range(args.repeat):
        for who, solve in solvers.items():
            times[who].append(seconds(solve, A, b))
    medians = {who: statistics.median(samples) for who, samples in times.items()}
    x, info = mx.solve(A, b)
    return {
        "n": n,
        "rhs": rhs,
        "systems": args.systems,
        "dtype": dtype,
        "median_s": medians,
        "quartiles_s": {who: np.quantile(samples, [0.25, 0.75]).tolist() for who, samples in times.items()},
        "speed": medians["numpy"] / medians["mxpeak"],
        "backward_error": worst_error(A, x, b),
        "backward_error_numpy": worst_error(A, np.linalg.solve(A, b), b),
        "solved_again": len(info.individual or ()),
        "times_s": times,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", default="4,8,16,32,64")
    parser.add_argument("--rhs", default="1", help="right-hand sides: 1,8")
    parser.add_argument("--systems", type=int, default=10_000)
    parser.add_argument("--dtype", default="float64,float32")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    print(f"{host_facts()['cpu_model']}, {own_threads()} threads, {args.systems} systems")
    print("dtype     n  rhs   numpy ms  mxpeak ms  speed  quartiles of mxpeak   eta mx  eta np  again")
    rows = []
    for dtype, n, rhs in product(args.dtype.split(","), map(int, args.n.split(",")), map(int, args.rhs.split(","))):
        row = compare(n, rhs, dtype, args)
        rows.append(row)
        ms = {who: 1e3 * t for who, t in row["median_s"].items()}
        low, high = (1e3 * t for t in row["quartiles_s"]["mxpeak"])
        print(
            f"{dtype} {n:3d} {rhs:4d} {ms['numpy']:10.2f} {ms['mxpeak']:10.2f} {row['speed']:6.2f}  "
            f"{low:9.2f}-{high:<9.2f} {row['backward_error']:8.1e} {row['backward_error_numpy']:8.1e} "
            f"{row['solved_again']:5d}",
            flush=True,
        )
    if args.out:
        command = re.sub(r" --out \S+", "", " ".join(["python", *sys.argv]))
        facts = {"command": command, "machine": host_facts(), "software": software_facts(), "threads": own_threads()}
        args.out.write_text(json.dumps({**facts, "runs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
