"""Evaluate the closed formula of the OLCF paper (SC22, IV, eq. 1-5): an upper bound of the time of HPL-MxP, by terms.

The formula treats every step as if the complete matrix remained. The products have 2/3 N²B flops per step on average,
but count as N²B, and all panels have full height. The bound has about 1.5 times the products and twice the messages of
a run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mxpeak.perf.simulation.machines import Machine
from mxpeak.precision import stored_as


@dataclass(frozen=True, slots=True)
class Bound:
    """The terms of eq. 1 for a run, in seconds. The broadcast of the diagonal block is omitted."""

    getrf: float
    trsm: float
    bcast_panel: float
    gemm: float

    @property
    def time_s(self) -> float:
        """Return the time of eq. 1 in seconds. Look-ahead replaces its last two terms by their maximum (IV-B)."""
        return self.getrf + self.trsm + max(self.bcast_panel, self.gemm)


def upper_bound(
    machine: Machine, n: int, nb: int, P: int, Q: int, node: tuple[int, int], precision: str, nics: int | None = None
) -> Bound:
    """Return the terms of eq. 3, with the communication of eq. 5, in which the ranks of a node share its ports.

        T = N B²/GETRF + N² B/(P_r TRSM) + N² B/(P_c TRSM)
            + max(2N² Q_r/(P_r NBN) + 2N² Q_c/(P_c NBN), N³/(P_r P_c GEMM(N_L, B)))

    The process grid is P_r×P_c, and Q_r×Q_c of its ranks are on one node. NBN is the bandwidth of a node, or of the
    links between its devices if all ranks are on one node.
    """
    N, B = float(n), float(nb)
    stored = stored_as(precision)
    getrf, trsm = machine.curve("factor", stored)(B), machine.curve("trsm", stored)(B)
    gemm = machine.gemm_rate(precision, B, N / math.sqrt(P * Q))
    Q_r, Q_c = node
    ports = machine.network.nics if nics is None else nics
    one_node = (Q_r, Q_c) == (P, Q)
    NBN = machine.network.local_rate if one_node else ports * machine.network.nic_rate
    return Bound(
        getrf=N * B**2 / getrf,
        trsm=N**2 * B / (P * trsm) + N**2 * B / (Q * trsm),
        bcast_panel=2 * N**2 * Q_r / (P * NBN) + 2 * N**2 * Q_c / (Q * NBN),
        gemm=N**3 / (P * Q * gemm),
    )
