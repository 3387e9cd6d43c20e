"""Choose the faster format for natural-order Gauss–Seidel on this CPU: compressed rows, or slots of successive rows.

Processors differ in the cost of a gather, so both formats are timed on a small box. If the rounds agree, the choice is
stored next to the compiled kernels, so that the next run makes the same choice and computes bitwise identical results.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numba
import numpy as np
from llvmlite.binding import get_host_cpu_name

from mxpeak.kernels.contract.sparse import Order, Rows
from mxpeak.kernels.host.engine.cache import cache_directory
from mxpeak.kernels.host.engine.team import Team
from mxpeak.kernels.host.sparse.slot_sums import SUCCESSIVE
from mxpeak.layout.stencil import Box

#: The numbers of interleaved rows that are compared: compressed rows, and slots of SUCCESSIVE rows.
WAYS = (1, SUCCESSIVE)
#: Interleaved measurements of each format, after one warm-up.
ROUNDS = 5
#: Single rows are chosen if they need less than this share of the time of interleaved rows. With times closer to each
#: other, the choice would depend on measurement noise.
TIE = 0.9
#: The largest quotient of the time ratios of two rounds on an idle machine.
STEADY = 1.25
#: Points per side of the box, so that the box exceeds every L2 cache; slots always win within the cache.
SIDE = 48
#: The chosen number of rows for each format of values and type of vectors.
_chosen: dict[tuple[str, str], int] = {}


def rows_at_a_time(values: str, vectors: str, trial: Callable[[], dict[int, Callable[[], None]]]) -> int:
    """Return the number of rows to interleave for these values and vectors: the stored choice, or the faster one.

    If no choice is stored, trial() returns the functions to time. The choice is stored if the rounds agree.
    """
    if (values, vectors) not in _chosen:
        path = cache_directory() / f"rows-{numba.config.CPU_NAME or get_host_cpu_name()}-{values}-{vectors}"
        choice = None
        with suppress(OSError, ValueError):
            choice = int(path.read_text())
        if choice not in WAYS:
            choice, sure = _faster(trial())
            unfinished = path.with_name(f"{path.name}.{os.getpid()}")
            with suppress(OSError):  # without the file, the next run repeats the measurement
                if sure:
                    unfinished.write_text(str(choice))
                    unfinished.replace(path)
        _chosen[values, vectors] = choice
    return _chosen[values, vectors]


def trial(kernels: Callable[[Team, int], Any], values: str, vectors: str) -> dict[int, Callable[[], None]]:
    """Return functions that execute forward sweeps and a product, by the number of interleaved rows.

    The functions run on one thread. The matrix is the 27-point matrix of a box. Backward sweeps read the same entries
    and would have to be compiled first, even for solvers that only sweep forward.
    """
    by_way = {way: kernels(Team(1), way) for way in WAYS}
    rows = by_way[1].stencil_rows(Box(SIDE, SIDE, SIDE), [-1.0] * 13 + [26.0] + [-1.0] * 13)
    order = by_way[1].order(rows, "natural")
    return {way: _work(by_way[way], rows, order, values, vectors) for way in WAYS}


def _work(kernels: Any, rows: Rows, order: Order, values: str, vectors: str) -> Callable[[], None]:
    """Store the rows as a matrix, and return a function that executes four forward sweeps and one product."""
    A = kernels.store(rows, order, values, vectors, "rows")
    x = kernels.halo_vector(A)
    b, y = np.ones(rows.n, x.dtype), np.zeros(rows.n, x.dtype)

    def work() -> None:
        kernels.sweep_from_zero(A, b, x)
        for _ in range(3):
            kernels.sweep_forward(A, b, x)
        kernels.matvec(y, A, x)

    return work


def _faster(work: dict[int, Callable[[], None]]) -> tuple[int, bool]:
    """Time both formats, and return the number of rows with the faster median round and whether the rounds agree.

    The two times of a round are adjacent, so a slow period of the machine does not change their ratio. Large
    differences between rounds indicate a busy machine.
    """

    def seconds(way: int) -> float:
        begin = time.perf_counter()
        work[way]()
        return time.perf_counter() - begin

    ratios = [seconds(1) / seconds(SUCCESSIVE) for _ in range(1 + ROUNDS)][1:]
    single_rows = statistics.median(ratios) < TIE
    sure = max(ratios) <= STEADY * min(ratios) or all((ratio < TIE) == single_rows for ratio in ratios)
    return 1 if single_rows else SUCCESSIVE, sure
