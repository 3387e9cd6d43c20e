"""Compare products C -= A B in a low precision with SGEMM, or emulated fp64 products with DGEMM, alternately.

    python benchmarks/products.py --threads 2 --out result.json
    python benchmarks/products.py --precision emulated -N 9216 -k 1024,2048,4096 --out result.json

The sizes are those of an LU of order N with NB = k after the first step: C has N - k rows and columns.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mxpeak.bench.lu import gemm_probe
from mxpeak.kernels.choose import choose
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.perf.host import host_facts, software_facts


def rate(multiply: Callable[[], None], flops: float) -> float:
    """Return the rate of one call in flop/s."""
    begin = time.perf_counter()
    multiply()
    return flops / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-N", "--n", default="4000,8000")
    parser.add_argument("-k", "--k", default="256,512")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", default="bf16", help="bf16, fp16, or emulated for fp64")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    emulated, kernels = args.precision == "emulated", HostKernels(args.threads)
    measured = choose("host", "cpu", args.threads, emulated=True) if emulated else kernels
    reference = "fp64" if emulated else "fp32"
    if not emulated and kernels.emulates(args.precision):
        sys.exit(f"this processor has no products of {args.precision} that are faster than those of fp32")
    rows = []
    for n in map(int, args.n.split(",")):
        for k in map(int, args.k.split(",")):
            m = n - k
            both = {
                args.precision: gemm_probe(measured, m, m, k, "fp64" if emulated else args.precision),
                reference: gemm_probe(kernels, m, m, k, reference),
            }
            rates: dict[str, list[float]] = {name: [] for name in both}
            for _ in range(args.repeat):
                for name, multiply in both.items():
                    rates[name].append(rate(multiply, 2.0 * m * m * k))
            row: dict[str, Any] = {"n": n, "k": k, "rates_flops": rates}
            row |= {f"{name}_flops": statistics.median(of) for name, of in rates.items()}
            row["ratio"] = row[f"{args.precision}_flops"] / row[f"{reference}_flops"]
            rows.append(row)
            told = "  ".join(f"{name} {statistics.median(of) / 1e9:6.1f} GFLOP/s" for name, of in rates.items())
            print(f"N {n:6d}  k {k:4d}  {told}  {row['ratio']:.2f} times", flush=True)
    if args.out:
        facts = {
            "command": re.sub(r" --out \S+", "", " ".join(["python", *sys.argv])),
            "threads": args.threads,
            "precision": args.precision,
            "units": [engine.name for engine in kernels.engines],
            "int8_tiles": kernels.int8_engine is not None,
            "machine": host_facts(),
            "software": software_facts(),
        }
        args.out.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
