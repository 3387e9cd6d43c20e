"""mxpeak's HPCG and HPG-MxP beside reference codes: the same boxes, ranks and MPI, runs interleaved, medians of each.

    python benchmarks/sparse_peers.py --xhpcg /path/to/xhpcg --nx 64,104 --layout 2x1,1x2 --rounds 3 --seconds 20
    python benchmarks/sparse_peers.py --xhpgmp /path/to/xhpgmp --nx 32 --layout 2x1
    python benchmarks/sparse_peers.py --xhpgmp /path/to/xhpgmp --nx 64 --layout 2x1 --rated-solves-only --seconds 10

xhpcg is HPCG 3.1, xhpgmp ORNL's HPG-MxP, built by the user with the mpicxx beside this Python; a layout is ranks x
threads a rank, which an xhpcg built with OpenMP uses in its products and dots.  Figures are GFLOP/s ratings by the
benchmark's rules, of HPG-MxP in the counting of ORNL's code, with its restart of 30.  That code ends its runs with
eleven double solves, minutes at 64^3, which its rating does not contain: --rated-solves-only leaves them out.
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

#: What each reference prints: its rating, and iterations of a set or of the validation.
PRINTED = {
    "hpcg": (r"VALID with a GFLOP/s rating of=(\S+)", r"Optimized CG iterations per set=(\d+)"),
    "hpg-mxp": (r"VALID with a GFLOP/s rating of=(\S+)", r"Number of optimized iterations \(validation\)=(\d+)"),
}
MPIEXEC = str(Path(sysconfig.get_path("scripts")) / "mpiexec")


def reference(name: str, program: str, nx: int, ranks: int, threads: int, args: argparse.Namespace) -> dict[str, float]:
    """One run of a reference code: its rating in flop/s and iterations."""
    seconds = args.seconds
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "hpcg.dat").write_text(f"HPCG\nbenchmark\n{nx} {nx} {nx}\n{int(seconds)}\n")
        flags = [] if name == "hpcg" else [f"--nx={nx}", f"--ny={nx}", f"--nz={nx}", f"--rt={int(seconds)}"]
        if name == "hpg-mxp" and args.rated_solves_only:
            flags.append("--run_type=benchmark_no_ref")
        environ = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        run = subprocess.run(
            [MPIEXEC, "-n", str(ranks), program, *flags], cwd=folder, env=environ, capture_output=True, text=True
        )
        reports = sorted(Path(folder).glob("HPCG-Benchmark*.txt")) + sorted(Path(folder).glob("HPGMP-Benchmark*.txt"))
        text = reports[-1].read_text() if reports else run.stdout + run.stderr
    rating, iterations = (re.search(pattern, text) for pattern in PRINTED[name])
    if not rating or not iterations:
        sys.exit(f"{program} failed:\n{text[-2000:]}")
    found = {"rate_flops": float(rating[1]) * 1e9, "iterations": int(iterations[1])}
    if double := re.search(r"Total +\(reference\)=(\S+)", text):
        found["double_rate_flops"] = float(double[1]) * 1e9
    return found


def ours(name: str, nx: int, ranks: int, threads: int, seconds: float) -> dict[str, Any]:
    """One run of mxpeak: its result file."""
    command = [sys.executable, "-m", "mxpeak", "run", name, "--nx", str(nx), "--threads", str(threads)]
    command += ["--rt", str(seconds), "--json", "-", "--quiet", *(["--restart", "30"] if name == "hpg-mxp" else [])]
    with tempfile.TemporaryDirectory() as folder:
        launched = [MPIEXEC, "-n", str(ranks), *command, "--out", folder + "/out"]
        run = subprocess.run(launched, text=True, capture_output=True, cwd=folder)
    if run.returncode:
        sys.exit(f"mxpeak ended with {run.returncode}:\n{run.stderr[-2000:]}")
    return json.loads(run.stdout)


def figures(name: str, run: dict[str, Any]) -> dict[str, Any]:
    """What is kept of one of our runs."""
    result = run["result"]
    rate = "rate_flops" if name == "hpcg" else "rate_flops_ornl"
    beside = {one["storage"]: one for one in result["beside"]}["packed"]
    found = {
        "rate_flops": result[rate],
        "packed_rate_flops": beside[rate],
        "read_bytes": (result["limit"] or {}).get("rate_bytes"),
        "rows_at_a_time": [level["rows_at_a_time"] for level in run["problem"]["levels"]],
    }
    if name == "hpcg":
        return {**found, "iterations": run["validation"]["iterations"]}
    return {
        **found,
        "iterations": run["validation"]["mixed_iterations"],
        "double_rate_flops": result["double_rate_flops_ornl"],
        "speedup": result["speedup"],
        "packed_speedup": beside["speedup"],
        "between": result["between"],
    }


def compare(name: str, program: str, nx: int, layout: str, args: argparse.Namespace) -> dict[str, Any]:
    """Some rounds of both, and the ratios of their medians."""
    ranks, threads = map(int, layout.split("x"))
    pairs = []
    for _ in range(args.rounds):
        theirs = reference(name, program, nx, ranks, threads, args)
        pairs.append({"reference": theirs, "mxpeak": figures(name, ours(name, nx, ranks, threads, args.seconds))})

    def median(who: str, key: str) -> float:
        return statistics.median(pair[who][key] for pair in pairs)

    theirs_rate, rate = median("reference", "rate_flops"), median("mxpeak", "rate_flops")
    packed, last = median("mxpeak", "packed_rate_flops"), pairs[-1]
    row = {
        "benchmark": name,
        "nx": nx,
        "layout": layout,
        "ratio_of_medians": rate / theirs_rate,
        "packed_ratio_of_medians": packed / theirs_rate,
        "medians": {"reference": theirs_rate, "mxpeak": rate, "packed": packed},
        "runs": pairs,
    }
    text = (
        f"{name} {nx}^3 {layout}: reference {theirs_rate / 1e9:.2f} ({last['reference']['iterations']} iterations), "
        f"mxpeak {rate / 1e9:.2f} ({last['mxpeak']['iterations']}), packed {packed / 1e9:.2f} GFLOP/s; ratios "
        f"{rate / theirs_rate:.2f}, {packed / theirs_rate:.2f}"
    )
    if name == "hpg-mxp":
        row["median_speedups"] = {key: median("mxpeak", key) for key in ("speedup", "packed_speedup")}
        text += "; mixed over double {speedup:.2f}, packed {packed_speedup:.2f}".format(**row["median_speedups"])
    print(text, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xhpcg", help="HPCG's reference code")
    parser.add_argument("--xhpgmp", help="ORNL's HPG-MxP")
    parser.add_argument("--nx", default="64,104", help="points a side of a rank's box (default: %(default)s)")
    parser.add_argument("--layout", default="2x1,1x2", help="ranks x threads (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="measured in each run (default: %(default)s)")
    parser.add_argument("--rated-solves-only", action="store_true", help="HPG-MxP's reference without double solves")
    parser.add_argument("--out", type=Path, help="write all figures to this JSON file")
    args = parser.parse_args()
    programs = {name: program for name, program in (("hpcg", args.xhpcg), ("hpg-mxp", args.xhpgmp)) if program}
    if not programs:
        parser.error("name a reference code: --xhpcg or --xhpgmp")
    rows = [
        compare(name, program, int(nx), layout, args)
        for name, program in programs.items()
        for nx in args.nx.split(",")
        for layout in args.layout.split(",")
    ]
    if args.out:
        command = " ".join(["python", *sys.argv])
        command = re.sub(r"--(xhpcg|xhpgmp) \S+", r"--\1 \1", re.sub(r" --out \S+", "", command))
        facts = {"command": command, "machine": host_facts(), "software": software_facts()}
        args.out.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
