"""Compare mxpeak's HPCG and HPG-MxP with the reference codes: same boxes, ranks and MPI, interleaved runs, medians.

    python benchmarks/sparse_peers.py --xhpcg /path/to/xhpcg --nx 64,104 --layout 2x1,1x2 --rounds 3 --seconds 20
    python benchmarks/sparse_peers.py --xhpgmp /path/to/xhpgmp --nx 32,64 --layout 2x1 --seconds 10

xhpcg is HPCG 3.1, and xhpgmp is ORNL's HPG-MxP. Build both with the mpicxx next to this Python. A layout is the number
of ranks times the number of threads per rank. An xhpcg with OpenMP uses these threads in products and dot products.
Figures are ratings in GFLOP/s by the rules of each benchmark, for HPG-MxP with the flop count of ORNL's code and its
restart of 30.

Before its rating, ORNL's code runs eleven solves to determine the number of rated solves, and afterwards eleven solves
in double precision. At 64^3, these take minutes for any --rt. In addition, the code does not count the flops of
multigrid if it is built for a host (HPGMP_BUILD_REFERENCE). Therefore, it runs as standalone_mxp, which executes ten
solves with 330 iterations and nothing else. After one solve, --solves of them are timed by the times at which their
lines are printed, and their flops are counted here. The rate contains no penalty.

Results in the file of --out are kept. It is possible to add rounds one at a time, or only one code with --sides.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

from mxpeak.layout.stencil import Box, process_grid
from mxpeak.perf.host import host_facts, software_facts
from mxpeak.perf.sparse_counts import hpg_mxp_flops, stencil_levels

MPIEXEC = str(Path(sysconfig.get_path("scripts")) / "mpiexec")
SIDES = ("reference", "mxpeak")
#: Output of the reference codes: HPCG's rating and iterations per set, and the line after a solve of HPG-MxP.
RATING, SET = r"VALID with a GFLOP/s rating of=(\S+)", r"Optimized CG iterations per set=(\d+)"
SOLVED = r"Call \[\d+ / \d+\] Number of GMRES-IR Iterations \[(\d+)\]"
RESTART = 30
#: The storage that the rules require, and packed storage.
MODES = ("official", "explore")


def hpcg(program: str, nx: int, ranks: int, threads: int, args: argparse.Namespace) -> dict[str, Any]:
    """Run HPCG's reference code once, and return its rating in flop/s and its iterations."""
    environ = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "hpcg.dat").write_text(f"HPCG\nbenchmark\n{nx} {nx} {nx}\n{int(args.seconds)}\n")
        command = [MPIEXEC, "-n", str(ranks), program]
        run = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
        reports = sorted(Path(folder).glob("HPCG-Benchmark*.txt"))
        text = reports[-1].read_text() if reports else run.stdout + run.stderr
    rating, iterations = re.search(RATING, text), re.search(SET, text)
    if not rating or not iterations:
        sys.exit(f"{program} failed:\n{text[-2000:]}")
    return {"rate_flops": float(rating[1]) * 1e9, "iterations": int(iterations[1])}


