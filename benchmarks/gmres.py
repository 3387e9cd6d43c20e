"""Compare mxpeak.gmres with the solvers of SciPy and PyAMG on matrices for which no solver was tuned.

    python benchmarks/gmres.py --kinds anisotropic,indefinite --rounds 5 --out result.json

All solvers solve the same A x = b to a true residual ||b - A x|| / ||b|| <= 1e-9. The entries of b are normal numbers.
The residual is computed here from x in fp64, independently of the solver's own report. Times include the set-up.

mxpeak.gmres runs with its default options. The peers are SciPy's GMRES with an incomplete LU (four drop tolerances, two
orders of the columns), SciPy's direct solver with the same orders, and PyAMG's two hierarchies. The hierarchies are
used alone, with PyAMG's CG (for symmetric A) and GMRES, and as preconditioners of SciPy's GMRES. PyAMG is told whether
A is symmetric. Each peer is first called with 1, 0.1, … times the required tolerance until its x is accurate enough,
and these calls are not counted. Then the three fastest peers and mxpeak.gmres alternate, and medians are compared. A
peer that takes LIMIT times as long as the fastest peer before it is stopped.

For linear elasticity, PyAMG can also receive the rigid body modes. They follow from the coordinates of the mesh points,
not from A. Because the other solvers do not have this information, this result is listed separately.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyamg
import scipy.sparse as sparse
import scipy.sparse.linalg as linalg
from pyamg.gallery import diffusion_stencil_2d, linear_elasticity, stencil_grid
from scipy.spatial import Delaunay, KDTree

import mxpeak as mx
from mxpeak.perf.host import host_facts, software_facts

TOL = 1e-9
RESTART = 30
#: A peer is stopped after LIMIT times the time of the fastest peer, or after MAX_S seconds.
LIMIT, MAX_S = 2.5, 10.0
FINALISTS = 3
DROPS = (1e-2, 1e-3, 1e-4, 1e-5)
ORDERS = ("COLAMD", "MMD_AT_PLUS_A")
#: The largest size of incomplete factors, as a multiple of A; SciPy's default is 10.
FILL = 30.0

FORK = multiprocessing.get_context("fork")

Csr = Any
Vector = Any


@dataclass(frozen=True)
class System:
    """A system A x = b, its description, whether A is symmetric, and the near-null space if it is known."""

    what: str
    A: Csr
    symmetric: bool = True
    modes: Any = None


# --- matrices --------------------------------------------------------------------------------------------------------


def anisotropic() -> System:
    """Return a matrix with strong coupling along one axis."""
    A = stencil_grid(diffusion_stencil_2d(epsilon=1e-3, type="FD"), (700, 700))
    return System("diffusion 1 : 1000 along the axes, 5 points, 700 x 700 (PyAMG's gallery)", A)


def rotated() -> System:
    """Return a matrix with strong coupling in a direction that is not a grid line."""
    A = stencil_grid(diffusion_stencil_2d(epsilon=1e-3, theta=np.pi / 6, type="FE"), (400, 400))
    return System("diffusion 1 : 1000 turned by 30 degrees, 9 points, 400 x 400 (PyAMG's gallery)", A)


def elasticity() -> System:
    """Return a matrix with two unknowns per point, whose couplings have both signs."""
    A, modes = linear_elasticity((250, 250))
    return System("linear elasticity, bilinear elements, 250 x 250 points (PyAMG's gallery)", A, modes=modes)


def unstructured() -> System:
    """Return linear elements on the Delaunay triangles of random points, with u = 0 on the boundary of the square."""
    rng = np.random.default_rng(1)
    side = np.linspace(0, 1, 400, endpoint=False)
    rim = [(side, 0 * side), (side + 1 / 400, 0 * side + 1), (0 * side, side + 1 / 400), (0 * side + 1, side)]
    points = np.vstack([*(np.column_stack(one) for one in rim), rng.random((160_000, 2))])
    triangles = Delaunay(points).simplices
    x, y = points[triangles].transpose(2, 0, 1)
    # gradients of the three hat functions on each triangle, times twice its area
    gradients = np.stack([np.roll(y, -1, 1) - np.roll(y, -2, 1), np.roll(x, -2, 1) - np.roll(x, -1, 1)])
    area = np.abs((x[:, 1] - x[:, 0]) * (y[:, 2] - y[:, 0]) - (x[:, 2] - x[:, 0]) * (y[:, 1] - y[:, 0]))
    local = np.einsum("dti,dtj->tij", gradients, gradients) / (2 * area[:, None, None])
    i, j = np.repeat(triangles, 3, axis=1), np.tile(triangles, 3)
    whole = sparse.coo_array((local.ravel(), (i.ravel(), j.ravel()))).tocsr()
    return System("linear finite elements on Delaunay triangles of 160 000 random points", whole[1600:, 1600:].tocsr())


def convection() -> System:
    """Return recirculating flow with upwind differences and mesh Péclet numbers up to 50.

    The flow is that of Elman, Silvester and Wathen, section 6.1.
    """
    n, diffusion = 400, 1e-4
    h = 1 / (n + 1)
    x = h * np.arange(1, n + 1)
    x, y = np.meshgrid(x, x)
    u, v = 2 * (2 * y - 1) * (1 - (2 * x - 1) ** 2), -2 * (2 * x - 1) * (1 - (2 * y - 1) ** 2)
    number = np.arange(n * n).reshape(n, n)
    i, j, values = [number.ravel()], [number.ravel()], [(4 * diffusion / h + np.abs(u) + np.abs(v)).ravel()]
    for speed, axis in ((u, 1), (v, 0)):
        for step in (1, -1):
            here = tuple(slice(max(0, -step), n - max(0, step)) if k == axis else slice(None) for k in (0, 1))
            there = tuple(slice(max(0, step), n - max(0, -step)) if k == axis else slice(None) for k in (0, 1))
            i.append(number[here].ravel())
            j.append(number[there].ravel())
            values.append(-(diffusion / h + np.maximum(0, -step * speed))[here].ravel())
    triples = (np.concatenate(values), (np.concatenate(i), np.concatenate(j)))
    A = sparse.coo_array(triples, shape=(n * n, n * n)).tocsr()
    return System("convection-diffusion, recirculating, mesh Péclet number up to 50, upwind, 400 x 400", A, False)


def neighbours() -> System:
    """Return the Laplacian of a graph that resembles a mesh but does not have the dimension of a grid."""
    points = np.random.default_rng(2).random((100_000, 3))
    distance, j = KDTree(points).query(points, k=9)
    i = np.repeat(np.arange(len(points)), 8)
    return System(
        "Laplacian of the graph of 100 000 points' 8 nearest neighbours, weights 1 / distance; first vertex grounded",
        _grounded(i, j[:, 1:].ravel(), 1 / distance[:, 1:].ravel(), len(points)),
    )


def network() -> System:
    """Return the Laplacian of a graph in which few vertices have very many neighbors (Barabási and Albert)."""
    n, m = 150_000, 4
    rng = np.random.default_rng(3)
    ends = np.empty(2 * m * n, np.int64)
    ends[: 2 * m] = np.repeat([0, 1], m)
    for vertex in range(1, n):
        filled = 2 * m * vertex
        ends[filled : filled + m] = vertex
        ends[filled + m : filled + 2 * m] = ends[rng.integers(0, filled, m)]
    i, j = ends.reshape(-1, 2, m)[1:].transpose(1, 0, 2).reshape(2, -1)
    return System(
        "Laplacian of a graph grown by preferential attachment, 150 000 vertices; first vertex grounded",
        _grounded(i, j, np.ones(i.size), n),
    )


def _grounded(i: Any, j: Any, weights: Any, n: int) -> Csr:
    """Return the Laplacian without the row and the column of the first vertex: nonsingular if the graph is connected.

    Components that are not connected to the first vertex are omitted.
    """
    W = sparse.coo_array((weights, (i, j)), shape=(n, n)).tocsr()
    W = W.maximum(W.T)
    W.setdiag(0)
    W.eliminate_zeros()
    _, piece = sparse.csgraph.connected_components(W)
    with_first = np.flatnonzero(piece == piece[0])
    W = W[with_first][:, with_first]
    return (sparse.diags_array(W.sum(axis=1)) - W).tocsr()[1:, 1:]


def heterogeneous() -> System:
    """Return a matrix whose permeabilities vary over many orders of magnitude in three dimensions."""
    return System("diffusion of log-normal permeability (sigma 3), finite volumes, 55 x 55 x 55", _volumes(55))


def scaled() -> System:
    """Return the same matrix with a different unit for every row and column."""
    A = _volumes(45)
    rng = np.random.default_rng(5)
    rows, columns = (sparse.diags_array(10.0 ** rng.uniform(-3, 3, A.shape[0])) for _ in range(2))
    what = "the same, 45 x 45 x 45, rows and columns times 10^-3 to 10^3 at random"
    return System(what, (rows @ A @ columns).tocsr(), False)


def _volumes(n: int) -> Csr:
    """Return finite volumes for -div k grad u, with harmonic means of k at the faces and u = 0 on all sides."""
    k = np.exp(3 * np.random.default_rng(4).standard_normal((n, n, n)))
    number = np.arange(n**3).reshape(n, n, n)
    i, j, flow = [], [], []
    diagonal = np.zeros((n, n, n))
    for axis in range(3):
        low = tuple(slice(0, -1) if one == axis else slice(None) for one in range(3))
        high = tuple(slice(1, None) if one == axis else slice(None) for one in range(3))
        mean = 2 * k[low] * k[high] / (k[low] + k[high])
        i.append(number[low].ravel())
        j.append(number[high].ravel())
        flow.append(mean.ravel())
        for end in (0, -1):
            at = tuple(end if one == axis else slice(None) for one in range(3))
            diagonal[at] += 2 * k[at]
    W = sparse.coo_array((np.concatenate(flow), (np.concatenate(i), np.concatenate(j))), shape=(n**3, n**3)).tocsr()
    W = W + W.T
    return (sparse.diags_array(W.sum(axis=1) + diagonal.ravel()) - W).tocsr()


def indefinite() -> System:
    """Return a shifted Laplacian: waves with five wavelengths per side."""
    n = 300
    shift = (2 * np.pi * 5 / n) ** 2
    A = stencil_grid(np.array([[0, -1, 0], [-1, 4 - shift, -1], [0, -1, 0]]), (n, n))
    return System("-u'' - k^2 u of five wavelengths to a side, 5 points, 300 x 300: indefinite", A)


KINDS: dict[str, Callable[[], System]] = {
    system.__name__: system
    for system in (
        anisotropic,
        rotated,
        elasticity,
        unstructured,
        convection,
        neighbours,
        network,
        heterogeneous,
        scaled,
        indefinite,
    )
}


# --- solvers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Peer:
    """A solver and its name. It is called as `solve(b, tol)`."""

    name: str
    solve: Callable[[Vector, float], Vector]


def peers(system: System) -> Iterator[Peer]:
    """Return all peers.

    The stronger incomplete factorizations come last, because they take longest where they help least.
    """
    A = system.A.tocsr()
    kinds = {"RS": _classical, "SA": _aggregation}
    for name, make in kinds.items():
        for accel in (None, "cg", "gmres") if system.symmetric else (None, "gmres"):
            yield Peer(f"PyAMG {name}{f' + {accel}' if accel else ''}", _pyamg(make, A, system.symmetric, accel))
        yield Peer(
            f"SciPy gmres + PyAMG {name}", _scipy(lambda make=make: make(A, system.symmetric).aspreconditioner(), A)
        )
    for order in ORDERS:
        yield Peer(f"SciPy splu {order}", _direct(A, order))
    for drop in DROPS:
        for order in ORDERS:
            yield Peer(f"SciPy gmres + spilu {drop:.0e} {order}", _scipy(lambda d=drop, o=order: _spilu(A, d, o), A))


def with_modes(system: System) -> Peer:
    """Return PyAMG's smoothed aggregation with the rigid body modes, which are not part of A."""

    def make(A: Csr, symmetric: bool) -> Any:
        return _aggregation(A, symmetric, system.modes)

    return Peer("PyAMG SA + cg, rigid body modes", _pyamg(make, system.A.tobsr(blocksize=(2, 2)), True, "cg"))


