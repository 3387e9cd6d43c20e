"""Measure the cost of an LU's checksums: factorizations with and without them alternate in the same memory.

    OPENBLAS_NUM_THREADS=1 python benchmarks/abft.py hpl --pairs 12 --out benchmarks/results/abft-n10000-epyc.json

One rank runs with two threads. Every second pair begins with the checked factorization. The program prints the medians
of the ratios of the pairs, in elapsed time and in CPU time, and the time that the checks measured themselves. `--out`
writes every factorization to a file, and keeps the results of the other benchmarks in this file.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

from mxpeak.comm.grid import make_grid
from mxpeak.comm.transports.solo import Solo
from mxpeak.distributed.dense import dist_matrix
from mxpeak.distributed.sources import GeneratedSystem
from mxpeak.kernels.host.engine.matrix_engines import chosen
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.layout.generators import generator
from mxpeak.layout.grid import ProcessGrid
from mxpeak.perf.host import environment, host_facts, software_facts
from mxpeak.solvers.abft.checksums import checking
from mxpeak.solvers.abft.mixed_checksums import MixedChecks
from mxpeak.solvers.abft.pivoted_checksums import PivotedChecks, with_checksums
from mxpeak.solvers.checkpointing import NO_CHECKPOINTS
from mxpeak.solvers.growth_monitor import DiagonalBlocks
from mxpeak.solvers.lu import lu, pivoted_lu
from mxpeak.solvers.lu.panel import PanelOptions
from mxpeak.solvers.lu.row_swap import SwapOptions
from mxpeak.spans import Spans

NB = {"hpl": 192, "hpl-mxp": 320, "hpl-mxp-bf16": 512}
SEED, THREADS = 100, 2
Factorization = dict[str, float | bool]


def hpl(N: int) -> Callable[[bool], Factorization]:
    """Return a function that executes HPL's LU with look-ahead, with or without checks."""
    kernels, grid = HostKernels(THREADS, list(range(THREADS)), alone=True), make_grid(ProcessGrid(1, 1), Solo())
    A, wide = with_checksums(grid, N, N + 1, NB["hpl"], kernels)
    entries = generator("hpl", N, seed=SEED).entries
    options = pivoted_lu.PivotedLuOptions(PanelOptions(), SwapOptions(), 1, 0.0, True)

    def once(abft: bool) -> Factorization:
        spans = Spans()
        kernels.generate(A.local, A.rows, A.cols, entries)
        checks = PivotedChecks(A, wide, kernels, spans, NO_CHECKPOINTS) if abft else None
        B, blocks = wide if abft else A, DiagonalBlocks(A, kernels)

        def factorize() -> None:
            with checking(checks):
                pivoted_lu.factorize(B, options, kernels, spans, blocks, checks or NO_CHECKPOINTS)

        return timed(factorize, spans, kernels, checks)

    return once


def hpl_mxp(N: int, precision: str = "fp32", nb: int = NB["hpl-mxp"]) -> Callable[[bool], Factorization]:
    """Return a function that executes HPL-MxP's LU and generates its matrix, with or without checks.

    Products in bf16 use the processor's own instructions.
    """
    kernels = HostKernels(THREADS, list(range(THREADS)), alone=True, engines=chosen())
    if kernels.emulates(precision):
        raise SystemExit(f"this processor has no products of {precision} numbers; use benchmarks/abft.py hpl-mxp")
    grid = make_grid(ProcessGrid(1, 1), Solo())
    A = dist_matrix(grid, N, N, nb, kernels, "fp32")
    system = GeneratedSystem(grid, N, nb, generator("sqrt-n", N, seed=SEED, scale=0.625, condition=1000), kernels)

    def once(abft: bool) -> Factorization:
        spans = Spans()
        checks = MixedChecks(A, system, precision, kernels, spans, NO_CHECKPOINTS) if abft else None
        blocks, options = DiagonalBlocks(A, kernels), lu.MixedLuOptions(precision)

        def factorize() -> None:
            if checks is None:
                system.store(A)
            else:
                checks.make()
            with checking(checks):
                lu.factorize(A, options, kernels, spans, blocks, checks or NO_CHECKPOINTS)

        return timed(factorize, spans, kernels, checks)

    return once


def timed(
    factorize: Callable[[], object], spans: Spans, kernels: HostKernels, checks: PivotedChecks | MixedChecks | None
) -> Factorization:
    """Execute one factorization with all its checks, and return its times and those of the checks."""
    spans.start("factorization", 1.0)
    begin, processor = time.perf_counter(), time.process_time()
    factorize()
    kernels.wait()
    times: Factorization = {
        "abft": checks is not None,
        "time_s": round(time.perf_counter() - begin, 3),
        "processor_s": round(time.process_time() - processor, 3),
    }
    if checks is not None:
        times |= {"abft_s": round(spans.time_of("abft"), 3), "after_s": round(checks.checked().after_s, 3)}
    return times


def in_turns(once: Callable[[bool], Factorization], pairs: int) -> Iterator[Factorization]:
    """Yield the factorizations of all pairs; every second pair begins with the checked one."""
    once(False)
    for pair in range(pairs):
        for abft in (False, True) if pair % 2 == 0 else (True, False):
            found = once(abft)
            print(json.dumps(found), flush=True)
            yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", choices=NB)
    parser.add_argument("-N", type=int, default=10000, help="order of the matrix (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=12, help="number of pairs (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="write all factorizations to this JSON file")
    args = parser.parse_args()
    ways: dict[str, Callable[[int], Callable[[bool], Factorization]]] = {
        "hpl": hpl,
        "hpl-mxp": hpl_mxp,
        "hpl-mxp-bf16": partial(hpl_mxp, precision="bf16", nb=NB["hpl-mxp-bf16"]),
    }
    runs = list(in_turns(ways[args.benchmark](args.N), args.pairs))
    plain, checked = ([run for run in runs if run["abft"] is abft] for abft in (False, True))
    for key, name in (("time_s", "elapsed time"), ("processor_s", "CPU time")):
        ratio = median(b[key] / a[key] for a, b in zip(plain, checked))
        print(f"{name}: {100 * (ratio - 1):+.1f} % (median of {args.pairs} pairs)")
    shares = [run["abft_s"] / run["time_s"] for run in checked]
    print(f"time of the checks: {100 * min(shares):.1f} to {100 * max(shares):.1f} % of the factorization")
    if args.out:
        body = json.loads(args.out.read_text()) if args.out.exists() else {}
        facts = {"machine": host_facts(), "software": software_facts(), "environment": environment()}
        body |= {"N": args.N, "command": f"python benchmarks/{Path(sys.argv[0]).name}", **facts, args.benchmark: runs}
        args.out.write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
