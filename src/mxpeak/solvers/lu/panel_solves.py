"""Report how an LU solved for L21 and U12: by triangular solves, or by products with inverted diagonal blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from mxpeak.kernels.contract.lu import PanelSolve
from mxpeak.precision import precision

#: The flops of the solves for L21 and U12, by the method and precision that the backend reports.
PanelSolves = Counter[PanelSolve]


def panel_solve_facts(parts: Iterable[PanelSolves]) -> dict[str, Any] | None:
    """Return the lowest precision of the panel solves on any rank, with its method and its share of the flops.

    Return None if no rank solved for a panel. The lowest precision is reported, not the most frequent one: a claim
    that all operands were in fp32 must hold for every solve.
    """
    flops = sum(parts, PanelSolves())
    total = flops.total()
    if not total:
        return None
    way = max(flops, key=lambda how: (precision(how.operands).u if flops[how] else 0.0, flops[how]))
    return {"operands": way.operands, "method": way.method, "share": flops[way] / total}
