"""Differentiate the solution of a linear system in torch's graph.

A x = b:  db = A^-H dx,  dA = -db x^H
"""

from __future__ import annotations

from typing import Any

import torch


class SolveFunction(torch.autograd.Function):  # type: ignore[misc]
    """The solution x = A^-1 b, or A^-H b, as a node of torch's graph.

    The backward pass consists of solutions of adjoint systems, so it is also differentiable.
    """

    @staticmethod
    def forward(numbers: Any, b: Any, system: Any, form: str) -> Any:
        """Return x for a `mxpeak.library.gradients.DifferentiableSystem`; `numbers` are the entries of A."""
        return system.solve(numbers.detach(), b.detach(), form)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save A, x and, if the gradients depend on it, b."""
        numbers, b, ctx.system, ctx.form = inputs
        ctx.save_for_backward(numbers, b if ctx.system.needs_b else None, output)

    @staticmethod
    def backward(ctx: Any, dx: Any) -> tuple[Any, ...]:
        """Return the gradients with respect to the entries of A and to b."""
        system, of_A = ctx.system, ctx.needs_input_grad[0]
        solve = lambda numbers, b, form: SolveFunction.apply(numbers, b, system, form)  # noqa: E731
        return *system.gradients(solve, ctx.saved_tensors, dx, ctx.form, of_A=of_A), None, None
