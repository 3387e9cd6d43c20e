"""Differentiable solves of dense systems and stacks for torch and JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mxpeak.library.dense.inputs import matrix, right_hand_side
from mxpeak.library.dense.stack import as_columns, stack_of
from mxpeak.library.dense.symmetric import Structure
from mxpeak.library.gradients import System, operands, solution


class DenseSystem(System):
    """A dense system or a stack of systems.

    `solve` is `mxpeak.solve` with all options. `factor` is `mxpeak.lu_factor` or `mxpeak.cho_factor`, whose factors of
    a single matrix are reused. A stack is solved again, because its systems are small, and so is A without `factor`.
    """

    def __init__(self, solve: Callable[..., Any], factor: Callable[[Any], Any] | None):
        self._solve, self._factor = solve, factor
        self._factors: Any = None
        self._shape: tuple[int, ...] = ()

    def solve(self, numbers: Any, b: Any, form: str) -> Any:
        """Return x, with the factors of the first call if A is a single matrix."""
        if numbers.ndim > 2 or self._factor is None:
            x, info = self._solve(numbers, b, transposed=form)
        else:
            if self._factors is None:
                self._factors = self._factor(numbers)
            x, info = self._factors.solve(b, transposed=form)
        self.info = info if self.info is None else self.info
        return x

    def solve_batch(self, numbers: Any, b: Any, form: str) -> Any:
        """Return x for all matrices; right-hand sides of a single matrix are solved together."""
        if numbers.ndim == 2 or numbers.size != numbers.shape[-1] ** 2:
            return self._solve(numbers, b, transposed=form)[0]
        A, B = numbers.reshape(numbers.shape[-2:]), np.moveaxis(b, -2, 0)
        X = self._solve(A, B.reshape(len(A), -1), transposed=form)[0]
        return np.moveaxis(X.reshape(B.shape), 0, -2)

    def gradient(self, y: Any, x: Any) -> Any:
        """Return -y x^T for each system."""
        return -(y @ x.mT)


def solve_differentiably(A: Any, b: Any, form: str, system: DenseSystem, structure: Structure | str) -> tuple[Any, Any]:
    """Solve A x = b, A^T x = b or A^H x = b as a differentiable operation, and return x and the diagnostics.

    The diagnostics, a `SolveInfo`, are None in `jax.jit` and `jax.vmap`, because JAX computes x later.
    """
    xp, (A, b) = operands(A, b)
    _check_shapes(A.shape, b.shape)
    if isinstance(structure, Structure):
        A = _from_triangle(xp, A, structure)
    is_vector = b.ndim == 1
    B = b[:, None] if is_vector else b
    if A.ndim > 2:
        shape = tuple(np.broadcast_shapes(A.shape[:-2], B.shape[:-2]))
        A, B = (xp.broadcast_to(V, (*shape, *V.shape[-2:])) for V in (A, B))
    if form != "N":
        A = A.mT
    x = solution(A.conj() if form == "H" else A, B, system)
    return x[..., 0] if is_vector else x, system.info


def _from_triangle(xp: Any, A: Any, structure: Structure) -> Any:
    """Return the symmetric or Hermitian matrix of one triangle of A, so that the gradient is that of the triangle."""
    half = xp.tril(A, -1) if structure.lower else xp.triu(A, 1)
    diagonal = A * xp.eye(A.shape[-1], dtype=A.dtype)
    return half + half.mT.conj() + diagonal.real if structure.hermitian else half + half.mT + diagonal


def _check_shapes(A: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Raise the errors of `solve` for shapes that do not match."""
    of_A, of_b = (np.broadcast_to(0.0, tuple(shape)) for shape in (A, b))
    if stack := stack_of(of_A):
        as_columns(stack.shape, of_b)
    else:
        right_hand_side(of_b, matrix(of_A).shape[0])