def _classical(A: Csr, symmetric: bool) -> Any:
    return pyamg.ruge_stuben_solver(A)


def _aggregation(A: Csr, symmetric: bool, modes: Any = None) -> Any:
    if symmetric:
        return pyamg.smoothed_aggregation_solver(A, B=modes)
    # As in PyAMG's manual, constants are the near-null space of both A and its transpose.
    return pyamg.smoothed_aggregation_solver(A, symmetry="nonsymmetric", BH=np.ones((A.shape[0], 1)))


def _pyamg(make: Callable[..., Any], A: Csr, symmetric: bool, accel: str | None) -> Any:
    def solve(b: Vector, tol: float) -> Vector:
        return make(A, symmetric).solve(b, tol=tol, maxiter=2000, accel=accel)

    return solve


def _direct(A: Csr, order: str) -> Any:
    def solve(b: Vector, tol: float) -> Vector:
        return linalg.splu(A.tocsc(), permc_spec=order).solve(b)

    return solve


def _spilu(A: Csr, drop: float, order: str) -> Any:
    ilu = linalg.spilu(A.tocsc(), drop_tol=drop, fill_factor=FILL, permc_spec=order)
    return linalg.LinearOperator(A.shape, ilu.solve, dtype=float)


def _scipy(make: Callable[[], Any], A: Csr) -> Any:
    def solve(b: Vector, tol: float) -> Vector:
        return linalg.gmres(A, b, rtol=tol, restart=RESTART, maxiter=100, M=make())[0]

    return solve


