"""Compare mxpeak.gmres with SciPy's gmres and an incomplete LU on eight generated complex matrices.

    OPENBLAS_NUM_THREADS=1 python benchmarks/gmres_complex.py --rounds 5 --out result.json

Both solve the same A x = b to a true residual ||b - A x|| / ||b|| <= 1e-9, which is computed here in complex128. The
entries of b are complex normal numbers. Times are CPU seconds of all threads, including the set-up, so that other
processes change them little. With several threads, BLAS slows both solvers down. mxpeak.gmres has no options. SciPy's
gmres has the preconditioner spilu with three drop tolerances. If its x is not accurate enough, SciPy is called with a
tenth of the tolerance. The fastest drop tolerance that reaches the residual and mxpeak.gmres are then interleaved, and
the medians are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sparse
import scipy.sparse.linalg as linalg

import mxpeak as mx
from mxpeak.perf.host import host_facts, software_facts

TOL, RESTART, CYCLES = 1e-9, 30, 20
DROPS = (1e-2, 1e-3, 1e-4)
Csr = Any
Vector = Any


def laplacian(*sides: int) -> Csr:
    """The negative Laplacian on a grid, in units of the grid's spacing."""
    total = sparse.csr_array((1, 1))
    for n in sides:
        line = sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(n, n))
        total = sparse.kron(total, sparse.eye_array(n)) + sparse.kron(sparse.eye_array(total.shape[0]), line)
    return sparse.csr_array(total)


def helmholtz() -> tuple[str, Csr]:
    """Waves in two dimensions behind absorbing layers: the damping rises towards the rim."""
    n, k = 120, 2 * np.pi / 12
    rim = np.clip(20 - np.minimum(np.arange(n), np.arange(n)[::-1]), 0, 20) / 20
    damping = np.maximum(rim[:, None], rim[None, :]).ravel() ** 2
    A = laplacian(n, n) - sparse.diags_array(k**2 * (1 + 1j * damping))
    return "Helmholtz, 12 points per wavelength, absorbing layers, 120 x 120", sparse.csr_array(A)


def damped_waves() -> tuple[str, Csr]:
    """Waves in three dimensions in a medium that absorbs."""
    n, k = 22, 2 * np.pi / 10
    return "Helmholtz, 10 points per wavelength, 25 % loss, 22 x 22 x 22", sparse.csr_array(
        laplacian(n, n, n) - k**2 * (1 - 0.25j) * sparse.eye_array(n**3)
    )


def resolvent() -> tuple[str, Csr]:
    """Convection and diffusion, shifted to a point of a contour in the complex plane."""
    n = 100
    along = sparse.diags_array([np.full(n, 1.0), np.full(n - 1, -1.0)], offsets=[0, -1])
    flow = sparse.kron(along, sparse.eye_array(n)) + 0.5 * sparse.kron(sparse.eye_array(n), along)
    return "(z I - A) of upwind convection-diffusion, z on a contour, 100 x 100", sparse.csr_array(
        laplacian(n, n) + 0.3 * flow - (0.4 + 0.3j) * sparse.eye_array(n * n)
    )


def response() -> tuple[str, Csr]:
    """The frequency response K + i w C - w^2 M of a beam with proportional damping."""
    n = 20_000
    K = laplacian(n) @ laplacian(n)
    omega = 1e-3
    return "frequency response of a damped beam, n = 20 000", sparse.csr_array(
        K * (1 + 0.02j) + (1j * omega * 1e-2 - omega**2) * sparse.eye_array(n)
    )


def network() -> tuple[str, Csr]:
    """The admittances of a power network: a mesh with long lines, and shunts at the buses."""
    n, rng = 10_000, np.random.default_rng(1)
    side = 100
    number = np.arange(n).reshape(side, side)
    i = np.concatenate([number[:, :-1].ravel(), number[:-1].ravel(), rng.integers(0, n, 100)])
    j = np.concatenate([number[:, 1:].ravel(), number[1:].ravel(), rng.integers(0, n, 100)])
    y = 1.0 / (rng.uniform(0.01, 0.1, i.size) + 1j * rng.uniform(0.1, 1.0, i.size))
    W = sparse.coo_array((y, (i, j)), shape=(n, n)).tocsr()
    W = W + W.T
    shunts = 1e-2 * (rng.uniform(0, 1, n) + 1j * rng.uniform(0, 1, n))
    return "admittances of a mesh of 10 000 buses with 100 long lines", sparse.csr_array(
        sparse.diags_array(np.asarray(W.sum(axis=1)).ravel() + shunts) - W
    )


def lattice() -> tuple[str, Csr]:
    """A Wilson-like operator: hops with random phases on a lattice of four dimensions."""
    n, rng = 9, np.random.default_rng(2)
    size = n**4
    number = np.arange(size).reshape(n, n, n, n)
    parts = []
    for axis in range(4):
        phase = np.exp(2j * np.pi * rng.random(size))
        to = np.roll(number, -1, axis).ravel()
        hop = sparse.coo_array((phase, (number.ravel(), to)), shape=(size, size)).tocsr()
        parts.append(0.9 * hop + 1.1 * hop.conj().T)
    return "hops with random phases and mass on a lattice of 9^4 points", sparse.csr_array(
        8.8 * sparse.eye_array(size) - sum(parts[1:], parts[0])
    )


