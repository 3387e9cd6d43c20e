"""Differentiable solves of dense systems, stacks and least-squares problems for torch and JAX."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from mxpeak.errors import UsageError
from mxpeak.library.dense.inputs import check_blocks, matrix, right_hand_side
from mxpeak.library.dense.stack import as_columns, stack_of
from mxpeak.library.dense.symmetric import SymmetricKind
from mxpeak.library.gradients import ADJOINT, DifferentiableSystem, Solve, is_differentiated, operands, solution
from mxpeak.library.outcomes import NotSolvedWarning


class DenseSystem(DifferentiableSystem):
    """A dense system or a stack of systems.

    `solve` is `mxpeak.solve` with all options. `factor` is `mxpeak.lu_factor` or `mxpeak.cho_factor`, whose factors of
    a single matrix are reused. A stack is solved again, because its systems are small. A single matrix without `factor`
    is also solved again.
    """

    def __init__(self, solve: Callable[..., Any], factor: Callable[[Any], Any] | None):
        self._solve, self._factor = solve, factor
        self._factors: Any = None

    def solve(self, numbers: Any, b: Any, form: str) -> Any:
        """Return x. If A is a single matrix, use the factors of the first call."""
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
        return self._solve(numbers.reshape(numbers.shape[-2:]), b, transposed=form)[0]

    def gradient(self, y: Any, x: Any) -> Any:
        """Return -y x^T for each system."""
        return -(y @ x.mT)


class LeastSquaresSystem(DifferentiableSystem):
    """A problem min ||b - A x|| with the solution x = A^+ b, for a matrix A of full rank (Golub, Pereyra 1973).

    `lstsq` is `mxpeak.lstsq` with all options. The gradients are

        y = (A^+)^H dx,  db = y,
        dA = -y x^H + (b - A x) (A^+ y)^H            for m > n,
        dA = -y x^H + (A^+)^H x (dx - A^H y)^H       for m < n
    """

    needs_b = True

    def __init__(self, lstsq: Callable[..., Any], *, of_A: bool):
        self._lstsq, self._of_A = lstsq, of_A

    def solve(self, numbers: Any, b: Any, form: str) -> Any:
        """Return A^+ b, or (A^+)^H b; issue a warning if A has no derivative."""
        x, info = self._lstsq(numbers if form == "N" else _adjoint(numbers), b)
        self.info = info if self.info is None else self.info
        full = min(info.shape)
        if form == "H" and self._of_A and info.rank < full:
            warnings.warn(
                f"A has rank {info.rank}, less than {full}, so x has no derivative with respect to A, and this "
                "gradient is arbitrary; use a matrix of full rank, for example with regularization",
                NotSolvedWarning,
                stacklevel=2,
            )
        return x

    def solve_batch(self, numbers: Any, b: Any, form: str) -> Any:
        """Return x for each matrix or right-hand side of a batch."""
        lead = np.broadcast_shapes(numbers.shape[:-2], b.shape[:-2])
        A, B = (np.broadcast_to(V, (*lead, *V.shape[-2:])) for V in (numbers, b))
        X = np.empty((*lead, *self.shape_of_x(numbers, b, form)[-2:]), b.dtype)
        for index in np.ndindex(*lead):
            X[index] = self.solve(A[index], B[index], form)
        return X

    def gradient(self, y: Any, x: Any) -> Any:
        """Return -y x^T."""
        return -(y @ x.mT)

    def shape_of_x(self, numbers: Any, b: Any, form: str) -> tuple[int, ...]:
        """Return the shape of x: one row per column of A, or per row for (A^+)^H."""
        return (*b.shape[:-2], numbers.shape[-1 if form == "N" else -2], b.shape[-1])

    def gradients(
        self, solve: Solve, operands: tuple[Any, Any, Any], dx: Any, form: str, *, of_A: bool
    ) -> tuple[Any, Any]:
        """Return the gradients with respect to A, or None unless `of_A`, and with respect to b."""
        numbers, b, x = operands
        A = numbers if form == "N" else _adjoint(numbers)
        y = solve(numbers, dx, ADJOINT[form])
        if not of_A:
            return None, y
        dA, (m, n) = self.gradient(y, x.conj()), A.shape
        if m > n:
            dA = dA + (b - A @ x) @ _adjoint(solve(numbers, y, form))
        elif m < n:
            dA = dA + solve(numbers, x, ADJOINT[form]) @ _adjoint(dx - _adjoint(A) @ y)
        return dA if form == "N" else _adjoint(dA), y


def _adjoint(A: Any) -> Any:
    """Return A^H, for arrays of any library."""
    return A.swapaxes(-1, -2).conj()


def solve_differentiably(
    A: Any, b: Any, form: str, system: DenseSystem, structure: SymmetricKind | str
) -> tuple[Any, Any]:
    """Solve A x = b, A^T x = b or A^H x = b as a differentiable operation, and return x and the diagnostics.

    The diagnostics, a `SolveInfo`, are None in `jax.jit` and `jax.vmap`, because JAX computes x later.
    """
    xp, (A, b) = operands(A, b)
    _check_shapes(A.shape, b.shape)
    if A.ndim == 2 and b.ndim > 2:  # all blocks together
        rows = xp.moveaxis(b, -2, 0)
        shape = len(A), prod((*b.shape[:-2], b.shape[-1]))
        x, info = solve_differentiably(A, xp.reshape(rows, shape), form, system, structure)
        return xp.moveaxis(xp.reshape(x, rows.shape), 0, -2), info
    if isinstance(structure, SymmetricKind):
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


def lstsq_differentiably(A: Any, b: Any, lstsq: Callable[..., Any]) -> tuple[Any, Any]:
    """Solve min ||b - A x|| as a differentiable operation, and return x and the diagnostics.

    The diagnostics, a `LeastSquaresInfo`, are None in `jax.jit` and `jax.vmap`, because JAX computes x later.
    """
    system = LeastSquaresSystem(lstsq, of_A=is_differentiated(A))
    _, (A, b) = operands(A, b)
    if A.ndim != 2:
        raise UsageError(f"A has shape {tuple(A.shape)}, but lstsq needs a matrix; use shape (m, n)")
    right_hand_side(np.broadcast_to(0.0, tuple(b.shape)), *A.shape)
    x = solution(A, b[:, None] if b.ndim == 1 else b, system)
    info = system.info
    if b.ndim > 1:
        return x, info
    return x[:, 0], info if info is None else replace(info, residual=info.residual[:, 0])


def _from_triangle(xp: Any, A: Any, structure: SymmetricKind) -> Any:
    """Return the symmetric or Hermitian matrix of one triangle of A, so that the gradient is that of the triangle."""
    half = xp.tril(A, -1) if structure.lower else xp.triu(A, 1)
    diagonal = A * xp.eye(A.shape[-1], dtype=A.dtype)
    return half + half.mT.conj() + diagonal.real if structure.hermitian else half + half.mT + diagonal


def _check_shapes(A: tuple[int, ...], b: tuple[int, ...]) -> None:
    """Raise the errors of `solve` for shapes that do not match."""
    of_A, of_b = (np.broadcast_to(0.0, tuple(shape)) for shape in (A, b))
    if stack := stack_of(of_A):
        as_columns(stack.shape, of_b)
    elif len(b) > 2:
        check_blocks(tuple(b), matrix(of_A).shape[0])
    else:
        right_hand_side(of_b, matrix(of_A).shape[0])