# --- the comparison --------------------------------------------------------------------------------------------------


def residual(A: Csr, x: Vector, b: Vector) -> float:
    """Return ||b - A x|| / ||b||."""
    return float(np.linalg.norm(b - A @ x) / np.linalg.norm(b))


def timed(work: Callable[[], Vector]) -> tuple[float, Vector]:
    """Return the time in seconds, and the result."""
    begin = time.perf_counter()
    x = work()
    return time.perf_counter() - begin, x


def tried(peer: Peer, A: Csr, b: Vector, limit_s: float) -> dict[str, Any]:
    """Return a peer's loosest sufficient tolerance, its time and its residual, or the reason why it has none."""
    for tol in (TOL, TOL / 10, TOL / 100, TOL / 1000):
        outcome = attempt(peer, A, b, tol, limit_s)
        if "failed" in outcome or outcome["residual"] <= TOL:
            return outcome
    return {"peer": peer.name, "failed": f"residual {outcome['residual']:.1e} after {outcome['seconds']:.1f} s"}


def attempt(peer: Peer, A: Csr, b: Vector, tol: float, limit_s: float) -> dict[str, Any]:
    """Solve in a separate process, which can be stopped at any time, also within a factorization."""
    here, there = FORK.Pipe()

    def work() -> None:
        try:
            seconds, x = timed(lambda: peer.solve(b, tol))
            there.send({"peer": peer.name, "tol": tol, "seconds": seconds, "residual": residual(A, x, b)})
        except (RuntimeError, ValueError, MemoryError, np.linalg.LinAlgError) as error:
            there.send({"peer": peer.name, "failed": str(error)[:200]})

    process = FORK.Process(target=work)
    process.start()
    there.close()
    failed = f"more than {limit_s:.1f} s"
    try:
        if here.poll(limit_s):
            return dict(here.recv())
    except EOFError:
        failed = "its process ended"
    finally:
        process.kill()
        process.join()
    return {"peer": peer.name, "failed": failed}


