"""Rate of the panel factorization (FACT) by height and threads, on one rank (rocHPL, Fig. 5).

Each panel has M×NB random numbers and takes M NB² - NB³/3 flops. The rate is compared with that of a DGEMM of inner
dimension NB on the same threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

from mxpeak.bench.lu import gemm_probe
from mxpeak.comm.transports.solo import Solo
from mxpeak.configs.run import PlaceConfig
from mxpeak.kernels.contract import Kernels
from mxpeak.kernels.contract.lu import Panel
from mxpeak.layout.block_cyclic import BlockCyclic
from mxpeak.layout.entries import Entries
from mxpeak.layout.panel_plan import panel_plan
from mxpeak.perf.host import one_core_each
from mxpeak.perf.simulation.machine_from_measurements import panel_flops
from mxpeak.runtime.placement import bind_to_cores, load_kernels
from mxpeak.solvers.lu.panel import PanelOptions

#: Default panel heights in multiples of NB.
BLOCKS = (1, 2, 4, 8, 16, 32, 64, 128)
NB = 192
#: Number of factorizations per panel height, whose median time is used, and the order of C in the DGEMM.
REPEAT, GEMM_N = 9, 2048
#: Number of M×NB arrays in use at the same time.
ARRAYS = 3


def thread_counts() -> tuple[int, ...]:
    """Return the powers of two up to the number of cores, and the number of cores."""
    cores = len(one_core_each())
    return tuple(sorted({cores, *(1 << k for k in range(cores.bit_length()))}))


def fact_cases(
    nb: int,
    heights: Sequence[int],
    threads: Sequence[int],
    on_case: Callable[[int, int], None],
    cases: list[dict[str, Any]],
) -> None:
    """Append one case per panel height and number of threads to `cases`, with the rates of FACT and DGEMM in flop/s.

    `on_case` is called after each case with the number of completed cases and the number of all cases.
    """
    comm = Solo()
    for T in threads:
        placement = bind_to_cores(comm, T)
        try:
            kernels, _ = load_kernels(PlaceConfig(kernels="host", device="cpu", threads=T), placement, comm)
            multiply = gemm_probe(kernels, GEMM_N, GEMM_N, nb, "fp64")
            dgemm = 2.0 * GEMM_N**2 * nb / min(map(_timed, [multiply] * 5))
            for M in heights:
                rate = panel_flops(M, nb) / median(_panel_times(kernels, M, nb))
                cases.append({"m": M, "nb": nb, "threads": T, "rate_flops": rate, "dgemm_flops": dgemm})
                on_case(len(cases), len(heights) * len(threads))
        finally:
            placement.release()


def _panel_times(kernels: Kernels, M: int, nb: int) -> list[float]:
    """Factor a random M×nb panel REPEAT times with HPL's default settings, and return the times in seconds."""
    values = kernels.matrix(M, nb)
    entries = Entries("lcg", M, seed=1, scale=-1.0, shift=0.5)
    kernels.generate(values, BlockCyclic(M, nb, 0, 1), BlockCyclic(nb, nb, 0, 1), entries)
    A = kernels.panel(kernels.buffer(kernels.panel_size(M, nb)), M, nb)
    L1 = kernels.panel(kernels.buffer(kernels.panel_size(nb, nb)), nb, nb)
    options = PanelOptions()
    plan = panel_plan(nb, options.nbmin, options.ndiv, options.rfact)
    panel = Panel(A, L1, kernels.buffer(nb + 1), BlockCyclic(M, nb, 0, 1), 0, nb, plan, options.pfact)
    times = []
    for _ in range(REPEAT):
        kernels.copy(values, A)
        times.append(_timed(lambda: kernels.factor_panel(panel, None)))
    return times


def _timed(work: Callable[[], object]) -> float:
    begin = perf_counter()
    work()
    return perf_counter() - begin
