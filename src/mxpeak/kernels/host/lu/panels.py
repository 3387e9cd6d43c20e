"""FACT on the threads of a team: what compiled code is told of a panel, and what it says of its time."""

from __future__ import annotations

import ctypes
from time import perf_counter
from typing import Any

import numpy as np

from mxpeak.kernels.contract.lu import HEAD, Exchange, Panel, PanelOutcome
from mxpeak.kernels.host.engine import blas
from mxpeak.kernels.host.engine.team import Team
from mxpeak.kernels.host.engine.vector_ir import SYNC, sched_yield_address
from mxpeak.kernels.host.lu import panel
from mxpeak.layout.panel_plan import PanelOp

Array = np.ndarray[Any, np.dtype[Any]]

_VARIANTS = {"right": panel.RIGHT, "left": panel.LEFT, "crout": panel.CROUT}
_Callback = ctypes.CFUNCTYPE(ctypes.c_int32)

#: About how many tiles a thread has in FACT: taller ones (multiples of NB rows) make better products, and a row's
#: neighbours stay with one thread.  20000×256 on 2 threads: 38 ms with tiles of NB rows, 23 with 4 a thread, 19 with 2.
TILES = 2


class HostPanels:
    """The panels of `LuKernels` on the threads of a team."""

    def __init__(self, team: Team):
        self._team, self.threads = team, team.threads
        self._plans: dict[tuple[PanelOp, ...], Array] = {}
        self._yield = sched_yield_address()

    def factor_panel(self, work: Panel, exchange: Exchange | None) -> PanelOutcome:
        jb = work.L1.shape[0]
        number = work.L1.itemsize
        assert work.A.strides[0] == work.L1.strides[0] == number or work.A.shape[0] <= 1, "panels are column-major"
        tiles = -(-work.A.shape[0] // work.rows.nb)
        threads = self.threads if tiles > 1 else 1
        mine, theirs = np.zeros((2, HEAD + 2 * jb))
        failure: list[BaseException] = []

        def call_exchange() -> int:
            try:
                assert exchange is not None
                exchange(mine, theirs)
                return 0
            except BaseException as error:
                failure.append(error)  # raised again below: an exception cannot cross compiled code
                return 1

        callback = _Callback(call_exchange)
        into_python = ctypes.cast(callback, ctypes.c_void_p).value or 0
        letter, _ = blas.TYPES[work.L1.dtype]
        products = blas.address(f"{letter}gemm"), blas.address(f"{letter}trsm")
        calls = np.array([*products, into_python, self._yield], dtype=np.int64)
        tile = work.rows.nb * max(1, tiles // (TILES * threads))
        geometry = np.array([work.il0, work.rows.nb, work.rows.p, work.rows.P, tile], dtype=np.int64)
        state, sync = np.zeros(8, dtype=np.int64), np.zeros(SYNC, dtype=np.int64)
        pivots = np.empty(jb, dtype=np.int64)
        best, where = np.zeros(8 * threads), np.zeros(8 * threads, dtype=np.int64)
        problem = work.A, work.L1, self._plan(work), _VARIANTS[work.pfact], work.top, pivots, geometry
        arguments = threads, *problem, mine, state, best, where, sync, calls

        begin = perf_counter()
        if threads == 1:
            panel.factor_panel(0, *arguments)
        else:
            self._team.run(panel.factor_panel, *arguments)
        elapsed = perf_counter() - begin
        if failure:
            raise failure[0]
        work.pivots[:jb], work.pivots[jb] = pivots, state[panel.SINGULAR]
        per_cycle = elapsed / max(1, int(state[panel.ALL_CYCLES]))
        return PanelOutcome(float(state[panel.LEAF_CYCLES]) * per_cycle, float(state[panel.SWAP_CYCLES]) * per_cycle)

    def _plan(self, work: Panel) -> Array:
        if work.plan not in self._plans:
            self._plans[work.plan] = np.array(work.plan, dtype=np.int64).reshape(-1, 7)
        return self._plans[work.plan]