def compare(name: str, rounds: int) -> dict[str, Any]:
    """Compare one kind of matrix: run all peers once, then alternate the fastest ones with mxpeak.gmres."""
    system = KINDS[name]()
    A, b = system.A.tocsr(), np.random.default_rng(7).standard_normal(system.A.shape[0])
    mx.gmres(A, b)  # compiles its kernels
    all_peers, trials, best = list(peers(system)), [], MAX_S / LIMIT
    for peer in all_peers:
        trials.append(tried(peer, A, b, LIMIT * best))
        best = min(best, trials[-1].get("seconds", best))
        print(f"  {trials[-1]}", flush=True)
    good = sorted((one for one in trials if "seconds" in one), key=lambda trial: trial["seconds"])[:FINALISTS]
    works = {one["peer"]: (_named(all_peers, one["peer"]), one["tol"]) for one in good}
    if system.modes is not None:
        extra = with_modes(system)
        works[extra.name] = (extra, tried(extra, A, b, MAX_S)["tol"])
    times: dict[str, list[float]] = {"mxpeak": [], **{peer: [] for peer in works}}
    residuals: dict[str, float] = {}
    for _ in range(rounds):
        seconds, (x, info) = timed(lambda: mx.gmres(A, b))
        times["mxpeak"].append(seconds)
        residuals["mxpeak"] = residual(A, x, b)
        for who, (peer, tol) in works.items():
            seconds, x = timed(lambda peer=peer, tol=tol: peer.solve(b, tol))
            times[who].append(seconds)
            residuals[who] = residual(A, x, b)
    medians = {who: statistics.median(found) for who, found in times.items()}
    best_peer = min(
        (one["peer"] for one in good), key=lambda who: medians[who], default=None
    )  # perhaps no peer has solved the system
    return {
        "kind": name,
        "what": system.what,
        "n": A.shape[0],
        "nnz": A.nnz,
        "best_peer": best_peer,
        "ratio_of_medians": medians[best_peer] / medians["mxpeak"] if best_peer else None,
        "medians_s": medians,
        "residuals": residuals,
        "mxpeak": {
            "converged": info.converged,
            "right": info.converged == (residuals["mxpeak"] <= TOL),
            "said": info.residual,
            "preconditioner": info.preconditioner,
            "reason": info.reason,
            "levels": info.levels,
            "iterations": info.iterations,
            "values": info.values,
            "vectors": info.vectors,
            "fallback": info.fallback,
            "scaled": info.scaled,
            "setup_s": info.setup_s,
            "phases_s": info.times,
            "message": info.message,
        },
        "times_s": times,
        "trials": trials,
    }


