"""Compare mxpeak.gmres over ranks with PETSc's GMRES and its algebraic multigrid GAMG, on the same number of ranks.

    python benchmarks/gmres_over_ranks.py --petsc "mpiexec.openmpi -n 2 /usr/bin/python3" --petsc-env petsc.env

`--petsc` is the command that starts Python with petsc4py on the ranks. `--petsc-env` is a file with its environment,
one NAME=value per line. PETSc uses a different MPI library, so each solve starts new processes.

Both solve the same systems with m³ unknowns, distributed in equal blocks of rows: Poisson's equation with 7 points, and
upwind convection–diffusion, with a random b. The clock runs from a barrier to the end of the slowest rank and includes
the set-up and the solve. The rows are then already in memory (for PETSc, as a Mat), and a small earlier solve has
loaded all libraries. The method is GMRES(30) with the preconditioner on the right, to ||b - A x|| <= rtol ||b||, and
the residual is recomputed afterwards. GAMG runs with its defaults and with other recommended settings, and the fastest
of them is compared. A solve that does not converge, or takes longer than --limit including its start, is not compared.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

#: The settings of GAMG, as options of PETSc.
GAMG = {
    "GAMG": "",
    "GAMG, SOR": "-mg_levels_ksp_type richardson -mg_levels_pc_type sor",
    "GAMG, unsmoothed": "-pc_gamg_agg_nsmooths 0",
}
#: Velocities of the convection, which are multiplied by the mesh width in the upwind differences.
WIND = (50.0, 25.0, 10.0)
KINDS = ("poisson", "convection")
#: Points per side of the small system that is solved first.
SMALL = 12


def rows(kind: str, m: int, first: int, last: int) -> tuple[Any, Any, Any]:
    """Return rows first … last-1 of the matrix on m³ points in compressed form: indptr, columns and values."""
    k = np.arange(first, last)
    z, y, x = k // m**2, k // m % m, k % m
    drift = [speed / (m + 1) if kind == "convection" else 0.0 for speed in WIND]
    columns, values, there = [], [], []
    for at, stride, speed in ((z, m * m, drift[2]), (y, m, drift[1]), (x, 1, drift[0])):
        columns += [k - stride, k + stride]
        values += [-1.0 - speed, -1.0]
        there += [at > 0, at < m - 1]
    order = [0, 2, 4, 6, 5, 3, 1]  # sorts the columns
    columns, values = [*columns, k], [*values, 6.0 + sum(drift)]
    there.append(np.ones(len(k), bool))
    held = np.stack([there[i] for i in order], axis=1)
    indptr = np.concatenate([[0], np.cumsum(held.sum(axis=1))])
    every = np.stack([columns[i] for i in order], axis=1)
    return indptr, every[held], np.broadcast_to([values[i] for i in order], held.shape)[held]


def side(m: int, first: int, last: int) -> Any:
    """Return this rank's rows of b."""
    return np.random.default_rng(1).standard_normal(m**3)[first:last]


# --- one rank of one solve


