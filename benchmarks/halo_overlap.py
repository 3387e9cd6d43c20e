"""How much of a slow network is hidden behind sweeps and products: messages arrive a while after they were asked for.

    mpiexec -n 2 python benchmarks/halo_overlap.py --nx 64 --out result.json

For each order of the rows and each delay: a product, a sweep, the residual at the coarser points, all on the finest
level, and a whole cycle of multigrid, which waits for six halos; its sweeps are symmetric (HPCG) or go forward only
(HPG-MxP).  `hidden` is the share of the delays that was over when ranks came to wait: the least of the ranks', a median
over rounds in which all delays take turns.  `by_time` is the share that the slowest rank's time did not grow by, which
is the same where times vary by less than the delays.  `possible` is the share of a cycle's delays that its work without
halos would hide, each halo's by its own.
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

#: Orders, what is stored for them, and whether sweeps are symmetric.
FORMS = (
    ("natural", "packed", True),
    ("surface_last", "packed", True),
    ("surface_last", "rows", True),
    ("greedy", "packed", False),
    ("surface_last", "rows", False),
)


class LateRequest:
    """A receive that is complete no sooner than a while after it was asked for."""

    def __init__(self, request: Request, late: Late):
        self._request, self._late, self._due = request, late, time.perf_counter() + late.delay_s

    def test(self) -> bool:
        """Whether it has come, and its time too."""
        return time.perf_counter() >= self._due and self._request.test()

    def wait(self) -> None:
        """Test until both are so."""
        self._late.exposed_s += max(0.0, self._due - time.perf_counter())
        while not self.test():
            os.sched_yield()


class Late:
    """A communicator whose messages take `delay_s` longer, of which ranks waited `exposed_s` for nothing else."""

    delay_s = exposed_s = 0.0

    def __init__(self, comm: Any):
        self._comm = comm

    def repeated(self, *messages: Any) -> None:
        """Each message by itself, or none would be late."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def irecv(self, buffer: Any, source: int, tag: int = 0) -> Request:
        """Begin to receive."""
        return LateRequest(self._comm.irecv(buffer, source, tag), self)


def seconds(comm: Late, work: Callable[[], object]) -> tuple[float, float]:
    """The time of the slowest rank, from a barrier on, and the most that one waited for delays."""
    comm.barrier()
    comm.exposed_s, begin = 0.0, time.perf_counter()
    work()
    found = np.array([time.perf_counter() - begin, comm.exposed_s])
    comm.allreduce(found, "max")
    return float(found[0]), float(found[1])


def meanwhile(kernels: HostSparse, level: Level, b: Any) -> Iterator[Callable[[], object]]:
    """What a cycle does while its halos travel, one after the other: sweeps and residuals of rows that need none."""
    while level.coarser is not None:
        yield partial(kernels.relax, level.A.A, b, level.x, halo=False, keep=level.keep)
        yield partial(_to_residual, kernels, level, b)
        level, b = level.coarser, level.r


def _to_residual(kernels: HostSparse, level: Level, b: Any) -> None:
    """The residual, after the sweep behind which its halo begins to travel."""
    A, x, keep = level.A.A, level.x, level.keep
    kernels.relax(A, b, x, halo=False, from_zero=keep is None, backward=keep is not None, keep=keep)
    kernels.residual_at(A, b, x, level.points, level.r, halo=False, swept=keep is None, keep=keep)


def measured(
    comm: Late, box: Box, order: str, storage: str, delays: list[float], repeat: int, *, symmetric: bool
) -> dict[str, Any]:
    kernels = HostSparse(Team(1))
    form = Form(("fp64",) * LEVELS, "fp64", storage, symmetric=symmetric)
    made = make_stencil(kernels, comm, box.levels(LEVELS), [form], order, weights(), Spans())  # type: ignore[arg-type]
    top = made.hierarchies[0].top
    y = kernels.xp.zeros(box.rows)
    work = {
        "product": (1, partial(top.A.multiply, top.x, y)),
        "sweep": (1, partial(top.A.relax, made.b, top.x, top.keep)),
        "residual": (1, partial(top.restrict, made.b)),
        "cycle": (2 * (LEVELS - 1), partial(cycle, top, made.b)),
    }
    times: dict[tuple[str, float], list[tuple[float, float]]] = {(name, delay): [] for name in work for delay in delays}
    for turn in range(repeat):
        for name, (_, call) in work.items():
            call()  # what another kind of work left in the caches is not what is measured
            for k in range(len(delays)):
                comm.delay_s = delay = delays[(turn + k) % len(delays)]
                times[name, delay].append(seconds(comm, call))
    found: dict[str, Any] = {}
    for name, (halos, _) in work.items():
        medians = {delay: [statistics.median(one) for one in zip(*times[name, delay])] for delay in delays}
        none_s = medians[0.0][0]
        found[name] = {
            "time_s": none_s,
            "halos": halos,
            "delayed": [
                {
                    "delay_s": delay,
                    "time_s": time_s,
                    "hidden": 1 - exposed_s / (halos * delay),
                    "by_time": 1 - (time_s - none_s) / (halos * delay),
                }
                for delay, (time_s, exposed_s) in medians.items()
                if delay
            ],
        }
    comm.delay_s = 0.0
    behind_s = [
        statistics.median(seconds(comm, call)[0] for _ in range(repeat)) for call in meanwhile(kernels, top, made.b)
    ]
    for row in found["cycle"]["delayed"]:
        row["possible"] = statistics.mean(min(1.0, one / row["delay_s"]) for one in behind_s)
    found["cycle"]["behind_s"] = behind_s
    one = {"order": order, "storage": storage, "symmetric": symmetric}
    return one | {"rows_at_a_time": top.A.A.rows_at_a_time, "work": found}


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
    for order, storage, symmetric in FORMS:
        found.append(measured(comm, box, order, storage, delays, args.repeat, symmetric=symmetric))
        for name, one in found[-1]["work"].items():
            shares = ", ".join(
                f"{1e3 * d['delay_s']:g} ms {100 * d['hidden']:.0f} % ({100 * d['by_time']:.0f} % by time"
                + (f", {100 * d['possible']:.0f} % possible)" if "possible" in d else ")")
                for d in one["delayed"]
            )
            if comm.rank == 0:
                sweeps = "symmetric" if symmetric else "forward"
                time_ms = 1e3 * one["time_s"]
                print(
                    f"{order:13s}{storage:8s}{sweeps:10s}{name:10s}{time_ms:8.3f} ms   hidden of {shares}", flush=True
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
