"""Rows one after the other: each by itself, or successive ones in vector instructions; whichever is faster here.

Processors differ in what a gather costs, so both ways are timed, on a small box, and a clear answer is kept beside the
compiled kernels: the next run takes the same way and gives the same bits.
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

#: Rows at a time.
WAYS = (1, SUCCESSIVE)
#: Times that each way is measured, in turns, after one that does not count.
ROUNDS = 5
#: One by one has to take less than this share of the other way's time: by less nothing is won, and chance would decide.
TIE = 0.9
#: The largest ratio of a round over the smallest one's, of a machine that does nothing else.
STEADY = 1.25
#: Points a side of the box that they are measured on: one that lies in no second cache, where slices always win.
SIDE = 48
#: What has been found for values and vectors.
_known: dict[tuple[str, str], int] = {}


def rows_at_a_time(values: str, vectors: str, trial: Callable[[], dict[int, Callable[[], None]]]) -> int:
    """The faster way for such values and vectors on this machine; trial() is the work of each, to be timed."""
    if (values, vectors) not in _known:
        path = cache_directory() / f"rows-{numba.config.CPU_NAME or get_host_cpu_name()}-{values}-{vectors}"
        found = None
        with suppress(OSError, ValueError):
            found = int(path.read_text())
        if found not in WAYS:
            found, sure = _faster(trial())
            mine = path.with_name(f"{path.name}.{os.getpid()}")
            with suppress(OSError):  # without it the next run looks again
                if sure:
                    mine.write_text(str(found))
                    mine.replace(path)
        _known[values, vectors] = found
    return _known[values, vectors]


def trial(kernels: Callable[[Team, int], Any], values: str, vectors: str) -> dict[int, Callable[[], None]]:
    """Sweeps as HPCG has them and a product on one thread, of the 27-point matrix of a box, by the way it is taken."""
    one = {way: kernels(Team(1), way) for way in WAYS}
    rows = one[1].stencil_rows(Box(SIDE, SIDE, SIDE), [-1.0] * 13 + [26.0] + [-1.0] * 13)
    order = one[1].order(rows, "natural")
    return {way: _work(one[way], rows, order, values, vectors) for way in WAYS}


def _work(one: Any, rows: Rows, order: Order, values: str, vectors: str) -> Callable[[], None]:
    A = one.store(rows, order, values, vectors, "rows")
    x = one.halo_vector(A)
    b, y, keep = np.ones(rows.n, x.dtype), np.zeros(rows.n, x.dtype), np.zeros(rows.n, x.dtype)

    def work() -> None:
        for from_zero in (True, False):
            one.relax(A, b, x, from_zero=from_zero, keep=keep)
            one.relax(A, b, x, backward=True, keep=keep)
        one.matvec(y, A, x)

    return work


def _faster(work: dict[int, Callable[[], None]]) -> tuple[int, bool]:
    """The faster way by the median round, and whether that is sure.

    A round's two times stand side by side, so what slows both for a while leaves their ratio as it is.  Rounds that
    contradict each other by more than a little are of a machine that does something else meanwhile.
    """

    def took(way: int) -> float:
        begin = time.perf_counter()
        work[way]()
        return time.perf_counter() - begin

    ratios = [took(1) / took(SUCCESSIVE) for _ in range(1 + ROUNDS)][1:]
    one_by_one = statistics.median(ratios) < TIE
    sure = max(ratios) <= STEADY * min(ratios) or all((ratio < TIE) == one_by_one for ratio in ratios)
    return 1 if one_by_one else SUCCESSIVE, sure
