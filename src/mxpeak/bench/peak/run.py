"""The limits that benchmarks are told as shares of, by themselves: GEMM in each precision, reading memory, the triad.

GEMM     C -= A B on every rank at once, m = n = 4096 (on a GPU 16384), k = 512; in the precisions that the processor or
         device multiplies itself
read     every rank at once reads a matrix that no cache holds
triad    y += a x on every rank at once: 24 bytes an entry
balance  DGEMM flops per byte read
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Unpack

from mxpeak.bench.harness import Bench, Told, opened, repeated
from mxpeak.bench.lu import gemm_probe
from mxpeak.comm.base import Communicator
from mxpeak.configs.run import RunConfig
from mxpeak.distributed.sparse import zeros
from mxpeak.kernels.contract.norms import Tile
from mxpeak.layout.index_map import consecutive

#: Sides and inner dimension of the products, on the host and on a GPU.
SIDE, GPU_SIDE, INNER = 4096, 16384, 512
#: Seconds over which each is looked for.
SECONDS = 1.0
#: Bytes that are read, at least; and how many times the caches, while that fits into a quarter of the memory.
LEAST_BYTES, CACHES, SHARE = 2**28, 2, 4
#: Products by precision, as they are called.
GEMMS = {"fp64": "DGEMM", "fp32": "SGEMM", "bf16": "BF16 GEMM", "fp16": "FP16 GEMM"}


def run(config: RunConfig, comm: Communicator, *, scale: int = 1, **told: Unpack[Told]) -> dict[str, Any]:
    """Measure the rates of all ranks together; whole on rank 0.  `scale` divides the sizes (tests).  Collective."""
    start = time.time()
    with opened(Bench[RunConfig], lambda config, comm: None, config, comm, told) as bench:
        rates = [_gemm(bench, name, scale) for name in GEMMS if not bench.kernels.emulates(name)]
        rates += [_read(bench, scale), _triad(bench, scale)]
        return {
            "schema": "mxpeak.peak/1",
            "rates": rates,
            "balance": {"flops_per_byte": rates[0]["rate_flops"] / rates[-2]["rate_bytes"]},
            **bench.facts.sections(start, time.time()),
        }


def _best(bench: Bench[RunConfig], work: Callable[[], object]) -> float:
    """The seconds of the quickest of several, by the slowest rank of each.  Collective."""
    work()
    return min(repeated(lambda: bench.slowest(work), least=3, most=100, seconds=SECONDS))


def _gemm(bench: Bench[RunConfig], name: str, scale: int) -> dict[str, Any]:
    side, k = (GPU_SIDE if bench.config.on_gpu else SIDE) // scale, INNER // scale
    time_s = _best(bench, gemm_probe(bench.kernels, side, side, k, name))
    return {"name": GEMMS[name], "rate_flops": bench.comm.size * 2.0 * side * side * k / time_s}


def _bytes(bench: Bench[RunConfig], scale: int) -> int:
    """Bytes of a rank's array, more than its caches hold."""
    cache = int(bench.facts.machine.get("l3_bytes") or 0)
    most = bench.budget.default // (SHARE * bench.budget.ranks_a_node)
    return min(max(LEAST_BYTES, CACHES * cache), max(most, 2**20)) // scale**2


def _read(bench: Bench[RunConfig], scale: int) -> dict[str, Any]:
    m = max(8, int((_bytes(bench, scale) / 8) ** 0.5))
    A = bench.kernels.matrix(m, m)
    A[:] = 1.0
    tile = Tile(A, consecutive(m), consecutive(m), 0, 0)
    time_s = _best(bench, lambda: bench.kernels.norms.read_all([tile]))
    return {"name": "memory read", "rate_bytes": bench.comm.size * 8.0 * m * m / time_s}


def _triad(bench: Bench[RunConfig], scale: int) -> dict[str, Any]:
    kernels, n = bench.kernels.sparse, max(8, _bytes(bench, scale) // 16)
    x, y = zeros(kernels, n, "fp64"), zeros(kernels, n, "fp64")
    x[:], y[:] = 1.0, 1.0
    time_s = _best(bench, lambda: kernels.add_scaled(y, 1e-9, x))
    return {"name": "memory triad", "rate_bytes": bench.comm.size * 24.0 * n / time_s}
