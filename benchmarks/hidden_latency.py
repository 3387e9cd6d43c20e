"""How much of a slow network's latency an LU hides: every message comes a given time after it was sent.

    mpiexec -n 2 python benchmarks/hidden_latency.py --out result.json

On 1x2 ranks, what look-ahead hides of the panels' way along the rows: HPL-MxP and HPL with and without it, in the first
three quarters of the steps, which take 98 % of the time; updates shrink, and the last cannot hide anything.  On 2x1
ranks, what the split update hides of HPL's row swaps, in the first half of the steps, in which there are two sections.
The network is quick in the other steps.

`shown` is how long a rank did nothing but wait for messages that were here to be old enough, of each rank, a median of
rounds in which all cases take turns; so it does not count that other work slows the machine.  `hidden` is the share of
what the plain run shows, on both ranks, that the other one does not; `hidden_by_rank` the same of each.  Where one rank
has more columns than the other, it alone is waited for: what shows on the other is slack, and costs no time.  Latencies
are given in mean steps of the plain run.  The reductions by which FACT finds its pivots are not delayed: a core that
waits for one has nothing else to do, and no order of work hides it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from delayed import Delayed, Network

from mxpeak.comm.grid import make_grid
from mxpeak.comm.mpi import world
from mxpeak.distributed.matrix import dist_matrix
from mxpeak.kernels.contract import Kernels
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.layout.generators import generator
from mxpeak.layout.grid import ProcessGrid
from mxpeak.perf.host import environment, host_facts, one_core_each, software_facts
from mxpeak.solvers import lu, pivoted_lu
from mxpeak.solvers.lu import MixedLuOptions
from mxpeak.solvers.pivoted_lu import PivotedLuOptions
from mxpeak.spans import Spans, Step

FORMS = ("plain", "hiding")


@dataclass(frozen=True, slots=True)
class Pair:
    """The same LU, plain and with what is to hide the latency, in the share of the steps in which it applies."""

    name: str
    shape: tuple[int, int]
    plain: MixedLuOptions | PivotedLuOptions
    hiding: MixedLuOptions | PivotedLuOptions
    steps: float


class Restored:
    """Looks on, and makes the network quick again after a step."""

    def __init__(self, network: Network, last: int):
        self._network, self._last = network, last

    def start(self, label: str, total_flops: float) -> None:
        """Nothing is to be done."""

    def step(self, step: Step) -> None:
        """The last step with a slow network is done."""
        if step.index >= self._last:
            self._network.delay_s = 0.0

    def finish(self, label: str, elapsed_s: float) -> None:
        """Nothing is to be done."""


PAIRS = (
    Pair("HPL-MxP, look-ahead", (1, 2), MixedLuOptions(lookahead=0), MixedLuOptions(), 0.75),
    Pair("HPL, look-ahead", (1, 2), PivotedLuOptions(lookahead=0), PivotedLuOptions(), 0.75),
    Pair("HPL, split update", (2, 1), PivotedLuOptions(), PivotedLuOptions(split=0.5), 0.5),
)


def worker(comm: Delayed, pair: Pair, n: int, nb: int, kernels: Kernels) -> Callable[[Any], tuple[float, list[float]]]:
    """What factors the pair's matrix by some options: how long it took, and what showed of the latency on each rank."""
    grid = make_grid(ProcessGrid(*pair.shape), comm)
    assert grid is not None
    pivoted = isinstance(pair.plain, PivotedLuOptions)
    A = dist_matrix(grid, n, n + pivoted, nb, kernels, "fp64" if pivoted else "fp32")
    entries = generator("hpl" if pivoted else "dominant-n", n).entries

    def run(options: Any) -> tuple[float, list[float]]:
        kernels.generate(A.local, A.rows, A.cols, entries)
        factorize: Any = pivoted_lu.factorize if pivoted else lu.factorize
        spans = Spans(observers=[Restored(comm.network, round(pair.steps * -(-n // nb)))])
        comm.barrier()
        comm.network.shown_s, begin = 0.0, time.perf_counter()
        singular = factorize(A, options, kernels, spans)
        elapsed, shown = np.full(1, time.perf_counter() - begin), np.zeros(comm.size)
        shown[comm.rank] = comm.network.shown_s
        assert singular == 0
        comm.allreduce(elapsed, "max")
        comm.allreduce(shown, "sum")
        return float(elapsed[0]), shown.tolist()

    return run


def measured(
    comm: Delayed, pair: Pair, n: int, nb: int, shares: list[float], repeat: int, kernels: Kernels
) -> dict[str, Any]:
    """Both members of a pair under every delay, in turns."""
    run, steps = worker(comm, pair, n, nb, kernels), -(-n // nb)
    comm.network.delay_s = 0.0
    plain_s = min(run(pair.plain)[0] for _ in range(3))
    delays = [share * plain_s / steps for share in shares]
    cases = [(form, delay) for delay in delays for form in FORMS]
    shown: dict[tuple[str, float], list[list[float]]] = {case: [] for case in cases}
    for turn in range(repeat):
        for k in range(len(cases)):
            form, comm.network.delay_s = case = cases[(turn + k) % len(cases)]
            shown[case].append(run(getattr(pair, form))[1])
    rows = []
    for share, delay in zip(shares, delays):
        median = {form: statistics.median(map(sum, shown[form, delay])) for form in FORMS}
        by_rank = {form: [statistics.median(ranks) for ranks in zip(*shown[form, delay])] for form in FORMS}
        rows.append(
            {
                "delay_steps": share,
                "delay_s": delay,
                "shown_s": median,
                "shown_by_rank_s": by_rank,
                "hidden": hidden(median["plain"], median["hiding"]),
                "hidden_by_rank": [hidden(*both) for both in zip(*(by_rank[form] for form in FORMS))],
            }
        )
    return {
        "name": pair.name,
        "grid": pair.shape,
        "steps": steps,
        "slow_steps": round(pair.steps * steps),
        "time_s": plain_s,
        "delayed": rows,
    }


def hidden(plain_s: float, hiding_s: float) -> float | None:
    """The share of what the plain run shows that the other one does not; None where it shows nothing."""
    return 1 - hiding_s / plain_s if plain_s else None


def say(found: dict[str, Any]) -> None:
    """One pair as text."""
    print(f"{found['name']}, {found['slow_steps']} of {found['steps']} steps, {found['time_s']:.3f} s", flush=True)
    for row in found["delayed"]:
        shown = row["shown_s"]
        by_rank = " ".join("-" if share is None else f"{100 * share:.0f}" for share in row["hidden_by_rank"])
        told = "nothing to hide" if row["hidden"] is None else f"{100 * row['hidden']:.0f} % hidden, by rank {by_rank}"
        delay_ms = 1e3 * row["delay_s"]
        print(
            f"  {delay_ms:6.2f} ms  shows {shown['plain']:.3f} s plain, {shown['hiding']:.3f} s hiding:  {told}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-N", type=int, default=6144)
    parser.add_argument("--nb", type=int, default=128)
    parser.add_argument("--delays", default="0.02,0.05", help="in mean steps of the plain run, each above 0")
    parser.add_argument("--only", default="", help="pairs whose name has this in it")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    comm = Delayed(world(), Network())
    if comm.size != 2:
        parser.error(f"2 ranks are needed, {comm.size} started; type: mpiexec -n 2 python {sys.argv[0]}")
    cores = one_core_each()
    os.sched_setaffinity(0, {cores[comm.rank % len(cores)]})
    kernels = HostKernels(1)
    shares = [float(word) for word in args.delays.split(",")]
    results = []
    for pair in (pair for pair in PAIRS if args.only in pair.name):
        results.append(measured(comm, pair, args.N, args.nb, shares, args.repeat, kernels))
        if comm.rank == 0:
            say(results[-1])
    if comm.rank == 0 and args.out:
        command = re.sub(r" --out \S+", "", " ".join(["mpiexec -n 2 python", *sys.argv]))
        body = {
            "driver": "benchmarks/hidden_latency.py",
            "command": command,
            "n": args.N,
            "nb": args.nb,
            "machine": host_facts(),
            "software": software_facts(),
            "environment": environment(),
            "results": results,
        }
        args.out.write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
