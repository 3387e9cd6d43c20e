"""Measure which share of a slow network's latency sweeps and products hide: messages arrive with an additional delay.

    mpiexec -n 2 python benchmarks/halo_overlap.py --nx 64 --out result.json

For each order of the rows and each delay, the script measures a product, a sweep and the residual at the coarse points
on the finest level, and a complete multigrid cycle, which waits for six halos. The sweeps of the cycle are symmetric
(HPCG) or only forward (HPG-MxP).

`hidden` is the share of the total delay of all halos that the slowest rank's time did not increase by. It is the median
over rounds that compare the delayed run with a run without delay. `over` is the share of the delay that had passed when
a rank began to wait for its message, the minimum over the ranks. It distinguishes small delays from noise. However, it
does not include the cost of a late rank for the ranks that wait for it, for example with rows in natural order.
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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mxpeak.comm.base import Request
from mxpeak.comm.transports.mpi import world
from mxpeak.distributed.stencil import Form, make_stencil, weights
from mxpeak.kernels.host.engine.team import Team
from mxpeak.kernels.host.sparse.sparse import HostSparse
from mxpeak.layout.stencil import LEVELS, Box, process_grid
from mxpeak.perf.host import environment, host_facts, one_core_each, software_facts
from mxpeak.solvers.multigrid import cycle
from mxpeak.spans import Spans

#: Orders of the rows, their storage, and whether sweeps are symmetric.
FORMS = (
    ("natural", "packed", True),
    ("surface_last", "packed", True),
    ("surface_last", "rows", True),
    ("greedy", "packed", False),
    ("surface_last", "rows", False),
)


class LateRequest:
    """A receive that is complete at the earliest after a given delay."""

    def __init__(self, request: Request, late: Late):
        self._request, self._late, self._due = request, late, time.perf_counter() + late.delay_s

    def test(self) -> bool:
        """Return whether the message has arrived and the delay has passed."""
        came = self._request.test()  # in each test, because a long message makes progress only inside MPI
        return came and time.perf_counter() >= self._due

    def wait(self) -> None:
        """Test until the message has arrived and the delay has passed."""
        self._late.exposed_s += max(0.0, self._due - time.perf_counter())
        while not self.test():
            os.sched_yield()


class Late:
    """A communicator whose messages take `delay_s` longer; `exposed_s` is the waiting time due to the delays."""

    delay_s = exposed_s = 0.0

    def __init__(self, comm: Any):
        self._comm = comm

    def repeated(self, *messages: Any) -> None:
        """Return None, because persistent messages would not be delayed."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def irecv(self, buffer: Any, source: int, tag: int = 0) -> Request:
        """Start to receive a message."""
        return LateRequest(self._comm.irecv(buffer, source, tag), self)


def seconds(comm: Late, work: Callable[[], object]) -> tuple[float, float]:
    """Return the time of the slowest rank from a barrier on, and the largest time that a rank waited for delays."""
    comm.barrier()
    comm.exposed_s, begin = 0.0, time.perf_counter()
    work()
    found = np.array([time.perf_counter() - begin, comm.exposed_s])
    comm.allreduce(found, "max")
    return float(found[0]), float(found[1])


def compared(late: list[tuple[float, float]], plain_s: list[float], delay_s: float, halos: int) -> dict[str, float]:
    """Return which share of a delay was hidden, from the times of rounds with and without it."""
    grown_s = statistics.median(time_s - without_s for (time_s, _), without_s in zip(late, plain_s))
    exposed_s = statistics.median(exposed_s for _, exposed_s in late)
    return {
        "delay_s": delay_s,
        "time_s": statistics.median(time_s for time_s, _ in late),
        "hidden": 1 - grown_s / (halos * delay_s),
        "over": 1 - exposed_s / (halos * delay_s),
    }


def measured(
    comm: Late, box: Box, order: str, storage: str, delays: list[float], repeat: int, *, symmetric: bool
) -> dict[str, Any]:
    kernels = HostSparse(Team(1))
    form = Form(("fp64",) * LEVELS, "fp64", storage, symmetric=symmetric)
    problem = make_stencil(kernels, comm, box.levels(LEVELS), [form], order, weights(), Spans())  # type: ignore[arg-type]
    top = problem.hierarchies[0].top
    y = kernels.xp.zeros(box.rows)
    work = {
        "product": (1, partial(top.A.multiply, top.x, y)),
        "sweep": (1, partial(top.A.relax, problem.b, top.x, top.keep)),
        "residual": (1, partial(top.restrict, problem.b)),
        "cycle": (2 * (LEVELS - 1), partial(cycle, top, problem.b)),
    }
    times: dict[tuple[str, float], list[tuple[float, float]]] = {(name, delay): [] for name in work for delay in delays}
    for turn in range(repeat):
        for name, (_, call) in work.items():
            call()  # replaces cached data of other work
            for k in range(len(delays)):
                comm.delay_s = delay = delays[(turn + k) % len(delays)]
                times[name, delay].append(seconds(comm, call))
    work_of: dict[str, Any] = {}
    for name, (halos, _) in work.items():
        plain_s = [time_s for time_s, _ in times[name, 0.0]]
        work_of[name] = {
            "time_s": statistics.median(plain_s),
            "halos": halos,
            "delayed": [compared(times[name, delay], plain_s, delay, halos) for delay in delays if delay],
        }
    one = {"order": order, "storage": storage, "symmetric": symmetric}
    return one | {"rows_at_a_time": top.A.A.rows_at_a_time, "work": work_of}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nx", type=int, default=64, help="points per side of a rank's box")
    parser.add_argument("--delays", default="0.1,0.5,2", help="delays in milliseconds, in addition to 0")
    parser.add_argument("--repeat", type=int, default=30)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    comm = Late(world())
    cores = one_core_each()
    os.sched_setaffinity(0, {cores[comm.rank % len(cores)]})
    box = Box.of(comm.rank, (args.nx,) * 3, process_grid(comm.size))
    delays = [0.0, *(float(word) / 1e3 for word in args.delays.split(","))]
    configurations = []
    for order, storage, symmetric in FORMS:
        configurations.append(measured(comm, box, order, storage, delays, args.repeat, symmetric=symmetric))
        for name, timing in configurations[-1]["work"].items():
            shares = ", ".join(
                f"{1e3 * d['delay_s']:g} ms {100 * d['hidden']:.0f} % ({100 * d['over']:.0f} % over)"
                for d in timing["delayed"]
            )
            if comm.rank == 0:
                sweeps = "symmetric" if symmetric else "forward"
                time_ms = 1e3 * timing["time_s"]
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
            "results": configurations,
        }
        args.out.write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
