"""The measures of a scan round: an LU or HPL, matrix products and memory reads, with the same inputs in each unit.

A unit is one rank, or all ranks of a node. The ranks of a unit factor or solve one system together, and each of them
multiplies and reads its own data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from mxpeak.bench.hpl.config import HplCase
from mxpeak.bench.hpl.run import fill, lu_options, residual_of
from mxpeak.bench.lu import gemm_probe
from mxpeak.bench.soak import bits_of
from mxpeak.comm.base import Communicator
from mxpeak.comm.grid import Grid, make_grid
from mxpeak.distributed.dense import DistMatrix, dist_matrix
from mxpeak.distributed.sources import GeneratedSystem
from mxpeak.kernels.contract import Kernels, Vector
from mxpeak.kernels.contract.norms import Tile
from mxpeak.layout.generators import generator
from mxpeak.layout.grid import ProcessGrid, divisors
from mxpeak.layout.index_map import consecutive
from mxpeak.perf.counts import Footprint, hpl_flops, hpl_memory_bytes, lu_flops, mxp_memory_bytes
from mxpeak.precision import precision as format_of
from mxpeak.precision import stored_as
from mxpeak.solvers.lu.lu import MixedLuOptions, factorize
from mxpeak.solvers.lu.pivoted_lu import factorize as factorize_with_pivoting
from mxpeak.solvers.lu.triangular import solve_augmented
from mxpeak.spans import Spans

SEED = 100
#: Number of reads of the matrix per round; one read would be too short to time.
READS = 32
#: No look-ahead: on a GPU, work on two streams may give different bits in each run.
LOOKAHEAD = 0
#: The name of the measure that factors a matrix, by benchmark.
FACTORS = {"hpl": "hpl", "hpl-mxp": "lu"}


@dataclass(frozen=True, slots=True)
class Size:
    """Order, block size, precision, ranks per unit and benchmark of a scan. They are equal on all ranks."""

    n: int
    nb: int
    precision: str
    unit_ranks: int = 1
    benchmark: str = "hpl-mxp"

    @property
    def factors(self) -> str:
        """Return the name of the measure that factors a matrix: hpl or lu."""
        return FACTORS[self.benchmark]

    @property
    def side(self) -> int:
        """Return the order of a rank's products, so that C has a quarter of the entries of the rank's share of A."""
        return max(1, math.isqrt(self.n**2 // self.unit_ranks) // 2)

    @property
    def products(self) -> int:
        """Return the number of products per rank and round. They have about as many flops as the LU."""
        return max(1, math.ceil(lu_flops(self.n) / (self.unit_ranks * 2.0 * self.side**2 * self.nb)))

    @property
    def product_flops(self) -> float:
        """Return the flops of all products of a unit in a round."""
        return self.unit_ranks * self.products * 2.0 * self.side**2 * self.nb

    @property
    def read_bytes(self) -> int:
        """Return the number of bytes that a unit reads in a round."""
        return READS * self.n**2 * format_of(stored_as(self.precision)).bytes


@dataclass(frozen=True, slots=True)
class Probe:
    """A measure of a scan.

    prepare   function that is called before the timed part
    work      function that is timed
    bits      function that returns a digest of the result's bits, or None if the measure has no result
    residual  function that returns the scaled residual of the result and overwrites its inputs, or None without a check
    amount    flops or bytes of the work of all ranks of the unit
    """

    name: str
    amount: float
    prepare: Callable[[], object]
    work: Callable[[], object]
    bits: Callable[[], str] | None = None
    residual: Callable[[], float] | None = None


def probes(kernels: Kernels, unit: Communicator, size: Size) -> list[Probe]:
    """Return the measures of a unit in the order of execution: LU or HPL, products, and reads of the matrix.

    `unit` is the communicator of the unit's ranks. Collective over unit.
    """
    P = max(p for p in divisors(unit.size) if p * p <= unit.size)
    grid = make_grid(ProcessGrid(P, unit.size // P), unit)
    assert grid is not None
    A, factored = (_hpl if size.benchmark == "hpl" else _mixed_lu)(kernels, grid, size)
    product = gemm_probe(kernels, size.side, size.side, size.nb, size.precision)
    rows, columns = A.local.shape[0], A.cols.local_start(size.n)
    tile = Tile(A.local[:, :columns], consecutive(rows), consecutive(columns), 0, 0)

    def clear() -> None:
        product.C[:] = 0.0

    def multiply() -> None:
        for _ in range(size.products):
            product()

    def read() -> None:
        for _ in range(READS):
            kernels.norms.read_all([tile])

    return [
        factored,
        Probe("gemm", size.product_flops, clear, multiply, lambda: kernels.digest(product.C)),
        Probe("read", float(size.read_bytes), lambda: None, read),
    ]


def _mixed_lu(kernels: Kernels, grid: Grid, size: Size) -> tuple[DistMatrix, Probe]:
    """Return the matrix and the measure of the LU of HPL-MxP. Collective over the grid."""
    A = dist_matrix(grid, size.n, size.n, size.nb, kernels, stored_as(size.precision))
    system = GeneratedSystem(grid, size.n, size.nb, generator("sqrt-n", size.n, seed=SEED), kernels)
    options = MixedLuOptions(size.precision, lookahead=LOOKAHEAD, forwards=grid.all.size > 1)

    def factor() -> None:
        factorize(A, options, kernels, Spans())

    return A, Probe("lu", lu_flops(size.n), lambda: system.store(A), factor, lambda: kernels.digest(A.local))


def _hpl(kernels: Kernels, grid: Grid, size: Size) -> tuple[DistMatrix, Probe]:
    """Return the matrix [A | b] and the measure of HPL, which has HPL's check. Collective over the grid."""
    case = HplCase(n=size.n, nb=size.nb, P=grid.P, Q=grid.Q, depth=LOOKAHEAD, seed=SEED)
    A = dist_matrix(grid, size.n, size.n + 1, size.nb, kernels)
    options = lu_options(case, forwards=grid.all.size > 1)
    solution: list[Vector] = [kernels.xp.zeros(A.cols.local_start(size.n))]

    def solve() -> None:
        factorize_with_pivoting(A, options, kernels, Spans())
        solution[0] = solve_augmented(A, kernels)

    return A, Probe(
        "hpl",
        hpl_flops(size.n),
        lambda: fill(A, case, kernels),
        solve,
        lambda: bits_of(kernels, A.local, solution[0]),
        lambda: residual_of(A, solution[0], case, kernels)[1],
    )


def footprint(precision: str, unit_ranks: int = 1, benchmark: str = "hpl-mxp", *, on_gpu: bool) -> Footprint:
    """Return a function that computes the bytes of a scan on P×Q ranks, in units of `unit_ranks` ranks.

    Each unit stores the matrix of a complete LU, and each rank the matrices C, A and B of the products.
    """
    stored = format_of(stored_as(precision)).bytes

    def count(n: int, nb: int, P: int, Q: int) -> dict[str, int]:
        if benchmark == "hpl":
            own = hpl_memory_bytes(n, nb, 1, unit_ranks)
        else:
            own = mxp_memory_bytes(n, nb, 1, unit_ranks, stored, stored, inverses=on_gpu, background=on_gpu)
        side = Size(n, nb, precision, unit_ranks).side
        products = unit_ranks * stored * (side**2 + 4 * side * nb)  # A and B as generated and rounded
        units = math.ceil(P * Q / unit_ranks)
        matrix, buffers = units * own["matrix"], units * (own["buffers"] + products)
        return {"matrix": matrix, "buffers": buffers, "total": matrix + buffers}

    return count
