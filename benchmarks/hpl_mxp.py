"""Compare mxpeak's HPL-MxP with its HPL: same ranks, threads and N, interleaved runs, best and median of each.

python benchmarks/hpl_mxp.py -N 10000 --nb 256 --hpl-nb 192,224 --repeat 3 --out result.json
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from mxpeak.perf.host import host_facts, software_facts

MPIEXEC = str(Path(sysconfig.get_path("scripts")) / "mpiexec")


def measure(benchmark: str, n: int, nb: int, grid: str, threads: int, *more: str) -> dict[str, Any]:
    """Run mxpeak once, and return its result file."""
    P, Q = map(int, grid.split("x"))
    command = [sys.executable, "-m", "mxpeak", "run", benchmark, "-N", str(n), "--nb", str(nb), "--grid", grid]
    command += ["--threads", str(threads), "--json", "-", "--quiet", *more]
    launcher = [MPIEXEC, "-n", str(P * Q)] if P * Q > 1 else []
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run([*launcher, *command, "--out", f"{folder}/out"], text=True, capture_output=True)
    if run.returncode:
        sys.exit(f"mxpeak ended with {run.returncode}:\n{run.stderr[-2000:]}")
    return json.loads(run.stdout)  # type: ignore[no-any-return]


def summary(rows: list[dict[str, Any]], key: str) -> dict[str, Any]:
    """Return the block size with the best median, and its rates."""
    by_nb: dict[int, list[float]] = {}
    for row in rows:
        if key in row:
            by_nb.setdefault(row["nb"], []).append(row[key])
    best = max(by_nb, key=lambda nb: statistics.median(by_nb[nb]))
    return {"nb": best, "median_flops": statistics.median(by_nb[best]), "best_flops": max(by_nb[best])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-N", "--n", type=int, required=True)
    parser.add_argument("--nb", default="256")
    parser.add_argument("--hpl-nb", default="224")
    parser.add_argument("--grid", default="1x1")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for repeat in range(args.repeat):
        for nb in map(int, args.hpl_nb.split(",")):
            hpl = measure("hpl", args.n, nb, args.grid, args.threads)
            rows.append(
                {
                    "repeat": repeat,
                    "nb": nb,
                    "hpl_flops": hpl["result"]["rate_flops"],
                    "of_dgemm": hpl["result"]["fraction_of_limit"],
                }
            )
            print(f"HPL      NB {nb:4d}  {rows[-1]['hpl_flops'] / 1e9:7.2f} GFLOP/s", flush=True)
        for nb in map(int, args.nb.split(",")):
            mxp = measure("hpl-mxp", args.n, nb, args.grid, args.threads, "--precision", args.precision)
            result = mxp["result"]
            limit = result["limit"]["rate_flops"]
            rows.append(
                {
                    "repeat": repeat,
                    "nb": nb,
                    "mxp_flops": result["rate_flops"],
                    "lu_flops": result["lu_rate_flops"],
                    "limit_flops": limit,
                    "lu_of_limit": result["lu_rate_flops"] / limit,
                    "refine_share": result["refine_time_s"] / result["time_s"],
                    "phases": mxp["phases"],
                    "iterations": mxp["validation"]["iterations"],
                    "residual": mxp["validation"]["residual"],
                    "admissible": mxp["rules"]["admissible"],
                    "memory_bytes": mxp["problem"]["memory_bytes"],
                    "process_peak_rss_bytes": mxp["problem"]["process_peak_rss_bytes"],
                }
            )
            print(
                f"HPL-MxP  NB {nb:4d}  {result['rate_flops'] / 1e9:7.2f} GFLOP/s  LU {rows[-1]['lu_of_limit']:.3f}"
                f" of GEMM  refinement {100 * rows[-1]['refine_share']:.1f} %",
                flush=True,
            )
    hpl, mxp = summary(rows, "hpl_flops"), summary(rows, "mxp_flops")
    medians = {
        "hpl": hpl,
        "mxp": mxp,
        "ratio_of_medians": mxp["median_flops"] / hpl["median_flops"],
        "ratio_of_bests": mxp["best_flops"] / hpl["best_flops"],
        "lu_of_limit": statistics.median(row["lu_of_limit"] for row in rows if row.get("mxp_flops")),
        "refine_share": statistics.median(row["refine_share"] for row in rows if row.get("mxp_flops")),
    }
    print(json.dumps(medians, indent=1))
    if args.out:
        facts = {
            "command": re.sub(r" --out \S+", "", " ".join(["python", *sys.argv])),
            "n": args.n,
            "grid": args.grid,
            "threads": args.threads,
            "precision": args.precision,
            "openblas_coretype": os.environ.get("OPENBLAS_CORETYPE"),
            "machine": host_facts(),
            "software": software_facts(),
        }
        args.out.write_text(json.dumps({**facts, "summary": medians, "runs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
