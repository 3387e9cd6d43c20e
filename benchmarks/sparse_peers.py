"""mxpeak's HPCG beside the reference code: the same boxes, ranks and MPI, runs interleaved, medians of each.

    python benchmarks/sparse_peers.py --xhpcg /path/to/xhpcg --nx 64,104 --layout 2x1,1x2 --rounds 3 --seconds 20

xhpcg is HPCG 3.1 that the user has built with the mpicxx beside this Python; a layout is ranks x threads a rank, which
an xhpcg built with OpenMP uses in its products and dots.  Both figures are GFLOP/s ratings by HPCG's rules.
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

RATING = re.compile(r"VALID with a GFLOP/s rating of=(\S+)")
ITERATIONS = re.compile(r"Optimized CG iterations per set=(\d+)")
MPIEXEC = str(Path(sysconfig.get_path("scripts")) / "mpiexec")


def reference(xhpcg: str, nx: int, ranks: int, threads: int, seconds: float) -> dict[str, float]:
    """One run of xhpcg: its rating in flop/s and iterations a set."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "hpcg.dat").write_text(f"HPCG\nbenchmark\n{nx} {nx} {nx}\n{int(seconds)}\n")
        environ = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        run = subprocess.run(
            [MPIEXEC, "-n", str(ranks), xhpcg], cwd=folder, env=environ, capture_output=True, text=True
        )
        reports = sorted(Path(folder).glob("HPCG-Benchmark*.txt"))
        text = reports[-1].read_text() if reports else run.stdout + run.stderr
    rating, iterations = RATING.search(text), ITERATIONS.search(text)
    if not rating or not iterations:
        sys.exit(f"xhpcg failed:\n{text[-2000:]}")
    return {"rate_flops": float(rating[1]) * 1e9, "iterations": int(iterations[1])}


def ours(nx: int, ranks: int, threads: int, seconds: float) -> dict[str, Any]:
    """One run of mxpeak: its result file."""
    command = [sys.executable, "-m", "mxpeak", "run", "hpcg", "--nx", str(nx), "--threads", str(threads)]
    command += ["--rt", str(seconds), "--json", "-", "--quiet"]
    with tempfile.TemporaryDirectory() as folder:
        launched = [MPIEXEC, "-n", str(ranks), *command, "--out", folder + "/out"]
        run = subprocess.run(launched, text=True, capture_output=True, cwd=folder)
    if run.returncode:
        sys.exit(f"mxpeak ended with {run.returncode}:\n{run.stderr[-2000:]}")
    return json.loads(run.stdout)


def figures(result: dict[str, Any]) -> dict[str, float]:
    """What is kept of one of our runs."""
    beside = {one["storage"]: one["rate_flops"] for one in result["result"]["beside"]}
    return {
        "rate_flops": result["result"]["rate_flops"],
        "iterations": result["validation"]["iterations"],
        "packed_rate_flops": beside["packed"],
        "read_bytes": (result["result"]["limit"] or {}).get("rate_bytes"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xhpcg", required=True, help="the reference code's program")
    parser.add_argument("--nx", default="64,104", help="points a side of a rank's box (default: %(default)s)")
    parser.add_argument("--layout", default="2x1,1x2", help="ranks x threads (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of sets in each run (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="write all figures to this JSON file")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for nx in map(int, args.nx.split(",")):
        for layout in args.layout.split(","):
            ranks, threads = map(int, layout.split("x"))
            pairs = []
            for _ in range(args.rounds):
                theirs = reference(args.xhpcg, nx, ranks, threads, args.seconds)
                mine = figures(ours(nx, ranks, threads, args.seconds))
                pairs.append({"reference": theirs, "mxpeak": mine})
            medians = {
                who: statistics.median(pair[who]["rate_flops"] for pair in pairs) for who in ("reference", "mxpeak")
            }
            packed = statistics.median(pair["mxpeak"]["packed_rate_flops"] for pair in pairs)
            row = {
                "nx": nx,
                "layout": layout,
                "ratio_of_medians": medians["mxpeak"] / medians["reference"],
                "packed_ratio_of_medians": packed / medians["reference"],
                "medians": {**medians, "packed": packed},
                "runs": pairs,
            }
            rows.append(row)
            last = pairs[-1]
            print(
                f"{nx}^3 {layout}: reference {medians['reference'] / 1e9:.2f} ({last['reference']['iterations']} "
                f"iterations), mxpeak {medians['mxpeak'] / 1e9:.2f} ({last['mxpeak']['iterations']}), packed "
                f"{packed / 1e9:.2f} GFLOP/s; ratios {row['ratio_of_medians']:.2f}, "
                f"{row['packed_ratio_of_medians']:.2f}",
                flush=True,
            )
    if args.out:
        command = re.sub(r"--xhpcg \S+", "--xhpcg xhpcg", re.sub(r" --out \S+", "", " ".join(["python", *sys.argv])))
        facts = {"command": command, "machine": host_facts(), "software": software_facts()}
        args.out.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
