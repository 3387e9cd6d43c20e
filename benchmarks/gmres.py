"""mxpeak.gmres beside SciPy's and PyAMG's solvers, on matrices that none of them was tuned to.

    python benchmarks/gmres.py --kinds anisotropic,indefinite --rounds 5 --out result.json

All solve the same A x = b, b of normal entries, to a true residual ||b - A x|| / ||b|| <= 1e-9, which is computed here
from x in fp64; what a solver says of itself does not count.  Times are of everything, set-up included.

mxpeak.gmres runs as it is, with no option.  Its peers are SciPy's GMRES behind an incomplete LU of four drop tolerances
in two orders of the columns, SciPy's direct solver in the same orders, and PyAMG's two hierarchies: alone, within
PyAMG's CG (where A is symmetric) and GMRES, and before SciPy's GMRES.  PyAMG is told whether A is symmetric.  Each peer
is first called with tolerances 1, 0.1 … times that asked for until its x is good; that is not counted.  Then the best
three and mxpeak.gmres take turns, and medians count.  A peer is given up once it takes LIMIT times as long as the best
before it.

For linear elasticity PyAMG can also be given the rigid body modes, which follow from where the mesh's points are and
not from A.  That is more than the other solvers get, so it stands in the table by itself, and not among the peers.
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
#: A peer is given up after so many times the best peer's seconds, and after so many seconds in any case.
LIMIT, MAX_S = 2.5, 10.0
FINALISTS = 3
DROPS = (1e-2, 1e-3, 1e-4, 1e-5)
ORDERS = ("COLAMD", "MMD_AT_PLUS_A")
#: How much larger than A incomplete factors may become; SciPy takes 10 if it is not told.
FILL = 30.0

FORK = multiprocessing.get_context("fork")

Csr = Any
Vector = Any


@dataclass(frozen=True)
class System:
    """A x = b; what it is, whether A is symmetric, and the modes that only its maker knows."""

    what: str
    A: Csr
    symmetric: bool = True
    modes: Any = None


# --- matrices --------------------------------------------------------------------------------------------------------


def anisotropic() -> System:
    """Strong coupling along one axis."""
    A = stencil_grid(diffusion_stencil_2d(epsilon=1e-3, type="FD"), (700, 700))
    return System("diffusion 1 : 1000 along the axes, 5 points, 700 x 700 (PyAMG's gallery)", A)


def rotated() -> System:
    """Strong coupling along no grid line."""
    A = stencil_grid(diffusion_stencil_2d(epsilon=1e-3, theta=np.pi / 6, type="FE"), (400, 400))
    return System("diffusion 1 : 1000 turned by 30 degrees, 9 points, 400 x 400 (PyAMG's gallery)", A)


def elasticity() -> System:
    """Two unknowns a point, coupled with both signs."""
    A, modes = linear_elasticity((250, 250))
    return System("linear elasticity, bilinear elements, 250 x 250 points (PyAMG's gallery)", A, modes=modes)


def unstructured() -> System:
    """Linear elements on the Delaunay triangles of random points, u = 0 on the square's rim."""
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
    """Recirculating flow (Elman, Silvester, Wathen, section 6.1), upwind differences: mesh Péclet number up to 50."""
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
    """A graph that is nearly a mesh, and of no dimension that a grid has."""
    points = np.random.default_rng(2).random((100_000, 3))
    distance, j = KDTree(points).query(points, k=9)
    i = np.repeat(np.arange(len(points)), 8)
    return System(
        "Laplacian of the graph of 100 000 points' 8 nearest neighbours, weights 1 / distance; first vertex grounded",
        _grounded(i, j[:, 1:].ravel(), 1 / distance[:, 1:].ravel(), len(points)),
    )


def network() -> System:
    """A graph of few vertices with very many neighbours (Barabási and Albert)."""
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
    """The Laplacian without the first vertex's row and column: nonsingular where the graph hangs together.

    Pieces that do not hang together with the first vertex are left out.
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
    """Permeabilities over many orders of magnitude in three dimensions."""
    return System("diffusion of log-normal permeability (sigma 3), finite volumes, 55 x 55 x 55", _volumes(55))


def scaled() -> System:
    """The same with every row and column in a unit of its own."""
    A = _volumes(45)
    rng = np.random.default_rng(5)
    rows, columns = (sparse.diags_array(10.0 ** rng.uniform(-3, 3, A.shape[0])) for _ in range(2))
    what = "the same, 45 x 45 x 45, rows and columns times 10^-3 to 10^3 at random"
    return System(what, (rows @ A @ columns).tocsr(), False)


def _volumes(n: int) -> Csr:
    """-div k grad u, harmonic means of k at faces, u = 0 on all sides."""
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
    """A shifted Laplacian: waves, five lengths to a side."""
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
    """A solver by name: `solve(b, tol)`."""

    name: str
    solve: Callable[[Vector, float], Vector]


def peers(system: System) -> Iterator[Peer]:
    """Every peer, the stronger incomplete factorizations last, as they take longest where they help least."""
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
    """PyAMG's smoothed aggregation with more knowledge than A holds."""

    def make(A: Csr, symmetric: bool) -> Any:
        return _aggregation(A, symmetric, system.modes)

    return Peer("PyAMG SA + cg, rigid body modes", _pyamg(make, system.A.tobsr(blocksize=(2, 2)), True, "cg"))


def _classical(A: Csr, symmetric: bool) -> Any:
    return pyamg.ruge_stuben_solver(A)


def _aggregation(A: Csr, symmetric: bool, modes: Any = None) -> Any:
    if symmetric:
        return pyamg.smoothed_aggregation_solver(A, B=modes)
    # SciPy's matrices do not know their transposes' null spaces: constants on both sides, as PyAMG's manual has it.
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
    """||b - A x|| / ||b||."""
    return float(np.linalg.norm(b - A @ x) / np.linalg.norm(b))


def timed(work: Callable[[], Vector]) -> tuple[float, Vector]:
    """Seconds, and what came out."""
    begin = time.perf_counter()
    x = work()
    return time.perf_counter() - begin, x


def tried(peer: Peer, A: Csr, b: Vector, limit_s: float) -> dict[str, Any]:
    """A peer's loosest tolerance that is enough, its seconds and the residual; or why it has none."""
    for tol in (TOL, TOL / 10, TOL / 100, TOL / 1000):
        outcome = attempt(peer, A, b, tol, limit_s)
        if "failed" in outcome or outcome["residual"] <= TOL:
            return outcome
    return {"peer": peer.name, "failed": f"residual {outcome['residual']:.1e} after {outcome['seconds']:.1f} s"}


def attempt(peer: Peer, A: Csr, b: Vector, tol: float, limit_s: float) -> dict[str, Any]:
    """One solve in a process of its own, which ends it where nothing else would: within a factorization."""
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
    """One kind: all peers once, then the best of them and mxpeak.gmres in turns."""
    system = KINDS[name]()
    A, b = system.A.tocsr(), np.random.default_rng(7).standard_normal(system.A.shape[0])
    mx.gmres(A, b)  # compiles what it needs
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
    )  # none may have solved it
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
    parser.add_argument("--kinds", default=",".join(KINDS), help="of matrices (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="calls of each that are counted (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="write all figures to this JSON file; other kinds in it are kept")
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
