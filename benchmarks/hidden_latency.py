"""Measure which share of a slow network's latency an LU hides: every message arrives a given time after it was sent.

    mpiexec -n 2 python benchmarks/hidden_latency.py --out result.json

On 1x2 ranks, the script measures how look-ahead hides the broadcasts of panels along process rows. It runs HPL-MxP and
HPL with and without look-ahead. The network is slow in the first three quarters of the steps, which take 98 % of the
time. The last updates are too short to hide a message. On 2x1 ranks, the script measures how the split update hides
HPL's row swaps. There, the network is slow in the first half of the steps, in which the update has two sections. On
four ranks, all grids are 2x2.

A latency is exposed while a rank only waits for a message that has arrived but is not yet old enough. Other work on the
machine therefore does not count. `cost` is the exposed latency on the path that determines the run time: without the
latency, the run would take this much less time (`delayed.lost`). A rank that is ahead of the others waits for messages
that have not been sent. No order of work can hide this latency, and it costs no time. `shown` is the sum of all exposed
latencies over all ranks, including these. For both, `hidden` is the share of the plain run's value that the other run
does not have. All values are medians of rounds in which all cases alternate. Latencies are given in mean steps of the
plain run. The reductions that find FACT's pivots are not delayed, because no order of work hides them.
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
    """The same LU without and with the option that hides latency, and the share of steps with a slow network."""

    name: str
    shape: tuple[int, int]
    plain: MixedLuOptions | PivotedLuOptions
    hiding: MixedLuOptions | PivotedLuOptions
    steps: float


class Steps:
    """An observer that reports steps to the network, and sets the latency to zero after a given step."""

    def __init__(self, network: Network, last: int):
        self._network, self._last = network, last

    def start(self, label: str, total_flops: float) -> None:
        """Do nothing."""

    def step(self, step: Step) -> None:
        """Report the end of a step. After the last step with a slow network, set the latency to zero."""
        self._network.step()
        if step.index >= self._last:
            self._network.delay_s = 0.0

    def finish(self, label: str, elapsed_s: float) -> None:
        """Do nothing."""


PAIRS = (
    Pair("HPL-MxP, look-ahead", (1, 2), MixedLuOptions(lookahead=0), MixedLuOptions(), 0.75),
    Pair("HPL, look-ahead", (1, 2), PivotedLuOptions(lookahead=0), PivotedLuOptions(), 0.75),
    Pair("HPL, split update", (2, 1), PivotedLuOptions(), PivotedLuOptions(split=0.5), 0.5),
)


@dataclass(frozen=True, slots=True)
class Run:
    """The time of one factorization, the time that the latency cost, and the exposed latency over all ranks."""

    time_s: float
    cost_s: float
    shown_s: float


def worker(
    comm: Delayed, shape: tuple[int, int], pair: Pair, n: int, nb: int, kernels: Kernels
) -> Callable[[Any], Run]:
    """Return a function that factors the pair's matrix with given options."""
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
    """Measure both members of a pair alternately for every delay."""
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
    """Return the share of the plain run's value that the other run does not have, or None if the value is zero."""
    return 1 - hiding / plain if plain else None


def say(case: dict[str, Any]) -> None:
    """Return one pair as text."""
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
    parser.add_argument("--delays", default="0.02,0.05", help="positive delays in mean steps of the plain run")
    parser.add_argument("--only", default="", help="run only pairs whose name contains this text")
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