def _named(all_peers: list[Peer], name: str) -> Peer:
    return next(peer for peer in all_peers if peer.name == name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of matrices (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="counted calls of each solver (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="write all results to this JSON file, and keep its other kinds")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    command = " ".join(["python", *(re.sub(r"--out \S+", "", " ".join(sys.argv)).split())])
    for name in args.kinds.split(","):
        row = compare(name, args.rounds)
        ours, best = row["medians_s"]["mxpeak"], row["best_peer"]
        against = f"{best} {row['medians_s'][best]:.2f} s, ratio {row['ratio_of_medians']:.2f}" if best else "no peer"
        print(
            f"{name}: n {row['n']}, {row['nnz']} entries; mxpeak {ours:.2f} s ({row['mxpeak']['preconditioner']}, "
            f"{row['mxpeak']['iterations']} iterations, residual {row['residuals']['mxpeak']:.1e}); {against}",
            flush=True,
        )
        if args.out:
            kept = json.loads(args.out.read_text())["rows"] if args.out.exists() else []
            rows = [one for one in kept if one["kind"] != name] + [{**row, "command": command}]
            rows.sort(key=lambda one: list(KINDS).index(one["kind"]))
            software = {**software_facts(), "pyamg": version("pyamg")}
            facts = {"tol": TOL, "machine": host_facts(), "software": software}
            args.out.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