def hpg_mxp(program: str, nx: int, ranks: int, threads: int, args: argparse.Namespace) -> dict[str, Any]:
    """Run some mixed-precision solves of ORNL's HPG-MxP, and return their median rate in flop/s and the iterations."""
    ends: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        flags = [f"--nx={nx}", f"--ny={nx}", f"--nz={nx}", "--rt=1", "--run_type=standalone_mxp"]
        command = [MPIEXEC, "-n", str(ranks), program, *flags]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            for line in run.stdout:
                if found := re.match(SOLVED, line):
                    ends.append(time.perf_counter())
                    iterations = int(found[1])
                if len(ends) > args.solves:
                    run.terminate()
                    break
    if len(ends) <= args.solves:
        sys.exit(f"{program} ended after {len(ends)} solves and --solves {args.solves} takes one more; it does 10")
    levels = stencil_levels(Box(nx, nx, nx, *process_grid(ranks)))
    flops = hpg_mxp_flops(levels, [RESTART] * (iterations // RESTART), "ornl")["total"]
    times = [end - begin for begin, end in itertools.pairwise(ends)]
    return {"rate_flops": flops / statistics.median(times), "iterations": iterations, "solves_s": times}


REFERENCES = {"hpcg": hpcg, "hpg-mxp": hpg_mxp}


def ours(name: str, nx: int, ranks: int, threads: int, args: argparse.Namespace, *flags: str) -> dict[str, Any]:
    """Run mxpeak once, and return its result file."""
    command = [sys.executable, "-m", "mxpeak", "run", name, "--nx", str(nx), "--threads", str(threads), *flags]
    command += ["--rt", str(args.seconds), "--json", "-", "--quiet"]
    command += ["--restart", str(RESTART)] if name == "hpg-mxp" else []
    command += ["--smoother", args.smoother] if args.smoother != "auto" else []
    with tempfile.TemporaryDirectory() as folder:
        launched = [MPIEXEC, "-n", str(ranks), *command, "--out", folder + "/out"]
        run = subprocess.run(launched, text=True, capture_output=True, cwd=folder)
    if run.returncode:
        sys.exit(f"mxpeak ended with {run.returncode}:\n{run.stderr[-2000:]}")
    return json.loads(run.stdout)


def figures(name: str, nx: int, ranks: int, threads: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return the stored figures of one run of mxpeak, or with --quick of two runs, one per storage."""
    if args.quick:
        run, packed = (ours(name, nx, ranks, threads, args, "--quick", "--mode", mode) for mode in MODES)
        beside = packed["result"]
    else:
        run = ours(name, nx, ranks, threads, args)
        beside = {one["storage"]: one for one in run["result"]["beside"]}["packed"]
    result = run["result"]
    rate = "rate_flops" if name == "hpcg" else "rate_flops_ornl"
    figures_of_run = {
        "rate_flops": result[rate],
        "packed_rate_flops": beside[rate],
        "read_bytes": (result["limit"] or {}).get("rate_bytes"),
        "rows_at_a_time": [level["rows_at_a_time"] for level in run["problem"]["levels"]],
    }
    if name == "hpcg":
        return {**figures_of_run, "iterations": run["validation"]["iterations"]}
    return {
        **figures_of_run,
        "iterations": run["validation"]["mixed_iterations"],
        "double_rate_flops": result["double_rate_flops_ornl"],
        "speedup": result["speedup"],
        "packed_speedup": beside["speedup"],
        "between": result["between"],
    }


def compare(name: str, program: str, nx: int, layout: str, row: dict[str, Any], args: argparse.Namespace) -> None:
    """Run some rounds of both codes, and store the ratios of their medians in the row."""
    ranks, threads = map(int, layout.split("x"))
    for _ in range(args.rounds):
        if "reference" in args.sides:
            row["reference"].append(REFERENCES[name](program, nx, ranks, threads, args))
        if "mxpeak" in args.sides:
            row["mxpeak"].append(figures(name, nx, ranks, threads, args))

    def median(who: str, key: str) -> float:
        return statistics.median(run[key] for run in row[who])

    if not row["reference"] or not row["mxpeak"]:
        print(f"{name} {nx}^3 {layout}: the other code has not run yet", flush=True)
        return
    theirs, rate = median("reference", "rate_flops"), median("mxpeak", "rate_flops")
    packed = median("mxpeak", "packed_rate_flops")
    row["medians"] = {"reference": theirs, "mxpeak": rate, "packed": packed}
    row["ratio_of_medians"], row["packed_ratio_of_medians"] = rate / theirs, packed / theirs
    text = (
        f"{name} {nx}^3 {layout}, {len(row['reference'])} and {len(row['mxpeak'])} runs: reference {theirs / 1e9:.2f}, "
        f"mxpeak {rate / 1e9:.2f}, packed {packed / 1e9:.2f} GFLOP/s; ratios {rate / theirs:.2f}, {packed / theirs:.2f}"
    )
    if name == "hpg-mxp":
        row["median_speedups"] = {key: median("mxpeak", key) for key in ("speedup", "packed_speedup")}
        text += "; mixed over double {speedup:.2f}, packed {packed_speedup:.2f}".format(**row["median_speedups"])
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xhpcg", help="HPCG's reference code")
    parser.add_argument("--xhpgmp", help="ORNL's HPG-MxP")
    parser.add_argument("--nx", default="64,104", help="points per side of a rank's box (default: %(default)s)")
    parser.add_argument("--layout", default="2x1,1x2", help="ranks x threads (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="number of runs of each code (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="measured seconds per run (default: %(default)s)")
    parser.add_argument("--solves", type=int, default=2, help="timed solves of xhpgmp (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="run mxpeak with --quick, once per storage")
    parser.add_argument("--smoother", default="auto", help="smoother of mxpeak's runs (default: %(default)s)")
    parser.add_argument("--sides", default=",".join(SIDES), help="which codes run (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="JSON file for all figures, which keeps those of earlier runs")
    args = parser.parse_args()
    programs = {name: program for name, program in (("hpcg", args.xhpcg), ("hpg-mxp", args.xhpgmp)) if program}
    if not programs:
        parser.error("name a reference code: --xhpcg or --xhpgmp")
    rows = json.loads(args.out.read_text())["rows"] if args.out and args.out.exists() else []
    for name, program in programs.items():
        for nx, layout in itertools.product(map(int, args.nx.split(",")), args.layout.split(",")):
            about = {"benchmark": name, "nx": nx, "layout": layout}
            matches = [row for row in rows if about.items() <= row.items()]
            row = matches[0] if matches else {**about, "reference": [], "mxpeak": []}
            compare(name, program, nx, layout, row, args)
            rows += [] if matches else [row]
    if args.out:
        command = " ".join(["python", *sys.argv])
        command = re.sub(r"--(xhpcg|xhpgmp) \S+", r"--\1 \1", re.sub(r" --out \S+", "", command))
        facts = {"command": command, "machine": host_facts(), "software": software_facts()}
        args.out.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
