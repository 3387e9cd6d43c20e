"""The measures of a scan round: an LU, matrix products and memory reads, with the same inputs on each rank."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from mxpeak.bench.lu import gemm_probe
from mxpeak.comm.base import Transport
from mxpeak.comm.grid import make_grid
from mxpeak.comm.transports.solo import Solo
from mxpeak.distributed.dense import dist_matrix
from mxpeak.distributed.sources import GeneratedSystem
from mxpeak.kernels.contract import Kernels
from mxpeak.kernels.contract.norms import Tile
from mxpeak.layout.generators import generator
from mxpeak.layout.grid import ProcessGrid
from mxpeak.layout.index_map import consecutive
from mxpeak.perf.counts import Footprint, lu_flops, mxp_memory_bytes
from mxpeak.precision import precision as format_of
from mxpeak.precision import stored_as
from mxpeak.solvers.lu.lu import MixedLuOptions, factorize
from mxpeak.spans import Spans

SEED = 100
#: Number of reads of the matrix per round; one read would be too short to time.
READS = 32
#: No look-ahead: on a GPU, work on two streams may give different bits in each run.
LOOKAHEAD = 0


@dataclass(frozen=True, slots=True)
class Size:
    """Order, block size and precision of a scan. They are equal on all ranks."""

    n: int
    nb: int
    precision: str

    @property
    def side(self) -> int:
        """Return the order of the products: half of A's order, so that C has a quarter of A's entries."""
        return max(1, self.n // 2)

    @property
    def products(self) -> int:
        """Return the number of products per round. They have about as many flops as the LU."""
        return max(1, math.ceil(lu_flops(self.n) / (2.0 * self.side**2 * self.nb)))

    @property
    def product_flops(self) -> float:
        """Return the flops of all products in a round."""
        return self.products * 2.0 * self.side**2 * self.nb

    @property
    def read_bytes(self) -> int:
        """Return the number of bytes that are read in a round."""
        return READS * self.n**2 * format_of(stored_as(self.precision)).bytes


@dataclass(frozen=True, slots=True)
class Probe:
    """A measure of a scan.

    prepare   function that is called before the timed part
    work      function that is timed
    bits      function that returns a digest of the result's bits, or None if the measure has no result
    amount    flops or bytes of the work
    """

    name: str
    amount: float
    prepare: Callable[[], object]
    work: Callable[[], object]
    bits: Callable[[], str] | None = None


def probes(kernels: Kernels, transport: Transport, size: Size) -> list[Probe]:
    """Return the measures of a rank in the order of execution: LU, products, and reads of the LU factors."""
    alone = make_grid(ProcessGrid(1, 1), Solo(transport))
    assert alone is not None
    A = dist_matrix(alone, size.n, size.n, size.nb, kernels, stored_as(size.precision))
    system = GeneratedSystem(alone, size.n, size.nb, generator("sqrt-n", size.n, seed=SEED), kernels)
    options = MixedLuOptions(size.precision, lookahead=LOOKAHEAD, forwards=False)
    product = gemm_probe(kernels, size.side, size.side, size.nb, size.precision)
    tile = Tile(A.local, consecutive(size.n), consecutive(size.n), 0, 0)

    def factor() -> None:
        factorize(A, options, kernels, Spans())

    def clear() -> None:
        product.C[:] = 0.0

    def multiply() -> None:
        for _ in range(size.products):
            product()

    def read() -> None:
        for _ in range(READS):
            kernels.norms.read_all([tile])

    return [
        Probe("lu", lu_flops(size.n), lambda: system.store(A), factor, lambda: kernels.digest(A.local)),
        Probe("gemm", size.product_flops, clear, multiply, lambda: kernels.digest(product.C)),
        Probe("read", float(size.read_bytes), lambda: None, read),
    ]


def footprint(precision: str, *, on_gpu: bool) -> Footprint:
    """Return a function that computes the bytes of a scan on P×Q ranks.

    Each rank stores the matrix of a complete LU, and the matrices C, A and B of the products.
    """
    stored = format_of(stored_as(precision)).bytes

    def count(n: int, nb: int, P: int, Q: int) -> dict[str, int]:
        own = mxp_memory_bytes(n, nb, 1, 1, stored, stored, inverses=on_gpu, background=on_gpu)
        side = Size(n, nb, precision).side
        products = stored * (side**2 + 4 * side * nb)  # A and B as generated and rounded
        matrix, buffers = P * Q * own["matrix"], P * Q * (own["buffers"] + products)
        return {"matrix": matrix, "buffers": buffers, "total": matrix + buffers}

    return count
