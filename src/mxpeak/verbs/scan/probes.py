"""What every rank does in a round, alone and with the same inputs: an LU, products, reading memory."""

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
#: How often the matrix is read in a round: once would hardly be longer than a look at the clock.
READS = 32
#: Nothing is hidden under the update: on a GPU, work on two streams need not give the same bits twice.
LOOKAHEAD = 0


@dataclass(frozen=True, slots=True)
class Size:
    """What is the same on all ranks: order, block and precision."""

    n: int
    nb: int
    precision: str

    @property
    def side(self) -> int:
        """Rows and columns of a product: half of A's, which makes C a quarter of it."""
        return max(1, self.n // 2)

    @property
    def products(self) -> int:
        """As many as have the LU's flops."""
        return max(1, math.ceil(lu_flops(self.n) / (2.0 * self.side**2 * self.nb)))

    @property
    def product_flops(self) -> float:
        """The flops of all of them."""
        return self.products * 2.0 * self.side**2 * self.nb

    @property
    def read_bytes(self) -> int:
        """The bytes that are read in a round."""
        return READS * self.n**2 * format_of(stored_as(self.precision)).bytes


@dataclass(frozen=True, slots=True)
class Probe:
    """One measure: `prepare` before the clock, `work` inside it, and what `bits` it left, if it left any.

    amount    flops or bytes of the work
    """

    name: str
    amount: float
    prepare: Callable[[], object]
    work: Callable[[], object]
    bits: Callable[[], str] | None = None


def probes(kernels: Kernels, transport: Transport, size: Size) -> list[Probe]:
    """The measures of one rank, in the order of a round: what the LU leaves is read in the end."""
    alone = make_grid(ProcessGrid(1, 1), Solo(transport))
    assert alone is not None
    A = dist_matrix(alone, size.n, size.n, size.nb, kernels, stored_as(size.precision))
    system = GeneratedSystem(alone, size.n, size.nb, generator("sqrt-n", size.n, seed=SEED), kernels)
    options = MixedLuOptions(size.precision, lookahead=LOOKAHEAD, forwards=False)
    product = gemm_probe(kernels, size.side, size.side, size.nb, size.precision)
    tile = Tile(A.local, consecutive(size.n), consecutive(size.n), 0, 0)

    def clear() -> None:
        product.C[:] = 0.0

    def multiply() -> None:
        for _ in range(size.products):
            product()

    def read() -> None:
        for _ in range(READS):
            kernels.norms.read_all([tile])

    return [
        Probe(
            "lu",
            lu_flops(size.n),
            lambda: system.store(A),
            lambda: factorize(A, options, kernels, Spans()),
            lambda: kernels.digest(A.local),
        ),
        Probe("gemm", size.product_flops, clear, multiply, lambda: kernels.digest(product.C)),
        Probe("read", float(size.read_bytes), lambda: None, read),
    ]


def footprint(precision: str, *, on_gpu: bool) -> Footprint:
    """The bytes that P×Q ranks need, each of which has a whole matrix: an LU's, and C, A and B of the products."""
    stored = format_of(stored_as(precision)).bytes

    def count(n: int, nb: int, P: int, Q: int) -> dict[str, int]:
        own = mxp_memory_bytes(n, nb, 1, 1, stored, stored, inverses=on_gpu, background=on_gpu)
        side = Size(n, nb, precision).side
        products = stored * (side**2 + 4 * side * nb)  # A and B as drawn, and rounded
        matrix, buffers = P * Q * own["matrix"], P * Q * (own["buffers"] + products)
        return {"matrix": matrix, "buffers": buffers, "total": matrix + buffers}

    return count
