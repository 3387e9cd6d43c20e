"""Count the steps of mxpeak.gmres on 1 to 8 ranks for the systems in docs/explanation/how-gmres-chooses.md.

    python benchmarks/gmres_steps.py --kinds poisson3,elasticity --out benchmarks/results/gmres-steps-over-ranks.json

The ranks are threads of this process and take the same steps as MPI ranks. No time is measured. b is random, and each
rank has the same number of rows. All solves reach ||b - A x|| <= 1e-9 ||b||, and the residual is recomputed afterwards.
On one process, "sgs" sweeps row by row, as on several ranks. Only the preconditioner is set. Ten kinds of systems are
those of gmres.py with the same sizes. One more system is a Poisson problem that is large enough for aggregation.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import gmres as ten
import numpy as np
import scipy.sparse as sparse

import mxpeak as mx
from mxpeak.comm.transports.threads import run_ranks
from mxpeak.perf.host import environment, host_facts, software_facts

TOL, MAX_STEPS = 1e-9, 2000
RANKS = (2, 4, 8)


def bands(n: int, below: float, middle: float, above: float) -> Any:
    """Return a tridiagonal matrix."""
    return sparse.diags_array([below, middle, above], offsets=[-1, 0, 1], shape=(n, n))


def summed(terms: list[Any]) -> Any:
    """Return Σ I ⊗ … ⊗ T_k ⊗ … ⊗ I, in which each term acts along one axis."""
    ones = [sparse.eye_array(T.shape[0]) for T in terms]
    along = ([T if i == k else ones[i] for i in range(len(terms))] for k, T in enumerate(terms))
    return sparse.csr_array(sum(reduce(sparse.kron, factors) for factors in along))


def poisson(*sides: int) -> Any:
    """Return second differences along every axis."""
    return summed([bands(n, -1.0, 2.0, -1.0) for n in sides])


def points27() -> Any:
    """Return the matrix with 26 on the diagonal and -1 for all neighbors."""
    line = bands(32, 1.0, 1.0, 1.0)
    return sparse.csr_array(27.0 * sparse.eye_array(32**3) - reduce(sparse.kron, [line] * 3))


def flow() -> Any:
    """Return upwind convection and diffusion."""
    speeds = 20.0 / 60, 10.0 / 60
    return summed([bands(60, -1.0 - speed, 2.0 + speed, -1.0) for speed in speeds])


def jumps() -> Any:
    """Return -div(k grad u), where k is randomly 1 or 10⁴ on each edge."""
    n = 60
    k = np.where(np.random.default_rng(1).random((2, n * n)) < 0.5, 1e4, 1.0)
    D, one = sparse.diags_array([-1.0, 1.0], offsets=[-1, 0], shape=(n, n)), sparse.eye_array(n)
    edges = sparse.kron(D, one), sparse.kron(one, D)
    flux = sum(E.T @ sparse.diags_array(k_e) @ E for E, k_e in zip(edges, k))
    return sparse.csr_array(flux + 1e-3 * sparse.eye_array(n * n))


def of_ten(name: str) -> Callable[[], Any]:
    """Return the matrix of one of the ten kinds."""
    return lambda: ten.KINDS[name]().A.tocsr()


SMALL: dict[str, Callable[[], Any]] = {
    "points27": points27,
    "poisson3": lambda: poisson(40, 40, 40),
    "poisson2": lambda: poisson(60, 60),
    "flow": flow,
    "jumps": jumps,
}
KINDS = {**SMALL, "large": lambda: poisson(64, 64, 64), **{name: of_ten(name) for name in ten.KINDS}}


def solved(A: Any, ranks: int, preconditioner: str) -> Any:
    """Return the report of a solve after its x has been checked."""
    n, options = A.shape[0], {"preconditioner": preconditioner, "maxiter": MAX_STEPS, "rtol": TOL}
    b = np.random.default_rng(7).standard_normal(n)
    if ranks == 1:
        smoother = "natural" if preconditioner == "sgs" else "auto"
        x, info = mx.gmres(A, b, smoother=smoother, **options)
    else:
        starts = [n * rank // ranks for rank in range(ranks + 1)]

        def rank_of(comm: Any) -> Any:
            mine = slice(starts[comm.rank], starts[comm.rank + 1])
            return mx.gmres(A[mine], b[mine], comm=comm, threads=1, **options)

        parts = run_ranks(ranks, rank_of)
        x, info = np.concatenate([part for part, _ in parts]), parts[0][1]
    if info.converged and not np.linalg.norm(b - A @ x) <= 1.001 * TOL * np.linalg.norm(b):
        raise SystemExit(f"{preconditioner} on {ranks} ranks says {info.residual}, and that is not so")
    return info


def counted(kind: str) -> list[dict[str, Any]]:
    """Return the number of steps of every preconditioner, or None for more than MAX_STEPS."""
    A, rows = KINDS[kind](), []
    for preconditioner in ("auto", "sgs", "amg") if kind in SMALL else ("auto",):
        infos = {ranks: solved(A, ranks, preconditioner) for ranks in (1, *RANKS)}
        steps = {ranks: info.iterations if info.converged else None for ranks, info in infos.items()}
        taken = {ranks: info.preconditioner for ranks, info in infos.items()}
        rows.append({"kind": kind, "n": A.shape[0], "asked": preconditioner, "taken": taken, "steps": steps})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of matrices (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="write all counts to this JSON file, and keep its other kinds")
    args = parser.parse_args()
    for kind in args.kinds.split(","):
        rows = counted(kind)
        if args.out:
            kept = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
            rows = [one for one in kept if one["kind"] != kind] + rows
            rows.sort(key=lambda one: list(KINDS).index(one["kind"]))
            facts = {"machine": host_facts(), "software": software_facts(), "environment": environment()}
            body = {
                "tol": TOL,
                "maxiter": MAX_STEPS,
                "command": f"python {Path(sys.argv[0]).name}",
                **facts,
                "rows": rows,
            }
            args.out.write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
