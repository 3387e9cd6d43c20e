"""How much of a slow network is hidden behind sweeps and products: messages arrive a while after they were asked for.

    mpiexec -n 2 python benchmarks/halo_overlap.py --nx 64 --out result.json

For each order of the rows and each delay: a product, a sweep, the residual at the coarser points, all on the finest
level, and a whole cycle of multigrid, which waits for six halos; its sweeps are symmetric (HPCG) or go forward only
(HPG-MxP).

`hidden` is the share of the delay, times the halos, that the slowest rank's time did not grow by: the median over
rounds of what the delayed took longer than that without, beside it.  `over` is the share that was over when a rank came
to wait for its message, the least of the ranks': it tells small delays from the noise, but not what a late rank costs
those that wait for it, as with rows in their natural order.
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
        came = self._request.test()  # at each look, for a long message travels while MPI is asked for it
        return came and time.perf_counter() >= self._due

    def wait(self) -> None:
        """Test until both are so."""
        self._late.exposed_s += max(0.0, self._due - time.perf_counter())
        while not self.test():
            os.sched_yield()


class Late:
    """A communicator whose messages take `delay_s` longer; for that alone this rank waited `exposed_s`."""

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


def compared(late: list[tuple[float, float]], plain_s: list[float], delay_s: float, halos: int) -> dict[str, float]:
    """What of a delay was hidden, from rounds with it beside those without."""
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
            call()  # what another kind of work left in the caches is not what is measured
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
