"""How much of a slow network is hidden behind sweeps and products: messages arrive a while after they were asked for.

    mpiexec -n 2 python benchmarks/halo_overlap.py --nx 64 --out result.json

For each order of the rows and each delay: a product, a sweep, the residual at the coarser points, all on the finest
level, and a whole cycle of multigrid with symmetric sweeps, which waits for six halos.  `hidden` is the share of the
delay, times the halos, that the time did not grow by: medians of the slowest rank's time, in rounds in which all delays
take turns.  `possible` is the share of a cycle's delays that its work without halos would hide, each halo's by its own.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mxpeak.comm.base import Request
from mxpeak.comm.mpi import world
from mxpeak.distributed.sparse import Level
from mxpeak.distributed.stencil import Form, make_stencil, weights
from mxpeak.kernels.host.sparse import HostSparse
from mxpeak.kernels.host.team import Team
from mxpeak.layout.stencil import LEVELS, Box, process_grid
from mxpeak.perf.host import environment, host_facts, one_core_each, software_facts
from mxpeak.solvers.multigrid import cycle
from mxpeak.spans import Spans

#: Orders with what is stored for them.
FORMS = (("natural", "packed"), ("surface_last", "packed"), ("surface_last", "rows"), ("greedy", "packed"))


class LateRequest:
    """A receive that is complete no sooner than a while after it was asked for."""

    def __init__(self, request: Request, delay_s: float):
        self._request, self._due = request, time.perf_counter() + delay_s

    def test(self) -> bool:
        """Whether it has come, and its time too."""
        return time.perf_counter() >= self._due and self._request.test()

    def wait(self) -> None:
        """Test until both are so."""
        while not self.test():
            os.sched_yield()


class Late:
    """A communicator whose messages take `delay_s` longer."""

    delay_s = 0.0

    def __init__(self, comm: Any):
        self._comm = comm

    def repeated(self, *messages: Any) -> None:
        """Each message by itself, or none would be late."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def irecv(self, buffer: Any, source: int, tag: int = 0) -> Request:
        """Begin to receive."""
        return LateRequest(self._comm.irecv(buffer, source, tag), self.delay_s)


def seconds(comm: Any, work: Callable[[], object]) -> float:
    """The time of the slowest rank, from a barrier on."""
    comm.barrier()
    begin = time.perf_counter()
    work()
    elapsed = np.full(1, time.perf_counter() - begin)
    comm.allreduce(elapsed, "max")
    return float(elapsed[0])


def meanwhile(kernels: HostSparse, level: Level, b: Any) -> Iterator[Callable[[], object]]:
    """What a cycle does while its halos travel, one after the other: sweeps and residuals of rows that need none."""
    while level.coarser is not None:
        A, x, keep = level.A.A, level.x, level.keep
        yield partial(kernels.relax, A, b, x, halo=False, keep=keep)
        yield partial(kernels.residual_at, A, b, x, level.points, level.r, halo=False, swept=keep is None, keep=keep)
        level, b = level.coarser, level.r


def measured(comm: Late, box: Box, order: str, storage: str, delays: list[float], repeat: int) -> dict[str, Any]:
    kernels = HostSparse(Team(1))
    form = Form(("fp64",) * LEVELS, "fp64", storage, symmetric=True)
    made = make_stencil(kernels, comm, box.levels(LEVELS), [form], order, weights(), Spans())  # type: ignore[arg-type]
    top = made.hierarchies[0].top
    y = kernels.xp.zeros(box.rows)
    work = {
        "product": (1, partial(top.A.multiply, top.x, y)),
        "sweep": (1, partial(top.A.relax, made.b, top.x, top.keep)),
        "residual": (1, partial(top.restrict, made.b)),
        "cycle": (2 * (LEVELS - 1), partial(cycle, top, made.b)),
    }
    times: dict[tuple[str, float], list[float]] = {(name, delay): [] for name in work for delay in delays}
    for turn in range(repeat):
        for name, (_, call) in work.items():
            call()  # what another kind of work left in the caches is not what is measured
            for k in range(len(delays)):
                comm.delay_s = delay = delays[(turn + k) % len(delays)]
                times[name, delay].append(seconds(comm, call))
    found: dict[str, Any] = {}
    for name, (halos, _) in work.items():
        time_s = {delay: statistics.median(times[name, delay]) for delay in delays}
        hidden = {delay: 1 - (time_s[delay] - time_s[0.0]) / (halos * delay) for delay in delays if delay}
        found[name] = {
            "time_s": time_s[0.0],
            "halos": halos,
            "delayed": [{"delay_s": d, "time_s": time_s[d], "hidden": hidden[d]} for d in hidden],
        }
    comm.delay_s = 0.0
    behind_s = [
        statistics.median(seconds(comm, call) for _ in range(repeat)) for call in meanwhile(kernels, top, made.b)
    ]
    for row in found["cycle"]["delayed"]:
        row["possible"] = statistics.mean(min(1.0, one / row["delay_s"]) for one in behind_s)
    found["cycle"]["behind_s"] = behind_s
    return {"order": order, "storage": storage, "rows_at_a_time": top.A.A.rows_at_a_time, "work": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nx", type=int, default=64, help="points a side of a rank's box")
    parser.add_argument("--delays", default="0.1,0.5,2", help="milliseconds, besides 0")
    parser.add_argument("--repeat", type=int, default=30)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    comm = Late(world())
    cores = one_core_each()
    os.sched_setaffinity(0, {cores[comm.rank % len(cores)]})
    box = Box.of(comm.rank, (args.nx,) * 3, process_grid(comm.size))
    delays = [0.0, *(float(word) / 1e3 for word in args.delays.split(","))]
    found = []
    for order, storage in FORMS:
        found.append(measured(comm, box, order, storage, delays, args.repeat))
        for name, one in found[-1]["work"].items():
            shares = ", ".join(
                f"{1e3 * d['delay_s']:g} ms {100 * d['hidden']:.0f} %"
                + (f" ({100 * d['possible']:.0f} % possible)" if "possible" in d else "")
                for d in one["delayed"]
            )
            if comm.rank == 0:
                print(
                    f"{order:13s}{storage:8s}{name:10s}{1e3 * one['time_s']:8.3f} ms   hidden of {shares}", flush=True
                )
    if comm.rank == 0 and args.out:
        command = re.sub(r" --out \S+", "", " ".join(["mpiexec", "-n", str(comm.size), "python", *sys.argv]))
        body = {
            "driver": "benchmarks/halo_overlap.py",
            "command": command,
            "nx": args.nx,
            "grid": box.grid,
            "machine": host_facts(),
            "software": software_facts(),
            "environment": environment(),
            "results": found,
        }
        args.out.write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
