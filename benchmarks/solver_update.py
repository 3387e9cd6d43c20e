"""Compare mxpeak.Solver with separate calls of mxpeak.solve and numpy.linalg.solve on slowly changing systems.

    python benchmarks/solver_update.py -N 2000,4000 --systems 10 --out result.json

The systems are those of a continuation, F(x) = A x + x³/3 = λ c. There is one Newton step for each λ = 1, 1 + d, and so
on; `--change` sets d. The Jacobians A + diag(x²) are computed before the clock starts, so that all solvers solve the
same systems. The solvers are interleaved, and one call of each is not counted.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from solve import write_runs

import mxpeak as mx

PAUSE_S = 0.2
System = tuple[Any, Any]


def newton_systems(n: int, count: int, change: float, seed: int) -> list[System]:
    """Return the Jacobians and right-hand sides of one Newton step for each λ."""
    rng = np.random.default_rng(seed)
    A = np.eye(n) + rng.standard_normal((n, n)) / (4 * np.sqrt(n))
    x = rng.standard_normal(n)
    c = A @ x + x**3 / 3
    systems = []
    for step in range(count):
        J, r = A + np.diag(x**2), (1.0 + change * step) * c - A @ x - x**3 / 3
        systems.append((J, r))
        x = x + np.linalg.solve(J, r)
    return systems


def by_solver(systems: Sequence[System]) -> list[tuple[Any, Any]]:
    """Solve all systems with one Solver."""
    with mx.Solver(systems[0][0]) as solver:
        results = [solver.solve(systems[0][1])]
        for A, b in systems[1:]:
            solver.update(A)
            results.append(solver.solve(b))
    return results


def by_solve(systems: Sequence[System]) -> list[tuple[Any, Any]]:
    """Solve each system separately."""
    return [mx.solve(A, b) for A, b in systems]


def by_numpy(systems: Sequence[System]) -> list[tuple[Any, Any]]:
    """Solve each system with NumPy."""
    return [(np.linalg.solve(A, b), None) for A, b in systems]


SOLVERS: dict[str, Callable[[Sequence[System]], list[tuple[Any, Any]]]] = {
    "Solver": by_solver,
    "solve": by_solve,
    "numpy": by_numpy,
}


def worst_error(systems: Sequence[System], results: Sequence[tuple[Any, Any]]) -> float:
    """Return the largest ||b - A x|| / ((||A||·||x|| + ||b||)·n·u) in the infinity norm."""
    errors = []
    for (A, b), (x, _) in zip(systems, results, strict=True):
        size = np.abs(A).sum(axis=1).max() * np.abs(x).max() + np.abs(b).max()
        errors.append(float(np.abs(b - A @ x).max() / (size * len(A) * 2.0**-53)))
    return max(errors)


def compare(n: int, count: int, change: float, repeat: int, seed: int) -> dict[str, Any]:
    """Return the medians over `repeat` rounds."""
    systems = newton_systems(n, count, change, seed)
    times: dict[str, list[float]] = {who: [] for who in SOLVERS}
    results = {who: solver(systems) for who, solver in SOLVERS.items()}
    for _ in range(repeat):
        for who, solver in SOLVERS.items():
            time.sleep(PAUSE_S)
            begin = time.perf_counter()
            solver(systems)
            times[who].append(time.perf_counter() - begin)
    medians = {who: statistics.median(values) for who, values in times.items()}
    return {
        "n": n,
        "systems": count,
        "change": change,
        "median_s": medians,
        "speed_over_solve": medians["solve"] / medians["Solver"],
        "backward_error": {who: worst_error(systems, values) for who, values in results.items()},
        "lagged": [info.lagged for _, info in results["Solver"]],
        "iterations": [info.iterations for _, info in results["Solver"]],
        "times_s": times,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-N", "--n", default="2000,4000")
    parser.add_argument("--systems", type=int, default=10, help="Newton steps (default: %(default)s)")
    parser.add_argument("--change", type=float, default=0.001, help="d, the change of λ (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=5, help="rounds (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    print("     n   numpy ms   solve ms  Solver ms  speed over solve  factored  steps   eta Solver")
    for n in map(int, args.n.split(",")):
        row = compare(n, args.systems, args.change, args.repeat, args.seed)
        rows.append(row)
        ms = {who: 1e3 * t for who, t in row["median_s"].items()}
        print(
            f"{n:6d} {ms['numpy']:10.1f} {ms['solve']:10.1f} {ms['Solver']:10.1f} {row['speed_over_solve']:10.2f} "
            f"{args.systems - sum(row['lagged']):10d} {sum(row['iterations']):6d} "
            f"{row['backward_error']['Solver']:12.1e}",
            flush=True,
        )
    if args.out:
        write_runs(args.out, rows)


if __name__ == "__main__":
    main()