def eddy() -> tuple[str, Csr]:
    """Diffusion of a magnetic field: conductors of random places in three dimensions."""
    n, rng = 24, np.random.default_rng(3)
    conductive = np.where(rng.random(n**3) < 0.3, 1.0, 1e-3)
    return "eddy currents, conductors at random places, 24 x 24 x 24", sparse.csr_array(
        laplacian(n, n, n) + 1j * sparse.diags_array(conductive)
    )


def unordered() -> tuple[str, Csr]:
    """Random entries without any order, with a dominant diagonal of any phase.

    For 20,000 rows, SciPy's spilu needs minutes, because the factors of a random graph fill up.
    """
    n, rng = 5_000, np.random.default_rng(4)
    i, j = rng.integers(0, n, (2, 6 * n))
    values = rng.standard_normal(6 * n) + 1j * rng.standard_normal(6 * n)
    A = sparse.coo_array((values, (i, j)), shape=(n, n)).tocsr()
    diagonal = np.asarray(abs(A).sum(axis=1)).ravel() * 0.9 + 0.5
    return "random, six entries per row, n = 5000", sparse.csr_array(
        A + sparse.diags_array(diagonal * np.exp(0.5j * rng.standard_normal(n)))
    )


KINDS: dict[str, Callable[[], tuple[str, Csr]]] = {
    kind.__name__: kind for kind in (helmholtz, damped_waves, resolvent, response, network, lattice, eddy, unordered)
}


def residual(A: Csr, x: Vector, b: Vector) -> float:
    """||b - A x|| / ||b||."""
    return float(np.linalg.norm(b - A @ x) / np.linalg.norm(b))


def with_spilu(A: Csr, b: Vector, drop: float, tol: float) -> Vector:
    """SciPy's gmres with an incomplete LU."""
    ilu = linalg.spilu(A.tocsc(), drop_tol=drop)
    M = linalg.LinearOperator(A.shape, ilu.solve, dtype=complex)
    return linalg.gmres(A, b, rtol=tol, restart=RESTART, maxiter=CYCLES, M=M)[0]


def timed(work: Callable[[], Vector]) -> tuple[float, Vector]:
    """Seconds of all cores, and the solution."""
    begin = time.process_time()
    x = work()
    return time.process_time() - begin, x


def compare(name: str, rounds: int) -> dict[str, Any]:
    """Run each drop tolerance once, then the fastest of them and mxpeak.gmres interleaved."""
    what, A = KINDS[name]()
    rng = np.random.default_rng(7)
    b = rng.standard_normal(A.shape[0]) + 1j * rng.standard_normal(A.shape[0])
    mx.gmres(A, b)  # compiles its kernels
    trials: list[dict[str, Any]] = []
    for drop in DROPS:
        for tol in (TOL, TOL / 10):
            try:
                seconds, x = timed(partial(with_spilu, A, b, drop, tol))
            except RuntimeError as error:
                trials.append({"drop": drop, "failed": str(error)})
                break
            reached = residual(A, x, b)
            trials.append({"drop": drop, "tol": tol, "seconds": seconds, "residual": reached})
            if reached <= TOL or reached > 1e3 * TOL:
                break
    good = sorted((one for one in trials if one.get("residual", 1.0) <= TOL), key=lambda one: one["seconds"])
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds):
        seconds, (x, info) = timed(lambda: mx.gmres(A, b))
        ours.append(seconds)
        assert residual(A, x, b) <= TOL * (1 + 1e-6), info
        if good:
            theirs.append(timed(partial(with_spilu, A, b, good[0]["drop"], good[0]["tol"]))[0])
    own, peer = statistics.median(ours), statistics.median(theirs) if theirs else None
    print(
        f"{name}: {what}: mxpeak {own:.3g} s ({info.preconditioner}, {info.iterations} iterations), "
        f"SciPy {'not converged' if peer is None else f'{peer:.3g} s, {peer / own:.2f} times as long'}",
        flush=True,
    )
    return {
        "kind": name,
        "what": what,
        "n": A.shape[0],
        "nnz": int(A.nnz),
        "mxpeak_s": ours,
        "scipy_s": theirs,
        "speed": peer / own if peer else None,
        "preconditioner": info.preconditioner,
        "reason": info.reason,
        "iterations": info.iterations,
        "trials": trials,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS), help="comma-separated names of matrices")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved runs of each solver")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    args = parser.parse_args()
    body: dict[str, Any] = {"host": host_facts(), "software": software_facts(), "tolerance": TOL, "results": []}
    for name in args.kinds.split(","):
        body["results"].append(compare(name, args.rounds))
        if args.out:
            args.out.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
