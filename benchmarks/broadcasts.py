"""Compare each panel broadcast with MPI's own: the time from a barrier until the last rank has the message.

    mpiexec -n 4 python benchmarks/broadcasts.py --mb 1,4,16,64 --out result.json

MPI's own broadcast is MPI_Bcast, called by MPI for Python. All broadcasts alternate in every round. The result is the
median of the slowest rank's times, and `ratio` is this median divided by that of MPI_Bcast. Every rank checks the
message after each broadcast. The table also contains one hop: MPI_Send and MPI_Recv from rank 0 to rank 1. A ring over
Q ranks has Q - 1 hops, one after the other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from mxpeak.comm.base import Task
from mxpeak.comm.broadcast import broadcast
from mxpeak.comm.collectives import allreduce_scalar
from mxpeak.comm.transports.mpi import world
from mxpeak.configs.lu import BCASTS
from mxpeak.layout.cores import core_masks
from mxpeak.perf.host import environment, host_facts, one_core_each, software_facts
from mxpeak.runtime.launch import bind, mpi_facts
from mxpeak.runtime.nodes import nodes_of

#: The names of MPI's own broadcast and of one hop.
OWN, HOP = "MPI_Bcast", "MPI_Send"


def ways(comm: Any) -> dict[str, Callable[[Any], None]]:
    """Return the functions that send a message from rank 0 to all ranks, by name."""

    def ours(name: str) -> Callable[[Any], None]:
        return lambda message: Task(broadcast(name, comm, message, 0)).wait()

    def hop(message: Any) -> None:
        if comm.rank == 0:
            MPI.COMM_WORLD.Send(message, 1)
        elif comm.rank == 1:
            MPI.COMM_WORLD.Recv(message, 0)

    own = {OWN: lambda message: MPI.COMM_WORLD.Bcast(message, 0), HOP: hop}
    return own | {name: ours(name) for name in BCASTS}


def measured(comm: Any, message: Any, send: Callable[[Any], None], number: float, reached: int) -> float:
    """Return the time of the slowest rank from a barrier on. Each rank that receives the message checks it."""
    message[:] = number if comm.rank == 0 else -1.0
    comm.barrier()
    begin = time.perf_counter()
    send(message)
    seconds = allreduce_scalar(comm, time.perf_counter() - begin, "max")
    assert comm.rank >= reached or (message == number).all(), "the message has to arrive whole"
    return seconds


def rows_of(comm: Any, megabytes: int, budget_s: float) -> list[dict[str, Any]]:
    """Measure one message size, in rounds in which all broadcasts alternate, until the time is over."""
    message = np.empty(megabytes * 10**6 // 8)
    everything = ways(comm)
    times: dict[str, list[float]] = {name: [] for name in everything}
    until = time.perf_counter() + budget_s
    rounds = 0
    while comm.bcast_object(rounds < 3 or time.perf_counter() < until):
        rounds += 1
        for k, (name, send) in enumerate(everything.items()):
            times[name].append(measured(comm, message, send, float(100 * rounds + k), 2 if name == HOP else comm.size))
    own = statistics.median(times[OWN][1:])  # the first round touches new memory
    rows = []
    for name, seconds in times.items():
        middle = statistics.median(seconds[1:])
        row = {"mb": megabytes, "name": name, "seconds": middle, "best_s": min(seconds[1:]), "ratio": middle / own}
        rows.append({**row, "rounds": rounds - 1})
    return rows


def main() -> None:
    """Measure all sizes, print a table, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", default="1,4,16,64", help="sizes of the message in MB")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds per message size")
    parser.add_argument("--out", help="JSON file to write")
    args = parser.parse_args()
    comm = world()
    nodes = nodes_of(comm, None)
    machine = host_facts(affinity=one_core_each())
    bind(core_masks(one_core_each(), nodes.size)[nodes.rank][:1])
    rows: list[dict[str, Any]] = []
    for megabytes in map(int, args.mb.split(",")):
        added = rows_of(comm, megabytes, args.seconds)
        rows += added
        if comm.rank == 0:
            print(f"{megabytes} MB, {added[0]['rounds']} rounds")
            for row in added:
                print(
                    f"  {row['name']:<10} {1e3 * row['seconds']:8.2f} ms   {row['ratio']:5.2f} times MPI's", flush=True
                )
    if comm.rank == 0 and args.out:
        about = {"ranks": comm.size, "machine": machine, "software": {**software_facts(), "environment": environment()}}
        body = {"what": "broadcasts from rank 0, beside MPI_Bcast", **about, "mpi": mpi_facts(), "rows": rows}
        Path(args.out).write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
