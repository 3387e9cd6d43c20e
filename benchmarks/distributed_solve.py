"""Compare mxpeak.solve over ranks with ScaLAPACK's pdgesv on the same ranks and NumPy's solve on all cores.

    mpiexec -n 2 python benchmarks/distributed_solve.py --n 8000 --scalapack /path/to/libscalapack.so --out result.json

The ScaLAPACK library must have 32-bit integers, the MPI library that mpi4py loads, and a BLAS with one thread per rank.
Without --scalapack, it is omitted. All solvers solve the same random system, one after the other in every round. The
distributed solvers have A on their grid before the clock starts. NumPy has all of A on rank 0 and uses all cores of the
ranks, while the other ranks sleep. A time is that of the slowest rank from a barrier on. Ratios are medians of the
ratios of each round. eta is ||b - A x||_inf / ((||A||_inf ||x||_inf + ||b||_inf) n u).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from norms_vs_scalapack import ScaLapack, integers, pointer
from threadpoolctl import threadpool_limits

import mxpeak as mx
from mxpeak.comm.base import Communicator, meet_asleep
from mxpeak.comm.collectives import allreduce_scalar
from mxpeak.comm.transports.mpi import world
from mxpeak.configs.grid import squarest
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.perf.host import environment, host_facts, software_facts

U = 2.0**-53


def by_scalapack(library: ScaLapack, A: Any, b: Any, nb: int) -> Callable[[], Any]:
    """Return a function that solves by pdgesv, with x on all ranks.

    The local arrays are copied again before each call.
    """
    n, k = b.shape
    rows, cols = BlockCyclic(n, nb, library.p, library.P), BlockCyclic(n, nb, library.q, library.Q)
    sides = BlockCyclic(k, nb, library.q, library.Q)
    i, j = (part.to_global(np.arange(part.local_size)) for part in (rows, cols))
    A_kept = np.asfortranarray(A[np.ix_(i, j)])
    of_sides = sides.to_global(np.arange(sides.local_size))
    b_kept = np.asfortranarray(b[np.ix_(i, of_sides)])
    lead = max(1, len(i))
    descriptors = [(ctypes.c_int * 9)(1, library.context, n, columns, nb, nb, 0, 0, lead) for columns in (n, k)]
    pivots = np.zeros(len(i) + nb, np.int32)
    A_local, b_local = A_kept.copy("F"), b_kept.copy("F")

    def prepare() -> None:
        A_local[:], b_local[:] = A_kept, b_kept

    def solve() -> Any:
        info, one = ctypes.c_int(), integers(1)[0]
        order, count = integers(n, k)
        library._lib.pdgesv_(
            order, count, pointer(A_local), one, one, descriptors[0], pointer(pivots),
            pointer(b_local), one, one, descriptors[1], ctypes.byref(info),
        )  # fmt: skip
        assert info.value == 0, f"pdgesv: info = {info.value}"
        x = np.zeros((n, k))
        x[np.ix_(i, of_sides)] = b_local
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, x)
        return x

    solve.prepare = prepare  # type: ignore[attr-defined]
    return solve


def by_numpy(comm: Communicator, A: Any, b: Any) -> Callable[[], Any]:
    """Return a function that solves on rank 0 with all cores."""

    def solve() -> Any:
        x = np.linalg.solve(A, b) if comm.rank == 0 else None
        meet_asleep(comm)
        return comm.bcast_object(x)

    return solve


def by_mxpeak(A: mx.DistributedMatrix, b: Any, precision: str) -> Callable[[], Any]:
    """Return a function that solves on the grid."""
    return lambda: mx.solve(A, b, precision=precision)[0]


def timed(comm: Communicator, solve: Callable[[], Any]) -> tuple[float, Any]:
    """Return the time of the slowest rank, and x."""
    getattr(solve, "prepare", lambda: None)()
    comm.barrier()
    begin = time.perf_counter()
    x = solve()
    return allreduce_scalar(comm, time.perf_counter() - begin, "max"), x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=8000)
    parser.add_argument("--sides", type=int, default=1, help="number of right-hand sides")
    parser.add_argument("--nb", type=int, default=192, help="block size of mxpeak")
    parser.add_argument("--scalapack-nb", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scalapack", help="path of the ScaLAPACK library")
    parser.add_argument("--out")
    args = parser.parse_args()
    comm, n = world(), args.n
    rng = np.random.default_rng(7)
    A, b = rng.uniform(-1.0, 1.0, (n, n)), rng.uniform(-1.0, 1.0, (n, args.sides))
    P, Q = squarest(comm.size)
    ours = mx.DistributedMatrix.from_root(A if comm.rank == 0 else None, nb=args.nb, grid=(P, Q))
    ways = {
        "mxpeak": by_mxpeak(ours, b, "auto"),
        "mxpeak in fp64": by_mxpeak(ours, b, "fp64"),
        "numpy.linalg.solve": by_numpy(comm, A, b),
    }
    if args.scalapack:
        library = ScaLapack(args.scalapack, P, Q)
        with threadpool_limits(1):
            ways["ScaLAPACK pdgesv"] = by_scalapack(library, A, b, args.scalapack_nb)
    times: dict[str, list[float]] = {name: [] for name in ways}
    etas: dict[str, float] = {}
    A_inf = np.abs(A).sum(axis=1).max()
    for k in range(args.rounds + 1):  # the first round is not counted
        for name, solve in ways.items():
            with threadpool_limits(1 if "ScaLAPACK" in name else None):
                seconds, x = timed(comm, solve)
            scale = A_inf * np.abs(x).max(axis=0) + np.abs(b).max(axis=0)
            etas[name] = float((np.abs(b - A @ x).max(axis=0) / (scale * n * U)).max())
            if k:
                times[name].append(seconds)
            if comm.rank == 0:
                print(f"round {k}  {name:20s} {seconds:7.2f} s  eta {etas[name]:.1e}", flush=True)
    if comm.rank == 0:
        ratios = {
            name: statistics.median(theirs / own for theirs, own in zip(found, times["mxpeak"]))
            for name, found in times.items()
        }
        for name, ratio in ratios.items():
            print(f"{name:20s} {statistics.median(times[name]):7.2f} s  {ratio:5.2f} times mxpeak's")
        if args.out:
            about = {
                "n": n,
                "sides": args.sides,
                "grid": [P, Q],
                "nb": args.nb,
                "scalapack_nb": args.scalapack_nb,
                "rounds": args.rounds,
            }
            body = {
                "schema": "mxpeak.distributed-solve/1", "settings": about, "seconds": times,
                "times_mxpeak": ratios, "eta": etas,
                "machine": host_facts(), "software": software_facts(), "environment": environment(),
            }  # fmt: skip
            Path(args.out).write_text(json.dumps(body, indent=2) + "\n")


if __name__ == "__main__":
    main()
