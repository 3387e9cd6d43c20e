"""Compare multigrid by Ruge and Stüben with smoothed aggregation in mxpeak.gmres, alternately in one process.

    python benchmarks/gmres_levels.py --m 64 --rounds 3 --out benchmarks/results/gmres-levels-64.json

The systems are the two systems with m³ unknowns of gmres_over_ranks.py, solved to ||b - A x|| <= 1e-9 ||b||. Times
include the set-up.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import gmres_over_ranks as systems
import numpy as np
import scipy.sparse as sparse

import mxpeak as mx
from mxpeak.perf.host import environment, host_facts, software_facts
from mxpeak.solvers.precond import ruge_stuben

TOL = 1e-9
#: The number of rows from which aggregation builds the levels: for no system, and for both systems.
LEVELS = {"Ruge-Stueben": 2**62, "aggregation": 0}


def solved(kind: str, m: int, levels: str) -> dict[str, Any]:
    """Return the result and the time of one solve."""
    indptr, columns, values = systems.rows(kind, m, 0, m**3)
    A, b = sparse.csr_array((values, columns, indptr), shape=(m**3, m**3)), systems.side(m, 0, m**3)
    ruge_stuben.EVEN = LEVELS[levels]
    begin = time.perf_counter()
    x, info = mx.gmres(A, b, rtol=TOL, preconditioner="amg")
    seconds = time.perf_counter() - begin
    residual = float(np.linalg.norm(b - A @ x) / np.linalg.norm(b))
    told = {"iterations": info.iterations, "levels": info.levels, "setup_s": info.setup_s, "bytes": info.bytes}
    return {"seconds": seconds, "residual": residual, **told}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--m", type=int, default=64, help="points per side")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    results = []
    for kind in systems.KINDS:
        runs: dict[str, list[dict[str, Any]]] = {levels: [] for levels in LEVELS}
        for levels in LEVELS:
            solved(kind, systems.SMALL, levels)  # compiles the kernels
        for _ in range(args.rounds):
            for levels, solves in runs.items():
                solves.append(solved(kind, args.m, levels))
                print(f"{kind:11} {levels:13} {solves[-1]}", flush=True)
        medians = {levels: statistics.median(one["seconds"] for one in solves) for levels, solves in runs.items()}
        results.append({"kind": kind, "n": args.m**3, "runs": runs, "median_s": medians})
    facts = {"machine": host_facts(), "software": software_facts(), "environment": environment()}
    if args.out:
        args.out.write_text(
            json.dumps({"tol": TOL, "rounds": args.rounds, "results": results, **facts}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
