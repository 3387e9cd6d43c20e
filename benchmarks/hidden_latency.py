"""How much of a slow network's latency an LU hides: every message comes a given time after it was sent.

    mpiexec -n 2 python benchmarks/hidden_latency.py --out result.json

On 1x2 ranks, what look-ahead hides of the panels' way along the rows: HPL-MxP and HPL with and without it, in the first
three quarters of the steps, which take 98 % of the time; updates shrink, and the last cannot hide anything.  On 2x1
ranks, what the split update hides of HPL's row swaps, in the first half of the steps, in which there are two sections.
The network is quick in the other steps.  On four ranks all grids are 2x2.

A latency shows while a rank does nothing but wait for a message that is here to be old enough; so it does not count
that other work slows the machine.  `cost` is what shows on the way to the end: the run would have taken so much less
time without the latency (`delayed.lost`).  A rank that is ahead of the others waits for messages that are not
even sent; what it then waits for a latency no order of work can hide, and it costs no time.  `shown` is what shows on
all ranks together, that included.  `hidden` is the share of what the plain run has, that the other one does not, of
either; all are medians of rounds in which all cases take turns.  Latencies are given in mean steps of the plain run.
The reductions by which FACT finds its pivots are not delayed: a core that waits for one has nothing else to do, and no
order of work hides it.
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

from delayed import Delayed, Network, lost

from mxpeak.comm.grid import make_grid
from mxpeak.comm.transports.mpi import world
from mxpeak.distributed.dense import dist_matrix
from mxpeak.kernels.contract import Kernels
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.layout.generators import generator
from mxpeak.layout.grid import ProcessGrid
from mxpeak.perf.host import environment, host_facts, one_core_each, software_facts
from mxpeak.solvers.lu import lu, pivoted_lu
from mxpeak.solvers.lu.lu import MixedLuOptions
from mxpeak.solvers.lu.pivoted_lu import PivotedLuOptions
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


class Steps:
    """Tells the network of steps, and makes it quick again after one of them."""

    def __init__(self, network: Network, last: int):
        self._network, self._last = network, last

    def start(self, label: str, total_flops: float) -> None:
        """Nothing is to be done."""

    def step(self, step: Step) -> None:
        """One is done; perhaps the last with a slow network."""
        self._network.step()
        if step.index >= self._last:
            self._network.delay_s = 0.0

    def finish(self, label: str, elapsed_s: float) -> None:
        """Nothing is to be done."""


PAIRS = (
    Pair("HPL-MxP, look-ahead", (1, 2), MixedLuOptions(lookahead=0), MixedLuOptions(), 0.75),
    Pair("HPL, look-ahead", (1, 2), PivotedLuOptions(lookahead=0), PivotedLuOptions(), 0.75),
    Pair("HPL, split update", (2, 1), PivotedLuOptions(), PivotedLuOptions(split=0.5), 0.5),
)


@dataclass(frozen=True, slots=True)
class Run:
    """One factorization: how long it took; what the latency cost, and what showed of it on all ranks."""

    time_s: float
    cost_s: float
    shown_s: float


def worker(
    comm: Delayed, shape: tuple[int, int], pair: Pair, n: int, nb: int, kernels: Kernels
) -> Callable[[Any], Run]:
    """What factors the pair's matrix by some options."""
    grid = make_grid(ProcessGrid(*shape), comm)
    assert grid is not None
    pivoted = isinstance(pair.plain, PivotedLuOptions)
    A = dist_matrix(grid, n, n + pivoted, nb, kernels, "fp64" if pivoted else "fp32")
    entries = generator("hpl" if pivoted else "dominant-n", n).entries

    def run(options: Any) -> Run:
        kernels.generate(A.local, A.rows, A.cols, entries)
        factorize: Any = pivoted_lu.factorize if pivoted else lu.factorize
        spans = Spans(observers=[Steps(comm.network, round(pair.steps * -(-n // nb)))])
        comm.barrier()
        comm.network.waits, begin_s = [], time.perf_counter()
        singular = factorize(A, options, kernels, spans)
        assert singular == 0
        all_ranks = comm.gather_objects((time.perf_counter(), comm.network.waits))
        own = None
        if all_ranks:
            ends, waits = [end_s for end_s, _ in all_ranks], [of_rank for _, of_rank in all_ranks]
            shown_s = sum(wait.shown_s for of_rank in waits for wait in of_rank)
            own = Run(max(ends) - begin_s, lost(waits, ends), shown_s)
        shared: Run = comm.bcast_object(own)
        return shared

    return run


def measured(
    comm: Delayed, pair: Pair, n: int, nb: int, shares: list[float], repeat: int, kernels: Kernels
) -> dict[str, Any]:
    """Both members of a pair under every delay, in turns."""
    shape = pair.shape if comm.size == 2 else (2, 2)
    run, steps = worker(comm, shape, pair, n, nb, kernels), -(-n // nb)
    comm.network.delay_s = 0.0
    plain_s = min(run(pair.plain).time_s for _ in range(3))
    delays = [share * plain_s / steps for share in shares]
    cases = [(form, delay) for delay in delays for form in FORMS]
    runs: dict[tuple[str, float], list[Run]] = {case: [] for case in cases}
    for turn in range(repeat):
        for k in range(len(cases)):
            form, comm.network.delay_s = case = cases[(turn + k) % len(cases)]
            runs[case].append(run(getattr(pair, form)))
    rows = []
    for share, delay in zip(shares, delays):
        cost_s = {form: statistics.median(sample.cost_s for sample in runs[form, delay]) for form in FORMS}
        shown_s = {form: statistics.median(sample.shown_s for sample in runs[form, delay]) for form in FORMS}
        rows.append(
            {
                "delay_steps": share,
                "delay_s": delay,
                "time_s": {form: statistics.median(sample.time_s for sample in runs[form, delay]) for form in FORMS},
                "cost_s": cost_s,
                "shown_s": shown_s,
                "hidden": hidden(**cost_s),
                "hidden_of_shown": hidden(**shown_s),
                "hidden_by_round": [
                    hidden(plain.cost_s, hiding.cost_s) for plain, hiding in zip(*(runs[form, delay] for form in FORMS))
                ],
            }
        )
    return {
        "name": pair.name,
        "grid": shape,
        "steps": steps,
        "slow_steps": round(pair.steps * steps),
        "time_s": plain_s,
        "delayed": rows,
    }


def hidden(plain: float, hiding: float) -> float | None:
    """The share of what the plain run has that the other one does not; None where it has nothing."""
    return 1 - hiding / plain if plain else None


def say(case: dict[str, Any]) -> None:
    """One pair as text."""
    print(f"{case['name']}, {case['slow_steps']} of {case['steps']} steps, {case['time_s']:.3f} s", flush=True)
    for row in case["delayed"]:
        texts = [
            f"{name} {row[key]['plain']:.3f} s plain, {row[key]['hiding']:.3f} s hiding: "
            + ("nothing to hide" if share is None else f"{100 * share:.0f} % hidden")
            for name, key, share in (("costs", "cost_s", row["hidden"]), ("shows", "shown_s", row["hidden_of_shown"]))
        ]
        print(f"  {1e3 * row['delay_s']:6.2f} ms  {texts[0]};  {texts[1]}", flush=True)


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
    if comm.size not in (2, 4):
        parser.error(f"2 or 4 ranks are needed, {comm.size} started; type: mpiexec -n 2 python {sys.argv[0]}")
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
        command = re.sub(r" --out \S+", "", " ".join([f"mpiexec -n {comm.size} python", *sys.argv]))
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