def with_mxpeak(kind: str, m: int, rtol: float) -> dict[str, Any] | None:
    """Return rank 0's report about mxpeak's solve."""
    import scipy.sparse as sparse
    from mpi4py import MPI

    import mxpeak as mx

    comm = MPI.COMM_WORLD

    def solve(m: int) -> tuple[float, float, Any]:
        n = m**3
        first, last = (n * rank // comm.size for rank in (comm.rank, comm.rank + 1))
        indptr, columns, values = rows(kind, m, first, last)
        A, b = sparse.csr_array((values, columns, indptr), shape=(last - first, n)), side(m, first, last)
        comm.barrier()
        begin = time.perf_counter()
        x, info = mx.gmres(A, b, rtol=rtol, comm=comm, preconditioner="amg")
        seconds = comm.allreduce(time.perf_counter() - begin, MPI.MAX)
        r = b - A @ np.concatenate(comm.allgather(x))
        norms = [np.sqrt(comm.allreduce(v @ v)) for v in (r, b)]
        return seconds, norms[0] / norms[1], info

    solve(SMALL)
    seconds, residual, info = solve(m)
    found = {"seconds": seconds, "residual": residual, "iterations": info.iterations, "setup_s": info.setup_s}
    return found if comm.rank == 0 else None


def with_petsc(kind: str, m: int, rtol: float, options: str) -> dict[str, Any] | None:
    """Return rank 0's report about PETSc's solve."""
    import petsc4py

    petsc4py.init(["petsc", *options.split()])
    from petsc4py import PETSc

    comm = PETSc.COMM_WORLD

    def solve(m: int) -> tuple[float, float, int, float]:
        n = m**3
        first, last = (n * rank // comm.size for rank in (comm.rank, comm.rank + 1))
        indptr, columns, values = rows(kind, m, first, last)
        csr = indptr.astype(PETSc.IntType), columns.astype(PETSc.IntType), values
        A = PETSc.Mat().createAIJ(size=((last - first, n), (last - first, n)), csr=csr, comm=comm)
        b, x = A.createVecLeft(), A.createVecRight()
        b.setArray(side(m, first, last))
        comm.barrier()
        begin = time.perf_counter()
        ksp = PETSc.KSP().create(comm)
        ksp.setOperators(A)
        ksp.setType("gmres")
        ksp.setGMRESRestart(30)
        ksp.setPCSide(PETSc.PC.Side.RIGHT)
        ksp.getPC().setType("gamg")
        ksp.setTolerances(rtol=rtol, max_it=300)
        ksp.setFromOptions()
        ksp.setUp()
        setup_s = time.perf_counter() - begin
        ksp.solve(b, x)
        comm.barrier()
        seconds = time.perf_counter() - begin
        r = b - A * x
        return seconds, r.norm() / b.norm(), ksp.getIterationNumber(), setup_s

    solve(SMALL)
    seconds, residual, iterations, setup_s = solve(m)
    found = {"seconds": seconds, "residual": residual, "iterations": iterations, "setup_s": setup_s}
    return found if comm.rank == 0 else None


# --- all solves, in turns


def started(command: str, env: dict[str, str], limit_s: float, *arguments: str) -> dict[str, Any] | None:
    """Start the ranks of one solve, and return the report, or None if the solve exceeds the limit."""
    ranks = ["timeout", str(limit_s), *shlex.split(command), __file__, *arguments]
    done = subprocess.run(ranks, env=env, capture_output=True, text=True)
    if done.returncode == 124:
        return None
    if done.returncode:
        raise SystemExit(f"{command} failed:\n{done.stderr}")
    told: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return told


def compared(args: argparse.Namespace, kind: str) -> dict[str, Any]:
    """Run all solves of one system. Return their reports, and the ratio of PETSc's best median to mxpeak's."""
    petsc_env = {"HOME": os.environ.get("HOME", "/")}
    for line in Path(args.petsc_env).read_text().splitlines() if args.petsc_env else []:
        name, _, value = line.partition("=")
        petsc_env[name] = value
    problem = ["--m", str(args.m), "--rtol", str(args.rtol), "--kind", kind]
    commands = {"mxpeak": (f"mpiexec -n {args.ranks} {sys.executable}", dict(os.environ))}
    if args.petsc:
        commands |= {name: (args.petsc, petsc_env) for name in GAMG}
    runs: dict[str, list[dict[str, Any] | None]] = {name: [] for name in commands}
    for _ in range(args.rounds):
        for name, (command, env) in commands.items():
            runs[name].append(started(command, env, args.limit, "--worker", name, *problem))
            print(f"{kind:11} {name:18} {runs[name][-1]}", flush=True)
    medians = {
        name: statistics.median(run["seconds"] for run in found if run)
        for name, found in runs.items()
        if all(run and run["residual"] <= 1.01 * args.rtol for run in found)
    }
    peers = {name: seconds for name, seconds in medians.items() if name != "mxpeak"}
    best = min(peers, key=lambda name: peers[name]) if peers else None
    ratio = peers[best] / medians["mxpeak"] if best and "mxpeak" in medians else None
    return {"kind": kind, "runs": runs, "median_s": medians, "best_peer": best, "best_peer_over_mxpeak": ratio}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--m", type=int, default=96, help="points per side")
    parser.add_argument("--rtol", type=float, default=1e-9)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=120.0, help="limit of a solve and its start, in seconds")
    parser.add_argument("--petsc", help="command that starts Python with petsc4py on the ranks")
    parser.add_argument("--petsc-env", help="file of NAME=value lines")
    parser.add_argument("--out")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--kind", choices=KINDS, help="only this system")
    args = parser.parse_args()
    if args.worker:
        peer = args.worker != "mxpeak"
        system = args.kind, args.m, args.rtol
        found = with_petsc(*system, GAMG[args.worker]) if peer else with_mxpeak(*system)
        if found is not None:
            print(json.dumps(found))
        return
    from mxpeak.perf.host import environment, host_facts, software_facts

    results = [compared(args, kind) for kind in KINDS if args.kind in (None, kind)]
    body = {
        "m": args.m, "rtol": args.rtol, "ranks": args.ranks, "rounds": args.rounds, "gamg": GAMG, "results": results,
        "machine": host_facts(), "software": software_facts(), "environment": environment(),
    }  # fmt: skip
    if args.out:
        Path(args.out).write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
