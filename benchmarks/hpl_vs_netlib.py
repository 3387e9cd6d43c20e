"""Compare mxpeak's HPL with Netlib HPL: same BLAS library, ranks, threads and N, interleaved, best and median of each.

    python benchmarks/hpl_vs_netlib.py --xhpl /path/to/xhpl -N 10000 --nb 128,160,192 --repeat 3 --out result.json

xhpl is Netlib HPL 2.3. Link it to SciPy's OpenBLAS, so that both programs use the same BLAS library.
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

from mxpeak.bench.hpl.config import HplConfig
from mxpeak.bench.hpl.input import write_dat
from mxpeak.perf.host import host_facts, software_facts

RESULT_LINE = re.compile(r"^W[RC]\S+\s+\d+\s+\d+\s+\d+\s+\d+\s+(\d+\.\d+)\s+(\S+)$", re.MULTILINE)
MPIEXEC = str(Path(sysconfig.get_path("scripts")) / "mpiexec")


def netlib(xhpl: str, config: HplConfig, ranks: int, threads: int) -> float:
    """Run xhpl once, and return its rate in flop/s."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "HPL.dat").write_text(write_dat(config))
        environ = {**os.environ, "OPENBLAS_NUM_THREADS": str(threads)}
        run = subprocess.run([MPIEXEC, "-n", str(ranks), xhpl], cwd=folder, env=environ, text=True, capture_output=True)
    if "PASSED" not in run.stdout:
        sys.exit(f"xhpl failed:\n{run.stdout[-2000:]}\n{run.stderr[-2000:]}")
    match = RESULT_LINE.search(run.stdout)
    assert match, run.stdout
    return float(match[2]) * 1e9


def ours(config: HplConfig, ranks: int, threads: int) -> dict[str, Any]:
    """Run mxpeak once, and return its result file."""
    (P, Q), (n,), (nb,), (depth,) = (config.grid or ((1, 1),))[0], config.n or (0,), config.nb, config.depth
    command = [sys.executable, "-m", "mxpeak", "run", "hpl", "-N", str(n), "--nb", str(nb), "--grid", f"{P}x{Q}"]
    command += ["--threads", str(threads), "--depth", str(depth), "--json", "-", "--quiet"]
    with tempfile.TemporaryDirectory() as folder:
        launched = [*command, "--out", folder + "/out"]
        run = subprocess.run([MPIEXEC, "-n", str(ranks), *launched], text=True, capture_output=True, cwd=folder)
    if run.returncode:
        sys.exit(f"mxpeak ended with {run.returncode}:\n{run.stderr[-2000:]}")
    return json.loads(run.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xhpl", required=True)
    parser.add_argument("-N", "--n", type=int, required=True)
    parser.add_argument("--nb", default="128,160,192,224")
    parser.add_argument("--grid", default="1x2")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--depth", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    P, Q = map(int, args.grid.split("x"))
    rows: list[dict[str, Any]] = []
    for repeat in range(args.repeat):
        for nb in map(int, args.nb.split(",")):
            config = HplConfig(n=(args.n,), nb=(nb,), P=(P,), Q=(Q,), depth=(args.depth,))
            theirs = netlib(args.xhpl, config, P * Q, args.threads)
            result = ours(HplConfig(n=(args.n,), nb=(nb,), grid=((P, Q),), depth=(args.depth,)), P * Q, args.threads)
            row = {
                "repeat": repeat,
                "nb": nb,
                "netlib_flops": theirs,
                "mxpeak_flops": result["result"]["rate_flops"],
                "fraction_of_dgemm": result["result"]["fraction_of_limit"],
                "dgemm_flops": result["result"]["limit"]["rate_flops"],
                "phases": result["phases"],
                "residual": result["validation"]["residual"],
                "memory_bytes": result["problem"]["memory_bytes"],
                "process_peak_rss_bytes": result["problem"]["process_peak_rss_bytes"],
            }
            rows.append(row)
            ratio, share = row["mxpeak_flops"] / theirs, row["fraction_of_dgemm"]
            print(f"NB {nb:4d}  netlib {theirs / 1e9:7.2f}  mxpeak {row['mxpeak_flops'] / 1e9:7.2f} GFLOP/s", end="  ")
            print(f"ratio {ratio:.3f}  of DGEMM {share:.3f}", flush=True)
    summary = {}
    for who in ("netlib", "mxpeak"):
        by_nb: dict[int, list[float]] = {}
        for row in rows:
            by_nb.setdefault(row["nb"], []).append(row[f"{who}_flops"])
        medians = {nb: statistics.median(rates) for nb, rates in by_nb.items()}
        best = max(medians, key=lambda nb: medians[nb])
        summary[who] = {"nb": best, "median_flops": medians[best], "best_flops": max(by_nb[best])}
    summary["ratio_of_medians"] = summary["mxpeak"]["median_flops"] / summary["netlib"]["median_flops"]
    summary["ratio_of_bests"] = summary["mxpeak"]["best_flops"] / summary["netlib"]["best_flops"]
    print(json.dumps(summary, indent=1))
    if args.out:
        pinned = os.environ.get("OPENBLAS_CORETYPE")
        facts = {
            "command": " ".join(["python", *sys.argv]),
            "n": args.n,
            "grid": args.grid,
            "threads": args.threads,
            "openblas_coretype": pinned,
            "machine": host_facts(),
            "software": software_facts(),
        }
        facts["command"] = re.sub(r"--xhpl \S+", "--xhpl xhpl", re.sub(r" --out \S+", "", str(facts["command"])))
        args.out.write_text(json.dumps({**facts, "summary": summary, "runs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
