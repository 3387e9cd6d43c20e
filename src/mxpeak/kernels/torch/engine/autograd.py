"""Differentiate the solution of a linear system in torch's graph.

A x = b:  db = A^-H dx,  dA = -db x^H
"""

from __future__ import annotations

from typing import Any

import torch


class Solution(torch.autograd.Function):  # type: ignore[misc]
    """The solution x = A^-1 b, or A^-H b, as a node of torch's graph.

    The backward pass is a solution of the adjoint system with the same factors, so it is differentiable, too.
    """

    @staticmethod
    def forward(numbers: Any, b: Any, system: Any, form: str) -> Any:
        """Return x; `system` is a `mxpeak.library.gradients.System` and `numbers` are those of A."""
        return system.solve(numbers.detach(), b.detach(), form)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save A and x."""
        numbers, _, ctx.system, ctx.form = inputs
        ctx.save_for_backward(numbers, output)

    @staticmethod
    def backward(ctx: Any, dx: Any) -> tuple[Any, ...]:
        """Return the gradients with respect to the numbers of A and to b."""
        numbers, x = ctx.saved_tensors
        plain = ctx.form == "N"
        db = Solution.apply(numbers, dx, ctx.system, "H" if plain else "N")
        dA = None
        if ctx.needs_input_grad[0]:
            dA = ctx.system.gradient(db, x.conj()) if plain else ctx.system.gradient(x, db.conj())
        return dA, db, None, None
