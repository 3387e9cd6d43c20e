"""Where an LU ceased to be finite: it is ended there by all ranks together, and the block is named."""

from __future__ import annotations

from collections.abc import Sequence

from mxpeak.configs.lu import LuCase
from mxpeak.errors import StoppedError
from mxpeak.records import Caution
from mxpeak.solvers.blocks import DiagonalBlocks, Witness
from mxpeak.spans import Spans, Step

#: How often in an LU all ranks ask each other whether its blocks are finite.
LOOKS = 20


class NotFiniteError(StoppedError):
    """An LU came upon a block that is not finite: no residual could pass any more."""

    def __init__(self, witness: Witness, case: LuCase):
        self.cautions = not_finite([witness], case)
        super().__init__(self.cautions[0].text)


def end_if_not_finite(spans: Spans, blocks: DiagonalBlocks, case: LuCase, *, with_l: bool) -> None:
    """Have all ranks of an LU leave it together once one of its blocks is not finite, besides what else they look for.

    They ask each other at the same steps, LOOKS times; `with_l`: L lies below the diagonal.
    """
    other, seen = spans.look, 0

    def look(step: Step) -> None:
        nonlocal seen
        if other is not None:
            other(step)
        part = int(LOOKS * step.done_flops / step.total_flops) if step.total_flops else 0
        if part != seen and step.index < step.count:
            seen = part
            if (witness := blocks.alarm(step.index, with_l=with_l)) is not None:
                raise NotFiniteError(witness, case)

    spans.look = look


def not_finite(witnesses: Sequence[Witness], case: LuCase) -> list[Caution]:
    """Where an LU ceased to be finite, if one did: the block, its rows and columns, and who holds it."""
    found = next((one for one in witnesses if one.not_finite is not None), None)
    if found is None or found.not_finite is None:
        return []
    i, j = found.not_finite
    rows, columns = (f"{b * case.nb} to {min((b + 1) * case.nb, case.n) - 1}" for b in (i, j))
    text = (
        f"not finite: block ({i}, {j}), rows {rows}, columns {columns}, on process ({i % case.P}, {j % case.Q}) of the "
        f"grid, noticed in step {found.step}"
    )
    return [Caution("not-finite-block", text, "if the matrix is finite, test that process's node or device")]
