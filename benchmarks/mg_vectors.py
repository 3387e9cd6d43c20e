"""Iterations and CPU time of GMRES-IR with multigrid vectors in fp32, bf16 and fp16.

    python benchmarks/mg_vectors.py --nx 64 --out result.json

The problem is that of HPG-MxP with NX³ points, values in bf16 and packed storage, in colored order, on one thread.
Iterations are those to a relative residual of 1e-9.  Times are CPU times of solves of 60 iterations, in rounds in which
the formats alternate.  They do not contain the time in which other programs use the core.  Ratios are medians over the
rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from mxpeak.comm.transports.solo import Solo
from mxpeak.distributed.stencil import Form, StencilProblem, make_stencil, weights
from mxpeak.distributed.system import InnerIteration, MixedSystem
from mxpeak.kernels.host.kernels import HostKernels
from mxpeak.layout.stencil import LEVELS, Box
from mxpeak.perf.host import environment, host_facts, software_facts
from mxpeak.solvers.krylov import Solve, gmres_ir
from mxpeak.solvers.multigrid import cycle
from mxpeak.spans import Spans

RESTART, STEPS, TOLERANCE = 30, 60, 1e-9
FORMATS = ("fp32", "bf16", "fp16")


class Solver:
    """GMRES-IR with multigrid vectors in one format."""

    def __init__(self, kernels: Any, nx: int, vectors: str):
        narrow = None if vectors == "fp32" else vectors
        form = Form(("bf16",) * LEVELS, "fp32", "packed", mixed=True, mg_vectors=narrow)
        boxes = Box(nx, nx, nx).levels(LEVELS)
        self._problem: StencilProblem = make_stencil(kernels, Solo(), boxes, [form], "greedy", weights(), Spans())
        hierarchy = self._problem.hierarchies[0]
        inner = InnerIteration(hierarchy.top.A, partial(cycle, hierarchy.top), RESTART, basis=hierarchy.basis)
        self._system = MixedSystem(kernels, Solo(), hierarchy.outer, self._problem.b, inner, Spans())
        self._b_norm = self._system.norm_of_b()

    def solve(self, max_steps: int, tolerance: float) -> Solve:
        """Solve the system from x = 0."""
        self._system.restart_from_zero()
        return gmres_ir(self._system, self._b_norm, restart=RESTART, max_steps=max_steps, tolerance=tolerance)

    def cpu_s(self) -> float:
        """Return the CPU time of a solve of STEPS iterations."""
        begin = time.thread_time()
        self.solve(STEPS, 0.0)
        return time.thread_time() - begin


def main() -> None:
    """Measure all formats, print a line per format, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nx", type=int, default=64, help="points per direction, a multiple of 8 (default: 64)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--out", type=Path, help="write the results as JSON to this file")
    args = parser.parse_args()
    kernels = HostKernels(1).sparse
    solvers = {vectors: Solver(kernels, args.nx, vectors) for vectors in FORMATS}
    solves = {vectors: solver.solve(1000, TOLERANCE) for vectors, solver in solvers.items()}
    times: dict[str, list[float]] = {vectors: [] for vectors in FORMATS}
    for _ in range(args.rounds):
        for vectors, solver in solvers.items():
            times[vectors].append(solver.cpu_s())
    rows = {
        vectors: {
            "iterations": solves[vectors].steps,
            "residual": solves[vectors].residual,
            "cpu_s": of_format,
            "over_fp32": median(a / b for a, b in zip(of_format, times["fp32"])),
        }
        for vectors, of_format in times.items()
    }
    for vectors, row in rows.items():
        print(f"{vectors}: {row['iterations']} iterations, {row['over_fp32']:.2f} times the CPU time of fp32")
    if args.out is not None:
        facts = {"machine": host_facts(), "software": software_facts(), "environment": environment()}
        body = {"command": " ".join(["python", *sys.argv]), "nx": args.nx, "steps": STEPS, **facts, "formats": rows}
        args.out.write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
