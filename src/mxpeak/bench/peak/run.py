"""Measure the limits of this machine without a benchmark: GEMM in each precision, memory read and triad.

GEMM     C -= A B on every rank at the same time, m = n = 4096 (on a GPU 16384), k = 512; in native precisions
read     every rank reads an array that exceeds the caches, all at the same time
triad    y += a x on every rank at the same time: 24 bytes per entry
balance  DGEMM flops per byte read

Each rate is sustained (the median of the second half of the samples). The rate of the best sample is its burst.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Unpack

from mxpeak.bench.fp64 import arithmetic_of
from mxpeak.bench.harness import Bench, RunHooks, open_bench
from mxpeak.bench.limits import reading, uncached_bytes
from mxpeak.bench.lu import gemm_probe
from mxpeak.comm.base import Communicator
from mxpeak.configs.run import RunConfig
from mxpeak.distributed.spaces import zeros
from mxpeak.kernels.contract.norms import Tile
from mxpeak.layout.index_map import consecutive
from mxpeak.solvers.fp64_probe import probe_products

#: Side and inner dimension of the products, on the host and on a GPU.
SIDE, GPU_SIDE, INNER = 4096, 16384, 512
#: Seconds over which each rate is measured.
SECONDS = 1.0
#: Names of the products by precision.
GEMMS = {"fp64": "DGEMM", "fp32": "SGEMM", "bf16": "BF16 GEMM", "fp16": "FP16 GEMM"}


def run_peak(config: RunConfig, comm: Communicator, *, scale: int = 1, **hooks: Unpack[RunHooks]) -> dict[str, Any]:
    """Measure the GEMM, read and triad rates of all ranks together, and return the result, complete on rank 0.

    Tests divide the sizes by `scale`. Collective over comm.
    """
    start = time.time()
    with open_bench(Bench[RunConfig], lambda config, comm: None, config, comm, hooks) as bench:
        rates = [_gemm(bench, name, scale) for name in GEMMS if not bench.kernels.emulates(name)]
        rates += [_read(bench, scale), _triad(bench, scale)]
        return {
            "schema": "mxpeak.peak/1",
            "rates": rates,
            "balance": {"flops_per_byte": rates[0]["rate_flops"] / rates[-2]["rate_bytes"]},
            **bench.facts.sections(start, time.time()),
        }


def _measured(
    bench: Bench[RunConfig], name: str, unit: str, work: Callable[[], object], amount: float
) -> dict[str, Any]:
    """Repeat `work` on all ranks at the same time, and return the sustained rate and the burst rate. Collective.

    `amount` is the number of flops or bytes per rank and call.
    """
    work()  # touch the memory and load the kernels before the first reading
    measured = reading(lambda: bench.slowest(work), bench.comm.size * amount, lambda rate: SECONDS, SECONDS)
    return {"name": name, unit: measured.rate, "burst": measured.burst}


def _gemm(bench: Bench[RunConfig], name: str, scale: int) -> dict[str, Any]:
    """Measure the GEMM rate of all ranks in one precision, in flop/s. Collective."""
    side, k = (GPU_SIDE if bench.config.on_gpu else SIDE) // scale, INNER // scale
    product = gemm_probe(bench.kernels, side, side, k, name)
    rate = _measured(bench, GEMMS[name], "rate_flops", product, 2.0 * side * side * k)
    return rate if name != "fp64" else rate | _fp64(bench, side, k)


def _fp64(bench: Bench[RunConfig], side: int, k: int) -> dict[str, Any]:
    """Return the arithmetic of the DGEMM; a small product is sufficient on the host. Collective."""
    m = side if bench.config.on_gpu else 0
    return arithmetic_of(probe_products(bench.kernels, m, m, k), bench.kernels, bench.comm).section()


def _bytes(bench: Bench[RunConfig], scale: int) -> int:
    """Return the size in bytes of a rank's array, which exceeds the rank's share of the caches."""
    budget = bench.budget
    whole = uncached_bytes(bench.facts.machine, budget.default, budget.ranks_a_node, on_gpu=bench.config.on_gpu)
    return whole // scale**2


def _read(bench: Bench[RunConfig], scale: int) -> dict[str, Any]:
    """Measure the rate at which all ranks read memory, in bytes per second. Collective."""
    m = max(8, int((_bytes(bench, scale) / 8) ** 0.5))
    A = bench.kernels.matrix(m, m)
    A[:] = 1.0
    tile = Tile(A, consecutive(m), consecutive(m), 0, 0)
    return _measured(bench, "memory read", "rate_bytes", lambda: bench.kernels.norms.read_all([tile]), 8.0 * m * m)


def _triad(bench: Bench[RunConfig], scale: int) -> dict[str, Any]:
    """Measure the rate of y += a x on all ranks in bytes per second, counted as 24 bytes per entry. Collective."""
    kernels, n = bench.kernels.sparse, max(8, _bytes(bench, scale) // 16)
    x, y = zeros(kernels, n, "fp64"), zeros(kernels, n, "fp64")
    x[:], y[:] = 1.0, 1.0
    return _measured(bench, "memory triad", "rate_bytes", lambda: kernels.add_scaled(y, 1e-9, x), 24.0 * n)
