"""FACT alone: rate of the panel factorization against rows and threads, on one rank (rocHPL, fig. 5).

    python benchmarks/fact.py --nb 192 --threads 1,2 --out fact.json

Beside each rate stands that of a DGEMM with inner dimension NB on the same threads, measured in the same process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from mxpeak.bench.lu import gemm_probe
from mxpeak.kernels.contract.lu import Panel
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.panel_plan import panel_plan
from mxpeak.perf.host import host_facts, one_core_each, software_facts
from mxpeak.runtime.launch import bind


def fact_rate(kernels: HostKernels, m: int, nb: int, plan: Any, pfact: str, repeat: int) -> float:
    """Median rate of factoring an m×NB panel of random numbers, in flop/s: m·NB² - NB³/3 over the time."""
    values = np.random.default_rng(1).random((m, nb)) - 0.5
    A = kernels.panel(kernels.buffer(kernels.panel_size(m, nb)), m, nb)
    L1 = kernels.panel(kernels.buffer(kernels.panel_size(nb, nb)), nb, nb)
    pivots = kernels.buffer(nb + 1)
    times = []
    for _ in range(repeat):
        kernels.copy(values, A)
        begin = time.perf_counter()
        kernels.factor_panel(Panel(A, L1, pivots, BlockCyclic(m, nb, 0, 1), 0, nb, plan, pfact), None)
        times.append(time.perf_counter() - begin)
    return (m * nb**2 - nb**3 / 3) / statistics.median(times)


def gemm_rate(kernels: HostKernels, m: int, nb: int, repeat: int) -> float:
    multiply = gemm_probe(kernels, m, m, nb, "fp64")
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        multiply()
        times.append(time.perf_counter() - begin)
    return 2.0 * m * m * nb / min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nb", type=int, default=192)
    parser.add_argument("--blocks", default="1,2,4,8,16,32,64,128", help="rows, in multiples of NB")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--nbmin", type=int, default=8)
    parser.add_argument("--ndiv", type=int, default=2)
    parser.add_argument("--rfact", default="right")
    parser.add_argument("--pfact", default="right")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    plan = panel_plan(args.nb, args.nbmin, args.ndiv, args.rfact)
    cores = one_core_each()
    bind(cores[:1])
    rows = []
    for threads in map(int, args.threads.split(",")):
        kernels = HostKernels(threads, cores)
        limit = gemm_rate(kernels, 4096, args.nb, 5)
        for blocks in map(int, args.blocks.split(",")):
            m = blocks * args.nb
            rate = fact_rate(kernels, m, args.nb, plan, args.pfact, args.repeat)
            rows.append({"threads": threads, "rows": m, "rate_flops": rate, "dgemm_flops": limit})
            print(
                f"threads {threads:3d}  rows {m:7d}  FACT {rate / 1e9:7.2f} GFLOP/s  "
                f"{rate / limit:5.1%} of DGEMM {limit / 1e9:.1f}",
                flush=True,
            )
    if args.out:
        command = " ".join(["python", *sys.argv[: sys.argv.index("--out")]])
        facts = {"command": command, "nb": args.nb, "machine": host_facts()}
        args.out.write_text(json.dumps({**facts, "software": software_facts(), "runs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
